"""The `tokenizer.json` of a byte-level BPE: how an engine of ours is set up, and how an untrusted file is read.

The file is an ordinary one of the `tokenizers` library, which can load it by itself. We take no more from it than the
vocabulary and the merges, once everything else in it is found to say what our own set-up says; so a foreign or edited
file cannot bring rules that we did not expect.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headstart.errors import StoreError

SPECIAL_TOKENS = ("<sos>", "<pad>", "<eos>", "<mask>")
LONGEST_WORD = 64
"""Bytes of the longest run that merges may span. Learning merges takes time in the square of the longest run, so that
without this bound half a megabyte without a space takes a minute; few real words are cut."""


def build_engine(model: models.BPE) -> tokenizers.Tokenizer:
    """The library's tokenizer around a model, set up as ours."""
    engine = tokenizers.Tokenizer(model)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(length=LONGEST_WORD)])
    engine.decoder = decoders.ByteLevel()
    return engine


def byte_letters() -> dict[str, int]:
    """The letter by which a byte-level file spells each byte: itself if it prints, else the next one from U+0100 on.

    >>> letters = byte_letters()
    >>> letters["a"], letters["Ġ"], len(letters)
    (97, 32, 256)
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(others)}


def parse_engine(content: bytes, path: Path) -> tokenizers.Tokenizer:
    """Make an engine from the bytes of a file; one that is not exactly as ours is refused, naming what differs."""
    try:
        settings = json.loads(content.decode("utf-8"))
        return _engine_of(settings)
    except _Foreign as fault:
        raise StoreError(f"{path} is not a tokenizer of Headstart: {fault}") from None
    except RecursionError:
        raise StoreError(f"{path} is damaged: its brackets are nested too deep") from None
    except ValueError as error:  # wrong JSON, wrong UTF-8, or a number of many thousand digits
        raise StoreError(f"{path} is damaged: {error}") from None


class _Foreign(Exception):
    """What a file says that ours do not."""


def _engine_of(settings: Any) -> tokenizers.Tokenizer:
    if not isinstance(settings, dict):
        raise _Foreign("it is not a JSON object")
    model = settings.get("model")
    if not isinstance(model, dict):
        raise _Foreign("it has no model")
    for name, expected in _MODEL_RULES.items():
        _compare(f"model.{name}", model.get(name), expected)
    for name, expected in _rules().items():
        _compare(name, settings.get(name), expected)
    vocab = _vocab_of(model.get("vocab"))
    merges = _merges_of(model.get("merges"), vocab)
    engine = build_engine(models.BPE(vocab=vocab, merges=merges))
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return engine


# A setting that is off may be missing: versions of the library differ in which of those they write.
_MODEL_RULES = {"type": "BPE"} | dict.fromkeys(
    (
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",
        "byte_fallback",
        "ignore_merges",
    )
)


def _rules() -> dict[str, Any]:
    ours = json.loads(build_engine(models.BPE()).to_str())
    names = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "truncation", "padding")
    switches = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": id, "content": token, **switches} for id, token in enumerate(SPECIAL_TOKENS)]
    return {name: ours[name] for name in names} | {"added_tokens": tokens}


def _compare(name: str, found: Any, expected: Any) -> None:
    if found != expected and (found or expected):
        raise _Foreign(f"its {name} is {_short(found)}, expected {_short(expected)}")


def _vocab_of(vocab: Any) -> dict[str, int]:
    if not isinstance(vocab, dict) or not all(type(id) is int for id in vocab.values()):
        raise _Foreign("its vocabulary does not give each piece an id")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise _Foreign(f"the ids of its vocabulary are not 0 to {len(vocab) - 1}, each once")
    for id, token in enumerate(SPECIAL_TOKENS):
        if vocab.get(token) != id:
            raise _Foreign(f"{token} has the id {vocab.get(token)}, expected {id}")
    letters = byte_letters()
    for letter, byte in letters.items():
        if letter not in vocab:
            raise _Foreign(f"its vocabulary lacks the byte 0x{byte:02X}")
    for piece in vocab:
        if not piece or not letters.keys() >= set(piece):
            raise _Foreign(f"its vocabulary holds {_short(piece)}, which spells no bytes")
    return vocab


def _merges_of(merges: Any, vocab: dict[str, int]) -> list[tuple[str, str]]:
    if not isinstance(merges, list):
        raise _Foreign("it has no list of merges")
    for merge in merges:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise _Foreign(f"its merge {_short(merge)} is not two pieces")
        whole = "".join(merge)
        if not vocab.keys() >= {*merge, whole}:
            raise _Foreign(f"its merge {_short(merge)} is of pieces outside the vocabulary")
        if whole in SPECIAL_TOKENS:
            raise _Foreign(f"its merge {_short(merge)} would make {whole} from plain text")
    return [(left, right) for left, right in merges]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
