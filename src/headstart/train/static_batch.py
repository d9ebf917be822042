"""Batches in recurring shapes, as CUDA graphs need them: text lengths and target counts are padded to buckets.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import nn

from headstart.config.schema import IGNORE_INDEX
from headstart.data.batch import Batch

MAX_TOKENS, MAX_WORK = 16_384, 10**11
"""Limits for padding batches of texts: padded tokens, alone and times the weights of a layer. Beyond them the GPU is busy
without CUDA graphs, and padding costs more than kernel launches do."""
_MAX_BUCKETS, _BUCKET_STEP = 16, 32
_TARGET_MULTIPLE = 512
"""Target indices are padded to a multiple of this: their number varies by some hundreds where tokens are masked at random."""


@dataclass(frozen=True)
class StaticBatch(Batch):
    """A batch whose shape recurs, in CPU memory."""

    has_padded_targets: bool = False
    """True if `target_indices` ends with positions whose target is IGNORE_INDEX."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Everything that two batches must have in common to be run by the same CUDA graph."""
        all_targets = self.num_targets == self.targets.numel()
        tensor_shapes = ((name, *value.shape) for name, value in self.tensors().items())
        return *tensor_shapes, all_targets, self.has_padded_targets, self.attention


StaticLayout = Callable[[Batch], StaticBatch | None]
"""Pads a batch to a shape bucket; returns None for a batch that does not qualify. It depends on the batch alone."""


def bucket_length(longest: int, context: int) -> int:
    """Return the length to pad rows of at most `longest` tokens to: one of sixteen or fewer, and no more than the context.

    >>> [bucket_length(longest, 512) for longest in (1, 33, 505)]
    [32, 64, 512]
    >>> bucket_length(500, 505), bucket_length(129, 1024)
    (505, 192)
    """
    step = _BUCKET_STEP * max(1, -(-context // (_BUCKET_STEP * _MAX_BUCKETS)))
    return max(longest, min(-(-longest // step) * step, context))


def static_texts(layer: nn.Module, context: int) -> StaticLayout:
    """Build the layout for labelled texts: batches of one text per row that are small for layers of this size."""
    weights = sum(parameter.numel() for parameter in layer.parameters())
    return lambda batch: pad_texts(batch, context) if can_be_static(batch, weights) else None


def can_be_static(batch: Batch, weights: int) -> bool:
    """Return True if a batch has one text per row and is small for layers of so many weights."""
    tokens = batch.ids_BT.numel()
    one_text_per_row = (
        batch.lengths_B is not None
        and batch.sample_index_B is None
        and batch.segments_BT is None
        and not batch.is_dummy
    )
    return one_text_per_row and tokens <= MAX_TOKENS and tokens * weights <= MAX_WORK


def pad_texts(batch: Batch, context: int) -> StaticBatch:
    """Pad a batch of texts to the length of its bucket. No token attends to the padding, so its ids may be anything."""
    length = batch.ids_BT.shape[1]
    ids_BT = F.pad(batch.ids_BT, (0, bucket_length(length, context) - length))
    return StaticBatch(ids_BT, None, batch.targets, batch.num_targets, batch.lengths_B, attention=batch.attention)


def static_tokens(batch: Batch) -> StaticBatch | None:
    """Pad the target indices of a language-model batch, whose rows all have the same length.

    The padding points at a position whose target is IGNORE_INDEX, so its loss and its gradient are 0.
    """
    if type(batch) is not Batch or batch.is_dummy or not batch.num_targets:
        return None
    batch = batch.with_cu_seqlens().without_segments()
    if batch.unpadded_indices is not None:
        return None
    padding = 0 if batch.num_targets == batch.targets.numel() else -batch.num_targets % _TARGET_MULTIPLE
    fields = vars(batch)
    if padding:
        assert batch.target_indices is not None
        ignored = int(np.flatnonzero(batch.targets.numpy() == IGNORE_INDEX)[0])
        fields = fields | {"target_indices": F.pad(batch.target_indices, (0, padding), value=ignored)}
    return StaticBatch(**fields, has_padded_targets=padding > 0)
