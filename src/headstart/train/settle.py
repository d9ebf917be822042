"""What validation settles once a model is trained, by the kind of its answers.

classes: one temperature for all scores.
labels:  one temperature for all scores, by the log-loss of every yes or no; then for each label the threshold with the
         best F1 on validation. A label with few rows there keeps one half.
rating:  nothing; a number has no probability to keep. Its errors are measured.

N texts, C labels.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.kinds import Classes, Labels, Target
from headstart.measures import Reliability, reliability
from headstart.train.calibrate import FEWEST, Calibration, calibrate
from headstart.train.shares import probabilities

Floats = NDArray[np.float64]
FEWEST_OF_A_LABEL = 5
"""Validation rows with a label, and without it, below which its threshold stays one half."""


@dataclass(frozen=True)
class Chosen:
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
class Settled:
    """What a model answers from now on, and how that came about."""

    target: Target
    calibration: Calibration | None
    thresholds: tuple[Chosen, ...] = ()

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        return self.calibration.temperature if self.calibration else 1.0


def settle(target: Target, scores: Floats, gold: NDArray[Any]) -> Settled:
    """Fit on validation what there is to fit."""
    if isinstance(target, Classes):
        return Settled(target, calibrate(scores, gold))
    if not isinstance(target, Labels):
        return Settled(target, None)
    calibration = calibrate(*decisions(scores, gold), each=len(target.labels))
    shares = target.shares(scores / calibration.temperature)
    chosen = tuple(_choose(label, shares[:, i], gold[:, i] > 0) for i, label in enumerate(target.labels))
    return Settled(replace(target, thresholds=tuple(one.threshold for one in chosen)), calibration, chosen)


def reliability_of(target: Target, scores: Floats, gold: NDArray[Any]) -> Reliability | None:
    """How well the probabilities keep their word; a number has none."""
    if isinstance(target, Classes):
        return reliability(probabilities(scores), gold)
    if isinstance(target, Labels):
        flat, right = decisions(scores, gold)
        return reliability(probabilities(flat), right)
    return None


def decisions(scores: Floats, gold: NDArray[Any]) -> tuple[Floats, NDArray[np.int64]]:
    """Every yes or no of several labels as a text of two classes: a sigmoid is a softmax beside a score of 0."""
    flat = scores.ravel()
    return np.stack((np.zeros_like(flat), flat), axis=1), gold.ravel().astype(np.int64)


def _choose(label: str, shares: Floats, has: NDArray[np.bool_]) -> Chosen:
    """The threshold of best F1, halfway between two probabilities; of equally good ones that nearest to one half."""
    rows, half = int(has.sum()), _f1(shares >= 0.5, has)
    reason = None
    if len(has) < FEWEST:
        reason = f"{len(has)} validation rows are too few to choose on (at least {FEWEST})"
    elif min(rows, len(has) - rows) < FEWEST_OF_A_LABEL:
        side = f"{rows} validation rows have it" if rows < FEWEST_OF_A_LABEL else f"{len(has) - rows} have it not"
        reason = f"{side}, at least {FEWEST_OF_A_LABEL} are needed"
    if reason is not None:
        return Chosen(label, 0.5, half, half, rows, reason)
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
    return Chosen(label, float(places[place]), float(found[place]), half, rows, None)


def _f1(given: NDArray[np.bool_], has: NDArray[np.bool_]) -> float:
    both = int(given.sum() + has.sum())
    return 2 * int((given & has).sum()) / both if both else 1.0
