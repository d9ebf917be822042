"""A model's memory of its documents: each is found, nothing else is, and the file is what it says."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data.decontamination import BITS, MEMBERSHIP_FILE, Membership
from headstart.data.hashing import text_digest
from headstart.errors import StoreError


def of(texts):
    return Membership.from_digests([text_digest(text) for text in texts])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20), st.randoms())
def test_every_document_is_found_in_whatever_order_and_white_space(texts, chance):
    shuffled = random.sample(texts, len(texts)) if texts else []
    assert of(texts).rows_in([f"  {text}\n" for text in shuffled]) == list(range(len(texts)))


def test_other_texts_are_not_found():
    known = of(f"document {number}" for number in range(1000))
    assert known.rows_in(["document 7", "document 1000", "Document 7", "document 7."]) == [0]
    assert known.rows_in(f"text {number}" for number in range(20_000)) == []


def test_the_rate_of_false_alarms_is_what_the_number_of_documents_makes_it():
    assert of(["a", "b", "a "]).false_positive_rate == 2 / 2**40
    assert BITS == 40


def test_the_file_is_five_bytes_a_document_and_reads_back(tmp_path):
    known = of(f"document {number}" for number in range(1000))
    (tmp_path / MEMBERSHIP_FILE).write_bytes(known.to_bytes())
    assert (tmp_path / MEMBERSHIP_FILE).stat().st_size == 5000
    again = Membership.load(tmp_path)
    assert again.keys.tolist() == known.keys.tolist()
    assert again.rows_in(["document 3", "no document"]) == [0]


def test_two_texts_make_one(tmp_path):
    both = of(["a", "b"]) | of(["b", "c"])
    assert len(both) == 3
    assert both.rows_in(["a", "b", "c", "d"]) == [0, 1, 2]


def test_nothing_is_known_where_nothing_was_kept(tmp_path):
    assert Membership.load(tmp_path) is None
    assert of([]).rows_in(["a"]) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"1234567", "7 bytes, expected a multiple of 5"), (b"bbbbbaaaaa", "its digests are not sorted")],
)
def test_a_damaged_file_is_refused(tmp_path, content, words):
    (tmp_path / MEMBERSHIP_FILE).write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Membership.load(tmp_path)
    assert str(caught.value) == f"{tmp_path / MEMBERSHIP_FILE} is damaged: {words}"
