"""Convert a SentencePiece model to one of the `tokenizers` library.

A model is a protobuf message: its pieces (field 1), its training settings (2) and its normalization (3). It is parsed here,
because the sentencepiece library does not give access to all of the fields.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from headstart.errors import UsageError
from headstart.tokenization.sentencepiece import read_varint

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_MODEL_TYPES = {3: "word", 4: "char"}
WORD_BOUNDARY = "▁"


@dataclass(frozen=True)
class _Model:
    scores: dict[str, float]
    """The score of every normal piece."""
    model_type: int
    charsmap: bytes
    add_dummy_prefix: bool
    """Whether a space is added before a text."""
    remove_extra_whitespaces: bool
    """Whether repeated spaces are merged, and those at both ends removed."""


def convert_sentencepiece(content: bytes, pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """Convert a serialized model, with the ids of `pieces`, whose first four are special; an unsupported one is refused."""
    model = _parse(content)
    ordinary = pieces[4:]
    if set(ordinary) != set(model.scores):
        different = len(set(ordinary) ^ set(model.scores))
        raise UsageError(
            f"dict.txt and the SentencePiece model differ in {different:,} pieces, which tokenizer.json cannot express: it has "
            "one numbering for pieces and their ids"
        )
    engine = tokenizers.Tokenizer(_unigram(model, pieces) if model.model_type == _UNIGRAM else _bpe(model, pieces))
    rules: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        rules += [
            normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    if rules:
        engine.normalizer = normalizers.Sequence(rules)
    scheme = "always" if model.add_dummy_prefix else "never"
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_BOUNDARY, prepend_scheme=scheme, split=True)
    engine.decoder = decoders.Metaspace(replacement=WORD_BOUNDARY, prepend_scheme=scheme, split=True)
    return engine


def _unigram(model: _Model, pieces: Sequence[str]) -> models.Unigram:
    # The library matches special pieces in texts, too. With a space inside, which a normalized text has not, they never
    # match.
    special = [(f"{piece[:-1]} >", 0.0) for piece in pieces[:4]]
    return models.Unigram([*special, *((piece, model.scores[piece]) for piece in pieces[4:])], 3, False)


def _bpe(model: _Model, pieces: Sequence[str]) -> models.BPE:
    """All merges of two pieces into a third, ordered by its score: SentencePiece applies the best one at every step."""
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for piece in sorted(model.scores, key=lambda piece: -model.scores[piece]):
        for index in range(1, len(piece)):
            first, second = piece[:index], piece[index:]
            if first in model.scores and second in model.scores:
                merges.append((first, second))
    return models.BPE(ids, merges, unk_token=pieces[3], fuse_unk=True)


def _parse(content: bytes) -> _Model:
    """Parse a serialized model; raise UsageError for features that the `tokenizers` library does not have."""
    scores: dict[str, float] = {}
    training: dict[int, int | bytes] = {}
    normalization: dict[int, int | bytes] = {}
    for field, value in _fields(content):
        assert isinstance(value, bytes)
        if field == 1:
            piece = dict(_fields(value))
            piece_type = piece.get(3, _NORMAL)
            if piece_type not in (_NORMAL, _UNKNOWN, _CONTROL):
                names = {4: "user-defined pieces", 5: "unused pieces", 6: "byte pieces"}
                raise _unsupported(names.get(int(piece_type), f"pieces of kind {int(piece_type)}"))
            if piece_type == _NORMAL:
                (score,) = struct.unpack("<f", bytes(piece.get(2, b"\0\0\0\0")))
                scores[bytes(piece[1]).decode("utf-8")] = score
        elif field == 2:
            training = dict(_fields(value))
        elif field == 3:
            normalization = dict(_fields(value))
    model_type = int(training.get(3, _UNIGRAM))
    if model_type not in (_UNIGRAM, _BPE):
        raise _unsupported(f"model_type {_MODEL_TYPES.get(model_type, model_type)}")
    if training.get(24):
        raise _unsupported("treat_whitespace_as_suffix")
    if not normalization.get(5, 1):
        raise _unsupported("escape_whitespaces false")
    charsmap = normalization.get(2, b"")
    assert isinstance(charsmap, bytes)
    return _Model(scores, model_type, charsmap, bool(normalization.get(3, 1)), bool(normalization.get(4, 1)))


def _unsupported(feature: str) -> UsageError:
    return UsageError(f"the SentencePiece model has {feature}, which tokenizer.json cannot express")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: varints as integers, all others as bytes."""
    position = 0
    while position < len(message):
        key, position = read_varint(message, position)
        if key & 7 == 0:
            number, position = read_varint(message, position)
            yield key >> 3, number
            continue
        length = {1: 8, 5: 4}.get(key & 7)
        if length is None:
            length, position = read_varint(message, position)
        yield key >> 3, message[position : position + length]
        position += length
