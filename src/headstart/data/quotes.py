"""Which of some thousand known texts stand in a stream of documents: with words changed, or inside a longer text.

The known texts' runs of words are indexed; documents pass by once. A document that holds a third of a text's runs holds
the text, whatever stands around it: Jaccard's similarity would not see a review that is quoted in a novel.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from headstart.data.minhash import ENOUGH, spread
from headstart.data.shingles import RUN, Runs, Words, hashed_runs, stretches

HELD = 1 / 3
"""The share of a text's runs that a document must hold."""
_BATCH_CHARACTERS = 1_000_000
_COMMON = 1000
"""A run that stands in more of the known texts than this does not tell them apart, and is not looked for."""
_SIEVE_BITS = 24
_SIEVE_SHIFT = np.uint64(64 - _SIEVE_BITS)
K = TypeVar("K")
"""Whatever a caller knows a document by: a number, or its place in words."""


@dataclass(frozen=True, slots=True)
class Quote(Generic[K]):
    """A known text that a document holds, in part or whole."""

    document: K
    text: int
    held: float
    """The share of the text's runs that stand in the document."""
    taken: float
    """The share of the document's runs that stand in the text."""


class QuoteIndex:
    """The runs of known texts, which `words` has learnt."""

    def __init__(self, runs: Runs, words: Words) -> None:
        self._words = words
        self._texts = max(1, len(runs))
        long = np.repeat(runs.sizes >= ENOUGH, runs.sizes)  # a shorter text cannot be told from a turn of phrase
        hashes, owner = runs.hashes[long], np.repeat(np.arange(len(runs)), runs.sizes)[long]
        order = np.argsort(hashes, kind="stable")
        self._owner = owner[order]
        keys, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
        rare = counts <= _COMMON
        self._keys, self._starts, self._counts = keys[rare], starts[rare], counts[rare]
        self._sizes = np.bincount(self._owner[np.repeat(rare, counts)], minlength=self._texts)
        self._sieve = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        self._sieve[self._keys >> _SIEVE_SHIFT] = True

    def find(self, documents: Iterable[tuple[K, str]]) -> Iterator[Quote[K]]:
        """What each document holds of a known text, eight runs or more; documents in order, long ones in pieces."""
        for batch in _batches(documents):
            yield from self._find(batch)

    def _find(self, batch: list[tuple[K, str]]) -> Iterator[Quote[K]]:
        looked = [self._words.look(piece) for _, piece in batch]
        flat = np.array([word for one in looked for word in (*one, 0)], dtype=np.uint64)
        piece = np.repeat(np.arange(len(batch)), [len(one) + 1 for one in looked])[: max(0, len(flat) - RUN + 1)]
        known = np.ones(len(piece), dtype=bool)
        for place in range(
            RUN
        ):  # a run with a word that no text has is in none, and one across two documents is no run
            known &= flat[place : place + len(piece)] != 0
        hashes = hashed_runs(flat)[known]
        passed = self._sieve[hashes >> _SIEVE_SHIFT]
        hashes, piece = hashes[passed], piece[known][passed]
        slot = np.searchsorted(self._keys, hashes)
        hit = slot < len(self._keys)
        hit[hit] = self._keys[slot[hit]] == hashes[hit]
        # each run once a piece, then a line for each text that has it
        codes = np.unique(piece[hit] * max(1, len(self._keys)) + slot[hit])
        piece, slot = np.divmod(codes, max(1, len(self._keys)))
        run, place_of = spread(self._starts[slot], self._counts[slot])
        pairs, shared = np.unique(piece[run] * self._texts + self._owner[place_of], return_counts=True)
        enough = shared >= ENOUGH
        for pair, count in zip(pairs[enough].tolist(), shared[enough].tolist(), strict=True):
            where, text = divmod(pair, self._texts)
            runs = len(looked[where]) - RUN + 1
            yield Quote(batch[where][0], text, count / int(self._sizes[text]), count / runs)


def _batches(documents: Iterable[tuple[K, str]]) -> Iterator[list[tuple[K, str]]]:
    """Documents, long ones in pieces, in bites of about a million characters."""
    batch: list[tuple[K, str]] = []
    characters = 0
    for key, document in documents:
        for piece in stretches(document):
            batch.append((key, piece))
            characters += len(piece)
            if characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch
