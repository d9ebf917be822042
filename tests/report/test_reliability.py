"""The calibration error of an arm: averaged over seeds, with an interval and the error expected by rng."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.comparison_folder import make_comparison, score
from headstart.metrics import NUM_BINS, calibration_values, reliability
from headstart.report.figures import reliability_diagrams, svg
from headstart.report.load import load_comparison
from headstart.report.reliability import arm_calibrations, calibration_error, probabilities_of
from headstart.store.records import (
    ComparisonData,
    Epoch,
    RunRecord,
    Score,
    Split,
    TestSplit,
    round_probabilities,
    write_comparison_data,
    write_record,
)


def write_probabilities(folder, gold, probabilities_by_seed, arm="scratch", labels=("a", "b")):
    """Write a comparison of one arm from its probabilities by seed."""
    counts = {label: list(gold).count(index) for index, label in enumerate(labels)}
    split = Split(name="train.csv", rows=4, counts=counts, sha256="a" * 64)
    test = TestSplit(name="test.csv", rows=len(gold), counts=counts, sha256="c" * 64, gold=tuple(map(int, gold)))
    write_comparison_data(folder, ComparisonData(labels=labels, train=split, valid=split, test=test))
    for seed, probabilities in enumerate(probabilities_by_seed):
        predictions = [int(answer) for answer in np.argmax(probabilities, axis=1)]
        epoch = Epoch(epoch=1, train_loss=1, valid_loss=1, valid_accuracy=0.5, valid_macro_f1=0.5, seconds=1)
        run = RunRecord(
            arm=arm,
            labels="all",
            rows=4,
            seed=seed,
            setting={},
            epochs=(epoch,),
            best_epoch=1,
            valid=Score(accuracy=0.5, macro_f1=0.5),
            test=score(gold, predictions, len(labels)),
            predictions=tuple(predictions),
            probabilities=round_probabilities(np.asarray(probabilities).tolist()),
            seconds=1.0,
        )
        write_record(folder, run)
    return load_comparison(folder)


def two_labels(probabilities):
    """Probabilities of both labels from those of the second."""
    return np.stack([1 - np.asarray(probabilities), np.asarray(probabilities)], axis=1)


def test_the_error_is_the_distance_between_confidence_and_accuracy(tmp_path):
    """Four predictions of confidence 90 %, three of them correct: fifteen points overconfident."""
    (calibration,) = arm_calibrations(write_probabilities(tmp_path, [1, 1, 1, 0], [two_labels([0.9] * 4)]), "all")
    assert calibration.ece == pytest.approx(0.15)
    assert [(bin_.rows, bin_.confidence, bin_.accuracy) for bin_ in calibration.bins] == [(4, 0.9, 0.75)]
    assert calibration.low <= calibration.ece <= calibration.high


def test_errors_of_opposite_sign_in_two_seeds_do_not_cancel_out(tmp_path):
    gold = [1, 0] * 10
    underconfident, overconfident = two_labels([0.55 if answer else 0.45 for answer in gold]), two_labels([0.95] * 20)
    (calibration,) = arm_calibrations(write_probabilities(tmp_path, gold, [underconfident, overconfident]), "all")
    assert calibration.seeds == 2
    assert calibration.ece == pytest.approx((0.45 + 0.45) / 2)
    assert {bin_.accuracy for bin_ in calibration.bins} == {1.0, 0.5}


def test_the_error_of_one_seed_is_that_of_metrics_reliability(tmp_path):
    rng = np.random.default_rng(1)
    gold, probabilities = rng.integers(0, 3, 300), rng.dirichlet([1, 1, 1], 300)
    comparison = write_probabilities(tmp_path, gold, [probabilities], labels=("a", "b", "c"))
    (calibration,) = arm_calibrations(comparison, "all")
    alone = reliability(probabilities_of(comparison.runs[0]), gold)
    assert calibration.ece == pytest.approx(alone.ece, abs=1e-6)
    assert (calibration.low, calibration.high) == pytest.approx(
        (alone.low, alone.high), abs=0.02
    )  # other draws of the same rows
    assert [bin_.rows for bin_ in calibration.bins] == [bin_.rows for bin_ in alone.bins]


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_calibrated_probabilities_have_about_the_error_expected_by_chance(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0, 1, 400)
    gold = (rng.uniform(0, 1, 400) < confidence).astype(int)
    (calibration,) = arm_calibrations(
        write_probabilities(tmp_path_factory.mktemp("runs"), gold, [two_labels(confidence)]), "all"
    )
    assert 0.3 * calibration.chance < calibration.ece < 2.2 * calibration.chance
    assert sum(bin_.rows for bin_ in calibration.bins) == 400
    assert len(calibration.bins) <= NUM_BINS


def test_arms_without_probabilities_and_the_majority_class_are_excluded(tmp_path):
    make_comparison(
        tmp_path, arms={"majority": 0.5, "linear": 0.8, "scratch": 0.7}, seeds=2, texts=80, probabilities=True
    )
    comparison = load_comparison(tmp_path)
    assert [calibration.arm for calibration in arm_calibrations(comparison, "all")] == ["linear", "scratch"]
    path = tmp_path / "cells" / "scratch-all-seed1.json"
    write_record(tmp_path, comparison.runs_of("scratch", "all")[1].model_copy(update={"probabilities": None}))
    assert path.is_file()
    assert [calibration.arm for calibration in arm_calibrations(load_comparison(tmp_path), "all")] == ["linear"]


def test_the_caption_of_a_diagram_has_the_error_and_its_interval(tmp_path):
    (calibration,) = arm_calibrations(write_probabilities(tmp_path, [1, 1, 1, 0], [two_labels([0.9] * 4)]), "all")
    (figure,) = reliability_diagrams([calibration])
    assert figure.name == "calibration-scratch"
    span = f"(95 % interval {100 * calibration.low:.1f} to {100 * calibration.high:.1f})"
    assert figure.caption == f"Accuracy by predicted probability: calibration error 15.0 points {span}."
    assert ">from scratch<" in svg(figure.draw(2.9))


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_of_calibrated_probabilities_contains_zero(seeds):
    """Nineteen times in twenty the interval begins at 0, where the truth is; what was measured is well above it."""
    rng, contained = np.random.default_rng(0), 0
    for _ in range(200):
        confidence = rng.uniform(0.5, 1, (seeds, 300))
        error = calibration_error(confidence, rng.random((seeds, 300)) < confidence)
        contained += error.low == 0
        assert 0 <= error.low < error.mean < error.high <= 1
        assert error.mean > 0.01  # control: it is no error of 0 that was measured
    assert contained >= 190 - 3 * (200 * 0.95 * 0.05) ** 0.5


def test_the_interval_of_miscalibrated_probabilities_excludes_zero():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.7, 1, (3, 1000))
    error = calibration_error(confidence, rng.random((3, 1000)) < confidence - 0.2)
    assert error.low < 0.2 < error.high
    assert error.low > 0.12
    assert error.high < 0.28


def test_the_interval_of_correct_predictions_has_room_for_a_mistake():
    error = calibration_error(np.full((3, 100), 0.99), np.ones((3, 100), bool))
    assert error.mean == pytest.approx(0.01)
    assert error.low == 0
    # as if two more texts had been seen: 1.984 sqrt(2) / 100 above
    assert error.high == pytest.approx(0.01 + 1.984 * 2**0.5 / 100, abs=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 400))
def test_the_mean_of_the_calibration_values_is_the_error(seed, rows):
    rng = np.random.default_rng(seed)
    bins, gaps = rng.integers(0, NUM_BINS, rows), rng.uniform(-1, 1, rows)
    values, excess = calibration_values(bins, gaps)
    distances = [abs(gaps[bins == index].sum()) for index in range(NUM_BINS)]
    assert values.mean() == pytest.approx(sum(distances) / rows)
    deviations = [(gaps[bins == index] ** 2).sum() ** 0.5 for index in range(NUM_BINS)]
    assert 0 <= excess <= 1.03 * sum(deviations) / rows
