"""Predictions of one text, by task, and the protocol that all predictors follow. This module needs no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.tasks import MultiLabel, Regression, Task, TextInput

Floats = NDArray[np.float64]
ABSTAIN = "abstain"
"""The label of a text whose prediction is withheld."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text: one label."""

    kind: ClassVar[Literal["classes"]] = "classes"
    label: str
    """The most probable label, or `abstain` if its probability is too low."""
    probability: float
    """The probability of the most probable label."""
    probabilities: dict[str, float]
    truncated: bool
    """Whether the text was longer than the context and was truncated."""
    abstained: bool = False


@dataclass(frozen=True)
class MultiLabelPrediction:
    """The prediction for one text: any number of labels."""

    kind: ClassVar[Literal["labels"]] = "labels"
    labels: tuple[str, ...]
    """The labels whose probability reaches their threshold, in label order."""
    probabilities: dict[str, float]
    """The probability of every label by itself; they do not sum to 1."""
    truncated: bool
    abstained: ClassVar[bool] = False


@dataclass(frozen=True)
class RegressionPrediction:
    """The prediction for one text: a number."""

    kind: ClassVar[Literal["rating"]] = "rating"
    value: float
    """The number, within the bounds of the task."""
    truncated: bool
    abstained: ClassVar[bool] = False


AnyPrediction = Prediction | MultiLabelPrediction | RegressionPrediction


class TextPredictor(Protocol):
    """A classifier or regressor of texts: `Predictor` (torch), `NumpyPredictor` or `OnnxPredictor`."""

    @property
    def task(self) -> Task:
        """The task that the model was trained for."""

    def predict(self, texts: Sequence[TextInput], *, abstain: float | None = None) -> list[AnyPrediction | None]:
        """Predict every text, in order; the prediction of a blank text is None.

        Args:
            abstain: the precision that predictions should have; only `Predictor` can withhold the others.
        """


def make_prediction(task: Task, probabilities: Floats, truncated: bool, min_probability: float = 0.0) -> AnyPrediction:
    """Make the prediction of one text from a row of `Task.probabilities`.

    Args:
        min_probability: for a single-label task, abstain if the most probable label has less.
    """
    if isinstance(task, Regression):
        return RegressionPrediction(float(probabilities[0]), truncated)
    by_label: dict[str, Any] = dict(zip(task.labels, map(float, probabilities), strict=True))
    if isinstance(task, MultiLabel):
        reached = probabilities >= task.threshold_array
        labels = tuple(label for label, is_reached in zip(task.labels, reached, strict=True) if is_reached)
        return MultiLabelPrediction(labels, by_label, truncated)
    abstained = bool(probabilities.max() < min_probability)
    label = ABSTAIN if abstained else task.labels[int(probabilities.argmax())]
    return Prediction(label, float(probabilities.max()), by_label, truncated, abstained)


def decision_margins(task: Task, probabilities: Floats, min_probability: float | Floats = 0.0) -> Floats:
    """Return by how much the probabilities of each text (N, C) can change before `make_prediction` decides differently.

    That is the difference of the two most probable labels, or the distance to a threshold. It is 0 for a rating, which changes
    with any number.

    Args:
        min_probability: that of `make_prediction`, of all texts or of each.
    """
    if isinstance(task, Regression):
        return np.zeros(len(probabilities))
    if isinstance(task, MultiLabel):
        nearest: Floats = np.abs(probabilities - task.threshold_array).min(axis=1)
        return nearest
    ordered = np.sort(probabilities, axis=1)
    highest = ordered[:, -1]
    second = ordered[:, -2] if ordered.shape[1] > 1 else np.zeros_like(highest)
    distances = np.where(np.asarray(min_probability) > 0, np.abs(highest - min_probability), np.inf)
    smallest: Floats = np.minimum(highest - second, distances)
    return smallest


def is_blank(text: TextInput) -> bool:
    """Return whether a text, or one of the two texts of a pair, has nothing but white space.

    >>> is_blank(" \\n"), is_blank(("a", "")), is_blank("a")
    (True, True, False)
    """
    return not all(part.strip() for part in ((text,) if isinstance(text, str) else text))


def predict_readable(
    texts: Sequence[TextInput], predict: Callable[[list[TextInput]], list[AnyPrediction]]
) -> list[AnyPrediction | None]:
    """Predict the texts that are not blank together; the others have None in their place."""
    readable = [text for text in texts if not is_blank(text)]
    predictions = iter(predict(readable) if readable else ())
    return [None if is_blank(text) else next(predictions) for text in texts]


def single_texts(texts: Sequence[TextInput]) -> list[str]:
    """Return the texts as a list, for a predictor that reads no pairs."""
    singles = [text for text in texts if isinstance(text, str)]
    assert len(singles) == len(texts), "this predictor reads no pairs of texts"
    return singles
