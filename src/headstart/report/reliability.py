"""How well the probabilities of an arm keep their word on test: the calibration error, its interval, and the bins behind it.

S seeds, N texts, B bins. The error is that of a run, averaged over seeds: one model is used, not the mean of several.
Even a classifier without fault shows some error on few texts: `chance` says how much, on these texts and at this
certainty. The interval is the one of everything else, with its lower end moved down by what chance has added.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import NUM_BINS, Bin, bin_indices, calibration_values
from headstart.report.intervals import Estimate, Floats, estimate
from headstart.report.load import ComparisonResults
from headstart.store.records import Budget, RunRecord, full_row

_DIGITS = 6  # sums are added in an order that differs between machines


@dataclass(frozen=True)
class ArmCalibration:
    """The probabilities of one arm on test."""

    arm: str
    budget: Budget
    seeds: int
    texts: int
    ece: float
    low: float
    high: float
    """The 95 % interval of the error on endlessly many texts."""
    chance: float
    """What a classifier whose probabilities are right would show here, on average."""
    temperatures: tuple[float, ...]
    bins: tuple[Bin, ...]
    """Over all seeds together."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def arm_calibrations(comparison: ComparisonResults, budget: Budget) -> list[ArmCalibration]:
    """Every arm whose runs all kept their probabilities; the majority class aside, which is always equally sure."""
    found = [(arm, comparison.of(arm, budget)) for arm in comparison.arms if arm != "majority"]
    return [_measured(comparison, cells) for _, cells in found if cells and all(cell.probabilities for cell in cells)]


def probabilities_of(cell: RunRecord) -> Floats:
    """The probabilities (texts, labels) of a run."""
    return np.array([full_row(row) for row in cell.probabilities or ()], dtype=np.float64)


def calibration_error(sure_SN: Floats, right_SN: NDArray[np.bool_]) -> Estimate:
    """The mean error of a run and its interval, from how sure every answer is and whether it is right."""
    runs = zip(bin_indices(sure_SN), sure_SN - right_SN, strict=True)
    values, excesses = zip(*(calibration_values(places_N, gaps_N) for places_N, gaps_N in runs), strict=True)
    found = estimate(np.stack(values), bounds=(0.0, 1.0))
    return replace(found, low=max(0.0, found.low - float(np.mean(excesses))))


def _measured(comparison: ComparisonResults, cells: tuple[RunRecord, ...]) -> ArmCalibration:
    gold_N = np.asarray(comparison.data.test.gold, dtype=np.int64)
    answers_SN = np.array([cell.predictions for cell in cells], dtype=np.int64)
    # the answer's own share: where two are equal after rounding, the largest may be another's
    sure_SN = np.stack([probabilities_of(cell)[np.arange(len(gold_N)), cell.predictions] for cell in cells])
    right_SN = answers_SN == gold_N
    places_SN = bin_indices(sure_SN)
    error = calibration_error(sure_SN, right_SN)
    spread_SB = ((sure_SN * (1 - sure_SN))[:, :, None] * (places_SN[:, :, None] == np.arange(NUM_BINS))).sum(axis=1)
    # the mean distance of a normal variable from its mean is sqrt(2 / pi) deviations
    chance = float(np.sqrt(2 * spread_SB / np.pi).sum(axis=-1).mean() / len(gold_N))
    return ArmCalibration(
        arm=cells[0].arm,
        budget=cells[0].labels,
        seeds=len(cells),
        texts=len(gold_N),
        ece=round(error.mean, _DIGITS),
        low=round(error.low, _DIGITS),
        high=round(error.high, _DIGITS),
        chance=round(chance, _DIGITS),
        temperatures=tuple(cell.temperature for cell in cells),
        bins=tuple(_bins(places_SN, sure_SN, right_SN)),
    )


def _bins(places_SN: NDArray[np.int64], sure_SN: Floats, right_SN: NDArray[np.bool_]) -> list[Bin]:
    return [
        Bin(
            low=place / NUM_BINS,
            high=(place + 1) / NUM_BINS,
            rows=int(own.sum()),
            confidence=round(float(sure_SN[own].mean()), _DIGITS),
            accuracy=round(float(right_SN[own].mean()), _DIGITS),
        )
        for place in range(NUM_BINS)
        if (own := places_SN == place).any()
    ]
