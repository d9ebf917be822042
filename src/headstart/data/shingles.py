"""Texts as sets of hashed runs of five words: by how many of these two texts share, a changed copy is known.

Words are compared without case, punctuation and white space. A character of Chinese or Japanese, which put no blanks
between words, counts as a word. A text of fewer than five words is one run.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RUN = 5
"""Words of a run: texts that have nothing to do with each other share shorter ones, and longer ones break too easily."""
Hashes = NDArray[np.uint64]

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
_STEP = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """The words of a text, folded.

    >>> words("«Très bon!», dit-elle. 本書")
    ['très', 'bon', 'dit', 'elle', '本', '書']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True, eq=False)
class Runs:
    """The sets of many texts end to end; each is sorted and without doubles."""

    hashes: Hashes
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, text: int) -> Hashes:
        """The set of one text, as a view."""
        return self.hashes[self.offsets[text] : self.offsets[text + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many runs each text has."""
        return np.diff(self.offsets)


class Words:
    """Word hashes, each computed once. Hashes of words are sha256's, so they are the same everywhere."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def learn(self, text: str) -> Hashes:
        """The hash of each word of a text."""
        known = self._known
        found = words(text)
        for word in found:
            if word not in known:
                known[word] = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big") | 1
        return np.array([known[word] for word in found], dtype=np.uint64)

    def look(self, text: str) -> list[int]:
        """The hash of each word that was learnt, 0 for the others: memory is bounded by what was learnt."""
        get = self._known.get
        return [get(word, 0) for word in words(text)]


def runs_of(texts: Iterable[str], learnt: Words | None = None) -> Runs:
    """The set of each text."""
    learnt = learnt or Words()
    sets = [_set(learnt.learn(text)) for text in texts]
    offsets = np.zeros(len(sets) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in sets], out=offsets[1:])
    return Runs(np.concatenate([np.empty(0, np.uint64), *sets]), offsets)


def _set(hashes: Hashes) -> Hashes:
    if not len(hashes):
        return hashes
    return np.unique(hashed_runs(hashes, min(RUN, len(hashes))))


def hashed_runs(hashes: Hashes, length: int = RUN) -> Hashes:
    """The hash of every run of `length` words, in order."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    whole = np.full(count, length, dtype=np.uint64)
    for place in range(length):
        whole = whole * _STEP + hashes[place : place + count]
    return mixed(whole)


def mixed(values: Hashes) -> Hashes:
    """Every bit spread over all others; different stays different. The constants are SplitMix64's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def similarity(one: Hashes, other: Hashes) -> float:
    """Jaccard's: the share of the runs of both that stand in both; 0 for two empty sets."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    together = len(one) + len(other) - shared
    return shared / together if together else 0.0


def stretches(text: str, length: int = 200_000, again: int = 20_000) -> Iterator[str]:
    """A long text in pieces that overlap, cut anywhere: memory for a piece, not for a book."""
    for start in range(0, max(1, len(text) - again), length - again):
        yield text[start : start + length]
