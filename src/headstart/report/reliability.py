"""The calibration error of an arm's probabilities on test: its interval, and the bins behind it.

S seeds, N texts, B bins. The error is that of one run, averaged over seeds: one model is used, not the mean of several.
Even a perfectly calibrated classifier shows some error on few texts: `chance` is how much, on these texts and at these
confidences. The interval is the one of all other estimates, with its lower end reduced by what chance has added.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import NUM_BINS, Bin, bin_indices, calibration_values
from headstart.report.intervals import Estimate, Floats, estimate
from headstart.report.load import ComparisonResults
from headstart.store.records import Budget, RunRecord, full_row

_DIGITS = 6  # the order of summation differs between machines


@dataclass(frozen=True)
class ArmCalibration:
    """The calibration of one arm on test, over its seeds."""

    arm: str
    budget: Budget
    seeds: int
    texts: int
    ece: float
    low: float
    """`low` and `high` bound the 95 % interval of the error on infinitely many texts."""
    high: float
    chance: float
    """The expected error of a perfectly calibrated classifier on these texts."""
    temperatures: tuple[float, ...]
    bins: tuple[Bin, ...]
    """Bins over all seeds together."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def arm_calibrations(comparison: ComparisonResults, budget: Budget) -> list[ArmCalibration]:
    """Measure every arm whose runs all kept their probabilities, except the majority class, whose confidence is constant."""
    runs_by_arm = [comparison.runs_of(arm, budget) for arm in comparison.arms if arm != "majority"]
    return [_calibration(comparison, runs) for runs in runs_by_arm if runs and all(run.probabilities for run in runs)]


def probabilities_of(run: RunRecord) -> Floats:
    """Return the probabilities (texts, labels) of a run."""
    return np.array([full_row(row) for row in run.probabilities or ()], dtype=np.float64)


def calibration_error(confidence_SN: Floats, correct_SN: NDArray[np.bool_]) -> Estimate:
    """Estimate the mean calibration error of a run from the confidence and the correctness of every prediction."""
    runs = zip(bin_indices(confidence_SN), confidence_SN - correct_SN, strict=True)
    values, excesses = zip(*(calibration_values(bins_N, gaps_N) for bins_N, gaps_N in runs), strict=True)
    error = estimate(np.stack(values), bounds=(0.0, 1.0))
    return replace(error, low=max(0.0, error.low - float(np.mean(excesses))))


def _calibration(comparison: ComparisonResults, runs: tuple[RunRecord, ...]) -> ArmCalibration:
    gold_N = np.asarray(comparison.data.test.gold, dtype=np.int64)
    predictions_SN = np.array([run.predictions for run in runs], dtype=np.int64)
    # the probability of the prediction: where two are equal after rounding, the largest may be of another label
    confidence_SN = np.stack([probabilities_of(run)[np.arange(len(gold_N)), run.predictions] for run in runs])
    correct_SN = predictions_SN == gold_N
    bins_SN = bin_indices(confidence_SN)
    error = calibration_error(confidence_SN, correct_SN)
    variance_SN = confidence_SN * (1 - confidence_SN)
    variance_SB = (variance_SN[:, :, None] * (bins_SN[:, :, None] == np.arange(NUM_BINS))).sum(axis=1)
    # the mean absolute deviation of a normal variable is sqrt(2 / pi) standard deviations
    chance = float(np.sqrt(2 * variance_SB / np.pi).sum(axis=-1).mean() / len(gold_N))
    return ArmCalibration(
        arm=runs[0].arm,
        budget=runs[0].labels,
        seeds=len(runs),
        texts=len(gold_N),
        ece=round(error.mean, _DIGITS),
        low=round(error.low, _DIGITS),
        high=round(error.high, _DIGITS),
        chance=round(chance, _DIGITS),
        temperatures=tuple(run.temperature for run in runs),
        bins=tuple(_bins(bins_SN, confidence_SN, correct_SN)),
    )


def _bins(bins_SN: NDArray[np.int64], confidence_SN: Floats, correct_SN: NDArray[np.bool_]) -> list[Bin]:
    return [
        Bin(
            low=index / NUM_BINS,
            high=(index + 1) / NUM_BINS,
            rows=int(in_bin.sum()),
            confidence=round(float(confidence_SN[in_bin].mean()), _DIGITS),
            accuracy=round(float(correct_SN[in_bin].mean()), _DIGITS),
        )
        for index in range(NUM_BINS)
        if (in_bin := bins_SN == index).any()
    ]
