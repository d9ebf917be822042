"""The Tokenizer protocol, special ids, and the base class of tokenizers that the `tokenizers` library runs.

Ids 0, 1 and 2 are the start, the padding and the end of a text in the tokenizers that Headstart trains or reads; id 3 is
the mask of a byte-level BPE, and the unknown piece of a SentencePiece model. Plain text never encodes to 0, 1, 2 or a
mask: "<eos>" in a text is five ordinary characters.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tokenizers

from headstart.errors import DataError, StoreError
from headstart.files import atomic_write

NUM_SPECIAL_IDS = 4
"""Ids below this one are special; ordinary pieces begin here."""
TOKENIZER_FILE = "tokenizer.json"
MODEL_FILE = "sentencepiece.model"
DICTIONARY_FILE = "dict.txt"
HF_FILE = "imported.json"
SIZE_LIMIT = 256 * 1024 * 1024
"""The size limit of a tokenizer file in bytes; a million pieces take less than half of it."""


@dataclass(frozen=True)
class SpecialIds:
    """The ids of special tokens, which represent no text."""

    sos: int
    pad: int
    eos: int
    mask: int | None
    """None if the tokenizer has no mask token."""
    unknown: int | None
    """None if the tokenizer can encode every text."""
    sep: int | None = None
    """The token at the end of every row, for models that were trained with one."""

    @property
    def num_special_tokens(self) -> int:
        """The number of special tokens that a row adds to a text."""
        return 1 if self.sep is None else 2


class Tokenizer(Protocol):
    """Converts texts to ids and back."""

    @property
    def special(self) -> SpecialIds:
        """The ids of special tokens."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones included."""

    @property
    def digest(self) -> str:
        """A sha256 over the names and bytes of the files that `save` writes; equal for the same tokenizer only."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start or end; a lone surrogate is a DataError."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text as `encode` does, on all cores."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; special ids are ignored."""

    def piece(self, id: int) -> str:
        """Return a readable form of one id, with spaces shown as ▁."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into an existing folder."""


def as_utf8(text: str) -> bytes:
    """Encode a text as UTF-8; a lone surrogate, which JSON can escape, is a DataError."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a text contains the unpaired surrogate {text[error.start]!a} at character {error.start}, "
            "which UTF-8 cannot encode; remove it from the data"
        ) from None


def check_id(id: int, vocab_size: int) -> None:
    """Refuse an id outside of the vocabulary; a negative one would silently count from the end."""
    if not 0 <= id < vocab_size:
        raise IndexError(f"id {id} is not in a vocabulary of {vocab_size}")


def files_digest(files: Mapping[str, bytes]) -> str:
    """Return a sha256 over names, lengths and bytes; the lengths mark where one file ends."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a tokenizer's files, unless the folder holds a file of another tokenizer."""
    for name in (TOKENIZER_FILE, MODEL_FILE, DICTIONARY_FILE, HF_FILE):
        if name not in files and (folder / name).exists():
            raise StoreError(f"cannot save a tokenizer in {folder}: it already contains {name} of another tokenizer")
    for name, content in files.items():
        atomic_write(folder / name, content)


def read_limited(path: Path) -> bytes:
    """Read a tokenizer file of at most `SIZE_LIMIT` bytes."""
    try:
        size = path.stat().st_size
        if size > SIZE_LIMIT:
            raise StoreError(f"{path} is not a tokenizer: {size} bytes exceed the limit of {SIZE_LIMIT}")
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None


@contextmanager
def library_panics() -> Iterator[None]:
    """Turn a panic of the `tokenizers` library into a DataError: it is no Exception, and would pass every handler."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's class, which cannot be imported
            raise
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise DataError(f"the tokenizer fails on a text: {reason}") from None


class LibraryTokenizer:
    """A tokenizer whose `engine` is a `tokenizers.Tokenizer`, with the exact bytes of the one file that it saves."""

    def __init__(self, engine: tokenizers.Tokenizer, file: str, content: bytes, vocab_size: int) -> None:
        # otherwise "<eos>" in a text would be id 2; the library saves this switch to no file, so it is set here
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
        """The content of the file that `save` writes."""
        return self._content

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            as_utf8(text)
        with library_panics():
            encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def save(self, folder: Path) -> None:
        write_files(folder, {self._file: self._content})
