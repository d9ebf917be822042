"""Byte-level BPE: training, encoding, and strict parsing of its `tokenizer.json`.

The `tokenizers` library learns and applies the pieces. Every text can be encoded, there is no unknown token, and decoding
restores the text.

`tokenizer.json` is an ordinary file of the library, which can load it by itself. We take only the vocabulary and the
merges from it, after a check that everything else equals our own settings, so that an edited file cannot introduce
unexpected rules.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError, StoreError
from headstart.progress import Progress, ProgressTask, SilentProgress, pluralize
from headstart.tokenization.base import (
    NUM_SPECIAL_IDS,
    TOKENIZER_FILE,
    LibraryTokenizer,
    SpecialIds,
    as_utf8,
    check_id,
    read_limited,
)

SPECIAL_TOKENS = ("<sos>", "<pad>", "<eos>", "<mask>")
MAX_WORD_LENGTH = 64
"""Bytes of the longest pre-token. Learning merges is quadratic in its length: without a bound, half a megabyte without a
space would take a minute. Few real words are longer."""
_BATCH_BYTES = 1_000_000
_NO_PROGRESS = SilentProgress()


def build_engine(model: models.BPE) -> tokenizers.Tokenizer:
    """Return the library's tokenizer for a model, with our pre-tokenizer and decoder."""
    engine = tokenizers.Tokenizer(model)
    split_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([split_words, pre_tokenizers.FixedLength(length=MAX_WORD_LENGTH)])
    engine.decoder = decoders.ByteLevel()
    return engine


def byte_to_unicode() -> dict[str, int]:
    """Return the byte of each letter of a byte-level file: printable bytes are themselves, others follow from U+0100 on.

    >>> letters = byte_to_unicode()
    >>> letters["a"], letters["Ġ"], len(letters)
    (97, 32, 256)
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(unprintable)}


def parse_engine(content: bytes, path: Path) -> tokenizers.Tokenizer:
    """Build an engine from the bytes of a file; a file with other settings than ours is refused, naming the difference."""
    try:
        settings = json.loads(content.decode("utf-8"))
        return _engine_from(settings)
    except _NotOurFormat as difference:
        raise StoreError(f"{path} is not a tokenizer of Headstart: {difference}") from None
    except RecursionError:
        raise StoreError(f"{path} is damaged: its brackets are nested too deeply") from None
    except ValueError as error:  # wrong JSON, wrong UTF-8, or a number of many thousand digits
        raise StoreError(f"{path} is damaged: {error}") from None


class _NotOurFormat(Exception):
    """A difference between a file and ours."""


def _engine_from(settings: Any) -> tokenizers.Tokenizer:
    if not isinstance(settings, dict):
        raise _NotOurFormat("it is not a JSON object")
    model = settings.get("model")
    if not isinstance(model, dict):
        raise _NotOurFormat("it has no model")
    for name, expected in _MODEL_SETTINGS.items():
        _compare(f"model.{name}", model.get(name), expected)
    for name, expected in _expected_settings().items():
        _compare(name, settings.get(name), expected)
    vocab = _checked_vocab(model.get("vocab"))
    merges = _checked_merges(model.get("merges"), vocab)
    engine = build_engine(models.BPE(vocab=vocab, merges=merges))
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return engine


# A setting that is off may be missing, because versions of the library differ in which of them they write.
_MODEL_SETTINGS = {"type": "BPE"} | dict.fromkeys(
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


def _expected_settings() -> dict[str, Any]:
    defaults = json.loads(build_engine(models.BPE()).to_str())
    names = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "truncation", "padding")
    switches = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": id, "content": token, **switches} for id, token in enumerate(SPECIAL_TOKENS)]
    return {name: defaults[name] for name in names} | {"added_tokens": tokens}


def _compare(name: str, value: Any, expected: Any) -> None:
    if value != expected and (value or expected):
        raise _NotOurFormat(f"its {name} is {_excerpt(value)}, expected {_excerpt(expected)}")


def _checked_vocab(vocab: Any) -> dict[str, int]:
    if not isinstance(vocab, dict) or not all(type(id) is int for id in vocab.values()):
        raise _NotOurFormat("its vocabulary does not give each piece an id")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise _NotOurFormat(f"the ids of its vocabulary are not 0 to {len(vocab) - 1}, each once")
    for id, token in enumerate(SPECIAL_TOKENS):
        if vocab.get(token) != id:
            raise _NotOurFormat(f"{token} has the id {vocab.get(token)}, expected {id}")
    letters = byte_to_unicode()
    for letter, byte in letters.items():
        if letter not in vocab:
            raise _NotOurFormat(f"its vocabulary has no entry for the byte 0x{byte:02X}")
    for piece in vocab:
        if not piece or not letters.keys() >= set(piece):
            raise _NotOurFormat(f"its vocabulary holds {_excerpt(piece)}, which spells no bytes")
    return vocab


def _checked_merges(merges: Any, vocab: dict[str, int]) -> list[tuple[str, str]]:
    if not isinstance(merges, list):
        raise _NotOurFormat("it has no list of merges")
    for merge in merges:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise _NotOurFormat(f"its merge {_excerpt(merge)} is not two pieces")
        merged = "".join(merge)
        if not vocab.keys() >= {*merge, merged}:
            raise _NotOurFormat(f"its merge {_excerpt(merge)} is of pieces outside the vocabulary")
        if merged in SPECIAL_TOKENS:
            raise _NotOurFormat(f"its merge {_excerpt(merge)} would make {merged} from plain text")
    return [(left, right) for left, right in merges]


def _excerpt(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class BPETokenizer(LibraryTokenizer):
    """A byte-level BPE: ids 0 <sos>, 1 <pad>, 2 <eos>, 3 <mask>, then the 256 bytes, then the merges in order."""

    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)

    def __init__(self, engine: tokenizers.Tokenizer, content: bytes) -> None:
        """Use `train_tokenizer` or `load`. `content` is the file of `engine`, which `save` writes unchanged."""
        super().__init__(engine, TOKENIZER_FILE, content, engine.get_vocab_size())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json` that `save` wrote; any other is refused, naming the difference."""
        content = read_limited(path)
        return cls(parse_engine(content, path), content)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; bytes that form no complete character become U+FFFD."""
        for id in ids:
            check_id(id, self._vocab_size)
        text: str = self._engine.decode([id for id in ids if id >= NUM_SPECIAL_IDS], skip_special_tokens=False)
        return text

    def piece(self, id: int) -> str:
        """Return a readable form of one id: spaces as ▁, and unprintable bytes as <0xC3>."""
        check_id(id, self._vocab_size)
        if id < NUM_SPECIAL_IDS:
            return SPECIAL_TOKENS[id]
        letters = byte_to_unicode()
        content = bytes(letters[letter] for letter in str(self._engine.id_to_token(id)))
        try:
            text = content.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else "".join(f"<0x{byte:02X}>" for byte in content)


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, progress: Progress = _NO_PROGRESS) -> BPETokenizer:
    """Train on some texts; the same texts in the same order give the same file, byte for byte.

    The vocabulary is smaller than `config.vocab_size` if a small corpus has too few repeated pairs to merge.
    """
    engine = build_engine(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,  # a pair that occurs once is no pattern
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(byte_to_unicode()),
        show_progress=False,
    )
    with progress.task("tokenizer: reading text", None, "MB") as task:
        engine.train_from_iterator(_batches(texts, math.ceil(config.megabytes * 1e6), task), trainer)
    return BPETokenizer(engine, engine.to_str().encode("utf-8"))


def _batches(texts: Iterable[str], budget: int, task: ProgressTask) -> Iterator[list[str]]:
    """Yield texts in batches of about a megabyte, until `budget` bytes are read; the last text is truncated to it."""
    batch: list[str] = []
    num_documents = num_read = num_yielded = 0
    for text in texts:
        content = as_utf8(text)[: budget - num_read]
        num_documents += 1
        num_read += len(content)
        batch.append(content.decode("utf-8", errors="ignore"))
        if num_read - num_yielded >= _BATCH_BYTES:
            yield batch
            task.advance((num_read - num_yielded) / 1e6)
            batch, num_yielded = [], num_read
        if num_read >= budget:
            break
    if not num_read:
        raise DataError(f"there is no text to train a tokenizer on: 0 bytes in {pluralize(num_documents, 'document')}")
    yield batch
    task.advance((num_read - num_yielded) / 1e6, note="learning pieces")
