"""The membership file recognises every document of a corpus and no other text, and has the documented format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data.decontamination import BITS, MEMBERSHIP_FILE, Membership
from headstart.data.hashing import text_digest
from headstart.errors import StoreError


def membership_of(texts):
    return Membership.from_digests([text_digest(text) for text in texts])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20), st.randoms(use_true_random=False))
def test_every_document_is_recognised_in_any_order_and_white_space(texts, rng):
    shuffled = rng.sample(texts, len(texts)) if texts else []
    assert membership_of(texts).rows_in([f"  {text}\n" for text in shuffled]) == list(range(len(texts)))


def test_other_texts_are_not_recognised():
    membership = membership_of(f"document {number}" for number in range(1000))
    assert membership.rows_in(["document 7", "document 1000", "Document 7", "document 7."]) == [0]
    assert membership.rows_in(f"text {number}" for number in range(20_000)) == []


def test_the_false_positive_rate_follows_from_the_number_of_documents():
    assert membership_of(["a", "b", "a "]).false_positive_rate == 2 / 2**40
    assert BITS == 40


def test_the_file_has_five_bytes_per_document_and_loads_again(tmp_path):
    membership = membership_of(f"document {number}" for number in range(1000))
    (tmp_path / MEMBERSHIP_FILE).write_bytes(membership.to_bytes())
    assert (tmp_path / MEMBERSHIP_FILE).stat().st_size == 5000
    loaded = Membership.load(tmp_path)
    assert loaded.keys.tolist() == membership.keys.tolist()
    assert loaded.rows_in(["document 3", "no document"]) == [0]


def test_the_union_of_two_memberships_has_the_documents_of_both():
    both = membership_of(["a", "b"]) | membership_of(["b", "c"])
    assert len(both) == 3
    assert both.rows_in(["a", "b", "c", "d"]) == [0, 1, 2]


def test_a_folder_without_the_file_has_no_membership(tmp_path):
    assert Membership.load(tmp_path) is None
    assert membership_of([]).rows_in(["a"]) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"1234567", "7 bytes, expected a multiple of 5"), (b"bbbbbaaaaa", "its digests are not sorted")],
)
def test_a_damaged_membership_file_is_refused(tmp_path, content, fault):
    (tmp_path / MEMBERSHIP_FILE).write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Membership.load(tmp_path)
    assert str(caught.value) == f"{tmp_path / MEMBERSHIP_FILE} is damaged: {fault}"
