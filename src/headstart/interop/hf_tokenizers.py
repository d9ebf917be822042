"""Tokenizers of transformers, in both directions.

The tokenizer in a folder of transformers: ours again if it was ours, else as it is.

A tokenizer of ours as files that `AutoTokenizer` and `tokenizers` read: the same ids, the start token included.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from headstart.errors import StoreError, UsageError
from headstart.files import read_json, write_json
from headstart.interop.sentencepiece_convert import WORD_BOUNDARY, convert_sentencepiece
from headstart.tokenization.base import HF_FILE, MODEL_FILE, TOKENIZER_FILE, SpecialIds, Tokenizer, read_limited
from headstart.tokenization.bpe import BPETokenizer, parse_engine
from headstart.tokenization.hf import HFTokenizer, read_engine

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
        settings = json.loads(read_limited(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    if (own := _ours(settings, path)) is not None:
        return own
    engine = read_engine(settings, str(path))
    return HFTokenizer.from_settings(settings, _special(source, folder, engine, facts, exact), str(path))


def _ours(settings: Any, path: Path) -> Tokenizer | None:
    """A tokenizer that Headstart trained and exported is one of Headstart's again."""
    if not isinstance(settings, dict):
        return None
    bare = settings | {"post_processor": None, "truncation": None, "padding": None}
    try:
        engine = parse_engine(json.dumps(bare).encode("utf-8"), path)
    except StoreError:
        return None
    return BPETokenizer(engine, engine.to_str().encode("utf-8"))


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
    before, after = _special_tokens_around(source, engine)
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
    return SpecialIds(sos=start, pad=padding, eos=end, mask=found["mask"], unknown=found["unknown"], sep=after)


def _special_tokens_around(source: str, engine: tokenizers.Tokenizer) -> tuple[int | None, int | None]:
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


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, context: int, *, typed_mask: bool = False, pair: bool = False
) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        pair: two texts become one row with the end token between them.
        typed_mask: "<mask>" in a text is the mask, for filling gaps; else it is six characters like any other, as here.
    """
    engine = standalone(tokenizer, pair=pair)
    (folder / TOKENIZER_FILE).write_text(engine.to_str(pretty=True), encoding="utf-8")
    special = tokenizer.special
    named = {"bos_token": special.sos, "pad_token": special.pad, "eos_token": special.eos}
    named |= {"cls_token": special.sos, "sep_token": special.sep} if special.sep is not None else {}
    named |= {"mask_token": special.mask} if special.mask is not None else {}
    named |= {"unk_token": special.unknown} if special.unknown is not None else {}
    tokens = {name: str(engine.id_to_token(id)) for name, id in named.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": not typed_mask,
        **tokens,
    }
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", tokens)


def standalone(tokenizer: Tokenizer, *, pair: bool = False) -> tokenizers.Tokenizer:
    """An engine of the `tokenizers` library that gives the ids of our rows, what stands around a text included."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        if isinstance(tokenizer, HFTokenizer):
            settings = json.loads((folder / HF_FILE).read_text(encoding="utf-8"))["tokenizer"]
            engine = tokenizers.Tokenizer.from_str(json.dumps(settings))
        elif isinstance(tokenizer, BPETokenizer):
            engine = tokenizers.Tokenizer.from_str((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        else:
            pieces = [tokenizer.piece(id) for id in range(tokenizer.vocab_size)]
            engine = convert_sentencepiece((folder / MODEL_FILE).read_bytes(), pieces)
            engine.add_special_tokens([AddedToken(engine.id_to_token(id), normalized=False) for id in range(4)])
            _check(engine, tokenizer, pieces)
    special = tokenizer.special
    start, between = (str(engine.id_to_token(id)) for id in (special.sos, special.eos))
    end = [] if special.sep is None else [str(engine.id_to_token(special.sep))]
    named = [(start, special.sos), *((token, special.sep) for token in end)]
    if pair:
        named.append((between, special.eos))
    engine.post_processor = processors.TemplateProcessing(
        single=[start, "$A", *end],
        pair=[start, "$A", *([between] if pair else end), "$B", *end],
        special_tokens=list(dict.fromkeys(named)),
    )
    return engine


def _check(engine: tokenizers.Tokenizer, tokenizer: Tokenizer, pieces: list[str]) -> None:
    """What was converted must read every piece of the vocabulary as the original does, alone and beside others."""
    engine.encode_special_tokens = True
    words = [piece.replace(WORD_BOUNDARY, " ") for piece in pieces]
    texts = [*words, *(f"{a}{b} {c}" for a, b, c in zip(words, words[1:], words[2:], strict=False))]
    theirs = [found.ids for found in engine.encode_batch_fast(texts, add_special_tokens=False)]
    for text, found, ours in zip(texts, theirs, tokenizer.encode_batch(texts), strict=True):
        if found != ours:
            raise UsageError(
                f"the SentencePiece model reads {json.dumps(text, ensure_ascii=False)} in a way that tokenizer.json "
                f"cannot express: {ours} here, {found} there"
            )
