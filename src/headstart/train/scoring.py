"""Scoring without training: a language model on held-out text, a classifier's logits, next-sentence prediction."""

import copy
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
from headstart.kernels.dispatch import max_scoring_tokens
from headstart.kernels.packed_linear import has_bf16_products, pack_linears, prefers_bf16_inference
from headstart.model.heads import ClassifierHead, LanguageHead, Model, NextSentenceHead
from headstart.runtime import Runtime
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.objectives import class_logits, language_model_loss
from headstart.train.step import to_device


def max_batch_tokens(runtime: Runtime) -> int:
    """Return the number of padded tokens per batch for inference."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    return max_scoring_tokens(runtime.device, bf16=runtime.bf16, deterministic=deterministic)


def pack_for_scoring(model: Model[ClassifierHead], runtime: Runtime) -> bool:
    """Pack the layers of a network whose weights will not change, where that is faster; return whether they were packed.

    They compute in bf16 if the settings ask for it and the processor can; the head computes in fp32.
    """
    packed = pack_linears(model.backbone, runtime.device, bf16=runtime.bf16)
    model.backbone.packed = packed and runtime.bf16 and has_bf16_products()
    return packed


def bf16_copy(model: Model[ClassifierHead], runtime: Runtime) -> Model[ClassifierHead] | None:
    """Return a copy that computes in bf16 with the same parameters; None if it is not faster, or if a precision is set.

    To be called before `pack_for_scoring`, which replaces layers.
    """
    if not runtime.mixed or not prefers_bf16_inference(runtime.device, model.backbone.config.width):
        return None
    copied = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    pack_for_scoring(copied, replace(runtime, bf16=True))
    return copied


def without_compile(model: Model[Any]) -> AbstractContextManager[object]:
    """Run compiled layers eagerly inside the block: scoring is too short to wait for a compiler."""
    return torch.compiler.set_stance("force_eager") if model.backbone.compiled else nullcontext()


def rank_batches(num_batches: int, ranks: ProcessGroup, check: Callable[[], None]) -> Iterator[int]:
    """Iterate over the batch indices of this process; all processes call `check` together between two batches."""
    for index in range(num_batches):
        if index % ranks.world_size == 0:
            check()
        if index % ranks.world_size == ranks.rank:
            yield index


@dataclass(frozen=True)
class LanguageScore:
    """The loss of a language model on held-out text, the end of each document included."""

    loss: float
    """Nats per token."""
    perplexity: float
    bits_per_byte: float | None
    """Comparable across vocabularies; None for a masked model, which gives a text no probability."""
    tokens: int
    bytes: int


def score_language(
    model: Model[LanguageHead],
    rows: PackedDataset,
    text_bytes: int,
    runtime: Runtime,
    check: Callable[[], None],
    fetch: Callable[[int, int], Batch] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> LanguageScore:
    """Score a language model on `rows`; `check` may raise between batches.

    Args:
        fetch: returns batches with masked tokens; without it every next token is a target.
        ranks: the processes that share the work; the result is that of one process, bit for bit.
    """
    model.eval()
    batch_rows = max(1, max_batch_tokens(runtime) // rows.context)
    starts = range(0, rows.num_rows, batch_rows)
    sums = np.zeros((len(starts), 2))
    with torch.inference_mode(), without_compile(model):
        for index in rank_batches(len(starts), ranks, check):
            start = starts[index]
            batch = (fetch or rows.batch)(start, min(batch_rows, rows.num_rows - start))
            with runtime.autocast(scoring=True):
                loss_sum = language_model_loss(model, to_device(batch, runtime.device))
            sums[index] = float(loss_sum.total), loss_sum.count
    nats, tokens = 0.0, 0
    for batch_nats, count in ranks.all_reduce(sums).tolist():  # added in order, whichever process computed them
        nats, tokens = nats + batch_nats, tokens + int(count)
    loss = nats / max(1, tokens)
    perplexity = math.exp(min(loss, 700))  # JSON has no infinity
    bits = nats / math.log(2) / max(1, text_bytes) if fetch is None else None
    return LanguageScore(loss, perplexity, bits, tokens, text_bytes)


def score_texts(
    model: Model[ClassifierHead],
    rows: LabelledDataset,
    runtime: Runtime,
    check: Callable[[], None],
    done: Callable[[int], None] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
    *,
    unpadded: bool = False,
) -> NDArray[np.float64]:
    """Return the logits of every text, in the order of `rows`; texts of similar length share a batch.

    Args:
        unpadded: see `class_logits`.
    """
    model.eval()
    logits = np.zeros((len(rows), model.head.linear.out_features))
    buckets = rows.buckets(max_batch_tokens(runtime))
    with torch.inference_mode(), without_compile(model), runtime.scoring():
        for index in rank_batches(len(buckets), ranks, check):
            indices = buckets[index]
            # not under autocast: the logits of a text must not depend on the rest of its batch
            batch_logits = class_logits(model, to_device(rows.batch(indices), runtime.device), unpadded=unpadded)
            logits[indices] = batch_logits.cpu().double().numpy()  # in this order: Apple's GPUs have no float64
            if done:
                done(len(indices))
    return ranks.all_reduce(logits)


@dataclass(frozen=True)
class NextSentenceScore:
    """The accuracy and the loss of next-sentence prediction; half of the pairs are true pairs."""

    accuracy: float
    loss: float
    """Nats per pair; guessing gives 0.693."""
    pairs: int


def score_next_sentence(
    model: Model[LanguageHead],
    rows: NextSentenceDataset,
    runtime: Runtime,
    check: Callable[[], None],
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> NextSentenceScore:
    """Score the next-sentence head on `rows`, without masked tokens; `check` may raise between batches."""
    assert isinstance(model.head, NextSentenceHead)
    model.eval()
    batch_rows = max(1, max_batch_tokens(runtime) // rows.context)
    starts = range(0, rows.num_rows, batch_rows)
    sums = np.zeros((len(starts), 2))
    with torch.inference_mode(), without_compile(model):
        for index in rank_batches(len(starts), ranks, check):
            start = starts[index]
            pairs = rows.batch(start, min(batch_rows, rows.num_rows - start))
            batch = to_device(replace(pairs, attention="bidirectional"), runtime.device)
            assert batch.pairs_B is not None
            with runtime.autocast(scoring=True):
                hidden_BTD = model.backbone(
                    batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices
                )
                logits = model.head.follows(hidden_BTD).float()
            sums[index, 0] = int((logits.argmax(dim=1) == batch.pairs_B).sum())
            sums[index, 1] = float(F.cross_entropy(logits, batch.pairs_B, reduction="sum"))
    correct, nats = 0, 0.0
    for batch_correct, batch_nats in ranks.all_reduce(sums).tolist():
        correct, nats = correct + int(batch_correct), nats + batch_nats
    return NextSentenceScore(correct / rows.num_rows, nats / rows.num_rows, rows.num_rows)
