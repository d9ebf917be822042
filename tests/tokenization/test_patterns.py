"""Regular expressions of tokenizers from elsewhere: those that explode are refused, and a panic is one line."""

import subprocess

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from headstart.errors import DataError, StoreError
from headstart.tokenization.base import LibraryTokenizer
from headstart.tokenization.patterns import KNOWN_PATTERNS, check_patterns


def splitting(*patterns):
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": splits}}


def test_an_expression_that_explodes_is_refused_by_name():
    with pytest.raises(StoreError) as caught:
        check_patterns(splitting(r"\s?[A-Za-z]+", "(a+)+$"), "tokenizer.json")
    assert str(caught.value) == (
        "tokenizer.json is not a safe tokenizer: its regular expression (a+)+$ fails or takes too long on some texts"
    )
    replace = {"type": "Replace", "pattern": {"Regex": "(b|b)*$"}, "content": ""}
    for step in ("normalizer", "decoder"):
        with pytest.raises(StoreError, match=r"its regular expression \(b\|b\)\*\$ fails or takes too long"):
            check_patterns({step: replace}, "tokenizer.json")


def test_expressions_of_well_known_models_need_no_process(monkeypatch):
    def forbidden(*_arguments, **_named):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", forbidden)
    check_patterns(splitting(*KNOWN_PATTERNS), "tokenizer.json")
    with pytest.raises(AssertionError, match="a process was started"):  # control
        check_patterns(splitting("x"), "tokenizer.json")


@pytest.mark.parametrize("pattern", sorted(KNOWN_PATTERNS))
def test_a_known_expression_is_one_that_the_library_reads(pattern):
    pieces = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str("Don't  stop at 12345 — naïve 中文!\n")
    assert "".join(piece for piece, _ in pieces) == "Don't  stop at 12345 — naïve 中文!\n"
    assert len(pieces) > 1


def test_a_tokenizer_with_many_expressions_of_its_own_is_refused():
    with pytest.raises(StoreError) as caught:
        check_patterns(splitting(*(f"x{number}" for number in range(17))), "tokenizer.json")
    assert str(caught.value) == (
        "tokenizer.json is not a safe tokenizer: it has 17 regular expressions of its own, and the limit is 16"
    )


def test_a_panic_of_the_library_is_a_data_error():
    engine = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = LibraryTokenizer(engine, "imported.json", b"", 1)
    assert tokenizer.encode("aaa") == [0]  # control
    with pytest.raises(DataError) as caught:
        tokenizer.encode("a" * 40 + "!")
    assert str(caught.value) == ("the tokenizer fails on a text: Onig: Regex search error: retry-limit-in-match over")
