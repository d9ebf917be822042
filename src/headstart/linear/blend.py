"""A blend of a network and a linear classifier: a weighted mean of their log-probabilities, divided by a temperature.

N texts, C labels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import best_temperature, log_loss

Floats = NDArray[np.float64]
GRID = np.linspace(0, 1, 21)
"""The weights of the network at which the posterior is evaluated."""
PRIOR = (5.0, 3.0)
"""The parameters of the Beta prior of the weight: 0.625 on average, with a standard deviation of 0.16.

It favours the network because fine-tuning gains more than a linear classifier from the rows that a fold leaves out. It was
measured for cross-validation only; a comparison with a separate validation file uses it as well.
"""
MIN_TEMPERATURE_ROWS = 50
"""Rows below which the temperature stays 1: one from a handful of rows is noise."""
MIN_WEIGHT_ROWS = 50
"""With fewer rows than this the weight is bounded: n rows move it by n / 50 of the way to an end at most."""


@dataclass(frozen=True)
class BlendFit:
    """The weight and the temperature of a blend, and the log-loss behind them."""

    weight: float
    """The weight of the network; that of the linear classifier is 1 minus it."""
    temperature: float
    rows: int
    """The rows that it was fitted on."""
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
    """Estimate the weight of a blend and its temperature on logits of rows that neither classifier was trained on.

    The weight is the mean of its posterior: the likelihood of the rows, each weight with its own best temperature, times a
    Beta prior. Few rows leave it near the prior mean, many rows move it to the weight with the lowest log-loss, between
    0.05 and 0.95. Where a weight makes no mistake on the rows, they cannot tell the temperature, which is then 1 for all.
    """
    num_rows = len(gold)
    if not len(network_oof) == len(linear_oof) == num_rows:
        raise ValueError(f"{len(network_oof)} and {len(linear_oof)} rows of logits for {num_rows} rows")
    if not num_rows:
        return BlendFit(_bounded(PRIOR[0] / sum(PRIOR), 0), 1.0, 0, 0.0, 0.0, 0.0)

    blends = [blend_logits(network_oof, linear_oof, float(weight)) for weight in GRID]
    faultless = any((logits.argmax(axis=1) == gold).all() for logits in blends)
    fits_temperature = num_rows >= MIN_TEMPERATURE_ROWS and not faultless

    def fit_temperature(logits: Floats) -> tuple[float, float]:
        temperature = best_temperature(logits, gold) if fits_temperature else 1.0
        return temperature, log_loss(logits / temperature, gold)

    losses = np.array([fit_temperature(logits)[1] for logits in blends])
    weight = _bounded(float(GRID @ _posterior(num_rows * losses)), num_rows)
    temperature, loss = fit_temperature(blend_logits(network_oof, linear_oof, weight))
    return BlendFit(weight, temperature, num_rows, loss, network_loss=float(losses[-1]), linear_loss=float(losses[0]))


def _posterior(total_losses: Floats) -> Floats:
    """Return the posterior probability of each weight of the grid, from the negative log-likelihood of the rows."""
    with np.errstate(divide="ignore"):  # the prior density is 0 at both ends
        log_prior = (PRIOR[0] - 1) * np.log(GRID) + (PRIOR[1] - 1) * np.log(1 - GRID)
    scores = log_prior - total_losses
    likelihoods = np.exp(scores - scores.max())
    probabilities: Floats = likelihoods / likelihoods.sum()
    return probabilities


def _bounded(weight: float, num_rows: int) -> float:
    """Return the weight, rounded, and kept near the prior mean if there are few rows."""
    mean = PRIOR[0] / sum(PRIOR)
    reach = min(1.0, num_rows / MIN_WEIGHT_ROWS)
    return round(min(max(weight, mean - reach * mean), mean + reach * (1 - mean)), 3)
