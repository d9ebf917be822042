"""Exact and near-duplicates: shingles, MinHash, a containment index, and overlaps of two sets of texts.

Texts as sets of hashed runs of five words: by how many of these two texts share, a changed copy is known.

Words are compared without case, punctuation and white space. A character of Chinese or Japanese, which put no blanks
between words, counts as a word. A text of fewer than five words is one run.

Pairs of texts that are almost the same, without comparing all with all.

Of each set, the smallest value under each of 128 hash functions is kept (Broder, 1997): two sets have the same smallest
value as often as they share members, so the share of equal ones estimates Jaccard's similarity. Two texts become
candidates when two neighbouring values agree somewhere (64 bands of two: by the arithmetic of chance 93 of 100 pairs
with a similarity of 1/5 do, and 999 of 1,000 with one of 1/3), and candidates are compared in full: nothing is reported
that is not so.

Which of some thousand known texts stand in a stream of documents: with words changed, or inside a longer text.

The known texts' runs of words are indexed; documents pass by once. A document that holds a third of a text's runs holds
the text, whatever stands around it: Jaccard's similarity would not see a review that is quoted in a novel.

Texts that stand in two places: word for word, or almost.

exact   the same text, white space aside (digests.py)
near    at least eight runs of five words shared, and of all runs of both a fifth (minhash.py), or of the runs of the
        text a third, whatever else the other holds (quotes.py)
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headstart.data.hashing import text_digest

SHINGLE_WORDS = 5
"""Words of a run: texts that have nothing to do with each other share shorter ones, and longer ones break too easily."""
Hashes = NDArray[np.uint64]

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
_STEP = np.uint64(0x9E3779B97F4A7C15)


def split_words(text: str) -> list[str]:
    """The words of a text, folded.

    >>> split_words("«Très bon!», dit-elle. 本書")
    ['très', 'bon', 'dit', 'elle', '本', '書']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True, eq=False)
class Shingles:
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


class WordHashes:
    """Word hashes, each computed once. Hashes of words are sha256's, so they are the same everywhere."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def learn(self, text: str) -> Hashes:
        """The hash of each word of a text."""
        known = self._known
        found = split_words(text)
        for word in found:
            if word not in known:
                known[word] = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big") | 1
        return np.array([known[word] for word in found], dtype=np.uint64)

    def look(self, text: str) -> list[int]:
        """The hash of each word that was learnt, 0 for the others: memory is bounded by what was learnt."""
        get = self._known.get
        return [get(word, 0) for word in split_words(text)]


def shingles_of(texts: Iterable[str], learnt: WordHashes | None = None) -> Shingles:
    """The set of each text."""
    learnt = learnt or WordHashes()
    sets = [_set(learnt.learn(text)) for text in texts]
    offsets = np.zeros(len(sets) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in sets], out=offsets[1:])
    return Shingles(np.concatenate([np.empty(0, np.uint64), *sets]), offsets)


def _set(hashes: Hashes) -> Hashes:
    if not len(hashes):
        return hashes
    return np.unique(hash_shingles(hashes, min(SHINGLE_WORDS, len(hashes))))


def hash_shingles(hashes: Hashes, length: int = SHINGLE_WORDS) -> Hashes:
    """The hash of every run of `length` words, in order."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    whole = np.full(count, length, dtype=np.uint64)
    for place in range(length):
        whole = whole * _STEP + hashes[place : place + count]
    return mix64(whole)


def mix64(values: Hashes) -> Hashes:
    """Every bit spread over all others; different stays different. The constants are SplitMix64's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Jaccard's: the share of the runs of both that stand in both; 0 for two empty sets."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    together = len(one) + len(other) - shared
    return shared / together if together else 0.0


def unspaced_pieces(text: str, length: int = 200_000, again: int = 20_000) -> Iterator[str]:
    """A long text in pieces that overlap, cut anywhere: memory for a piece, not for a book."""
    for start in range(0, max(1, len(text) - again), length - again):
        yield text[start : start + length]


NUM_PERM = 128
BAND_ROWS = 2
JACCARD_THRESHOLD = 1 / 5
"""The similarity of two texts of one length that share a third of their runs: about one word in five was changed."""
MIN_SHINGLES = 8
"""Runs to share at least, unless all are shared: texts that have nothing else in common may share a turn of phrase."""

_BLOCK = 1 << 16
_MAX_BUCKET = 8
"""Candidates a text and band: of a thousand copies of one text, a few prove the point."""

Signatures = NDArray[np.uint32]


def signatures(runs: Shingles) -> Signatures:
    """The smallest values of each set, texts by places; those of an empty set are all the largest number there is."""
    seeds = mix64(np.arange(1, 2 * NUM_PERM + 1, dtype=np.uint64))
    marks, factors = seeds[:NUM_PERM], seeds[NUM_PERM:] | np.uint64(1)
    found = np.full((len(runs), NUM_PERM), np.iinfo(np.uint32).max, dtype=np.uint32)
    for first, last in _blocks(runs):
        hashes = runs.hashes[runs.offsets[first] : runs.offsets[last]]
        filled = first + np.flatnonzero(runs.sizes[first:last])
        starts = runs.offsets[filled] - runs.offsets[first]
        for place in range(NUM_PERM if len(filled) else 0):
            values = (hashes ^ marks[place]) * factors[place]  # the hashes are well mixed already
            found[filled, place] = np.minimum.reduceat(values, starts) >> np.uint64(32)
    return found


def _blocks(runs: Shingles) -> list[tuple[int, int]]:
    """Texts in groups whose hashes fit into a processor's cache."""
    groups, first = [], 0
    while first < len(runs):
        last = int(np.searchsorted(runs.offsets, runs.offsets[first] + _BLOCK, side="right")) - 1
        last = min(max(last, first + 1), len(runs))
        groups.append((first, last))
        first = last
    return groups


def estimate(one: Signatures, other: Signatures) -> float:
    """About the similarity of the sets behind two signatures; the standard error is at most 0.045."""
    return float((one == other).mean())


def near_duplicate_pairs(
    rows: Shingles, others: Shingles, least: float = JACCARD_THRESHOLD
) -> dict[int, tuple[int, float]]:
    """The rows that have a near-double among the others: which one, the nearest, and how similar it is."""
    nearest: dict[int, tuple[int, float]] = {}
    for row, other in _candidates(rows, others):
        alike = jaccard(rows.of(row), others.of(other))
        if (
            alike >= least
            and have_enough_shingles(rows.of(row), others.of(other), alike)
            and alike > nearest.get(row, (0, 0.0))[1]
        ):
            nearest[row] = other, alike
    return dict(sorted(nearest.items()))


def have_enough_shingles(one: Hashes, other: Hashes, alike: float) -> bool:
    """Whether what two sets share is more than a turn of phrase."""
    return alike == 1 or alike * (len(one) + len(other)) / (1 + alike) >= MIN_SHINGLES - 1e-6


def _candidates(rows: Shingles, others: Shingles) -> list[tuple[int, int]]:
    ours, theirs = (np.flatnonzero(sets.sizes) for sets in (rows, others))
    if not len(ours) or not len(theirs):
        return []
    bands = [
        sets[kept].reshape(len(kept), NUM_PERM // BAND_ROWS, BAND_ROWS).astype(np.uint64)
        for sets, kept in ((signatures(rows), ours), (signatures(others), theirs))
    ]
    mine, yours = ((band[:, :, 0] << np.uint64(32)) | band[:, :, 1] for band in bands)
    codes: list[NDArray[np.int64]] = []
    for place in range(NUM_PERM // BAND_ROWS):
        order = np.argsort(yours[:, place], kind="stable")
        shelf = yours[order, place]
        left = np.searchsorted(shelf, mine[:, place], side="left")
        count = np.minimum(np.searchsorted(shelf, mine[:, place], side="right") - left, _MAX_BUCKET)
        row, slot = expand_ranges(left, count)
        codes.append(ours[row] * len(others) + theirs[order[slot]])
    found = np.unique(np.concatenate(codes))
    return [divmod(int(code), len(others)) for code in found]


def expand_ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For ranges given by start and length: the number of the range and the place of each of their members.

    >>> [part.tolist() for part in expand_ranges(np.array([7, 3, 0]), np.array([2, 0, 1]))]
    [[0, 0, 2], [7, 8, 0]]
    """
    which = np.repeat(np.arange(len(starts)), counts)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + inside


CONTAINMENT_THRESHOLD = 1 / 3
"""The share of a text's runs that a document must hold."""
_BATCH_CHARACTERS = 1_000_000
_COMMON = 1000
"""A run that stands in more of the known texts than this does not tell them apart, and is not looked for."""
_SIEVE_BITS = 24
_SIEVE_SHIFT = np.uint64(64 - _SIEVE_BITS)
K = TypeVar("K")
"""Whatever a caller knows a document by: a number, or its place in words."""


@dataclass(frozen=True, slots=True)
class Containment(Generic[K]):
    """A known text that a document holds, in part or whole."""

    document: K
    text: int
    held: float
    """The share of the text's runs that stand in the document."""
    taken: float
    """The share of the document's runs that stand in the text."""


class ContainmentIndex:
    """The runs of known texts, which `words` has learnt."""

    def __init__(self, runs: Shingles, words: WordHashes) -> None:
        self._words = words
        self._texts = max(1, len(runs))
        long = np.repeat(runs.sizes >= MIN_SHINGLES, runs.sizes)  # a shorter text cannot be told from a turn of phrase
        hashes, owner = runs.hashes[long], np.repeat(np.arange(len(runs)), runs.sizes)[long]
        order = np.argsort(hashes, kind="stable")
        self._owner = owner[order]
        keys, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
        rare = counts <= _COMMON
        self._keys, self._starts, self._counts = keys[rare], starts[rare], counts[rare]
        self._sizes = np.bincount(self._owner[np.repeat(rare, counts)], minlength=self._texts)
        self._sieve = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        self._sieve[self._keys >> _SIEVE_SHIFT] = True

    def find(self, documents: Iterable[tuple[K, str]]) -> Iterator[Containment[K]]:
        """What each document holds of a known text, eight runs or more; documents in order, long ones in pieces."""
        for batch in _batches(documents):
            yield from self._find(batch)

    def _find(self, batch: list[tuple[K, str]]) -> Iterator[Containment[K]]:
        looked = [self._words.look(piece) for _, piece in batch]
        flat = np.array([word for one in looked for word in (*one, 0)], dtype=np.uint64)
        piece = np.repeat(np.arange(len(batch)), [len(one) + 1 for one in looked])[
            : max(0, len(flat) - SHINGLE_WORDS + 1)
        ]
        known = np.ones(len(piece), dtype=bool)
        for place in range(
            SHINGLE_WORDS
        ):  # a run with a word that no text has is in none, and one across two documents is no run
            known &= flat[place : place + len(piece)] != 0
        hashes = hash_shingles(flat)[known]
        passed = self._sieve[hashes >> _SIEVE_SHIFT]
        hashes, piece = hashes[passed], piece[known][passed]
        slot = np.searchsorted(self._keys, hashes)
        hit = slot < len(self._keys)
        hit[hit] = self._keys[slot[hit]] == hashes[hit]
        # each run once a piece, then a line for each text that has it
        codes = np.unique(piece[hit] * max(1, len(self._keys)) + slot[hit])
        piece, slot = np.divmod(codes, max(1, len(self._keys)))
        run, place_of = expand_ranges(self._starts[slot], self._counts[slot])
        pairs, shared = np.unique(piece[run] * self._texts + self._owner[place_of], return_counts=True)
        enough = shared >= MIN_SHINGLES
        for pair, count in zip(pairs[enough].tolist(), shared[enough].tolist(), strict=True):
            where, text = divmod(pair, self._texts)
            runs = len(looked[where]) - SHINGLE_WORDS + 1
            yield Containment(batch[where][0], text, count / int(self._sizes[text]), count / runs)


def _batches(documents: Iterable[tuple[K, str]]) -> Iterator[list[tuple[K, str]]]:
    """Documents, long ones in pieces, in bites of about a million characters."""
    batch: list[tuple[K, str]] = []
    characters = 0
    for key, document in documents:
        for piece in unspaced_pieces(document):
            batch.append((key, piece))
            characters += len(piece)
            if characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


class TextIndex:
    """Texts to be found again; what it takes is computed when it is first needed."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._words = WordHashes()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """By which a text is known word for word."""
        return tuple(text_digest(text) for text in self.texts)

    @cached_property
    def first(self) -> dict[int, int]:
        """The first text of each digest."""
        return {digest: row for row, digest in reversed(list(enumerate(self.digests)))}

    @cached_property
    def runs(self) -> Shingles:
        """By which a text is known with words changed."""
        return shingles_of(self.texts, self._words)

    @cached_property
    def quotes(self) -> ContainmentIndex:
        """By which a text is found inside another."""
        return ContainmentIndex(self.runs, self._words)


@dataclass(frozen=True)
class Overlap(Generic[K]):
    """The rows that stand elsewhere too, in order, each with its place there; a row is in one of the two."""

    exact: dict[int, K]
    near: dict[int, K]


def overlap(rows: TextIndex, others: TextIndex) -> Overlap[int]:
    """The rows that also stand among the others, and those that almost do."""
    exact = {row: others.first[digest] for row, digest in enumerate(rows.digests) if digest in others.first}
    near = {row: other for row, (other, _) in near_duplicate_pairs(rows.runs, others.runs).items()}
    near = _contained(rows, enumerate(others.texts)) | near
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def overlap_rows(test: Sequence[str], others: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Which rows of `test` stand in one of the others: {"exact": rows, "near": rows that are not exact ones}."""
    rows = TextIndex(test)
    found = [overlap(rows, TextIndex(texts)) for texts in others]
    exact = {row for one in found for row in one.exact}
    return {"exact": sorted(exact), "near": sorted({row for one in found for row in one.near} - exact)}


def find_in_stream(rows: TextIndex, documents: Iterable[tuple[K, str]]) -> Overlap[K]:
    """The rows that documents are or hold; these pass by once, whatever their number, and are known by their keys."""
    seen: dict[int, K] = {}

    def passing() -> Iterator[tuple[K, str]]:
        for key, document in documents:
            digest = text_digest(document)
            if digest in rows.first:
                seen.setdefault(digest, key)
            yield key, document

    near = _contained(rows, passing())
    exact = {row: seen[digest] for row, digest in enumerate(rows.digests) if digest in seen}
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def _contained(rows: TextIndex, documents: Iterable[tuple[K, str]]) -> dict[int, K]:
    """The rows of which a document holds enough, each with the document that holds most."""
    best: dict[int, tuple[float, K]] = {}
    for quote in rows.quotes.find(documents):
        if quote.held >= CONTAINMENT_THRESHOLD and (quote.text not in best or quote.held > best[quote.text][0]):
            best[quote.text] = quote.held, quote.document
    return {row: document for row, (_, document) in best.items()}


def contaminated_documents(documents: Iterable[str], rows: TextIndex) -> dict[int, str]:
    """The documents that are one of the rows ("exact"), hold one, or are a piece of one ("near"), by number."""
    found: dict[int, str] = {}

    def passing() -> Iterator[tuple[int, str]]:
        for number, document in enumerate(documents):
            if text_digest(document) in rows.first:
                found[number] = "exact"
            yield number, document

    for quote in rows.quotes.find(passing()):
        if max(quote.held, quote.taken) >= CONTAINMENT_THRESHOLD:
            found.setdefault(quote.document, "near")
    return dict(sorted(found.items()))


def count_duplicates(digests: Iterable[int]) -> tuple[int, int, int]:
    """Of digests of rows: rows that repeat an earlier one, texts that stand more than once, and rows of those texts.

    >>> count_duplicates([7, 8, 7, 7, 9, 8])
    (3, 2, 5)
    """
    _, times = np.unique(np.fromiter(digests, dtype=np.uint64), return_counts=True)
    return int((times - 1).sum()), int((times > 1).sum()), int(times[times > 1].sum())
