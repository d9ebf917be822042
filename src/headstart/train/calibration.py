"""Calibration on validation data: temperature and thresholds.

Probabilities that mean what they say: one temperature, fitted on validation, and how well the result keeps its word.

Scores divided by a temperature T keep their order, so no answer changes; T above 1 makes a classifier less sure of
itself. T is put into the weights of the head's last layer: whoever loads the model has it, whatever they load it with.

N texts, C labels. "Sure" is the probability of the answer; the calibration error (ECE) is the mean distance between how
sure the answers of a bin are and how many of them are right.

What validation settles once a model is trained, by the kind of its answers.

classes: one temperature for all scores.
labels:  one temperature for all scores, by the log-loss of every yes or no; then for each label the threshold with the
         best F1 on validation. A label with few rows there keeps one half.
rating:  nothing; a number has no probability to keep. Its errors are measured.

N texts, C labels.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Reliability, log_loss, reliability, softmax, wilson
from headstart.tasks import MultiLabel, SingleLabel, Task

if TYPE_CHECKING:
    from headstart.model.heads import ClassifierHead


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MORE_ROWS = "a larger validation file or labelled.valid_fraction gives more"
MIN_ROWS = 50
"""Validation rows below which nothing is fitted: a temperature from a handful of rows is noise."""
MIN_ANSWERED = 20
"""Answers below which a threshold's precision is not believed."""
FOLDS = 5
_TEMPERATURE_RANGE = (0.05, 20.0)


@dataclass(frozen=True)
class Threshold:
    """How sure an answer must be for the wanted precision, and what that was on the rows it was found on."""

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
    """What was fitted on validation, and what it did."""

    temperature: float
    reason: str | None
    """Why the temperature stayed 1; None where it was fitted."""
    rows: int
    before: Reliability
    after: Reliability
    """On validation, each row by a temperature fitted without it."""
    test: Reliability | None
    thresholds: tuple[Threshold, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def calibrate(scores: Floats, gold: Ints, each: int = 1) -> Calibration:
    """Fit a temperature on validation scores (N, C), and measure it.

    Args:
        each: so many scores after one another belong to one text, as where a text has several labels.
    """
    temperature, reason = fit_temperature(scores, gold, each)
    fitted = _cross_fitted(scores, gold, each) if reason is None else scores
    return Calibration(
        temperature=temperature,
        reason=reason,
        rows=len(gold) // each,
        before=reliability(softmax(scores), gold),
        after=reliability(softmax(fitted), gold),
        test=None,
        thresholds=thresholds(softmax(scores / temperature), gold) if each == 1 else (),
    )


def fit_temperature(scores: Floats, gold: Ints, each: int = 1) -> tuple[float, str | None]:
    """The temperature of least log-loss, or 1 and the reason why none can be fitted."""
    answers = scores.argmax(axis=1)
    if len(gold) < MIN_ROWS * each:
        return 1.0, f"{len(gold) // each} validation rows are too few to fit on (at least {MIN_ROWS}; {_MORE_ROWS})"
    if len(np.unique(gold)) == 1:
        return 1.0, "the validation rows have one label only"
    if (answers == gold).all():
        return 1.0, "every validation row is answered rightly: there is no mistake to learn doubt from"
    if np.ptp(scores - scores[:, :1], axis=0).max() < 1e-9:
        return 1.0, "every validation row has the same scores"
    from scipy.optimize import minimize_scalar

    # over the logarithm, where halving and doubling are equally far; log-loss has one lowest point there
    cu_seqlens = tuple(map(math.log, _TEMPERATURE_RANGE))
    found = minimize_scalar(lambda log: log_loss(scores / math.exp(log), gold), bounds=cu_seqlens, method="bounded")
    return math.exp(float(found.x)), None


def fold_temperature(head: "ClassifierHead", temperature: float) -> None:
    """Divide the weights and the bias of a head's last layer, so that its scores come out divided."""
    import torch

    with torch.no_grad():
        for parameter in head.linear.parameters():
            parameter.div_(temperature)


def fold_affine(head: "ClassifierHead", factor: float, summand: float) -> None:
    """Multiply the last layer and add to its bias, so that its scores come out so; 1 and 0 change nothing."""
    import torch

    if (factor, summand) == (1.0, 0.0):
        return
    with torch.no_grad():
        head.linear.weight.mul_(factor)
        head.linear.bias.mul_(factor).add_(summand)


def thresholds(shares: Floats, gold: Ints) -> tuple[Threshold, ...]:
    """For every whole per cent of precision that can be reached: the lowest threshold that reaches it."""
    if len(gold) < MIN_ROWS:
        return ()
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    order = np.argsort(-sure, kind="stable")
    hits, answered = np.cumsum(right[order]), np.arange(1, len(gold) + 1)
    # answers that are equally sure stand or fall together
    ends = np.append(np.flatnonzero(np.diff(sure[order]) != 0), len(gold) - 1)
    ends = ends[answered[ends] >= MIN_ANSWERED]
    found = []
    for percent in range(50, 100):
        enough = ends[100 * hits[ends] >= percent * answered[ends]]
        if not len(enough):
            break
        end = int(enough[-1])
        low, high = wilson(int(hits[end]), int(answered[end]))
        # halfway down to the next, so that the last digits of a machine's arithmetic withhold nothing
        least = 0.0 if end == len(gold) - 1 else float(sure[order][end : end + 2].mean())
        found.append(
            Threshold(
                wanted=percent / 100,
                threshold=least,
                precision=float(hits[end] / answered[end]),
                low=low,
                high=high,
                coverage=float(answered[end] / len(gold)),
                answered=int(answered[end]),
            )
        )
    return tuple(found)


def _cross_fitted(scores: Floats, gold: Ints, each: int = 1) -> Floats:
    """Scores of each row by the temperature of the others: what was fitted on a row says nothing of it."""
    fold_of = np.repeat(np.random.default_rng(0).permutation(len(gold) // each) % FOLDS, each)
    out = np.empty_like(scores)
    for fold in range(FOLDS):
        own = fold_of == fold
        temperature, _ = fit_temperature(scores[~own], gold[~own], each)
        out[own] = scores[own] / temperature
    return out


MIN_LABEL_ROWS = 5
"""Validation rows with a label, and without it, below which its threshold stays one half."""


@dataclass(frozen=True)
class LabelThreshold:
    """The threshold of one label, and what it did on the validation rows that chose it."""

    label: str
    threshold: float
    f1: float
    at_half: float
    """F1 with one half in its place."""
    rows: int
    """Validation rows that have the label."""
    reason: str | None
    """Why it stayed one half."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CalibrationResult:
    """What a model answers from now on, and how that came about."""

    task: Task
    calibration: Calibration | None
    thresholds: tuple[LabelThreshold, ...] = ()

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        return self.calibration.temperature if self.calibration else 1.0


def calibrate_task(task: Task, scores: Floats, gold: NDArray[Any]) -> CalibrationResult:
    """Fit on validation what there is to fit."""
    if isinstance(task, SingleLabel):
        return CalibrationResult(task, calibrate(scores, gold))
    if not isinstance(task, MultiLabel):
        return CalibrationResult(task, None)
    calibration = calibrate(*decisions(scores, gold), each=len(task.labels))
    shares = task.probabilities(scores / calibration.temperature)
    chosen = tuple(_choose_threshold(label, shares[:, i], gold[:, i] > 0) for i, label in enumerate(task.labels))
    return CalibrationResult(replace(task, thresholds=tuple(one.threshold for one in chosen)), calibration, chosen)


def reliability_of(task: Task, scores: Floats, gold: NDArray[Any]) -> Reliability | None:
    """How well the probabilities keep their word; a number has none."""
    if isinstance(task, SingleLabel):
        return reliability(softmax(scores), gold)
    if isinstance(task, MultiLabel):
        flat, right = decisions(scores, gold)
        return reliability(softmax(flat), right)
    return None


def decisions(scores: Floats, gold: NDArray[Any]) -> tuple[Floats, NDArray[np.int64]]:
    """Every yes or no of several labels as a text of two classes: a sigmoid is a softmax beside a score of 0."""
    flat = scores.ravel()
    return np.stack((np.zeros_like(flat), flat), axis=1), gold.ravel().astype(np.int64)


def _choose_threshold(label: str, shares: Floats, has: NDArray[np.bool_]) -> LabelThreshold:
    """The threshold of best F1, halfway between two probabilities; of equally good ones that nearest to one half."""
    rows, half = int(has.sum()), _f1(shares >= 0.5, has)
    reason = None
    if len(has) < MIN_ROWS:
        reason = f"{len(has)} validation rows are too few to choose on (at least {MIN_ROWS})"
    elif min(rows, len(has) - rows) < MIN_LABEL_ROWS:
        side = f"{rows} validation rows have it" if rows < MIN_LABEL_ROWS else f"{len(has) - rows} have it not"
        reason = f"{side}, at least {MIN_LABEL_ROWS} are needed"
    if reason is not None:
        return LabelThreshold(label, 0.5, half, half, rows, reason)
    order = np.argsort(-shares, kind="stable")
    hits, given = np.cumsum(has[order]), np.arange(1, len(has) + 1)
    f1 = 2 * hits / (given + rows)
    ends = np.flatnonzero(np.diff(shares[order]) != 0)  # equal probabilities stand or fall together
    ends = np.append(ends, len(has) - 1)
    between = np.array([shares[order][end : end + 2].mean() if end < len(has) - 1 else 0.0 for end in ends])
    # one half itself is a choice too: where nothing is better, nothing is changed
    places, found = np.append(between, 0.5), np.append(f1[ends], half)
    best = np.flatnonzero(found >= found.max() - 1e-12)
    place = best[np.argmin(np.abs(places[best] - 0.5))]
    return LabelThreshold(label, float(places[place]), float(found[place]), half, rows, None)


def _f1(given: NDArray[np.bool_], has: NDArray[np.bool_]) -> float:
    both = int(given.sum() + has.sum())
    return 2 * int((given & has).sum()) / both if both else 1.0
