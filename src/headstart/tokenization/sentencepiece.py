"""SentencePiece models that exist already, with the vocabulary file that numbers their pieces.

`dict.txt` has a line `piece count` for each piece; the first line is id 4. Without it the model's own pieces are
numbered in their order, the ones that no text can give left out. Here no model is trained.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import sentencepiece

from headstart.errors import StoreError
from headstart.tokenization.base import (
    DICTIONARY_FILE,
    MODEL_FILE,
    SPECIAL_NAMES,
    SpecialIds,
    as_utf8,
    check_id,
    files_digest,
    read_limited,
    write_files,
)

_SPECIAL_PIECES = ("<sos>", "<pad>", "<eos>", "<oov>")
_UNKNOWN = 3


class SentencePieceTokenizer:
    """A SentencePiece model: ids 0 <sos>, 1 <pad>, 2 <eos>, 3 <oov>, then the pieces. It has no mask."""

    special = SpecialIds(sos=0, pad=1, eos=2, mask=None, unknown=_UNKNOWN)

    def __init__(self, engine: Any, pieces: Sequence[str], files: dict[str, bytes]) -> None:
        """Made by `load`. `pieces` begin at id 4; `files` are what `save` writes."""
        self._engine = engine
        self._pieces = (*_SPECIAL_PIECES, *pieces)
        self._ids = {piece: id for id, piece in enumerate(pieces, start=SPECIAL_NAMES)}
        self._files = files
        self._digest = files_digest(files)

    @classmethod
    def load(cls, path: Path, dictionary: Path | None = None) -> Self:
        """Load a `.model` file, and number its pieces by `dictionary` if there is one."""
        content = read_limited(path)
        engine, own = _parse_model(content, path)
        if dictionary is None:
            return cls(engine, own, {MODEL_FILE: content})
        listed = read_limited(dictionary)
        pieces = _parse_dictionary(listed, dictionary)
        strangers = len(set(pieces).difference(own))
        # one made from a corpus may hold some characters that the model does not; one of another model, mostly such
        if 2 * strangers > len(pieces):
            raise StoreError(
                f"{dictionary} does not belong to {path}: {strangers} of its {len(pieces)} pieces are not in the model"
            )
        return cls(engine, pieces, {MODEL_FILE: content, DICTIONARY_FILE: listed})

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def digest(self) -> str:
        return self._digest

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text, those outside the vocabulary included."""
        as_utf8(text)
        found: list[str] = self._engine.encode(text, out_type=str)
        return found

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(piece, _UNKNOWN) for piece in self.pieces(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            as_utf8(text)
        found: list[list[str]] = self._engine.encode(list(texts), out_type=str)
        return [[self._ids.get(piece, _UNKNOWN) for piece in pieces] for pieces in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, as the model joins pieces; it is the normalised text, and what was unknown is gone."""
        for id in ids:
            check_id(id, len(self._pieces))
        text: str = self._engine.decode_pieces([self._pieces[id] for id in ids if id >= SPECIAL_NAMES])
        return text

    def piece(self, id: int) -> str:
        check_id(id, len(self._pieces))
        return self._pieces[id]

    def save(self, folder: Path) -> None:
        write_files(folder, self._files)


def _parse_model(content: bytes, path: Path) -> tuple[Any, list[str]]:
    """The library's model, and its pieces in order without those that stand for no text."""
    _check_sections(content, path)
    engine = sentencepiece.SentencePieceProcessor()
    try:
        engine.LoadFromSerializedProto(content)
        ordinary = (id for id in range(len(engine)) if not engine.is_control(id) and not engine.is_unknown(id))
        return engine, [engine.id_to_piece(id) for id in ordinary]
    except (RuntimeError, UnicodeDecodeError):  # their words name lines of C++ or a byte of a piece, and no cause
        raise StoreError(f"{path} is not a SentencePiece model, or is damaged") from None


def _check_sections(content: bytes, path: Path) -> None:
    """Refuse a model that was cut short between two pieces, which the library loads as a smaller one.

    A model is a protobuf message: its pieces (field 1), then how it was trained (2), then how it normalises text (3).
    """
    fields: set[int] = set()
    place = 0
    while place < len(content):
        key, place = read_varint(content, place)
        length, place = read_varint(content, place)
        if key & 7 != 2:  # every section has its length in front
            break
        fields.add(key >> 3)
        place += length
    if place != len(content) or not fields >= {1, 2, 3}:
        raise StoreError(f"{path} is not a SentencePiece model, or is damaged")


def read_varint(content: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, seven bits a byte, the lowest first, and where the next thing begins.

    >>> read_varint(bytes([0b1000_0001, 0b0000_0010]), 0)
    (257, 2)
    """
    number = 0
    for shift in range(0, 64, 7):
        byte = content[place + shift // 7 : place + shift // 7 + 1] or b"\0"
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number, place + shift // 7 + 1
    return number, len(content) + 1


def _parse_dictionary(content: bytes, path: Path) -> list[str]:
    try:
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise StoreError(f"{path}, line {number}: not UTF-8") from None
    if lines == [""]:
        raise StoreError(f"{path} is empty; expected a line 'piece count' for each piece")
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        # a piece may hold white space of other kinds, so only the last plain space divides
        piece, _, count = line.rpartition(" ")
        if not piece or not (count.isascii() and count.isdigit()):
            raise StoreError(f"{path}, line {number}: expected 'piece count', found {line[:80]!r}")
        if piece in seen:
            raise StoreError(f"{path}, line {number}: {piece[:80]!r} stands on line {seen[piece]} already")
        seen[piece] = number
    return list(seen)
