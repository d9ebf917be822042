"""Tasks: single-label classification, multi-label classification and regression. No torch.

A task determines the width of the head, what its logits mean, how labels become an array, and the metrics. The loss
(`train.objectives`), the calibration (`train.calibration`) and the predictions (`predict.outputs`) follow from it.

N texts, C outputs.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import (
    Evaluation,
    Floats,
    MultiLabelEvaluation,
    RegressionEvaluation,
    evaluate_multi_label,
    evaluate_regression,
    evaluate_single_label,
    softmax,
)

TaskName = Literal["classes", "labels", "rating"]
TextInput = str | tuple[str, str]
"""The input of a model: a text, or a pair of texts."""
Label = Any
"""The label of a row: a name, a tuple of names, or a number."""
UNBOUNDED = float(np.finfo(np.float32).max)
"""The bound of a rating whose model names none: nothing is clipped."""
AnyEvaluation = Evaluation | MultiLabelEvaluation | RegressionEvaluation


@dataclass(frozen=True)
class Task(ABC):
    """The task of a model: what it predicts for a text."""

    kind: ClassVar[TaskName]
    labels: tuple[str, ...]
    """The names of the outputs in order; a regression has none."""
    pair: bool = False
    """True if an input is a pair of texts."""

    @property
    def outputs(self) -> int:
        """The number of outputs of the head."""
        return len(self.labels)

    @property
    def affine(self) -> tuple[float, float]:
        """Scale and offset from what the head learns to the prediction; both are folded into its last layer."""
        return 1.0, 0.0

    @abstractmethod
    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """Return the labels of rows as an array."""

    @abstractmethod
    def probabilities(self, logits: Floats) -> Floats:
        """Turn logits (N, C) into probabilities, or into numbers within bounds."""

    @abstractmethod
    def measure(self, logits: Floats, gold: NDArray[Any], truncated: int = 0) -> AnyEvaluation:
        """Compute the metrics of logits on labelled rows."""

    @abstractmethod
    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Summarize the labels of rows, for the record."""

    def facts(self) -> dict[str, Any]:
        """Return the task as plain values for JSON; `task_from` reads them."""
        return {"kind": self.kind, "pair": self.pair}


@dataclass(frozen=True)
class SingleLabel(Task):
    """Each text has exactly one of the labels."""

    kind = "classes"

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """Return the index of each row's label."""
        indices = {name: index for index, name in enumerate(self.labels)}
        return np.array([indices[label] for label in labels], dtype=np.int64)

    def probabilities(self, logits: Floats) -> Floats:
        """Return the softmax over the labels."""
        return softmax(logits)

    def measure(self, logits: Floats, gold: NDArray[Any], truncated: int = 0) -> Evaluation:
        """Compute accuracy, macro-F1, results per class and the confusion matrix."""
        return evaluate_single_label(logits, gold, self.labels, truncated)

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Count the rows of each label."""
        counts = np.bincount(gold, minlength=len(self.labels))
        return {"counts": {label: int(n) for label, n in zip(self.labels, counts, strict=True)}}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each text has any number of the labels, possibly none; a label is predicted from its threshold on."""

    kind = "labels"
    thresholds: tuple[float, ...] = ()
    """A probability for each label; empty means one half for all."""

    @property
    def threshold_array(self) -> Floats:
        """The threshold of each label, defaults filled in."""
        return np.array(self.thresholds or [0.5] * len(self.labels))

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """Return a 0/1 indicator matrix with a row per text."""
        indices = {name: index for index, name in enumerate(self.labels)}
        indicators = np.zeros((len(labels), len(self.labels)), dtype=np.float32)
        for row, names in enumerate(labels):
            indicators[row, [indices[name] for name in names]] = 1
        return indicators

    def probabilities(self, logits: Floats) -> Floats:
        """Return the sigmoid of each logit: the probabilities of a text do not add up to 1."""
        # the exponent is never above 0, so nothing overflows
        exp_logits = np.exp(-np.abs(logits))
        probabilities: Floats = np.where(logits >= 0, 1 / (1 + exp_logits), exp_logits / (1 + exp_logits))
        return probabilities

    def measure(self, logits: Floats, gold: NDArray[Any], truncated: int = 0) -> MultiLabelEvaluation:
        """Compute micro- and macro-F1, exact matches, and the results of each label."""
        predictions = self.probabilities(logits) >= self.threshold_array
        return evaluate_multi_label(logits, predictions, gold, self.labels, self.threshold_array, truncated)

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Count the rows of each label, and the rows without any."""
        counts = {label: int(n) for label, n in zip(self.labels, gold.sum(axis=0), strict=True)}
        return {"counts": counts, "without": int((gold.sum(axis=1) == 0).sum())}

    def facts(self) -> dict[str, Any]:
        """Return the task with the threshold of each label."""
        return super().facts() | {"thresholds": dict(zip(self.labels, map(float, self.threshold_array), strict=True))}


@dataclass(frozen=True)
class Regression(Task):
    """Each text has a number; predictions are clipped to the bounds."""

    kind = "rating"
    lowest: float = 0.0
    highest: float = 1.0
    mean: float = 0.0
    spread: float = 1.0
    """Mean and standard deviation of the training rows: the head learns (number - mean) / spread."""

    @property
    def outputs(self) -> int:
        """The head has one output."""
        return 1

    @property
    def affine(self) -> tuple[float, float]:
        """The scale and offset that undo the standardization of the labels."""
        return self.spread, self.mean

    def gold(self, labels: Sequence[Label]) -> NDArray[Any]:
        """Return the numbers as floats."""
        return np.array(labels, dtype=np.float64)

    def probabilities(self, logits: Floats) -> Floats:
        """Clip the predicted numbers to the bounds."""
        return np.clip(logits, self.lowest, self.highest)

    def measure(self, logits: Floats, gold: NDArray[Any], truncated: int = 0) -> RegressionEvaluation:
        """Compute errors, correlations, and the errors of always predicting the training mean."""
        return evaluate_regression(self.probabilities(logits)[:, 0], gold, self.mean, self.spread, truncated)

    def describe(self, gold: NDArray[Any]) -> dict[str, Any]:
        """Return the smallest, mean and largest number."""
        return {"values": {"lowest": float(gold.min()), "mean": float(gold.mean()), "highest": float(gold.max())}}

    def facts(self) -> dict[str, Any]:
        """Return the task with its bounds and scale."""
        numbers = {name: float(getattr(self, name)) for name in ("lowest", "highest", "mean", "spread")}
        return super().facts() | numbers


def task_from(facts: Mapping[str, Any] | None, labels: tuple[str, ...]) -> Task:
    """Rebuild the task that `facts` wrote; None means single-label. A ValueError says what is wrong with the record."""
    if len(set(labels)) < len(labels):
        raise ValueError("it has a label twice")
    if facts is None:
        return SingleLabel(labels)
    name, pair = facts["kind"], facts["pair"]
    if not isinstance(pair, bool):
        raise ValueError(f"pair is {pair!r}")
    if name == "classes":
        return SingleLabel(labels, pair)
    if name == "labels":
        thresholds = facts["thresholds"]
        if set(thresholds) != set(labels) or not all(is_number(thresholds[label]) for label in labels):
            raise ValueError("the thresholds are not those of its labels")
        return MultiLabel(labels, pair, tuple(float(thresholds[label]) for label in labels))
    if name == "rating":
        numbers = [facts[name] for name in ("lowest", "highest", "mean", "spread")]
        if labels or not all(map(is_number, numbers)) or not numbers[0] < numbers[1] or not numbers[3] > 0:
            raise ValueError(f"a rating between {numbers[0]!r} and {numbers[1]!r}, with {len(labels)} labels")
        return Regression((), pair, *map(float, numbers))
    raise ValueError(f"unknown task {name!r}")


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number, as a float can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max  # an integer may be too large for a float; NaN is not at most anything
