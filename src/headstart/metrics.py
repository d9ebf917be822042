"""Metrics of classification, multi-label classification and regression. No torch.

Each task has a record of results (`Evaluation`, `MultiLabelEvaluation`, `RegressionEvaluation`) with `rows`, `loss`,
`truncated`, its metrics by name with the headline first, and `selection_metric`, by which validation selects an epoch.

The confidence of a prediction is its probability. The expected calibration error (ECE) is the mean distance between the
confidence and the accuracy of the bins. A distance is never negative, so chance only ever adds to it: its interval
reaches further down than up.

N texts, C labels, B bins.
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
_MAX_EXACT_INTEGER = 2**53  # a float holds every integer up to here exactly
TEMPERATURE_RANGE = (0.05, 20.0)


@dataclass(frozen=True)
class Bin:
    """Predictions of about equal confidence."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """How well the probabilities of a classifier match its accuracy on some rows."""

    rows: int
    ece: float
    low: float
    high: float
    """`low` and `high` bound the error's 95 % interval; on few rows the ECE of a perfect classifier is not 0 either."""
    log_loss: float
    bins: tuple[Bin, ...]


def softmax(logits: Floats) -> Floats:
    """Return the softmax over the labels; a logit of minus infinity gets probability 0."""
    exp_logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = exp_logits / exp_logits.sum(axis=1, keepdims=True)
    return probabilities


def log_loss(logits: Floats, gold: Ints) -> float:
    """Return the mean over texts of -log softmax(logits)[gold]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(gold)), gold]
    return float(losses.mean())


def best_temperature(logits: Floats, gold: Ints) -> float:
    """Return the number between 0.05 and 20 by which logits are divided for the lowest log-loss."""
    from scipy.optimize import minimize_scalar

    # over the logarithm, where halving and doubling are equally far; the log-loss has a single minimum there
    bounds = tuple(map(math.log, TEMPERATURE_RANGE))
    minimum = minimize_scalar(lambda log: log_loss(logits / math.exp(log), gold), bounds=bounds, method="bounded")
    return math.exp(float(minimum.x))


def confusion_matrix(gold: Sequence[int] | Ints, predictions: Sequence[int] | Ints, num_labels: int) -> Ints:
    """Count rows by true label (rows of the matrix) and predicted label (columns).

    >>> confusion_matrix([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    confusion = np.zeros((num_labels, num_labels), dtype=np.int64)
    np.add.at(confusion, (np.asarray(gold, dtype=np.int64), np.asarray(predictions, dtype=np.int64)), 1)
    return confusion


def macro_f1(confusion: Ints) -> float:
    """Return the mean F1 over the labels that occur or are predicted; 0 where none does.

    >>> round(macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]])), 4)
    0.6667
    """
    gold_or_predicted = confusion.sum(axis=0) + confusion.sum(axis=1) > 0
    return float(_f1_per_label(confusion)[gold_or_predicted].mean()) if gold_or_predicted.any() else 0.0


def _f1_per_label(confusion: Ints) -> Floats:
    num_gold_and_predicted = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1: Floats = 2 * np.diag(confusion).astype(float) / np.maximum(num_gold_and_predicted, 1)
    return f1


def reliability(probabilities: Floats, gold: Ints) -> Reliability:
    """Compute the calibration error with its interval, the log-loss, and the bins behind them."""
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == gold
    bins_N = bin_indices(confidence)
    values, excess = calibration_values(bins_N, confidence - correct)
    error, rows = float(values.mean()), len(gold)
    # as if two more rows had been seen, one going either way: rows that are all correct say little about mistakes
    half = _Z95 * math.sqrt(values.var(ddof=1) / rows + 2 / rows**2) if rows > 1 else 1.0
    bins = [
        Bin(
            low=index / NUM_BINS,
            high=(index + 1) / NUM_BINS,
            rows=int(in_bin.sum()),
            confidence=float(confidence[in_bin].mean()),
            accuracy=float(correct[in_bin].mean()),
        )
        for index in range(NUM_BINS)
        if (in_bin := bins_N == index).any()
    ]
    floor = 1e-12  # an arm may give a label no chance at all
    loss = float(-np.log(np.maximum(probabilities[np.arange(len(gold)), gold], floor)).mean())
    return Reliability(rows, error, max(0.0, error - half - excess), min(1.0, error + half), loss, tuple(bins))


def bin_indices(confidence: Floats) -> Ints:
    """Return the bin of each prediction; 0.8 must not fall into the bin below because 15 * 0.8 is not quite 12."""
    indices: Ints = np.minimum(np.floor(confidence * NUM_BINS + 1e-9).astype(np.int64), NUM_BINS - 1)
    return indices


def calibration_values(bins_N: Ints, gaps_N: Floats) -> tuple[Floats, float]:
    """Return numbers per row whose mean is the calibration error, and how much of that mean chance has added.

    `bins_N` is the bin of each row, `gaps_N` its confidence minus its correctness. The mean gap of a bin that lies x
    standard errors from 0 counts 2 f(x) + 2 x F(-x) standard errors too much (f and F are the normal density and
    distribution): on average, that is what chance adds where the bin is calibrated, and too much rather than too little
    where it is not. `benchmarks/coverage.py` measures how often the resulting intervals hold the truth.
    """
    sums_B, squares_B = (np.bincount(bins_N, weights_N, NUM_BINS) for weights_N in (gaps_N, gaps_N**2))
    deviations_B = np.sqrt(np.maximum(0.0, squares_B - sums_B**2 / len(gaps_N)))
    standard_errors_B = np.abs(sums_B) / np.maximum(1e-12, deviations_B)
    tails_B = np.array([math.erfc(x / math.sqrt(2)) for x in standard_errors_B])  # 2 F(-x)
    excess_B = deviations_B * (
        math.sqrt(2 / math.pi) * np.exp(-(standard_errors_B**2) / 2) + standard_errors_B * tails_B
    )
    values: Floats = np.sign(sums_B)[bins_N] * gaps_N
    return values, float(excess_B.sum()) / len(gaps_N)


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not rows:
        return 0.0, 1.0
    proportion, square = hits / rows, _Z95**2
    centre = (proportion + square / (2 * rows)) / (1 + square / rows)
    half = _Z95 / (1 + square / rows) * math.sqrt(proportion * (1 - proportion) / rows + square / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def number_bins(values: Sequence[float] | Ints, unit: str = "") -> tuple[list[str], list[str]]:
    """Cut rows into quarters of similar size by a number; return the name of each row's quarter and the names in order.

    >>> number_bins([1, 2, 3, 4, 50, 60, 70, 80], "tokens")[1]
    ['1 to 2 tokens', '3 to 4 tokens', '50 to 60 tokens', '70 to 80 tokens']
    >>> number_bins([20240115, 20240116])[1], number_bins([3070, 0.5], "tokens")[1]
    (['20240115', '20240116'], ['0.5 tokens', '3,070 tokens'])
    """
    numbers = np.asarray(values, dtype=float)
    edges = np.unique(np.quantile(numbers, (0.25, 0.5, 0.75), method="lower"))
    indices = np.searchsorted(edges, numbers)
    names = {}
    for index in np.unique(indices):
        in_bin = numbers[indices == index]
        low, high = (_format_number(float(end), counts=bool(unit)) for end in (in_bin.min(), in_bin.max()))
        noun = unit.removesuffix("s") if low == high == "1" else unit
        names[int(index)] = " ".join(word for word in (low if low == high else f"{low} to {high}", noun) if word)
    return [names[int(index)] for index in indices], list(names.values())


def _format_number(number: float, *, counts: bool) -> str:
    """Format a count in groups of three, and a value, which may be a year or a day, without separators.

    >>> [_format_number(number, counts=False) for number in (20240115.0, 20240115.5, 0.1 + 0.2, 1e-9)]
    ['20240115', '20240115.5', '0.3', '1e-09']
    >>> _format_number(3070.0, counts=True)
    '3,070'
    """
    if number.is_integer() and abs(number) < _MAX_EXACT_INTEGER:
        return f"{number:,.0f}" if counts else f"{number:.0f}"
    return f"{number:.6g}" if abs(number) < 1e5 else f"{number:.12g}"


class _Metrics:
    """Methods that the three records have in common."""

    FIGURES: ClassVar[dict[str, str]]
    """The metrics by field name with their display names, the headline first."""

    def figures(self) -> dict[str, float]:
        """Return the metrics by field name."""
        return {name: getattr(self, name) for name in self.FIGURES}

    @property
    def headline(self) -> str:
        """The first metric as text.

        >>> evaluate_single_label(np.eye(2), np.array([0, 1]), ["a", "b"]).headline
        'accuracy 1.0000'
        """
        field, name = next(iter(self.FIGURES.items()))
        return f"{name} {getattr(self, field):.4f}"

    @property
    def selection_metric(self) -> float:
        """The number by which epochs are compared; larger is better."""
        value: float = getattr(self, next(iter(self.FIGURES)))
        return value

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        assert isinstance(self, (Evaluation, MultiLabelEvaluation, RegressionEvaluation))
        return asdict(self)


@dataclass(frozen=True)
class ClassResult:
    """Results of one label of a single-label task."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int
    threshold: ClassVar[float | None] = None


@dataclass(frozen=True)
class Evaluation(_Metrics):
    """Results of a single-label classifier on labelled rows."""

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
    """Results of one label of a multi-label task, with the threshold from which it is assigned."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int
    threshold: float


@dataclass(frozen=True)
class MultiLabelEvaluation(_Metrics):
    """Results of a multi-label classifier on labelled rows."""

    kind: ClassVar[Literal["labels"]] = "labels"
    FIGURES = {"micro_f1": "micro-F1", "macro_f1": "macro-F1", "exact": "exact match"}  # noqa: RUF012
    labels: tuple[str, ...]
    rows: int
    micro_f1: float
    macro_f1: float
    exact: float
    """The fraction of texts that got all of their labels and no other."""
    loss: float
    per_class: tuple[LabelResult, ...]
    truncated: int


@dataclass(frozen=True)
class RegressionEvaluation(_Metrics):
    """Results of a regression model on labelled rows."""

    kind: ClassVar[Literal["rating"]] = "rating"
    FIGURES = {"rmse": "RMSE", "mae": "MAE", "spearman": "Spearman"}  # noqa: RUF012
    rows: int
    rmse: float
    mae: float
    spearman: float
    """The correlation of the ranks; 0 where either side is constant."""
    pearson: float
    baseline_rmse: float
    baseline_mae: float
    """`baseline_rmse` and `baseline_mae` are the errors of always predicting the mean of the training rows."""
    loss: float
    """The training loss: the squared error in units of the training rows' variance."""
    truncated: int

    @property
    def selection_metric(self) -> float:
        """The negative RMSE: larger is better."""
        return -self.rmse


def evaluate_single_label(logits: Floats, gold: Ints, labels: Sequence[str], truncated: int = 0) -> Evaluation:
    """Compute accuracy, macro-F1, loss, results per class and the confusion matrix."""
    predictions = logits.argmax(axis=1)
    confusion = confusion_matrix(gold, predictions, len(labels))
    hits = np.diag(confusion).astype(float)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)
    f1 = _f1_per_label(confusion)
    return Evaluation(
        labels=tuple(labels),
        rows=len(gold),
        accuracy=float((predictions == gold).mean()),
        macro_f1=macro_f1(confusion),
        loss=log_loss(logits, gold),
        per_class=tuple(
            ClassResult(label, float(precision[i]), float(recall[i]), float(f1[i]), int(confusion[i].sum()))
            for i, label in enumerate(labels)
        ),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
        truncated=truncated,
    )


def evaluate_multi_label(
    logits: Floats,
    predictions: NDArray[np.bool_],
    gold: NDArray[Any],
    labels: Sequence[str],
    thresholds: Floats,
    truncated: int = 0,
) -> MultiLabelEvaluation:
    """Compute micro- and macro-F1, exact matches, and the results of each label.

    A label that neither occurs nor is predicted does not count in macro-F1; without any, nothing could be wrong and both
    are 1.
    """
    true = gold > 0
    hits = (predictions & true).sum(axis=0).astype(float)
    num_predicted, num_gold = predictions.sum(axis=0).astype(float), true.sum(axis=0).astype(float)
    total = num_predicted + num_gold
    f1 = 2 * hits / np.maximum(total, 1)
    # binary cross-entropy log(1 + exp(logit)) - gold * logit, without overflow
    losses = np.logaddexp(0.0, logits) - np.where(true, logits, 0.0)
    return MultiLabelEvaluation(
        labels=tuple(labels),
        rows=len(gold),
        micro_f1=float(2 * hits.sum() / total.sum()) if total.sum() else 1.0,
        macro_f1=float(f1[total > 0].mean()) if (total > 0).any() else 1.0,
        exact=float((predictions == true).all(axis=1).mean()),
        loss=float(losses.mean()),
        per_class=tuple(
            LabelResult(
                label,
                float(hits[i] / max(num_predicted[i], 1)),
                float(hits[i] / max(num_gold[i], 1)),
                float(f1[i]),
                int(num_gold[i]),
                float(thresholds[i]),
            )
            for i, label in enumerate(labels)
        ),
        truncated=truncated,
    )


def evaluate_regression(
    values: Floats, gold: Floats, mean: float, spread: float, truncated: int = 0
) -> RegressionEvaluation:
    """Compute RMSE, MAE and correlations of `values`, and the errors of always predicting the training mean."""
    errors, baseline_errors = values - gold, mean - gold
    return RegressionEvaluation(
        rows=len(gold),
        rmse=math.sqrt(float(np.square(errors).mean())),
        mae=float(np.abs(errors).mean()),
        spearman=_correlation(_ranks(values), _ranks(gold)),
        pearson=_correlation(values, gold),
        baseline_rmse=math.sqrt(float(np.square(baseline_errors).mean())),
        baseline_mae=float(np.abs(baseline_errors).mean()),
        loss=float(np.square(errors / spread).mean()),
        truncated=truncated,
    )


def _correlation(a: Floats, b: Floats) -> float:
    """Return Pearson's correlation, or 0 where one side is constant.

    >>> round(_correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6), _correlation(np.ones(2), np.arange(2.0))
    (1.0, 0.0)
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())), -1, 1))


def _ranks(values: Floats) -> Floats:
    """Return the ranks from 1 on in order of size; equal values get the mean of their ranks."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((2 * ends - counts + 1) / 2)[indices]
    return ranks
