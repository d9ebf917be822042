"""Load a tokenizer from a folder, and report how well it fits a text.

The door of the room: every name that other rooms use, and the one way to find a tokenizer on disk.

tokenizer.json                      byte-level BPE, trained by Headstart
sentencepiece.model [+ dict.txt]    an existing SentencePiece model
foreign.json                        the tokenizer of a model that was imported

A tokenizer's report card: how well its pieces fit some texts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headstart.errors import DataError, StoreError, UsageError
from headstart.files import is_pickled, pickle_error
from headstart.progress import pluralize
from headstart.tokenization.base import (
    DICTIONARY_FILE,
    HF_FILE,
    SPECIAL_NAMES,
    TOKENIZER_FILE,
    Tokenizer,
    as_utf8,
)
from headstart.tokenization.bpe import BPETokenizer
from headstart.tokenization.hf import HFTokenizer
from headstart.tokenization.sentencepiece import SentencePieceTokenizer

_CANDIDATES = ("", "tokenizer", "bundle/tokenizer")


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer at `path`.

    Args:
        path: a `tokenizer.json`; a SentencePiece `.model` file, numbered by a `dict.txt` beside it if there is one; a
            folder that holds one of those; or a folder of ours (shards, run, bundle) that holds such a folder.
    """
    found = _find(path)
    if found.name == HF_FILE:
        return HFTokenizer.load(found)
    if found.suffix != ".model":
        return BPETokenizer.load(found)
    dictionary = found.with_name(DICTIONARY_FILE)
    return SentencePieceTokenizer.load(found, dictionary if dictionary.exists() else None)


def _find(path: Path) -> Path:
    """The file that holds the tokenizer: never chosen among several."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; expected a tokenizer, or a folder that holds one")
    if not path.is_dir():
        if is_pickled(path):
            way = f"Expected {TOKENIZER_FILE}, which headstart tokenizer makes, or a SentencePiece .model file"
            raise UsageError(pickle_error(path, way))
        if path.suffix not in (".json", ".model"):
            raise UsageError(f"{path} is not a tokenizer; expected {TOKENIZER_FILE} or a SentencePiece .model file")
        return path
    for place in _CANDIDATES:
        folder = path / place
        files = [
            file
            for file in (folder / TOKENIZER_FILE, folder / HF_FILE, *sorted(folder.glob("*.model")))
            if file.is_file()
        ]
        if len(files) > 1:
            raise StoreError(f"{folder} holds several tokenizers: {', '.join(file.name for file in files)}; name one")
        if files:
            return files[0]
    raise StoreError(f"{path} holds no tokenizer: neither {TOKENIZER_FILE} nor a SentencePiece .model file")


_BATCH = 1000


@dataclass(frozen=True)
class TokenizerReport:
    """What a tokenizer makes of some texts. Words are what white space divides; bytes are those of UTF-8."""

    documents: int
    characters: int
    bytes: int
    words: int
    tokens: int
    bytes_per_token: float
    tokens_per_word: float
    unknown_rate: float
    """Share of the tokens that are unknown; 0 where nothing can be."""
    vocab_used: float
    """Share of the ordinary pieces, special ids aside, that the texts hold at least once."""


def tokenizer_report(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode some texts and count. Texts without a word cannot be reported on."""
    documents = characters = size = words = tokens = unknown = 0
    seen: set[int] = set()
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH)):
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            documents += 1
            characters += len(text)
            size += len(as_utf8(text))
            words += len(text.split())
            tokens += len(ids)
            unknown += sum(id == tokenizer.special.unknown for id in ids)
            seen.update(ids)
    if not words or not tokens:
        found = ", ".join((pluralize(documents, "document"), pluralize(words, "word"), pluralize(tokens, "token")))
        raise DataError(f"there is no text to report on: {found}")
    ordinary = sum(id >= SPECIAL_NAMES for id in seen)
    return TokenizerReport(
        documents=documents,
        characters=characters,
        bytes=size,
        words=words,
        tokens=tokens,
        bytes_per_token=size / tokens,
        tokens_per_word=tokens / words,
        unknown_rate=unknown / tokens,
        vocab_used=ordinary / (tokenizer.vocab_size - SPECIAL_NAMES),
    )
