"""Batches in shapes that come back, so that what was recorded for one of them serves for the next.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config.schema import IGNORE_INDEX
from headstart.data.batch import Batch

MOST_TOKENS, MOST_WORK = 16_384, 10**11
"""Padded tokens of a batch of texts, alone and times the weights of a layer, beyond which the GPU is busy enough without:
there padding costs more than orders do."""
_WIDTHS, _STEP = 16, 32
_TARGET_MULTIPLE = 512
"""Scored places are filled up to a multiple of this: they vary by some hundreds where tokens are hidden by chance."""


@dataclass(frozen=True)
class StaticBatch(Batch):
    """A batch in a shape that comes back, still in the memory of the CPU."""

    filled: bool = False
    """Whether `places` ends with some that are not scored."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What two batches must have in common for the same passes to serve both."""
        whole = self.num_targets == self.targets.numel()
        return *((name, *value.shape) for name, value in self.tensors().items()), whole, self.filled, self.attention

    def tensors(self) -> dict[str, Tensor]:
        """What differs from batch to batch."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def pinned(self) -> "StaticBatch":
        """The same in memory from which a GPU copies without waiting."""
        there: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **there)


StaticLayout = Callable[[Batch], StaticBatch | None]
"""A batch in a steady shape; None where it has none, and goes the plain way. Every run decides alike."""


def bucket_length(longest: int, context: int) -> int:
    """The width that rows of at most `longest` tokens are padded to: one of sixteen or fewer, and no more than the context.

    >>> bucket_length(1, 512), bucket_length(33, 512), bucket_length(505, 512), bucket_length(500, 505), bucket_length(129, 1024)
    (32, 64, 512, 505, 192)
    """
    step = _STEP * max(1, -(-context // (_STEP * _WIDTHS)))
    return max(longest, min(-(-longest // step) * step, context))


def static_texts(layer: nn.Module, context: int) -> StaticLayout:
    """Of batches of texts, one a row, those that are small for layers like this one."""
    weights = sum(parameter.numel() for parameter in layer.parameters())
    return lambda batch: pad_texts(batch, context) if can_be_static(batch, weights) else None


def can_be_static(batch: Batch, weights: int) -> bool:
    """Whether a batch is one text a row, and small for layers of so many weights."""
    tokens = batch.ids_BT.numel()
    alone = (
        batch.lengths_B is not None
        and batch.sample_index_B is None
        and batch.segments_BT is None
        and not batch.is_dummy
    )
    return alone and tokens <= MOST_TOKENS and tokens * weights <= MOST_WORK


def pad_texts(batch: Batch, context: int) -> StaticBatch:
    """The same batch at a width that comes back. What lies behind a text is read by nobody, so any id will do there."""
    width = batch.ids_BT.shape[1]
    ids_BT = F.pad(batch.ids_BT, (0, bucket_length(width, context) - width))
    return StaticBatch(ids_BT, None, batch.targets, batch.num_targets, batch.lengths_B, attention=batch.attention)


def static_tokens(batch: Batch) -> StaticBatch | None:
    """Rows of a language model, all as long: what varies is how many places are scored, and those are filled up.

    A place that only fills up is one whose target is UNSCORED: its loss and its slopes are 0.
    """
    if type(batch) is not Batch or batch.is_dummy or not batch.num_targets:
        return None
    batch = batch.with_cu_seqlens().without_segments()
    if batch.unpadded_indices is not None:
        return None
    missing = 0 if batch.num_targets == batch.targets.numel() else -batch.num_targets % _TARGET_MULTIPLE
    same = vars(batch)
    if missing:
        assert batch.target_indices is not None
        spare = int(np.flatnonzero(batch.targets.numpy() == IGNORE_INDEX)[0])
        same = same | {"target_indices": F.pad(batch.target_indices, (0, missing), value=spare)}
    return StaticBatch(**same, filled=missing > 0)
