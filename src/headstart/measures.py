"""Arithmetic on answers that several rooms need: calibration error, the interval of a share, rows cut by a number. No torch.

N texts, C labels. "Sure" is the probability of the answer; the calibration error (ECE) is the mean distance between how
sure the answers of a bin are and how many of them are right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15
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


def probabilities(scores: Floats) -> Floats:
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


def by_number(values: Sequence[float] | NDArray[np.int64], unit: str = "") -> tuple[list[str], list[str]]:
    """Rows cut into quarters of like size by a number: the name of each row's quarter, and the names in order.

    >>> by_number([1, 2, 3, 4, 50, 60, 70, 80], "tokens")[1]
    ['1 to 2 tokens', '3 to 4 tokens', '50 to 60 tokens', '70 to 80 tokens']
    """
    numbers = np.asarray(values, dtype=float)
    edges = np.unique(np.quantile(numbers, (0.25, 0.5, 0.75), method="lower"))
    places = np.searchsorted(edges, numbers)
    names = {}
    for place in np.unique(places):
        own = numbers[places == place]
        low, high = f"{own.min():g}", f"{own.max():g}"
        names[int(place)] = " ".join(part for part in (low if low == high else f"{low} to {high}", unit) if part)
    return [names[int(place)] for place in places], list(names.values())


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
