"""Metrics of classification, multi-label classification and regression.

Arithmetic on answers that several rooms need: calibration error, the interval of a share, rows cut by a number. No torch.

N texts, C labels. "Sure" is the probability of the answer; the calibration error (ECE) is the mean distance between how
sure the answers of a bin are and how many of them are right. A distance is never below zero, so chance adds to it and
takes nothing away: its interval reaches further down than up.

How a model fared on labelled rows, one record a kind of answer. No torch.

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

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_BINS = 15
_Z95 = 1.959964  # 95 %, two-sided
_MAX_EXACT_INTEGER = 2**53  # whole numbers up to here are what they seem


@dataclass(frozen=True)
class Bin:
    """Answers that are about equally sure."""

    low: float
    high: float
    rows: int
    sure: float
    right: float


@dataclass(frozen=True)
class Reliability:
    """How well probabilities keep their word on some rows."""

    rows: int
    ece: float
    low: float
    high: float
    """The 95 % interval of the error on endlessly many rows: on few, even a perfect classifier's is not 0."""
    log_loss: float
    bins: tuple[Bin, ...]


def softmax(scores: Floats) -> Floats:
    """Softmax over the labels; a score of minus infinity is no chance at all."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


def log_loss(scores: Floats, gold: Ints) -> float:
    """The mean over texts of -log softmax(scores)[gold]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(gold)), gold]
    return float(losses.mean())


def reliability(shares: Floats, gold: Ints) -> Reliability:
    """Calibration error with its interval, log-loss, and the bins behind them."""
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    places = bin_indices(sure)
    values, excess = calibration_values(places, sure - right)
    error, rows = float(values.mean()), len(gold)
    # as if two more rows had been seen, one going either way: rows that are all right say little of mistakes
    half = _Z95 * math.sqrt(values.var(ddof=1) / rows + 2 / rows**2) if rows > 1 else 1.0
    bins = [
        Bin(place / NUM_BINS, (place + 1) / NUM_BINS, int(own.sum()), float(sure[own].mean()), float(right[own].mean()))
        for place in range(NUM_BINS)
        if (own := places == place).any()
    ]
    floor = 1e-12  # an arm may give a label no chance at all
    loss = float(-np.log(np.maximum(shares[np.arange(len(gold)), gold], floor)).mean())
    return Reliability(rows, error, max(0.0, error - half - excess), min(1.0, error + half), loss, tuple(bins))


def bin_indices(sure: Floats) -> NDArray[np.int64]:
    """The bin of each answer. A share of 0.8 must not fall into the bin below because 15 * 0.8 is not quite 12."""
    places: NDArray[np.int64] = np.minimum(np.floor(sure * NUM_BINS + 1e-9).astype(np.int64), NUM_BINS - 1)
    return places


def calibration_values(places_N: Ints, gaps_N: Floats) -> tuple[Floats, float]:
    """What each row adds to the calibration error: numbers whose mean it is, and how much of that chance has added.

    `places_N` is the bin of each row, `gaps_N` how much too sure its answer is. The mean gap of a bin that lies x
    standard errors from 0 counts 2 f(x) + 2 x F(-x) standard errors too much (f and F are the normal density and
    distribution): on average, that is what chance adds where the bin is right, and too much rather than too little where
    it is wrong. See `benchmarks/coverage.py` for how often the intervals made of it hold the truth.
    """
    sums_B, squares_B = (np.bincount(places_N, each_N, NUM_BINS) for each_N in (gaps_N, gaps_N**2))
    deviations_B = np.sqrt(np.maximum(0.0, squares_B - sums_B**2 / len(gaps_N)))
    far_B = np.abs(sums_B) / np.maximum(1e-12, deviations_B)
    beyond_B = np.array([math.erfc(far / math.sqrt(2)) for far in far_B])  # 2 F(-x)
    excess_B = deviations_B * (math.sqrt(2 / math.pi) * np.exp(-(far_B**2) / 2) + far_B * beyond_B)
    values: Floats = np.sign(sums_B)[places_N] * gaps_N
    return values, float(excess_B.sum()) / len(gaps_N)


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not rows:
        return 0.0, 1.0
    share, square = hits / rows, _Z95**2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = _Z95 / (1 + square / rows) * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _format_number(number: float, *, counts: bool) -> str:
    """A number as people write it: a count in groups of three, and a value, which may be a year or a day, in one piece.

    >>> [_format_number(number, counts=False) for number in (20240115.0, 20240115.5, 0.1 + 0.2, 1e-9)]
    ['20240115', '20240115.5', '0.3', '1e-09']
    >>> _format_number(3070.0, counts=True)
    '3,070'
    """
    if number.is_integer() and abs(number) < _MAX_EXACT_INTEGER:
        return f"{number:,.0f}" if counts else f"{number:.0f}"
    return f"{number:.6g}" if abs(number) < 1e5 else f"{number:.12g}"


def number_bins(values: Sequence[float] | NDArray[np.int64], unit: str = "") -> tuple[list[str], list[str]]:
    """Rows cut into quarters of like size by a number: the name of each row's quarter, and the names in order.

    >>> number_bins([1, 2, 3, 4, 50, 60, 70, 80], "tokens")[1]
    ['1 to 2 tokens', '3 to 4 tokens', '50 to 60 tokens', '70 to 80 tokens']
    >>> number_bins([20240115, 20240116])[1], number_bins([3070, 0.5], "tokens")[1]
    (['20240115', '20240116'], ['0.5 tokens', '3,070 tokens'])
    """
    numbers = np.asarray(values, dtype=float)
    edges = np.unique(np.quantile(numbers, (0.25, 0.5, 0.75), method="lower"))
    places = np.searchsorted(edges, numbers)
    names = {}
    for place in np.unique(places):
        own = numbers[places == place]
        low, high = (_format_number(float(end), counts=bool(unit)) for end in (own.min(), own.max()))
        what = unit.removesuffix("s") if low == high == "1" else unit
        names[int(place)] = " ".join(part for part in (low if low == high else f"{low} to {high}", what) if part)
    return [names[int(place)] for place in places], list(names.values())


class _Metrics:
    """What the three records share."""

    FIGURES: ClassVar[dict[str, str]]
    """The figures worth a line and their names in words, the headline first."""

    def figures(self) -> dict[str, float]:
        """The figures by the names of their fields."""
        return {name: getattr(self, name) for name in self.FIGURES}

    @property
    def headline(self) -> str:
        """The first of them in words.

        >>> evaluate_single_label(np.eye(2), np.array([0, 1]), ["a", "b"]).headline
        'accuracy 1.0000'
        """
        name, words = next(iter(self.FIGURES.items()))
        return f"{words} {getattr(self, name):.4f}"

    @property
    def selection_metric(self) -> float:
        """Larger is better."""
        selection_metric: float = getattr(self, next(iter(self.FIGURES)))
        return selection_metric

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        assert isinstance(self, (Evaluation, MultiLabelEvaluation, RegressionEvaluation))
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
class Evaluation(_Metrics):
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
class MultiLabelEvaluation(_Metrics):
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
class RegressionEvaluation(_Metrics):
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
    def selection_metric(self) -> float:
        """The smaller the error, the better."""
        return -self.rmse


def confusion_matrix(gold: Sequence[int] | Ints, predictions: Sequence[int] | Ints, num_labels: int) -> Ints:
    """Count the texts by true label (row) and predicted label (column).

    >>> confusion_matrix([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    confusion = np.zeros((num_labels, num_labels), dtype=np.int64)
    np.add.at(confusion, (np.asarray(gold, dtype=np.int64), np.asarray(predictions, dtype=np.int64)), 1)
    return confusion


def macro_f1(confusion: Ints) -> float:
    """Compute the mean F1 over the labels that occur or are predicted; 0 if there are none.

    >>> macro_f1(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]]))
    1.0
    """
    row_and_column_sums = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = row_and_column_sums > 0
    f1 = 2 * np.diag(confusion)[occurs] / row_and_column_sums[occurs]
    return float(f1.mean()) if len(f1) else 0.0


def evaluate_single_label(
    scores: Floats, gold: NDArray[np.int64], labels: Sequence[str], truncated: int = 0
) -> Evaluation:
    """Accuracy, macro-F1, loss, per class and confusion. A label that neither occurs nor is predicted is left out."""
    predicted = scores.argmax(axis=1)
    confusion = confusion_matrix(gold, predicted, len(labels))
    hits = np.diag(confusion).astype(float)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = 2 * hits / np.maximum(both, 1)
    return Evaluation(
        labels=tuple(labels),
        rows=len(gold),
        accuracy=float((predicted == gold).mean()),
        macro_f1=macro_f1(confusion),
        loss=log_loss(scores, gold),
        per_class=tuple(
            ClassResult(label, float(precision[i]), float(recall[i]), float(f1[i]), int(confusion[i].sum()))
            for i, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
        truncated=truncated,
    )


def evaluate_multi_label(
    scores: Floats,
    given: NDArray[np.bool_],
    gold: NDArray[Any],
    labels: Sequence[str],
    thresholds: Floats,
    truncated: int = 0,
) -> MultiLabelEvaluation:
    """F1 over all decisions and over labels, exact matches, and each label.

    A label that neither occurs nor is given is left out of macro-F1; without any, nothing could be wrong and both are 1.
    """
    true = gold > 0
    hits, answered, right = ((part).sum(axis=0).astype(float) for part in (given & true, given, true))
    both = answered + right
    f1 = 2 * hits / np.maximum(both, 1)
    # log(1 + exp(score)) - gold x score, without overflow
    losses = np.logaddexp(0.0, scores) - np.where(true, scores, 0.0)
    return MultiLabelEvaluation(
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


def evaluate_regression(
    values: Floats, gold: Floats, mean: float, spread: float, truncated: int = 0
) -> RegressionEvaluation:
    """Root mean squared and mean absolute error, correlations, and the errors of the training mean."""
    gaps, plain = values - gold, mean - gold
    return RegressionEvaluation(
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
