"""Gigatoken gives the ids of the reference, because it encodes only texts on which the two cannot differ."""

import random
import unicodedata
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.config.schema import TokenizerConfig
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.bulk import (
    WordEncoder,
    _has_long_space,
    _has_plain_words,
    _needs_check,
    gigatoken_encoder,
    is_plain_batch,
)

TEXT = "the film's plot isn't a very dull one, and they've won 1984 prizes ; un été à  l'île\n\n  deux   blancs\t " * 20
CHARACTERS = st.characters(exclude_categories=["Cs"])
PIECES = st.sampled_from(
    [
        "the",
        "film",
        "'s",
        "don't",
        "été",
        "1984",
        "<eos>",
        " ",
        "  ",
        "\n",
        "\xa0",
        "\u3000",
        "\x01!",
        "電影",
        "😀",
        "\ua7ce",
        "é" * 40,
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(CHARACTERS, max_size=5)), max_size=20).map("".join)
needs_gigatoken = pytest.mark.skipif(
    find_spec("gigatoken") is None, reason='gigatoken is not installed: pip install "headstart[fast]"'
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT], TokenizerConfig(vocab_size=400))


def ids(encoder, texts):
    return [np.frombuffer(row, "<u2").tolist() for row in encoder.encode_to_bytes(texts)]


@needs_gigatoken
@settings(max_examples=500)
@given(texts=st.lists(TEXTS, max_size=6))
@example(
    texts=["<eos> <mask>", "a" * 200, "\x01!" * 100, " \xa0" * 60, "\ua7ce's", "é" * 32, "x " + "é" * 31, "", "🙂 fine"]
)
def test_both_engines_give_the_same_ids(tokenizer, texts):
    encoder = WordEncoder(tokenizer, "<u2")
    assert encoder._gigatoken is not None
    assert ids(encoder, texts) == tokenizer.encode_batch(texts)


@needs_gigatoken
def test_both_engines_agree_on_every_character_that_counts_as_plain(tokenizer):
    rng = random.Random(0)
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    sampled = letters[:0x3000] + rng.sample(letters[0x3000:], 20_000)
    texts = [f"a{c}b 1{c}2 !{c}! {c}{c}  {c}\n{c}'s{c} {c}\t {c}" for c in sampled]
    plain = [text for text, is_plain in zip(texts, is_plain_batch(texts), strict=True) if is_plain]
    assert len(plain) > 11_000
    assert ids(gigatoken_encoder(tokenizer.content, "<u2"), plain) == tokenizer.encode_batch(plain)


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("a plain text, été 1984", True),
        ("電影 is a film 🙂", True),
        ("x" * 62, True),
        ("x" * 63, False),
        ("some " + "é" * 32 + " words", False),
        ("a" + " " * 15 + "b", True),
        ("a" + "\u3000" * 16 + "b", False),
        ("the letter \ua7ce", False),
        ("\U00010940", False),
        ("", True),
    ],
)
def test_long_words_and_growing_blocks_are_left_to_the_reference(text, is_plain):
    assert is_plain_batch([text]) == [is_plain]
    assert is_plain_batch(["one more", text]) == [True, is_plain]


@settings(max_examples=300)
@given(
    texts=st.lists(
        st.one_of(
            TEXTS, st.lists(st.sampled_from(["x" * 31, " " * 7, "\u2003\xa0 ", "é" * 15, "\n", "ꟀA", "a"])).map("".join)
        ),
        max_size=12,
    )
)
def test_the_batch_filter_agrees_with_the_check_of_single_texts(texts):
    assert is_plain_batch(texts) == [_has_plain_words(text) and not _has_long_space(text) for text in texts]


def test_ordinary_texts_pass_the_batch_filter():
    texts = [TEXT, "a plain text, été 1984", "電影 is a film", "x" * 62 + " y", ""]
    assert _needs_check([text.encode() for text in texts]) == {3}


def test_unassigned_characters_do_not_count_as_plain():
    """A character that this Python does not know may be a letter to one engine only."""
    unknown = [chr(code) for code in range(0x10000, 0x1F300) if unicodedata.category(chr(code)) == "Cn"]
    assert not any(is_plain_batch(unknown))
