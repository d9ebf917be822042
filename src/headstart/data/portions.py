"""The rows of a step that one of several processes reads: a pure function of who it is and how many there are.

What a step reads does not depend on that number. So a run may go on with another number of processes: no row is lost,
none is read twice, and the same tokens are hidden.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

from torch import Tensor

from headstart.config import UNSCORED
from headstart.data.batches import Batch


@dataclass(frozen=True)
class Portion:
    """The part of process `rank` of `world`."""

    rank: int = 0
    world: int = 1

    def pieces(self, rows: int, size: int) -> list[tuple[int, int]]:
        """Where the forward passes of this process begin and end among the `rows` of a step.

        Consecutive rows, none over the border of a batch of `size`: what is decided by batch stays decided by batch. All
        processes get as many pieces, because some wait for each other at every one; the last may be empty.

        >>> [Portion(rank, 2).pieces(16, 4) for rank in range(2)]
        [[(0, 4), (4, 8)], [(8, 12), (12, 16)]]
        >>> [Portion(rank, 3).pieces(8, 4) for rank in range(3)]
        [[(0, 2), (0, 0)], [(2, 4), (4, 5)], [(5, 8), (0, 0)]]
        """
        own = _cut(rows * self.rank // self.world, rows * (self.rank + 1) // self.world, size)
        return own + [(0, 0)] * (_most(rows, size, self.world) - len(own))


ALL = Portion()
"""Every row."""


def _cut(first: int, last: int, size: int) -> list[tuple[int, int]]:
    places = [first, *range((first // size + 1) * size, last, size), last]
    return [(start, stop) for start, stop in pairwise(places) if start < stop]


@cache
def _most(rows: int, size: int, world: int) -> int:
    """Pieces of the process that has most."""
    return max(len(_cut(rows * rank // world, rows * (rank + 1) // world, size)) for rank in range(world))


def rows_of(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch that has as many of everything as it has rows."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cut: dict[str, Any] = {name: value[start:stop] for name, value in parts.items() if isinstance(value, Tensor)}
    return replace(batch, **cut, scored=int((cut["targets"] != UNSCORED).sum()))


def idle(batch: Batch) -> Batch:
    """A batch that is read along to keep step with the others, and counts for nothing."""
    return replace(batch, idle=True)
