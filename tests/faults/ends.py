"""Real processes that run the command line and meet a signal, a full disk or a lost folder at a chosen moment.

python ends.py FOLDER [few] prints a JSON object: scenario -> {code, said, left, ...}. With `few`, a phase meets SIGINT or
SIGTERM, else both. Children are forked with torch imported.
"""

# ruff: noqa: E402  (threads are set before torch is imported)
import os
import sys

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1"}.items():
    os.environ.setdefault(name, value)

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

torch.set_num_threads(1)

from faults.late import compiling, exporting, hear_the_compiler, hear_the_export
from faults.runs import outcome
from fixtures.tiny import write_reviews
from headstart.cli import console, main
from headstart.recipes.compare import run as comparing
from headstart.store import bundle, checkpoint
from headstart.store.run_folder import RunFolder

SMALL = [
    *("--model.width", "16", "--model.depth", "2", "--model.feedforward", "24", "--model.context", "24"),
    *("--tokenizer.vocab-size", "300", "--runtime.threads", "1", "--model.dropout", "0.1"),
]
Act = Callable[[], None]


class Moments:
    """Lets something happen when the command line says or does something for the n-th time."""

    def __init__(self, acts: dict[str, tuple[int, Act]]) -> None:
        self.acts, self.seen = acts, dict.fromkeys(acts, 0)

    def reached(self, words: str) -> None:
        for start, (number, act) in self.acts.items():
            if words.startswith(start):
                self.seen[start] += 1
                if self.seen[start] == number:
                    act()

    def listen(self) -> None:
        """Hear what the console is told, and when weights are written."""
        moments, say, task, save = self, console.Console.say, console.Console.task, bundle.save_tensors

        def saying(own: Any, line: str) -> None:
            moments.reached(line)
            say(own, line)

        @contextlib.contextmanager
        def working(own: Any, name: str, total: float | None, unit: str) -> Any:
            with task(own, name, total, unit) as bar:
                yield _Bar(bar, name)

        class _Bar:
            def __init__(self, bar: Any, name: str) -> None:
                self.bar, self.name = bar, name
                moments.reached(f"begin {name}")

            def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
                self.bar.advance(amount, note, total)
                moments.reached(self.name)

        def saving(path: Path, content: Any) -> None:
            moments.reached(f"save {path.parent.name.lstrip('.')}")
            save(path, content)

        console.Console.say, console.Console.task = saying, working
        bundle.save_tensors = checkpoint.save_tensors = saving
        write_report = comparing.write_report

        def reporting(*args: Any) -> Any:
            moments.reached("report")
            return write_report(*args)

        comparing.write_report = reporting
        if "compile" in self.acts:
            hear_the_compiler(self.reached)
        if any(words.startswith("export") for words in self.acts):
            hear_the_export(self.reached)


def run(folder: Path, arguments: list[str], **acts: tuple[int, Act]) -> dict[str, Any]:
    """Run the command line in a child; returns its exit code and what it said."""
    output = folder / "said.txt"
    output.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            handle = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.argv = ["headstart", *arguments]
            Moments({words.replace("_", " "): act for words, act in acts.items()}).listen()
            main.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    started = time.monotonic()
    deadline = started + 600
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.002)
    else:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    lines = output.read_text().strip().splitlines()
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "said": lines[-1] if lines else "", "all": lines, "seconds": time.monotonic() - started}


def send(*signals: int) -> Act:
    """Signals to this process, as a terminal or a scheduler sends them."""

    def act() -> None:
        for number in signals:
            os.kill(os.getpid(), number)

    return act


class Scenes:
    """All scenarios."""

    def __init__(self, folder: Path, *, few: bool) -> None:
        self.folder, self.data, self.few = folder, write_reviews(folder / "data"), few
        self.result: dict[str, Any] = {}
        files = ["--valid", str(self.data / "valid.csv"), "--test", str(self.data / "test.csv")]
        every = ["--loop.save-every", "3", *SMALL]
        learn = [
            "--loop.steps",
            "12",
            "--loop.batch-size",
            "4",
            "--corpus.held-out",
            "0.1",
            "--loop.evaluate-every",
            "5",
        ]
        train, texts = str(self.data / "train.csv"), str(self.data / "texts.txt")
        self.commands = {
            "pretrain": [texts, *learn, *every],
            "finetune": [train, "--from", "scratch", "--loop.epochs", "3", *files, *every],
            "compare": [train, "--arms", "linear,scratch", "--seeds", "1", "--loop.epochs", "2", *files, *every],
            "tokenizer": [texts, "--vocab-size", "300"],
            "prepare": [texts, "--tokenizer.vocab-size", "300"],
            "auto": [train, "--from", "none", "--runtime.threads", "1"],
        }
        self.whole: dict[str, Any] = {}

    def start(self, name: str, command: str, more: tuple[str, ...] = (), **acts: tuple[int, Act]) -> Path:
        """Run a command that meets something; what it left behind is noted."""
        out = self.folder / name.replace(" ", "-")
        result = run(self.folder, [command, *self.commands[command], "--out", str(out), *more], **acts)
        self.note(name, out, result)
        return out

    def note(self, name: str, out: Path, result: dict[str, Any]) -> None:
        result["left"] = sorted(path.name for path in out.iterdir()) if out.exists() else None
        result["drafts"] = [path.name for path in self.folder.rglob(".*writing-*")]
        self.result[name] = {key: _describe(value, out) for key, value in result.items()}

    def resume(self, name: str, command: str, out: Path, *more: str) -> None:
        """Go on, and compare with a run that met nothing."""
        key = " ".join((command, *more))
        if key not in self.whole:
            whole = self.folder / f"whole-{command}{len(more)}"
            done = run(self.folder, [command, *self.commands[command], *more, "--out", str(whole)])
            assert done["code"] == 0, done
            self.whole[key] = outcome(whole)
        again = run(self.folder, [command, "--resume", "--out", str(out)])
        self.result[name] |= {"resumed": again["code"], "same": outcome(out) == self.whole[key]}

    def signals(self) -> None:
        """SIGINT and SIGTERM in every phase."""
        early = {
            "pretrain": ("tokenizer:_reading_text", "encode"),
            "finetune": ("reading", "begin_looking_for_duplicates"),
            "compare": ("reading", "tokenizer:_reading_text"),
            "tokenizer": ("tokenizer:_reading_text",),
            "prepare": ("tokenizer:_reading_text", "encode"),
            "auto": ("reading", "begin_looking_for_duplicates"),
        }
        late = {
            "pretrain": (("pretraining", 5), ("measuring", 1), ("save_bundle", 1)),
            "finetune": (("fine-tuning", 8), ("save_bundle", 1)),
            "compare": (("fine-tuning", 4), ("report", 1)),
            "auto": (("linear_model:", 1), ("cross-validation", 1)),
        }
        turns = cycle([[signal.SIGINT], [signal.SIGTERM]] if self.few else [[signal.SIGINT, signal.SIGTERM]])
        for command, phase in ((command, phase) for command, phases in early.items() for phase in phases):
            for number in next(turns):
                self.start(f"{command} {phase} {number.name}", command, **{phase: (1, send(number))})
        for command, (phase, count) in ((command, moment) for command, moments in late.items() for moment in moments):
            for number in next(turns):
                name = f"{command} {phase} {number.name}"
                self.resume(name, command, self.start(name, command, **{phase: (count, send(number))}))
        # the second one comes while the first one's state is being saved
        acts = {"pretraining": (5, send(signal.SIGINT)), "save_step": (4, send(signal.SIGINT))}
        self.resume("twice", "pretrain", self.start("twice", "pretrain", **acts))
        # while a run is being resumed, before it trains: the run stays
        out = self.start("first", "pretrain", pretraining=(5, send(signal.SIGTERM)))
        result = run(self.folder, ["pretrain", "--resume", "--out", str(out)], resuming=(1, send(signal.SIGINT)))
        self.note("while resuming", out, result)
        self.resume("while resuming", "pretrain", out)

    def limit(self) -> None:
        """A time limit counts what came before training."""
        slow = {"encode": (1, lambda: time.sleep(3.5))}
        out = self.start("time limit", "pretrain", ("--runtime.time-limit", "0.05"), **slow)
        shutil.rmtree(out, ignore_errors=True)

    def ends(self) -> None:
        """A folder that is lost, and one that is in use."""
        out = self.folder / "vanished"
        gone = {"pretraining": (5, lambda: shutil.rmtree(out))}
        self.start("vanished", "pretrain", **gone)
        out = self.start("in use", "pretrain", pretraining=(5, send(signal.SIGTERM)))
        with RunFolder(out).locked():
            self.note("in use", out, run(self.folder, ["pretrain", "--resume", "--out", str(out)]))
        self.resume("in use", "pretrain", out)
        self.note("taken", out, run(self.folder, ["pretrain", *self.commands["pretrain"], "--out", str(out)]))

    def disks(self) -> None:
        """A disk that is full, and one that cannot be written: small file systems, where they may be mounted."""
        target_folder = self.folder / "disk"
        target_folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(target_folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            return
        try:
            full = {"pretraining": (5, lambda: _fill(target_folder / "ballast"))}
            out = target_folder / "run"
            result = run(self.folder, ["pretrain", *self.commands["pretrain"], "--out", str(out)], **full)
            self.note("full", out, result)
            (target_folder / "ballast").unlink()
            self.resume("full", "pretrain", out)
            again = target_folder / "again"
            stopped = {"pretraining": (5, send(signal.SIGTERM))}
            run(self.folder, ["pretrain", *self.commands["pretrain"], "--out", str(again)], **stopped)
            remount = ["mount", "-o", "remount,{}", str(target_folder)]
            subprocess.run([word.format("ro") for word in remount], check=True)
            self.note("read-only", again, run(self.folder, ["pretrain", "--resume", "--out", str(again)]))
            new = ["pretrain", *self.commands["pretrain"], "--out", str(target_folder / "new")]
            self.note("new on read-only", target_folder / "new", run(self.folder, new))
            subprocess.run([word.format("rw") for word in remount], check=True)
            self.resume("read-only", "pretrain", again)
        finally:
            subprocess.run(["umount", str(target_folder)], check=False)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()


def _describe(value: Any, out: Path) -> Any:
    """Without the folder, which is another every time."""
    if isinstance(value, list):
        return [_describe(one, out) for one in value]
    return value.replace(str(out), "OUT") if isinstance(value, str) else value


if __name__ == "__main__":
    scenes = Scenes(Path(sys.argv[1]), few="few" in sys.argv)
    for part in ("signals", "limit", "ends", "disks"):
        getattr(scenes, part)()
    compiling(scenes)
    exporting(scenes, run)
    sys.stdout.write(json.dumps(scenes.result, indent=1))
