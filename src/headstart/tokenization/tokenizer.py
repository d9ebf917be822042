"""Load a tokenizer from a folder, and report how well it fits some texts.

tokenizer.json                      byte-level BPE, trained by Headstart
sentencepiece.model [+ dict.txt]    an existing SentencePiece model
imported.json                        the tokenizer of an imported model
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
    NUM_SPECIAL_IDS,
    TOKENIZER_FILE,
    Tokenizer,
    as_utf8,
)
from headstart.tokenization.bpe import BPETokenizer
from headstart.tokenization.hf import HFTokenizer
from headstart.tokenization.sentencepiece import SentencePieceTokenizer

_SUBFOLDERS = ("", "tokenizer", "bundle/tokenizer")
_BATCH_TEXTS = 1000


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer at `path`.

    Args:
        path: a `tokenizer.json`; a SentencePiece `.model` file, numbered by a `dict.txt` beside it if there is one; a
            folder that holds one of those; or a folder of ours (shards, run, bundle) that holds such a folder.
    """
    file = _find_file(path)
    if file.name == HF_FILE:
        return HFTokenizer.load(file)
    if file.suffix != ".model":
        return BPETokenizer.load(file)
    dictionary = file.with_name(DICTIONARY_FILE)
    return SentencePieceTokenizer.load(file, dictionary if dictionary.exists() else None)


def _find_file(path: Path) -> Path:
    """Return the file of the tokenizer; a folder with several is refused."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; expected a tokenizer, or a folder that holds one")
    if not path.is_dir():
        if is_pickled(path):
            remedy = f"Expected {TOKENIZER_FILE}, which headstart tokenizer makes, or a SentencePiece .model file"
            raise UsageError(pickle_error(path, remedy))
        if path.suffix not in (".json", ".model"):
            raise UsageError(f"{path} is not a tokenizer; expected {TOKENIZER_FILE} or a SentencePiece .model file")
        return path
    for subfolder in _SUBFOLDERS:
        folder = path / subfolder
        files = [
            file
            for file in (folder / TOKENIZER_FILE, folder / HF_FILE, *sorted(folder.glob("*.model")))
            if file.is_file()
        ]
        if len(files) > 1:
            raise StoreError(
                f"{folder} contains several tokenizers: {', '.join(file.name for file in files)}; name one"
            )
        if files:
            return files[0]
    raise StoreError(f"{path} contains no tokenizer: neither {TOKENIZER_FILE} nor a SentencePiece .model file")


@dataclass(frozen=True)
class TokenizerReport:
    """Statistics of a tokenizer on some texts; words are separated by white space, bytes are those of UTF-8."""

    documents: int
    characters: int
    bytes: int
    words: int
    tokens: int
    bytes_per_token: float
    tokens_per_word: float
    unknown_rate: float
    """The fraction of tokens that are unknown; 0 for a tokenizer without an unknown token."""
    vocab_used: float
    """The fraction of ordinary pieces that occur in the texts."""


def tokenizer_report(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode some texts and compute statistics; texts without a word are refused."""
    documents = characters = size = words = tokens = unknown = 0
    seen: set[int] = set()
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH_TEXTS)):
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            documents += 1
            characters += len(text)
            size += len(as_utf8(text))
            words += len(text.split())
            tokens += len(ids)
            unknown += sum(id == tokenizer.special.unknown for id in ids)
            seen.update(ids)
    if not words or not tokens:
        counts = ", ".join((pluralize(documents, "document"), pluralize(words, "word"), pluralize(tokens, "token")))
        raise DataError(f"there is no text to report on: {counts}")
    num_ordinary = sum(id >= NUM_SPECIAL_IDS for id in seen)
    return TokenizerReport(
        documents=documents,
        characters=characters,
        bytes=size,
        words=words,
        tokens=tokens,
        bytes_per_token=size / tokens,
        tokens_per_word=tokens / words,
        unknown_rate=unknown / tokens,
        vocab_used=num_ordinary / (tokenizer.vocab_size - NUM_SPECIAL_IDS),
    )
