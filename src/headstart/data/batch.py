"""Batches of token rows, cumulative sequence lengths, and the slice of a batch that a process trains on.

Tokens on disk to tensors: each row a pure function of (seed, epoch, index), so the data position is one integer.

B rows of a batch, T tokens of a row.

The rows of a step that one of several processes reads: a pure function of who it is and how many there are.

What a step reads does not depend on that number. So a run may go on with another number of processes: no row is lost,
none is read twice, and the same tokens are hidden.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, AttentionDirection


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, who belongs together in them, and what is to be predicted."""

    ids_BT: Tensor
    segments_BT: Tensor | None
    """The document of each token; None when a row is one document from its start, padded on the right."""
    targets: Tensor
    """A token for each position (B, T) or a label for each text; UNSCORED where there is none."""
    num_targets: int
    """How many targets count, known without asking the device."""
    lengths_B: Tensor | None = None
    sample_index_B: Tensor | None = None
    """The text each row is a window of, when texts are read in windows."""
    attention: AttentionDirection = "causal"
    cu_seqlens: Tensor | None = None
    """The documents of all rows in turn as cumulative lengths (int32), for kernels that need no padding; from `bounded`."""
    unpadded_indices: Tensor | None = None
    """With bounds, the flat places of real tokens; None when padding is counted as a document."""
    target_indices: Tensor | None = None
    """The flat places of the tokens that are scored; from `bounded`."""
    is_dummy: bool = False
    """Read along to keep step with other processes, and counted by nobody; see `portions`."""

    def to(self, device: torch.device) -> Self:
        """The same batch on a device; for a GPU, told beforehand what would have to be asked of it."""
        if device.type == self.ids_BT.device.type:
            return self
        batch = self.with_cu_seqlens().without_segments() if device.type == "cuda" else self
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        if device.type == "cuda":  # only from pinned memory does a copy wait for nobody
            tensors = {name: value.pin_memory() for name, value in tensors.items()}
        moved: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in tensors.items()}
        return replace(batch, **moved)

    def with_cu_seqlens(self) -> Self:
        """The same batch with bounds, real and places worked out on the CPU: shapes that a GPU would have to be asked for."""
        rows, width = self.ids_BT.shape
        if self.lengths_B is not None:
            lengths = self.lengths_B.numpy()
            unpadded_indices = torch.from_numpy(np.flatnonzero(np.arange(width) < lengths[:, None]))
            return replace(self, cu_seqlens=_cu_seqlens(lengths), unpadded_indices=unpadded_indices)
        assert self.targets.ndim == 2
        places = torch.from_numpy(np.flatnonzero(self.targets.numpy() != IGNORE_INDEX))
        if self.segments_BT is None:
            return replace(self, target_indices=places)
        segments = self.segments_BT.numpy()
        starts = np.ones((rows, width), dtype=bool)
        starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
        kept = (segments != PADDING_SEGMENT).ravel()
        if kept.mean() > UNPAD_THRESHOLD:  # shapes that stay the same are worth more: padding is one more document
            kept = np.ones_like(kept)
        cut = np.flatnonzero(starts.ravel() & kept)
        ends = np.cumsum(kept)
        lengths = np.diff(np.append(ends[cut] - 1, ends[-1]))
        unpadded = None if kept.all() else torch.from_numpy(np.flatnonzero(kept))
        return replace(self, cu_seqlens=_cu_seqlens(lengths), unpadded_indices=unpadded, target_indices=places)

    def without_segments(self) -> Self:
        """The same batch without segments and bounds if they say nothing: where every row is one document and full."""
        segments = self.segments_BT
        if segments is None or (segments != segments[:, :1]).any() or (segments[:, 0] == PADDING_SEGMENT).any():
            return self
        return replace(self, segments_BT=None, cu_seqlens=None, unpadded_indices=None)


UNPAD_THRESHOLD = 0.95
"""Share of real tokens above which padding is computed along."""


_MIN_CU_SEQLENS = 256


def _cu_seqlens(lengths: NDArray[np.integer]) -> Tensor:
    """Lengths summed up from 0, then filled with empty documents to a power of two: few shapes to compile for."""
    size = max(_MIN_CU_SEQLENS, 1 << len(lengths).bit_length())
    cu_seqlens = np.full(size, lengths.sum(), dtype=np.int32)
    cu_seqlens[0] = 0
    cu_seqlens[1 : len(lengths) + 1] = np.cumsum(lengths)
    return torch.from_numpy(cu_seqlens)


@dataclass(frozen=True)
class RankSlice:
    """The part of process `rank` of `world`."""

    rank: int = 0
    world: int = 1

    def pieces(self, rows: int, size: int) -> list[tuple[int, int]]:
        """Where the forward passes of this process begin and end among the `rows` of a step.

        Consecutive rows, none over the border of a batch of `size`: what is decided by batch stays decided by batch. All
        processes get as many pieces, because some wait for each other at every one; the last may be empty.

        >>> [RankSlice(rank, 2).pieces(16, 4) for rank in range(2)]
        [[(0, 4), (4, 8)], [(8, 12), (12, 16)]]
        >>> [RankSlice(rank, 3).pieces(8, 4) for rank in range(3)]
        [[(0, 2), (0, 0)], [(2, 4), (4, 5)], [(5, 8), (0, 0)]]
        """
        own = _split_range(rows * self.rank // self.world, rows * (self.rank + 1) // self.world, size)
        return own + [(0, 0)] * (_max_micro_batches(rows, size, self.world) - len(own))


WHOLE_BATCH = RankSlice()
"""Every row."""


def _split_range(first: int, last: int, size: int) -> list[tuple[int, int]]:
    places = [first, *range((first // size + 1) * size, last, size), last]
    return [(start, stop) for start, stop in pairwise(places) if start < stop]


@cache
def _max_micro_batches(rows: int, size: int, world: int) -> int:
    """Pieces of the process that has most."""
    return max(len(_split_range(rows * rank // world, rows * (rank + 1) // world, size)) for rank in range(world))


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch that has as many of everything as it has rows."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cut: dict[str, Any] = {name: value[start:stop] for name, value in parts.items() if isinstance(value, Tensor)}
    return replace(batch, **cut, num_targets=int((cut["targets"] != IGNORE_INDEX).sum()))


def dummy_batch(batch: Batch) -> Batch:
    """A batch that is read along to keep step with the others, and counts for nothing."""
    return replace(batch, is_dummy=True)
