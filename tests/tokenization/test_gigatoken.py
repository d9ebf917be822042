"""The quicker engine has the ids of the reference: on any text, because it is asked only where it cannot differ."""

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
    _is_borderline,
    _is_plain,
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
needs_it = pytest.mark.skipif(
    find_spec("gigatoken") is None, reason='gigatoken is not installed: pip install "headstart[fast]"'
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT], TokenizerConfig(vocab_size=400))


def ids(encoder, texts):
    return [np.frombuffer(row, "<u2").tolist() for row in encoder.encode_to_bytes(texts)]


@needs_it
@settings(max_examples=500)
@given(texts=st.lists(TEXTS, max_size=6))
@example(
    texts=["<eos> <mask>", "a" * 200, "\x01!" * 100, " \xa0" * 60, "\ua7ce's", "é" * 32, "x " + "é" * 31, "", "🙂 fine"]
)
def test_both_engines_give_the_same_ids(tokenizer, texts):
    encoder = WordEncoder(tokenizer, "<u2")
    assert encoder._quick is not None
    assert ids(encoder, texts) == tokenizer.encode_batch(texts)


@needs_it
def test_every_character_that_is_called_plain_is_read_alike(tokenizer):
    chance = random.Random(0)
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    asked = letters[:0x3000] + chance.sample(letters[0x3000:], 20_000)
    texts = [f"a{c}b 1{c}2 !{c}! {c}{c}  {c}\n{c}'s{c} {c}\t {c}" for c in asked]
    sure = [text for text, fine in zip(texts, is_plain_batch(texts), strict=True) if fine]
    assert len(sure) > 11_000
    assert ids(gigatoken_encoder(tokenizer.content, "<u2"), sure) == tokenizer.encode_batch(sure)


@pytest.mark.parametrize(
    ("text", "fine"),
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
def test_what_may_be_read_otherwise_is_left_to_the_reference(text, fine):
    assert is_plain_batch([text]) == [fine]
    assert is_plain_batch(["one more", text]) == [True, fine]


@settings(max_examples=300)
@given(
    texts=st.lists(
        st.one_of(
            TEXTS, st.lists(st.sampled_from(["x" * 31, " " * 7, "\u2003\xa0 ", "é" * 15, "\n", "ꟀA", "a"])).map("".join)
        ),
        max_size=12,
    )
)
def test_texts_that_are_looked_at_together_are_called_what_each_is_called_alone(texts):
    assert is_plain_batch(texts) == [_is_plain(text) and _is_borderline(text) for text in texts]


def test_most_texts_need_no_second_look():
    texts = [TEXT, "a plain text, été 1984", "電影 is a film", "x" * 62 + " y", ""]
    assert _needs_check([text.encode() for text in texts]) == {3}


def test_letters_that_were_added_lately_are_not_called_plain():
    """Whatever this Python does not know yet is a letter to one engine and none to another."""
    unknown = [chr(code) for code in range(0x10000, 0x1F300) if unicodedata.category(chr(code)) == "Cn"]
    assert not any(is_plain_batch(unknown))
