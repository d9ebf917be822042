"""What is asked of a text: one class of several, any number of labels, or a number. No torch.

The width of the head, how its scores are read, what a right answer looks like as an array, and the measures all follow
from the kind; so do the loss (`train.objectives`), what is fitted on validation (`train.settle`) and the words of an
answer (`predict.answers`). A new kind begins here.

N texts, C outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import (
    Evaluation,
    MultiLabelEvaluation,
    RegressionEvaluation,
    evaluate_multi_label,
    evaluate_regression,
    evaluate_single_label,
    softmax,
)

TaskName = Literal["classes", "labels", "rating"]
Floats = NDArray[np.float64]
Label = Any
"""What a row is labelled with: a name, a tuple of names, or a number."""
AnyEvaluation = Evaluation | MultiLabelEvaluation | RegressionEvaluation


@dataclass(frozen=True)
class Task(ABC):
    """What a model answers, and all that follows from it."""

    kind: ClassVar[TaskName]
    labels: tuple[str, ...]
    """The names of the outputs in order; a rating has none."""
    pair: bool = False
    """Whether a question is two texts."""

    @property
    def outputs(self) -> int:
        """The width of the head."""
        return len(self.labels)

    @property
    def affine(self) -> tuple[float, float]:
        """Factor and summand by which what the head learns to say becomes the answer; both go into its last layer."""
        return 1.0, 0.0

    @abstractmethod
    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """The labels of rows as an array."""

    @abstractmethod
    def probabilities(self, scores: Floats) -> Floats:
        """Scores (N, C) as what they mean: probabilities, or numbers within bounds."""

    @abstractmethod
    def measure(self, scores: Floats, gold: NDArray[Any], truncated: int = 0) -> AnyEvaluation:
        """How scores fared on rows."""

    @abstractmethod
    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """How the rows are spread, for the record."""

    def facts(self) -> dict[str, Any]:
        """For JSON; `task_from` reads it."""
        return {"kind": self.kind, "pair": self.pair}


@dataclass(frozen=True)
class SingleLabel(Task):
    """Each text has exactly one of the labels."""

    kind = "classes"

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """The index of each row's label."""
        places = {name: index for index, name in enumerate(self.labels)}
        return np.array([places[label] for label in labels], dtype=np.int64)

    def probabilities(self, scores: Floats) -> Floats:
        """Softmax: one of them is right."""
        return softmax(scores)

    def measure(self, scores: Floats, gold: NDArray[Any], truncated: int = 0) -> Evaluation:
        """Accuracy, macro-F1, per class and confusion."""
        return evaluate_single_label(scores, gold, self.labels, truncated)

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Rows of each label."""
        counts = np.bincount(gold, minlength=len(self.labels))
        return {"counts": {label: int(n) for label, n in zip(self.labels, counts, strict=True)}}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each text has any number of the labels, none included; a label is given from its threshold on."""

    kind = "labels"
    thresholds: tuple[float, ...] = ()
    """A probability for each label; empty is one half for all."""

    @property
    def least(self) -> Floats:
        """The thresholds as an array."""
        return np.array(self.thresholds or [0.5] * len(self.labels))

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """A row of 0 and 1 a text."""
        places = {name: index for index, name in enumerate(self.labels)}
        found = np.zeros((len(labels), len(self.labels)), dtype=np.float32)
        for row, names in enumerate(labels):
            found[row, [places[name] for name in names]] = 1
        return found

    def probabilities(self, scores: Floats) -> Floats:
        """Sigmoid, each label by itself: the probabilities of a text do not add up to 1."""
        # the exponent is never above 0, so nothing overflows
        powers = np.exp(-np.abs(scores))
        shares: Floats = np.where(scores >= 0, 1 / (1 + powers), powers / (1 + powers))
        return shares

    def measure(self, scores: Floats, gold: NDArray[Any], truncated: int = 0) -> MultiLabelEvaluation:
        """Micro- and macro-F1, exact matches, and each label."""
        return evaluate_multi_label(
            scores, self.probabilities(scores) >= self.least, gold, self.labels, self.least, truncated
        )

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Rows of each label, and rows without any."""
        counts = {label: int(n) for label, n in zip(self.labels, gold.sum(axis=0), strict=True)}
        return {"counts": counts, "without": int((gold.sum(axis=1) == 0).sum())}

    def facts(self) -> dict[str, Any]:
        """With the threshold of each label."""
        return super().facts() | {"thresholds": dict(zip(self.labels, map(float, self.least), strict=True))}


@dataclass(frozen=True)
class Regression(Task):
    """Each text has a number; what lies outside of the bounds is answered with the nearer one."""

    kind = "rating"
    lowest: float = 0.0
    highest: float = 1.0
    mean: float = 0.0
    spread: float = 1.0
    """Mean and standard deviation of the training rows: the head learns (number - mean) / spread."""

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    @property
    def affine(self) -> tuple[float, float]:
        """Back from what was learnt to the numbers people wrote."""
        return self.spread, self.mean

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """The numbers."""
        return np.array(labels, dtype=np.float64)

    def probabilities(self, scores: Floats) -> Floats:
        """The number, within bounds."""
        return np.clip(scores, self.lowest, self.highest)

    def measure(self, scores: Floats, gold: NDArray[Any], truncated: int = 0) -> RegressionEvaluation:
        """Errors, beside those of always answering train's mean, and correlations."""
        return evaluate_regression(self.probabilities(scores)[:, 0], gold, self.mean, self.spread, truncated)

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """The smallest, mean and largest number."""
        return {"values": {"lowest": float(gold.min()), "mean": float(gold.mean()), "highest": float(gold.max())}}

    def facts(self) -> dict[str, Any]:
        """With bounds and scale."""
        numbers = {name: float(getattr(self, name)) for name in ("lowest", "highest", "mean", "spread")}
        return super().facts() | numbers


def task_from(facts: Mapping[str, Any] | None, labels: tuple[str, ...]) -> Task:
    """What `facts` wrote; without it, classes. A ValueError says what is wrong with it."""
    if facts is None:
        return SingleLabel(labels)
    kind, pair = facts["kind"], facts["pair"]
    if not isinstance(pair, bool):
        raise ValueError(f"pair is {pair!r}")
    if kind == "classes":
        return SingleLabel(labels, pair)
    if kind == "labels":
        found = facts["thresholds"]
        if set(found) != set(labels) or not all(_is_number(found[label]) for label in labels):
            raise ValueError("the thresholds are not those of its labels")
        return MultiLabel(labels, pair, tuple(float(found[label]) for label in labels))
    if kind == "rating":
        numbers = [facts[name] for name in ("lowest", "highest", "mean", "spread")]
        if labels or not all(map(_is_number, numbers)) or not numbers[0] < numbers[1] or not numbers[3] > 0:
            raise ValueError(f"a rating between {numbers[0]!r} and {numbers[1]!r}, with {len(labels)} labels")
        return Regression((), pair, *map(float, numbers))
    raise ValueError(f"an unknown kind of answer {kind!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and bool(np.isfinite(value))
