"""Means and intervals, against numbers worked out by hand."""

import numpy as np
import pytest

from headstart.report.collect import collect
from headstart.report.intervals import estimate
from headstart.report.statistics import paired_difference, summarise
from report.make_comparison import write_answers

T1, T2, T3 = 12.706205, 4.302653, 3.182446  # 97.5 % quantiles of Student's t, from a printed table


def test_one_seed_gives_the_interval_of_the_texts_alone():
    # 1, 0, 1, 1: mean 3/4, variance 1/4, of the mean 1/16, root 1/4
    found = estimate(np.array([[1.0, 0.0, 1.0, 1.0]]), bounds=(-9, 9))
    assert (found.mean, found.seeds, found.texts) == (0.75, 1, 4)
    assert (found.low, found.high) == pytest.approx((0.75 - T3 / 4, 0.75 + T3 / 4), abs=1e-5)


def test_seeds_and_texts_each_bring_their_own_part():
    # rows 1 0 1 / 1 0 0: seed means 2/3 and 1/3, text means 1, 0, 1/2, mean 1/2
    # seeds: variance 1/18 over 2 = 1/36; texts: variance 1/4 over 3 = 1/12
    # rest: -1/6 -1/6 1/3 / 1/6 1/6 -1/3, squares sum to 1/3, over 1 * 2 = 1/6, over 2 * 3 = 1/36
    found = estimate(np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), bounds=(-9, 9))
    half = (T1**2 / 36 + T2**2 * (1 / 12 - 1 / 36)) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_equal_seeds_leave_the_texts_alone():
    values = np.array([[1.0, 0.0, 1.0, 1.0]])
    once, thrice = estimate(values), estimate(np.repeat(values, 3, axis=0))
    assert (thrice.mean, thrice.low, thrice.high) == pytest.approx((once.mean, once.low, once.high))


def test_an_interval_stays_within_what_is_possible():
    found = estimate(np.array([[1.0, 0.0]]), bounds=(0, 1))
    assert (found.low, found.high) == (0, 1)


def test_one_text_says_nothing_of_others():
    found = estimate(np.array([[1.0], [0.0]]))
    assert (found.mean, found.low, found.high) == (0.5, -1.0, 1.0)


def test_the_summary_of_an_arm_is_over_its_seeds(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "1100", 1: "1110", 2: "1111"}}, overlap=[0, 3])
    summary = summarise(collect(folder), "scratch", "all")
    assert summary.accuracy.mean == 0.75
    assert summary.sd == 0.25
    assert (summary.worst.seed, summary.worst.test.accuracy) == (0, 0.5)
    assert summary.without_overlap == pytest.approx(5 / 6)  # texts 1 and 2: 2, 2, 2 right but for one
    assert summary.best_epochs == (2, 2, 2)
    # gold 0 1 0 1; 1100: F1 = 1/2 and 1/2; 1110: 4/5 and 2/3; 1111: 1 and 1
    assert summary.macro_f1 == pytest.approx((0.5 + (4 / 5 + 2 / 3) / 2 + 1) / 3)


def test_an_arm_without_a_run_has_no_summary(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "1100"}})
    assert summarise(collect(folder), "pretrained", "all") is None


def test_a_paired_difference_is_over_the_shared_seeds(tmp_path):
    folder = write_answers(
        tmp_path, {"scratch": {0: "100", 1: "110", 5: "000"}, "pretrained": {0: "110", 1: "111", 9: "000"}}
    )
    found = paired_difference(collect(folder), "pretrained", "scratch", "all")
    # differences 0 1 0 / 0 0 1
    assert (found.mean, found.seeds) == (pytest.approx(1 / 3), 2)
    assert found.mean - found.low == pytest.approx(T2 * (max(0, 1 / 36 - 1 / 12)) ** 0.5, abs=1e-5)


def test_arms_without_a_shared_seed_have_no_difference(tmp_path):
    folder = write_answers(tmp_path, {"scratch": {0: "100"}, "pretrained": {1: "110"}})
    assert paired_difference(collect(folder), "pretrained", "scratch", "all") is None
    assert paired_difference(collect(folder), "pretrained", "tfidf", "all") is None


@pytest.mark.parametrize("seeds", [{0: "1110"}, {4: "1110"}, {0: "1110", 1: "1110", 2: "1110"}])
def test_an_arm_that_does_not_train_stands_beside_every_seed(tmp_path, seeds):
    networks = {0: "1100", 1: "1000", 2: "1101"}
    folder = write_answers(tmp_path, {"tfidf": seeds, "pretrained": networks})
    found = paired_difference(collect(folder), "tfidf", "pretrained", "all")
    other = paired_difference(collect(folder), "pretrained", "tfidf", "all")
    marks = [[1 - int(mark) if i < 3 else -int(mark) for i, mark in enumerate(row)] for row in networks.values()]
    by_hand = estimate(np.array(marks, dtype=float))
    assert (found.mean, found.low, found.high) == pytest.approx((by_hand.mean, by_hand.low, by_hand.high))
    assert (other.mean, other.low, other.high) == pytest.approx((-found.mean, -found.high, -found.low))
    assert found.seeds == 3
