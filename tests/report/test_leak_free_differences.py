"""Test texts that nearly appear in train are excluded like those that appear there exactly."""

import html
import re

import pytest

from fixtures.comparison_folder import write_answers
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.statistics import protocol_accuracies, summarise

ANSWERS = {"scratch": {0: "11001100", 1: "11101100"}}
CURVES = {"scratch": {0: (0.5, 0.6), 1: (0.5, 0.6)}}
LEAKS = [((0, 3), ()), ((0,), (3,)), ((), (3, 0)), ((0, 3), (3,))]


def load(folder, overlap, near):
    return load_comparison(
        write_answers(folder, ANSWERS, curves=CURVES, test_curves=CURVES, overlap=overlap, near=near)
    )


@pytest.mark.parametrize(("overlap", "near"), LEAKS)
def test_near_duplicates_are_excluded_like_exact_ones(tmp_path, overlap, near):
    comparison = load(tmp_path, overlap, near)
    assert comparison.data.test.leaked == (0, 3)
    assert summarise(comparison, "scratch", "all").without_overlap == pytest.approx((3 + 4) / 12)
    assert protocol_accuracies(comparison, "all")[0].honest.mean == pytest.approx((3 + 4) / 12)


@pytest.mark.parametrize(
    ("overlap", "near", "description"),
    [
        ((0, 3), (), "the 2 test texts with an exact duplicate in train"),
        ((0,), (3,), "the 1 test text with an exact duplicate in train and the 1 with a near-duplicate"),
        ((0, 1), (3, 4), "the 2 test texts with an exact duplicate in train and the 2 with a near-duplicate"),
        ((), (3,), "the 1 test text with a near-duplicate in train"),
        ((), (3, 4), "the 2 test texts with a near-duplicate in train"),
    ],
)
def test_the_page_says_which_texts_are_excluded(tmp_path, overlap, near, description):
    page = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", render(load(tmp_path, overlap, near)))).split())
    assert f"* without {description}." in page
    assert f"test read once, without {description}. Means over seeds" in page
