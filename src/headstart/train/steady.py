"""Batches in shapes that come back, so that what was recorded for one of them serves for the next.

B rows of a batch, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import UNSCORED
from headstart.data.batches import Batch

MOST_TOKENS, MOST_WORK = 16_384, 10**11
"""Padded tokens of a batch of texts, alone and times the weights of a layer, beyond which the GPU is busy enough without:
there padding costs more than orders do."""
_WIDTHS, _STEP = 16, 32
_PLACES = 512
"""Scored places are filled up to a multiple of this: they vary by some hundreds where tokens are hidden by chance."""


@dataclass(frozen=True)
class Steady(Batch):
    """A batch in a shape that comes back, still in the memory of the CPU."""

    filled: bool = False
    """Whether `places` ends with some that are not scored."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What two batches must have in common for the same passes to serve both."""
        whole = self.scored == self.targets.numel()
        return *((name, *value.shape) for name, value in self.tensors().items()), whole, self.filled, self.visibility

    def tensors(self) -> dict[str, Tensor]:
        """What differs from batch to batch."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def pinned(self) -> "Steady":
        """The same in memory from which a GPU copies without waiting."""
        there: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **there)


LayOut = Callable[[Batch], Steady | None]
"""A batch in a steady shape; None where it has none, and goes the plain way. Every run decides alike."""


def width_for(longest: int, context: int) -> int:
    """The width that rows of at most `longest` tokens are padded to: one of sixteen or fewer, and no more than the context.

    >>> width_for(1, 512), width_for(33, 512), width_for(505, 512), width_for(500, 505), width_for(129, 1024)
    (32, 64, 512, 505, 192)
    """
    step = _STEP * max(1, -(-context // (_STEP * _WIDTHS)))
    return max(longest, min(-(-longest // step) * step, context))


def steady_texts(layer: nn.Module, context: int) -> LayOut:
    """Of batches of texts, one a row, those that are small for layers like this one."""
    weights = sum(parameter.numel() for parameter in layer.parameters())
    return lambda batch: padded(batch, context) if fits(batch, weights) else None


def fits(batch: Batch, weights: int) -> bool:
    """Whether a batch is one text a row, and small for layers of so many weights."""
    tokens = batch.ids_BT.numel()
    alone = batch.lengths_B is not None and batch.owners_B is None and batch.segments_BT is None and not batch.idle
    return alone and tokens <= MOST_TOKENS and tokens * weights <= MOST_WORK


def padded(batch: Batch, context: int) -> Steady:
    """The same batch at a width that comes back. What lies behind a text is read by nobody, so any id will do there."""
    width = batch.ids_BT.shape[1]
    ids_BT = F.pad(batch.ids_BT, (0, width_for(width, context) - width))
    return Steady(ids_BT, None, batch.targets, batch.scored, batch.lengths_B, visibility=batch.visibility)


def steady_tokens(batch: Batch) -> Steady | None:
    """Rows of a language model, all as long: what varies is how many places are scored, and those are filled up.

    A place that only fills up is one whose target is UNSCORED: its loss and its slopes are 0.
    """
    if type(batch) is not Batch or batch.idle or not batch.scored:
        return None
    batch = batch.bounded().unsegmented()
    if batch.real is not None:
        return None
    missing = 0 if batch.scored == batch.targets.numel() else -batch.scored % _PLACES
    same = vars(batch)
    if missing:
        assert batch.places is not None
        spare = int(np.flatnonzero(batch.targets.numpy() == UNSCORED)[0])
        same = same | {"places": F.pad(batch.places, (0, missing), value=spare)}
    return Steady(**same, filled=missing > 0)
