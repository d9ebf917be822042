"""The gain of an arm over another in points, epochs and labels, each with an interval.

Epochs and labels are read off the curve of the other arm: the point at which it is as accurate as the first arm. The
interval consists of the points that cannot be distinguished from it: those at which the interval of the paired
difference contains zero. A report therefore has one kind of interval. `benchmarks/coverage.py` measures how often the intervals
read off a curve contain the truth; in epochs they are conservative.

S seeds, N test texts, K budgets, E epochs.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from headstart.report.intervals import Estimate, Floats, estimate, t_quantile, variance_components
from headstart.report.load import ComparisonResults, best_linear, pretrained_and_scratch
from headstart.report.statistics import aligned, is_imbalanced, paired_difference
from headstart.store.records import Budget, RunRecord

CURVE_STEPS = 4
"""Points evaluated between two budgets."""
MIN_TEXT_FRACTION = 1 / 3
"""The smallest fraction of the variance of correctness that is ascribed to texts: runs may differ less at the end."""
TIE_POINTS = 1e-9
"""A lead up to this size is a tie: equal means that were summed in different orders differ by so much."""


@dataclass(frozen=True)
class CurvePoint:
    """The point of a curve that reaches a given accuracy; None is beyond the end of the curve."""

    at: float | None
    low: float | None
    high: float | None
    first: float
    """The beginning of the curve; it also stands for everything before it."""
    last: float


@dataclass(frozen=True)
class LabelsSaved:
    """The number of labels that `other` needs for the accuracy that `arm` has with `rows` of them."""

    arm: str
    other: str
    budget: Budget
    rows: int
    accuracy: float
    needed: CurvePoint


@dataclass(frozen=True)
class EpochsSaved:
    """The number of epochs that `other` needs for the validation accuracy that `arm` has after its first."""

    arm: str
    other: str
    accuracy: float
    needed: CurvePoint
    one_run: bool


@dataclass(frozen=True)
class Gain:
    """The gain of `arm` over `other` with one budget."""

    arm: str
    other: str
    budget: Budget
    points: Estimate
    macro_f1: Estimate
    unbalanced: bool
    """True if accuracy hides rare labels, so that macro-F1 is reported too."""
    epochs: EpochsSaved | None
    labels: LabelsSaved | None
    linear_labels: LabelsSaved | None
    """The labels that the best linear arm needs for the same accuracy."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "measurable": self.points.measurable}


def gain(comparison: ComparisonResults, budget: Budget, arms: tuple[str, str] | None = None) -> Gain | None:
    """Measure the gain of pretraining, or of `arms[0]` over `arms[1]`, with one budget; None without common seeds."""
    arm, other = arms or pretrained_and_scratch(comparison)
    points = paired_difference(comparison, arm, other, budget)
    macro_f1 = paired_difference(comparison, arm, other, budget, "macro_f1")
    if points is None or macro_f1 is None:
        return None
    linear = best_linear(comparison)
    return Gain(
        arm=arm,
        other=other,
        budget=budget,
        points=points,
        macro_f1=macro_f1,
        unbalanced=is_imbalanced(comparison),
        epochs=epochs_needed(comparison, arm, other, budget),
        labels=labels_needed(comparison, arm, other, budget),
        linear_labels=labels_needed(comparison, arm, linear, budget) if linear else None,
    )


def gains(comparison: ComparisonResults) -> list[Gain]:
    """Measure the gain of pretraining with every budget, from all labels to few."""
    all_budgets = [gain(comparison, budget) for budget in reversed(comparison.budgets)]
    return [measured for measured in all_budgets if measured is not None]


def labels_needed(comparison: ComparisonResults, arm: str, other: str, budget: Budget) -> LabelsSaved | None:
    """Find how many labels `other` needs for the accuracy of `arm`; None if it has no curve or no common seed."""
    sizes = {
        max(run.rows for run in comparison.runs_of(other, size)): size
        for size in comparison.budgets
        if comparison.runs_of(other, size)
    }
    tables = aligned(comparison, [(arm, budget), *((other, size) for size in sizes.values())])
    if tables is None or len(sizes) < 2:
        return None
    (arm_SN, *curve), _ = tables
    return LabelsSaved(
        arm=arm,
        other=other,
        budget=budget,
        rows=max(run.rows for run in comparison.runs_of(arm, budget)),
        accuracy=float(arm_SN.mean()),
        needed=labels_to_reach(arm_SN, np.stack(curve), list(sizes)),
    )


def labels_to_reach(target_SN: Floats, curve_KSN: Floats, sizes: Sequence[int]) -> CurvePoint:
    """Find the point between the increasing sizes at which a curve of tables is as accurate as the target table.

    The curve is linear between two sizes on a log scale, and never decreases: where more labels gave less, the two are
    averaged.
    """
    curve_KSN, log_sizes = isotonic(curve_KSN), np.log(sizes)
    grid = np.unique(np.concatenate([np.linspace(a, b, CURVE_STEPS + 1) for a, b in pairwise(log_sizes)]))
    leads = [
        estimate(target_SN - _interpolate(curve_KSN, log_sizes, log_size), bounds=(-2.0, 2.0)) for log_size in grid
    ]
    return CurvePoint(
        at=_zero_crossing(grid, [lead.mean for lead in leads]),
        low=_zero_crossing(grid, [lead.low for lead in leads]),
        high=_zero_crossing(grid, [lead.high for lead in leads]),
        first=sizes[0],
        last=sizes[-1],
    )


def isotonic(curve_KSN: Floats) -> Floats:
    """Return an isotonic curve: neighbouring tables whose means decrease are averaged until none does.

    >>> isotonic(np.array([0.6, 0.8, 0.7, 0.9]).reshape(4, 1, 1)).ravel().round(2).tolist()
    [0.6, 0.75, 0.75, 0.9]
    """
    blocks: list[list[int]] = []
    for index in range(len(curve_KSN)):
        blocks.append([index])
        while len(blocks) > 1 and curve_KSN[blocks[-2]].mean() > curve_KSN[blocks[-1]].mean():
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return np.concatenate([np.repeat(curve_KSN[block].mean(axis=0)[None], len(block), axis=0) for block in blocks])


def _interpolate(curve_KSN: Floats, log_sizes: Floats, log_size: float) -> Floats:
    """Return the table of a curve between two of its own."""
    right = int(np.clip(np.searchsorted(log_sizes, log_size), 1, len(log_sizes) - 1))
    weight = (log_size - log_sizes[right - 1]) / (log_sizes[right] - log_sizes[right - 1])
    table: Floats = (1 - weight) * curve_KSN[right - 1] + weight * curve_KSN[right]
    return table


def _zero_crossing(log_sizes: Floats, leads: list[float]) -> float | None:
    """Return the size at which a lead first vanishes, interpolated linearly; None if it never does."""
    index = next((index for index, lead in enumerate(leads) if lead <= TIE_POINTS), None)
    if index is None or index == 0:
        return None if index is None else math.exp(log_sizes[0])
    before, after = leads[index - 1], leads[index]
    weight = before / (before - after)
    return math.exp(log_sizes[index - 1] + weight * (log_sizes[index] - log_sizes[index - 1]))


def epochs_needed(comparison: ComparisonResults, arm: str, other: str, budget: Budget) -> EpochsSaved | None:
    """Find how many epochs `other` needs for the accuracy of `arm` after one; None without epochs or common seeds.

    Predictions on validation are not recorded text by text. The fraction of the variance that is due to the texts is
    therefore taken from test, where the two arms differ on similar texts, if it is large there.
    """
    arm_runs, other_runs = ({run.seed: run for run in comparison.runs_of(name, budget)} for name in (arm, other))
    seeds = sorted(arm_runs.keys() & other_runs.keys())
    tables = aligned(comparison, [(arm, budget), (other, budget)])
    if tables is None or not all(arm_runs[seed].epochs and other_runs[seed].epochs for seed in seeds):
        return None
    (arm_SN, other_SN), one_run = tables
    start_S = np.array([_validation_curve(arm_runs[seed])[0] for seed in seeds])
    num_epochs = min(len(other_runs[seed].epochs) for seed in seeds)
    curve_SE = np.array([_validation_curve(other_runs[seed])[:num_epochs] for seed in seeds])
    needed = epochs_to_reach(
        start_S, curve_SE, text_variance_fraction(arm_SN, other_SN), max(2, comparison.data.valid.rows)
    )
    return EpochsSaved(arm, other, float(start_S.mean()), needed, one_run=one_run)


def text_variance_fraction(arm_SN: Floats, other_SN: Floats) -> float:
    """Return the fraction of two arms' variance of correctness that is due to texts, at least `MIN_TEXT_FRACTION`."""
    variance = float(_bernoulli_variance(arm_SN.mean()) + _bernoulli_variance(other_SN.mean()))
    text_variance = float(variance_components(arm_SN - other_SN)[1])
    return max(MIN_TEXT_FRACTION, text_variance / variance if variance else 0.0)


def epochs_to_reach(start_S: Floats, curve_SE: Floats, text_fraction: float, texts: int) -> CurvePoint:
    """Find the epoch after which a curve is as high as `start_S`, over seeds and so many validation texts.

    The lower end is the first epoch that cannot be distinguished from the start. The upper end demands more than the
    first epoch that is significantly as high, because of many epochs one is high by luck: it takes the best epoch so
    far, selected for each seed by the other seeds, and is where that is significantly as high and stays so.
    """
    (mean_E, half_E), (best_E, best_half_E) = (
        _lead(start_S, accuracy_SE, text_fraction, texts) for accuracy_SE in (curve_SE, best_so_far(curve_SE))
    )
    stays_E = np.logical_and.accumulate((best_E + best_half_E <= TIE_POINTS)[::-1])[::-1]
    at, low, high = (
        int(reached_E.argmax()) + 1 if reached_E.any() else None
        for reached_E in (mean_E <= TIE_POINTS, mean_E - half_E <= TIE_POINTS, stays_E)
    )
    high = None if at is None or high is None else max(at, high)
    return CurvePoint(at, low, high, first=1, last=len(mean_E))


def best_so_far(curve_SE: Floats) -> Floats:
    """Return each seed's accuracy at the best epoch so far, selected by the other seeds to avoid selecting its luck.

    >>> best_so_far(np.array([[0.5, 0.7, 0.6], [0.5, 0.6, 0.8]])).tolist()
    [[0.5, 0.7, 0.6], [0.5, 0.6, 0.6]]
    """
    others_SE = curve_SE.sum(axis=0) - curve_SE if len(curve_SE) > 1 else curve_SE
    before_SE = np.maximum.accumulate(others_SE, axis=1)[:, :-1]
    better_SE = np.pad(others_SE[:, 1:] > before_SE, ((0, 0), (1, 0)))
    best_SE = np.maximum.accumulate(np.where(better_SE, np.arange(curve_SE.shape[1]), 0), axis=1)
    return np.take_along_axis(curve_SE, best_SE, axis=1)


def _lead(start_S: Floats, curve_SE: Floats, text_fraction: float, texts: int) -> tuple[Floats, Floats]:
    """Return how far the start is ahead after each epoch, and half the width of its interval."""
    lead_SE, seeds = start_S[:, None] - curve_SE, len(start_S)
    variance_E = _bernoulli_variance(start_S.mean()) + _bernoulli_variance(curve_SE.mean(axis=0))
    half_E = t_quantile(texts - 1) ** 2 * (text_fraction * variance_E / texts + 2 / texts**2)
    if seeds > 1:
        half_E = half_E + t_quantile(seeds - 1) ** 2 * lead_SE.var(axis=0, ddof=1) / seeds
    return lead_SE.mean(axis=0), np.sqrt(half_E)


def _bernoulli_variance(probability: Floats) -> Floats:
    return probability * (1 - probability)


def _validation_curve(run: RunRecord) -> list[float]:
    return [epoch.valid_accuracy for epoch in sorted(run.epochs, key=lambda epoch: epoch.epoch)]
