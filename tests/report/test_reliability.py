"""The calibration error of an arm: that of a run, averaged over seeds, with an interval and what chance alone gives."""

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


def write(folder, gold, shares_of_seeds, arm="scratch", labels=("a", "b")):
    """A comparison of one arm from its probabilities, seed by seed."""
    counts = {label: list(gold).count(index) for index, label in enumerate(labels)}
    split = Split(name="train.csv", rows=4, counts=counts, sha256="a" * 64)
    test = TestSplit(name="test.csv", rows=len(gold), counts=counts, sha256="c" * 64, gold=tuple(map(int, gold)))
    write_comparison_data(folder, ComparisonData(labels=labels, train=split, valid=split, test=test))
    for seed, shares in enumerate(shares_of_seeds):
        answers = [int(answer) for answer in np.argmax(shares, axis=1)]
        epoch = Epoch(epoch=1, train_loss=1, valid_loss=1, valid_accuracy=0.5, valid_macro_f1=0.5, seconds=1)
        cell = RunRecord(
            arm=arm,
            labels="all",
            rows=4,
            seed=seed,
            setting={},
            epochs=(epoch,),
            best_epoch=1,
            valid=Score(accuracy=0.5, macro_f1=0.5),
            test=score(gold, answers, len(labels)),
            predictions=tuple(answers),
            probabilities=round_probabilities(np.asarray(shares).tolist()),
            seconds=1.0,
        )
        write_record(folder, cell)
    return load_comparison(folder)


def second(shares):
    """Probabilities of both labels from those of the second."""
    return np.stack([1 - np.asarray(shares), np.asarray(shares)], axis=1)


def test_the_error_is_the_distance_between_sure_and_right(tmp_path):
    """Four answers 90 % sure, three of them right: fifteen points too sure."""
    (found,) = arm_calibrations(write(tmp_path, [1, 1, 1, 0], [second([0.9] * 4)]), "all")
    assert found.ece == pytest.approx(0.15)
    assert [(each.rows, each.confidence, each.accuracy) for each in found.bins] == [(4, 0.9, 0.75)]
    assert found.low <= found.ece <= found.high


def test_seeds_that_err_to_either_side_do_not_cancel_out(tmp_path):
    gold = [1, 0] * 10
    timid, bold = second([0.55 if answer else 0.45 for answer in gold]), second([0.95] * 20)
    (found,) = arm_calibrations(write(tmp_path, gold, [timid, bold]), "all")
    assert found.seeds == 2
    assert found.ece == pytest.approx((0.45 + 0.45) / 2)
    assert {each.accuracy for each in found.bins} == {1.0, 0.5}


def test_one_seed_has_the_error_that_a_classifier_is_measured_with(tmp_path):
    chance = np.random.default_rng(1)
    gold, shares = chance.integers(0, 3, 300), chance.dirichlet([1, 1, 1], 300)
    comparison = write(tmp_path, gold, [shares], labels=("a", "b", "c"))
    (found,) = arm_calibrations(comparison, "all")
    alone = reliability(probabilities_of(comparison.cells[0]), gold)
    assert found.ece == pytest.approx(alone.ece, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high), abs=0.02)  # other draws of the same rows
    assert [each.rows for each in found.bins] == [each.rows for each in alone.bins]


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_right_probabilities_show_about_the_error_that_chance_gives(tmp_path_factory, seed):
    chance = np.random.default_rng(seed)
    sure = chance.uniform(0, 1, 400)
    gold = (chance.uniform(0, 1, 400) < sure).astype(int)
    (found,) = arm_calibrations(write(tmp_path_factory.mktemp("right"), gold, [second(sure)]), "all")
    assert 0.3 * found.chance < found.ece < 2.2 * found.chance
    assert sum(each.rows for each in found.bins) == 400
    assert len(found.bins) <= NUM_BINS


def test_an_arm_without_probabilities_and_the_majority_class_are_left_out(tmp_path):
    make_comparison(
        tmp_path, arms={"majority": 0.5, "tfidf": 0.8, "scratch": 0.7}, seeds=2, texts=80, probabilities=True
    )
    comparison = load_comparison(tmp_path)
    assert [found.arm for found in arm_calibrations(comparison, "all")] == ["tfidf", "scratch"]
    path = tmp_path / "cells" / "scratch-all-seed1.json"
    write_record(tmp_path, comparison.of("scratch", "all")[1].model_copy(update={"probabilities": None}))
    assert path.is_file()
    assert [found.arm for found in arm_calibrations(load_comparison(tmp_path), "all")] == ["tfidf"]


def test_a_diagram_says_what_it_shows(tmp_path):
    (found,) = arm_calibrations(write(tmp_path, [1, 1, 1, 0], [second([0.9] * 4)]), "all")
    (drawing,) = reliability_diagrams([found])
    assert drawing.name == "calibration-scratch"
    span = f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})"
    assert drawing.caption == f"Right answers by certainty: calibration error 15.0 points {span}."
    assert ">from scratch<" in svg(drawing.draw(2.9))


@pytest.mark.parametrize("seeds", [1, 3])
def test_right_probabilities_are_not_called_wrong(seeds):
    """Nineteen times in twenty the interval begins at 0, where the truth is; what was measured is well above it."""
    chance, held = np.random.default_rng(0), 0
    for _ in range(200):
        sure = chance.uniform(0.5, 1, (seeds, 300))
        found = calibration_error(sure, chance.random((seeds, 300)) < sure)
        held += found.low == 0
        assert 0 <= found.low < found.mean < found.high <= 1
        assert found.mean > 0.01  # control: it is no error of 0 that was measured
    assert held >= 190 - 3 * (200 * 0.95 * 0.05) ** 0.5


def test_wrong_probabilities_are():
    chance = np.random.default_rng(0)
    sure = chance.uniform(0.7, 1, (3, 1000))
    found = calibration_error(sure, chance.random((3, 1000)) < sure - 0.2)
    assert found.low < 0.2 < found.high
    assert found.low > 0.12
    assert found.high < 0.28


def test_answers_that_are_all_right_leave_room_for_a_mistake():
    found = calibration_error(np.full((3, 100), 0.99), np.ones((3, 100), bool))
    assert found.mean == pytest.approx(0.01)
    assert found.low == 0
    # as if two more texts had been seen: 1.984 sqrt(2) / 100 above
    assert found.high == pytest.approx(0.01 + 1.984 * 2**0.5 / 100, abs=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 400))
def test_what_rows_add_to_the_error_has_it_as_its_mean(seed, rows):
    rng = np.random.default_rng(seed)
    places, gaps = rng.integers(0, NUM_BINS, rows), rng.uniform(-1, 1, rows)
    values, excess = calibration_values(places, gaps)
    distances = [abs(gaps[places == place].sum()) for place in range(NUM_BINS)]
    assert values.mean() == pytest.approx(sum(distances) / rows)
    deviations = [(gaps[places == place] ** 2).sum() ** 0.5 for place in range(NUM_BINS)]
    assert 0 <= excess <= 1.03 * sum(deviations) / rows
