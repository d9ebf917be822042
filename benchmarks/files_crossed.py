"""Counts the source files that a fine-tuning, a prediction and one training step on a CPU execute functions of.

python benchmarks/files_crossed.py            prints the three counts and the files of each

A file counts if one of its functions is called; importing it does not. The fewer files a reader has to open in order to
follow a task, the better. docs/design.md states the counts, and a test compares them.
"""

import csv
import json
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import headstart

PACKAGE = Path(headstart.__file__).parent
TINY = {
    "model": {"width": 16, "depth": 2, "heads": 2, "feedforward": 32, "context": 32},
    "tokenizer": {"vocab_size": 300},
    "runtime": {"device": "cpu", "threads": 1},
}


class Recorder:
    """Collects the files of the package whose functions are called while it is active."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(PACKAGE)):
            self.files.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the calls of this thread, and of threads that are started meanwhile."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def write_data(folder: Path) -> None:
    """Write a small table of two classes, and its texts as a corpus."""
    random_words = random.Random(0)
    rows = [
        (" ".join(random_words.choice(("good", "fine") if label else ("bad", "poor")) for _ in range(6)), label)
        for label in (0, 1) * 30
    ]
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    (folder / "texts.txt").write_text("\n".join(text for text, _ in rows), encoding="utf-8")


def files_crossed(folder: Path) -> dict[str, list[str]]:
    """Return the files of each task: a fine-tuning from a backbone, a prediction in Python, one step on a CPU."""
    write_data(folder)
    headstart.pretrain(
        str(folder / "texts.txt"),
        out=folder / "base",
        settings=TINY | {"loop": {"steps": 2, "batch_size": 4}, "corpus": {"held_out": 0.2}},
    )
    runtime = {"runtime": TINY["runtime"]}
    headstart.finetune(  # whatever is done once per process is done before anything is counted
        str(folder / "train.csv"),
        out=folder / "first",
        backbone=folder / "base",
        settings=runtime | {"loop": {"epochs": 1}},
    )
    finetuning, prediction = Recorder(), Recorder()
    with finetuning.active():
        headstart.finetune(
            str(folder / "train.csv"),
            out=folder / "clf",
            backbone=folder / "base",
            settings=runtime | {"loop": {"epochs": 1}},
        )
    with prediction.active():
        headstart.load(folder / "clf").predict(["a good text"])
    return {
        "fine-tuning": sorted(finetuning.files),
        "prediction": sorted(prediction.files),
        "training step": sorted(step_files()),
    }


def step_files() -> set[str]:
    """Return the files of one step of `fit` on a CPU: the second, when everything is set up."""
    import torch

    from headstart.config.schema import ModelConfig, OptimConfig, RuntimeConfig
    from headstart.data.batch import Batch
    from headstart.model.heads import Model, build_language_head
    from headstart.model.transformer import build_backbone
    from headstart.runtime import setup_runtime
    from headstart.train.loop import TrainState, fit
    from headstart.train.objectives import language_model_loss
    from headstart.train.optimizers import build_optimizer

    config = ModelConfig(**TINY["model"])
    model = Model(build_backbone(config, 300, 0), build_language_head(config, 300, 0))
    optim = OptimConfig()
    ids = torch.randint(4, 300, (2, 16), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids_BT=ids, segments_BT=None, targets=ids, num_targets=ids.numel())
    state = TrainState(model, build_optimizer(model, optim), seed=0)
    runtime = setup_runtime(RuntimeConfig(device="cpu", threads=1))
    steps = fit(state, lambda _step: [batch], partial(language_model_loss, model), optim, 2, runtime)
    next(steps)
    recorder = Recorder()
    with recorder.active():
        next(steps)
    return recorder.files


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = files_crossed(Path(folder))
    for task, names in files.items():
        print(f"{task}: {len(names)}")
        print("  " + " ".join(names))
    if "--json" in sys.argv:
        print(json.dumps({task: len(names) for task, names in files.items()}))


if __name__ == "__main__":
    main()
