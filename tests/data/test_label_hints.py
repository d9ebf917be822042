"""Hints are given about labels that are clearly several labels or numbers, and about no others."""

import pytest

from headstart.config.schema import LabelledConfig
from headstart.data.labelled import label_hints, read_labelled


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def hints(tmp_path, labels, column="label", **settings):
    rows = "".join(f'text {number},"{label}"\n' for number, label in enumerate(labels))
    (tmp_path / "mails.csv").write_text(f"text,{column}\n{rows}", encoding="utf-8")
    config = LabelledConfig(label_column=column, **settings)
    return label_hints(read_labelled("mails.csv", config), config)


SINGLE_LABELS = ["complaint", "loan"] * 19


def test_joined_labels_give_a_hint_about_the_separator(tmp_path):
    assert hints(tmp_path, [*SINGLE_LABELS, "complaint|loan", "loan | complaint"]) == [
        "2 of 40 rows of mails.csv have labels such as 'complaint|loan', whose parts are labels too; if a text "
        "may have several labels, set labelled.separator '|'"
    ]


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        ([*SINGLE_LABELS, "complaint|loan"], {}),  # 1 of 39 is less than 5 %
        ([*SINGLE_LABELS, "complaint|card", "card|loan"], {}),  # card never occurs alone
        ([*SINGLE_LABELS, "complaint|loan", "loan|complaint"], {"separator": "|"}),
        ([*SINGLE_LABELS, "complaint|loan", "loan|complaint"], {"task": "classes"}),
        ([*SINGLE_LABELS, "complaint|loan", "loan;complaint"], {}),  # each separator is counted separately
    ],
    ids=["few", "unknown parts", "separator set", "task set", "two separators"],
)
def test_other_labels_give_no_hint_about_a_separator(tmp_path, labels, settings):
    assert hints(tmp_path, labels, **settings) == []


@pytest.mark.parametrize("column", ["stars", "Rating", "score"])
def test_stars_read_as_names_give_a_hint_about_ratings(tmp_path, column):
    assert hints(tmp_path, [1, 2, 3, 4, 5, 5], column) == [
        f"the labels of mails.csv are 5 whole numbers ({column}), read as class names without an order; "
        "labelled.task rating reads them as numbers"
    ]


@pytest.mark.parametrize(
    ("labels", "column", "settings"),
    [
        ([0, 1, 2], "stars", {}),
        ([1, 2, 3, 4], "label", {}),
        ([1, 2, 3, "none"], "stars", {}),
        ([1, 2, 3, 4], "stars", {"task": "classes"}),
        ([1, 2, 3, 4], "stars", {"task": "rating"}),
    ],
    ids=["three", "another name", "a word", "classes set", "rating set"],
)
def test_other_numbers_give_no_hint_about_ratings(tmp_path, labels, column, settings):
    assert hints(tmp_path, labels, column, **settings) == []
