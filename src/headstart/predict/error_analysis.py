"""Error analysis of a classifier: its most confident mistakes, confused labels, and accuracy by slices of the rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Evaluation, Reliability, number_bins, wilson

MAX_SLICES = 12
"""The number of distinct values of a column from which they are grouped: numbers by quartile, others as `(other)`."""
OTHER = "(other)"


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction."""

    where: str
    text: str
    label: str
    answer: str
    probability: float
    words: tuple[tuple[str, float], ...] = ()
    """The words with the largest attribution, if they were requested."""


@dataclass(frozen=True)
class Slice:
    """The accuracy on a group of rows, with its 95 % interval (Wilson's)."""

    name: str
    rows: int
    right: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ConfusedPair:
    """A label that was predicted as another."""

    label: str
    answer: str
    rows: int
    fraction: float
    """The fraction of the label's rows."""


@dataclass(frozen=True)
class ErrorAnalysis:
    """The error analysis of one file."""

    evaluation: Evaluation
    calibration: Reliability
    confused: tuple[ConfusedPair, ...]
    mistakes: tuple[Mistake, ...]
    """The most confident first."""
    slices: dict[str, tuple[Slice, ...]]
    """Slices by length, by label, and by the requested columns."""

    def as_dict(self) -> dict[str, Any]:
        """The analysis as JSON values."""
        return asdict(self)


def slice_accuracy(
    groups: Sequence[str], right: NDArray[np.bool_], order: Sequence[str] | None = None
) -> tuple[Slice, ...]:
    """The accuracy of each group, in the given order or by name."""
    names = np.asarray(groups, dtype=object)
    slices = []
    for name in order or sorted(set(groups)):
        right_in_group = right[names == name]
        rows = len(right_in_group)
        if rows:
            hits = int(right_in_group.sum())
            low, high = wilson(hits, rows)
            slices.append(Slice(name, rows, hits, hits / rows, low, high))
    return tuple(slices)


def slices_by_column(values: Sequence[object]) -> tuple[list[str], list[str]]:
    """Group rows by the value of a column; return the group of each row, and the groups in order.

    A column with many values is grouped by quartile if they are numbers, and by its most common values otherwise.
    """
    texts = ["(empty)" if value is None else str(value).strip() or "(empty)" for value in values]
    counts = Counter(texts)
    if len(counts) <= MAX_SLICES:
        return texts, sorted(counts)
    numbers = [number for text in texts if (number := _number(text)) is not None]
    if len(numbers) == len(texts):
        return number_bins(numbers)
    common = [text for text, _ in counts.most_common(MAX_SLICES - 1)]
    return [text if text in common else OTHER for text in texts], [*common, OTHER]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def most_confused(evaluation: Evaluation) -> tuple[ConfusedPair, ...]:
    """Every pair of labels that was confused, the most frequent first."""
    pairs = [
        ConfusedPair(label, answer, count, count / sum(row))
        for label, row in zip(evaluation.labels, evaluation.confusion, strict=True)
        for answer, count in zip(evaluation.labels, row, strict=True)
        if answer != label and count
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair.rows))


def most_confident_mistakes(probabilities: NDArray[np.float64], gold: NDArray[np.int64], count: int) -> list[int]:
    """The wrongly predicted rows, those with the highest probability first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != gold)
    order = np.argsort(-probabilities[wrong].max(axis=1), kind="stable")
    return [int(row) for row in wrong[order][:count]]
