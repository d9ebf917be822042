"""What a model was pretrained on, as sorted digests: enough to tell whether a text was in it, too little to read it.

membership.bin: for each different document, the first 40 bits of its digest (digests.py), sorted, five bytes each, big
end first, nothing else. A document that was in the text is always found. A text that was not is taken for one of n
documents with a probability of n / 2^40: one in a million for a million documents. White space aside, a text is found
as it was or not at all: one changed word hides it. Whoever has the file can ask it about any text, as the leak guard
does; they cannot get a text out of it that they do not have.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.data.digests import text_digest
from headstart.errors import StoreError

FILE = "membership.bin"
BITS = 40
_BYTES = BITS // 8
_DROP = np.uint64(64 - BITS)


@dataclass(frozen=True, eq=False)
class Membership:
    """The documents of a text, by the beginnings of their digests."""

    keys: NDArray[np.uint64]
    """Sorted, without doubles."""

    @classmethod
    def of(cls, digests: Iterable[int] | NDArray[np.uint64]) -> "Membership":
        """From digests of documents, such as those of shards."""
        given = digests if isinstance(digests, np.ndarray) else np.fromiter(digests, dtype=np.uint64)
        return cls(np.unique(np.asarray(given, dtype=np.uint64) >> _DROP))

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "Membership") -> "Membership":
        return Membership(np.union1d(self.keys, other.keys))

    def rows_in(self, texts: Iterable[str]) -> list[int]:
        """The numbers of those of the texts that were documents, white space aside."""
        asked = np.fromiter((text_digest(text) for text in texts), dtype=np.uint64) >> _DROP
        return np.flatnonzero(np.isin(asked, self.keys)).tolist()

    @property
    def false_positives(self) -> float:
        """The probability that a text which was not a document is taken for one."""
        return len(self) * 2.0**-BITS

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return self.keys.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - _BYTES :].tobytes()

    @classmethod
    def read(cls, folder: Path) -> "Membership | None":
        """That of a bundle, or None where the bundle was written without one."""
        path = folder / FILE
        if not path.is_file():
            return None
        raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if len(raw) % _BYTES:
            raise StoreError(f"{path} is damaged: {len(raw)} bytes, expected a multiple of {_BYTES}")
        wide = np.zeros((len(raw) // _BYTES, 8), dtype=np.uint8)
        wide[:, 8 - _BYTES :] = raw.reshape(-1, _BYTES)
        keys = wide.reshape(-1).view(">u8").astype(np.uint64)
        if (keys[1:] <= keys[:-1]).any():
            raise StoreError(f"{path} is damaged: its digests are not sorted")
        return cls(keys)
