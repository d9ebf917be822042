"""A tokenizer of ours as files that `AutoTokenizer` and `tokenizers` read: the same ids, the start token included."""

import json
import tempfile
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, processors

from headstart.errors import UsageError
from headstart.files import write_json
from headstart.interop.sentencepiece_file import SPACE, converted
from headstart.text.tokenizer import BytePairTokenizer, ForeignTokenizer, Tokenizer
from headstart.text.vocabulary import FOREIGN_FILE, MODEL_FILE, TOKENIZER_FILE


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
    named |= {"cls_token": special.sos, "sep_token": special.close} if special.close is not None else {}
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
        if isinstance(tokenizer, ForeignTokenizer):
            settings = json.loads((folder / FOREIGN_FILE).read_text(encoding="utf-8"))["tokenizer"]
            engine = tokenizers.Tokenizer.from_str(json.dumps(settings))
        elif isinstance(tokenizer, BytePairTokenizer):
            engine = tokenizers.Tokenizer.from_str((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        else:
            pieces = [tokenizer.piece(id) for id in range(tokenizer.vocab_size)]
            engine = converted((folder / MODEL_FILE).read_bytes(), pieces)
            engine.add_special_tokens([AddedToken(engine.id_to_token(id), normalized=False) for id in range(4)])
            _check(engine, tokenizer, pieces)
    special = tokenizer.special
    start, between = (str(engine.id_to_token(id)) for id in (special.sos, special.eos))
    end = [] if special.close is None else [str(engine.id_to_token(special.close))]
    named = [(start, special.sos), *((token, special.close) for token in end)]
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
    words = [piece.replace(SPACE, " ") for piece in pieces]
    texts = [*words, *(f"{a}{b} {c}" for a, b, c in zip(words, words[1:], words[2:], strict=False))]
    theirs = [found.ids for found in engine.encode_batch_fast(texts, add_special_tokens=False)]
    for text, found, ours in zip(texts, theirs, tokenizer.encode_batch(texts), strict=True):
        if found != ours:
            raise UsageError(
                f"the SentencePiece model reads {json.dumps(text, ensure_ascii=False)} in a way that tokenizer.json "
                f"cannot express: {ours} here, {found} there"
            )
