"""Summaries, paired differences, leaks and protocols.

The arms of a comparison in numbers: each by itself, and two side by side over paired seeds.

The figures with and without the test texts that training may have known: those that stand in train, or almost do.

The same runs read by two protocols, side by side: as the published course read them, and as they should be read.

    course protocol   the best epoch on the test file, every row of it
    honest protocol   the epoch that validation chose, test read once, without its rows that also stand in train

Only a comparison that measured test after every epoch (loop.watch_test) can be read by the first. Nothing is chosen by
it here: it says what choosing by it would have claimed.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from headstart.report.intervals import Estimate, Floats, estimate, macro_f1_values, mean, standard_deviation
from headstart.report.load import ComparisonResults, pretrained_and_scratch
from headstart.store.records import Budget, RunRecord

MeasureName = Literal["accuracy", "macro_f1"]
PerTextValues = dict[int, Floats]
"""By seed, the numbers of an arm's answers whose mean is the measure."""


@dataclass(frozen=True)
class Summary:
    """An arm with so many labels, over its seeds."""

    arm: str
    budget: Budget
    cells: tuple[RunRecord, ...]
    accuracy: Estimate
    macro: Estimate
    """Macro-F1: the mean over classes, so that a rare class counts as much as a frequent one."""
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
    def worst(self) -> RunRecord:
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


def summarise(comparison: ComparisonResults, arm: str, budget: Budget) -> Summary | None:
    """One arm with so many labels; None without a run."""
    cells = comparison.of(arm, budget)
    if not cells:
        return None
    right_SN, macro_SN = (
        np.stack(list(per_text_values(comparison, arm, budget, measure).values()))
        for measure in ("accuracy", "macro_f1")
    )
    leaked = comparison.data.test.leaked
    kept = np.setdiff1d(np.arange(right_SN.shape[1]), leaked)
    without = float(right_SN[:, kept].mean()) if leaked and len(kept) else None
    once = len(cells) == 1 and not is_deterministic(comparison, arm, budget)
    accuracy, macro = (estimate(values_SN, bounds=(0.0, 1.0), one_run=once) for values_SN in (right_SN, macro_SN))
    return Summary(arm, budget, cells, accuracy, macro, without)


def summaries(comparison: ComparisonResults, budget: Budget) -> list[Summary]:
    """Every arm that has a run with so many labels, in the order of arms."""
    found = [summarise(comparison, arm, budget) for arm in comparison.arms]
    return [summary for summary in found if summary is not None]


def paired_difference(
    comparison: ComparisonResults, arm: str, other: str, budget: Budget, measure: MeasureName = "accuracy"
) -> Estimate | None:
    """How much better `arm` is on test than `other`, over the seeds they share; None if they share none."""
    shared = aligned(comparison, [(arm, budget), (other, budget)], measure)
    if shared is None:
        return None
    (ours_SN, theirs_SN), once = shared
    return estimate(ours_SN - theirs_SN, one_run=once)


def aligned(
    comparison: ComparisonResults, sides: list[tuple[str, Budget]], measure: MeasureName = "accuracy"
) -> tuple[list[Floats], bool] | None:
    """Tables (seeds, texts) of several arms and budgets, row by row of the same seed; None if they share no seed.

    An arm in which nothing is left to chance has one run, which stands beside every seed of the others. The second
    value says whether there is but one row although something was left to chance.
    """
    found = [per_text_values(comparison, arm, budget, measure) for arm, budget in sides]
    if not all(found):
        return None
    fixed = [is_deterministic(comparison, arm, budget) for arm, budget in sides]
    varying = [set(table) for table, same in zip(found, fixed, strict=True) if not same]
    shared = sorted(set.intersection(*varying)) if varying else [0]
    if not shared:
        return None
    tables = [
        np.stack([next(iter(table.values())) if same else table[seed] for seed in shared])
        for table, same in zip(found, fixed, strict=True)
    ]
    return tables, len(shared) == 1 and bool(varying)


def is_deterministic(comparison: ComparisonResults, arm: str, budget: Budget) -> bool:
    """Whether an arm leaves nothing to chance: it has one run, no epochs, and all rows rather than some drawn."""
    cells = comparison.of(arm, budget)
    return budget == "all" and len(cells) == 1 and not cells[0].epochs


def per_text_values(
    comparison: ComparisonResults, arm: str, budget: Budget, measure: MeasureName = "accuracy"
) -> PerTextValues:
    """By seed, one number a test text whose mean is the measure."""
    gold_N, labels = np.asarray(comparison.data.test.gold, dtype=np.int64), len(comparison.labels)
    found: PerTextValues = {}
    for cell in comparison.of(arm, budget):
        answers_N = np.asarray(cell.predictions, dtype=np.int64)
        found[cell.seed] = (
            (answers_N == gold_N).astype(np.float64)
            if measure == "accuracy"
            else macro_f1_values(gold_N, answers_N, labels)
        )
    return found


def is_imbalanced(comparison: ComparisonResults) -> bool:
    """Whether test has half as many more texts of one label than of another: accuracy then hides the rare ones."""
    counts = comparison.data.test.counts.values()
    return max(counts) >= 1.5 * min(counts)


@dataclass(frozen=True)
class LeakFreeDifference:
    """A figure on all of test, and on the texts that are new to training."""

    arm: str
    other: str | None
    """Where it is a difference: from which arm."""
    every: Estimate
    clean: Estimate

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def differences_without_leaks(comparison: ComparisonResults) -> list[LeakFreeDifference]:
    """Every arm with the most labels, then what pretraining brought; empty where nothing leaked, or everything did."""
    leaked = set(comparison.data.test.leaked)
    kept = np.array([row for row in range(comparison.data.test.rows) if row not in leaked], dtype=np.int64)
    if not leaked or not len(kept):
        return []
    found = []
    for arm in comparison.arms:
        table = per_text_values(comparison, arm, comparison.main)
        if not table:
            continue
        values_SN = np.stack(list(table.values()))
        once = len(values_SN) == 1 and not is_deterministic(comparison, arm, comparison.main)
        both = (estimate(each, bounds=(0.0, 1.0), one_run=once) for each in (values_SN, values_SN[:, kept]))
        found.append(LeakFreeDifference(arm, None, *both))
    arm, other = pretrained_and_scratch(comparison)
    shared = aligned(comparison, [(arm, comparison.main), (other, comparison.main)])
    if shared is not None:
        (ours_SN, theirs_SN), once = shared
        gain_SN = ours_SN - theirs_SN
        found.append(
            LeakFreeDifference(arm, other, *(estimate(each, one_run=once) for each in (gain_SN, gain_SN[:, kept])))
        )
    return found


@dataclass(frozen=True)
class Range:
    """A figure over seeds: its mean, and from the worst seed to the best."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class ProtocolAccuracy:
    """One network with so many labels, read both ways."""

    arm: str
    budget: Budget
    seeds: int
    course: Range
    """Course protocol: the best epoch on test, every row."""
    honest: Range | None
    """Honest protocol: the epoch that validation chose, rows that also stand in train left out; None if no other is."""
    honest_every_row: Range
    """The same epoch, with the rows that also stand in train."""
    first: Range
    """After the first epoch, every row: what published curves begin with."""
    last: Range
    """After the last epoch, every row."""

    @property
    def flattery(self) -> float | None:
        """How much more the course protocol claims."""
        return None if self.honest is None else self.course.mean - self.honest.mean

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "flattery": self.flattery}


def protocol_accuracies(comparison: ComparisonResults, budget: Budget) -> list[ProtocolAccuracy]:
    """Every arm whose runs all measured test after every epoch, in the order of arms."""
    found = [(arm, comparison.of(arm, budget)) for arm in comparison.arms]
    return [_read(comparison, cells, budget) for _, cells in found if cells and all(map(_has_test_curve, cells))]


def _has_test_curve(cell: RunRecord) -> bool:
    return bool(cell.epochs) and all(epoch.test_accuracy is not None for epoch in cell.epochs)


def _read(comparison: ComparisonResults, cells: tuple[RunRecord, ...], budget: Budget) -> ProtocolAccuracy:
    curves = [_curve(cell) for cell in cells]
    without = [_without_duplicates(cell, comparison) for cell in cells]
    kept = [share for share in without if share is not None]
    return ProtocolAccuracy(
        arm=cells[0].arm,
        budget=budget,
        seeds=len(cells),
        course=_spread([max(curve) for curve in curves]),
        honest=_spread(kept) if kept else None,
        honest_every_row=_spread([cell.test.accuracy for cell in cells]),
        first=_spread([curve[0] for curve in curves]),
        last=_spread([curve[-1] for curve in curves]),
    )


def _curve(cell: RunRecord) -> list[float]:
    """Test accuracy by epoch."""
    ordered = sorted(cell.epochs, key=lambda epoch: epoch.epoch)
    return [epoch.test_accuracy for epoch in ordered if epoch.test_accuracy is not None]


def _without_duplicates(cell: RunRecord, comparison: ComparisonResults) -> float | None:
    test = comparison.data.test
    doubles = set(test.leaked)
    right = [
        answer == gold
        for row, (answer, gold) in enumerate(zip(cell.predictions, test.gold, strict=True))
        if row not in doubles
    ]
    return sum(right) / len(right) if right else None


def _spread(values: list[float]) -> Range:
    return Range(mean(values), min(values), max(values))
