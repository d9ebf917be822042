"""Where a classifier goes wrong: the mistakes it was surest of, what it takes for what, and which rows it does worse on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Evaluation, Reliability, number_bins, wilson

MAX_SLICES = 12
"""Different values a column may have before they are put together: numbers in quarters, others as the rest."""
OTHER = "(other)"


@dataclass(frozen=True)
class Mistake:
    """One wrong answer."""

    where: str
    text: str
    label: str
    answer: str
    probability: float
    words: tuple[tuple[str, float], ...] = ()
    """What pushed the answer most, where that was asked for."""


@dataclass(frozen=True)
class Slice:
    """Some of the rows, and how many of them were answered rightly, with the 95 % interval of that share (Wilson's)."""

    name: str
    rows: int
    right: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ConfusedPair:
    """A label that was taken for another."""

    label: str
    answer: str
    rows: int
    share: float
    """Of the label's rows."""


@dataclass(frozen=True)
class ErrorAnalysis:
    """All that is told about the mistakes on one file."""

    evaluation: Evaluation
    calibration: Reliability
    confused: tuple[ConfusedPair, ...]
    mistakes: tuple[Mistake, ...]
    """The surest first."""
    slices: dict[str, tuple[Slice, ...]]
    """By what the rows were cut: length, label, and the columns asked for."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def slice_accuracy(
    groups: Sequence[str], right: NDArray[np.bool_], order: Sequence[str] | None = None
) -> tuple[Slice, ...]:
    """The share of right answers of each group; in the order given, else by name."""
    names = np.asarray(groups, dtype=object)
    found = []
    for name in order or sorted(set(groups)):
        own = right[names == name]
        if len(own):
            hits = int(own.sum())
            low, high = wilson(hits, len(own))
            found.append(Slice(name, len(own), hits, hits / len(own), low, high))
    return tuple(found)


def slices_by_column(values: Sequence[object]) -> tuple[list[str], list[str]]:
    """Rows cut by what a column says: each value by itself; where there are many, numbers in quarters, others the rest."""
    texts = ["(empty)" if value is None else str(value).strip() or "(empty)" for value in values]
    counts = Counter(texts)
    if len(counts) <= MAX_SLICES:
        return texts, sorted(counts)
    numbers = [number for text in texts if (number := _number(text)) is not None]
    if len(numbers) == len(texts):
        return number_bins(numbers)
    kept = [text for text, _ in counts.most_common(MAX_SLICES - 1)]
    return [text if text in kept else OTHER for text in texts], [*kept, OTHER]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def most_confused(evaluation: Evaluation) -> tuple[ConfusedPair, ...]:
    """Every pair of labels that was confused, the most frequent first."""
    found = [
        ConfusedPair(label, answer, count, count / sum(row))
        for label, row in zip(evaluation.labels, evaluation.confusion, strict=True)
        for answer, count in zip(evaluation.labels, row, strict=True)
        if answer != label and count
    ]
    return tuple(sorted(found, key=lambda pair: -pair.rows))


def most_confident_mistakes(shares: NDArray[np.float64], gold: NDArray[np.int64], count: int) -> list[int]:
    """The rows answered wrongly with the most certainty."""
    wrong = np.flatnonzero(shares.argmax(axis=1) != gold)
    order = np.argsort(-shares[wrong].max(axis=1), kind="stable")
    return [int(row) for row in wrong[order][:count]]
