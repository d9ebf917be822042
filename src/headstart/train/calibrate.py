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

from headstart.train.shares import log_loss, probabilities

if TYPE_CHECKING:
    from headstart.model.heads import ClassifierHead

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST = 50
"""Validation rows below which nothing is fitted: a temperature from a handful of rows is noise."""
FEWEST_ANSWERED = 20
"""Answers below which a threshold's precision is not believed."""
BINS = 15
FOLDS = 5
_RANGE = (0.05, 20.0)
_RESAMPLES = 1000
_Z = 1.959964  # 95 %, two-sided


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
    """The 95 % interval of `ece`, by resampling rows. On few rows the error of even a perfect classifier is not 0."""
    log_loss: float
    bins: tuple[Bin, ...]


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


def calibrate(scores: Floats, gold: Ints) -> Calibration:
    """Fit a temperature on validation scores (N, C), and measure it."""
    temperature, reason = fit_temperature(scores, gold)
    return Calibration(
        temperature=temperature,
        reason=reason,
        rows=len(gold),
        before=reliability(probabilities(scores), gold),
        after=reliability(probabilities(_cross_fitted(scores, gold) if reason is None else scores), gold),
        test=None,
        thresholds=thresholds(probabilities(scores / temperature), gold),
    )


def fit_temperature(scores: Floats, gold: Ints) -> tuple[float, str | None]:
    """The temperature of least log-loss, or 1 and the reason why none can be fitted."""
    answers = scores.argmax(axis=1)
    if len(gold) < FEWEST:
        return 1.0, f"{len(gold)} validation rows are too few to fit on (at least {FEWEST})"
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


def reliability(shares: Floats, gold: Ints) -> Reliability:
    """Calibration error with its interval, log-loss, and the bins behind them."""
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    places = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    error = float(_ece(places[None], (sure - right)[None])[0])
    low, high = np.quantile(_resampled(places, sure - right), (0.025, 0.975))
    bins = [
        Bin(place / BINS, (place + 1) / BINS, int(own.sum()), float(sure[own].mean()), float(right[own].mean()))
        for place in range(BINS)
        if (own := places == place).any()
    ]
    floor = 1e-12  # an arm may give a label no chance at all
    loss = float(-np.log(np.maximum(shares[np.arange(len(gold)), gold], floor)).mean())
    # resampled rows repeat each other, which adds to the error: the interval must not leave out what was measured
    return Reliability(len(gold), error, min(error, float(low)), max(error, float(high)), loss, tuple(bins))


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


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not rows:
        return 0.0, 1.0
    share, square = hits / rows, _Z**2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = _Z / (1 + square / rows) * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _ece(places_RN: Ints, gaps_RN: Floats) -> Floats:
    """The calibration error of each of R samples, from the bin of each row and how much too sure its answer is."""
    samples, rows = places_RN.shape
    cells = places_RN + BINS * np.arange(samples)[:, None]
    sums = np.bincount(cells.ravel(), gaps_RN.ravel(), samples * BINS).reshape(samples, BINS)
    errors: Floats = np.abs(sums).sum(axis=1) / rows
    return errors


def _resampled(places: Ints, gaps: Floats) -> Floats:
    chance, rows = np.random.default_rng(0), len(places)
    samples = max(100, min(_RESAMPLES, 20_000_000 // rows))
    bite = max(1, 1_000_000 // rows)  # samples in memory at a time
    draws = (chance.integers(0, rows, (min(bite, samples - done), rows)) for done in range(0, samples, bite))
    return np.concatenate([_ece(places[drawn], gaps[drawn]) for drawn in draws])


def _cross_fitted(scores: Floats, gold: Ints) -> Floats:
    """Scores of each row by the temperature of the others: what was fitted on a row says nothing of it."""
    fold_of = np.random.default_rng(0).permutation(len(gold)) % FOLDS
    out = np.empty_like(scores)
    for fold in range(FOLDS):
        own = fold_of == fold
        temperature, _ = fit_temperature(scores[~own], gold[~own])
        out[own] = scores[own] / temperature
    return out
