"""A tokenizer's report card: how well its pieces fit some texts."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from headstart.errors import DataError
from headstart.progress import counted
from headstart.text.vocabulary import SPECIALS, Tokenizer, utf8_of

_BATCH = 1000


@dataclass(frozen=True)
class ReportCard:
    """What a tokenizer makes of some texts. Words are what white space divides; bytes are those of UTF-8."""

    documents: int
    characters: int
    bytes: int
    words: int
    tokens: int
    bytes_per_token: float
    tokens_per_word: float
    unknown_rate: float
    """Share of the tokens that are unknown; 0 where nothing can be."""
    vocab_used: float
    """Share of the ordinary pieces, special ids aside, that the texts hold at least once."""


def report_card(tokenizer: Tokenizer, texts: Iterable[str]) -> ReportCard:
    """Encode some texts and count. Texts without a word cannot be reported on."""
    documents = characters = size = words = tokens = unknown = 0
    seen: set[int] = set()
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH)):
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            documents += 1
            characters += len(text)
            size += len(utf8_of(text))
            words += len(text.split())
            tokens += len(ids)
            unknown += sum(id == tokenizer.special.unknown for id in ids)
            seen.update(ids)
    if not words or not tokens:
        found = ", ".join((counted(documents, "document"), counted(words, "word"), counted(tokens, "token")))
        raise DataError(f"there is no text to report on: {found}")
    ordinary = sum(id >= SPECIALS for id in seen)
    return ReportCard(
        documents=documents,
        characters=characters,
        bytes=size,
        words=words,
        tokens=tokens,
        bytes_per_token=size / tokens,
        tokens_per_word=tokens / words,
        unknown_rate=unknown / tokens,
        vocab_used=ordinary / (tokenizer.vocab_size - SPECIALS),
    )
