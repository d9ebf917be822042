"""Means and intervals, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.metrics import confusion_matrix, macro_f1
from headstart.report.intervals import estimate, half_width, macro_f1_values
from headstart.report.load import load_comparison
from headstart.report.statistics import is_imbalanced, paired_difference, summarise

T1, T2, T3 = 12.706205, 4.302653, 3.182446  # 97.5 % quantiles of Student's t, from a printed table


def test_one_seed_gives_the_interval_of_the_texts_alone():
    # 1, 0, 1, 1: mean 3/4, variance 1/4, of the mean 1/16; two more texts: 2/16; together 3/16
    result = estimate(np.array([[1.0, 0.0, 1.0, 1.0]]), bounds=(-9, 9))
    assert (result.mean, result.seeds, result.texts) == (0.75, 1, 4)
    assert (result.low, result.high) == pytest.approx((0.75 - T3 * 0.1875**0.5, 0.75 + T3 * 0.1875**0.5), abs=1e-5)


def test_the_interval_has_a_component_of_seeds_and_one_of_texts():
    # rows 1 0 1 / 1 0 0: seed means 2/3 and 1/3, text means 1, 0, 1/2, mean 1/2
    # seeds: variance 1/18 over 2 = 1/36; texts: variance 1/4 over 3 = 1/12
    # residual: -1/6 -1/6 1/3 / 1/6 1/6 -1/3, squares sum to 1/3, over 1 * 2 = 1/6, over 2 * 3 = 1/36
    result = estimate(np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), bounds=(-9, 9))
    half = (T1**2 / 36 + T2**2 * (1 / 12 - 1 / 36 + 2 / 9)) ** 0.5
    assert (result.low, result.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_equal_seeds_give_the_interval_of_the_texts_alone():
    values = np.array([[1.0, 0.0, 1.0, 1.0]])
    once, thrice = estimate(values), estimate(np.repeat(values, 3, axis=0))
    assert (thrice.mean, thrice.low, thrice.high) == pytest.approx((once.mean, once.low, once.high))


def test_an_interval_is_clipped_to_its_bounds():
    result = estimate(np.array([[1.0, 0.0]]), bounds=(0, 1))
    assert (result.low, result.high) == (0, 1)


def test_one_text_gives_the_widest_interval():
    result = estimate(np.array([[1.0], [0.0]]))
    assert (result.mean, result.low, result.high) == (0.5, -1.0, 1.0)


def test_the_summary_of_an_arm_is_over_its_seeds(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "1100", 1: "1110", 2: "1111"}}, overlap=[0, 3])
    summary = summarise(load_comparison(folder), "scratch", "all")
    assert summary.accuracy.mean == 0.75
    assert summary.sd == 0.25
    assert (summary.worst.seed, summary.worst.test.accuracy) == (0, 0.5)
    assert summary.without_overlap == pytest.approx(5 / 6)  # texts 1 and 2: five of six correct
    assert summary.best_epochs == (2, 2, 2)
    # gold 0 1 0 1; 1100: F1 = 1/2 and 1/2; 1110: 4/5 and 2/3; 1111: 1 and 1
    assert summary.macro_f1 == pytest.approx((0.5 + (4 / 5 + 2 / 3) / 2 + 1) / 3)


def test_an_arm_without_a_run_has_no_summary(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "1100"}})
    assert summarise(load_comparison(folder), "pretrained", "all") is None


def test_a_paired_difference_is_over_the_common_seeds(tmp_path):
    folder = write_answers(
        tmp_path, {"scratch": {0: "100", 1: "110", 5: "000"}, "pretrained": {0: "110", 1: "111", 9: "000"}}
    )
    result = paired_difference(load_comparison(folder), "pretrained", "scratch", "all")
    # differences 0 1 0 / 0 0 1
    assert (result.mean, result.seeds) == (pytest.approx(1 / 3), 2)
    # seeds: means 1/3 and 1/3; texts: 0, 1/2, 1/2, variance 1/12, less the residual, 1/2, over 2: nothing but the floor
    assert (result.low, result.high) == (-1.0, 1.0)  # which is more than there is room for
    assert not result.measurable


def test_arms_without_a_common_seed_have_no_difference(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "100"}, "pretrained": {1: "110"}})
    assert paired_difference(load_comparison(folder), "pretrained", "scratch", "all") is None
    assert paired_difference(load_comparison(folder), "pretrained", "linear", "all") is None


@pytest.mark.parametrize("seeds", [{0: "1110"}, {4: "1110"}, {0: "1110", 1: "1110", 2: "1110"}])
def test_a_deterministic_arm_is_paired_with_every_seed(tmp_path, seeds):
    networks = {0: "1100", 1: "1000", 2: "1101"}
    folder = write_answers(tmp_path, {"linear": seeds, "pretrained": networks})
    result = paired_difference(load_comparison(folder), "linear", "pretrained", "all")
    other = paired_difference(load_comparison(folder), "pretrained", "linear", "all")
    marks = [[1 - int(mark) if i < 3 else -int(mark) for i, mark in enumerate(row)] for row in networks.values()]
    by_hand = estimate(np.array(marks, dtype=float))
    assert (result.mean, result.low, result.high) == pytest.approx((by_hand.mean, by_hand.low, by_hand.high))
    assert (other.mean, other.low, other.high) == pytest.approx((-result.mean, -result.high, -result.low))
    assert result.seeds == 3


def test_a_run_on_sampled_rows_is_not_paired_with_other_seeds(tmp_path):
    write_answers(tmp_path, {"linear": {0: "1110"}, "scratch": {0: "1100", 1: "1000"}}, budget=8)
    assert paired_difference(load_comparison(tmp_path), "linear", "scratch", 8).seeds == 1
    write_answers(tmp_path, {"linear": {0: "1110"}, "scratch": {0: "1100", 1: "1000"}})
    assert paired_difference(load_comparison(tmp_path), "linear", "scratch", "all").seeds == 2  # control


def test_the_interval_of_equal_predictions_has_a_width():
    result = estimate(np.zeros((3, 200)))
    assert (result.mean, result.measurable) == (0.0, False)
    # two more texts of 200, one going either way: 1.97 standard errors of sqrt(2) / 200
    assert (result.low, result.high) == pytest.approx((-0.01394, 0.01394), abs=1e-5)
    assert estimate(np.zeros((3, 20_000))).high < result.high / 99  # control: more texts say more


def test_one_run_of_an_arm_that_trains_is_not_measurable(tmp_path):
    answers = {
        "linear": {0: "0" * 90},
        "naive_bayes": {0: "1" * 90},
        "scratch": {0: "0" * 90},
        "pretrained": {0: "1" * 90},
    }
    comparison = load_comparison(write_answers(tmp_path, answers))
    trained = paired_difference(comparison, "pretrained", "scratch", "all")
    assert trained.low > 0
    assert (trained.one_run, trained.measurable) == (True, False)
    fixed = paired_difference(comparison, "naive_bayes", "linear", "all")  # control: both arms are deterministic
    assert (fixed.one_run, fixed.measurable) == (False, True)


tables = arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(2, 12)), elements=st.sampled_from([-1.0, 0.0, 1.0])
)


@given(tables)
def test_the_estimate_of_negated_values_is_the_negated_estimate(values_SN):
    one, other = estimate(values_SN), estimate(-values_SN)
    assert (other.mean, other.low, other.high) == pytest.approx((-one.mean, -one.high, -one.low), abs=1e-12)


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_seeds_and_of_texts_does_not_change_an_estimate(values_SN, rng):
    seeds, texts = (rng.sample(range(size), size) for size in values_SN.shape)
    one, other = estimate(values_SN), estimate(values_SN[seeds][:, texts])
    assert (other.mean, other.low, other.high) == pytest.approx((one.mean, one.low, one.high), abs=1e-12)


@given(tables)
def test_no_interval_has_width_zero(values_SN):
    assert half_width(values_SN) > 0


@given(arrays(np.float64, (3, 4, 9), elements=st.sampled_from([-1.0, 0.0, 1.0])))
def test_half_width_of_many_tables_equals_that_of_each(values_BSN):
    assert half_width(values_BSN) == pytest.approx([half_width(values_SN) for values_SN in values_BSN])


@given(st.integers(2, 4), st.data())
def test_the_mean_of_macro_f1_values_is_macro_f1(labels, data):
    label_lists = st.lists(st.integers(0, labels - 1), min_size=6, max_size=30)
    gold = np.array(data.draw(label_lists))
    predictions = np.array(data.draw(st.lists(st.integers(0, labels - 1), min_size=len(gold), max_size=len(gold))))
    result = macro_f1_values(gold, predictions, labels).mean()
    assert result == pytest.approx(macro_f1(confusion_matrix(gold, predictions, labels)))


def test_the_interval_of_macro_f1_is_about_that_of_a_bootstrap_over_texts():
    rng = np.random.default_rng(3)
    gold = (rng.random(600) < 0.2).astype(np.int64)
    predictions = np.where(rng.random(600) < 0.85, gold, 1 - gold)
    result = estimate(macro_f1_values(gold, predictions, 2)[None])
    drawn = [rng.integers(600, size=600) for _ in range(2000)]
    low, high = np.quantile(
        [macro_f1(confusion_matrix(gold[rows], predictions[rows], 2)) for rows in drawn], (0.025, 0.975)
    )
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.01)
    accuracy = estimate((gold == predictions).astype(float)[None])
    assert result.high - result.low > 1.2 * (accuracy.high - accuracy.low)  # control: it is not accuracy's


def test_labels_are_imbalanced_from_three_to_two(tmp_path):
    comparison = load_comparison(make_comparison(tmp_path, arms={"linear": 0.8}, texts=50))
    test = comparison.data.test
    for counts, expected in (({"a": 29, "b": 21}, False), ({"a": 30, "b": 20}, True), ({"a": 50, "b": 0}, True)):
        data = comparison.data.model_copy(update={"test": test.model_copy(update={"counts": counts})})
        assert is_imbalanced(replace(comparison, data=data)) is expected
