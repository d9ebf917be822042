"""The one interval that everything in a report is told with, over few seeds and many test texts.

S seeds, N test texts. Two things are a matter of chance: the seed (which rows, their order, the new head, dropout) and
which texts happen to be in test. With v[s, i] the answer of seed s on text i (1 right, 0 wrong; for two arms the
difference),

    seeds  = variance of the S row means / S            the luck of training, and of each training on each text
    texts  = variance of the N column means / N - rest / (S N)        the luck of the texts alone
    rest   = variance of v less its row and column means              stands in both, so it is taken out of one
    floor  = 2 / N²                                     as if two more texts had been seen, one going either way

and the interval is the mean ± sqrt(t(S-1)² seeds + t(N-1)² (texts + floor)). Each part keeps its own t, because with
three seeds the first is known badly and the second well. `benchmarks/coverage.py` says how often it holds the truth,
and how often others would have: one t with Satterthwaite's degrees of freedom falls short at three seeds, an interval
over seeds alone or over texts alone far short.

The floor is for arms that answer alike: that two arms agreed on N texts does not show that they agree on all, and no
interval is of width zero. With one seed only the texts' part can be seen, and nothing is claimed of arms that train.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and the interval around it."""

    mean: float
    low: float
    high: float
    seeds: int
    texts: int
    one_run: bool = False
    """Whether an arm that trains had but one run, so that the luck of training is not in the interval."""

    @property
    def measurable(self) -> bool:
        """Whether the interval leaves zero out, and holds all that is a matter of chance."""
        return not self.one_run and (self.low > 0 or self.high < 0)


def estimate(values_SN: Floats, *, bounds: tuple[float, float] = (-1.0, 1.0), one_run: bool = False) -> Estimate:
    """The mean over seeds and texts with its interval (see the head of this file), kept within `bounds`."""
    seeds, texts = values_SN.shape
    centre = float(values_SN.mean())
    if texts < 2:  # one text says nothing of others
        return Estimate(centre, *bounds, seeds, texts, one_run)
    half = float(half_width(values_SN))
    low, high = bounds
    return Estimate(centre, max(low, centre - half), min(high, centre + half), seeds, texts, one_run)


def half_width(values_SN: Floats) -> Floats:
    """Half of the interval's width, for a table or for many: (..., S, N) to (...)."""
    seeds, texts = values_SN.shape[-2:]
    from_seeds, text_variance = variance_components(values_SN)
    from_texts = text_variance / texts + 2 / texts**2
    t_seeds = t_quantile(seeds - 1) if seeds > 1 else 0.0
    half: Floats = np.sqrt(t_seeds**2 * from_seeds + t_quantile(texts - 1) ** 2 * from_texts)
    return half


def variance_components(values_SN: Floats) -> tuple[Floats, Floats]:
    """The variance of the mean that seeds bring, and the variance of a text: (..., S, N) to (...) twice."""
    seeds, texts = values_SN.shape[-2:]
    by_seed_S, by_text_N = values_SN.mean(axis=-1), values_SN.mean(axis=-2)
    text_variance: Floats = by_text_N.var(axis=-1, ddof=1)
    if seeds == 1:
        return np.zeros_like(text_variance), text_variance
    seed_variance: Floats = by_seed_S.var(axis=-1, ddof=1)
    # sums of squares about the mean: of all values, of rows, of columns
    total = np.einsum("...sn,...sn->...", values_SN, values_SN) - seeds * texts * by_seed_S.mean(axis=-1) ** 2
    rest = (total - texts * (seeds - 1) * seed_variance - seeds * (texts - 1) * text_variance) / (
        (seeds - 1) * (texts - 1)
    )
    return seed_variance / seeds, np.maximum(0.0, text_variance - np.maximum(0.0, rest) / seeds)


def macro_f1_values(gold_N: NDArray[np.int64], predictions_N: NDArray[np.int64], labels: int) -> Floats:
    """What each text adds to macro-F1: numbers whose mean is macro-F1, so that its interval is made like accuracy's.

    F1 of a class is 2 hits / (true + answered). A text's number is macro-F1 plus the first-order change that one more
    such text brings; classes that are neither true nor answered anywhere are left out, as they are from macro-F1.
    """
    hits_C = np.bincount(gold_N[gold_N == predictions_N], minlength=labels)
    both_C = np.bincount(gold_N, minlength=labels) + np.bincount(predictions_N, minlength=labels)
    seen, both_C = int((both_C > 0).sum()), np.maximum(1, both_C)
    f1_C = 2 * hits_C / both_C
    change_N = 2 * (gold_N == predictions_N) / both_C[gold_N]
    change_N = change_N - (f1_C / both_C)[gold_N] - (f1_C / both_C)[predictions_N]
    values: Floats = f1_C.sum() / seen + len(gold_N) / seen * change_N
    return values


def mean(values: Sequence[float]) -> float:
    """The mean; ten times 0.1 has the mean 0.1, which plain summing would miss.

    >>> mean([0.1] * 10), sum([0.1] * 10) / 10
    (0.1, 0.09999999999999999)
    """
    return statistics.fmean(values)


def standard_deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for a single value, which has none.

    >>> standard_deviation([1.0, 2.0, 3.0]), standard_deviation([1.0])
    (1.0, None)
    """
    return statistics.stdev(values) if len(values) > 1 else None


def t_quantile(freedom: int) -> float:
    """How many standard errors either side, with so many degrees of freedom."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
