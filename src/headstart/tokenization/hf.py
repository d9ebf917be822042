"""The tokenizer of an imported Hugging Face model, with its own ids and special tokens.

`imported.json` holds `{"special": {"sos", "pad", "eos", "mask", "unknown"}, "tokenizer": {...}}`, where "tokenizer" is the
content of the model's tokenizer.json. `special` also has `sep` if rows end with a token. The file is data for the
`tokenizers` library and contains no code.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from headstart.errors import StoreError
from headstart.tokenization.base import HF_FILE, LibraryTokenizer, SpecialIds, check_id, library_panics, read_limited
from headstart.tokenization.patterns import unknown_patterns


class HFTokenizer(LibraryTokenizer):
    """A tokenizer of the `tokenizers` library; datasets add the special tokens that its post-processor would add."""

    def __init__(self, engine: tokenizers.Tokenizer, special: SpecialIds, content: bytes) -> None:
        """Use `load` or `from_settings`. `content` is the content of the file that `save` writes."""
        engine.no_padding()
        engine.no_truncation()
        self.special = special
        super().__init__(engine, HF_FILE, content, max(engine.get_vocab(with_added_tokens=True).values()) + 1)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], special: SpecialIds, name: str) -> Self:
        """Build from the content of a tokenizer.json; `name` is for messages."""
        special_ids = {name: id for name, id in vars(special).items() if name != "sep" or id is not None}
        content = json.dumps({"special": special_ids, "tokenizer": settings}, ensure_ascii=False).encode("utf-8")
        return cls(read_engine(settings, name), special, content)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `imported.json` that `save` wrote."""
        content = read_limited(path)
        try:
            fields = json.loads(content.decode("utf-8"))
            special = SpecialIds(**{name: _checked_id(id) for name, id in fields["special"].items()})  # type: ignore[arg-type]
            settings = fields["tokenizer"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged: {error}") from None
        return cls(read_engine(settings, str(path)), special, content)

    @property
    def has_unknown_patterns(self) -> bool:
        """Whether it has a regular expression that is not one of a well-known model, and may be slow on some texts."""
        return bool(unknown_patterns(json.loads(self.content)["tokenizer"]))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, joined by the tokenizer's own decoder."""
        for id in ids:
            check_id(id, self._vocab_size)
        special_ids = set(vars(self.special).values())
        with library_panics():
            text: str = self._engine.decode([id for id in ids if id not in special_ids], skip_special_tokens=False)
        return text

    def piece(self, id: int) -> str:
        """Return the vocabulary entry of one id, with byte-level spaces as ▁."""
        check_id(id, self._vocab_size)
        return str(self._engine.id_to_token(id) or f"<{id}>").replace("Ġ", "▁")


MAX_GROWTH = 64
"""The largest factor by which the normalizer and the pre-tokenizer together may lengthen a text."""


def growth(step: Any) -> float:
    """Return a bound, at least 1, on the factor by which a step of a tokenizer.json lengthens a text; steps multiply.

    >>> growth({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})
    4.0
    >>> growth({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    1.0
    """
    if not isinstance(step, Mapping):
        return 1.0
    sequences = [step.get(key) for key in ("normalizers", "pretokenizers")]
    if inner_steps := [inner for sequence in sequences if isinstance(sequence, list) for inner in sequence]:
        return math.prod(map(growth, inner_steps))
    if step.get("type") == "ByteLevel":
        return 2.0  # a byte beyond ASCII becomes a letter of two bytes
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0
    replaced = pattern.get("String")
    # a regular expression may match the empty string between any two letters
    return max(1.0, len(content) / len(replaced)) if isinstance(replaced, str) and replaced else 1.0 + len(content)


def read_engine(settings: Mapping[str, Any], name: str) -> tokenizers.Tokenizer:
    """Build the engine that a tokenizer.json describes; `name` is for messages."""
    steps = [settings.get(key) for key in ("normalizer", "pre_tokenizer")] if isinstance(settings, Mapping) else []
    if (factor := math.prod(map(growth, steps))) > MAX_GROWTH:
        raise StoreError(
            f"{name} is not a safe tokenizer: its steps may make a text {factor:,.0f} times as long, and the "
            f"limit is {MAX_GROWTH}"
        )
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(settings))
    except BaseException as error:
        if type(error) is not Exception:  # the library raises exactly this class
            raise
        raise StoreError(f"{name} is not a tokenizer that the tokenizers library can read: {error}") from None


def _checked_id(id: Any) -> int | None:
    if id is not None and type(id) is not int:
        raise ValueError(f"{id!r} is not an id")
    return id
