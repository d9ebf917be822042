"""The Tokenizer protocol, special ids, and the base class of tokenizers backed by `tokenizers`.

What every tokenizer is to the other rooms, and the few rules that both kinds share.

Ids 0, 1 and 2 are the start, the padding and the end of a text in both kinds; id 3 is the mask of a byte-level BPE, and
the unknown piece of a SentencePiece model. Plain text never encodes to 0, 1, 2 or a mask: "<eos>" in a text is five
characters like any other.

What tokenizers that the `tokenizers` library runs have in common, whoever trained them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tokenizers

from headstart.errors import DataError, StoreError
from headstart.files import atomic_write

SPECIAL_NAMES = 4
"""Ids below this one are special; ordinary pieces begin here."""
TOKENIZER_FILE = "tokenizer.json"
MODEL_FILE = "sentencepiece.model"
DICTIONARY_FILE = "dict.txt"
HF_FILE = "foreign.json"
SIZE_LIMIT = 256 * 1024 * 1024
"""A tokenizer file beyond this many bytes is refused unread: a million pieces take less than half of it."""


@dataclass(frozen=True)
class SpecialIds:
    """The ids that stand for no text. `mask` is None where masking is not possible, `unknown` where nothing is."""

    sos: int
    pad: int
    eos: int
    mask: int | None
    unknown: int | None
    sep: int | None = None
    """What a row ends with, where the model learnt to read texts that end so; None: with the text."""

    @property
    def num_special_tokens(self) -> int:
        """How many places of a row are not the text's."""
        return 1 if self.sep is None else 2


class Tokenizer(Protocol):
    """Strings to ids and back."""

    @property
    def special(self) -> SpecialIds:
        """The ids that stand for no text."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are, the special ones included."""

    @property
    def digest(self) -> str:
        """A sha256 over the names and bytes of the files that `save` writes: equal for the same tokenizer only."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start or end; a lone surrogate in it is a DataError."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: what `encode` gives, on all cores."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, the special ones left out."""

    def piece(self, id: int) -> str:
        """One id as a person reads it, spaces shown as ▁."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder that is there."""


def as_utf8(text: str) -> bytes:
    """The bytes of a text, which must be Unicode: JSON can escape half of a surrogate pair, which is no character."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a text holds the lone surrogate {text[error.start]!a} at character {error.start}, "
            "which UTF-8 cannot write; remove it from the data"
        ) from None


def check_id(id: int, vocab_size: int) -> None:
    """Refuse an id that no piece has: one below 0 would silently count from the end."""
    if not 0 <= id < vocab_size:
        raise IndexError(f"id {id} is not in a vocabulary of {vocab_size}")


def files_digest(files: Mapping[str, bytes]) -> str:
    """A sha256 over names and bytes; the lengths between them keep two files from reading as one."""
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a tokenizer's files, unless one of another tokenizer is there that would be loaded with them."""
    for name in (TOKENIZER_FILE, MODEL_FILE, DICTIONARY_FILE, HF_FILE):
        if name not in files and (folder / name).exists():
            raise StoreError(f"cannot save a tokenizer in {folder}: {name} of another one is there")
    for name, content in files.items():
        atomic_write(folder / name, content)


def read_limited(path: Path) -> bytes:
    """Read a tokenizer file, if it is there and not beyond all measure."""
    try:
        size = path.stat().st_size
        if size > SIZE_LIMIT:
            raise StoreError(f"{path} is not a tokenizer: {size} bytes are too many, the limit is {SIZE_LIMIT}")
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None


class LibraryTokenizer:
    """Ids from an engine of the library, and one file that saving must change no byte of."""

    def __init__(self, engine: tokenizers.Tokenizer, file: str, content: bytes, vocab_size: int) -> None:
        # without this switch "<eos>" in a text is id 2; the library writes it to no file, so it is set here
        engine.encode_special_tokens = True
        self._engine, self._file, self._content, self._vocab_size = engine, file, content, vocab_size
        self._digest = files_digest({file: content})

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def content(self) -> bytes:
        """Of the file that `save` writes."""
        return self._content

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            as_utf8(text)
        return [found.ids for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def save(self, folder: Path) -> None:
        write_files(folder, {self._file: self._content})
