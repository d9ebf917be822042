"""How a model fared on labelled rows, one record a kind of answer. No torch.

Every record has `rows`, `loss` and `truncated`, its figures by name with the one that people compare by first, and
`merit`, by which validation prefers one epoch to another.

N texts, C labels.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.measures import log_loss

Floats = NDArray[np.float64]


class _Figures:
    """What the three records share."""

    FIGURES: ClassVar[dict[str, str]]
    """The figures worth a line and their names in words, the headline first."""

    def figures(self) -> dict[str, float]:
        """The figures by the names of their fields."""
        return {name: getattr(self, name) for name in self.FIGURES}

    @property
    def headline(self) -> str:
        """The first of them in words.

        >>> evaluate_scores(np.eye(2), np.array([0, 1]), ["a", "b"]).headline
        'accuracy 1.0000'
        """
        name, words = next(iter(self.FIGURES.items()))
        return f"{words} {getattr(self, name):.4f}"

    @property
    def merit(self) -> float:
        """Larger is better."""
        merit: float = getattr(self, next(iter(self.FIGURES)))
        return merit

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        assert isinstance(self, (Evaluation, LabelsEvaluation, RatingEvaluation))
        return asdict(self)


@dataclass(frozen=True)
class ClassResult:
    """How one label fared."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int
    threshold: ClassVar[float | None] = None


@dataclass(frozen=True)
class Evaluation(_Figures):
    """How a classifier fared on labelled rows."""

    kind: ClassVar[Literal["classes"]] = "classes"
    FIGURES = {"accuracy": "accuracy", "macro_f1": "macro-F1"}  # noqa: RUF012 (a constant of the class)
    labels: tuple[str, ...]
    rows: int
    accuracy: float
    macro_f1: float
    loss: float
    per_class: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are the true labels, columns the predicted ones."""
    truncated: int


@dataclass(frozen=True)
class LabelResult:
    """How one label of several fared, and from which probability on it was given."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int
    threshold: float


@dataclass(frozen=True)
class LabelsEvaluation(_Figures):
    """How several labels a text fared."""

    kind: ClassVar[Literal["labels"]] = "labels"
    FIGURES = {"micro_f1": "micro-F1", "macro_f1": "macro-F1", "exact": "exact match"}  # noqa: RUF012
    labels: tuple[str, ...]
    rows: int
    micro_f1: float
    macro_f1: float
    exact: float
    """The share of texts that got all of their labels and no other."""
    loss: float
    per_class: tuple[LabelResult, ...]
    truncated: int


@dataclass(frozen=True)
class RatingEvaluation(_Figures):
    """How far numbers were from the right ones."""

    kind: ClassVar[Literal["rating"]] = "rating"
    FIGURES = {"rmse": "RMSE", "mae": "MAE", "spearman": "Spearman"}  # noqa: RUF012
    rows: int
    rmse: float
    mae: float
    spearman: float
    """Correlation of the ranks; 0 where either side is constant."""
    pearson: float
    baseline_rmse: float
    baseline_mae: float
    """The same errors of always answering the mean of the training rows."""
    loss: float
    """The squared error in units of the training rows' variance: what was learnt."""
    truncated: int

    @property
    def merit(self) -> float:
        """The smaller the error, the better."""
        return -self.rmse


def evaluate_scores(scores: Floats, gold: NDArray[np.int64], labels: Sequence[str], truncated: int = 0) -> Evaluation:
    """Accuracy, macro-F1, loss, per class and confusion. A label that neither occurs nor is predicted is left out."""
    predicted = scores.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(confusion, (gold, predicted), 1)
    hits = np.diag(confusion).astype(float)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = 2 * hits / np.maximum(both, 1)
    return Evaluation(
        labels=tuple(labels),
        rows=len(gold),
        accuracy=float((predicted == gold).mean()),
        macro_f1=float(f1[both > 0].mean()),
        loss=log_loss(scores, gold),
        per_class=tuple(
            ClassResult(label, float(precision[i]), float(recall[i]), float(f1[i]), int(confusion[i].sum()))
            for i, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
        truncated=truncated,
    )


def evaluate_labels(
    scores: Floats,
    given: NDArray[np.bool_],
    gold: NDArray[Any],
    labels: Sequence[str],
    thresholds: Floats,
    truncated: int = 0,
) -> LabelsEvaluation:
    """F1 over all decisions and over labels, exact matches, and each label.

    A label that neither occurs nor is given is left out of macro-F1; without any, nothing could be wrong and both are 1.
    """
    true = gold > 0
    hits, answered, right = ((part).sum(axis=0).astype(float) for part in (given & true, given, true))
    both = answered + right
    f1 = 2 * hits / np.maximum(both, 1)
    # log(1 + exp(score)) - gold x score, without overflow
    losses = np.logaddexp(0.0, scores) - np.where(true, scores, 0.0)
    return LabelsEvaluation(
        labels=tuple(labels),
        rows=len(gold),
        micro_f1=float(2 * hits.sum() / both.sum()) if both.sum() else 1.0,
        macro_f1=float(f1[both > 0].mean()) if (both > 0).any() else 1.0,
        exact=float((given == true).all(axis=1).mean()),
        loss=float(losses.mean()),
        per_class=tuple(
            LabelResult(
                label,
                float(hits[i] / max(answered[i], 1)),
                float(hits[i] / max(right[i], 1)),
                float(f1[i]),
                int(right[i]),
                float(thresholds[i]),
            )
            for i, label in enumerate(labels)
        ),
        truncated=truncated,
    )


def evaluate_rating(values: Floats, gold: Floats, mean: float, spread: float, truncated: int = 0) -> RatingEvaluation:
    """Root mean squared and mean absolute error, correlations, and the errors of the training mean."""
    gaps, plain = values - gold, mean - gold
    return RatingEvaluation(
        rows=len(gold),
        rmse=math.sqrt(float(np.square(gaps).mean())),
        mae=float(np.abs(gaps).mean()),
        spearman=_correlation(_ranks(values), _ranks(gold)),
        pearson=_correlation(values, gold),
        baseline_rmse=math.sqrt(float(np.square(plain).mean())),
        baseline_mae=float(np.abs(plain).mean()),
        loss=float(np.square(gaps / spread).mean()),
        truncated=truncated,
    )


def _correlation(a: Floats, b: Floats) -> float:
    """Pearson's, 0 where one side does not move.

    >>> round(_correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6), _correlation(np.ones(2), np.arange(2.0))
    (1.0, 0.0)
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())), -1, 1))


def _ranks(values: Floats) -> Floats:
    """Places from 1 on in order of size; equal values share the mean of their places."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((2 * ends - counts + 1) / 2)[places]
    return ranks
