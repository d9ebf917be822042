import pytest

from headstart.config.schema import TokenizerConfig
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = ["un roman inoubliable, drôle et tendre", "a dull book that goes on and on", "a fine book"] * 3
    return train_tokenizer(texts, TokenizerConfig(vocab_size=300))
