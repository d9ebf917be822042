"""The headline tiles of a report, and estimates with and without leaked texts."""

import pytest

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.statistics import differences_without_leaks
from headstart.report.summary import headline_tiles
from report.test_error_tables import page_text

ARMS = {"majority": 0.5, "linear": 0.84, "scratch": 0.75, "pretrained": 0.8}


def test_the_tiles_show_points_labels_and_epochs_with_intervals(tmp_path):
    make_comparison(tmp_path, arms=ARMS, seeds=4, budgets=(100, 400, "all"), texts=1500)
    accuracy, labels, epochs = headline_tiles(load_comparison(tmp_path))
    assert (accuracy.name, accuracy.unit, accuracy.value[0]) == ("accuracy", "points", "+")
    assert accuracy.interval.startswith("95 % interval +")
    assert accuracy.note.startswith("on test with all labels: ")
    assert (labels.name, labels.unit) == ("labels saved", "labels")
    # with 400 labels it is better than the other with all 1,600: a figure is known for 100 only
    assert (
        labels.note == f"with 100 labels the accuracy of the from-scratch network with about {100 + int(labels.value)}"
    )
    assert (epochs.name, epochs.unit) == ("epochs saved", "epochs")
    assert int(epochs.value) >= 3
    assert epochs.note.endswith(f"; the from-scratch network needs {int(epochs.value) + 1}")
    text = page_text(render(load_comparison(tmp_path)))
    for tile in (accuracy, labels, epochs):
        assert f"{tile.name} {tile.value} {tile.unit} {tile.interval} {tile.note}" in text


def test_one_seed_proves_nothing_and_one_number_of_labels_measures_no_labels(tmp_path):
    accuracy, labels, epochs = headline_tiles(
        load_comparison(write_answers(tmp_path, {"scratch": {0: "1100"}, "pretrained": {0: "1111"}}))
    )
    assert (accuracy.value, accuracy.interval) == ("+50.0", "one seed: not conclusive")
    assert (labels.value, labels.interval) == ("–", "not measured")
    assert labels.note == "compare with --labels 50,200,all to measure it"
    assert (epochs.value, epochs.interval) == ("–", "one seed: not conclusive")


def test_a_gain_that_is_not_measurable_has_no_number_of_labels(tmp_path):
    make_comparison(tmp_path, arms={"scratch": 0.7, "pretrained": 0.7}, seeds=2, budgets=("all",), texts=60)
    make_comparison(tmp_path, arms={"scratch": 0.7, "pretrained": 0.5}, seeds=2, budgets=(800, "all"), texts=60)
    accuracy, labels, _ = headline_tiles(load_comparison(tmp_path))
    assert accuracy.value.startswith("−")
    assert (labels.value, labels.note) == ("–", "there is no clear gain to express in labels")


def test_a_gain_that_is_not_measurable_in_epochs_has_no_number_of_epochs(tmp_path):
    """The pretrained arm is not ahead after one epoch: there is no number and no interval."""
    answers = {"scratch": {0: "1100", 1: "1010"}, "pretrained": {0: "1111", 1: "0111"}}
    curves = {"scratch": (0.6, 0.7), "pretrained": (0.5, 0.7)}
    epochs = headline_tiles(load_comparison(write_answers(tmp_path, answers, curves=curves)))[2]
    assert (epochs.value, epochs.unit, epochs.interval) == ("–", "", "not measurable")
    assert epochs.note == "after one epoch it is not clearly above the from-scratch network"


def test_without_both_networks_there_are_no_tiles(tmp_path):
    assert (
        headline_tiles(load_comparison(write_answers(tmp_path, {"linear": {0: "1101"}, "scratch": {0: "1100"}}))) == []
    )


def test_every_arm_and_the_gain_are_estimated_with_and_without_leaked_texts(tmp_path):
    answers = {
        "linear": {0: "10101111"},
        "scratch": {0: "11001100", 1: "11101100"},
        "pretrained": {0: "11111100", 1: "11111110"},
    }
    comparison = load_comparison(write_answers(tmp_path, answers, overlap=(0,), near=(3,)))
    rows = differences_without_leaks(comparison)
    assert [(row.arm, row.other) for row in rows] == [
        ("linear", None),
        ("scratch", None),
        ("pretrained", None),
        ("pretrained", "scratch"),
    ]
    assert [row.clean.texts for row in rows] == [6] * 4
    assert [row.every.mean for row in rows] == [0.75, 9 / 16, 13 / 16, 0.25]
    assert [row.clean.mean for row in rows] == pytest.approx([5 / 6, 7 / 12, 9 / 12, 2 / 12])
    text = page_text(render(comparison))
    assert "Pretrained − from scratch +25.0" in text
    assert (
        "without the 1 test text with an exact duplicate in train and the 1 with a near-duplicate, all labels." in text
    )


def test_no_leaked_text_or_only_leaked_texts_give_no_estimates(tmp_path):
    answers = {"scratch": {0: "1100"}}
    assert differences_without_leaks(load_comparison(write_answers(tmp_path / "a", answers))) == []
    assert differences_without_leaks(load_comparison(write_answers(tmp_path / "b", answers, overlap=range(4)))) == []
