"""Masking of tokens, a pure function of (seed, row, position), so that a resumed run masks the same tokens.

B rows of a batch, T tokens of a row.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig, PretrainConfig
from headstart.data.batch import Batch
from headstart.data.datasets import PackedDataset
from headstart.data.hashing import Hashes, random_bits
from headstart.data.next_sentence import NextSentenceDataset
from headstart.errors import UsageError
from headstart.tokenization.base import NUM_SPECIAL_IDS, SpecialIds

_SELECT_STREAM, _REPLACEMENT_STREAM, _TOKEN_STREAM, _CAUSAL_STREAM = 1_000_001, 1_000_002, 1_000_003, 1_000_004
"""Streams of random bits, independent of each other and of the order of any epoch."""
_MAX_ROW_LENGTH = 2**24


def mask_token(special: SpecialIds) -> int:
    """Return the id of the mask token; a tokenizer without one is refused."""
    if special.mask is None:
        raise UsageError(
            "this tokenizer has no mask token, which masked objectives need; train a tokenizer with headstart tokenizer"
        )
    return special.mask


def make_batch(
    dataset: PackedDataset,
    first: int,
    count: int,
    config: PretrainConfig,
    special: SpecialIds,
    vocab_size: int,
    seed: int,
    pairs: NextSentenceDataset | None = None,
    *,
    size: int | None = None,
) -> Batch:
    """Return rows `first` to `first + count` with the targets of the pretraining objective.

    Args:
        size: the rows of every batch of the run, when these rows are a part of one.
        pairs: read in place of `dataset` for masked batches; causal batches are plain text.
    """
    if config.objective == "causal":
        return dataset.batch(first, count)
    hybrid = config.objective == "hybrid"
    if hybrid and is_causal_batch(first // (size or count), seed, config.masking.causal):
        return dataset.batch(first, count, segments_always=True)
    batch = (pairs or dataset).batch(first, count, segments_always=True)
    return mask_tokens(batch, first, config.masking, special, vocab_size, seed, next_token=hybrid)


def mask_tokens(
    batch: Batch,
    first: int,
    config: MaskingConfig,
    special: SpecialIds,
    vocab_size: int,
    seed: int,
    *,
    next_token: bool,
) -> Batch:
    """Mask some tokens of a batch whose first row is row `first` of the run, and make them the targets.

    Args:
        next_token: predict a masked token at the position before it, as a model that is also trained causally does.
    """
    assert batch.segments_BT is not None
    ids, segments = batch.ids_BT.numpy(), batch.segments_BT.numpy()
    rows: Hashes = np.arange(first, first + len(ids)).astype(np.uint64)[:, None]
    keys: Hashes = rows * np.uint64(_MAX_ROW_LENGTH) + np.arange(ids.shape[1]).astype(np.uint64)
    maskable = (segments != PADDING_SEGMENT) & (ids != special.sos) & (ids != special.eos)
    selected = maskable & (_uniform(keys, seed, _SELECT_STREAM) < config.rate)
    replacement = _uniform(keys, seed, _REPLACEMENT_STREAM)
    num_ordinary = np.uint64(vocab_size - NUM_SPECIAL_IDS)
    random_ids = NUM_SPECIAL_IDS + (random_bits(keys, seed, _TOKEN_STREAM) % num_ordinary).astype(np.int64)
    masked = np.where(selected & (replacement < config.masked), mask_token(special), ids)
    is_random = selected & (replacement >= config.masked) & (replacement < config.masked + config.random)
    masked = np.where(is_random, random_ids, masked)
    targets = np.where(selected, ids, IGNORE_INDEX)
    if next_token:
        # the first token of a document is <sos>, which is never masked, so the position before is in the same document
        targets = np.concatenate((targets[:, 1:], np.full((len(ids), 1), IGNORE_INDEX)), axis=1)
        same = np.concatenate((segments[:, 1:] == segments[:, :-1], np.zeros((len(ids), 1), dtype=bool)), axis=1)
        targets = np.where(same, targets, IGNORE_INDEX)
    return replace(
        batch,
        ids_BT=torch.from_numpy(masked),
        targets=torch.from_numpy(targets),
        num_targets=int((targets != IGNORE_INDEX).sum()),
        attention="bidirectional",
    )


def is_causal_batch(index: int, seed: int, probability: float) -> bool:
    """Return whether batch `index` of a hybrid run has causal attention."""
    return bool(_uniform(np.array([index], dtype=np.uint64), seed, _CAUSAL_STREAM)[0] < probability)


def _uniform(keys: Hashes, seed: int, stream: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each key."""
    return (random_bits(keys, seed, stream) >> np.uint64(11)).astype(np.float64) / 2.0**53
