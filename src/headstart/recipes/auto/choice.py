"""The arms of `headstart auto` and the choice among them by cross-validation. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import log_loss, reliability, softmax
from headstart.recipes.compare.baselines import MAX_VALID_PROBABILITIES, score_predictions
from headstart.report.intervals import Estimate, estimate
from headstart.store.records import Epoch, RunRecord, round_probabilities
from headstart.train.calibration import Calibration, precision_thresholds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAJORITY, LINEAR, NETWORK, BLEND = "majority", "linear", "pretrained", "blend"
NAMES = {MAJORITY: "the majority class", LINEAR: "the linear model", NETWORK: "the network", BLEND: "the blend"}
_MIN_PROBABILITY = 1e-6
_NEGLIGIBLE_WEIGHT = 0.1
"""A part of a blend with this weight or less is left out. `fit_blend` returns weights between 0.05 and 0.95."""
_STANDARD_ERRORS = 2.0
"""By how many standard errors an arm has to be better than the blend to be chosen."""


@dataclass(frozen=True)
class Arm:
    """A fitted arm and its out-of-fold logits, calibrated."""

    name: str
    logits: Floats
    """Logits of the validation rows, each by a model that was not trained on it."""
    setting: dict[str, Any]
    seconds: float
    rows: int
    """The rows that the final model was trained on."""
    tried: tuple[dict[str, Any], ...] = ()
    epochs: tuple[dict[str, Any], ...] = ()
    temperature: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)

    def correct(self, gold: Ints) -> NDArray[np.bool_]:
        """Return which validation rows the arm predicts correctly."""
        right: NDArray[np.bool_] = self.logits.argmax(axis=1) == gold
        return right

    def accuracy(self, gold: Ints) -> float:
        """Return the accuracy on the validation rows."""
        return float(self.correct(gold).mean())


def majority_arm(train_gold: Ints, num_labels: int, validation_rows: int) -> Arm:
    """Return the arm that always predicts the majority class of train."""
    counts = np.bincount(train_gold, minlength=num_labels)
    logits = np.log(np.maximum(counts / counts.sum(), _MIN_PROBABILITY))
    return Arm(MAJORITY, np.tile(logits, (validation_rows, 1)), {}, 0.0, len(train_gold))


def choose_winner(arms: Mapping[str, Arm], gold: Ints) -> str:
    """Return the arm with the best cross-validated accuracy; the blend unless another is better by two standard errors.

    On training rows of six datasets, with a logistic regression on frozen features in place of the network, a blend chosen
    almost always was more accurate on average than the arm with the best cross-validated accuracy
    (`benchmarks/blend_weight.py`). Other ties go to the lower log-loss. A blend with almost all the weight on one part is
    that part.
    """
    candidates = [name for name in (LINEAR, NETWORK, BLEND) if name in arms]
    best = max(candidates, key=lambda name: (arms[name].accuracy(gold), -log_loss(arms[name].logits, gold)))
    weight = arms[BLEND].setting["weight"] if BLEND in arms else 0.5
    if min(weight, 1 - weight) <= _NEGLIGIBLE_WEIGHT:
        return NETWORK if weight > 0.5 else LINEAR
    if BLEND in arms and best != BLEND:
        difference = arms[best].correct(gold).astype(float) - arms[BLEND].correct(gold)
        # as if two more rows had been seen, one going either way: few rows that agree prove little
        standard_error = float(np.sqrt(difference.var() / len(gold) + 2 / len(gold) ** 2))
        best = BLEND if difference.mean() <= _STANDARD_ERRORS * standard_error else best
    return best


def make_record(arm: Arm, gold: Ints, test_logits: Floats, test_gold: Ints, num_labels: int, seed: int) -> RunRecord:
    """Return the record of an arm: cross-validation is its validation."""
    predictions = test_logits.argmax(axis=1)
    save_valid = arm.logits.size <= MAX_VALID_PROBABILITIES
    return RunRecord(
        arm=arm.name,
        labels="all",
        rows=arm.rows,
        seed=seed,
        setting=arm.setting,
        epochs=tuple(Epoch(**metrics) for metrics in arm.epochs),
        best_epoch=len(arm.epochs) or None,
        valid=score_predictions(gold.tolist(), arm.logits.argmax(axis=1), num_labels),
        test=score_predictions(test_gold.tolist(), predictions, num_labels),
        predictions=tuple(int(prediction) for prediction in predictions),
        probabilities=round_probabilities(softmax(test_logits).tolist()),
        valid_probabilities=round_probabilities(softmax(arm.logits).tolist()) if save_valid else None,
        temperature=arm.temperature,
        tried=arm.tried if len(arm.tried) > 1 else (),
        seconds=arm.seconds,
        extra=arm.extra,
    )


def out_of_fold_calibration(logits: Floats, gold: Ints, temperature: float) -> Calibration:
    """Return the calibration record of logits that are calibrated already."""
    measured = reliability(softmax(logits), gold)
    return Calibration(
        temperature=temperature,
        reason=None,
        rows=len(gold),
        before=reliability(softmax(logits * temperature), gold),
        after=measured,
        test=None,
        thresholds=precision_thresholds(softmax(logits), gold),
    )


def above_majority(arms: Mapping[str, Arm], winner: str, gold: Ints) -> bool:
    """Return True if cross-validation shows that the winner is more accurate than the majority class."""
    difference = arms[winner].correct(gold).astype(float) - arms[MAJORITY].correct(gold)
    return estimate(difference[None, :]).low > 0


def difference_on_test(records: Mapping[str, RunRecord], arm: str, other: str, gold: Sequence[int]) -> Estimate:
    """Return by how much an arm is more accurate than another on test, with the interval over the test texts."""
    right = [np.array(records[name].predictions) == np.array(gold) for name in (arm, other)]
    return estimate((right[0].astype(float) - right[1])[None, :], one_run=True)
