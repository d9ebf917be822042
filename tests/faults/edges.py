"""Settings at the edge of floating point, and settings and models that no memory holds.

A number is refused in one line or works; what cannot fit is refused in one line, in seconds and in little memory.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from fixtures.small_models import language
from fixtures.waiting import PATIENCE
from headstart.cli.main import run
from headstart.cli.options import option_flag
from headstart.config.merge import iter_fields
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.interop.hf_export import export_hf

NUMBERS = ("inf", "nan", "1e308", "5e-324", "-0.0", "-inf")
MAX_BYTES = 2**30
"""The memory that a case may take; torch alone takes about a third of it."""
_SMALL = [
    *("--model.width", "8", "--model.depth", "1", "--model.feedforward", "8", "--model.context", "12"),
    *("--tokenizer.vocab-size", "270", "--runtime.threads", "1", "-q"),
]
_PRETRAIN = ["pretrain", "texts.txt", "--corpus.held-out", "0.1", "--loop.batch-size", "2", "--out", "OUT", *_SMALL]
_FINETUNE = ["finetune", "train.csv", "--from", "scratch", "--loop.epochs", "1", "--out", "OUT", *_SMALL]
_NEEDS = {
    "optim.cooldown": ["--optim.schedule", "wsd"],
    "optim.weight_decay": ["--optim.optimizer", "adamw"],
    "model.rotary_base": ["--model.block", "modern"],
    "model.norm_epsilon": ["--model.block", "modern"],
    "next_sentence.weight": ["--objective", "masked"],
    **{f"masking.{name}": ["--objective", "hybrid"] for name in ("rate", "masked", "random", "causal")},
}
"""What a setting needs beside it to have an effect."""
_LOOSE = (
    ["generate", "base", "a", "--temperature", "NUMBER"],
    ["generate", "base", "a", "--temperature", "1", "--top-p", "NUMBER"],
    ["predict", "base", "a", "--abstain", "NUMBER"],
    ["params", "--tokens", "NUMBER"],
    ["params", "--forecast", "--tokens", "NUMBER"],
    ["tune", "train.csv", "--from", "scratch", "--trials", "1", "--minutes", "NUMBER", "--out", "OUT", *_SMALL],
    ["tune", "train.csv", "--from", "scratch", "--trials", "2", "--optim.lr", "NUMBER", "--out", "OUT", *_SMALL],
    [*_PRETRAIN, "--loop.steps", "1", "--teacher", "base", "--teacher-weight", "NUMBER"],
    [*_PRETRAIN[:1], "--stage", "texts.txt fraction=NUMBER", "--stage", "more.txt fraction=NUMBER", *_PRETRAIN[2:]],
    [*_FINETUNE, "--transfer.class-weights", "positive=NUMBER"],
    [*_FINETUNE[:1], "ratings.csv", *_FINETUNE[2:], "--task", "rating", "--lowest", "NUMBER"],
    [*_FINETUNE[:1], "ratings.csv", *_FINETUNE[2:], "--task", "rating", "--highest", "NUMBER"],
)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield a command for every option that takes a number with a point, with NUMBER in its place."""
    for base, section in ((_PRETRAIN, PretrainConfig), (_FINETUNE, FinetuneConfig)):
        for name, field in iter_fields(section):
            if float in (field.annotation, *get_args(field.annotation)) and not name.startswith("labelled.lo"):
                if name == "labelled.highest":
                    continue
                steps = ["--loop.steps", "2"] if base is _PRETRAIN and not name.startswith("loop.") else []
                yield f"{base[0]} {name}", [*base, *steps, *_NEEDS.get(name, ()), option_flag(name), "NUMBER"]
    for command in _LOOSE:
        before = command[next(index for index, word in enumerate(command) if "NUMBER" in word) - 1]
        yield f"{command[0]} {before.lstrip('-')}", list(command)


def torture_floats(data: Path, work: Path, *, every: int, numbers: Sequence[str] = NUMBERS) -> Iterator[dict[str, Any]]:
    """Try every number in every `every`-th option; children are forked with torch imported."""
    work.mkdir(parents=True)
    text = (data / "train.csv").read_text()
    (data / "ratings.csv").write_text(text.replace("positive", "4.5").replace("negative", "1"))
    for name, command in list(commands())[::every]:
        row: dict[str, Any] = {"name": name, "cases": 0, "refused": 0, "worked": 0, "faults": [], "hung": []}
        for number in numbers:
            out = work / "out"
            words = [word.replace("NUMBER", number).replace("OUT", str(out)) for word in command]
            code, output, taken = forked(words, data, work / "said.txt")
            row["cases"] += 1
            row["worked" if code in (0, 75) else "refused"] += 1
            if code == 99:
                row["hung"].append(number)
            elif code not in (0, 1, 2, 75) or "unexpected" in output or "Traceback" in output or taken > MAX_BYTES:
                row["faults"].append(f"{number}: {code}, {taken >> 20} MiB, {output[-300:]}")
            shutil.rmtree(out, ignore_errors=True)
        yield row


def forked(words: list[str], folder: Path, log: Path) -> tuple[int, str, int]:
    """Run a command in a child; returns its exit code (99 if it hung), what it wrote, and the memory it took."""
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.chdir(folder)
            sys.argv = ["headstart", *words]
            code = run(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code, log.read_text(errors="replace"), 1024 * usage.ru_maxrss
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 99, log.read_text(errors="replace"), 0
        time.sleep(0.005)


def _huge(command: str, *options: str) -> list[str]:
    start = {
        "pretrain": ["pretrain", "texts.txt"],
        "finetune": ["finetune", "train.csv", "--from", "scratch"],
        "compare": ["compare", "train.csv", "--test", "test.csv", "--arms", "scratch"],
        "tune": ["tune", "train.csv", "--from", "scratch", "--trials", "1"],
    }
    return [*start[command], *options, "--out", "OUT"]


_WIDE = ("--model.width", "1000000", "--model.depth", "12")
CASES = {
    "a huge batch": _huge("pretrain", "--loop.batch-size", "1000000000"),
    "a huge network": _huge("finetune", *_WIDE),
    "a model of a million layers that has two": ["finetune", "train.csv", "--from", "hf:DEEP", "--out", "OUT"],
    "a network of a million layers": _huge("pretrain", "--model.depth", "1000000"),
    "a deep network": _huge("pretrain", "--model.depth", "10000", "--model.width", "20000"),
    "a wide network": _huge("pretrain", *_WIDE),
    "a huge feed-forward part": _huge("pretrain", "--model.feedforward", "16000000", "--model.depth", "10000"),
    "huge rows": _huge("pretrain", "--model.context", "16777216"),
    "a huge vocabulary": _huge("pretrain", "--tokenizer.vocab-size", "1000000", *_WIDE),
    "a vocabulary beyond the limit": _huge("pretrain", "--tokenizer.vocab-size", "1000000000"),
    "many batches per step": _huge("pretrain", "--loop.accumulate", "1000000000"),
    "a huge comparison": _huge("compare", *_WIDE),
    "a huge search": _huge("tune", *_WIDE),
    "a wide model that is narrow": ["finetune", "train.csv", "--from", "hf:WIDE", "--out", "OUT"],
    "a vocabulary that is not there": ["pretrain", "texts.txt", "--from", "hf:WORDS", "--out", "OUT"],
    "an import of a million layers": ["import", "hf:DEEP", "--out", "OUT"],
}
"""Commands that must be refused on every machine."""
_MODELS = {
    "DEEP": {"num_hidden_layers": 1_000_000},
    "WIDE": {"hidden_size": 1_000_000, "head_dim": None},
    "WORDS": {"vocab_size": 1_000_000_000},
}


def write_models(work: Path) -> None:
    """Write small models of transformers whose config.json speaks of huge ones."""
    export_hf(language(work / "ours", "modern", "causal"), work / "theirs")
    facts = json.loads((work / "theirs" / "config.json").read_text())
    for name, changes in _MODELS.items():
        shutil.copytree(work / "theirs", work / name)
        (work / name / "config.json").write_text(json.dumps(facts | changes))


def torture_memory(data: Path, work: Path, count: int) -> Iterator[dict[str, Any]]:
    """Run commands that ask for more memory than there is, each in a process of its own that may not have much."""
    for name, command in list(CASES.items())[:count]:
        words = [word.replace("OUT", str(work / "out")) for word in command]
        for model in _MODELS:
            words = [word.replace(f"hf:{model}", f"hf:{work / model}") for word in words]
        started = time.monotonic()
        code, output, taken = _in_a_process(words, data, work / "said.txt")
        row: dict[str, Any] = {"name": name, "code": code, "said": output.strip()[-300:], "faults": [], "hung": []}
        row |= {"seconds": round(time.monotonic() - started, 1), "mebibytes": taken >> 20}
        if code == 99:
            row["hung"].append(name)
        elif code != 2 or output.count("headstart: ") != 1 or "unexpected" in output or taken > MAX_BYTES:
            row["faults"].append(f"{code}, {taken >> 20} MiB: {output[-300:]}")
        if (work / "out").exists():
            row["faults"].append("left a folder behind")
            shutil.rmtree(work / "out")
        yield row


def _in_a_process(words: list[str], folder: Path, log: Path) -> tuple[int, str, int]:
    def limit() -> None:  # the address space is larger than the memory that is used: libraries are mapped
        resource.setrlimit(resource.RLIMIT_DATA, (8 * MAX_BYTES, 8 * MAX_BYTES))

    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headstart", *words], cwd=folder, stdout=file, stderr=file, preexec_fn=limit
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, log.read_text(errors="replace"), 1024 * usage.ru_maxrss
            if time.monotonic() >= deadline:
                process.kill()
                process.wait()
                return 99, log.read_text(errors="replace"), 0
            time.sleep(0.02)
