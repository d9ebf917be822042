"""Headstart: pretrain on your own text, replace the head, fine-tune, and measure the gain from pretraining.

Packages, bottom up: `config` (settings), `tokenization` (text to ids), `data` (files to batches), `kernels` (fused
operations), `model` (the Transformer), `train` (the training loop), `store` (what is on disk), `predict` (predictions),
`interop` (import and export), `report` (comparison folders to pages), `recipes` (the commands' work), `serve` (HTTP),
`cli` (one module per command).

The functions below are imported on first use: `import headstart` alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headstart.version import __version__

if TYPE_CHECKING:
    from headstart.api import (
        auto,
        bench,
        compare,
        error_analysis,
        evaluate,
        explain,
        export,
        finetune,
        generate,
        inspect,
        load,
        merge,
        prepare,
        pretrain,
        serve,
        train_tokenizer,
        tune,
    )
    from headstart.estimator import TextClassifier, TextRegressor

__all__ = [
    "TextClassifier",
    "TextRegressor",
    "__version__",
    "auto",
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
_FUNCTIONS = set(__all__) - {*_ESTIMATORS, "__version__"}


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        return getattr(import_module("headstart.api"), name)
    if name in _ESTIMATORS:
        return getattr(import_module("headstart.estimator"), name)
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS, *_ESTIMATORS})
