"""A tokenizer that someone else trained, as the `tokenizers` library reads it: its own ids, its own special tokens.

`foreign.json` holds `{"special": {"sos", "pad", "eos", "mask", "unknown"}, "tokenizer": {...}}`, the latter as its
tokenizer.json was; `special` has `close` besides, where rows end with a token. It is data: rules that the library knows,
and no code.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from headstart.errors import StoreError
from headstart.tokenization.base import HF_FILE, LibraryTokenizer, SpecialIds, check_id, read_limited


class HFTokenizer(LibraryTokenizer):
    """The ids of another model's tokenizer; what it would add to a text, the rows have: a start, and some an end."""

    def __init__(self, engine: tokenizers.Tokenizer, special: SpecialIds, content: bytes) -> None:
        """Made by `load` and `of`. `content` is what `save` writes."""
        engine.no_padding()
        engine.no_truncation()
        self.special = special
        super().__init__(engine, HF_FILE, content, max(engine.get_vocab(with_added_tokens=True).values()) + 1)

    @classmethod
    def of(cls, settings: Mapping[str, Any], special: SpecialIds, name: str) -> Self:
        """From the content of a tokenizer.json."""
        named = {name: id for name, id in vars(special).items() if name != "close" or id is not None}
        content = json.dumps({"special": named, "tokenizer": settings}, ensure_ascii=False).encode("utf-8")
        return cls(read_engine(settings, name), special, content)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `foreign.json` that `save` wrote."""
        content = read_limited(path)
        try:
            facts = json.loads(content.decode("utf-8"))
            special = SpecialIds(**{name: _number(id) for name, id in facts["special"].items()})  # type: ignore[arg-type]
            settings = facts["tokenizer"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged: {error}") from None
        return cls(read_engine(settings, str(path)), special, content)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, as the tokenizer's own decoder joins them."""
        for id in ids:
            check_id(id, self._vocab_size)
        apart = {id for id in vars(self.special).values() if id is not None}
        text: str = self._engine.decode([id for id in ids if id not in apart], skip_special_tokens=False)
        return text

    def piece(self, id: int) -> str:
        """One id as its vocabulary spells it, byte-level spaces as ▁."""
        check_id(id, self._vocab_size)
        return str(self._engine.id_to_token(id) or f"<{id}>").replace("Ġ", "▁")


MAX_GROWTH = 64
"""Times its length that a text may have once all steps before the pieces have been over it."""


def growth(step: Any) -> float:
    """How many times longer a step of a tokenizer.json can make a text, at least 1: steps in a row multiply.

    >>> growth({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})
    4.0
    >>> growth({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    1.0
    """
    if not isinstance(step, Mapping):
        return 1.0
    steps = [step.get(key) for key in ("normalizers", "pretokenizers")]
    if inner := [part for each in steps if isinstance(each, list) for part in each]:
        return math.prod(map(growth, inner))
    if step.get("type") == "ByteLevel":
        return 2.0  # a byte beyond ASCII becomes a letter of two
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0
    found = pattern.get("String")
    # what an expression finds may be empty, between any two letters
    return max(1.0, len(content) / len(found)) if isinstance(found, str) and found else 1.0 + len(content)


def read_engine(settings: Mapping[str, Any], name: str) -> tokenizers.Tokenizer:
    """The engine that a tokenizer.json describes."""
    steps = [settings.get(key) for key in ("normalizer", "pre_tokenizer")] if isinstance(settings, Mapping) else []
    if (times := math.prod(map(growth, steps))) > MAX_GROWTH:
        raise StoreError(
            f"{name} is not a tokenizer that can be trusted: its steps may make a text {times:,.0f} times as long, "
            f"and {MAX_GROWTH} is the most"
        )
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(settings))
    except BaseException as error:
        if type(error) is not Exception:  # the library raises that very class, and nothing more precise
            raise
        raise StoreError(f"{name} is not a tokenizer that the tokenizers library can read: {error}") from None


def _number(id: Any) -> int | None:
    if id is not None and type(id) is not int:
        raise ValueError(f"{id!r} is not an id")
    return id
