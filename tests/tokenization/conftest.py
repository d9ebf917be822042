"""Tiny tokenizers of both types, trained on the spot, and the published French one if its folder is present."""

from pathlib import Path

import pytest
import sentencepiece

from headstart.config.schema import TokenizerConfig
from headstart.tokenization.bpe import BPETokenizer, train_tokenizer
from headstart.tokenization.sentencepiece import SentencePieceTokenizer

FRENCH = [
    "Le chat a lu ce livre, le chat a aimé ce livre.",
    "Le chien n'a pas lu ce livre; il a été déçu.",
    "Un livre, deux livres, trois livres: 1 2 3 <eos>",
]


@pytest.fixture(scope="session")
def french() -> list[str]:
    return FRENCH


@pytest.fixture(scope="session")
def bytepair() -> BPETokenizer:
    return train_tokenizer(FRENCH * 2, TokenizerConfig(vocab_size=300))


@pytest.fixture(scope="session")
def piece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny SentencePiece model, `tiny.model`, and no other file."""
    folder = tmp_path_factory.mktemp("pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(FRENCH * 20),
        model_prefix=str(folder / "tiny"),
        model_type="bpe",
        vocab_size=70,
        normalization_rule_name="identity",  # a small file: no table of characters
        minloglevel=3,
    )
    (folder / "tiny.vocab").unlink()
    return folder


@pytest.fixture(scope="session")
def sentencepieces(piece_folder: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.load(piece_folder / "tiny.model")


@pytest.fixture(scope="session")
def cls_books(real_data: Path) -> Path:
    """The published French vocabulary and reviews."""
    return real_data / "cls-books"
