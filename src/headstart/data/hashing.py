"""Text digests, and random bits that are a pure function of a key and a seed.

The bits decide on-disk splits, masks and row orders, so they come from our own arithmetic instead of a library's random
stream, which may change between versions.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""The odd number closest to 2^64 divided by the golden ratio: SplitMix64's increment."""


def text_digest(text: str) -> int:
    """Return 64 bits of the sha256 of a text, after runs of white space are replaced by single blanks.

    Two texts are exact duplicates when their digests are equal.

    >>> text_digest(" Un  roman\\n") == text_digest("Un roman")
    True
    """
    return int.from_bytes(hashlib.sha256(" ".join(text.split()).encode("utf-8")).digest()[:8], "big")


def splitmix64(state: Hashes) -> Hashes:
    """Apply SplitMix64's finaliser, a bijection on 64 bits (Steele, Lea and Flood, 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))


def random_bits(keys: Hashes, seed: int, stream: int) -> Hashes:
    """Return 64 pseudo-random bits for each key; different streams are independent of each other."""
    offset = ((seed + 1) * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7) % 2**64
    return splitmix64((keys + np.uint64(1)) * np.uint64(GOLDEN_GAMMA) + np.uint64(offset))


def seeded_permutation(count: int, seed: int, epoch: int) -> Ints:
    """Return a permutation of `range(count)` that depends on the seed and the epoch only."""
    return np.argsort(random_bits(np.arange(count, dtype=np.uint64), seed, epoch), kind="stable")
