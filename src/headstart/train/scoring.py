"""Score a model on a dataset.

Measuring: a language model on held-out text, a classifier on labelled rows. Nothing here learns.

The question whether two pieces of text follow each other: its part in the loss, and how often it is answered right.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from headstart.data.batch import Batch
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.next_sentence import NextSentenceDataset
from headstart.model.heads import ClassifierHead, LanguageHead, Model, NextSentenceHead
from headstart.runtime import Runtime
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.objectives import class_logits, language_model_loss
from headstart.train.transfer_batch import to_device

GPU_TOKENS = 32768
"""Tokens a batch on a GPU when nothing is learnt and attention needs no mask; batches are made by length: little padding."""
MASKED_TOKENS = 8192
"""The same where it does: a mask grows with the square of a row's length."""
CPU_TOKENS = 1024
"""The same on a CPU, where what a layer passes on should still be in the cache: 1.3 to 1.8 times as fast (measured)."""


def max_batch_tokens(runtime: Runtime) -> int:
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


def without_compile(model: Model[Any]) -> AbstractContextManager[object]:
    """Measuring is short: it does not wait for a compiler."""
    return torch.compiler.set_stance("force_eager") if model.backbone.compiled else nullcontext()


def score_language(
    model: Model[LanguageHead],
    rows: PackedDataset,
    text_bytes: int,
    runtime: Runtime,
    check: Callable[[], None],
    fetch: Callable[[int, int], Batch] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> LanguageScore:
    """Measure a language model on `rows`; `check` may raise between batches.

    Args:
        fetch: gives batches in which some tokens are hidden; without it every next token is asked for.
        ranks: processes that share the work; the figures are those of one process, to the bit.
    """
    model.eval()
    bite = max(1, max_batch_tokens(runtime) // rows.context)
    bites = range(0, rows.num_rows, bite)
    found = np.zeros((len(bites), 2))
    with torch.inference_mode(), without_compile(model):
        for index in rank_batches(len(bites), ranks, check):
            first = bites[index]
            batch = (fetch or rows.batch)(first, min(bite, rows.num_rows - first))
            with runtime.autocast():
                part = language_model_loss(model, to_device(batch, runtime.device))
            found[index] = float(part.total), part.count
    nats, tokens = 0.0, 0
    for more, count in ranks.merged(found).tolist():  # in order, whoever measured them
        nats, tokens = nats + more, tokens + int(count)
    loss = nats / max(1, tokens)
    perplexity = math.exp(min(loss, 700))  # JSON has no infinity
    bits = nats / math.log(2) / max(1, text_bytes) if fetch is None else None
    return LanguageScore(loss, perplexity, bits, tokens, text_bytes)


def rank_batches(count: int, ranks: ProcessGroup, check: Callable[[], None]) -> Iterator[int]:
    """The numbers below `count` that fall to this process; between two of them all processes look up together."""
    for index in range(count):
        if index % ranks.world == 0:
            check()
        if index % ranks.world == ranks.rank:
            yield index


def score_texts(
    model: Model[ClassifierHead],
    rows: LabelledDataset,
    runtime: Runtime,
    check: Callable[[], None],
    done: Callable[[int], None] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> NDArray[np.float64]:
    """Scores of every text over the labels, in the order of `rows`; texts of like length are read together."""
    model.eval()
    scores = np.zeros((len(rows), model.head.linear.out_features))
    buckets = rows.buckets(max_batch_tokens(runtime))
    with torch.inference_mode(), without_compile(model), runtime.scoring():
        for index in rank_batches(len(buckets), ranks, check):
            indices = buckets[index]
            # no bf16 here: an answer must not depend on what else was in the batch
            part = class_logits(model, to_device(rows.batch(indices), runtime.device))
            scores[indices] = part.cpu().double().numpy()  # in this order: Apple's GPUs have no float64
            if done:
                done(len(indices))
    return ranks.merged(scores)


@dataclass(frozen=True)
class NextSentenceScore:
    """How well a model tells pieces that follow each other from others; half of the pairs are of each kind."""

    accuracy: float
    loss: float
    """Nats a pair; a coin gives 0.693."""
    pairs: int


def score_next_sentence(
    model: Model[LanguageHead],
    rows: NextSentenceDataset,
    runtime: Runtime,
    check: Callable[[], None],
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> NextSentenceScore:
    """Measure the pair head on `rows`, nothing hidden; `check` may raise between batches."""
    assert isinstance(model.head, NextSentenceHead)
    model.eval()
    bite = max(1, max_batch_tokens(runtime) // rows.context)
    bites = range(0, rows.num_rows, bite)
    found = np.zeros((len(bites), 2))
    with torch.inference_mode(), without_compile(model):
        for index in rank_batches(len(bites), ranks, check):
            first = bites[index]
            batch = replace(rows.batch(first, min(bite, rows.num_rows - first)), attention="bidirectional")
            batch = to_device(batch, runtime.device)
            assert batch.pairs_B is not None
            with runtime.autocast():
                hidden_BTD = model.backbone(
                    batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices
                )
                scores = model.head.follows(hidden_BTD).float()
            found[index, 0] = int((scores.argmax(dim=1) == batch.pairs_B).sum())
            found[index, 1] = float(F.cross_entropy(scores, batch.pairs_B, reduction="sum"))
    right, nats = 0, 0.0
    for hits, more in ranks.merged(found).tolist():
        right, nats = right + int(hits), nats + more
    return NextSentenceScore(right / rows.num_rows, nats / rows.num_rows, rows.num_rows)
