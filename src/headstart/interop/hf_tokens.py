"""The tokenizer in a folder of transformers: ours again if it was ours, else as it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from headstart.errors import StoreError, UsageError
from headstart.files import read_json
from headstart.text.bytepair_file import parse_engine
from headstart.text.tokenizer import BytePairTokenizer, ForeignTokenizer, SpecialIds, Tokenizer
from headstart.text.vocabulary import TOKENIZER_FILE, read_bounded

_NAMES = {"sos": ("bos", "cls"), "eos": ("eos", "sep"), "pad": ("pad",), "mask": ("mask",), "unknown": ("unk",)}


def read_tokenizer(source: str, folder: Path, facts: Mapping[str, Any]) -> Tokenizer:
    """Read tokenizer.json and the names of its special tokens.

    Args:
        facts: the model's config.json, whose ids count where the tokenizer names no token.
    """
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise UsageError(
            f"{source} has no {TOKENIZER_FILE}; write one with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        settings = json.loads(read_bounded(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    return _ours(settings, path) or ForeignTokenizer.of(settings, _special(source, folder, settings, facts), str(path))


def _ours(settings: Any, path: Path) -> Tokenizer | None:
    """A tokenizer that Headstart trained and exported is one of Headstart's again."""
    if not isinstance(settings, dict):
        return None
    bare = settings | {"post_processor": None, "truncation": None, "padding": None}
    try:
        engine = parse_engine(json.dumps(bare).encode("utf-8"), path)
    except StoreError:
        return None
    return BytePairTokenizer(engine, engine.to_str().encode("utf-8"))


def _special(source: str, folder: Path, settings: Any, facts: Mapping[str, Any]) -> SpecialIds:
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            named |= {key: value for key, value in content.items() if key.endswith("_token") and value}
    engine = tokenizers.Tokenizer.from_str(json.dumps(settings))
    found: dict[str, int | None] = {}
    for ours, theirs in _NAMES.items():
        ids = [engine.token_to_id(_text(named[f"{name}_token"])) for name in theirs if f"{name}_token" in named]
        ids += [facts.get(f"{name}_token_id") for name in theirs]
        found[ours] = next((id for id in ids if isinstance(id, int)), None)
    start = found["sos"] if found["sos"] is not None else found["eos"]
    if start is None:
        raise UsageError(
            f"{source} names neither a start token (bos, cls) nor an end (eos, sep); its tokenizer has none"
        )
    end = found["eos"] if found["eos"] is not None else start
    padding = found["pad"] if found["pad"] is not None else end  # padding is never read, so that any token will do
    return SpecialIds(sos=start, pad=padding, eos=end, mask=found["mask"], unknown=found["unknown"])


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
