"""A blend of a network and a linear classifier: a weighted mean of their log-probabilities, divided by a temperature.

N texts, C labels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import best_temperature

Floats = NDArray[np.float64]
GRID = tuple(float(weight) for weight in np.linspace(0, 1, 21))
"""The weights of the network that are tried."""
MIN_TEMPERATURE_ROWS = 50
"""Rows below which the temperature stays 1: one from a handful of rows is noise."""
MIN_WEIGHT_ROWS = 50
"""With fewer rows than this the weight is bounded: n rows move it from one half by n / 50 of the way to an end at most."""


@dataclass(frozen=True)
class BlendFit:
    """The weight and the temperature of a blend, and the log-loss behind them."""

    weight: float
    """The weight of the network; that of the linear classifier is 1 minus it."""
    temperature: float
    rows: int
    """The rows that it was fitted on."""
    best_weight: float
    """The weight of lowest log-loss; `weight` is nearer to one half if the rows cannot tell the two apart."""
    loss: float
    """The log-loss of the blend on these rows."""
    network_loss: float
    linear_loss: float
    """`network_loss` and `linear_loss` are those of either classifier alone, with its best temperature."""


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithm of the softmax over the labels."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities


def blend_logits(network: Floats, linear: Floats, weight: float, temperature: float = 1.0) -> Floats:
    """Blend the logits (N, C) of two classifiers of the same labels.

    Args:
        weight: the weight of the network; that of the linear classifier is 1 minus it.
    """
    blended: Floats = (weight * log_softmax(network) + (1 - weight) * log_softmax(linear)) / temperature
    return blended


def fit_blend(network_oof: Floats, linear_oof: Floats, gold: NDArray[np.int64]) -> BlendFit:
    """Choose the weight of a blend and its temperature on logits of rows that neither classifier was trained on.

    Each weight of a grid has its own best temperature. Of the weights whose log-loss is within one standard error of the
    lowest (of the difference, row by row) the nearest to one half is chosen: few rows cannot justify an extreme weight,
    and fewer than `MIN_WEIGHT_ROWS` not even if they agree.
    """
    num_rows = len(gold)
    if not len(network_oof) == len(linear_oof) == num_rows:
        raise ValueError(f"{len(network_oof)} and {len(linear_oof)} rows of logits for {num_rows} rows")
    if not num_rows:
        return BlendFit(0.5, 1.0, 0, 0.5, 0.0, 0.0, 0.0)
    blends = [blend_logits(network_oof, linear_oof, weight) for weight in GRID]
    temperatures = [_temperature(logits, gold) for logits in blends]
    losses = np.stack(
        [_losses(logits / temperature, gold) for logits, temperature in zip(blends, temperatures, strict=True)]
    )
    best = int(losses.mean(axis=1).argmin())
    differences = losses - losses[best]
    standard_errors = differences.std(axis=1) / np.sqrt(num_rows)
    as_good = np.flatnonzero(differences.mean(axis=1) <= standard_errors)
    distances = np.abs(np.array(GRID) - 0.5)
    chosen = int(as_good[distances[as_good].argmin()])
    allowed = np.flatnonzero(distances <= 0.5 * num_rows / MIN_WEIGHT_ROWS + 1e-9)
    chosen = int(np.clip(chosen, allowed[0], allowed[-1]))
    means = [float(loss) for loss in losses.mean(axis=1)]
    return BlendFit(
        GRID[chosen],
        temperatures[chosen],
        num_rows,
        GRID[best],
        means[chosen],
        network_loss=means[-1],
        linear_loss=means[0],
    )


def _temperature(logits: Floats, gold: NDArray[np.int64]) -> float:
    """Return the temperature of lowest log-loss, or 1 where the rows cannot tell: too few, or no mistake among them."""
    if len(gold) < MIN_TEMPERATURE_ROWS or (logits.argmax(axis=1) == gold).all():
        return 1.0
    return best_temperature(logits, gold)


def _losses(logits: Floats, gold: NDArray[np.int64]) -> Floats:
    losses: Floats = -log_softmax(logits)[np.arange(len(gold)), gold]
    return losses
