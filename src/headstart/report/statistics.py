"""The arms of a comparison in numbers: each by itself, and two side by side over paired seeds."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from headstart.report.collect import Comparison
from headstart.report.intervals import Estimate, Floats, estimate, macro_f1_values, mean, standard_deviation
from headstart.store.cells import Budget, Cell

Measure = Literal["accuracy", "macro_f1"]
Rows = dict[int, Floats]
"""By seed, the numbers of an arm's answers whose mean is the measure."""


@dataclass(frozen=True)
class Summary:
    """An arm with so many labels, over its seeds."""

    arm: str
    budget: Budget
    cells: tuple[Cell, ...]
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


def summarise(comparison: Comparison, arm: str, budget: Budget) -> Summary | None:
    """One arm with so many labels; None without a run."""
    cells = comparison.of(arm, budget)
    if not cells:
        return None
    right_SN, macro_SN = (
        np.stack(list(rows(comparison, arm, budget, measure).values())) for measure in ("accuracy", "macro_f1")
    )
    leaked = comparison.data.test.leaked
    kept = np.setdiff1d(np.arange(right_SN.shape[1]), leaked)
    without = float(right_SN[:, kept].mean()) if leaked and len(kept) else None
    once = len(cells) == 1 and not unvarying(comparison, arm, budget)
    accuracy, macro = (estimate(values_SN, bounds=(0.0, 1.0), one_run=once) for values_SN in (right_SN, macro_SN))
    return Summary(arm, budget, cells, accuracy, macro, without)


def summaries(comparison: Comparison, budget: Budget) -> list[Summary]:
    """Every arm that has a run with so many labels, in the order of arms."""
    found = [summarise(comparison, arm, budget) for arm in comparison.arms]
    return [summary for summary in found if summary is not None]


def paired_difference(
    comparison: Comparison, arm: str, other: str, budget: Budget, measure: Measure = "accuracy"
) -> Estimate | None:
    """How much better `arm` is on test than `other`, over the seeds they share; None if they share none."""
    shared = aligned(comparison, [(arm, budget), (other, budget)], measure)
    if shared is None:
        return None
    (ours_SN, theirs_SN), once = shared
    return estimate(ours_SN - theirs_SN, one_run=once)


def aligned(
    comparison: Comparison, sides: list[tuple[str, Budget]], measure: Measure = "accuracy"
) -> tuple[list[Floats], bool] | None:
    """Tables (seeds, texts) of several arms and budgets, row by row of the same seed; None if they share no seed.

    An arm in which nothing is left to chance has one run, which stands beside every seed of the others. The second
    value says whether there is but one row although something was left to chance.
    """
    found = [rows(comparison, arm, budget, measure) for arm, budget in sides]
    if not all(found):
        return None
    fixed = [unvarying(comparison, arm, budget) for arm, budget in sides]
    varying = [set(table) for table, same in zip(found, fixed, strict=True) if not same]
    shared = sorted(set.intersection(*varying)) if varying else [0]
    if not shared:
        return None
    tables = [
        np.stack([next(iter(table.values())) if same else table[seed] for seed in shared])
        for table, same in zip(found, fixed, strict=True)
    ]
    return tables, len(shared) == 1 and bool(varying)


def unvarying(comparison: Comparison, arm: str, budget: Budget) -> bool:
    """Whether an arm leaves nothing to chance: it has one run, no epochs, and all rows rather than some drawn."""
    cells = comparison.of(arm, budget)
    return budget == "all" and len(cells) == 1 and not cells[0].epochs


def rows(comparison: Comparison, arm: str, budget: Budget, measure: Measure = "accuracy") -> Rows:
    """By seed, one number a test text whose mean is the measure."""
    gold_N, labels = np.asarray(comparison.data.test.gold, dtype=np.int64), len(comparison.labels)
    found: Rows = {}
    for cell in comparison.of(arm, budget):
        answers_N = np.asarray(cell.predictions, dtype=np.int64)
        found[cell.seed] = (
            (answers_N == gold_N).astype(np.float64)
            if measure == "accuracy"
            else macro_f1_values(gold_N, answers_N, labels)
        )
    return found


def unbalanced(comparison: Comparison) -> bool:
    """Whether test has half as many more texts of one label than of another: accuracy then hides the rare ones."""
    counts = comparison.data.test.counts.values()
    return max(counts) >= 1.5 * min(counts)
