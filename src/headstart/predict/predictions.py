"""The answer to one text, a record for each kind of answer, and how it follows from what the model says. No torch."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.tasks import MultiLabel, Regression, Task

Floats = NDArray[np.float64]
ABSTAIN = "abstain"
"""The label of a text that is left without an answer."""


@dataclass(frozen=True)
class Prediction:
    """The answer to one text: one label."""

    kind: ClassVar[Literal["classes"]] = "classes"
    label: str
    """The likeliest, or `abstain` where that is not sure enough."""
    probability: float
    """Of the likeliest."""
    probabilities: dict[str, float]
    truncated: bool
    """True when the text was longer than the context and its end was not read."""
    abstained: bool = False


@dataclass(frozen=True)
class MultiLabelPrediction:
    """The answer to one text: any number of labels."""

    kind: ClassVar[Literal["labels"]] = "labels"
    labels: tuple[str, ...]
    """Those whose probability reaches their threshold, in label order."""
    probabilities: dict[str, float]
    """Of every label by itself; they do not add up to 1."""
    truncated: bool
    abstained: ClassVar[bool] = False


@dataclass(frozen=True)
class RegressionPrediction:
    """The answer to one text: a number."""

    kind: ClassVar[Literal["rating"]] = "rating"
    value: float
    """Within the bounds of the model."""
    truncated: bool
    abstained: ClassVar[bool] = False


AnyPrediction = Prediction | MultiLabelPrediction | RegressionPrediction


def make_prediction(task: Task, share: Floats, truncated: bool, least: float = 0.0) -> AnyPrediction:
    """What a model says of one text (a row of `Target.shares`) as an answer.

    Args:
        least: of classes, the probability below which no answer is given.
    """
    if isinstance(task, Regression):
        return RegressionPrediction(float(share[0]), truncated)
    named: dict[str, Any] = dict(zip(task.labels, map(float, share), strict=True))
    if isinstance(task, MultiLabel):
        given = tuple(label for label, yes in zip(task.labels, share >= task.threshold_array, strict=True) if yes)
        return MultiLabelPrediction(given, named, truncated)
    unsure = bool(share.max() < least)
    label = ABSTAIN if unsure else task.labels[int(share.argmax())]
    return Prediction(label, float(share.max()), named, truncated, unsure)
