"""N-grams of token ids: rolling hashes, frequent n-grams, and counts as a sparse matrix. No torch.

N texts, T tokens with a separator after each text, F n-grams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.linear.vocabulary import SEPARATOR, Ids, Kind, Tokens, Vocabulary

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

CHUNK_CHARACTERS = 1_000_000
"""Characters of text whose n-grams are in memory at a time."""
FURTHER_MIN_DF = 3
"""Texts in which an n-gram occurs that is known from unlabelled texts alone."""
MAX_FURTHER = 30_000
"""N-grams of a view that are known from unlabelled texts alone."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_BUCKET_BITS = 22


@dataclass(frozen=True)
class Frequent:
    """N-grams of a sample of texts with the number of texts that contain each."""

    tokens: tuple[str, ...]
    ngrams: Ids
    """The token ids of each n-gram, (F, longest), padded with -1."""
    frequencies: Ints


def find_frequent(
    kind: Kind,
    texts: Sequence[str],
    lengths: tuple[int, int],
    *,
    min_df: int,
    max_features: int,
    further: Sequence[str] = (),
) -> Frequent:
    """Return the n-grams that occur in `min_df` texts or more, those in most texts first, at most `max_features`.

    N-grams of characters have spaces at their ends only: they stay inside of a word.
    N-grams that occur in a few of all texts, `further` ones included, come after them.
    """
    vocabulary = Vocabulary(kind, grows=True)
    tokens = vocabulary.tokenize([*texts, *further])
    shortest, longest = lengths
    all_tokens = vocabulary.tokens
    space = all_tokens.index(" ") if " " in all_tokens else SEPARATOR  # by itself it says nothing
    is_space, crosses = tokens.ids_T == space, np.zeros(len(tokens.ids_T), dtype=bool)
    starts, sizes, frequencies = [], [], []
    for n, hashes, valid in rolling_hashes(tokens.ids_T, longest):
        if n > 2:  # the new token before the last is inside of the n-gram
            crosses = crosses[:-1] | is_space[n - 2 : -1]
        elif n == 2:
            crosses = crosses[:-1]
        if n < shortest:
            continue
        positions = np.flatnonzero(valid & ~(is_space if n == 1 else crosses))
        first, counts = _count_texts(hashes, positions, tokens.texts_T, len(texts), min_df)
        starts.append(first)
        frequencies.append(counts)
        sizes.append(np.full(len(first), n))
    start_F, size_F = np.concatenate(starts), np.concatenate(sizes)
    labelled_F, total_F = np.concatenate(frequencies, axis=1)
    is_further = labelled_F < min_df
    best = np.lexsort((start_F, size_F, -total_F, is_further))[: min(max_features, (~is_further).sum() + MAX_FURTHER)]
    ngrams = _rows_at(tokens.ids_T, start_F[best], size_F[best], longest)
    used = np.unique(ngrams[ngrams != SEPARATOR])
    renumbered = np.full(len(all_tokens) + 1, SEPARATOR, dtype=np.int32)  # the last entry is for padding
    renumbered[used] = np.arange(len(used))
    return Frequent(tuple(all_tokens[i] for i in used.tolist()), renumbered[ngrams], total_F[best])


def _count_texts(
    hashes: Hashes, positions: Ints, texts_T: Ids, num_texts: int, min_df: int
) -> tuple[Ints, NDArray[np.int64]]:
    """Return the first position of each frequent n-gram, and in how many of the first texts and of all it occurs, (2, F)."""
    if min_df > 1 and len(positions):  # most n-grams are rare: buckets of hashes sort out many of them cheaply
        buckets = (hashes[positions] >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
        positions = positions[np.bincount(buckets, minlength=1 << _BUCKET_BITS)[buckets] >= min_df]
    if not len(positions):
        return np.zeros(0, np.int64), np.zeros((2, 0), np.int64)
    _, first, number = np.unique(hashes[positions], return_index=True, return_inverse=True)
    pairs = np.sort(number.astype(np.int64) << 32 | texts_T[positions])
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    texts, ngrams = pairs & 0xFFFFFFFF, pairs >> 32
    counts = np.stack([np.bincount(part, minlength=len(first)) for part in (ngrams[texts < num_texts], ngrams)])
    kept = (counts[0] >= min_df) | (counts[1] >= max(min_df, FURTHER_MIN_DF))
    return positions[first[kept]], counts[:, kept]


def _rows_at(ids_T: Ids, starts: Ints, sizes: Ints, longest: int) -> Ids:
    columns = np.arange(longest)
    at = np.minimum(starts[:, None] + columns, len(ids_T) - 1)
    return np.where(columns < sizes[:, None], ids_T[at], SEPARATOR).astype(np.int32)


def count_ngrams(vocabulary: Vocabulary, table: "HashTable", longest: int, texts: Sequence[str]) -> Any:
    """Return how often each n-gram of a table occurs in texts, a CSR matrix (N, F) of float32."""
    from scipy.sparse import csr_matrix, vstack

    parts = [_count_chunk(vocabulary.tokenize(chunk), table, longest, len(chunk)) for chunk in chunks(texts)]
    return vstack(parts, format="csr") if parts else csr_matrix((0, len(table.keys)), dtype=np.float32)


def _count_chunk(tokens: Tokens, table: "HashTable", longest: int, num_texts: int) -> Any:
    from scipy.sparse import csr_matrix

    width = max(1, len(table.keys))
    cells = [np.zeros(0, np.int64)]
    for _, hashes, valid in rolling_hashes(tokens.ids_T, longest):
        positions = np.flatnonzero(valid)
        columns = table.columns(hashes[positions])
        hit = columns >= 0
        cells.append(tokens.texts_T[positions[hit]] * np.int64(width) + columns[hit])
    cell = np.sort(np.concatenate(cells))
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(begins, append=len(cell)).astype(np.float32)
    rows, columns = np.divmod(cell[begins], width)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_texts))])
    return csr_matrix((counts, columns.astype(np.int32), indptr.astype(np.int32)), shape=(num_texts, len(table.keys)))


def chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut texts into runs of about a million characters."""
    begin = characters = 0
    for at, text in enumerate(texts):
        characters += len(text) + 2
        if characters >= CHUNK_CHARACTERS:
            yield texts[begin : at + 1]
            begin, characters = at + 1, 0
    if begin < len(texts):
        yield texts[begin:]


def rolling_hashes(ids_T: Ids, longest: int) -> Iterator[tuple[int, Hashes, NDArray[np.bool_]]]:
    """Yield n, the hashes of the n-grams that begin at each token, and where they contain no separator."""
    token_hashes, known = _mix(ids_T), ids_T != SEPARATOR
    hashes, valid = token_hashes, known
    yield 1, hashes, valid
    for n in range(2, min(longest, len(ids_T)) + 1):
        hashes = hashes[:-1] * _MULTIPLIER + token_hashes[n - 1 :]
        valid = valid[:-1] & known[n - 1 :]
        yield n, hashes, valid


def hash_rows(ngrams: Ids) -> Hashes:
    """Return the hashes of n-grams, an array of ids with padding at the end of short ones."""
    hashes = _mix(ngrams[:, 0])
    for column in ngrams.T[1:]:
        hashes = np.where(column == SEPARATOR, hashes, hashes * _MULTIPLIER + _mix(column))
    return hashes


def _mix(ids: Ids) -> Hashes:
    """Return a pseudo-random 64-bit number for each id (splitmix64)."""
    z = (ids.astype(np.int64) + 2).astype(np.uint64) * _MULTIPLIER
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = z ^ (z >> np.uint64(31))
    return mixed


class HashTable:
    """The columns of distinct hashes, by open addressing."""

    def __init__(self, keys: Hashes) -> None:
        self.keys = keys
        bits = max(4, (4 * len(keys)).bit_length())
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._slots = np.full(1 << bits, -1, dtype=np.int32)
        pending, at = np.arange(len(keys), dtype=np.int32), self._first_slots(keys)
        while len(pending):
            free = self._slots[at] < 0
            self._slots[at[free]] = pending[free]  # of several that want one slot, the last gets it
            rest = self._slots[at] != pending
            pending, at = pending[rest], (at[rest] + 1) & self._mask

    def _first_slots(self, hashes: Hashes) -> Ints:
        slots: Ints = ((hashes * _MULTIPLIER) >> self._shift).astype(np.int64)
        return slots

    def columns(self, hashes: Hashes) -> Ids:
        """Return the column of each hash, -1 for those that are not in the table."""
        if not len(self.keys):
            return np.full(len(hashes), -1, dtype=np.int32)
        at = self._first_slots(hashes)
        columns = self._slots[at]
        pending = np.flatnonzero((columns >= 0) & (self.keys[columns] != hashes))
        while len(pending):
            at[pending] = (at[pending] + 1) & self._mask
            probed = columns[pending] = self._slots[at[pending]]
            pending = pending[(probed >= 0) & (self.keys[probed] != hashes[pending])]
        return columns
