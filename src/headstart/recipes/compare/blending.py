"""The arm `blend` of a comparison: the pretrained network and a linear classifier that is fitted on the same rows.

Validation chooses the weight: its rows are out of sample for both parts. The network is not trained again: a pretrained
run leaves the logits of its validation and test rows in logits/, as long as the comparison is unfinished.
"""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import StoreError
from headstart.files import FORMAT, read_checksummed, write_checksummed
from headstart.interrupts import StopSignal
from headstart.linear.blend import blend_logits, fit_blend
from headstart.linear.classifier import fit_linear
from headstart.metrics import softmax
from headstart.recipes.compare.baselines import MAX_VALID_PROBABILITIES, score_predictions
from headstart.recipes.finetune.dataset import LabelledData
from headstart.store.records import Budget, RunRecord, round_probabilities

Floats = NDArray[np.float64]
LOGITS = "logits"
_DIGITS = 6


class RunLogits(NamedTuple):
    """The logits of one run of a network."""

    valid: Floats
    test: Floats


def write_logits(path: Path, logits: RunLogits) -> None:
    """Write the logits of a run."""
    path.parent.mkdir(exist_ok=True)
    rows = {name: np.round(array, _DIGITS).tolist() for name, array in logits._asdict().items()}
    write_checksummed(path, {"format": FORMAT, **rows})


def read_logits(path: Path, record: Path) -> RunLogits:
    """Read the logits of a run; `record` is the file to delete if they are missing or damaged."""
    remedy = f"delete {record} and use --resume to repeat that run"
    if not path.is_file():
        raise StoreError(f"{path} is missing; {remedy}")
    try:
        content = read_checksummed(path)
    except StoreError as error:
        raise StoreError(f"{error}; {remedy}") from None
    return RunLogits(*(np.array(content[name], dtype=np.float64) for name in RunLogits._fields))


def run_blend(
    arm: str, budget: Budget, seed: int, data: LabelledData, network: RunLogits, stop: StopSignal
) -> RunRecord:
    """Fit the linear part, choose the weight on validation and score test."""
    assert data.test is not None
    start = time.perf_counter()
    num_labels = len(data.labels)
    linear = fit_linear(data.train.texts, data.train.gold, num_labels, seed=seed, check=stop.check).classifier
    linear_valid, linear_test = linear.logits(data.valid.texts), linear.logits(data.test.texts)
    blend = fit_blend(network.valid, linear_valid, data.valid.gold)
    valid, test = (
        blend_logits(one, other, blend.weight, blend.temperature)
        for one, other in ((network.valid, linear_valid), (network.test, linear_test))
    )
    predictions = test.argmax(axis=1)
    save_valid = valid.size <= MAX_VALID_PROBABILITIES
    return RunRecord(
        arm=arm,
        labels=budget,
        rows=len(data.train),
        seed=seed,
        setting={"weight": blend.weight},
        epochs=(),
        best_epoch=None,
        valid=score_predictions(data.valid.gold.tolist(), valid.argmax(axis=1), num_labels),
        test=score_predictions(data.test.gold.tolist(), predictions, num_labels),
        predictions=tuple(int(prediction) for prediction in predictions),
        probabilities=round_probabilities(softmax(test).tolist()),
        valid_probabilities=round_probabilities(softmax(valid).tolist()) if save_valid else None,
        temperature=blend.temperature,
        seconds=time.perf_counter() - start,
    )
