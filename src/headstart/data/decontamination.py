"""Leave texts out of a corpus, and keep digests of the documents a model was trained on.

What a model was pretrained on, as sorted digests: enough to tell whether a text was in it, too little to read it.

membership.bin: for each different document, the first 40 bits of its digest (digests.py), sorted, five bytes each, big
end first, nothing else. A document that was in the text is always found. A text that was not is taken for one of n
documents with a probability of n / 2^40: one in a million for a million documents. White space aside, a text is found
as it was or not at all: one changed word hides it. Whoever has the file can ask it about any text, as the leak guard
does; they cannot get a text out of it that they do not have.

Texts that a model must not learn from, such as the rows of a test file, kept out of its corpus with their near-doubles.
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
from headstart.data.provenance import SourceFile, describe_sources, source_records
from headstart.data.shards import Shards, batched_documents
from headstart.data.sources import expand_paths
from headstart.errors import DataError, StoreError, UsageError
from headstart.progress import pluralize

MEMBERSHIP_FILE = "membership.bin"
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
        path = folder / MEMBERSHIP_FILE
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


def excluded_sources(corpus: CorpusConfig) -> list[SourceFile]:
    """The files whose texts are to be left out."""
    names = [name.strip() for name in (corpus.exclude or "").split(",") if name.strip()]
    return describe_sources(expand_paths(names)) if names else []


class Decontaminator:
    """Lets documents pass, except those that are, hold or are a piece of a text of the files given; and counts."""

    def __init__(self, sources: list[SourceFile], corpus: CorpusConfig) -> None:
        self.sources = sources
        self.record: dict[str, Any] = {}
        """What was left out, once all documents have passed: for the manifest."""
        self._rows = TextIndex(_texts([source.name for source in sources], corpus))

    def keep(self, documents: Iterable[Document], some: bool = True) -> Iterator[Document]:
        """The documents to learn from, in order; with `some`, there must be one."""
        self.record.clear()
        kept = dropped = exact = 0
        for batch in batched_documents(documents):
            found = contaminated_documents((document.text for document in batch), self._rows)
            exact += sum(kind == "exact" for kind in found.values())
            dropped += len(found)
            kept += len(batch) - len(found)
            yield from (document for number, document in enumerate(batch) if number not in found)
        if some and not kept:
            raise all_excluded_error([source.name for source in self.sources])
        self.record["left_out"] = {
            "files": source_records(self.sources),
            "exact": exact,
            "near": dropped - exact,
            "kept": kept,
        }


def all_excluded_error(names: Iterable[str]) -> DataError:
    """The error for a corpus that is left out altogether."""
    return DataError(
        f"every document stands in {', '.join(names)}, which corpus.exclude names; nothing is left to learn from"
    )


def _texts(files: list[str], corpus: CorpusConfig) -> list[str]:
    """The texts of files whose columns need not have the names of the corpus's."""
    try:
        return [document.text for document in read_documents(files, CorpusConfig(documents=corpus.documents))]
    except DataError:
        if corpus.text_column is None:
            raise
        return [document.text for document in read_documents(files, corpus)]


def describe_exclusions(shards: Shards) -> str | None:
    """What was left out of shards, for a person; None where nothing was to be."""
    found = shards.about.get("left_out")
    if found is None:
        return None
    names = ", ".join(str(file["name"]) for file in found["files"])
    stand = "stands" if found["exact"] == 1 else "stand"
    do = "does" if found["near"] == 1 else "do"
    return (
        f"left out because of {names}: {pluralize(found['exact'], 'document')} that {stand} there and {found['near']:,} that "
        f"almost {do}; {found['kept']:,} kept"
    )


def refuse_prepared_corpus(path: str, shards: Shards, corpus: CorpusConfig) -> None:
    """Refuse to leave texts out of shards that were prepared with them: tokens can no longer be compared."""
    asked = [source.name for source in excluded_sources(corpus)]
    done = [file["name"] for file in (shards.about.get("left_out") or {"files": []})["files"]]
    if asked and asked != done:
        raise UsageError(f"{path} is prepared already; give corpus.exclude to headstart prepare, and prepare it again")
