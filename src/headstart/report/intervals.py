"""The confidence interval of every estimate in a report, over few seeds and many test texts.

S seeds, N test texts. Two things are random: the seed (the drawn rows, their order, the new head, dropout) and the
choice of test texts. With v[s, i] the result of seed s on text i (1 correct, 0 wrong; for two arms the difference),

    seeds    = variance of the S row means / S                  the randomness of training
    residual = variance of v less its row and column means      is part of both, so it is subtracted from one
    texts    = variance of the N column means / N - residual / (S N)
    floor    = 2 / N²                                           as if two more texts had been seen, one going either way

and the interval is the mean ± sqrt(t(S-1)² seeds + t(N-1)² (texts + floor)). Each component has its own t, because with
three seeds the first is estimated badly and the second well. `benchmarks/coverage.py` measures how often it contains the
truth, and how often other intervals do: one t with Satterthwaite's degrees of freedom falls short at three seeds, an
interval over seeds alone or over texts alone far short.

The floor is for arms with equal predictions: that two arms agree on N texts does not show that they agree on all, so no
interval has width zero. With one seed only the component of the texts is visible, and nothing is claimed of arms that
train.
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
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: int
    texts: int
    one_run: bool = False
    """True if an arm that trains has a single run, so that the interval does not cover the randomness of training."""

    @property
    def measurable(self) -> bool:
        """True if the interval excludes zero and covers seeds as well as texts."""
        return not self.one_run and (self.low > 0 or self.high < 0)


def estimate(values_SN: Floats, *, bounds: tuple[float, float] = (-1.0, 1.0), one_run: bool = False) -> Estimate:
    """Return the mean over seeds and texts with its interval (see the head of this file), clipped to `bounds`."""
    seeds, texts = values_SN.shape
    centre = float(values_SN.mean())
    if texts < 2:  # one text says nothing about others
        return Estimate(centre, *bounds, seeds, texts, one_run)
    half = float(half_width(values_SN))
    low, high = bounds
    return Estimate(centre, max(low, centre - half), min(high, centre + half), seeds, texts, one_run)


def half_width(values_SN: Floats) -> Floats:
    """Return half the width of the interval, of one table or of many: (..., S, N) to (...)."""
    seeds, texts = values_SN.shape[-2:]
    from_seeds, text_variance = variance_components(values_SN)
    from_texts = text_variance / texts + 2 / texts**2
    t_seeds = t_quantile(seeds - 1) if seeds > 1 else 0.0
    half: Floats = np.sqrt(t_seeds**2 * from_seeds + t_quantile(texts - 1) ** 2 * from_texts)
    return half


def variance_components(values_SN: Floats) -> tuple[Floats, Floats]:
    """Return the variance of the mean due to seeds, and the variance of a text: (..., S, N) to (...) twice."""
    seeds, texts = values_SN.shape[-2:]
    by_seed_S, by_text_N = values_SN.mean(axis=-1), values_SN.mean(axis=-2)
    text_variance: Floats = by_text_N.var(axis=-1, ddof=1)
    if seeds == 1:
        return np.zeros_like(text_variance), text_variance
    seed_variance: Floats = by_seed_S.var(axis=-1, ddof=1)
    # sums of squares about the mean: of all values, of rows, of columns
    total = np.einsum("...sn,...sn->...", values_SN, values_SN) - seeds * texts * by_seed_S.mean(axis=-1) ** 2
    residual = (total - texts * (seeds - 1) * seed_variance - seeds * (texts - 1) * text_variance) / (
        (seeds - 1) * (texts - 1)
    )
    return seed_variance / seeds, np.maximum(0.0, text_variance - np.maximum(0.0, residual) / seeds)


def macro_f1_values(gold_N: NDArray[np.int64], predictions_N: NDArray[np.int64], num_labels: int) -> Floats:
    """Return a value per text whose mean is macro-F1, so that its interval is computed like that of accuracy.

    F1 of a class is 2 hits / (gold + predicted). The value of a text is macro-F1 plus the first-order change that one
    more such text would cause; classes that are neither gold nor predicted are excluded, as they are from macro-F1.
    """
    hits_C = np.bincount(gold_N[gold_N == predictions_N], minlength=num_labels)
    gold_and_predicted_C = np.bincount(gold_N, minlength=num_labels) + np.bincount(predictions_N, minlength=num_labels)
    num_classes = int((gold_and_predicted_C > 0).sum())
    gold_and_predicted_C = np.maximum(1, gold_and_predicted_C)
    f1_C = 2 * hits_C / gold_and_predicted_C
    per_count_C = f1_C / gold_and_predicted_C
    change_N = 2 * (gold_N == predictions_N) / gold_and_predicted_C[gold_N]
    change_N = change_N - per_count_C[gold_N] - per_count_C[predictions_N]
    values: Floats = f1_C.sum() / num_classes + len(gold_N) / num_classes * change_N
    return values


def mean(values: Sequence[float]) -> float:
    """Return the mean without rounding errors of summation: ten times 0.1 has the mean 0.1.

    >>> mean([0.1] * 10), sum([0.1] * 10) / 10
    (0.1, 0.09999999999999999)
    """
    return statistics.fmean(values)


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for a single value, which has none.

    >>> standard_deviation([1.0, 2.0, 3.0]), standard_deviation([1.0])
    (1.0, None)
    """
    return statistics.stdev(values) if len(values) > 1 else None


def t_quantile(degrees_of_freedom: int) -> float:
    """Return the quantile of Student's t that bounds the two-sided interval."""
    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))
