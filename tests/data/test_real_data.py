"""Known facts about the real files are reproduced by reading them."""

from pathlib import Path

import pytest

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import LabelledTexts, read_labelled
from headstart.data.near_duplicates import TextIndex, overlap

pytestmark = pytest.mark.data
BOOKS = {"train": 1600, "valid": 400, "test": 2000}


def books(folder: Path, name: str, suffix: str = "jsonl") -> LabelledTexts:
    return read_labelled(str(folder / "cls-books" / f"{name}.{suffix}"), LabelledConfig())


@pytest.mark.parametrize(("name", "rows"), BOOKS.items())
def test_book_reviews_are_the_same_as_json_and_as_pieces(real_data, name, rows):
    plain, pieces = books(real_data, name), books(real_data, name, "review.spm")
    assert plain.counts() == {"negative": rows // 2, "positive": rows // 2}
    assert pieces.texts == plain.texts
    assert [{"1": "positive", "0": "negative"}[label] for label in pieces.labels] == list(plain.labels)


def test_book_reviews_have_the_known_duplicates(real_data):
    train, valid, test = (books(real_data, name) for name in BOOKS)
    indices = {name: TextIndex(books(real_data, name).texts) for name in BOOKS}
    in_train, in_valid = (overlap(indices["test"], indices[name]) for name in ("train", "valid"))
    assert (len(in_train.exact), in_train.near) == (43, {})
    assert (len(in_valid.exact), in_valid.near) == (12, {})
    assert len({test.digests[row] for row in in_valid.exact}) == 9
    assert len(overlap(indices["train"], indices["valid"]).exact) == 13
    assert [len(rows) - len(set(rows.digests)) for rows in (train, valid, test)] == [20, 1, 35]
    assert all(test.labels[row] == train.labels[match] for row, match in in_train.exact.items())


def test_parquet_reviews_are_read(real_data):
    documents = list(read_documents([str(real_data / "french-reviews" / "reviews.parquet")], CorpusConfig()))
    assert len(documents) == 24_978
    assert documents[-1].where.endswith("reviews.parquet, row 24978")
