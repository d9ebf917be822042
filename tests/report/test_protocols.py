"""Test accuracy by the course protocol and by the honest one, each value worked out by hand."""

import html
import json
import re

import pytest

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.report.load import load_comparison
from headstart.report.page import render, write_report
from headstart.report.statistics import Range, protocol_accuracies

ANSWERS = {
    "linear": {0: "11101110"},
    "scratch": {0: "11110000", 1: "11111000"},
    "pretrained": {0: "11111100", 1: "11110110"},
}
CURVES = {"scratch": (0.5, 0.6, 0.55), "pretrained": (0.7, 0.6, 0.65)}
ON_TEST = {
    "scratch": {0: (0.25, 0.5, 0.625), 1: (0.375, 0.625, 0.5)},
    "pretrained": {0: (0.75, 0.5, 0.875), 1: (0.75, 0.625, 0.625)},
}


@pytest.fixture
def folder(tmp_path):
    return write_answers(tmp_path, ANSWERS, curves=CURVES, test_curves=ON_TEST, overlap=(0, 1))


def page_text(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_the_course_protocol_takes_the_best_epoch_on_test_and_the_honest_one_does_not(folder):
    scratch, pretrained = protocol_accuracies(load_comparison(folder), "all")
    assert (scratch.arm, scratch.seeds) == ("scratch", 2)
    assert scratch.course == Range(0.625, 0.625, 0.625)  # epoch 3 of seed 0, epoch 2 of seed 1
    assert scratch.honest_every_row == Range(0.5625, 0.5, 0.625)  # epoch 2 of both, as validation chose
    assert pretrained.course == Range(0.8125, 0.75, 0.875)
    assert pretrained.honest_every_row == Range(0.75, 0.75, 0.75)


def test_the_honest_protocol_excludes_texts_that_also_appear_in_train(folder):
    scratch, pretrained = protocol_accuracies(load_comparison(folder), "all")
    assert scratch.honest == Range((2 / 6 + 3 / 6) / 2, 2 / 6, 3 / 6)
    assert pretrained.honest == Range(4 / 6, 4 / 6, 4 / 6)
    assert pretrained.optimism == pytest.approx(0.8125 - 4 / 6)


def test_first_and_last_epoch_are_ranges_over_seeds(folder):
    scratch, pretrained = protocol_accuracies(load_comparison(folder), "all")
    assert scratch.first == Range(0.3125, 0.25, 0.375)
    assert scratch.last == Range(0.5625, 0.5, 0.625)
    assert pretrained.first == Range(0.75, 0.75, 0.75)
    assert pretrained.last == Range(0.75, 0.625, 0.875)


def test_without_duplicates_both_honest_accuracies_are_equal(tmp_path):
    comparison = load_comparison(write_answers(tmp_path, ANSWERS, curves=CURVES, test_curves=ON_TEST))
    assert all(row.honest == row.honest_every_row for row in protocol_accuracies(comparison, "all"))


def test_if_every_test_text_appears_in_train_there_is_no_honest_accuracy(tmp_path):
    folder = write_answers(tmp_path, ANSWERS, curves=CURVES, test_curves=ON_TEST, overlap=range(8))
    row = protocol_accuracies(load_comparison(folder), "all")[0]
    assert (row.honest, row.optimism) == (None, None)
    assert row.honest_every_row == Range(0.5625, 0.5, 0.625)
    assert "The same runs under two protocols" in render(load_comparison(folder))


def test_an_arm_that_did_not_measure_test_after_every_epoch_has_no_protocols(tmp_path):
    some = {"scratch": ON_TEST["scratch"], "pretrained": {0: ON_TEST["pretrained"][0]}}
    comparison = load_comparison(write_answers(tmp_path, ANSWERS, curves=CURVES, test_curves=some))
    assert [row.arm for row in protocol_accuracies(comparison, "all")] == ["scratch"]


def test_the_page_shows_both_protocols(folder):
    text = page_text(write_report(folder).read_text("utf-8"))
    assert "Honest protocol: the epoch that validation chose, test read once, without the 2 test texts" in text
    assert "From scratch 2 seeds 62.5 % 41.7 % 33.3 to 50.0 56.2 % 50.0 to 62.5 +20.8 31.2 % 25.0 to 37.5" in text
    assert "Pretrained 2 seeds 81.2 % 75.0 to 87.5 66.7 % 75.0 % +14.6 75.0 % 75.0 % 62.5 to 87.5" in text


def test_results_json_has_both_protocols_for_every_number_of_labels(tmp_path):
    arms = {"linear": 0.84, "scratch": 0.75, "pretrained": 0.8}
    write_report(make_comparison(tmp_path, arms=arms, seeds=2, budgets=(100, "all"), texts=100, look_at_test=True))
    rows = json.loads((tmp_path / "results.json").read_text())["protocols"]
    assert [(row["arm"], row["budget"]) for row in rows] == [
        ("scratch", 100),
        ("pretrained", 100),
        ("scratch", "all"),
        ("pretrained", "all"),
    ]
    for row in rows:
        assert row["optimism"] == pytest.approx(row["course"]["mean"] - row["honest"]["mean"])


def test_a_comparison_that_read_test_once_has_no_section_on_protocols(tmp_path):
    comparison = load_comparison(write_answers(tmp_path, ANSWERS, curves=CURVES))
    assert protocol_accuracies(comparison, "all") == []
    assert "read two ways" not in render(comparison)
