"""The errors of the best network: its most confident mistakes, and its accuracy on slices of test.

The best network is the one with the best validation accuracy. With several seeds, the probabilities of a text are means
over seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import number_bins
from headstart.report.intervals import Estimate, Floats, estimate
from headstart.report.load import ComparisonResults, best_linear, best_on_validation, network_arms
from headstart.report.reliability import probabilities_of
from headstart.report.statistics import is_deterministic, per_text_values
from headstart.store.records import Budget

MAX_SHOWN = 10
"""The number of mistakes that a report lists, and of which a comparison keeps excerpts."""
_MIN_TEXTS = 2


@dataclass(frozen=True)
class SharedMistake:
    """A test text that was predicted wrongly."""

    row: int
    """The row of the test file, counted from 0."""
    label: str
    answer: str
    probability: float
    wrong: int
    """The number of seeds that were wrong."""
    seeds: int


@dataclass(frozen=True)
class TextSlice:
    """A subset of the test texts, and the accuracy on it."""

    by: str
    name: str
    texts: int
    accuracy: Estimate
    linear: Estimate | None
    """The accuracy of the best linear arm on the same texts."""


@dataclass(frozen=True)
class ErrorTables:
    """The mistakes and slices of one network."""

    arm: str
    budget: Budget
    linear: str | None
    mistakes: tuple[SharedMistake, ...]
    slices: tuple[TextSlice, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; they contain no text."""
        return asdict(self)


def error_tables(comparison: ComparisonResults) -> ErrorTables | None:
    """Analyse the network with the best validation accuracy at the largest budget; None where no network has run."""
    arm = best_on_validation(comparison, network_arms(comparison))
    if arm is None:
        return None
    linear = best_linear(comparison)
    mistakes = surest_mistakes(comparison, arm)
    return ErrorTables(arm, comparison.largest_budget, linear, mistakes, _slices(comparison, arm, linear))


def surest_mistakes(comparison: ComparisonResults, arm: str, count: int = MAX_SHOWN) -> tuple[SharedMistake, ...]:
    """Return the mistakes of an arm with the highest probability; none where its runs kept no probabilities."""
    runs = comparison.runs_of(arm, comparison.largest_budget)
    if not runs or not all(run.probabilities for run in runs):
        return ()
    gold_N = np.asarray(comparison.data.test.gold, dtype=np.int64)
    probabilities_NC = np.mean([probabilities_of(run) for run in runs], axis=0)
    wrong_N = (np.array([run.predictions for run in runs]) != gold_N).sum(axis=0)
    prediction_N, confidence_N = probabilities_NC.argmax(axis=1), probabilities_NC.max(axis=1)
    mistakes = np.flatnonzero(prediction_N != gold_N)
    surest = mistakes[np.argsort(-np.round(confidence_N[mistakes], 9), kind="stable")][:count]
    return tuple(
        SharedMistake(
            row=int(row),
            label=comparison.labels[gold_N[row]],
            answer=comparison.labels[prediction_N[row]],
            probability=round(float(confidence_N[row]), 6),
            wrong=int(wrong_N[row]),
            seeds=len(runs),
        )
        for row in surest
    )


def _slices(comparison: ComparisonResults, arm: str, linear: str | None) -> tuple[TextSlice, ...]:
    test = comparison.data.test
    labels = [comparison.labels[label] for label in test.gold]
    groupings: list[tuple[str, Sequence[str], Sequence[str]]] = [("label", labels, comparison.labels)]
    if test.lengths is not None and test.rows:
        groupings.insert(0, ("length", *number_bins(np.asarray(test.lengths), "tokens")))
    network_accuracy = _accuracy_on_rows(comparison, arm)
    linear_accuracy = _accuracy_on_rows(comparison, linear) if linear else None
    slices = []
    for by, group_of_row, order in groupings:
        names = np.asarray(group_of_row, dtype=object)
        for name in order:
            rows = np.flatnonzero(names == name)
            if len(rows) >= _MIN_TEXTS:
                linear_estimate = linear_accuracy(rows) if linear_accuracy else None
                slices.append(TextSlice(by, name, len(rows), network_accuracy(rows), linear_estimate))
    return tuple(slices)


def _accuracy_on_rows(comparison: ComparisonResults, arm: str) -> Callable[[NDArray[np.int64]], Estimate]:
    """Return a function that estimates the accuracy of an arm on some rows."""
    budget = comparison.largest_budget
    values_SN: Floats = np.stack(list(per_text_values(comparison, arm, budget).values()))
    one_run = len(values_SN) == 1 and not is_deterministic(comparison, arm, budget)
    return lambda rows: estimate(values_SN[:, rows], bounds=(0.0, 1.0), one_run=one_run)
