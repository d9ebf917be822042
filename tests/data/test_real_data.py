"""What is known of the real files, found again by reading them."""

import os
from pathlib import Path

import pytest

from headstart.config import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import LabelledTexts, overlap, read_labelled

DATA = Path(os.environ.get("HEADSTART_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here; name its folder in HEADSTART_DATA"),
]
BOOKS = {"train": 1600, "valid": 400, "test": 2000}


def books(name: str, suffix: str = "jsonl") -> LabelledTexts:
    return read_labelled(str(DATA / "cls-books" / f"{name}.{suffix}"), LabelledConfig())


@pytest.mark.parametrize(("name", "rows"), BOOKS.items())
def test_book_reviews_are_the_same_as_json_and_as_pieces(name, rows):
    plain, pieces = books(name), books(name, "review.spm")
    assert plain.counts() == {"negative": rows // 2, "positive": rows // 2}
    assert pieces.texts == plain.texts
    assert [{"1": "positive", "0": "negative"}[label] for label in pieces.labels] == list(plain.labels)


def test_the_doubles_among_book_reviews_are_found():
    train, valid, test = (books(name) for name in BOOKS)
    assert len(overlap(train, test)) == 43
    assert len(overlap(valid, train)) == 13
    assert [len(rows) - len(set(rows.digests)) for rows in (train, test)] == [20, 35]


def test_parquet_reviews_are_read():
    documents = list(read_documents([str(DATA / "french-reviews" / "reviews.parquet")], CorpusConfig()))
    assert len(documents) == 24_978
    assert documents[-1].where.endswith("reviews.parquet, row 24978")
