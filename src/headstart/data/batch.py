"""Batches of token rows, and the slice of a batch that one of several processes trains on.

B rows of a batch, T tokens of a row.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, AttentionDirection

UNPAD_THRESHOLD = 0.95
"""Fraction of real tokens above which padding is kept, as one more document: constant shapes are then cheaper."""
_MIN_CU_SEQLENS = 256


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with their targets."""

    ids_BT: Tensor
    segments_BT: Tensor | None
    """The document of each token; None when each row is one document from its start, padded on the right."""
    targets: Tensor
    """A token for each position (B, T), or a label for each text; IGNORE_INDEX where there is none."""
    num_targets: int
    """The number of targets that are not IGNORE_INDEX, counted on the CPU so that no device is synchronised."""
    lengths_B: Tensor | None = None
    sample_index_B: Tensor | None = None
    """The text of each row, when a text is read in several windows."""
    attention: AttentionDirection = "causal"
    cu_seqlens: Tensor | None = None
    """Cumulative lengths (int32) of the documents of all rows, for attention without padding; see `with_cu_seqlens`."""
    unpadded_indices: Tensor | None = None
    """With `cu_seqlens`, the flat indices of real tokens; None when padding counts as a document."""
    target_indices: Tensor | None = None
    """The flat indices of the tokens that have a target; see `with_cu_seqlens`."""
    is_dummy: bool = False
    """True for a batch that a process runs only to stay in step with others; its loss is not counted."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that hold a tensor."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def pin_memory(self) -> Self:
        """Copy the tensors to page-locked memory, from which a GPU copies asynchronously."""
        pinned: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **pinned)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Self:
        """Copy the tensors to a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking) for name, value in self.tensors().items()
        }
        return replace(self, **moved)

    def with_cu_seqlens(self) -> Self:
        """Add `cu_seqlens`, `unpadded_indices` and `target_indices`.

        They are computed from the CPU tensors, because data-dependent shapes on a GPU would force a synchronisation.
        """
        if self.lengths_B is not None:
            lengths = self.lengths_B.numpy()
            is_real = np.arange(self.ids_BT.shape[1]) < lengths[:, None]
            return replace(
                self, cu_seqlens=_cu_seqlens(lengths), unpadded_indices=torch.from_numpy(np.flatnonzero(is_real))
            )
        assert self.targets.ndim == 2
        target_indices = torch.from_numpy(np.flatnonzero(self.targets.numpy() != IGNORE_INDEX))
        if self.segments_BT is None:
            return replace(self, target_indices=target_indices)
        lengths, unpadded = _document_lengths(self.segments_BT.numpy())
        return replace(self, cu_seqlens=_cu_seqlens(lengths), unpadded_indices=unpadded, target_indices=target_indices)

    def without_segments(self) -> Self:
        """Drop `segments_BT` and `cu_seqlens` when every row is one document that fills it."""
        segments = self.segments_BT
        if segments is None or (segments != segments[:, :1]).any() or (segments[:, 0] == PADDING_SEGMENT).any():
            return self
        return replace(self, segments_BT=None, cu_seqlens=None, unpadded_indices=None)


def _document_lengths(segments_BT: NDArray[np.integer]) -> tuple[NDArray[np.integer], Tensor | None]:
    """Return the length of each document, and the flat indices of real tokens unless padding counts as a document."""
    is_start = np.ones(segments_BT.shape, dtype=bool)
    is_start[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    is_real = (segments_BT != PADDING_SEGMENT).ravel()
    if is_real.mean() > UNPAD_THRESHOLD:
        is_real = np.ones_like(is_real)
    starts = np.flatnonzero(is_start.ravel() & is_real)
    num_real = np.cumsum(is_real)
    lengths = np.diff(np.append(num_real[starts] - 1, num_real[-1]))
    return lengths, None if is_real.all() else torch.from_numpy(np.flatnonzero(is_real))


def _cu_seqlens(lengths: NDArray[np.integer]) -> Tensor:
    """Return cumulative lengths from 0, padded with empty documents to a power of two to limit recompilation."""
    size = max(_MIN_CU_SEQLENS, 1 << len(lengths).bit_length())
    cu_seqlens = np.full(size, lengths.sum(), dtype=np.int32)
    cu_seqlens[0] = 0
    cu_seqlens[1 : len(lengths) + 1] = np.cumsum(lengths)
    return torch.from_numpy(cu_seqlens)


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return the rows `start` to `stop` of a batch; the first dimension of every tensor must be its rows."""
    sliced: dict[str, Any] = {name: value[start:stop] for name, value in batch.tensors().items()}
    return replace(batch, **sliced, num_targets=int((sliced["targets"] != IGNORE_INDEX).sum()))


def dummy_batch(batch: Batch) -> Batch:
    """Mark a batch as one whose loss is not counted."""
    return replace(batch, is_dummy=True)


@dataclass(frozen=True)
class RankSlice:
    """The rows of a step that process `rank` of `world` reads.

    The rows of a step do not depend on the number of processes. A run may therefore resume with another number: no row
    is lost or read twice, and the same tokens are masked.
    """

    rank: int = 0
    world: int = 1

    def micro_batches(self, rows: int, size: int) -> list[tuple[int, int]]:
        """Return the (start, stop) rows of each forward pass of this process among the `rows` of a step.

        No micro-batch crosses the border of a batch of `size` rows, because some decisions are made per batch. Every
        process has the same number of micro-batches, because processes synchronise at each; the last may be empty.

        >>> [RankSlice(rank, 2).micro_batches(16, 4) for rank in range(2)]
        [[(0, 4), (4, 8)], [(8, 12), (12, 16)]]
        >>> [RankSlice(rank, 3).micro_batches(8, 4) for rank in range(3)]
        [[(0, 2), (0, 0)], [(2, 4), (4, 5)], [(5, 8), (0, 0)]]
        """
        ranges = _split_range(rows * self.rank // self.world, rows * (self.rank + 1) // self.world, size)
        return ranges + [(0, 0)] * (_max_micro_batches(rows, size, self.world) - len(ranges))


FULL_BATCH = RankSlice()
"""The slice of a single process: every row."""


def _split_range(first: int, last: int, size: int) -> list[tuple[int, int]]:
    borders = [first, *range((first // size + 1) * size, last, size), last]
    return [(start, stop) for start, stop in pairwise(borders) if start < stop]


@cache
def _max_micro_batches(rows: int, size: int, world: int) -> int:
    return max(len(_split_range(rows * rank // world, rows * (rank + 1) // world, size)) for rank in range(world))
