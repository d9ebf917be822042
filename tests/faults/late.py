"""Signals in the middle of what looks up for nobody: torch's compiler, and the export of a model."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Act = Callable[[], None]
COMPILER = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
"""What torch compiles with on a CPU, if there is one."""


def soon(*signals: int, seconds: float = 0.3, between: float = 0.0) -> Act:
    """Signals a moment from now, while the work that was just begun is under way."""

    def send() -> None:
        for target_folder, number in enumerate(signals):
            if target_folder:
                threading.Event().wait(between)
            os.kill(os.getpid(), number)

    def act() -> None:
        timer = threading.Timer(seconds, send)
        timer.daemon = True
        timer.start()

    return act


def hear_the_compiler(reached: Callable[[str], None]) -> None:
    """Hear when torch begins to compile, with nothing compiled before."""
    from torch._dynamo import callback

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled-")
    callback.on_compile_start(lambda *_: reached("compile"))


def hear_the_export(reached: Callable[[str], None]) -> None:
    """Hear when weights are written for others, and when a graph is made."""
    from headstart.interop import hf_export, onnx_export

    def before(module: Any, name: str, words: str) -> None:
        work = getattr(module, name)

        def heard(*arguments: Any, **named: Any) -> Any:
            reached(words)
            return work(*arguments, **named)

        setattr(module, name, heard)

    before(hf_export, "write_tokenizer", "export weights")
    before(onnx_export, "_write_graphs", "export graph")
    before(onnx_export, "_compare_files", "export compare")


def compiling(scenes: Any) -> None:
    """SIGINT and SIGTERM while a step is compiled, and a second one at once."""
    if COMPILER is None:
        return
    turns = [("pretrain", signal.SIGINT), ("finetune", signal.SIGTERM)]
    if not scenes.few:
        turns += [("pretrain", signal.SIGTERM), ("finetune", signal.SIGINT)]
    for command, number in turns:
        name = f"{command} compile {number.name}"
        out = scenes.start(name, command, ("--runtime.compile",), compile=(1, soon(number)))
        if not scenes.few and (command, number) == turns[0]:  # the same way for all, and compiling takes long
            scenes.resume(name, command, out, "--runtime.compile")
    twice = soon(signal.SIGINT, signal.SIGINT, between=0.02)
    scenes.start("compile twice", "pretrain", ("--runtime.compile",), compile=(1, twice))


def exporting(scenes: Any, run: Callable[..., dict[str, Any]]) -> None:
    """A signal while a model is written for others leaves nothing, and the model as it was."""
    from importlib.util import find_spec

    model = scenes.folder / "tuned"
    done = run(scenes.folder, ["finetune", *scenes.commands["finetune"], "--out", str(model)])
    assert done["code"] == 0, done
    phases = {"hf": [("export_weights", 0.0)]}
    if all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        phases["onnx"] = [("export_graph", 0.3)] if scenes.few else [("export_graph", 0.3), ("export_compare", 0.0)]
    turns = [signal.SIGINT, signal.SIGTERM]
    for to, moments in phases.items():
        for phase, seconds in moments:
            for number in turns[:1] if scenes.few else turns:
                out: Path = scenes.folder / f"{phase}-{number.name}"
                act = soon(number, seconds=seconds) if seconds else _now(number)
                words = ["export", str(model), "--to", to, "--out", str(out)]
                scenes.note(f"{phase} {number.name}", out, run(scenes.folder, words, **{phase: (1, act)}))
            turns.reverse()


def _now(number: int) -> Act:
    return lambda: os.kill(os.getpid(), number)
