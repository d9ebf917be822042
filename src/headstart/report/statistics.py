"""Means, intervals and paired differences over few seeds and many test texts.

S seeds, N test texts. Two things are a matter of chance: the seed (the order of rows, the new head, dropout) and which
texts happen to be in test. With v[s, i] the answer of seed s on text i (1 right, 0 wrong; for two arms the difference),

    seeds  = variance of the S row means / S            the luck of training, and of each training on each text
    texts  = variance of the N column means / N - rest / (S N)        the luck of the texts alone
    rest   = variance of v less its row and column means              stands in both, so it is taken out of one

and the interval is the mean ± sqrt(t(S-1)² seeds + t(N-1)² texts). Each part keeps its own t, because with three seeds
the first is known badly and the second well; one t for both is either too narrow or far too wide. In simulations of 3
to 10 seeds, 95 % intervals made this way held the truth 95 to 98 % of the time. With one seed, only texts can be seen.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from headstart.report.collect import Comparison
from headstart.store.cells import Budget, Cell

CONFIDENCE = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and the interval around it."""

    mean: float
    low: float
    high: float
    seeds: int
    texts: int

    @property
    def measurable(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Summary:
    """An arm with so many labels, over its seeds."""

    arm: str
    budget: Budget
    cells: tuple[Cell, ...]
    accuracy: Estimate
    without_overlap: float | None
    """Mean test accuracy without the texts that (almost) stand in train too; None where there are none, or nothing else."""

    @cached_property
    def accuracies(self) -> tuple[float, ...]:
        """Test accuracy of each seed."""
        return tuple(cell.test.accuracy for cell in self.cells)

    @property
    def sd(self) -> float | None:
        """Standard deviation of test accuracy over seeds; None for one seed."""
        return standard_deviation(self.accuracies)

    @property
    def worst(self) -> Cell:
        """The seed that came out lowest on test."""
        return min(self.cells, key=lambda cell: cell.test.accuracy)

    @property
    def macro_f1(self) -> float:
        """Mean over seeds of the mean over classes."""
        return mean([cell.test.macro_f1 for cell in self.cells])

    @property
    def valid_accuracy(self) -> float:
        """Mean validation accuracy."""
        return mean([cell.valid.accuracy for cell in self.cells])

    @property
    def seconds(self) -> float:
        """Mean duration of a run."""
        return mean([cell.seconds for cell in self.cells])

    @property
    def best_epochs(self) -> tuple[int, ...]:
        """The epochs that validation chose."""
        return tuple(cell.best_epoch for cell in self.cells if cell.best_epoch is not None)


@dataclass(frozen=True)
class Reach:
    """When, in mean validation accuracy, the pretrained network reached the best of the one from random weights."""

    accuracy: float
    scratch_epoch: int
    pretrained_epoch: int | None


def mean(values: tuple[float, ...] | list[float]) -> float:
    """The mean; ten times 0.1 has the mean 0.1, which plain summing would miss.

    >>> mean([0.1] * 10), sum([0.1] * 10) / 10
    (0.1, 0.09999999999999999)
    """
    return statistics.fmean(values)


def standard_deviation(values: tuple[float, ...] | list[float]) -> float | None:
    """The sample standard deviation; None for a single value, which has none.

    >>> standard_deviation([1.0, 2.0, 3.0]), standard_deviation([1.0])
    (1.0, None)
    """
    return statistics.stdev(values) if len(values) > 1 else None


def estimate(values_SN: Floats, *, bounds: tuple[float, float] = (-1.0, 1.0)) -> Estimate:
    """The mean over seeds and texts with its interval (see the head of this file), kept within `bounds`."""
    seeds, texts = values_SN.shape
    centre = float(values_SN.mean())
    if texts < 2:  # one text says nothing of others
        return Estimate(centre, *bounds, seeds, texts)
    by_seed_S, by_text_N = values_SN.mean(axis=1), values_SN.mean(axis=0)
    from_texts = float(by_text_N.var(ddof=1)) / texts
    from_seeds = 0.0
    if seeds > 1:
        rest_SN = values_SN - by_seed_S[:, None] - by_text_N[None, :] + centre
        rest = float((rest_SN**2).sum()) / ((seeds - 1) * (texts - 1))
        from_seeds = float(by_seed_S.var(ddof=1)) / seeds * _quantile(seeds - 1) ** 2
        from_texts = max(0.0, from_texts - rest / (seeds * texts))
    half = (from_seeds + from_texts * _quantile(texts - 1) ** 2) ** 0.5
    low, high = bounds
    return Estimate(centre, max(low, centre - half), min(high, centre + half), seeds, texts)


def summarise(comparison: Comparison, arm: str, budget: Budget) -> Summary | None:
    """One arm with so many labels; None without a run."""
    cells = comparison.of(arm, budget)
    if not cells:
        return None
    right_SN = _right(comparison, cells)
    leaked = comparison.data.test.leaked
    kept = np.setdiff1d(np.arange(right_SN.shape[1]), leaked)
    without = float(right_SN[:, kept].mean()) if leaked and len(kept) else None
    return Summary(arm, budget, cells, estimate(right_SN, bounds=(0.0, 1.0)), without)


def summaries(comparison: Comparison, budget: Budget) -> list[Summary]:
    """Every arm that has a run with so many labels, in the order of arms."""
    found = [summarise(comparison, arm, budget) for arm in comparison.arms]
    return [summary for summary in found if summary is not None]


def paired_difference(comparison: Comparison, arm: str, other: str, budget: Budget) -> Estimate | None:
    """How much more of test `arm` gets right than `other`, over the seeds they share; None if they share none.

    An arm that does not train and has one run stands beside every seed of the other.
    """
    ours, theirs = ({cell.seed: cell for cell in comparison.of(name, budget)} for name in (arm, other))
    if _fixed(ours) and theirs:
        ours = dict.fromkeys(theirs, next(iter(ours.values())))
    elif _fixed(theirs) and ours:
        theirs = dict.fromkeys(ours, next(iter(theirs.values())))
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    right_SN = _right(comparison, [ours[seed] for seed in shared])
    return estimate(right_SN - _right(comparison, [theirs[seed] for seed in shared]))


def mean_curve(cells: tuple[Cell, ...]) -> dict[int, float]:
    """Mean validation accuracy by epoch, over the epochs that every run reached."""
    reached = set.intersection(*({epoch.epoch for epoch in cell.epochs} for cell in cells)) if cells else set()
    by_epoch: dict[int, list[float]] = {number: [] for number in sorted(reached)}
    for cell in cells:
        for epoch in cell.epochs:
            if epoch.epoch in by_epoch:
                by_epoch[epoch.epoch].append(epoch.valid_accuracy)
    return {number: mean(values) for number, values in by_epoch.items()}


def epochs_to_reach(comparison: Comparison, budget: Budget) -> Reach | None:
    """The first epoch at which pretrained reaches the best of scratch, in means over the seeds both have."""
    scratch, pretrained = comparison.of("scratch", budget), comparison.of("pretrained", budget)
    shared = {cell.seed for cell in scratch} & {cell.seed for cell in pretrained}
    theirs = mean_curve(tuple(cell for cell in scratch if cell.seed in shared))
    ours = mean_curve(tuple(cell for cell in pretrained if cell.seed in shared))
    if not theirs or not ours:
        return None
    best = max(theirs.values())
    first = next(number for number, value in theirs.items() if value == best)
    return Reach(best, first, next((number for number, value in ours.items() if value >= best), None))


def _right(comparison: Comparison, cells: tuple[Cell, ...] | list[Cell]) -> Floats:
    gold_N = np.asarray(comparison.data.test.gold)
    return np.stack([np.asarray(cell.predictions) == gold_N for cell in cells]).astype(np.float64)


def _fixed(cells: dict[int, Cell]) -> bool:
    return len(cells) == 1 and not next(iter(cells.values())).epochs


def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
