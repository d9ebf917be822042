"""Calibration on validation data, by the type of task.

SingleLabel: one temperature for all logits, and for each precision the lowest confidence that reaches it.
MultiLabel:  one temperature for all logits, by the log-loss of every yes-or-no decision; then for each label the
             threshold with the best F1. A label with few validation rows keeps 0.5.
Regression:  nothing; a number has no probability.

Dividing logits by a temperature T keeps their order, so no prediction changes; T above 1 makes a classifier less
confident. T is folded into the weights of the head's last layer, so every loader of the model has it.

N texts, C labels. The confidence of a prediction is its probability; the expected calibration error (ECE) is the mean
distance between confidence and accuracy over bins.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import (
    TEMPERATURE_RANGE,
    Reliability,
    best_temperature,
    log_loss,
    reliability,
    softmax,
    wilson,
)
from headstart.tasks import MultiLabel, SingleLabel, Task

if TYPE_CHECKING:
    from headstart.model.heads import ClassifierHead


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_ROWS = 50
"""Minimum number of validation rows for fitting; a temperature from a few rows is noise."""
MIN_ANSWERED = 20
"""Minimum number of predictions above a threshold for an estimate of its precision."""
MIN_LABEL_ROWS = 5
"""Minimum number of validation rows with a label, and without it; otherwise its threshold stays 0.5."""
FOLDS = 5
_ROWS_HINT = "a larger validation file or labelled.valid_fraction gives more"


@dataclass(frozen=True)
class Threshold:
    """The confidence that reaches a wanted precision, and its precision and coverage on the validation rows."""

    wanted: float
    threshold: float
    precision: float
    low: float
    high: float
    """The 95 % interval of `precision` (Wilson's)."""
    coverage: float
    answered: int


@dataclass(frozen=True)
class Calibration:
    """A temperature fitted on validation, and the reliability before and after."""

    temperature: float
    reason: str | None
    """The reason why the temperature stayed 1; None if it was fitted."""
    rows: int
    before: Reliability
    after: Reliability
    """The reliability on validation, each row with a temperature fitted without it."""
    test: Reliability | None
    thresholds: tuple[Threshold, ...]
    bound: str | None = None
    """The meaning of a temperature that is the highest or the lowest value tried; None for other values."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class LabelThreshold:
    """The threshold of one label, and its F1 on the validation rows that chose it."""

    label: str
    threshold: float
    f1: float
    at_half: float
    """F1 with the threshold 0.5."""
    rows: int
    """Validation rows that have the label."""
    reason: str | None
    """The reason why the threshold stayed 0.5; None if it was chosen."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CalibrationResult:
    """The calibrated task and the record of its calibration."""

    task: Task
    calibration: Calibration | None
    thresholds: tuple[LabelThreshold, ...] = ()

    @property
    def temperature(self) -> float:
        """The divisor of the logits."""
        return self.calibration.temperature if self.calibration else 1.0


def calibrate_task(task: Task, logits: Floats, gold: NDArray[Any]) -> CalibrationResult:
    """Fit the temperature and the thresholds of a task."""
    if isinstance(task, SingleLabel):
        return CalibrationResult(task, calibrate(logits, gold))
    if not isinstance(task, MultiLabel):
        return CalibrationResult(task, None)
    calibration = calibrate(*decisions(logits, gold), decisions_per_text=len(task.labels))
    probabilities = task.probabilities(logits / calibration.temperature)
    thresholds = tuple(
        _choose_threshold(label, probabilities[:, i], gold[:, i] > 0) for i, label in enumerate(task.labels)
    )
    calibrated = replace(task, thresholds=tuple(choice.threshold for choice in thresholds))
    return CalibrationResult(calibrated, calibration, thresholds)


def reliability_of(task: Task, logits: Floats, gold: NDArray[Any]) -> Reliability | None:
    """Return the reliability of the probabilities; None for a regression, which has none."""
    if isinstance(task, SingleLabel):
        return reliability(softmax(logits), gold)
    if isinstance(task, MultiLabel):
        binary_logits, binary_gold = decisions(logits, gold)
        return reliability(softmax(binary_logits), binary_gold)
    return None


def decisions(logits: Floats, gold: NDArray[Any]) -> tuple[Floats, NDArray[np.int64]]:
    """Turn every yes-or-no decision into a row of two classes: a sigmoid is a softmax beside a logit of 0."""
    flat = logits.ravel()
    return np.stack((np.zeros_like(flat), flat), axis=1), gold.ravel().astype(np.int64)


def calibrate(logits: Floats, gold: Ints, decisions_per_text: int = 1) -> Calibration:
    """Fit a temperature on validation logits (N, C), and measure it.

    Args:
        decisions_per_text: the number of consecutive rows that belong to one text, as where a text has several labels.
    """
    temperature, reason = fit_temperature(logits, gold, decisions_per_text)
    calibrated = _cross_fitted(logits, gold, decisions_per_text) if reason is None else logits
    before, after = log_loss(logits, gold), log_loss(calibrated, gold)
    if reason is None and after >= before:
        temperature, calibrated = 1.0, logits
        reason = f"a temperature does not reduce the log-loss on validation ({before:.4f}, {after:.4f} with one)"
    single = decisions_per_text == 1
    return Calibration(
        temperature=temperature,
        reason=reason,
        rows=len(gold) // decisions_per_text,
        before=reliability(softmax(logits), gold),
        after=reliability(softmax(calibrated), gold),
        test=None,
        thresholds=precision_thresholds(softmax(logits / temperature), gold) if single else (),
        bound=_describe_bound(temperature),
    )


def _describe_bound(temperature: float) -> str | None:
    lowest, highest = TEMPERATURE_RANGE
    if math.isclose(temperature, highest, rel_tol=1e-3):
        return (
            "the highest value that is tried: the scores of the model hardly depend on whether a prediction is correct"
        )
    if math.isclose(temperature, lowest, rel_tol=1e-3):
        return "the lowest value that is tried: the scores of the model hardly differ between the labels"
    return None


def fit_temperature(logits: Floats, gold: Ints, decisions_per_text: int = 1) -> tuple[float, str | None]:
    """Return the temperature of lowest log-loss, or 1 and the reason why none can be fitted."""
    num_texts = len(gold) // decisions_per_text
    if len(gold) < MIN_ROWS * decisions_per_text:
        return 1.0, f"{num_texts} validation rows are too few to fit a temperature (at least {MIN_ROWS}; {_ROWS_HINT})"
    if len(np.unique(gold)) == 1:
        return 1.0, "the validation rows have one label only"
    if (logits.argmax(axis=1) == gold).all():
        return 1.0, "every validation row is classified correctly: there are no errors to fit a temperature on"
    if np.ptp(logits - logits[:, :1], axis=0).max() < 1e-9:
        return 1.0, "every validation row has the same scores"
    return best_temperature(logits, gold), None


def _cross_fitted(logits: Floats, gold: Ints, decisions_per_text: int) -> Floats:
    """Divide each row by a temperature fitted on the other folds: a row's own fit would be optimistic."""
    num_texts = len(gold) // decisions_per_text
    fold_of = np.repeat(np.random.default_rng(0).permutation(num_texts) % FOLDS, decisions_per_text)
    calibrated = np.empty_like(logits)
    for fold in range(FOLDS):
        in_fold = fold_of == fold
        temperature, _ = fit_temperature(logits[~in_fold], gold[~in_fold], decisions_per_text)
        calibrated[in_fold] = logits[in_fold] / temperature
    return calibrated


def precision_thresholds(probabilities: Floats, gold: Ints) -> tuple[Threshold, ...]:
    """Return the lowest threshold for every full per cent of precision that can be reached, from 50 upwards."""
    num_rows = len(gold)
    if num_rows < MIN_ROWS:
        return ()
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    confidence = probabilities.max(axis=1)[order]
    correct = (probabilities.argmax(axis=1) == gold)[order]
    hits, answered = np.cumsum(correct), np.arange(1, num_rows + 1)
    # equally confident predictions are accepted together
    ends = np.append(np.flatnonzero(np.diff(confidence) != 0), num_rows - 1)
    ends = ends[answered[ends] >= MIN_ANSWERED]
    thresholds = []
    for percent in range(50, 100):
        reaching = ends[100 * hits[ends] >= percent * answered[ends]]
        if not len(reaching):
            break
        end = int(reaching[-1])
        low, high = wilson(int(hits[end]), int(answered[end]))
        # halfway to the next confidence, so that rounding on another machine rejects nothing
        threshold = 0.0 if end == num_rows - 1 else float(confidence[end : end + 2].mean())
        thresholds.append(
            Threshold(
                wanted=percent / 100,
                threshold=threshold,
                precision=float(hits[end] / answered[end]),
                low=low,
                high=high,
                coverage=float(answered[end] / num_rows),
                answered=int(answered[end]),
            )
        )
    return tuple(thresholds)


def _choose_threshold(label: str, probabilities: Floats, has_label: NDArray[np.bool_]) -> LabelThreshold:
    """Choose the threshold of best F1, halfway between two probabilities; of equally good ones the nearest to 0.5."""
    num_rows, positives = len(has_label), int(has_label.sum())
    f1_at_half = _f1(probabilities >= 0.5, has_label)
    reason = _why_not_chosen(num_rows, positives)
    if reason is not None:
        return LabelThreshold(label, 0.5, f1_at_half, f1_at_half, positives, reason)
    order = np.argsort(-probabilities, kind="stable")
    hits, predicted = np.cumsum(has_label[order]), np.arange(1, num_rows + 1)
    f1 = 2 * hits / (predicted + positives)
    ends = np.flatnonzero(np.diff(probabilities[order]) != 0)  # equal probabilities are accepted together
    ends = np.append(ends, num_rows - 1)
    between = np.array([probabilities[order][end : end + 2].mean() if end < num_rows - 1 else 0.0 for end in ends])
    # 0.5 is a candidate too: where nothing is better, nothing is changed
    candidates, candidate_f1 = np.append(between, 0.5), np.append(f1[ends], f1_at_half)
    best = np.flatnonzero(candidate_f1 >= candidate_f1.max() - 1e-12)
    index = best[np.argmin(np.abs(candidates[best] - 0.5))]
    return LabelThreshold(label, float(candidates[index]), float(candidate_f1[index]), f1_at_half, positives, None)


def _why_not_chosen(num_rows: int, positives: int) -> str | None:
    if num_rows < MIN_ROWS:
        return f"{num_rows} validation rows are too few to choose a threshold (at least {MIN_ROWS})"
    if min(positives, num_rows - positives) >= MIN_LABEL_ROWS:
        return None
    few_have_it = positives < MIN_LABEL_ROWS
    rows = f"{positives} validation rows have it" if few_have_it else f"{num_rows - positives} do not have it"
    return f"{rows}, at least {MIN_LABEL_ROWS} are needed"


def _f1(predicted: NDArray[np.bool_], has_label: NDArray[np.bool_]) -> float:
    both = int(predicted.sum() + has_label.sum())
    return 2 * int((predicted & has_label).sum()) / both if both else 1.0


def fold_temperature(head: "ClassifierHead", temperature: float) -> None:
    """Divide the weights and the bias of the head's last layer, which divides its logits."""
    import torch

    with torch.no_grad():
        for parameter in head.linear.parameters():
            parameter.div_(temperature)


def fold_affine(head: "ClassifierHead", factor: float, offset: float) -> None:
    """Fold `factor * output + offset` into the head's last layer; 1 and 0 change nothing."""
    import torch

    if (factor, offset) == (1.0, 0.0):
        return
    with torch.no_grad():
        head.linear.weight.mul_(factor)
        head.linear.bias.mul_(factor).add_(offset)
