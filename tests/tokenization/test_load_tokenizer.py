"""Loading a tokenizer from files and folders, and reports of how well one fits a text."""

import shutil
from pathlib import Path

import pytest

from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError, StoreError, UsageError
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.sentencepiece import SentencePieceTokenizer
from headstart.tokenization.tokenizer import TokenizerReport, load_tokenizer, tokenizer_report


@pytest.mark.parametrize("subfolder", ["", "tokenizer", "bundle/tokenizer"])
def test_a_folder_that_contains_a_tokenizer_folder_is_accepted(bytepair, tmp_path, subfolder):
    (tmp_path / subfolder).mkdir(parents=True, exist_ok=True)
    bytepair.save(tmp_path / subfolder)
    assert load_tokenizer(tmp_path).digest == bytepair.digest
    assert load_tokenizer(tmp_path / subfolder / "tokenizer.json").digest == bytepair.digest


@pytest.mark.parametrize("name", ["sentencepiece.model", "anything.model"])
def test_a_model_loads_from_its_path_or_its_folder(piece_folder, sentencepieces, tmp_path, name):
    shutil.copy(piece_folder / "tiny.model", tmp_path / name)
    assert load_tokenizer(tmp_path).digest == sentencepieces.digest
    assert load_tokenizer(tmp_path / name).digest == sentencepieces.digest


@pytest.mark.parametrize("name", ["", "french.model"])
def test_a_dictionary_beside_a_model_is_used(piece_folder, tmp_path, name):
    shutil.copy(piece_folder / "tiny.model", tmp_path / "french.model")
    (tmp_path / "dict.txt").write_text("▁livre 2\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / name)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert (tokenizer.vocab_size, tokenizer.piece(4)) == (5, "▁livre")


def test_a_missing_path_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_tokenizer(tmp_path / "gone")
    assert str(caught.value) == f"{tmp_path / 'gone'} does not exist; expected a tokenizer, or a folder that holds one"


def test_a_file_of_another_type_is_a_usage_error(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(UsageError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == f"{path} is not a tokenizer; expected tokenizer.json or a SentencePiece .model file"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(StoreError) as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} contains no tokenizer: neither tokenizer.json nor a SentencePiece .model file"
    )


def test_a_folder_with_several_tokenizers_is_refused(bytepair, piece_folder, tmp_path):
    bytepair.save(tmp_path)
    for name in ("b.model", "a.model"):
        shutil.copy(piece_folder / "tiny.model", tmp_path / name)
    with pytest.raises(StoreError) as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value) == (f"{tmp_path} contains several tokenizers: tokenizer.json, a.model, b.model; name one")


def test_the_report_of_a_byte_tokenizer_has_the_expected_counts():
    only_bytes = train_tokenizer(["ab"], TokenizerConfig())
    assert only_bytes.vocab_size == 260
    assert tokenizer_report(only_bytes, iter(["aé b", "", "a"])) == TokenizerReport(
        documents=3,
        characters=5,
        bytes=6,
        words=3,
        tokens=6,
        bytes_per_token=1.0,
        tokens_per_word=2.0,
        unknown_rate=0.0,
        vocab_used=5 / 256,  # a, the two bytes of é, the space, b
    )


def test_the_report_counts_unknown_tokens(piece_folder: Path, tmp_path):
    (tmp_path / "dict.txt").write_text("▁livre 2\n, 1\n▁ce 1\n▁chat 1\n", encoding="utf-8")
    tokenizer = SentencePieceTokenizer.load(piece_folder / "tiny.model", tmp_path / "dict.txt")
    assert tokenizer.pieces("ce livre, ce a") == ["▁ce", "▁livre", ",", "▁ce", "▁a"]
    assert tokenizer_report(tokenizer, ["ce livre, ce a"] * 1200) == TokenizerReport(  # more than one batch
        documents=1200,
        characters=1200 * 14,
        bytes=1200 * 14,
        words=1200 * 4,
        tokens=1200 * 5,
        bytes_per_token=14 / 5,
        tokens_per_word=5 / 4,
        unknown_rate=1 / 5,
        vocab_used=3 / 4,
    )


@pytest.mark.parametrize(
    ("texts", "counts"), [([], "0 documents, 0 words, 0 tokens"), ([" "], "1 document, 0 words, 1 token")]
)
def test_a_report_on_texts_without_words_is_refused(bytepair, texts, counts):
    with pytest.raises(DataError) as caught:
        tokenizer_report(bytepair, texts)
    assert str(caught.value) == f"there is no text to report on: {counts}"
