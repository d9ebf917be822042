"""What a head start was worth: in points, in epochs and in labels, each with an interval.

Epochs and labels are both read off a curve of the other arm: where on it does it stand as high as the head start? The
interval is made of the places that cannot be told apart from it: those at which the paired difference between the two
has an interval that holds zero. So there is one interval in a report. `benchmarks/coverage.py` says how often what is
read off with it holds the truth; in epochs it is cautious.
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
"""Places looked at between two numbers of labels."""
MIN_COVERED = 1 / 3
"""Of the spread of right and wrong, how much texts bring at least: runs that err alike in the end may not at first."""
TIE_POINTS = 1e-9
"""A lead that is no lead: what is left of two equal means that were added up in another order."""


@dataclass(frozen=True)
class CurvePoint:
    """Where on its curve another arm stands as high; None is beyond the end of what was run."""

    at: float | None
    low: float | None
    high: float | None
    first: float
    last: float
    """Where the curve begins and ends; `first` stands for everything before it, too."""


@dataclass(frozen=True)
class LabelsSaved:
    """How many labels another arm needs for the accuracy that `arm` has with `rows` of them."""

    arm: str
    other: str
    budget: Budget
    rows: int
    accuracy: float
    needed: CurvePoint


@dataclass(frozen=True)
class EpochsSaved:
    """How many epochs `other` needs for the validation accuracy that `arm` has after its first."""

    arm: str
    other: str
    accuracy: float
    needed: CurvePoint
    one_run: bool


@dataclass(frozen=True)
class Gain:
    """What `arm` was worth over `other` with so many labels."""

    arm: str
    other: str
    budget: Budget
    points: Estimate
    macro_f1: Estimate
    unbalanced: bool
    """Whether accuracy hides rare labels, so that macro-F1 should be told too."""
    epochs: EpochsSaved | None
    labels: LabelsSaved | None
    linear_labels: LabelsSaved | None
    """The same against the best linear arm."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "measurable": self.points.measurable}


def gain(comparison: ComparisonResults, budget: Budget, arms: tuple[str, str] | None = None) -> Gain | None:
    """What pretraining was worth with so many labels, or any arm over another; None if they share no seed."""
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


def labels_needed(comparison: ComparisonResults, arm: str, other: str, budget: Budget) -> LabelsSaved | None:
    """How many labels `other` needs for what `arm` has; None where `other` has no curve or they share no seed."""
    sizes = {
        max(cell.rows for cell in comparison.of(other, each)): each
        for each in comparison.budgets
        if comparison.of(other, each)
    }
    found = aligned(comparison, [(arm, budget), *((other, each) for each in sizes.values())])
    if found is None or len(sizes) < 2:
        return None
    (ours_SN, *theirs), _ = found
    return LabelsSaved(
        arm=arm,
        other=other,
        budget=budget,
        rows=max(cell.rows for cell in comparison.of(arm, budget)),
        accuracy=float(ours_SN.mean()),
        needed=labels_to_reach(ours_SN, np.stack(theirs), list(sizes)),
    )


def labels_to_reach(ours_SN: Floats, curve_KSN: Floats, sizes: Sequence[int]) -> CurvePoint:
    """Where between its sizes, which rise, a curve of tables stands as high as another table.

    It is straight between two sizes on a scale of their logarithms, and never falls: where more labels gave less, the
    two are averaged.
    """
    curve_KSN, logs = running_maximum(curve_KSN), np.log(sizes)
    places = np.unique(np.concatenate([np.linspace(a, b, CURVE_STEPS + 1) for a, b in pairwise(logs)]))
    leads = [estimate(ours_SN - _between(curve_KSN, logs, place), bounds=(-2.0, 2.0)) for place in places]
    return CurvePoint(
        at=_gone(places, [lead.mean for lead in leads]),
        low=_gone(places, [lead.low for lead in leads]),
        high=_gone(places, [lead.high for lead in leads]),
        first=sizes[0],
        last=sizes[-1],
    )


def running_maximum(curve_KSN: Floats) -> Floats:
    """A curve of tables whose means never fall: neighbours that do are averaged, until none does.

    >>> running_maximum(np.array([0.6, 0.8, 0.7, 0.9]).reshape(4, 1, 1)).ravel().round(2).tolist()
    [0.6, 0.75, 0.75, 0.9]
    """
    blocks: list[list[int]] = []
    for place in range(len(curve_KSN)):
        blocks.append([place])
        while len(blocks) > 1 and curve_KSN[blocks[-2]].mean() > curve_KSN[blocks[-1]].mean():
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return np.concatenate([np.repeat(curve_KSN[block].mean(axis=0)[None], len(block), axis=0) for block in blocks])


def epochs_needed(comparison: ComparisonResults, arm: str, other: str, budget: Budget) -> EpochsSaved | None:
    """How many epochs `other` needs for what `arm` has after one; None if they share no seed or have no epochs.

    The answers on validation are not kept text by text. How much of the spread of right and wrong the texts alone bring
    is therefore taken from test, where the two arms differ on texts of the same kind, if that is much.
    """
    ours, theirs = ({cell.seed: cell for cell in comparison.of(name, budget)} for name in (arm, other))
    shared = sorted(ours.keys() & theirs.keys())
    tables = aligned(comparison, [(arm, budget), (other, budget)])
    if tables is None or not all(ours[seed].epochs and theirs[seed].epochs for seed in shared):
        return None
    (ours_SN, theirs_SN), once = tables
    start_S = np.array([_curve(ours[seed])[0] for seed in shared])
    length = min(len(theirs[seed].epochs) for seed in shared)
    curve_SE = np.array([_curve(theirs[seed])[:length] for seed in shared])
    needed = epochs_to_reach(
        start_S, curve_SE, text_variance_fraction(ours_SN, theirs_SN), max(2, comparison.data.valid.rows)
    )
    return EpochsSaved(arm, other, float(start_S.mean()), needed, one_run=once)


def text_variance_fraction(ours_SN: Floats, theirs_SN: Floats) -> float:
    """How much of the spread of right and wrong of two arms is of the texts, and not less than `MIN_COVERED`."""
    spread = float(_spread(ours_SN.mean()) + _spread(theirs_SN.mean()))
    return max(MIN_COVERED, float(variance_components(ours_SN - theirs_SN)[1]) / spread if spread else 0.0)


def epochs_to_reach(start_S: Floats, curve_SE: Floats, share: float, texts: int) -> CurvePoint:
    """After which epoch a curve stands as high as `start_S`, over seeds and so many validation texts.

    The lower end is the first epoch that cannot be told from the start. The upper end asks more than a first epoch that
    is surely as high: of many epochs one will be by luck. It looks at the best epoch so far, each seed's as the other
    seeds choose it, and is where that is surely as high and stays so.
    """
    (mean_E, half_E), (best_E, best_half_E) = (
        _lead(start_S, each_SE, share, texts) for each_SE in (curve_SE, best_so_far(curve_SE))
    )
    stays_E = np.logical_and.accumulate((best_E + best_half_E <= TIE_POINTS)[::-1])[::-1]
    at, low, high = (
        int(gone_E.argmax()) + 1 if gone_E.any() else None
        for gone_E in (mean_E <= TIE_POINTS, mean_E - half_E <= TIE_POINTS, stays_E)
    )
    high = None if at is None or high is None else max(at, high)
    return CurvePoint(at, low, high, first=1, last=len(mean_E))


def best_so_far(curve_SE: Floats) -> Floats:
    """Each seed after the best epoch so far, which the other seeds choose: a seed's own choice would be its luckiest.

    >>> best_so_far(np.array([[0.5, 0.7, 0.6], [0.5, 0.6, 0.8]])).tolist()
    [[0.5, 0.7, 0.6], [0.5, 0.6, 0.6]]
    """
    others_SE = curve_SE.sum(axis=0) - curve_SE if len(curve_SE) > 1 else curve_SE
    before_SE = np.maximum.accumulate(others_SE, axis=1)[:, :-1]
    better_SE = np.pad(others_SE[:, 1:] > before_SE, ((0, 0), (1, 0)))
    best_SE = np.maximum.accumulate(np.where(better_SE, np.arange(curve_SE.shape[1]), 0), axis=1)
    return np.take_along_axis(curve_SE, best_SE, axis=1)


def _lead(start_S: Floats, curve_SE: Floats, share: float, texts: int) -> tuple[Floats, Floats]:
    """How far the start is ahead after each epoch, and half the width of its interval."""
    lead_SE, seeds = start_S[:, None] - curve_SE, len(start_S)
    spread_E = _spread(start_S.mean()) + _spread(curve_SE.mean(axis=0))
    half_E = t_quantile(texts - 1) ** 2 * (share * spread_E / texts + 2 / texts**2)
    if seeds > 1:
        half_E = half_E + t_quantile(seeds - 1) ** 2 * lead_SE.var(axis=0, ddof=1) / seeds
    return lead_SE.mean(axis=0), np.sqrt(half_E)


def _spread(share: Floats) -> Floats:
    """The variance of a right or wrong of which so many are right."""
    return share * (1 - share)


def _curve(cell: RunRecord) -> list[float]:
    return [epoch.valid_accuracy for epoch in sorted(cell.epochs, key=lambda epoch: epoch.epoch)]


def _between(curve_KSN: Floats, logs: Floats, place: float) -> Floats:
    """The curve's table at a place between two of its own."""
    right = int(np.clip(np.searchsorted(logs, place), 1, len(logs) - 1))
    share = (place - logs[right - 1]) / (logs[right] - logs[right - 1])
    table: Floats = (1 - share) * curve_KSN[right - 1] + share * curve_KSN[right]
    return table


def _gone(places: Floats, leads: list[float]) -> float | None:
    """How many labels at the first place where a lead is gone, straight between two places; None if it never is."""
    gone = next((index for index, lead in enumerate(leads) if lead <= TIE_POINTS), None)
    if gone is None or gone == 0:
        return None if gone is None else math.exp(places[0])
    before, after = leads[gone - 1], leads[gone]
    share = before / (before - after)
    return math.exp(places[gone - 1] + share * (places[gone] - places[gone - 1]))
