"""Headstart: pretrain on your own text, swap the head, fine-tune, and learn what the head start was worth.

The rooms, in the order the story goes: `text` (strings and ids), `data` (files to batches), `model` (tensors to
tensors), `train` (a model and batches to a better model), `store` (what is on disk), `predict` (answers), `recipes`
(the story itself), `report` (run folders to pages), `cli` (one small module a command).

The verbs below are loaded on first use: `import headstart` alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headstart.version import __version__

if TYPE_CHECKING:
    from headstart.api import (
        compare,
        error_analysis,
        evaluate,
        explain,
        export,
        finetune,
        generate,
        inspect,
        load,
        prepare,
        pretrain,
        serve,
        train_tokenizer,
        tune,
    )
    from headstart.estimator import TextClassifier, TextRegressor
    from headstart.recipes.bench import bench
    from headstart.recipes.prepare import merge

__all__ = [
    "TextClassifier",
    "TextRegressor",
    "__version__",
    "bench",
    "compare",
    "error_analysis",
    "evaluate",
    "explain",
    "export",
    "finetune",
    "generate",
    "inspect",
    "load",
    "merge",
    "prepare",
    "pretrain",
    "serve",
    "train_tokenizer",
    "tune",
]
_ESTIMATORS = {"TextClassifier", "TextRegressor"}
_VERBS = set(__all__) - {*_ESTIMATORS, "__version__"}


def __getattr__(name: str) -> object:
    if name in _VERBS:
        return getattr(import_module("headstart.api"), name)
    if name in _ESTIMATORS:
        return getattr(import_module("headstart.estimator"), name)
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_VERBS, *_ESTIMATORS})
