"""Where the best network goes wrong: the mistakes it was surest of, and the texts it does worse on than on others.

Which network is best, validation says. With several seeds, a text's probabilities are their mean over seeds.
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
"""Mistakes that a report lists, and that a comparison keeps the beginnings of."""
_MIN_TEXTS = 2


@dataclass(frozen=True)
class SharedMistake:
    """A test text that was answered wrongly."""

    row: int
    """Counted from 0, in file order."""
    label: str
    answer: str
    probability: float
    wrong: int
    seeds: int
    """Of so many seeds so many were wrong."""


@dataclass(frozen=True)
class TextSlice:
    """Some of the test texts, and how many of them were answered rightly."""

    by: str
    name: str
    texts: int
    accuracy: Estimate
    linear: Estimate | None
    """The best linear arm on the same texts."""


@dataclass(frozen=True)
class ErrorTables:
    """What is told of one network's mistakes."""

    arm: str
    budget: Budget
    linear: str | None
    mistakes: tuple[SharedMistake, ...]
    slices: tuple[TextSlice, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; no text in it."""
        return asdict(self)


def error_tables(comparison: ComparisonResults) -> ErrorTables | None:
    """The mistakes of the network that validation likes best, with the most labels; None where no network has run."""
    arm = best_on_validation(comparison, network_arms(comparison))
    if arm is None:
        return None
    linear = best_linear(comparison)
    return ErrorTables(arm, comparison.main, linear, surest_mistakes(comparison, arm), _slices(comparison, arm, linear))


def surest_mistakes(comparison: ComparisonResults, arm: str, count: int = MAX_SHOWN) -> tuple[SharedMistake, ...]:
    """The mistakes of an arm with the highest probability; none where its runs kept no probabilities."""
    cells = comparison.of(arm, comparison.main)
    if not cells or not all(cell.probabilities for cell in cells):
        return ()
    gold_N = np.asarray(comparison.data.test.gold, dtype=np.int64)
    shares_NC = np.mean([probabilities_of(cell) for cell in cells], axis=0)
    wrong_N = (np.array([cell.predictions for cell in cells]) != gold_N).sum(axis=0)
    answer_N, sure_N = shares_NC.argmax(axis=1), shares_NC.max(axis=1)
    found = np.flatnonzero(answer_N != gold_N)
    order = found[np.argsort(-np.round(sure_N[found], 9), kind="stable")][:count]
    return tuple(
        SharedMistake(
            row=int(row),
            label=comparison.labels[gold_N[row]],
            answer=comparison.labels[answer_N[row]],
            probability=round(float(sure_N[row]), 6),
            wrong=int(wrong_N[row]),
            seeds=len(cells),
        )
        for row in order
    )


def _slices(comparison: ComparisonResults, arm: str, linear: str | None) -> tuple[TextSlice, ...]:
    test = comparison.data.test
    labels = [comparison.labels[answer] for answer in test.gold]
    cuts: list[tuple[str, Sequence[str], Sequence[str]]] = [("label", labels, comparison.labels)]
    if test.lengths is not None and test.rows:
        cuts.insert(0, ("length", *number_bins(np.asarray(test.lengths), "tokens")))
    ours = _table(comparison, arm)
    theirs = _table(comparison, linear) if linear else None
    found = []
    for by, groups, order in cuts:
        names = np.asarray(groups, dtype=object)
        for name in order:
            own = np.flatnonzero(names == name)
            if len(own) >= _MIN_TEXTS:
                found.append(TextSlice(by, name, len(own), ours(own), theirs(own) if theirs else None))
    return tuple(found)


def _table(comparison: ComparisonResults, arm: str) -> Callable[[NDArray[np.int64]], Estimate]:
    """The accuracy of an arm on some rows, with the interval that all of a report is told with."""
    values_SN: Floats = np.stack(list(per_text_values(comparison, arm, comparison.main).values()))
    once = len(values_SN) == 1 and not is_deterministic(comparison, arm, comparison.main)
    return lambda own: estimate(values_SN[:, own], bounds=(0.0, 1.0), one_run=once)
