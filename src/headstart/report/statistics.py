"""Statistics of the arms of a comparison: summaries, paired differences, and accuracy without leaks or by protocol.

A leaked test text has an exact or a near-duplicate in train, so training may have seen its label.

The same runs can be read by two protocols:

    course protocol   the best epoch on the test file, every row
    honest protocol   the epoch that validation selected, test read once, without leaked rows

The course protocol needs a comparison that measured test after every epoch (loop.watch_test). Nothing is selected by it
here: it shows what selecting by it would have claimed.
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
"""By seed, one value per test text; their mean is the measure."""
_IMBALANCE = 1.5


@dataclass(frozen=True)
class Summary:
    """An arm with one budget, over its seeds."""

    arm: str
    budget: Budget
    runs: tuple[RunRecord, ...]
    accuracy: Estimate
    macro: Estimate
    """Macro-F1, the mean over classes: a rare class counts as much as a frequent one."""
    without_overlap: float | None
    """Mean test accuracy without the leaked texts; None where there are none, or no others."""

    @cached_property
    def accuracies(self) -> tuple[float, ...]:
        """The test accuracy of each seed."""
        return tuple(run.test.accuracy for run in self.runs)

    @property
    def sd(self) -> float | None:
        """The standard deviation of test accuracy over seeds; None for one seed."""
        return standard_deviation(self.accuracies)

    @property
    def worst(self) -> RunRecord:
        """The run with the lowest test accuracy."""
        return min(self.runs, key=lambda run: run.test.accuracy)

    @property
    def macro_f1(self) -> float:
        """The mean macro-F1 over seeds."""
        return mean([run.test.macro_f1 for run in self.runs])

    @property
    def valid_accuracy(self) -> float:
        """The mean validation accuracy."""
        return mean([run.valid.accuracy for run in self.runs])

    @property
    def seconds(self) -> float:
        """The mean duration of a run."""
        return mean([run.seconds for run in self.runs])

    @property
    def best_epochs(self) -> tuple[int, ...]:
        """The epochs that validation selected."""
        return tuple(run.best_epoch for run in self.runs if run.best_epoch is not None)


def summarise(comparison: ComparisonResults, arm: str, budget: Budget) -> Summary | None:
    """Summarise one arm with one budget; None without a run."""
    runs = comparison.runs_of(arm, budget)
    if not runs:
        return None
    correct_SN, macro_SN = (
        _stack(per_text_values(comparison, arm, budget, measure)) for measure in ("accuracy", "macro_f1")
    )
    leaked = comparison.data.test.leaked
    clean = np.setdiff1d(np.arange(correct_SN.shape[1]), leaked)
    without_overlap = float(correct_SN[:, clean].mean()) if leaked and len(clean) else None
    one_run = len(runs) == 1 and not is_deterministic(comparison, arm, budget)
    accuracy, macro = (estimate(values_SN, bounds=(0.0, 1.0), one_run=one_run) for values_SN in (correct_SN, macro_SN))
    return Summary(arm, budget, runs, accuracy, macro, without_overlap)


def summaries(comparison: ComparisonResults, budget: Budget) -> list[Summary]:
    """Summarise every arm that has a run with this budget, in the order of arms."""
    all_arms = [summarise(comparison, arm, budget) for arm in comparison.arms]
    return [summary for summary in all_arms if summary is not None]


def paired_difference(
    comparison: ComparisonResults, arm: str, other: str, budget: Budget, measure: MeasureName = "accuracy"
) -> Estimate | None:
    """Estimate how much better `arm` is on test than `other`, over their common seeds; None if there are none."""
    tables = aligned(comparison, [(arm, budget), (other, budget)], measure)
    if tables is None:
        return None
    (arm_SN, other_SN), one_run = tables
    return estimate(arm_SN - other_SN, one_run=one_run)


def aligned(
    comparison: ComparisonResults, sides: list[tuple[str, Budget]], measure: MeasureName = "accuracy"
) -> tuple[list[Floats], bool] | None:
    """Return the tables (seeds, texts) of several arms and budgets over their common seeds; None if there are none.

    The single run of a deterministic arm is paired with every seed of the others. The second value is True if there is
    only one row although some arm is random.
    """
    values = [per_text_values(comparison, arm, budget, measure) for arm, budget in sides]
    if not all(values):
        return None
    deterministic = [is_deterministic(comparison, arm, budget) for arm, budget in sides]
    seed_sets = [set(by_seed) for by_seed, fixed in zip(values, deterministic, strict=True) if not fixed]
    seeds = sorted(set.intersection(*seed_sets)) if seed_sets else [0]
    if not seeds:
        return None
    tables = [
        np.stack([next(iter(by_seed.values())) if fixed else by_seed[seed] for seed in seeds])
        for by_seed, fixed in zip(values, deterministic, strict=True)
    ]
    return tables, len(seeds) == 1 and bool(seed_sets)


def is_deterministic(comparison: ComparisonResults, arm: str, budget: Budget) -> bool:
    """Return True if nothing about an arm is random: it has one run, no epochs, and all rows rather than a sample."""
    runs = comparison.runs_of(arm, budget)
    return budget == "all" and len(runs) == 1 and not runs[0].epochs


def per_text_values(
    comparison: ComparisonResults, arm: str, budget: Budget, measure: MeasureName = "accuracy"
) -> PerTextValues:
    """Return, by seed, one value per test text; their mean is the measure."""
    gold_N = np.asarray(comparison.data.test.gold, dtype=np.int64)
    values: PerTextValues = {}
    for run in comparison.runs_of(arm, budget):
        predictions_N = np.asarray(run.predictions, dtype=np.int64)
        values[run.seed] = (
            (predictions_N == gold_N).astype(np.float64)
            if measure == "accuracy"
            else macro_f1_values(gold_N, predictions_N, len(comparison.labels))
        )
    return values


def is_imbalanced(comparison: ComparisonResults) -> bool:
    """Return True if test has half as many more texts of one label than of another: accuracy then hides the rare ones."""
    counts = comparison.data.test.counts.values()
    return max(counts) >= _IMBALANCE * min(counts)


def _stack(by_seed: PerTextValues) -> Floats:
    return np.stack(list(by_seed.values()))


@dataclass(frozen=True)
class LeakFreeDifference:
    """An estimate on all test texts, and on those that are not leaked."""

    arm: str
    other: str | None
    """The arm that is subtracted; None where the estimate is an accuracy."""
    every: Estimate
    clean: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def differences_without_leaks(comparison: ComparisonResults) -> list[LeakFreeDifference]:
    """Estimate every arm at the largest budget, then the gain of pretraining; empty if no text or every text leaked."""
    leaked, budget = set(comparison.data.test.leaked), comparison.largest_budget
    clean = np.array([row for row in range(comparison.data.test.rows) if row not in leaked], dtype=np.int64)
    if not leaked or not len(clean):
        return []
    rows = []
    for arm in comparison.arms:
        values = per_text_values(comparison, arm, budget)
        if not values:
            continue
        values_SN = _stack(values)
        one_run = len(values_SN) == 1 and not is_deterministic(comparison, arm, budget)
        estimates = (
            estimate(table_SN, bounds=(0.0, 1.0), one_run=one_run) for table_SN in (values_SN, values_SN[:, clean])
        )
        rows.append(LeakFreeDifference(arm, None, *estimates))
    arm, other = pretrained_and_scratch(comparison)
    tables = aligned(comparison, [(arm, budget), (other, budget)])
    if tables is not None:
        (arm_SN, other_SN), one_run = tables
        gain_SN = arm_SN - other_SN
        estimates = (estimate(table_SN, one_run=one_run) for table_SN in (gain_SN, gain_SN[:, clean]))
        rows.append(LeakFreeDifference(arm, other, *estimates))
    return rows


@dataclass(frozen=True)
class Range:
    """A value over seeds: its mean, and from the worst seed to the best."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class ProtocolAccuracy:
    """The test accuracy of one network with one budget, by both protocols."""

    arm: str
    budget: Budget
    seeds: int
    course: Range
    """Course protocol: the best epoch on test, every row."""
    honest: Range | None
    """Honest protocol: the epoch that validation selected, without leaked rows; None if every row is leaked."""
    honest_every_row: Range
    """The epoch that validation selected, with the leaked rows."""
    first: Range
    """After the first epoch, every row: the beginning of published curves."""
    last: Range
    """After the last epoch, every row."""

    @property
    def optimism(self) -> float | None:
        """How much higher the course protocol is than the honest one."""
        return None if self.honest is None else self.course.mean - self.honest.mean

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "optimism": self.optimism}


def protocol_accuracies(comparison: ComparisonResults, budget: Budget) -> list[ProtocolAccuracy]:
    """Measure every arm whose runs all have test accuracies by epoch, in the order of arms."""
    runs_by_arm = [comparison.runs_of(arm, budget) for arm in comparison.arms]
    return [_protocol_accuracy(comparison, runs) for runs in runs_by_arm if runs and all(map(_has_test_curve, runs))]


def _has_test_curve(run: RunRecord) -> bool:
    return bool(run.epochs) and all(epoch.test_accuracy is not None for epoch in run.epochs)


def _protocol_accuracy(comparison: ComparisonResults, runs: tuple[RunRecord, ...]) -> ProtocolAccuracy:
    curves = [_test_curve(run) for run in runs]
    clean_accuracies = [_accuracy_without_leaks(run, comparison) for run in runs]
    honest = [accuracy for accuracy in clean_accuracies if accuracy is not None]
    return ProtocolAccuracy(
        arm=runs[0].arm,
        budget=runs[0].labels,
        seeds=len(runs),
        course=_range([max(curve) for curve in curves]),
        honest=_range(honest) if honest else None,
        honest_every_row=_range([run.test.accuracy for run in runs]),
        first=_range([curve[0] for curve in curves]),
        last=_range([curve[-1] for curve in curves]),
    )


def _test_curve(run: RunRecord) -> list[float]:
    """Return the test accuracy by epoch."""
    epochs = sorted(run.epochs, key=lambda epoch: epoch.epoch)
    return [epoch.test_accuracy for epoch in epochs if epoch.test_accuracy is not None]


def _accuracy_without_leaks(run: RunRecord, comparison: ComparisonResults) -> float | None:
    test = comparison.data.test
    leaked = set(test.leaked)
    correct = [
        prediction == gold
        for row, (prediction, gold) in enumerate(zip(run.predictions, test.gold, strict=True))
        if row not in leaked
    ]
    return sum(correct) / len(correct) if correct else None


def _range(values: list[float]) -> Range:
    return Range(mean(values), min(values), max(values))
