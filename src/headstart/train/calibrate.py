"""Probabilities that mean what they say: one temperature, fitted on validation, and how well the result keeps its word.

Scores divided by a temperature T keep their order, so no answer changes; T above 1 makes a classifier less sure of
itself. T is put into the weights of the head's last layer: whoever loads the model has it, whatever they load it with.

N texts, C labels. "Sure" is the probability of the answer; the calibration error (ECE) is the mean distance between how
sure the answers of a bin are and how many of them are right.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.measures import Reliability, reliability, wilson
from headstart.train.shares import log_loss, probabilities

if TYPE_CHECKING:
    from headstart.model.heads import ClassifierHead

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MORE = "a larger validation file or labelled.valid_share gives more"
FEWEST = 50
"""Validation rows below which nothing is fitted: a temperature from a handful of rows is noise."""
FEWEST_ANSWERED = 20
"""Answers below which a threshold's precision is not believed."""
FOLDS = 5
_RANGE = (0.05, 20.0)


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
        before=reliability(probabilities(scores), gold),
        after=reliability(probabilities(fitted), gold),
        test=None,
        thresholds=thresholds(probabilities(scores / temperature), gold) if each == 1 else (),
    )


def fit_temperature(scores: Floats, gold: Ints, each: int = 1) -> tuple[float, str | None]:
    """The temperature of least log-loss, or 1 and the reason why none can be fitted."""
    answers = scores.argmax(axis=1)
    if len(gold) < FEWEST * each:
        return 1.0, f"{len(gold) // each} validation rows are too few to fit on (at least {FEWEST}; {_MORE})"
    if len(np.unique(gold)) == 1:
        return 1.0, "the validation rows have one label only"
    if (answers == gold).all():
        return 1.0, "every validation row is answered rightly: there is no mistake to learn doubt from"
    if np.ptp(scores - scores[:, :1], axis=0).max() < 1e-9:
        return 1.0, "every validation row has the same scores"
    from scipy.optimize import minimize_scalar

    # over the logarithm, where halving and doubling are equally far; log-loss has one lowest point there
    bounds = tuple(map(math.log, _RANGE))
    found = minimize_scalar(lambda log: log_loss(scores / math.exp(log), gold), bounds=bounds, method="bounded")
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
    if len(gold) < FEWEST:
        return ()
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    order = np.argsort(-sure, kind="stable")
    hits, answered = np.cumsum(right[order]), np.arange(1, len(gold) + 1)
    # answers that are equally sure stand or fall together
    ends = np.append(np.flatnonzero(np.diff(sure[order]) != 0), len(gold) - 1)
    ends = ends[answered[ends] >= FEWEST_ANSWERED]
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
