import pytest

from headstart.config import TokenizerConfig
from headstart.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = ["un roman inoubliable, drôle et tendre", "a dull book that goes on and on", "a fine book"] * 3
    return train_tokenizer(texts, TokenizerConfig(vocab_size=300))
