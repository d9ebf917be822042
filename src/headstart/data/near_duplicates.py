"""Exact and near-duplicates of texts: shingles, MinHash, and a containment index for streams of documents.

    exact   the same text, white space aside (`hashing.text_digest`)
    near    at least eight shingles are shared, and either the Jaccard similarity is at least 1/5, or the other text
            contains at least 1/3 of the shingles of the text

A shingle is five consecutive words, hashed. Words are compared without case, punctuation and white space. Every Chinese
or Japanese character counts as a word, because these scripts put no blanks between words. A text of fewer than five words
is one shingle.

Jaccard similarity is estimated without comparing all pairs by MinHash (Broder, 1997): the minimum of each of 128 hash
functions over a set is kept, and two sets agree in a minimum with a probability equal to their similarity. Two texts are
candidates if two adjacent minima agree in any of 64 bands. This holds for 93 % of the pairs with a similarity of 1/5, and
for 99.9 % of those with 1/3. Candidates are verified exactly, so there are no false positives.

Jaccard similarity misses a review that is quoted in a novel. The containment index therefore counts the shingles of each
indexed text that a document contains, while documents are streamed once.
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

from headstart.data.hashing import GOLDEN_GAMMA, Hashes, Ints, splitmix64, text_digest

SHINGLE_WORDS = 5
"""Words of a shingle: unrelated texts share shorter ones, and small edits destroy longer ones."""
MIN_SHINGLES = 8
"""Shingles that near-duplicates share at least, unless all are shared: unrelated texts may share a common phrase."""
JACCARD_THRESHOLD = 1 / 5
"""The similarity of two texts of equal length that share a third of their shingles: about one word in five differs."""
CONTAINMENT_THRESHOLD = 1 / 3
"""The fraction of a text's shingles that a document must contain."""
NUM_PERM = 128
BAND_ROWS = 2

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
_BLOCK_HASHES = 1 << 16
_MAX_BUCKET = 8
"""Candidates per text and band: a few of a thousand copies of one text are sufficient."""
_BATCH_CHARACTERS = 1_000_000
_MAX_SHINGLE_TEXTS = 1000
"""A shingle of more indexed texts than this does not distinguish them and is ignored."""
_SIEVE_BITS = 24
_SIEVE_SHIFT = np.uint64(64 - _SIEVE_BITS)

Signatures = NDArray[np.uint32]
K = TypeVar("K")
"""The caller's key of a document, such as its index or its location."""


def split_words(text: str) -> list[str]:
    """Split a text into words, normalised and case-folded.

    >>> split_words("«Très bon!», dit-elle. 本書")
    ['très', 'bon', 'dit', 'elle', '本', '書']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True, eq=False)
class Shingles:
    """The shingle sets of many texts end to end, each sorted and unique."""

    hashes: Hashes
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, text: int) -> Hashes:
        """Return the set of one text, as a view."""
        return self.hashes[self.offsets[text] : self.offsets[text + 1]]

    @property
    def sizes(self) -> Ints:
        """The number of shingles of each text."""
        return np.diff(self.offsets)


class WordHashes:
    """A cache of word hashes, which are prefixes of sha256 and therefore the same on every machine."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}

    def add(self, text: str) -> Hashes:
        """Return the hash of each word of a text, and remember them."""
        hashes, words = self._hashes, split_words(text)
        for word in words:
            if word not in hashes:
                hashes[word] = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big") | 1
        return np.array([hashes[word] for word in words], dtype=np.uint64)

    def lookup(self, text: str) -> list[int]:
        """Return the hash of each word that was added, and 0 for any other; nothing is stored."""
        get = self._hashes.get
        return [get(word, 0) for word in split_words(text)]


def shingles_of(texts: Iterable[str], word_hashes: WordHashes | None = None) -> Shingles:
    """Return the shingle set of each text."""
    word_hashes = word_hashes or WordHashes()
    sets = [_shingle_set(word_hashes.add(text)) for text in texts]
    offsets = np.zeros(len(sets) + 1, dtype=np.int64)
    np.cumsum([len(shingle_set) for shingle_set in sets], out=offsets[1:])
    return Shingles(np.concatenate([np.empty(0, np.uint64), *sets]), offsets)


def _shingle_set(word_hashes: Hashes) -> Hashes:
    if not len(word_hashes):
        return word_hashes
    return np.unique(hash_shingles(word_hashes, min(SHINGLE_WORDS, len(word_hashes))))


def hash_shingles(word_hashes: Hashes, length: int = SHINGLE_WORDS) -> Hashes:
    """Return the hash of every `length` consecutive words, in order."""
    count = len(word_hashes) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    combined = np.full(count, length, dtype=np.uint64)
    for index in range(length):
        combined = combined * np.uint64(GOLDEN_GAMMA) + word_hashes[index : index + count]
    return splitmix64(combined)


def jaccard(a: Hashes, b: Hashes) -> float:
    """Return the Jaccard similarity of two sets; 0 for two empty ones."""
    num_shared = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - num_shared
    return num_shared / union if union else 0.0


def signatures(shingles: Shingles) -> Signatures:
    """Return the MinHash signature of each text as a row; that of an empty set is all the largest integer."""
    seeds = splitmix64(np.arange(1, 2 * NUM_PERM + 1, dtype=np.uint64))
    masks, factors = seeds[:NUM_PERM], seeds[NUM_PERM:] | np.uint64(1)
    minima = np.full((len(shingles), NUM_PERM), np.iinfo(np.uint32).max, dtype=np.uint32)
    for first, last in _blocks(shingles):
        hashes = shingles.hashes[shingles.offsets[first] : shingles.offsets[last]]
        texts = first + np.flatnonzero(shingles.sizes[first:last])
        starts = shingles.offsets[texts] - shingles.offsets[first]
        for index in range(NUM_PERM if len(texts) else 0):
            values = (hashes ^ masks[index]) * factors[index]  # sufficient, because the hashes are already mixed
            minima[texts, index] = np.minimum.reduceat(values, starts) >> np.uint64(32)
    return minima


def _blocks(shingles: Shingles) -> list[tuple[int, int]]:
    """Group texts so that the hashes of a group fit into a processor cache."""
    groups, first = [], 0
    while first < len(shingles):
        last = int(np.searchsorted(shingles.offsets, shingles.offsets[first] + _BLOCK_HASHES, side="right")) - 1
        last = min(max(last, first + 1), len(shingles))
        groups.append((first, last))
        first = last
    return groups


def estimate_jaccard(a: Signatures, b: Signatures) -> float:
    """Estimate the similarity of the sets of two signatures; the standard error is at most 0.045."""
    return float((a == b).mean())


def near_duplicate_pairs(
    rows: Shingles, others: Shingles, threshold: float = JACCARD_THRESHOLD
) -> dict[int, tuple[int, float]]:
    """Return, for each row with a near-duplicate among the others, the most similar one and its similarity."""
    nearest: dict[int, tuple[int, float]] = {}
    for row, other in _candidates(rows, others):
        a, b = rows.of(row), others.of(other)
        similarity = jaccard(a, b)
        if (
            similarity >= threshold
            and reaches_min_shingles(a, b, similarity)
            and similarity > nearest.get(row, (0, 0.0))[1]
        ):
            nearest[row] = other, similarity
    return dict(sorted(nearest.items()))


def reaches_min_shingles(a: Hashes, b: Hashes, similarity: float) -> bool:
    """Return whether two sets share at least `MIN_SHINGLES`, or are equal."""
    return similarity == 1 or similarity * (len(a) + len(b)) / (1 + similarity) >= MIN_SHINGLES - 1e-6


def _candidates(rows: Shingles, others: Shingles) -> list[tuple[int, int]]:
    """Return the pairs of which at least one band of the signatures agrees."""
    row_texts, other_texts = (np.flatnonzero(sets.sizes) for sets in (rows, others))
    if not len(row_texts) or not len(other_texts):
        return []
    row_bands, other_bands = (
        _bands(signatures(sets)[texts]) for sets, texts in ((rows, row_texts), (others, other_texts))
    )
    codes: list[Ints] = []
    for band in range(NUM_PERM // BAND_ROWS):
        order = np.argsort(other_bands[:, band], kind="stable")
        sorted_bands = other_bands[order, band]
        starts = np.searchsorted(sorted_bands, row_bands[:, band], side="left")
        stops = np.searchsorted(sorted_bands, row_bands[:, band], side="right")
        row, slot = expand_ranges(starts, np.minimum(stops - starts, _MAX_BUCKET))
        codes.append(row_texts[row] * len(others) + other_texts[order[slot]])
    return [divmod(int(code), len(others)) for code in np.unique(np.concatenate(codes))]


def _bands(signature_rows: Signatures) -> Hashes:
    """Combine the two minima of each band into 64 bits."""
    bands = signature_rows.reshape(len(signature_rows), NUM_PERM // BAND_ROWS, BAND_ROWS).astype(np.uint64)
    return (bands[:, :, 0] << np.uint64(32)) | bands[:, :, 1]


def expand_ranges(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return, for every member of the ranges `start, start + 1, …`, the number of its range and its value.

    >>> [array.tolist() for array in expand_ranges(np.array([7, 3, 0]), np.array([2, 0, 1]))]
    [[0, 0, 2], [7, 8, 0]]
    """
    range_index = np.repeat(np.arange(len(starts)), counts)
    offset = np.arange(len(range_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return range_index, starts[range_index] + offset


@dataclass(frozen=True, slots=True)
class Containment(Generic[K]):
    """The overlap of a document with an indexed text."""

    document: K
    text: int
    contained_fraction: float
    """The fraction of the text's shingles that the document contains."""
    document_fraction: float
    """The fraction of the document's shingles that the text contains."""


class ContainmentIndex:
    """An inverted index from shingles to texts, whose words must have been added to `word_hashes`."""

    def __init__(self, shingles: Shingles, word_hashes: WordHashes) -> None:
        self._word_hashes = word_hashes
        self._num_texts = max(1, len(shingles))
        # a shorter text cannot be distinguished from a common phrase
        is_long = np.repeat(shingles.sizes >= MIN_SHINGLES, shingles.sizes)
        hashes = shingles.hashes[is_long]
        texts = np.repeat(np.arange(len(shingles)), shingles.sizes)[is_long]
        order = np.argsort(hashes, kind="stable")
        self._texts = texts[order]
        keys, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
        is_rare = counts <= _MAX_SHINGLE_TEXTS
        self._keys, self._starts, self._counts = keys[is_rare], starts[is_rare], counts[is_rare]
        self._sizes = np.bincount(self._texts[np.repeat(is_rare, counts)], minlength=self._num_texts)
        self._sieve = np.zeros(1 << _SIEVE_BITS, dtype=bool)
        """A Bloom filter with one hash function, which rejects most shingles before the binary search."""
        self._sieve[self._keys >> _SIEVE_SHIFT] = True

    def find(self, documents: Iterable[tuple[K, str]]) -> Iterator[Containment[K]]:
        """Yield every overlap of at least `MIN_SHINGLES`; documents are streamed in order, long ones in pieces."""
        for batch in _batches(documents):
            yield from self._find(batch)

    def _find(self, batch: list[tuple[K, str]]) -> Iterator[Containment[K]]:
        word_hashes = [self._word_hashes.lookup(piece) for _, piece in batch]
        flat = np.array([word for words in word_hashes for word in (*words, 0)], dtype=np.uint64)
        num_shingles = max(0, len(flat) - SHINGLE_WORDS + 1)
        piece = np.repeat(np.arange(len(batch)), [len(words) + 1 for words in word_hashes])[:num_shingles]
        # no text has a shingle with an unknown word, and the 0 after each piece excludes shingles across two pieces
        is_known = np.ones(num_shingles, dtype=bool)
        for index in range(SHINGLE_WORDS):
            is_known &= flat[index : index + num_shingles] != 0
        hashes = hash_shingles(flat)[is_known]
        passes_sieve = self._sieve[hashes >> _SIEVE_SHIFT]
        hashes, piece = hashes[passes_sieve], piece[is_known][passes_sieve]
        slot = np.searchsorted(self._keys, hashes)
        is_hit = slot < len(self._keys)
        is_hit[is_hit] = self._keys[slot[is_hit]] == hashes[is_hit]
        # each shingle once per piece, then one entry for each text that has it
        num_keys = max(1, len(self._keys))
        piece, slot = np.divmod(np.unique(piece[is_hit] * num_keys + slot[is_hit]), num_keys)
        entry, text_index = expand_ranges(self._starts[slot], self._counts[slot])
        codes, num_shared = np.unique(piece[entry] * self._num_texts + self._texts[text_index], return_counts=True)
        is_large = num_shared >= MIN_SHINGLES
        for code, count in zip(codes[is_large].tolist(), num_shared[is_large].tolist(), strict=True):
            number, text = divmod(code, self._num_texts)
            piece_shingles = len(word_hashes[number]) - SHINGLE_WORDS + 1
            yield Containment(batch[number][0], text, count / int(self._sizes[text]), count / piece_shingles)


def _batches(documents: Iterable[tuple[K, str]]) -> Iterator[list[tuple[K, str]]]:
    """Group documents into batches of about a million characters; long documents are cut into pieces."""
    batch: list[tuple[K, str]] = []
    characters = 0
    for key, document in documents:
        for piece in overlapping_pieces(document):
            batch.append((key, piece))
            characters += len(piece)
            if characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def overlapping_pieces(text: str, length: int = 200_000, overlap: int = 20_000) -> Iterator[str]:
    """Yield a long text in pieces that overlap, which bounds the memory for a book."""
    for start in range(0, max(1, len(text) - overlap), length - overlap):
        yield text[start : start + length]


class TextIndex:
    """Texts to search for; each of its indices is computed at its first use."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._word_hashes = WordHashes()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """The digest of each text, for exact duplicates."""
        return tuple(text_digest(text) for text in self.texts)

    @cached_property
    def first_rows(self) -> dict[int, int]:
        """The first row of each digest."""
        return {digest: row for row, digest in reversed(list(enumerate(self.digests)))}

    @cached_property
    def shingles(self) -> Shingles:
        """The shingle set of each text, for near-duplicates."""
        return shingles_of(self.texts, self._word_hashes)

    @cached_property
    def containment(self) -> ContainmentIndex:
        """The index for texts that are contained in others."""
        return ContainmentIndex(self.shingles, self._word_hashes)


@dataclass(frozen=True)
class Overlap(Generic[K]):
    """The rows that have a duplicate elsewhere, in order, with the key of the duplicate; `near` excludes exact ones."""

    exact: dict[int, K]
    near: dict[int, K]


def overlap(rows: TextIndex, others: TextIndex) -> Overlap[int]:
    """Find the rows that have an exact or a near-duplicate among the others."""
    exact = {row: others.first_rows[digest] for row, digest in enumerate(rows.digests) if digest in others.first_rows}
    near = {row: other for row, (other, _) in near_duplicate_pairs(rows.shingles, others.shingles).items()}
    near = _contained_rows(rows, enumerate(others.texts)) | near
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def overlap_rows(test: Sequence[str], others: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Return the rows of `test` with a duplicate in any of the others: {"exact": rows, "near": rows not in "exact"}."""
    index = TextIndex(test)
    overlaps = [overlap(index, TextIndex(texts)) for texts in others]
    exact = {row for matches in overlaps for row in matches.exact}
    return {"exact": sorted(exact), "near": sorted({row for matches in overlaps for row in matches.near} - exact)}


def find_in_stream(rows: TextIndex, documents: Iterable[tuple[K, str]]) -> Overlap[K]:
    """Find the rows that equal a document or are contained in one; the documents are read once."""
    keys: dict[int, K] = {}

    def stream() -> Iterator[tuple[K, str]]:
        for key, document in documents:
            digest = text_digest(document)
            if digest in rows.first_rows:
                keys.setdefault(digest, key)
            yield key, document

    near = _contained_rows(rows, stream())
    exact = {row: keys[digest] for row, digest in enumerate(rows.digests) if digest in keys}
    return Overlap(exact, {row: near[row] for row in sorted(near.keys() - exact.keys())})


def _contained_rows(rows: TextIndex, documents: Iterable[tuple[K, str]]) -> dict[int, K]:
    """Return the rows that a document contains, each with the document that contains most of it."""
    best: dict[int, tuple[float, K]] = {}
    for match in rows.containment.find(documents):
        fraction = match.contained_fraction
        if fraction >= CONTAINMENT_THRESHOLD and (match.text not in best or fraction > best[match.text][0]):
            best[match.text] = fraction, match.document
    return {row: document for row, (_, document) in best.items()}


def contaminated_documents(documents: Iterable[str], rows: TextIndex) -> dict[int, str]:
    """Return the numbers of the documents that equal a row ("exact"), contain one or are a part of one ("near")."""
    matches: dict[int, str] = {}

    def stream() -> Iterator[tuple[int, str]]:
        for number, document in enumerate(documents):
            if text_digest(document) in rows.first_rows:
                matches[number] = "exact"
            yield number, document

    for match in rows.containment.find(stream()):
        if max(match.contained_fraction, match.document_fraction) >= CONTAINMENT_THRESHOLD:
            matches.setdefault(match.document, "near")
    return dict(sorted(matches.items()))


def count_duplicates(digests: Iterable[int]) -> tuple[int, int, int]:
    """Count the rows that repeat an earlier one, the texts that occur more than once, and the rows of those texts.

    >>> count_duplicates([7, 8, 7, 7, 9, 8])
    (3, 2, 5)
    """
    _, counts = np.unique(np.fromiter(digests, dtype=np.uint64), return_counts=True)
    return int((counts - 1).sum()), int((counts > 1).sum()), int(counts[counts > 1].sum())
