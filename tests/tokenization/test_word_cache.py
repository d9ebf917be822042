"""Texts that are encoded word by word have the ids of complete texts."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError
from headstart.tokenization import bulk
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.bulk import WordEncoder

TEXT = "the film's plot isn't a very dull one, and they've won 1984 prizes ; un été à  l'île\n\n  deux   blancs\t " * 20

SPACES = st.sampled_from(
    [" ", "  ", "   ", "\n", "\n ", " \n", "\t", "\xa0", "\u2003", "\u3000", "\x1f", "\0", "\r\n  "]
)
PIECES = st.sampled_from(["the", "film", "'s", "don't", "été", "1984", "!?", "<eos>", "電影", "▁", "😀", "é" * 70, ""])
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TEXTS = st.lists(st.one_of(SPACES, SPACES, PIECES, CHARACTERS), max_size=12).map("".join)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT], TokenizerConfig(vocab_size=400))


def ids(encoder, texts):
    return [np.frombuffer(row, "<u2").tolist() for row in encoder.encode_to_bytes(texts)]


@settings(max_examples=400)
@given(texts=st.lists(TEXTS, max_size=6))
@example(texts=["a \n b", "a  ", "\n  b", "  a", " ", "", "a   b", " \t \n x", TEXT])
def test_words_and_complete_texts_have_the_same_ids(tokenizer, texts):
    encoder = WordEncoder(tokenizer, "<u2")
    expected = tokenizer.encode_batch(texts)
    assert ids(encoder, texts) == expected  # every word is new
    assert ids(encoder, texts) == expected  # every word is cached


@settings(max_examples=100)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_neither_slices_nor_evictions_change_an_id(tokenizer, texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "_SLICE_CHARACTERS", 3)
        patch.setattr(bulk, "_MAX_CACHED", 4)
        encoder = WordEncoder(tokenizer, "<u2")
        for _ in range(3):
            assert ids(encoder, texts) == tokenizer.encode_batch(texts)


def test_a_split_inside_white_space_would_change_ids(tokenizer):
    separate = [id for piece in ("a", " ", " ", " b") for id in tokenizer.encode(piece)]
    assert separate != tokenizer.encode("a   b")


def test_the_cache_stays_within_its_bound(tokenizer, monkeypatch):
    monkeypatch.setattr(bulk, "_MAX_CACHED", 50)
    encoder = WordEncoder(tokenizer, "<u2")
    for number in range(40):
        texts = [f"word{number * 10 + offset} the" for offset in range(10)]
        assert ids(encoder, texts) == tokenizer.encode_batch(texts)
        assert len(encoder._cache) <= 50 + len(texts)


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(DataError) as caught:
        WordEncoder(tokenizer, "<u2").encode_to_bytes(["fine", "a \ud83d b"])
    assert "the unpaired surrogate '\\ud83d'" in str(caught.value)


@pytest.mark.data
def test_real_reviews_have_the_same_ids(real_data):
    rows = [json.loads(line)["text"] for line in (real_data / "cls-books" / "test.jsonl").read_text().splitlines()]
    tokenizer = train_tokenizer(rows[:500], TokenizerConfig(vocab_size=4000))
    assert ids(WordEncoder(tokenizer, "<u2"), rows) == tokenizer.encode_batch(rows)
