"""A SentencePiece model as the `tokenizers` library spells it, where the two can be made to agree.

A model is a protobuf message: its pieces (field 1), how it was trained (2), how it normalises text (3). It is read here
field by field, since the numbers behind the pieces are not all in the library's reach.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from headstart.errors import UsageError

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_KINDS = {3: "word", 4: "char"}
WORD_BOUNDARY = "▁"


@dataclass(frozen=True)
class _Model:
    scores: dict[str, float]
    """Of every piece that text can give."""
    kind: int
    charsmap: bytes
    prefix: bool
    """Whether a text begins as if a space stood before it."""
    one_space: bool
    """Whether runs of spaces count as one, and those at the ends as none."""


def convert_sentencepiece(content: bytes, pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """The model in `content` with the numbering of `pieces` (the special ones first), or one line why there is none."""
    model = _parse(content)
    ordinary = pieces[4:]
    if set(ordinary) != set(model.scores):
        other = len(set(ordinary) ^ set(model.scores))
        raise UsageError(
            f"dict.txt and the SentencePiece model differ in {other:,} pieces, which tokenizer.json cannot express: it has "
            "one numbering for pieces and their ids"
        )
    engine = tokenizers.Tokenizer(_unigram(model, pieces) if model.kind == _UNIGRAM else _bytepair(model, pieces))
    rules: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.one_space:
        rules += [
            normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    if rules:
        engine.normalizer = normalizers.Sequence(rules)
    scheme = "always" if model.prefix else "never"
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_BOUNDARY, prepend_scheme=scheme, split=True)
    engine.decoder = decoders.Metaspace(replacement=WORD_BOUNDARY, prepend_scheme=scheme, split=True)
    return engine


def _unigram(model: _Model, pieces: Sequence[str]) -> models.Unigram:
    # the special pieces stand among those that a text is searched for; with a space inside, which no text has by then,
    # they are not found in it
    special = [(f"{piece[:-1]} >", 0.0) for piece in pieces[:4]]
    return models.Unigram([*special, *((piece, model.scores[piece]) for piece in pieces[4:])], 3, False)


def _bytepair(model: _Model, pieces: Sequence[str]) -> models.BPE:
    """Every way to make a piece of two others, the best piece first: what SentencePiece looks for at every step."""
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for piece in sorted(model.scores, key=lambda piece: -model.scores[piece]):
        for place in range(1, len(piece)):
            left, right = piece[:place], piece[place:]
            if left in model.scores and right in model.scores:
                merges.append((left, right))
    return models.BPE(ids, merges, unk_token=pieces[3], fuse_unk=True)


def _parse(content: bytes) -> _Model:
    """Read what matters, and refuse by name what the other library has no word for."""
    scores: dict[str, float] = {}
    training: dict[int, int | bytes] = {}
    rules: dict[int, int | bytes] = {}
    for field, value in _fields(content):
        assert isinstance(value, bytes)
        if field == 1:
            piece = dict(_fields(value))
            kind = piece.get(3, _NORMAL)
            if kind not in (_NORMAL, _UNKNOWN, _CONTROL):
                names = {4: "user-defined pieces", 5: "unused pieces", 6: "byte pieces"}
                raise _refused(names.get(int(kind), f"pieces of kind {int(kind)}"))
            if kind == _NORMAL:
                (score,) = struct.unpack("<f", bytes(piece.get(2, b"\0\0\0\0")))
                scores[bytes(piece[1]).decode("utf-8")] = score
        elif field == 2:
            training = dict(_fields(value))
        elif field == 3:
            rules = dict(_fields(value))
    kind = int(training.get(3, _UNIGRAM))
    if kind not in (_UNIGRAM, _BPE):
        raise _refused(f"model_type {_KINDS.get(kind, kind)}")
    if training.get(24):
        raise _refused("treat_whitespace_as_suffix")
    if not rules.get(5, 1):
        raise _refused("escape_whitespaces false")
    charsmap = rules.get(2, b"")
    assert isinstance(charsmap, bytes)
    return _Model(scores, kind, charsmap, bool(rules.get(3, 1)), bool(rules.get(4, 1)))


def _refused(what: str) -> UsageError:
    return UsageError(f"the SentencePiece model has {what}, which tokenizer.json cannot express")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers as numbers, all else as bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == 0:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        length = {1: 8, 5: 4}.get(key & 7)
        if length is None:
            length, place = _varint(message, place)
        yield key >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (message[place] & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if message[place - 1] < 0x80:
            return number, place
