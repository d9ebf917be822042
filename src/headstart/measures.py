"""Arithmetic on answers that several rooms need: calibration error, the interval of a share, rows cut by a number. No torch.

N texts, C labels. "Sure" is the probability of the answer; the calibration error (ECE) is the mean distance between how
sure the answers of a bin are and how many of them are right. A distance is never below zero, so chance adds to it and
takes nothing away: its interval reaches further down than up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15
_Z = 1.959964  # 95 %, two-sided
_EXACT = 2**53  # whole numbers up to here are what they seem


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
    places = places_of(sure)
    values, excess = calibration_values(places, sure - right)
    error, rows = float(values.mean()), len(gold)
    # as if two more rows had been seen, one going either way: rows that are all right say little of mistakes
    half = _Z * math.sqrt(values.var(ddof=1) / rows + 2 / rows**2) if rows > 1 else 1.0
    bins = [
        Bin(place / BINS, (place + 1) / BINS, int(own.sum()), float(sure[own].mean()), float(right[own].mean()))
        for place in range(BINS)
        if (own := places == place).any()
    ]
    floor = 1e-12  # an arm may give a label no chance at all
    loss = float(-np.log(np.maximum(shares[np.arange(len(gold)), gold], floor)).mean())
    return Reliability(rows, error, max(0.0, error - half - excess), min(1.0, error + half), loss, tuple(bins))


def places_of(sure: Floats) -> NDArray[np.int64]:
    """The bin of each answer. A share of 0.8 must not fall into the bin below because 15 * 0.8 is not quite 12."""
    places: NDArray[np.int64] = np.minimum(np.floor(sure * BINS + 1e-9).astype(np.int64), BINS - 1)
    return places


def calibration_values(places_N: Ints, gaps_N: Floats) -> tuple[Floats, float]:
    """What each row adds to the calibration error: numbers whose mean it is, and how much of that chance has added.

    `places_N` is the bin of each row, `gaps_N` how much too sure its answer is. The mean gap of a bin that lies x
    standard errors from 0 counts 2 f(x) + 2 x F(-x) standard errors too much (f and F are the normal density and
    distribution): on average, that is what chance adds where the bin is right, and too much rather than too little where
    it is wrong. See `benchmarks/coverage.py` for how often the intervals made of it hold the truth.
    """
    sums_B, squares_B = (np.bincount(places_N, each_N, BINS) for each_N in (gaps_N, gaps_N**2))
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
    share, square = hits / rows, _Z**2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = _Z / (1 + square / rows) * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _plain(number: float, *, counts: bool) -> str:
    """A number as people write it: a count in groups of three, and a value, which may be a year or a day, in one piece.

    >>> [_plain(number, counts=False) for number in (20240115.0, 20240115.5, 0.1 + 0.2, 1e-9)]
    ['20240115', '20240115.5', '0.3', '1e-09']
    >>> _plain(3070.0, counts=True)
    '3,070'
    """
    if number.is_integer() and abs(number) < _EXACT:
        return f"{number:,.0f}" if counts else f"{number:.0f}"
    return f"{number:.6g}" if abs(number) < 1e5 else f"{number:.12g}"


def by_number(values: Sequence[float] | NDArray[np.int64], unit: str = "") -> tuple[list[str], list[str]]:
    """Rows cut into quarters of like size by a number: the name of each row's quarter, and the names in order.

    >>> by_number([1, 2, 3, 4, 50, 60, 70, 80], "tokens")[1]
    ['1 to 2 tokens', '3 to 4 tokens', '50 to 60 tokens', '70 to 80 tokens']
    >>> by_number([20240115, 20240116])[1], by_number([3070, 0.5], "tokens")[1]
    (['20240115', '20240116'], ['0.5 tokens', '3,070 tokens'])
    """
    numbers = np.asarray(values, dtype=float)
    edges = np.unique(np.quantile(numbers, (0.25, 0.5, 0.75), method="lower"))
    places = np.searchsorted(edges, numbers)
    names = {}
    for place in np.unique(places):
        own = numbers[places == place]
        low, high = (_plain(float(end), counts=bool(unit)) for end in (own.min(), own.max()))
        what = unit.removesuffix("s") if low == high == "1" else unit
        names[int(place)] = " ".join(part for part in (low if low == high else f"{low} to {high}", what) if part)
    return [names[int(place)] for place in places], list(names.values())
