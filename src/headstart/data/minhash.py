"""Pairs of texts that are almost the same, without comparing all with all.

Of each set, the smallest value under each of 128 hash functions is kept (Broder, 1997): two sets have the same smallest
value as often as they share members, so the share of equal ones estimates Jaccard's similarity. Two texts become
candidates when two neighbouring values agree somewhere (64 bands of two: by the arithmetic of chance 93 of 100 pairs
with a similarity of 1/5 do, and 999 of 1,000 with one of 1/3), and candidates are compared in full: nothing is reported
that is not so.
"""

import numpy as np
from numpy.typing import NDArray

from headstart.data.shingles import Hashes, Runs, mixed, similarity

PLACES = 128
BAND = 2
NEAR = 1 / 5
"""The similarity of two texts of one length that share a third of their runs: about one word in five was changed."""
ENOUGH = 8
"""Runs to share at least, unless all are shared: texts that have nothing else in common may share a turn of phrase."""

_BLOCK = 1 << 16
_CROWD = 8
"""Candidates a text and band: of a thousand copies of one text, a few prove the point."""

Signatures = NDArray[np.uint32]


def signatures(runs: Runs) -> Signatures:
    """The smallest values of each set, texts by places; those of an empty set are all the largest number there is."""
    seeds = mixed(np.arange(1, 2 * PLACES + 1, dtype=np.uint64))
    marks, factors = seeds[:PLACES], seeds[PLACES:] | np.uint64(1)
    found = np.full((len(runs), PLACES), np.iinfo(np.uint32).max, dtype=np.uint32)
    for first, last in _blocks(runs):
        hashes = runs.hashes[runs.offsets[first] : runs.offsets[last]]
        filled = first + np.flatnonzero(runs.sizes[first:last])
        starts = runs.offsets[filled] - runs.offsets[first]
        for place in range(PLACES if len(filled) else 0):
            values = (hashes ^ marks[place]) * factors[place]  # the hashes are well mixed already
            found[filled, place] = np.minimum.reduceat(values, starts) >> np.uint64(32)
    return found


def _blocks(runs: Runs) -> list[tuple[int, int]]:
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


def near_rows(rows: Runs, others: Runs, least: float = NEAR) -> dict[int, tuple[int, float]]:
    """The rows that have a near-double among the others: which one, the nearest, and how similar it is."""
    nearest: dict[int, tuple[int, float]] = {}
    for row, other in _candidates(rows, others):
        alike = similarity(rows.of(row), others.of(other))
        if alike >= least and enough(rows.of(row), others.of(other), alike) and alike > nearest.get(row, (0, 0.0))[1]:
            nearest[row] = other, alike
    return dict(sorted(nearest.items()))


def enough(one: Hashes, other: Hashes, alike: float) -> bool:
    """Whether what two sets share is more than a turn of phrase."""
    return alike == 1 or alike * (len(one) + len(other)) / (1 + alike) >= ENOUGH - 1e-6


def _candidates(rows: Runs, others: Runs) -> list[tuple[int, int]]:
    ours, theirs = (np.flatnonzero(sets.sizes) for sets in (rows, others))
    if not len(ours) or not len(theirs):
        return []
    bands = [
        sets[kept].reshape(len(kept), PLACES // BAND, BAND).astype(np.uint64)
        for sets, kept in ((signatures(rows), ours), (signatures(others), theirs))
    ]
    mine, yours = ((band[:, :, 0] << np.uint64(32)) | band[:, :, 1] for band in bands)
    codes: list[NDArray[np.int64]] = []
    for place in range(PLACES // BAND):
        order = np.argsort(yours[:, place], kind="stable")
        shelf = yours[order, place]
        left = np.searchsorted(shelf, mine[:, place], side="left")
        count = np.minimum(np.searchsorted(shelf, mine[:, place], side="right") - left, _CROWD)
        row, slot = spread(left, count)
        codes.append(ours[row] * len(others) + theirs[order[slot]])
    found = np.unique(np.concatenate(codes))
    return [divmod(int(code), len(others)) for code in found]


def spread(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For ranges given by start and length: the number of the range and the place of each of their members.

    >>> [part.tolist() for part in spread(np.array([7, 3, 0]), np.array([2, 0, 1]))]
    [[0, 0, 2], [7, 8, 0]]
    """
    which = np.repeat(np.arange(len(starts)), counts)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + inside
