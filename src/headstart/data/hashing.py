"""Text digests, splitmix64 bits and seeded permutations.

By what a text is known to be a double of another: a hash that does not look at white space.

Tokens on disk to tensors: each row a pure function of (seed, epoch, index), so the data position is one integer.

B rows of a batch, T tokens of a row.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray


def text_digest(text: str) -> int:
    """64 bits of the sha256 of a text with white space folded to single blanks and stripped.

    >>> text_digest(" Un  roman\\n") == text_digest("Un roman")
    True
    """
    return int.from_bytes(hashlib.sha256(" ".join(text.split()).encode("utf-8")).digest()[:8], "big")


Ints = NDArray[np.int64]


def splitmix64(keys: NDArray[np.uint64], seed: int, stream: int) -> NDArray[np.uint64]:
    """64 random-looking bits for each key, by arithmetic of ours: no library's stream to depend on."""
    start = ((seed + 1) * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7) % 2**64
    bits = (keys + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def seeded_permutation(count: int, seed: int, epoch: int) -> Ints:
    """A permutation that follows from (seed, epoch)."""
    return np.argsort(splitmix64(np.arange(count, dtype=np.uint64), seed, epoch), kind="stable")
