"""Hiding tokens: a pure function of (seed, row, place), so that a resumed run hides the same ones.

B rows of a batch, T tokens of a row.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig, PretrainConfig
from headstart.data.batch import Batch
from headstart.data.datasets import PackedDataset
from headstart.data.hashing import splitmix64
from headstart.data.next_sentence import NextSentenceDataset
from headstart.errors import UsageError
from headstart.tokenization.base import SpecialIds

_CHOICE, _KIND, _TOKEN, _TURN = 1_000_001, 1_000_002, 1_000_003, 1_000_004
"""Streams of random bits that have nothing to do with each other, nor with any epoch's order."""
_MAX_ROW_LENGTH = 2**24


def mask_token(special: SpecialIds) -> int:
    """The token that stands for a hidden one."""
    if special.mask is None:
        raise UsageError(
            "this tokenizer has no mask token, which masked objectives need; train one with headstart tokenizer"
        )
    return special.mask


def make_batch(
    rows: PackedDataset,
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
    """Rows as the objective asks about them.

    Args:
        size: of every batch of the run, where these rows are a part of one.
        pairs: read in place of `rows` wherever tokens are hidden; what is read left to right stays plain text.
    """
    if config.objective == "causal":
        return rows.batch(first, count)
    hybrid = config.objective == "hybrid"
    if hybrid and is_causal_batch(first // (size or count), seed, config.masking.causal):
        return rows.batch(first, count, segments_always=True)
    batch = (pairs or rows).batch(first, count, segments_always=True)
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
    """Hide some tokens of a batch whose first row is row `first` of the run, and ask for them.

    Args:
        next_token: ask at the place before, as a model that also reads left to right is used to answer.
    """
    assert batch.segments_BT is not None
    ids, segments = batch.ids_BT.numpy(), batch.segments_BT.numpy()
    rows: NDArray[np.uint64] = np.arange(first, first + len(ids)).astype(np.uint64)[:, None]
    places: NDArray[np.uint64] = rows * np.uint64(_MAX_ROW_LENGTH) + np.arange(ids.shape[1]).astype(np.uint64)
    unpadded_indices = (segments != PADDING_SEGMENT) & (ids != special.sos) & (ids != special.eos)
    chosen = unpadded_indices & (_uniform(places, seed, _CHOICE) < config.rate)
    kind = _uniform(places, seed, _KIND)
    any_token = 4 + (splitmix64(places, seed, _TOKEN) % np.uint64(vocab_size - 4)).astype(np.int64)
    hidden = np.where(chosen & (kind < config.masked), mask_token(special), ids)
    random = chosen & (kind >= config.masked) & (kind < config.masked + config.random)
    hidden = np.where(random, any_token, hidden)
    targets = np.where(chosen, ids, IGNORE_INDEX)
    if next_token:
        # a document's first token is never hidden (it is <sos>), so the place before is always its own document's
        targets = np.concatenate((targets[:, 1:], np.full((len(ids), 1), IGNORE_INDEX)), axis=1)
        same = np.concatenate((segments[:, 1:] == segments[:, :-1], np.zeros((len(ids), 1), dtype=bool)), axis=1)
        targets = np.where(same, targets, IGNORE_INDEX)
    return replace(
        batch,
        ids_BT=torch.from_numpy(hidden),
        targets=torch.from_numpy(targets),
        num_targets=int((targets != IGNORE_INDEX).sum()),
        attention="bidirectional",
    )


def is_causal_batch(index: int, seed: int, share: float) -> bool:
    """Whether batch `index` of a hybrid run is read left to right."""
    return bool(_uniform(np.array([index], dtype=np.uint64), seed, _TURN)[0] < share)


def _uniform(keys: NDArray[np.uint64], seed: int, stream: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each key."""
    return (splitmix64(keys, seed, stream) >> np.uint64(11)).astype(np.float64) / 2.0**53
