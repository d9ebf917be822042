"""The command line as a person meets it: a process, its output, its exit code."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
TINY = ["--model.width", "16", "--model.depth", "1", "--model.feedforward", "16", "--model.context", "32"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def start(arguments: Sequence[str], folder: Path, *, text: str | None = None, **variables: str):
    """Run `headstart` in a folder, as one would from a shell."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")}
    environment |= {"PYTHONPATH": str(SOURCE), "COLUMNS": "80", **variables}
    return subprocess.run(
        [sys.executable, "-m", "headstart", *map(str, arguments)],
        cwd=folder,
        env=environment,
        input=text if text is not None else "",
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


@pytest.fixture
def headstart(tmp_path: Path) -> Run:
    """`headstart(...)` in an empty folder."""

    def call(*arguments: object, **others: str):
        return start(list(arguments), tmp_path, **others)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, labelled files, a tokenizer, a language model `base` and a classifier `clf`."""
    folder = tmp_path_factory.mktemp("trained")
    write_texts(folder)
    steps = [
        ["tokenizer", "corpus.txt", "--vocab-size", "300", "--out", "tok"],
        ["pretrain", "corpus.txt", "--tokenizer", "tok", "--out", "base", "--preset", "classic", *TINY],
        ["finetune", "train.csv", "--from", "base", "--out", "clf", "--loop.epochs", "2", "--runtime.threads", "1"],
    ]
    for step in steps:
        done = start(step, folder)
        assert done.returncode == 0, done.stderr
    return folder


def write_texts(folder: Path) -> None:
    """40 labelled rows to learn from, 20 to test on, and 200 lines without labels."""
    words = {"positive": ("lovely", "superb", "moving"), "negative": ("awful", "dull", "weak")}
    lines = []
    for number in range(260):
        label = ("positive", "negative")[number % 2]
        word = words[label][number % 3]
        lines.append((f"the film is {word} and the cast is {word} {number}", label))
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text, _ in lines[60:]), encoding="utf-8")
    for name, rows in (("train.csv", lines[:40]), ("test.csv", lines[40:60])):
        table = "".join(f"{text},{label}\n" for text, label in rows)
        (folder / name).write_text(f"text,label\n{table}", encoding="utf-8")
