"""The gain of pretraining in epochs and in labels, each read off a curve whose answer is known."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.report.gain import (
    MIN_TEXT_FRACTION,
    CurvePoint,
    best_so_far,
    epochs_needed,
    epochs_to_reach,
    gain,
    isotonic,
    labels_needed,
    labels_to_reach,
    text_variance_fraction,
)
from headstart.report.load import best_linear, load_comparison, pretrained_and_scratch
from headstart.report.page import write_report


def table(num_correct, texts=1000):
    """One seed that is correct on the first so many of a thousand texts."""
    return np.array([[float(index < num_correct) for index in range(texts)]])


CURVE = np.stack([table(600), table(700), table(800)])
SIZES = (100, 400, 1600)


@pytest.mark.parametrize(
    ("num_correct", "expected"),
    [(700, 400), (650, 200), (750, 800), (775, 1600 / 2**0.5), (800, 1600), (600, 100), (590, 100), (801, None)],
)
def test_a_point_between_two_numbers_of_labels_is_interpolated_on_a_log_scale(num_correct, expected):
    result = labels_to_reach(table(num_correct), CURVE, SIZES).at
    assert result is expected is None or result == pytest.approx(expected)


def test_the_interval_of_labels_is_the_points_that_cannot_be_distinguished():
    result = labels_to_reach(table(700), CURVE, SIZES)
    # a fraction x of the way to the next size they differ by x on 100 of 1000 texts: by .1 x, with variance .09 x² per text;
    # .1 x = 1.962 sqrt(.09 x² / 999 + 2 / 1000²) gives x = .0282
    assert result.low == pytest.approx(400 / 4**0.0282, rel=0.005)
    assert result.high == pytest.approx(400 * 4**0.0282, rel=0.005)
    assert (result.first, result.last) == (100, 1600)
    few = labels_to_reach(table(70, 100), np.stack([table(60, 100), table(70, 100), table(80, 100)]), SIZES)
    assert few.low < result.low < result.high < few.high  # control: fewer texts say less


def test_an_accuracy_indistinguishable_from_the_end_of_the_curve_has_no_upper_end():
    assert labels_to_reach(table(799), CURVE, SIZES).high is None
    assert labels_to_reach(table(601), CURVE, SIZES).low == pytest.approx(100)


def test_a_lucky_number_of_labels_is_averaged_with_its_neighbour():
    lucky = np.stack([table(600), table(800), table(700), table(900)])
    # the two in the middle count as 750: 780 is a fifth of the way from there to 900
    assert labels_to_reach(table(780), lucky, (100, 200, 400, 800)).at == pytest.approx(400 * 2**0.2)


curves = st.lists(st.integers(0, 60), min_size=2, max_size=6)


@given(curves)
def test_the_isotonic_curve_never_falls_keeps_the_mean_and_leaves_rising_curves_unchanged(num_correct):
    curve = np.stack([table(right, 60) for right in num_correct])
    result = isotonic(curve)
    levels = result.mean(axis=(1, 2))
    assert (np.diff(levels) >= -1e-12).all()
    assert levels.mean() == pytest.approx(curve.mean())
    assert result.shape == curve.shape
    # the levels, not every text: means that are equal up to rounding may be pooled again
    assert isotonic(result).mean(axis=(1, 2)) == pytest.approx(levels)
    if num_correct == sorted(num_correct):
        assert (result == curve).all()


@given(curves, st.integers(0, 60), st.integers(0, 60))
def test_a_better_arm_never_saves_fewer_labels(num_correct, one, other):
    curve, sizes = (
        np.stack([table(right, 60) for right in num_correct]),
        [2**power for power in range(4, 4 + len(num_correct))],
    )
    low, high = (labels_to_reach(table(right, 60), curve, sizes) for right in sorted((one, other)))
    assert (low.at or np.inf) <= (high.at or np.inf) + 1e-9
    assert (low.low or np.inf) <= (low.at or np.inf) + 1e-9
    assert (low.at or np.inf) <= (low.high or np.inf) + 1e-9


@given(curves, st.integers(0, 60), st.randoms(use_true_random=False))
@example([0, 51, 32, 40], 41, Random(0))  # 41 are as many as the last three have on average: a tie from 32 labels on
def test_the_order_of_test_texts_does_not_change_the_number_of_labels(num_correct, right, chance):
    curve, sizes = (
        np.stack([table(count, 60) for count in num_correct]),
        [2**power for power in range(4, 4 + len(num_correct))],
    )
    order = chance.sample(range(60), 60)
    one = labels_to_reach(table(right, 60), curve, sizes)
    other = labels_to_reach(table(right, 60)[:, order], curve[:, :, order], sizes)
    for name in ("at", "low", "high"):
        assert getattr(other, name) == pytest.approx(getattr(one, name))


def test_the_interval_of_labels_contains_the_truth_95_times_in_100():
    """Scratch gains 6 points each time labels grow fourfold; a gain of 4 points at 200 labels equals 200 * 4^(2/3)."""
    rng = np.random.default_rng(5)
    contained, trials, seeds, texts = 0, 200, 3, 300
    sizes, levels, truth = (50, 200, 800, 3200), (0.60, 0.66, 0.72, 0.78), 200 * 4 ** (4 / 6)
    for _ in range(trials):
        ease = rng.random(texts)  # half of a text's difficulty is common to all runs, half is drawn for each
        tables = [_runs(rng, ease, level, seeds) for level in (0.70, *levels)]
        result = labels_to_reach(tables[0], np.stack(tables[1:]), sizes)
        contained += result.low is not None and result.low <= truth <= (result.high or np.inf)
    assert contained / trials >= 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5


def _runs(rng, ease, level, seeds):
    luck = rng.normal(0, 0.02, (seeds, 1))
    mixed = np.where(rng.random((seeds, len(ease))) < 0.5, ease, rng.random((seeds, len(ease))))
    return (mixed < level + luck).astype(float)


def test_a_comparison_with_one_number_of_labels_saves_no_labels(tmp_path):
    comparison = load_comparison(write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {0: "1110"}}))
    assert labels_needed(comparison, "pretrained", "scratch", "all") is None


def test_an_arm_without_common_seeds_saves_no_labels(tmp_path):
    write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {1: "1110"}})
    write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {1: "1110"}}, budget=8)
    assert labels_needed(load_comparison(tmp_path), "pretrained", "scratch", 8) is None
    assert gain(load_comparison(tmp_path), 8) is None


def test_all_labels_and_the_same_number_of_labels_are_one_point_of_the_curve(tmp_path):
    for budget in (8, 1600, "all"):
        write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {0: "1110"}}, budget=budget)
    assert labels_needed(load_comparison(tmp_path), "pretrained", "scratch", 8).needed.at is None


@pytest.mark.parametrize(
    ("scratch", "pretrained", "expected"),
    [
        ((0.5, 0.6, 0.7, 0.8), (0.65, 0.9), CurvePoint(3, 3, 3, 1, 4)),
        ((0.5, 0.6, 0.7, 0.6), (0.9, 0.9), CurvePoint(None, None, None, 1, 4)),
        ((0.5, 0.6, 0.7, 0.6), (0.45, 0.9), CurvePoint(1, 1, 1, 1, 4)),
        ((0.5, 0.6, 0.651, 0.652), (0.65, 0.65), CurvePoint(3, 3, None, 1, 4)),
    ],
)
def test_epochs_needed_are_those_until_scratch_reaches_the_first_epoch_of_pretrained(
    tmp_path, scratch, pretrained, expected
):
    answers = {arm: dict.fromkeys(range(3), "10" * 30) for arm in ("scratch", "pretrained")}
    curves = {"scratch": scratch, "pretrained": pretrained}
    result = epochs_needed(
        load_comparison(write_answers(tmp_path, answers, curves=curves)), "pretrained", "scratch", "all"
    )
    assert (result.needed, result.accuracy, result.one_run) == (expected, pytest.approx(pretrained[0]), False)


def test_seeds_that_differ_widen_the_interval_of_epochs(tmp_path):
    rise = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
    for seed, shift in enumerate((-0.05, 0.0, 0.05)):
        answers = {"scratch": {seed: "10" * 30}, "pretrained": {seed: "10" * 30}}
        curves = {"scratch": [value + shift for value in rise], "pretrained": (0.66, 0.9)}
        write_answers(tmp_path, answers, curves=curves)
    result = epochs_needed(load_comparison(tmp_path), "pretrained", "scratch", "all").needed
    # 4.30 * .05 / sqrt(3) = .124 either side of .66: from epoch 2 (.55) to epoch 7 (.80)
    assert result == CurvePoint(5, 2, 7, 1, 7)


def test_one_lucky_epoch_is_not_the_upper_end():
    """Seeds that jump above at different epochs do not stay there; seeds that jump together do."""
    start, below = np.full(3, 0.7), np.full((3, 8), 0.69)
    lucky, lasting = below.copy(), below.copy()
    lucky[0, 3], lucky[1, 4], lucky[2, 5] = 0.75, 0.76, 0.77
    lasting[:, 3:] = 0.75
    assert epochs_to_reach(start, lasting, 0.0, 2000) == CurvePoint(4, 4, 4, 1, 8)
    result = epochs_to_reach(start, lucky, 0.0, 2000)
    assert (result.at, result.high) == (4, None)


def test_a_curve_that_falls_again_keeps_its_upper_end():
    start, rise_and_fall = np.full(5, 0.7), np.array([0.5, 0.6, 0.8, 0.8, 0.6, 0.5])
    luck = np.linspace(-0.01, 0.01, 5)[:, None]
    assert epochs_to_reach(start, rise_and_fall + luck, 0.2, 2000) == CurvePoint(3, 3, 3, 1, 6)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 8))
def test_the_interval_of_epochs_contains_its_point(seed, seeds, epochs):
    rng = np.random.default_rng(seed)
    result = epochs_to_reach(rng.uniform(0.6, 0.8, seeds), rng.uniform(0.5, 0.9, (seeds, epochs)), 0.3, 400)
    low, at, high = (np.inf if end is None else end for end in (result.low, result.at, result.high))
    assert 1 <= low <= at <= high


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_the_best_epoch_of_a_seed_is_selected_by_the_other_seeds(seed, seeds):
    curve = np.random.default_rng(seed).uniform(0.5, 0.9, (seeds, 6))
    result = best_so_far(curve)
    for seed_index in range(seeds):
        others = np.delete(curve, seed_index, axis=0).mean(axis=0)
        assert result[seed_index].tolist() == [curve[seed_index, others[: epoch + 1].argmax()] for epoch in range(6)]


def test_the_text_fraction_of_the_variance_is_taken_from_test():
    """Both arms are better on test than after their first epochs, where correctness varies more."""
    ours, theirs = np.ones((3, 200)), np.ones((3, 200))
    ours[:, :10], theirs[:, -10:] = 0, 0
    assert text_variance_fraction(ours, theirs) == pytest.approx(
        0.1 / 0.095 * 200 / 199
    )  # they never err on the same text
    # arms that err alike on test, or never, may still have differed after an epoch
    assert (
        text_variance_fraction(ours, ours)
        == text_variance_fraction(np.ones((3, 9)), np.ones((3, 9)))
        == MIN_TEXT_FRACTION
    )
    start, curve = np.full(3, 0.65), np.tile([0.5, 0.6, 0.7, 0.8], (3, 1))
    assert epochs_to_reach(start, curve, 0.0, 200) == CurvePoint(3, 3, 3, 1, 4)  # control
    # 1.97 sqrt((.2275 + .24) 1.06 / 200) = .098: .6 and .7 cannot be distinguished from .65, .8 can
    assert epochs_to_reach(start, curve, 1.06, 200) == CurvePoint(3, 2, 4, 1, 4)


def test_arms_without_epochs_save_no_epochs(tmp_path):
    comparison = load_comparison(write_answers(tmp_path, {"linear": {0: "1100"}, "pretrained": {0: "1110"}}))
    assert epochs_needed(comparison, "pretrained", "linear", "all") is None


def test_validation_selects_among_pretrained_folders_and_among_linear_arms(tmp_path):
    arms = {"majority": 0.99, "naive_bayes": 0.8, "nbsvm": 0.9, "linear": 0.7, "scratch": 0.6, "pretrained": 0.7}
    comparison = load_comparison(make_comparison(tmp_path, arms=arms, seeds=2))
    assert (pretrained_and_scratch(comparison), best_linear(comparison)) == (("pretrained", "scratch"), "nbsvm")
    flipped = tuple(
        run.model_copy(update={"valid": run.valid.model_copy(update={"accuracy": 1.0})}) if run.arm == "linear" else run
        for run in comparison.runs
    )
    assert best_linear(replace(comparison, runs=flipped)) == "linear"


def test_results_json_has_the_gain_from_all_labels_to_few(tmp_path):
    arms = {"majority": 0.5, "linear": 0.7, "scratch": 0.7, "pretrained": 0.8}
    folder = make_comparison(tmp_path, arms=arms, seeds=3, budgets=(50, 400, "all"), texts=800)
    write_report(folder)
    result = json.loads((folder / "results.json").read_text())["gain"]
    assert [(row["budget"], row["measurable"]) for row in result] == [("all", True), (400, True), (50, True)]
    few = result[-1]
    assert (few["arm"], few["other"], few["labels"]["rows"]) == ("pretrained", "scratch", 50)
    assert few["labels"]["needed"]["low"] > 50
    assert few["linear_labels"]["other"] == "linear"
    assert result[0]["labels"]["needed"]["at"] is None
    assert result[0]["epochs"]["needed"]["last"] == 15
    page = (folder / "report.html").read_text("utf-8")
    assert "Gain from pretraining" in page
    assert '<th role="columnheader">labels saved</th>' in page
    assert page.count("not run with more labels") == 1  # all labels: nothing larger to read off
    assert "more than 0" not in page


def test_the_text_fraction_of_the_variance_is_at_least_a_third():
    alike = np.tile([1.0, 0.0, 1.0, 1.0], (3, 1))  # both arms err on the same texts: their difference has no variance
    assert text_variance_fraction(alike, alike) == pytest.approx(1 / 3)
    ours, theirs = np.tile([1.0, 0.0] * 20, (3, 1)), np.tile([0.0, 1.0] * 20, (3, 1))
    assert text_variance_fraction(ours, theirs) > 1 / 3  # control: a larger fraction is used as it is
