"""Existing SentencePiece models, with an optional vocabulary file that numbers their pieces.

`dict.txt` has a line `piece count` for each piece; the first line is id 4. Without it, the model's pieces are numbered in
order, without control and unknown pieces. Headstart trains no SentencePiece models.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import sentencepiece

from headstart.errors import StoreError
from headstart.tokenization.base import (
    DICTIONARY_FILE,
    MODEL_FILE,
    NUM_SPECIAL_IDS,
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
        """Use `load`. `engine` is a `SentencePieceProcessor`, `pieces` begin at id 4, and `save` writes `files`."""
        self._engine = engine
        self._pieces = (*_SPECIAL_PIECES, *pieces)
        self._ids = {piece: id for id, piece in enumerate(pieces, start=NUM_SPECIAL_IDS)}
        self._files = files
        self._digest = files_digest(files)

    @classmethod
    def load(cls, path: Path, dictionary: Path | None = None) -> Self:
        """Load a `.model` file, and number its pieces by `dictionary` if it is given."""
        content = read_limited(path)
        engine, model_pieces = _parse_model(content, path)
        if dictionary is None:
            return cls(engine, model_pieces, {MODEL_FILE: content})
        dictionary_content = read_limited(dictionary)
        pieces = _parse_dictionary(dictionary_content, dictionary)
        num_unknown = len(set(pieces).difference(model_pieces))
        # a dictionary of a corpus may have some characters that the model lacks; that of another model has mostly such
        if 2 * num_unknown > len(pieces):
            raise StoreError(
                f"{dictionary} does not belong to {path}: {num_unknown} of its {len(pieces)} pieces are not in the model"
            )
        return cls(engine, pieces, {MODEL_FILE: content, DICTIONARY_FILE: dictionary_content})

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def digest(self) -> str:
        return self._digest

    def pieces(self, text: str) -> list[str]:
        """Return the pieces of a text, including those outside of the vocabulary."""
        as_utf8(text)
        pieces: list[str] = self._engine.encode(text, out_type=str)
        return pieces

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(piece, _UNKNOWN) for piece in self.pieces(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            as_utf8(text)
        rows: list[list[str]] = self._engine.encode(list(texts), out_type=str)
        return [[self._ids.get(piece, _UNKNOWN) for piece in pieces] for pieces in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the normalised text of some ids, without unknown pieces."""
        for id in ids:
            check_id(id, len(self._pieces))
        text: str = self._engine.decode_pieces([self._pieces[id] for id in ids if id >= NUM_SPECIAL_IDS])
        return text

    def piece(self, id: int) -> str:
        check_id(id, len(self._pieces))
        return self._pieces[id]

    def save(self, folder: Path) -> None:
        write_files(folder, self._files)


def _parse_model(content: bytes, path: Path) -> tuple[Any, list[str]]:
    """Return the library's model, and its pieces in order without control and unknown pieces."""
    _check_sections(content, path)
    engine = sentencepiece.SentencePieceProcessor()
    try:
        engine.LoadFromSerializedProto(content)
        ordinary_ids = (id for id in range(len(engine)) if not engine.is_control(id) and not engine.is_unknown(id))
        return engine, [engine.id_to_piece(id) for id in ordinary_ids]
    except (RuntimeError, UnicodeDecodeError):  # the messages name lines of C++ code and no cause
        raise StoreError(f"{path} is not a SentencePiece model, or is damaged") from None


def _check_sections(content: bytes, path: Path) -> None:
    """Refuse a model that is truncated between two pieces, which the library loads as a smaller one.

    A model is a protobuf message: pieces (field 1), training settings (field 2), and normalisation (field 3).
    """
    fields: set[int] = set()
    position = 0
    while position < len(content):
        key, position = read_varint(content, position)
        length, position = read_varint(content, position)
        if key & 7 != 2:  # every field must be length-delimited
            break
        fields.add(key >> 3)
        position += length
    if position != len(content) or not fields >= {1, 2, 3}:
        raise StoreError(f"{path} is not a SentencePiece model, or is damaged")


def read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, seven bits per byte, lowest first, and the position after it.

    >>> read_varint(bytes([0b1000_0001, 0b0000_0010]), 0)
    (257, 2)
    """
    number = 0
    for shift in range(0, 64, 7):
        byte = content[position + shift // 7 : position + shift // 7 + 1] or b"\0"
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number, position + shift // 7 + 1
    return number, len(content) + 1


def _parse_dictionary(content: bytes, path: Path) -> list[str]:
    try:
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise StoreError(f"{path}, line {number}: not UTF-8") from None
    if lines == [""]:
        raise StoreError(f"{path} is empty; expected a line 'piece count' for each piece")
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        # a piece may contain other white space, so the last plain space separates
        piece, _, count = line.rpartition(" ")
        if not piece or not (count.isascii() and count.isdigit()):
            raise StoreError(f"{path}, line {number}: expected 'piece count', found {line[:80]!r}")
        if piece in line_of:
            raise StoreError(f"{path}, line {number}: {piece[:80]!r} is on line {line_of[piece]} already")
        line_of[piece] = number
    return list(line_of)
