"""Texts that stand in two places: word for word, or almost.

exact   the same text, white space aside (digests.py)
near    at least eight runs of five words shared, and of all runs of both a fifth (minhash.py), or of the runs of the
        text a third, whatever else the other holds (quotes.py)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic

import numpy as np

from headstart.data.digests import text_digest
from headstart.data.minhash import near_rows
from headstart.data.quotes import HELD, K, QuoteIndex
from headstart.data.shingles import Runs, Words, runs_of


class Known:
    """Texts to be found again; what it takes is computed when it is first needed."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._words = Words()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """By which a text is known word for word."""
        return tuple(text_digest(text) for text in self.texts)

    @cached_property
    def first(self) -> dict[int, int]:
        """The first text of each digest."""
        return {digest: row for row, digest in reversed(list(enumerate(self.digests)))}

    @cached_property
    def runs(self) -> Runs:
        """By which a text is known with words changed."""
        return runs_of(self.texts, self._words)

    @cached_property
    def quotes(self) -> QuoteIndex:
        """By which a text is found inside another."""
        return QuoteIndex(self.runs, self._words)


@dataclass(frozen=True)
class Overlap(Generic[K]):
    """The rows that stand elsewhere too, in order, each with its place there; a row is in one of the two."""

    exact: dict[int, K]
    near: dict[int, K]


def overlap(rows: Known, others: Known) -> Overlap[int]:
    """The rows that also stand among the others, and those that almost do."""
    exact = {row: others.first[digest] for row, digest in enumerate(rows.digests) if digest in others.first}
    near = {row: other for row, (other, _) in near_rows(rows.runs, others.runs).items()}
    near = _held(rows, enumerate(others.texts)) | near
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def overlap_rows(test: Sequence[str], others: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Which rows of `test` stand in one of the others: {"exact": rows, "near": rows that are not exact ones}."""
    rows = Known(test)
    found = [overlap(rows, Known(texts)) for texts in others]
    exact = {row for one in found for row in one.exact}
    return {"exact": sorted(exact), "near": sorted({row for one in found for row in one.near} - exact)}


def watch(rows: Known, documents: Iterable[tuple[K, str]]) -> Overlap[K]:
    """The rows that documents are or hold; these pass by once, whatever their number, and are known by their keys."""
    seen: dict[int, K] = {}

    def passing() -> Iterator[tuple[K, str]]:
        for key, document in documents:
            digest = text_digest(document)
            if digest in rows.first:
                seen.setdefault(digest, key)
            yield key, document

    near = _held(rows, passing())
    exact = {row: seen[digest] for row, digest in enumerate(rows.digests) if digest in seen}
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def _held(rows: Known, documents: Iterable[tuple[K, str]]) -> dict[int, K]:
    """The rows of which a document holds enough, each with the document that holds most."""
    best: dict[int, tuple[float, K]] = {}
    for quote in rows.quotes.find(documents):
        if quote.held >= HELD and (quote.text not in best or quote.held > best[quote.text][0]):
            best[quote.text] = quote.held, quote.document
    return {row: document for row, (_, document) in best.items()}


def unwanted(documents: Iterable[str], rows: Known) -> dict[int, str]:
    """The documents that are one of the rows ("exact"), hold one, or are a piece of one ("near"), by number."""
    found: dict[int, str] = {}

    def passing() -> Iterator[tuple[int, str]]:
        for number, document in enumerate(documents):
            if text_digest(document) in rows.first:
                found[number] = "exact"
            yield number, document

    for quote in rows.quotes.find(passing()):
        if max(quote.held, quote.taken) >= HELD:
            found.setdefault(quote.document, "near")
    return dict(sorted(found.items()))


def counts(digests: Iterable[int]) -> tuple[int, int, int]:
    """Of digests of rows: rows that repeat an earlier one, texts that stand more than once, and rows of those texts.

    >>> counts([7, 8, 7, 7, 9, 8])
    (3, 2, 5)
    """
    _, times = np.unique(np.fromiter(digests, dtype=np.uint64), return_counts=True)
    return int((times - 1).sum()), int((times > 1).sum()), int(times[times > 1].sum())
