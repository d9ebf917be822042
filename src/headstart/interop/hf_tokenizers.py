"""Read the tokenizer of a transformers folder, and write ours as files that `AutoTokenizer` and `tokenizers` read.

Ids are the same in both directions. A tokenizer that Headstart exported is read as one of Headstart's again.
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
from headstart.tokenization.patterns import check_patterns

_SPECIAL_NAMES = {"sos": ("bos", "cls"), "eos": ("eos", "sep"), "pad": ("pad",), "mask": ("mask",), "unknown": ("unk",)}


def read_tokenizer(source: str, folder: Path, facts: Mapping[str, Any], *, exact: bool = False) -> Tokenizer:
    """Read tokenizer.json and the names of its special tokens.

    Args:
        facts: the model's config.json, whose ids are used if the tokenizer names no token.
        exact: refuse a tokenizer that adds no start token: our rows have one, which would change a classifier's output.
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
    if (bpe := _read_bpe(settings, path)) is not None:
        return bpe
    engine = read_engine(settings, str(path))
    check_patterns(settings, str(path))
    return HFTokenizer.from_settings(settings, _read_special_ids(source, folder, engine, facts, exact), str(path))


def _read_bpe(settings: Any, path: Path) -> Tokenizer | None:
    """Read a tokenizer that Headstart trained and exported; None if it is another."""
    if not isinstance(settings, dict):
        return None
    original = settings | {"post_processor": None, "truncation": None, "padding": None}
    try:
        engine = parse_engine(json.dumps(original).encode("utf-8"), path)
    except StoreError:
        return None
    return BPETokenizer(engine, engine.to_str().encode("utf-8"))


def _read_special_ids(
    source: str, folder: Path, engine: tokenizers.Tokenizer, facts: Mapping[str, Any], exact: bool
) -> SpecialIds:
    tokens: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            tokens |= {key: value for key, value in content.items() if key.endswith("_token") and value}
    special: dict[str, int | None] = {}
    for ours, hf_names in _SPECIAL_NAMES.items():
        ids = [engine.token_to_id(_content(tokens[f"{name}_token"])) for name in hf_names if f"{name}_token" in tokens]
        ids += [facts.get(f"{name}_token_id") for name in hf_names]
        special[ours] = next((id for id in ids if isinstance(id, int)), None)
    before, after = _special_tokens_around(source, engine)
    if exact and before is None:
        raise UsageError(
            f"{source} does not use a start token, which Headstart adds for classifiers, so its predictions would "
            "change; import its language model and fine-tune it"
        )
    starts = [id for id in (before, special["sos"], special["eos"]) if id is not None]
    if not starts:
        raise UsageError(
            f"{source} names neither a start token (bos, cls) nor an end (eos, sep); its tokenizer has none"
        )
    start = starts[0]
    end = next((id for id in (after, special["eos"]) if id is not None), start)
    padding = special["pad"] if special["pad"] is not None else end  # padding is masked out, so any token will do
    return SpecialIds(sos=start, pad=padding, eos=end, mask=special["mask"], unknown=special["unknown"], sep=after)


def _special_tokens_around(source: str, engine: tokenizers.Tokenizer) -> tuple[int | None, int | None]:
    """The token that a tokenizer adds before a text, and the one after it; None if it adds none."""
    engine.no_padding()
    engine.no_truncation()
    plain, full = engine.encode("a", add_special_tokens=False).ids, engine.encode("a").ids
    size = len(plain)
    for before in range(len(full) - size + 1):
        after = len(full) - size - before
        if full[before : before + size] == plain and before < 2 and after < 2:
            return full[0] if before else None, full[-1] if after else None
    raise UsageError(
        f"{source} has a tokenizer that encodes {plain} as {full}; only a start token and an end token may be added"
    )


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, context: int, *, typed_mask: bool = False, pair: bool = False
) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        typed_mask: whether "<mask>" in a text is the mask token, as `fill-mask` needs it, or plain text, as in Headstart.
        pair: whether two texts are encoded as one row with the end token between them.
    """
    engine = to_hf_tokenizer(tokenizer, pair=pair)
    (folder / TOKENIZER_FILE).write_text(engine.to_str(pretty=True), encoding="utf-8")
    special = tokenizer.special
    ids = {"bos_token": special.sos, "pad_token": special.pad, "eos_token": special.eos}
    ids |= {"cls_token": special.sos, "sep_token": special.sep} if special.sep is not None else {}
    ids |= {"mask_token": special.mask} if special.mask is not None else {}
    ids |= {"unk_token": special.unknown} if special.unknown is not None else {}
    tokens = {name: str(engine.id_to_token(id)) for name, id in ids.items()}
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


def to_hf_tokenizer(tokenizer: Tokenizer, *, pair: bool = False) -> tokenizers.Tokenizer:
    """Convert a tokenizer to one of the `tokenizers` library that gives the ids of our rows, special tokens included."""
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
            _check_conversion(engine, tokenizer, pieces)
    special = tokenizer.special
    start, separator = (str(engine.id_to_token(id)) for id in (special.sos, special.eos))
    end = [] if special.sep is None else [str(engine.id_to_token(special.sep))]
    template_tokens = [(start, special.sos), *((token, special.sep) for token in end)]
    if pair:
        template_tokens.append((separator, special.eos))
    engine.post_processor = processors.TemplateProcessing(
        single=[start, "$A", *end],
        pair=[start, "$A", *([separator] if pair else end), "$B", *end],
        special_tokens=list(dict.fromkeys(template_tokens)),
    )
    return engine


def _check_conversion(engine: tokenizers.Tokenizer, tokenizer: Tokenizer, pieces: list[str]) -> None:
    """Check that a converted tokenizer encodes every piece of the vocabulary, alone and with others, as the original does."""
    engine.encode_special_tokens = True
    words = [piece.replace(WORD_BOUNDARY, " ") for piece in pieces]
    texts = [*words, *(f"{a}{b} {c}" for a, b, c in zip(words, words[1:], words[2:], strict=False))]
    converted = [encoding.ids for encoding in engine.encode_batch_fast(texts, add_special_tokens=False)]
    for text, converted_ids, ids in zip(texts, converted, tokenizer.encode_batch(texts), strict=True):
        if converted_ids != ids:
            raise UsageError(
                f"the SentencePiece model encodes {json.dumps(text, ensure_ascii=False)} in a way that tokenizer.json "
                f"cannot express: as {ids} instead of {converted_ids}"
            )
