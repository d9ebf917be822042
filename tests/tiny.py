"""The smallest real network, text and run that can still be wrong. Imported by tests of several rooms."""

import csv
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from headstart.config import FinetuneConfig, ModelConfig, PretrainConfig
from headstart.files import read_json, sha256_of, write_json, write_sealed
from headstart.layering import layered, nested
from headstart.model.backbone import build_backbone
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.runtime import Runtime
from headstart.shape import StockConfig
from headstart.store.rundir import RunFolder
from headstart.text.tokenizer import SpecialIds

VOCABULARY = 17
SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
SHAPE = ModelConfig(width=16, depth=2, heads=2, feedforward=24, context=12)
CPU = Runtime(torch.device("cpu"), bf16=False, threads=1)


def kinds_of_network(**sizes: int) -> dict[str, ModelConfig]:
    """A network of every kind: ours, one that learns its positions, and one of which some layers see what is near only."""
    learned = StockConfig(family="bert", norm_first=False, positions=sizes["context"], embedding_norm=True)
    near = {"window": 3, "local_layers": (1, 2)}
    ends = {"norm_first": True, "gated": True, "embedding_norm": True, "final_norm": True}
    return {
        "classic": ModelConfig(block="classic", **sizes),
        "modern": ModelConfig(block="modern", **sizes),
        "positions": ModelConfig(block="stock", stock=learned, **sizes),
        "windows": ModelConfig(block="stock", stock=StockConfig(family="modernbert", **near, **ends), **sizes),
    }


GOOD = ("great", "wonderful", "lovely", "superb", "clever")
BAD = ("awful", "dull", "boring", "poor", "silly")
FILLING = ("the", "film", "was", "and", "a", "very", "with", "plot", "story", "but", "it", "one", "scene", "this")


class Listener:
    """A progress that remembers what was said."""

    def __init__(self):
        from headstart.progress import Quiet

        self.lines = []
        self.task, self.board = Quiet().task, Quiet().board

    def say(self, line):
        self.lines.append(line)


def language_model(seed: int = 0, shape: ModelConfig = SHAPE) -> Model:
    return Model(build_backbone(shape, VOCABULARY, seed), build_language_head(shape, VOCABULARY, seed))


def classifier(seed: int = 0, shape: ModelConfig = SHAPE, classes: int = 2) -> Model:
    return Model(build_backbone(shape, VOCABULARY, seed), build_classifier_head(shape, classes, seed))


def corpus(lengths: list[int], seed: int = 0) -> SimpleNamespace:
    """Documents of random tokens in memory, offering what shards offer."""
    chance = np.random.default_rng(seed)
    documents = [chance.integers(4, VOCABULARY, length) for length in lengths]
    return in_memory(documents)


def in_memory(documents: list[np.ndarray]) -> SimpleNamespace:
    """Token arrays, offering what shards offer."""
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    flat = np.concatenate(documents)
    return SimpleNamespace(lengths=lengths, ids=lambda index: documents[index], flat=flat, offsets=offsets)


def review(chance: random.Random, positive: bool) -> str:
    words = [chance.choice(FILLING) for _ in range(chance.randint(4, 14))]
    for _ in range(2):
        words.insert(chance.randrange(len(words)), chance.choice(GOOD if positive else BAD))
    return " ".join(words)


def write_reviews(folder: Path, *, texts: int = 120, train: int = 48, valid: int = 24, test: int = 24) -> Path:
    """Unlabelled `texts.txt` and labelled `train.csv`, `valid.csv`, `test.csv`."""
    chance = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [review(chance, bool(index % 2)) for index in range(texts)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, rows in (("train", train), ("valid", valid), ("test", test)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for index in range(rows):
                positive = bool(index % 2)
                writer.writerow([review(chance, positive), "positive" if positive else "negative"])
    return folder


_SMALL = {
    "tokenizer.vocab_size": 300,
    "model.width": 16,
    "model.depth": 2,
    "model.feedforward": 24,
    "model.context": 24,
    "runtime.threads": 1,
}


def pretrain_config(**settings) -> PretrainConfig:
    """Dropout on, accumulation on, a schedule: whatever a resumed run could forget."""
    small = {
        **_SMALL,
        "model.dropout": 0.1,
        "corpus.held_out": 0.1,
        "loop.batch_size": 4,
        "loop.accumulate": 2,
        "loop.steps": 14,
        "loop.evaluate_every": 4,
        "loop.save_every": 3,
        "loop.prompt": "the film",
        "optim.lr": 1e-2,
        "optim.warmup": 0.2,
        "optim.schedule": "cosine",
    }
    return layered(PretrainConfig, nested({**small, **_dotted(settings)}))


def finetune_config(**settings) -> FinetuneConfig:
    small = {**_SMALL, "model.dropout": 0.1, "loop.epochs": 3, "loop.save_every": 2, "optim.lr": 5e-3}
    return layered(FinetuneConfig, nested({**small, **_dotted(settings)}))


def change_runtime(run: Path, **values) -> None:
    """Give a run other settings of its runtime, as if it had been started with them."""
    settings = read_json(run / "config.json")
    write_json(run / "config.json", settings | {"runtime": settings["runtime"] | values})
    write_sealed(run / "run.json", RunFolder(run).facts | {"config": sha256_of(run / "config.json")})


def _dotted(settings: dict) -> dict:
    """`loop__steps=3` is `loop.steps`."""
    return {name.replace("__", "."): value for name, value in settings.items()}


class Again:
    """A tape without a GPU: what was recorded is done once more, and counted."""

    def __init__(self, refuse=False):
        self.refuse, self.replayed = refuse, 0

    def once(self, work):
        return work()

    def record(self, work):
        if self.refuse:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

        def replay():
            self.replayed += 1
            return work()

        return replay
