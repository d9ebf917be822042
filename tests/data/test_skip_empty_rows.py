"""Rows without a text or a label: refused, or left out, counted and told."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config.schema import LabelledConfig
from headstart.data.diagnostics import read_leniently
from headstart.data.labelled import read_labelled
from headstart.errors import DataError

SKIP = LabelledConfig(skip_empty=True)
NOTHING = st.sampled_from([None, "", " ", "\t"])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(rows, name="mails.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


@given(
    st.lists(
        st.tuples(
            st.one_of(NOTHING, st.just("absent"), st.text("ab", min_size=1)),
            st.one_of(NOTHING, st.just("absent"), st.sampled_from(["yes", "no", 0, 1])),
        ),
        max_size=12,
    )
)
def test_the_rows_that_are_kept_are_the_full_ones_in_order(cells):
    # a key that is absent is as empty as one that holds nothing; the last row makes sure of both columns
    cells = [*cells, ("the last", "yes")]
    rows = [{n: v for n, v in zip(("text", "label"), row, strict=True) if v != "absent"} for row in cells]
    full = [
        row
        for row in rows
        if all(str(row.get(name) if row.get(name) is not None else "").strip() for name in ("text", "label"))
    ]
    kept = read_labelled(written(rows), SKIP)
    assert list(zip(kept.texts, kept.labels, strict=True)) == [(row["text"], str(row["label"])) for row in full]
    assert [int(where.split("line ")[1]) - 1 for where in kept.where] == [
        n for n, row in enumerate(rows) if row in full
    ]
    assert (kept.skip_note is None) == (len(full) == len(rows))


def test_full_files_are_the_same_with_and_without_it():
    name = written([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    assert read_labelled(name, SKIP) == read_labelled(name, LabelledConfig())
    assert read_labelled(name, SKIP).skip_note is None


def test_the_hash_is_that_of_the_rows_that_were_kept():
    whole = read_labelled(written([{"text": "a", "label": "x"}], "whole.jsonl"), LabelledConfig())
    holes = written([{"text": "b", "label": ""}, {"text": "a", "label": "x"}], "holes.jsonl")
    assert read_labelled(holes, SKIP).sha256 == whole.sha256


def test_what_is_left_out_is_counted_each_row_once():
    Path("mails.csv").write_text("text,label\nfine,1\n,0\n,\nno label,\nnone either,  \ndull,0\n")
    kept = read_labelled("mails.csv", SKIP)
    assert kept.texts == ("fine", "dull")
    assert kept.skip_note == "2 rows of mails.csv have no label, 2 no text; they are left out"


@pytest.mark.parametrize(
    ("settings", "rows", "kept"),
    [
        ({"task": "rating"}, [("a", "2.5"), ("b", ""), ("c", None)], (2.5,)),
        ({"separator": ";"}, [("a", "x;y"), ("b", ""), ("c", None)], (("x", "y"), ())),  # no label at all is an answer
        ({}, [("a", None), ("b", ["x"]), ("c", [])], (("x",), ())),
    ],
    ids=["rating", "separator", "lists"],
)
def test_other_kinds_of_labels_are_skipped_where_training_would_refuse_them(settings, rows, kept):
    name = written([{"text": text, "label": label} for text, label in rows])
    assert read_labelled(name, LabelledConfig(skip_empty=True, **settings)).labels == kept


def test_half_a_pair_is_left_out():
    rows = [{"text": "a", "other": "b", "label": "x"}, {"text": "a", "other": "", "label": "x"}]
    kept = read_labelled(written(rows), LabelledConfig(skip_empty=True, second_column="other"))
    assert kept.pairs == (("a", "b"),)
    assert kept.skip_note == "1 row of mails.jsonl has no text; it is left out"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            SKIP,
            "mails.csv: every row lacks a text or a label, and labelled.skip_empty leaves all of them out",
        ),
        (
            LabelledConfig(),
            "mails.csv, row 1: the label is empty; give the row a label, remove it, or leave such rows out with "
            "labelled.skip_empty",
        ),
    ],
    ids=["skipping", "refusing"],
)
def test_a_file_without_one_full_row_is_refused_either_way(config, expected):
    Path("mails.csv").write_text("text,label\nfine,\n,0\n")
    with pytest.raises(DataError) as caught:
        read_labelled("mails.csv", config)
    assert str(caught.value) == expected


def test_what_is_wrong_rather_than_empty_still_stops():
    with pytest.raises(DataError) as caught:
        read_labelled(written([{"text": 5, "label": "x"}]), SKIP)
    assert str(caught.value) == "mails.jsonl, line 1: the text is 5, expected a string"


def test_looking_at_a_file_goes_by_the_first_label_that_is_there():
    rows = [{"text": "a"}, {"text": "b", "label": None}, {"text": "c", "label": ["x"]}, {"text": "d", "label": []}]
    file = read_leniently(written(rows), LabelledConfig())
    assert (file.task_name, [row.faults for row in file.rows]) == (
        "labels",
        [("label missing",), ("label missing",), (), ()],
    )
