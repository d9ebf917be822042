"""The command line as a person meets it: a process, its output, its exit code; and a folder of tiny trained models."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fixtures.waiting import PATIENCE
from headstart.cli import predict as predict_command
from headstart.cli.main import run
from headstart.predict.bundle_predictor import AnyPredictor, BundlePredictor
from headstart.predict.outputs import AnyPrediction

SOURCE = Path(__file__).parents[2] / "src"
Typed = Callable[[str], tuple[int, str, str]]
TINY = "--model.width 16 --model.depth 1 --model.feedforward 16 --model.context 32 --runtime.threads 1"


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a process that runs this very source, in a plain window."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADSTART_")}
    return kept | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80"}


@pytest.fixture
def headstart(tmp_path: Path, environment: dict[str, str]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`headstart(...)` as a process in the test's own folder."""

    def call(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "headstart", *map(str, arguments)],
            cwd=tmp_path,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
        )

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a tokenizer `tok`, a language model `base` and a classifier `clf`."""
    folder = tmp_path_factory.mktemp("trained")
    write_texts(folder)
    with chdir(folder):
        for line in (
            "tokenizer corpus.txt --vocab-size 300 --out tok --quiet",
            f"pretrain corpus.txt --tokenizer tok --out base --preset classic --quiet {TINY}",
            "finetune train.csv --from base --out clf --quiet --loop.epochs 2 --runtime.threads 1",
        ):
            assert run(line.split()) == 0
    return folder


@pytest.fixture
def typed(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """`typed("params --json")` in the folder of trained models: exit code, stdout, stderr."""
    monkeypatch.chdir(trained)

    def call(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        arguments = shlex.split(line)
        monkeypatch.setattr("sys.argv", ["headstart", *arguments])
        code = run(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def write_texts(folder: Path) -> None:
    """40 labelled rows to learn from, 20 to test on, and 200 lines without labels."""
    words = {"positive": ("lovely", "superb", "moving"), "negative": ("awful", "dull", "weak")}
    rows = []
    for number in range(260):
        label = ("positive", "negative")[number % 2]
        rows.append((f"the film is {words[label][number % 3]} {number}", label))
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text, _ in rows[60:]), encoding="utf-8")
    for name, part in (("train.csv", rows[:40]), ("test.csv", rows[40:60])):
        table = "".join(f"{text},{label}\n" for text, label in part)
        (folder / name).write_text(f"text,label\n{table}", encoding="utf-8")


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """End the run when it predicts for the n-th time, or never; windows have 8 rows."""
    predict = BundlePredictor.predict

    def arm(calls: int | None) -> None:
        left = count(calls if calls is not None else sys.maxsize, -1)

        def stopping(self: AnyPredictor, *arguments: Any, **options: Any) -> list[AnyPrediction | None]:
            if next(left) == 0:
                raise KeyboardInterrupt
            return predict(self, *arguments, **options)

        monkeypatch.setattr(BundlePredictor, "predict", stopping)

    monkeypatch.setattr(predict_command, "WINDOW_ROWS", 8)
    return arm
