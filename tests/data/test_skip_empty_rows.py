"""Rows without a text or a label are refused, or skipped, counted and reported."""

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
EMPTY = st.sampled_from([None, "", " ", "\t"])


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(rows, name="mails.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


@given(
    st.lists(
        st.tuples(
            st.one_of(EMPTY, st.just("absent"), st.text("ab", min_size=1)),
            st.one_of(EMPTY, st.just("absent"), st.sampled_from(["yes", "no", 0, 1])),
        ),
        max_size=12,
    )
)
def test_the_complete_rows_are_kept_in_order(cells):
    # an absent key counts as empty; the last row has both columns
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


def test_skip_empty_does_not_change_a_complete_file():
    name = written([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    assert read_labelled(name, SKIP) == read_labelled(name, LabelledConfig())
    assert read_labelled(name, SKIP).skip_note is None


def test_the_hash_ignores_skipped_rows():
    complete = read_labelled(written([{"text": "a", "label": "x"}], "complete.jsonl"), LabelledConfig())
    holes = written([{"text": "b", "label": ""}, {"text": "a", "label": "x"}], "holes.jsonl")
    assert read_labelled(holes, SKIP).sha256 == complete.sha256


def test_each_skipped_row_is_counted_once():
    Path("mails.csv").write_text("text,label\nfine,1\n,0\n,\nno label,\nnone either,  \ndull,0\n")
    kept = read_labelled("mails.csv", SKIP)
    assert kept.texts == ("fine", "dull")
    assert kept.skip_note == "2 rows of mails.csv have no label, 2 no text; they are skipped"


@pytest.mark.parametrize(
    ("settings", "rows", "kept"),
    [
        ({"task": "rating"}, [("a", "2.5"), ("b", ""), ("c", None)], (2.5,)),
        ({"separator": ";"}, [("a", "x;y"), ("b", ""), ("c", None)], (("x", "y"), ())),  # no label at all is valid
        ({}, [("a", None), ("b", ["x"]), ("c", [])], (("x",), ())),
    ],
    ids=["rating", "separator", "lists"],
)
def test_rows_of_every_task_are_skipped_where_training_would_refuse_them(settings, rows, kept):
    name = written([{"text": text, "label": label} for text, label in rows])
    assert read_labelled(name, LabelledConfig(skip_empty=True, **settings)).labels == kept


def test_half_a_pair_is_skipped():
    rows = [{"text": "a", "other": "b", "label": "x"}, {"text": "a", "other": "", "label": "x"}]
    kept = read_labelled(written(rows), LabelledConfig(skip_empty=True, second_column="other"))
    assert kept.pairs == (("a", "b"),)
    assert kept.skip_note == "1 row of mails.jsonl has no text; it is skipped"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            SKIP,
            "mails.csv: no row has both a text and a label; rows without one of them are skipped",
        ),
        (
            LabelledConfig(),
            "mails.csv, row 1: the label is empty; give the row a label, remove it, or skip such rows with "
            "labelled.skip_empty",
        ),
    ],
    ids=["skipping", "refusing"],
)
def test_a_file_without_a_complete_row_is_refused_with_and_without_skip_empty(config, expected):
    Path("mails.csv").write_text("text,label\nfine,\n,0\n")
    with pytest.raises(DataError) as caught:
        read_labelled("mails.csv", config)
    assert str(caught.value) == expected


def test_skip_empty_does_not_skip_wrong_cells():
    with pytest.raises(DataError) as caught:
        read_labelled(written([{"text": 5, "label": "x"}]), SKIP)
    assert str(caught.value) == "mails.jsonl, line 1: the text is 5, expected a string"


def test_lenient_reading_infers_the_task_from_the_first_label():
    rows = [{"text": "a"}, {"text": "b", "label": None}, {"text": "c", "label": ["x"]}, {"text": "d", "label": []}]
    file = read_leniently(written(rows), LabelledConfig())
    assert (file.task_name, [row.faults for row in file.rows]) == (
        "labels",
        [("label missing",), ("label missing",), (), ()],
    )
