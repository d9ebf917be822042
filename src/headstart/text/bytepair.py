"""Byte-level BPE, trained in the flow: every text can be written, nothing is unknown, and nothing is lost.

Pieces are learned and applied by the `tokenizers` library; here is what of a corpus it reads, and how special tokens
are kept from coming out of plain text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import models, trainers

from headstart.config import TokenizerConfig
from headstart.errors import DataError
from headstart.progress import Progress, Quiet, Task, counted
from headstart.text.bytepair_file import SPECIAL_TOKENS, build_engine, byte_letters, parse_engine
from headstart.text.engine import EngineTokenizer
from headstart.text.vocabulary import (
    SPECIALS,
    TOKENIZER_FILE,
    SpecialIds,
    check_id,
    read_bounded,
    utf8_of,
)

_BATCH_BYTES = 1_000_000
_QUIET = Quiet()


class BytePairTokenizer(EngineTokenizer):
    """A byte-level BPE: ids 0 <sos>, 1 <pad>, 2 <eos>, 3 <mask>, then the 256 bytes, then the merges in order."""

    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)

    def __init__(self, engine: tokenizers.Tokenizer, content: bytes) -> None:
        """Made by `train_tokenizer` and `load`. `content` is the file of `engine`: saving must change no byte."""
        super().__init__(engine, TOKENIZER_FILE, content, engine.get_vocab_size())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json` that `save` wrote; any other is refused, naming what differs."""
        content = read_bounded(path)
        return cls(parse_engine(content, path), content)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; bytes that make no whole character read as U+FFFD."""
        for id in ids:
            check_id(id, self._vocab_size)
        text: str = self._engine.decode([id for id in ids if id >= SPECIALS], skip_special_tokens=False)
        return text

    def piece(self, id: int) -> str:
        """One id as a person reads it: spaces as ▁, and bytes that do not print as <0xC3>."""
        check_id(id, self._vocab_size)
        if id < SPECIALS:
            return SPECIAL_TOKENS[id]
        letters = byte_letters()
        content = bytes(letters[letter] for letter in str(self._engine.id_to_token(id)))
        try:
            text = content.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            text = ""
        return text if text.isprintable() and text else "".join(f"<0x{byte:02X}>" for byte in content)


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, progress: Progress = _QUIET) -> BytePairTokenizer:
    """Learn the pieces of some texts. The same texts in the same order give the same file, byte for byte.

    A small corpus has fewer pairs worth merging than `config.vocab_size` asks for; the vocabulary is then smaller.
    """
    engine = build_engine(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=2,  # a pair seen once is no regularity
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(byte_letters()),
        show_progress=False,
    )
    with progress.task("tokenizer: reading text", None, "MB") as task:
        engine.train_from_iterator(_batches(texts, math.ceil(config.megabytes * 1e6), task), trainer)
    return BytePairTokenizer(engine, engine.to_str().encode("utf-8"))


def _batches(texts: Iterable[str], budget: int, task: Task) -> Iterator[list[str]]:
    """Texts in lists of about a megabyte, until `budget` bytes are read; the text that reaches it is cut there."""
    batch: list[str] = []
    documents = read = given = 0
    for text in texts:
        content = utf8_of(text)[: budget - read]
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
        raise DataError(f"there is no text to train a tokenizer on: 0 bytes in {counted(documents, 'document')}")
    yield batch
    task.advance((read - given) / 1e6, note="learning pieces")
