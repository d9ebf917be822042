"""Measuring: a language model on held-out text, a classifier on labelled rows. Nothing here learns."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.data.batches import Batch, CausalRows, LabelledRows
from headstart.evaluations import ClassResult as ClassResult
from headstart.evaluations import Evaluation as Evaluation
from headstart.evaluations import evaluate_scores as evaluate_scores
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.runtime import Runtime
from headstart.train.objectives import class_scores, predict_tokens
from headstart.train.ranks import ALONE, Ranks

GPU_TOKENS = 32768
"""Tokens a batch on a GPU when nothing is learnt and attention needs no mask; batches are made by length: little padding."""
MASKED_TOKENS = 8192
"""The same where it does: a mask grows with the square of a row's length."""
CPU_TOKENS = 1024
"""The same on a CPU, where what a layer passes on should still be in the cache: 1.3 to 1.8 times as fast (measured)."""


def tokens_at_once(runtime: Runtime) -> int:
    """Padded tokens a batch when nothing is learnt."""
    if runtime.device.type == "cpu":
        return CPU_TOKENS
    unmasked = runtime.device.type == "cuda" and runtime.bf16 and not torch.are_deterministic_algorithms_enabled()
    return GPU_TOKENS if unmasked else MASKED_TOKENS


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
    ranks: Ranks = ALONE,
) -> LanguageScore:
    """Measure a language model on `rows`; `check` may raise between batches.

    Args:
        fetch: gives batches in which some tokens are hidden; without it every next token is asked for.
        ranks: processes that share the work; the figures are those of one process, to the bit.
    """
    model.eval()
    bite = max(1, tokens_at_once(runtime) // rows.context)
    bites = range(0, rows.rows, bite)
    found = np.zeros((len(bites), 2))
    with torch.inference_mode(), uncompiled(model):
        for index in in_turns(len(bites), ranks, check):
            first = bites[index]
            batch = (fetch or rows.batch)(first, min(bite, rows.rows - first))
            with runtime.autocast():
                part = predict_tokens(model, batch.to(runtime.device))
            found[index] = float(part.total), part.count
    nats, tokens = 0.0, 0
    for more, count in ranks.merged(found).tolist():  # in order, whoever measured them
        nats, tokens = nats + more, tokens + int(count)
    loss = nats / max(1, tokens)
    perplexity = math.exp(min(loss, 700))  # JSON has no infinity
    bits = nats / math.log(2) / max(1, text_bytes) if fetch is None else None
    return LanguageScore(loss, perplexity, bits, tokens, text_bytes)


def in_turns(count: int, ranks: Ranks, check: Callable[[], None]) -> Iterator[int]:
    """The numbers below `count` that fall to this process; between two of them all processes look up together."""
    for index in range(count):
        if index % ranks.world == 0:
            check()
        if index % ranks.world == ranks.rank:
            yield index


def score_texts(
    model: Model[ClassifierHead],
    rows: LabelledRows,
    runtime: Runtime,
    check: Callable[[], None],
    done: Callable[[int], None] | None = None,
    ranks: Ranks = ALONE,
) -> NDArray[np.float64]:
    """Scores of every text over the labels, in the order of `rows`; texts of like length are read together."""
    model.eval()
    scores = np.zeros((len(rows), model.head.linear.out_features))
    buckets = rows.buckets(tokens_at_once(runtime))
    with torch.inference_mode(), uncompiled(model), runtime.scoring():
        for index in in_turns(len(buckets), ranks, check):
            indices = buckets[index]
            # no bf16 here: an answer must not depend on what else was in the batch
            part = class_scores(model, rows.batch(indices).to(runtime.device))
            scores[indices] = part.cpu().double().numpy()  # in this order: Apple's GPUs have no float64
            if done:
                done(len(indices))
    return ranks.merged(scores)
