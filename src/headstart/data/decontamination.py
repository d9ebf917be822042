"""Exclude texts from a corpus, and keep digests of the documents that a model was trained on.

membership.bin holds, for each different document, the first 40 bits of its text digest, sorted, five bytes each,
big-endian. A document of the corpus is always recognised. A text that is not in a corpus of n documents is recognised
with a probability of n / 2^40: one in a million for a million documents. Digests ignore differences in white space, but
one changed word changes a digest. The file answers whether a given text was in the corpus, and reveals no text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import CorpusConfig
from headstart.data.corpus import Document, read_documents
from headstart.data.hashing import text_digest
from headstart.data.near_duplicates import TextIndex, contaminated_documents
from headstart.data.provenance import SourceFile, source_records, stat_sources
from headstart.data.shards import EXCLUDED_KEY, Shards, batched_documents
from headstart.data.sources import expand_paths
from headstart.errors import DataError, StoreError, UsageError
from headstart.progress import pluralize

MEMBERSHIP_FILE = "membership.bin"
BITS = 40
_BYTES = BITS // 8
_SHIFT = np.uint64(64 - BITS)


@dataclass(frozen=True, eq=False)
class Membership:
    """The documents of a corpus, represented by prefixes of their digests."""

    keys: NDArray[np.uint64]
    """Sorted and unique."""

    @classmethod
    def from_digests(cls, digests: Iterable[int] | NDArray[np.uint64]) -> "Membership":
        """Build from the digests of documents, such as those of shards."""
        array = digests if isinstance(digests, np.ndarray) else np.fromiter(digests, dtype=np.uint64)
        return cls(np.unique(np.asarray(array, dtype=np.uint64) >> _SHIFT))

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "Membership") -> "Membership":
        return Membership(np.union1d(self.keys, other.keys))

    def rows_in(self, texts: Iterable[str]) -> list[int]:
        """Return the indices of the texts that are documents of the corpus, white space aside."""
        keys = np.fromiter((text_digest(text) for text in texts), dtype=np.uint64) >> _SHIFT
        return np.flatnonzero(np.isin(keys, self.keys)).tolist()

    @property
    def false_positive_rate(self) -> float:
        """The probability that a text which is not in the corpus is taken for a document of it."""
        return len(self) * 2.0**-BITS

    def to_bytes(self) -> bytes:
        """Return the content of membership.bin."""
        return self.keys.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - _BYTES :].tobytes()

    @classmethod
    def load(cls, folder: Path) -> "Membership | None":
        """Load the membership file of a bundle, or return None if the bundle has none."""
        path = folder / MEMBERSHIP_FILE
        if not path.is_file():
            return None
        raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if len(raw) % _BYTES:
            raise StoreError(f"{path} is damaged: {len(raw)} bytes, expected a multiple of {_BYTES}")
        padded = np.zeros((len(raw) // _BYTES, 8), dtype=np.uint8)
        padded[:, 8 - _BYTES :] = raw.reshape(-1, _BYTES)
        keys = padded.reshape(-1).view(">u8").astype(np.uint64)
        if (keys[1:] <= keys[:-1]).any():
            raise StoreError(f"{path} is damaged: its digests are not sorted")
        return cls(keys)


def excluded_sources(corpus: CorpusConfig) -> list[SourceFile]:
    """Return the files whose texts are to be excluded."""
    names = [name.strip() for name in (corpus.exclude or "").split(",") if name.strip()]
    return stat_sources(expand_paths(names)) if names else []


class Decontaminator:
    """Drops the documents that equal, contain or are a part of a text of some files, and counts them."""

    def __init__(self, sources: list[SourceFile], corpus: CorpusConfig) -> None:
        self.sources = sources
        self.record: dict[str, Any] = {}
        """The manifest entry about excluded documents; empty until `filter` has seen all documents."""
        self._index = TextIndex(_read_texts([source.name for source in sources], corpus))

    def filter(self, documents: Iterable[Document], *, allow_empty: bool = False) -> Iterator[Document]:
        """Yield the documents that are kept, in order; at least one must be, unless `allow_empty` is set."""
        self.record.clear()
        num_kept = num_excluded = num_exact = 0
        for batch in batched_documents(documents):
            contaminated = contaminated_documents((document.text for document in batch), self._index)
            num_exact += sum(match == "exact" for match in contaminated.values())
            num_excluded += len(contaminated)
            num_kept += len(batch) - len(contaminated)
            yield from (document for number, document in enumerate(batch) if number not in contaminated)
        if not allow_empty and not num_kept:
            raise all_excluded_error([source.name for source in self.sources])
        self.record[EXCLUDED_KEY] = {
            "files": source_records(self.sources),
            "exact": num_exact,
            "near": num_excluded - num_exact,
            "kept": num_kept,
        }


def all_excluded_error(names: Iterable[str]) -> DataError:
    """Return the error for a corpus of which every document is excluded."""
    return DataError(f"corpus.exclude {', '.join(names)} excludes every document; no text is left for training")


def _read_texts(files: list[str], corpus: CorpusConfig) -> list[str]:
    """Read the texts of files whose columns may be named differently from those of the corpus."""
    try:
        return [document.text for document in read_documents(files, corpus.model_copy(update={"text_column": None}))]
    except DataError:
        if corpus.text_column is None:
            raise
        return [document.text for document in read_documents(files, corpus)]


def describe_exclusions(shards: Shards) -> str | None:
    """Describe the documents that were excluded from shards; None if no file was named for exclusion."""
    excluded = shards.excluded
    if excluded is None:
        return None
    names = ", ".join(str(file["name"]) for file in excluded["files"])
    return (
        f"excluded {pluralize(excluded['exact'], 'exact duplicate')} and {pluralize(excluded['near'], 'near-duplicate')} "
        f"of texts in {names}; {pluralize(excluded['kept'], 'document')} kept"
    )


def refuse_prepared_corpus(path: str, shards: Shards, corpus: CorpusConfig) -> None:
    """Refuse to exclude texts from shards that contain them: their text is no longer available for comparison."""
    requested = [source.name for source in excluded_sources(corpus)]
    done = [file["name"] for file in (shards.excluded or {"files": []})["files"]]
    if requested and requested != done:
        raise UsageError(f"{path} is already prepared; run headstart prepare again with corpus.exclude")
