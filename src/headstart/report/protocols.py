"""The same runs read by two protocols, side by side: as the published course read them, and as they should be read.

    course protocol   the best epoch on the test file, every row of it
    honest protocol   the epoch that validation chose, test read once, without its rows that also stand in train

Only a comparison that measured test after every epoch (loop.watch_test) can be read by the first. Nothing is chosen by
it here: it says what choosing by it would have claimed.
"""

from dataclasses import asdict, dataclass
from typing import Any

from headstart.report.collect import Comparison
from headstart.report.intervals import mean
from headstart.store.cells import Budget, Cell


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: its mean, and from the worst seed to the best."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Reading:
    """One network with so many labels, read both ways."""

    arm: str
    budget: Budget
    seeds: int
    course: Spread
    """Course protocol: the best epoch on test, every row."""
    honest: Spread | None
    """Honest protocol: the epoch that validation chose, rows that also stand in train left out; None if no other is."""
    honest_every_row: Spread
    """The same epoch, with the rows that also stand in train."""
    first: Spread
    """After the first epoch, every row: what published curves begin with."""
    last: Spread
    """After the last epoch, every row."""

    @property
    def flattery(self) -> float | None:
        """How much more the course protocol claims."""
        return None if self.honest is None else self.course.mean - self.honest.mean

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "flattery": self.flattery}


def readings(comparison: Comparison, budget: Budget) -> list[Reading]:
    """Every arm whose runs all measured test after every epoch, in the order of arms."""
    found = [(arm, comparison.of(arm, budget)) for arm in comparison.arms]
    return [_read(comparison, cells, budget) for _, cells in found if cells and all(map(_watched, cells))]


def _watched(cell: Cell) -> bool:
    return bool(cell.epochs) and all(epoch.test_accuracy is not None for epoch in cell.epochs)


def _read(comparison: Comparison, cells: tuple[Cell, ...], budget: Budget) -> Reading:
    curves = [_curve(cell) for cell in cells]
    without = [_without_doubles(cell, comparison) for cell in cells]
    kept = [share for share in without if share is not None]
    return Reading(
        arm=cells[0].arm,
        budget=budget,
        seeds=len(cells),
        course=_spread([max(curve) for curve in curves]),
        honest=_spread(kept) if kept else None,
        honest_every_row=_spread([cell.test.accuracy for cell in cells]),
        first=_spread([curve[0] for curve in curves]),
        last=_spread([curve[-1] for curve in curves]),
    )


def _curve(cell: Cell) -> list[float]:
    """Test accuracy by epoch."""
    ordered = sorted(cell.epochs, key=lambda epoch: epoch.epoch)
    return [epoch.test_accuracy for epoch in ordered if epoch.test_accuracy is not None]


def _without_doubles(cell: Cell, comparison: Comparison) -> float | None:
    test = comparison.data.test
    doubles = set(test.leaked)
    right = [
        answer == gold
        for row, (answer, gold) in enumerate(zip(cell.predictions, test.gold, strict=True))
        if row not in doubles
    ]
    return sum(right) / len(right) if right else None


def _spread(values: list[float]) -> Spread:
    return Spread(mean(values), min(values), max(values))
