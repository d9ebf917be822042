"""The tokenizer in a folder of transformers: ours again if it was ours, else as it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from headstart.errors import StoreError, UsageError
from headstart.files import read_json
from headstart.text.bytepair_file import parse_engine
from headstart.text.foreign import read_engine
from headstart.text.tokenizer import BytePairTokenizer, ForeignTokenizer, SpecialIds, Tokenizer
from headstart.text.vocabulary import TOKENIZER_FILE, read_bounded

_NAMES = {"sos": ("bos", "cls"), "eos": ("eos", "sep"), "pad": ("pad",), "mask": ("mask",), "unknown": ("unk",)}


def read_tokenizer(source: str, folder: Path, facts: Mapping[str, Any], *, exact: bool = False) -> Tokenizer:
    """Read tokenizer.json and the names of its special tokens.

    Args:
        facts: the model's config.json, whose ids count where the tokenizer names no token.
        exact: refuse one that puts no start token before a text, as our rows do: a classifier's answers would be others.
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
    if (own := _ours(settings, path)) is not None:
        return own
    engine = read_engine(settings, str(path))
    return ForeignTokenizer.of(settings, _special(source, folder, engine, facts, exact), str(path))


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


def _special(
    source: str, folder: Path, engine: tokenizers.Tokenizer, facts: Mapping[str, Any], exact: bool
) -> SpecialIds:
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            named |= {key: value for key, value in content.items() if key.endswith("_token") and value}
    found: dict[str, int | None] = {}
    for ours, theirs in _NAMES.items():
        ids = [engine.token_to_id(_text(named[f"{name}_token"])) for name in theirs if f"{name}_token" in named]
        ids += [facts.get(f"{name}_token_id") for name in theirs]
        found[ours] = next((id for id in ids if isinstance(id, int)), None)
    before, after = _around(source, engine)
    if exact and before is None:
        raise UsageError(
            f"{source} reads texts without a start token, and a classifier's rows have one here: its answers would not be "
            "those it gave there; import its language model and fine-tune that"
        )
    starts = [id for id in (before, found["sos"], found["eos"]) if id is not None]
    if not starts:
        raise UsageError(
            f"{source} names neither a start token (bos, cls) nor an end (eos, sep); its tokenizer has none"
        )
    start = starts[0]
    end = next((id for id in (after, found["eos"]) if id is not None), start)
    padding = found["pad"] if found["pad"] is not None else end  # padding is never read, so that any token will do
    return SpecialIds(sos=start, pad=padding, eos=end, mask=found["mask"], unknown=found["unknown"], close=after)


def _around(source: str, engine: tokenizers.Tokenizer) -> tuple[int | None, int | None]:
    """What the tokenizer puts before a text and after it: nothing, or a token."""
    engine.no_padding()
    engine.no_truncation()
    plain, whole = engine.encode("a", add_special_tokens=False).ids, engine.encode("a").ids
    size = len(plain)
    for before in range(len(whole) - size + 1):
        after = len(whole) - size - before
        if whole[before : before + size] == plain and before < 2 and after < 2:
            return whole[0] if before else None, whole[-1] if after else None
    raise UsageError(
        f"{source} has a tokenizer that makes {whole} of {plain}; rows here add a start and an end at most"
    )


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
