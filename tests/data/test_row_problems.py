"""Problems of labelled rows are named before training: ids for texts, placeholders for labels, rows that repeat."""

import csv

import pytest

from headstart.config.schema import LabelledConfig
from headstart.data.diagnostics import check_scored_rows, check_training_rows, label_problems
from headstart.data.labelled import read_labelled, split_validation
from headstart.errors import DataError

TEXTS = [f"the card number {word} was charged twice" for word in "abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(rows, columns=("text", "label"), **settings):
    with open("train.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    config = LabelledConfig(**settings)
    return read_labelled("train.csv", config), config


def notes(rows, columns=("text", "label"), check=check_training_rows, **settings):
    return check(*table(rows, columns, **settings))


def refusal(rows, columns=("text", "label"), check=check_training_rows, **settings):
    with pytest.raises(DataError) as caught:
        notes(rows, columns, check, **settings)
    return str(caught.value)


def labelled(texts, labels="xy"):
    return [(text, labels[index % len(labels)]) for index, text in enumerate(texts)]


def test_ordinary_rows_have_no_notes():
    assert notes(labelled(TEXTS)) == []


@pytest.mark.parametrize(
    "texts",
    [[f"word{'a' * n}" for n in range(30)], [f"好评{'好' * n}" for n in range(30)], [f"{n} stars" for n in range(30)]],
    ids=["single words", "Chinese", "numbers with words"],
)
def test_short_texts_are_texts(texts):
    assert notes(labelled(texts)) == []


@pytest.mark.parametrize("pattern", ["C-{}", "{}", "2024-01-{}", "https://example.org/case/{}", "a{}f0-9c1d"])
def test_ids_in_place_of_texts_are_refused_with_the_column_that_holds_texts(pattern):
    ids = [pattern.format(10 + n) for n in range(len(TEXTS))]
    rows = [(one, "EN", text, label) for one, (text, label) in zip(ids, labelled(TEXTS), strict=True)]
    columns = ("document", "language", "narrative", "label")
    message = (
        f"the text column 'document' holds ids, numbers or addresses, such as '{ids[0]}', not sentences; 'narrative' "
        "looks like the text column: select it with labelled.text_column"
    )
    assert refusal(rows, columns) == f"train.csv: {message}, or name 'document' to keep it"
    assert refusal(rows, columns, check_scored_rows) == f"train.csv: {message}, or name 'document' to keep it"
    assert notes(rows, columns, text_column="document") == [f"train.csv: {message}"]  # the user's own choice
    assert notes(rows, columns, text_column="narrative") == []


def test_ids_without_a_better_column_are_noted():
    assert notes(labelled([f"C-{n}" for n in range(30)])) == [
        "train.csv: the text column 'text' holds ids, numbers or addresses, such as 'C-0', not sentences; "
        "is this the text column?"
    ]


@pytest.mark.parametrize("name", ["NaN", "nan", "None", "null", "N/A", "-"])
def test_a_placeholder_for_a_missing_label_is_noted_with_its_rows(name):
    rows = [*labelled(TEXTS), ("one more text", name), ("and another", name)]
    assert notes(rows) == [
        f"train.csv: 2 rows have the label '{name}', which usually means that the label is missing; it is "
        "used as a separate label; remove these rows, or empty the cells and set labelled.skip_empty"
    ]


def test_labels_with_a_single_row_are_counted_and_named():
    rows = [*labelled(TEXTS), ("one more text", "rare"), ("and another", "odd")]
    assert notes(rows) == [
        "train.csv: 2 labels have a single row each ('odd', 'rare'): a single row cannot be used for both "
        "training and validation; add rows, merge these labels with others, or remove them"
    ]
    assert notes(rows[:-1]) == [
        "train.csv: 1 label has a single row ('rare'): a single row cannot be used for both training and "
        "validation; add rows, merge these labels with others, or remove them"
    ]
    assert notes(rows, check=check_scored_rows) == []  # a label may be rare in validation


def test_few_different_texts_are_noted_and_one_text_is_refused():
    assert notes(labelled(TEXTS[:9] * 10)) == [
        "train.csv: 90 rows have only 9 different texts; repeated texts add little, and the accuracy on "
        "repeated texts does not carry over to new texts"
    ]
    assert notes(labelled(TEXTS + TEXTS[:25])) == []  # control: more than half of them are different
    assert (
        refusal(labelled(TEXTS[:1] * 4))
        == "train.csv: every row has the same text; a classifier cannot be trained on it"
    )


def test_repeated_texts_that_cannot_be_held_out_are_named_as_the_reason():
    rows = [(text, "xy"[index % 2]) for index, text in enumerate(TEXTS[:4])] * 30
    with pytest.raises(DataError) as caught:
        split_validation(table(rows)[0], 0.2, 0)
    assert str(caught.value) == (
        "train.csv: 120 rows with 4 different texts are too few to hold out 0.2 of each label for validation; "
        "use a validation file"
    )


def test_labels_that_differ_in_case_blanks_or_width_are_noted():
    rows = [("credit card",)] * 3 + [("Credit  card",)] * 2 + [("ｃredit card",)] + [("loan",)]
    (problem,) = label_problems(rows)
    assert problem.message == (
        "4 rows may be misspelt: 'Credit card' and 'credit card' and 'ｃredit card' are different labels"
    )
    assert problem.rows == (0, 1, 2, 5)
