"""Measuring: a language model on held-out text, a classifier on labelled rows. Nothing here learns."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.data.batches import Batch, CausalRows, LabelledRows
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.runtime import Runtime
from headstart.train.objectives import class_scores, predict_tokens
from headstart.train.shares import log_loss

EVALUATION_TOKENS = 8192
"""Padded tokens a batch on a GPU when nothing is learnt; batches are made by length, so little of it is padding."""
CPU_TOKENS = 1024
"""The same on a CPU, where what a layer passes on should still be in the cache: 1.3 to 1.8 times as fast (measured)."""


def tokens_at_once(runtime: Runtime) -> int:
    """Padded tokens a batch when nothing is learnt."""
    return CPU_TOKENS if runtime.device.type == "cpu" else EVALUATION_TOKENS


@dataclass(frozen=True)
class LanguageScore:
    """How well a language model predicts held-out text, the end of each document included."""

    loss: float
    """Nats a token."""
    perplexity: float
    bits_per_byte: float | None
    """Comparable across vocabularies; None for a model that fills gaps, which gives text no probability."""
    tokens: int
    bytes: int


def uncompiled(model: Model[Any]) -> AbstractContextManager[object]:
    """Measuring is short: it does not wait for a compiler."""
    return torch.compiler.set_stance("force_eager") if model.backbone.compiled else nullcontext()


def score_language(
    model: Model[LanguageHead],
    rows: CausalRows,
    text_bytes: int,
    runtime: Runtime,
    check: Callable[[], None],
    fetch: Callable[[int, int], Batch] | None = None,
) -> LanguageScore:
    """Measure a language model on `rows`; `check` may raise between batches.

    Args:
        fetch: gives batches in which some tokens are hidden; without it every next token is asked for.
    """
    model.eval()
    nats, tokens = 0.0, 0
    bite = max(1, tokens_at_once(runtime) // rows.context)
    with torch.inference_mode(), uncompiled(model):
        for first in range(0, rows.rows, bite):
            check()
            batch = (fetch or rows.batch)(first, min(bite, rows.rows - first))
            with runtime.autocast():
                part = predict_tokens(model, batch.to(runtime.device))
            nats, tokens = nats + float(part.total), tokens + int(part.count)
    loss = nats / max(1, tokens)
    perplexity = math.exp(min(loss, 700))  # JSON has no infinity
    bits = nats / math.log(2) / max(1, text_bytes) if fetch is None else None
    return LanguageScore(loss, perplexity, bits, tokens, text_bytes)


@dataclass(frozen=True)
class ClassResult:
    """How one label fared."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int


@dataclass(frozen=True)
class Evaluation:
    """How a classifier fared on labelled rows."""

    labels: tuple[str, ...]
    rows: int
    accuracy: float
    macro_f1: float
    loss: float
    per_class: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are the true labels, columns the predicted ones."""
    truncated: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def score_texts(
    model: Model[ClassifierHead],
    rows: LabelledRows,
    runtime: Runtime,
    check: Callable[[], None],
    done: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """Scores of every text over the labels, in the order of `rows`; texts of like length are read together."""
    model.eval()
    scores = np.empty((len(rows), model.head.linear.out_features))
    with torch.inference_mode(), uncompiled(model), runtime.scoring():
        for indices in rows.buckets(tokens_at_once(runtime)):
            check()
            # no bf16 here: an answer must not depend on what else was in the batch
            part = class_scores(model, rows.batch(indices).to(runtime.device))
            scores[indices] = part.cpu().double().numpy()  # in this order: Apple's GPUs have no float64
            if done:
                done(len(indices))
    return scores


def evaluate_scores(
    scores: NDArray[np.float64], gold: NDArray[np.int64], labels: Sequence[str], truncated: int = 0
) -> Evaluation:
    """Accuracy, macro-F1, loss, per class and confusion. A label that neither occurs nor is predicted is left out."""
    predicted = scores.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(confusion, (gold, predicted), 1)
    hits = np.diag(confusion).astype(float)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = 2 * hits / np.maximum(both, 1)
    return Evaluation(
        labels=tuple(labels),
        rows=len(gold),
        accuracy=float((predicted == gold).mean()),
        macro_f1=float(f1[both > 0].mean()),
        loss=log_loss(scores, gold),
        per_class=tuple(
            ClassResult(label, float(precision[i]), float(recall[i]), float(f1[i]), int(confusion[i].sum()))
            for i, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
        truncated=truncated,
    )
