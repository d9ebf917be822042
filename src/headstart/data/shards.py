"""Token shards: documents encoded once, stored end to end, and memory-mapped by every training run.

    tokens.bin    uint16 (uint32 for a vocabulary beyond 65,536), all documents end to end, no special tokens
    offsets.bin   uint64, documents + 1: document i is tokens[offsets[i] : offsets[i + 1]]
    bytes.bin     uint32, UTF-8 bytes of each document's text
    digests.bin   uint64, the text digest of each document, equal for duplicates (see hashing.py)
    labels.bin    int32, index of each document's label; labelled data only
    tokenizer/    the tokenizer that encoded the texts

All little-endian. manifest.json lists the files and describes them: documents, tokens, bytes, dtype, vocab_size, tokenizer,
labels, sources, fingerprint, made (the inputs of the fingerprint), and excluded if texts were (see decontamination.py).

Shards can be merged from parts: one part for each file of a corpus, or folders that were prepared on several machines. A
part holds the arrays of shards without the tokenizer (`kind: part`). Merging concatenates arrays block by block, so that
a corpus may be as large as the disk, and its output equals, byte for byte, that of a single process.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.data.corpus import Document
from headstart.data.hashing import GOLDEN_GAMMA, splitmix64, text_digest
from headstart.data.provenance import FingerprintInputs, SourceFile, source_records
from headstart.errors import DataError, StoreError
from headstart.files import MANIFEST, atomic_folder, read_json, read_manifest
from headstart.progress import Progress, ProgressTask
from headstart.tokenization.base import Tokenizer, as_utf8
from headstart.tokenization.bulk import WordEncoder

ARRAYS = ("tokens", "offsets", "bytes", "digests")
DTYPE_CODES = {"uint16": "<u2", "uint32": "<u4"}
EXCLUDED_KEY = "excluded"
"""The manifest key of the record of documents that decontamination excluded."""

_BATCH_DOCUMENTS, _BATCH_CHARACTERS = 1000, 4_000_000
_BLOCK = 1 << 20
_REQUIRED_KEYS = {
    "documents": int,
    "tokens": int,
    "dtype": str,
    "vocab_size": int,
    "tokenizer": str,
    "fingerprint": str,
}


@dataclass(frozen=True, eq=False)
class Shards:
    """An opened shards folder, whose arrays are memory-mapped."""

    folder: Path
    about: dict[str, Any]
    flat: NDArray[Any]
    """The tokens of all documents end to end."""
    offsets: NDArray[np.uint64]
    text_bytes: NDArray[np.uint32]
    digests: NDArray[np.uint64]
    label_indices: NDArray[np.int32] | None

    @classmethod
    def open(cls, folder: Path, deep: bool = True) -> "Shards":
        """Map the arrays of a folder after a check that they are complete and consistent.

        Args:
            deep: verify checksums and token ids, for which all files are read.
        """
        about = read_manifest(folder, kind="shards", deep=deep)
        _check_about(folder, about)
        documents = about["documents"]
        shards = cls(
            folder=folder,
            about=about,
            flat=_memmap(folder / "tokens.bin", DTYPE_CODES[about["dtype"]], about["tokens"]),
            offsets=_memmap(folder / "offsets.bin", "<u8", documents + 1),
            text_bytes=_memmap(folder / "bytes.bin", "<u4", documents),
            digests=_memmap(folder / "digests.bin", "<u8", documents),
            label_indices=_memmap(folder / "labels.bin", "<i4", documents) if about["labels"] is not None else None,
        )
        shards._check_arrays(deep)
        return shards

    def _check_arrays(self, deep: bool) -> None:
        offsets = self.offsets
        if offsets[0] != 0 or offsets[-1] != self.num_tokens or not _is_sorted(offsets):
            raise StoreError(
                f"{self.folder / 'offsets.bin'} is damaged: the offsets do not run from 0 to {self.num_tokens}"
            )
        if deep and _max_value(self.folder / "tokens.bin", DTYPE_CODES[self.about["dtype"]]) >= self.vocab_size:
            raise StoreError(f"{self.folder / 'tokens.bin'} is damaged: a token beyond the {self.vocab_size} entries")
        indices, names = self.label_indices, self.labels
        if (
            indices is not None
            and names is not None
            and indices.size
            and (indices.min() < 0 or indices.max() >= len(names))
        ):
            raise StoreError(
                f"{self.folder / 'labels.bin'} is damaged: a label index is not below the number of labels, {len(names)}"
            )

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return int(self.about["documents"])

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all documents."""
        return int(self.about["tokens"])

    @property
    def vocab_size(self) -> int:
        """The size of the tokenizer's vocabulary; every token is below it."""
        return int(self.about["vocab_size"])

    @property
    def tokenizer_digest(self) -> str:
        """The digest of the tokenizer; equal digests mean the same tokenizer."""
        return str(self.about["tokenizer"])

    @property
    def tokenizer_folder(self) -> Path:
        """The folder from which the tokenizer can be loaded."""
        return self.folder / "tokenizer"

    @property
    def fingerprint(self) -> str:
        """The hash of everything the shards were made from."""
        return str(self.about["fingerprint"])

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names that `label_indices` refers to, or None for unlabelled text."""
        names = self.about["labels"]
        return None if names is None else tuple(names)

    @property
    def excluded(self) -> dict[str, Any] | None:
        """The record of excluded documents (files, exact, near, kept), or None if nothing was to be excluded."""
        return self.about.get(EXCLUDED_KEY)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each document."""
        offsets = self.offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def ids(self, document: int) -> NDArray[Any]:
        """Return the tokens of one document, as a view."""
        return self.flat[int(self.offsets[document]) : int(self.offsets[document + 1])]

    def split(self, held_out: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents to train on and those held out, chosen by a hash of the text and the seed.

        Duplicates fall on the same side, and a document keeps its side when others are added. Neither side is empty: if
        one would be, the document closest to the threshold changes sides with its duplicates.
        """
        bits = splitmix64(np.asarray(self.digests, dtype=np.uint64) + np.uint64((seed + 1) * GOLDEN_GAMMA % 2**64))
        lowest, highest = (bits.min(), bits.max()) if bits.size else (0, 0)
        if lowest == highest:
            raise DataError(f"{self.folder} contains a single distinct document; no document can be held out")
        is_held_out = bits < np.uint64(held_out * 2.0**64)
        if not is_held_out.any():
            is_held_out = bits == lowest
        elif is_held_out.all():
            is_held_out = bits != highest
        return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def write_shards(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    sources: Sequence[SourceFile],
    fingerprint: str,
    progress: Progress,
    labels: Sequence[int] | None = None,
    label_names: Sequence[str] | None = None,
    made: FingerprintInputs | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Shards:
    """Encode documents and write them batch by batch; the folder appears atomically at the end.

    Args:
        labels: for labelled data, the index of each document's label in `label_names`.
        made: the inputs of the fingerprint, for folders that may be merged.
        extra: further entries of the manifest, read after all documents.
    """
    about: dict[str, Any] = {}  # filled below, before atomic_folder writes the manifest
    total = None if labels is None else len(labels)
    with atomic_folder(folder, kind="shards", about=about) as draft:
        with progress.task("encode", total, "documents") as task:
            about.update(write_arrays(documents, tokenizer, draft, task))
        if not about["documents"]:
            raise DataError(f"no documents to write to {folder}")
        if labels is not None:
            assert len(labels) == about["documents"], f"{len(labels)} labels for {about['documents']} documents"
            (draft / "labels.bin").write_bytes(np.array(labels, "<i4").tobytes())
        save_tokenizer(tokenizer, draft)
        about.update(
            fingerprint=fingerprint, sources=source_records(sources), **(made.manifest_entry() if made else {})
        )
        about.update(labels=None if label_names is None else list(label_names), **(extra or {}))
    return Shards.open(folder, deep=False)


def write_arrays(
    documents: Iterable[Document], tokenizer: Tokenizer, draft: Path, task: ProgressTask
) -> dict[str, Any]:
    """Encode documents batch by batch into the arrays of a folder, and return their manifest entries."""
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    encoder, itemsize = WordEncoder(tokenizer, DTYPE_CODES[dtype]), np.dtype(DTYPE_CODES[dtype]).itemsize
    num_documents = num_tokens = num_bytes = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context((draft / f"{name}.bin").open("wb")) for name in ARRAYS}
        files["offsets"].write(np.array([0], "<u8").tobytes())
        for batch in batched_documents(documents):
            text_bytes = [len(as_utf8(document.text)) for document in batch]
            encoded = encoder.encode_to_bytes([document.text for document in batch])
            ends = num_tokens + np.cumsum([len(ids) // itemsize for ids in encoded])
            files["tokens"].writelines(encoded)
            files["offsets"].write(ends.astype("<u8").tobytes())
            files["bytes"].write(np.array(text_bytes, "<u4").tobytes())
            files["digests"].write(np.array([text_digest(document.text) for document in batch], "<u8").tobytes())
            num_documents, num_tokens, num_bytes = (
                num_documents + len(batch),
                int(ends[-1]),
                num_bytes + sum(text_bytes),
            )
            task.advance(len(batch))
    about = {"documents": num_documents, "tokens": num_tokens, "bytes": num_bytes, "dtype": dtype}
    return about | {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.digest}


def save_tokenizer(tokenizer: Tokenizer, draft: Path) -> None:
    """Save the tokenizer beside the arrays."""
    (draft / "tokenizer").mkdir()
    tokenizer.save(draft / "tokenizer")


def batched_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents into batches bounded in number and characters: corpora have many short documents, or a few books."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def is_shards(path: str | Path) -> bool:
    """Return whether a path is a folder of prepared shards, according to its manifest."""
    try:
        manifest = read_json(Path(path) / MANIFEST)
    except StoreError:
        return False
    return isinstance(manifest, dict) and manifest.get("kind") == "shards"


def _check_about(folder: Path, about: dict[str, Any]) -> None:
    names = about.get("labels", 0)
    has_keys = all(type(about.get(key)) is key_type for key, key_type in _REQUIRED_KEYS.items())
    has_names = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    if not has_keys or about["dtype"] not in DTYPE_CODES or not has_names:
        raise StoreError(f"{folder / MANIFEST} is damaged: what it says about the shards is not complete")


def _memmap(path: Path, dtype: str, count: int) -> NDArray[Any]:
    expected = count * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size != expected:
        state = "is missing" if size < 0 else f"has {size} bytes"
        raise StoreError(f"{path} is damaged: it {state}, expected {expected} bytes")
    if count == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def _is_sorted(numbers: NDArray[np.uint64]) -> bool:
    """Compare block by block, because the comparison of all offsets of a large corpus would need much memory."""
    blocks = (numbers[start : start + _BLOCK + 1] for start in range(0, len(numbers), _BLOCK))
    return not any((block[1:] < block[:-1]).any() for block in blocks)


def _max_value(path: Path, dtype: str) -> int:
    """Return the largest number of an array, -1 if it is empty; the file is read, since mapped pages count as memory."""
    largest = -1
    with path.open("rb") as file:
        while block := file.read(8 * _BLOCK):
            largest = max(largest, int(np.frombuffer(block, dtype).max()))
    return largest


@dataclass(frozen=True)
class ShardPart:
    """A folder of arrays with its manifest entries."""

    folder: Path
    about: Mapping[str, Any]


def write_part(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: SourceFile,
    fingerprint: str,
    extra: Mapping[str, Any],
    task: ProgressTask,
) -> None:
    """Encode the documents of one file, which may have none; the folder appears atomically at the end."""
    about: dict[str, Any] = {}
    with atomic_folder(folder, kind="part", about=about) as draft:
        about.update(write_arrays(documents, tokenizer, draft, task))
        about.update(fingerprint=fingerprint, sources=source_records([source]), **extra)


def read_part(folder: Path, fingerprint: str) -> ShardPart | None:
    """Return the part in a folder if it is complete and has this fingerprint, else None."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        about = read_manifest(folder, kind="part")
    except StoreError:
        return None
    return ShardPart(folder, about) if about.get("fingerprint") == fingerprint else None


def merge_parts(
    parts: Sequence[ShardPart],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    labels: Sequence[str] | None,
    extra: Mapping[str, Any],
    progress: Progress,
) -> Shards:
    """Write the documents of all parts, in order, as one folder of shards.

    Args:
        labels: the label names that all parts have in common, or None for unlabelled text.
        extra: further entries of the manifest: fingerprint, and the record of exclusions.
    """
    first = parts[0].about
    about = {name: sum(part.about[name] for part in parts) for name in ("documents", "tokens", "bytes")}
    about |= {name: first[name] for name in ("dtype", "vocab_size", "tokenizer")}
    about |= {"labels": None if labels is None else list(labels), **extra}
    about["sources"] = [source for part in parts for source in part.about["sources"]]
    if not about["documents"]:
        raise DataError(f"no documents to write to {folder}")
    names = ARRAYS if labels is None else (*ARRAYS, "labels")
    with atomic_folder(folder, kind="shards", about=about) as draft:
        with progress.task("join", len(names), "arrays") as task:
            for name in names:
                with (draft / f"{name}.bin").open("wb") as target:
                    for block in _merged_offsets(parts) if name == "offsets" else _merged_blocks(parts, name):
                        target.write(block)
                task.advance()
        save_tokenizer(tokenizer, draft)
    return Shards.open(folder, deep=False)


def _merged_blocks(parts: Sequence[ShardPart], name: str) -> Iterator[bytes]:
    for part in parts:
        with (part.folder / f"{name}.bin").open("rb") as file:
            while block := file.read(8 * _BLOCK):
                yield block


def _merged_offsets(parts: Sequence[ShardPart]) -> Iterator[bytes]:
    """Yield the offsets of all parts, shifted by the tokens of the parts before."""
    yield np.array([0], "<u8").tobytes()
    num_tokens = 0
    for part in parts:
        with (part.folder / "offsets.bin").open("rb") as file:
            file.seek(8)
            while block := file.read(8 * _BLOCK):
                yield (np.frombuffer(block, "<u8") + np.uint64(num_tokens)).tobytes()
        num_tokens += part.about["tokens"]


def merged_exclusions(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """Sum the exclusion records of all parts; the result is empty unless all excluded the texts of the same files."""
    records = [part.about.get(EXCLUDED_KEY) for part in parts]
    if not all(record is not None and record["files"] == (records[0] or {}).get("files") for record in records):
        return {}
    counts = {name: sum(record[name] for record in records if record) for name in ("exact", "near", "kept")}
    return {EXCLUDED_KEY: {"files": records[0]["files"], **counts}} if records[0] else {}


def remove_parts(folder: Path) -> None:
    """Delete the parts after they were merged."""
    shutil.rmtree(folder, ignore_errors=True)
