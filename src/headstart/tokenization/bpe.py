"""Byte-level BPE: train, read and write.

The `tokenizer.json` of a byte-level BPE: how an engine of ours is set up, and how an untrusted file is read.

The file is an ordinary one of the `tokenizers` library, which can load it by itself. We take no more from it than the
vocabulary and the merges, once everything else in it is found to say what our own set-up says; so a foreign or edited
file cannot bring rules that we did not expect.

Byte-level BPE, trained in the flow: every text can be written, nothing is unknown, and nothing is lost.

Pieces are learned and applied by the `tokenizers` library; here is what of a corpus it reads, and how special tokens
are kept from coming out of plain text.
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
    SPECIAL_NAMES,
    TOKENIZER_FILE,
    LibraryTokenizer,
    SpecialIds,
    as_utf8,
    check_id,
    read_limited,
)

SPECIAL_TOKENS = ("<sos>", "<pad>", "<eos>", "<mask>")
MAX_WORD_LENGTH = 64
"""Bytes of the longest run that merges may span. Learning merges takes time in the square of the longest run, so that
without this bound half a megabyte without a space takes a minute; few real words are cut."""


def build_engine(model: models.BPE) -> tokenizers.Tokenizer:
    """The library's tokenizer around a model, set up as ours."""
    engine = tokenizers.Tokenizer(model)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(length=MAX_WORD_LENGTH)])
    engine.decoder = decoders.ByteLevel()
    return engine


def byte_to_unicode() -> dict[str, int]:
    """The letter by which a byte-level file spells each byte: itself if it prints, else the next one from U+0100 on.

    >>> letters = byte_to_unicode()
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
    except _NotOurFormat as fault:
        raise StoreError(f"{path} is not a tokenizer of Headstart: {fault}") from None
    except RecursionError:
        raise StoreError(f"{path} is damaged: its brackets are nested too deep") from None
    except ValueError as error:  # wrong JSON, wrong UTF-8, or a number of many thousand digits
        raise StoreError(f"{path} is damaged: {error}") from None


class _NotOurFormat(Exception):
    """What a file says that ours do not."""


def _engine_of(settings: Any) -> tokenizers.Tokenizer:
    if not isinstance(settings, dict):
        raise _NotOurFormat("it is not a JSON object")
    model = settings.get("model")
    if not isinstance(model, dict):
        raise _NotOurFormat("it has no model")
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
        raise _NotOurFormat(f"its {name} is {_short(found)}, expected {_short(expected)}")


def _vocab_of(vocab: Any) -> dict[str, int]:
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
            raise _NotOurFormat(f"its vocabulary lacks the byte 0x{byte:02X}")
    for piece in vocab:
        if not piece or not letters.keys() >= set(piece):
            raise _NotOurFormat(f"its vocabulary holds {_short(piece)}, which spells no bytes")
    return vocab


def _merges_of(merges: Any, vocab: dict[str, int]) -> list[tuple[str, str]]:
    if not isinstance(merges, list):
        raise _NotOurFormat("it has no list of merges")
    for merge in merges:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise _NotOurFormat(f"its merge {_short(merge)} is not two pieces")
        whole = "".join(merge)
        if not vocab.keys() >= {*merge, whole}:
            raise _NotOurFormat(f"its merge {_short(merge)} is of pieces outside the vocabulary")
        if whole in SPECIAL_TOKENS:
            raise _NotOurFormat(f"its merge {_short(merge)} would make {whole} from plain text")
    return [(left, right) for left, right in merges]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_BATCH_BYTES = 1_000_000
_NO_PROGRESS = SilentProgress()


class BPETokenizer(LibraryTokenizer):
    """A byte-level BPE: ids 0 <sos>, 1 <pad>, 2 <eos>, 3 <mask>, then the 256 bytes, then the merges in order."""

    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)

    def __init__(self, engine: tokenizers.Tokenizer, content: bytes) -> None:
        """Made by `train_tokenizer` and `load`. `content` is the file of `engine`: saving must change no byte."""
        super().__init__(engine, TOKENIZER_FILE, content, engine.get_vocab_size())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json` that `save` wrote; any other is refused, naming what differs."""
        content = read_limited(path)
        return cls(parse_engine(content, path), content)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; bytes that make no whole character read as U+FFFD."""
        for id in ids:
            check_id(id, self._vocab_size)
        text: str = self._engine.decode([id for id in ids if id >= SPECIAL_NAMES], skip_special_tokens=False)
        return text

    def piece(self, id: int) -> str:
        """One id as a person reads it: spaces as ▁, and bytes that do not print as <0xC3>."""
        check_id(id, self._vocab_size)
        if id < SPECIAL_NAMES:
            return SPECIAL_TOKENS[id]
        letters = byte_to_unicode()
        content = bytes(letters[letter] for letter in str(self._engine.id_to_token(id)))
        try:
            text = content.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else "".join(f"<0x{byte:02X}>" for byte in content)


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, progress: Progress = _NO_PROGRESS) -> BPETokenizer:
    """Learn the pieces of some texts. The same texts in the same order give the same file, byte for byte.

    A small corpus has fewer pairs worth merging than `config.vocab_size` asks for; the vocabulary is then smaller.
    """
    engine = build_engine(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,  # a pair seen once is no regularity
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(byte_to_unicode()),
        show_progress=False,
    )
    with progress.task("tokenizer: reading text", None, "MB") as task:
        engine.train_from_iterator(_batches(texts, math.ceil(config.megabytes * 1e6), task), trainer)
    return BPETokenizer(engine, engine.to_str().encode("utf-8"))


def _batches(texts: Iterable[str], budget: int, task: ProgressTask) -> Iterator[list[str]]:
    """Texts in lists of about a megabyte, until `budget` bytes are read; the text that reaches it is cut there."""
    batch: list[str] = []
    documents = read = given = 0
    for text in texts:
        content = as_utf8(text)[: budget - read]
        documents += 1
        read += len(content)
        batch.append(content.decode("utf-8", errors="ignore"))
        if read - given >= _BATCH_BYTES:
            yield batch
            task.advance((read - given) / 1e6)
            batch, given = [], read
        if read >= budget:
            break
    if not read:
        raise DataError(f"there is no text to train a tokenizer on: 0 bytes in {pluralize(documents, 'document')}")
    yield batch
    task.advance((read - given) / 1e6, note="learning pieces")
