"""Scores over labels as probabilities, and what a right answer cost. No torch.

N texts, C labels.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def probabilities(scores: Floats) -> Floats:
    """Softmax over the labels; a score of minus infinity is no chance at all."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


def log_loss(scores: Floats, gold: NDArray[np.int64]) -> float:
    """The mean over texts of -log softmax(scores)[gold]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(gold)), gold]
    return float(losses.mean())
