"""Token shards: write, map and merge.

Token shards: documents encoded once, laid end to end on disk, and memory-mapped by every training run.

    tokens.bin    uint16 (uint32 for a vocabulary beyond 65,536), all documents end to end, no special tokens
    offsets.bin   uint64, documents + 1: document i is tokens[offsets[i] : offsets[i + 1]]
    bytes.bin     uint32, UTF-8 bytes of each document's text
    digests.bin   uint64, what doubles have in common (see digests.py)
    labels.bin    int32, index of each document's label; labelled data only
    tokenizer/    what turned the texts into tokens

All little-endian. manifest.json lists the files and says about them: documents, tokens, bytes, dtype, vocab_size,
tokenizer, labels, sources, fingerprint, made (what the fingerprint is of), and left_out where texts were (see leaveout.py).

Shards that are put together from others: one part for each file of a corpus, or folders prepared on several machines.

A part is the arrays of shards without the tokenizer (`kind: part`). Joining copies arrays end to end, a block in memory at a
time, so that a corpus may be as large as the disk; what comes out is byte for byte what one process would have written.
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
from headstart.data.hashing import text_digest
from headstart.data.provenance import Recipe, SourceFile, source_records
from headstart.errors import DataError, StoreError
from headstart.files import MANIFEST, atomic_folder, read_json, read_manifest
from headstart.progress import Progress, ProgressTask
from headstart.tokenization.base import Tokenizer, as_utf8
from headstart.tokenization.bulk import WordEncoder

_BATCH, _BATCH_CHARACTERS = 1000, 4_000_000
_BLOCK = 1 << 20

ARRAYS = ("tokens", "offsets", "bytes", "digests")
CODES = {"uint16": "<u2", "uint32": "<u4"}
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
    """An opened shards folder. The arrays are views of the files: reading costs memory only for what is touched."""

    folder: Path
    about: dict[str, Any]
    flat: NDArray[Any]
    """The tokens of all documents end to end."""
    offsets: NDArray[np.uint64]
    text_bytes: NDArray[np.uint32]
    digests: NDArray[np.uint64]
    label_of: NDArray[np.int32] | None

    @classmethod
    def open(cls, folder: Path, deep: bool = True) -> "Shards":
        """Map a folder whose files are those that were written and fit together; `deep` reads them all to be sure."""
        about = read_manifest(folder, kind="shards", deep=deep)
        _check_about(folder, about)
        documents = about["documents"]
        shards = cls(
            folder=folder,
            about=about,
            flat=_mapped(folder / "tokens.bin", CODES[about["dtype"]], about["tokens"]),
            offsets=_mapped(folder / "offsets.bin", "<u8", documents + 1),
            text_bytes=_mapped(folder / "bytes.bin", "<u4", documents),
            digests=_mapped(folder / "digests.bin", "<u8", documents),
            label_of=_mapped(folder / "labels.bin", "<i4", documents) if about["labels"] is not None else None,
        )
        shards._check_sense(deep)
        return shards

    def _check_sense(self, deep: bool) -> None:
        offsets = self.offsets
        if offsets[0] != 0 or offsets[-1] != self.tokens or not _is_sorted(offsets):
            raise StoreError(
                f"{self.folder / 'offsets.bin'} is damaged: the offsets do not run from 0 to {self.tokens}"
            )
        if deep and _largest(self.folder / "tokens.bin", CODES[self.about["dtype"]]) >= self.vocab_size:
            raise StoreError(f"{self.folder / 'tokens.bin'} is damaged: a token beyond the {self.vocab_size} entries")
        of, names = self.label_of, self.labels
        if of is not None and names is not None and of.size and (of.min() < 0 or of.max() >= len(names)):
            raise StoreError(f"{self.folder / 'labels.bin'} is damaged: a label beyond the {len(names)} names")

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return int(self.about["documents"])

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return int(self.about["tokens"])

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer: every token is below it."""
        return int(self.about["vocab_size"])

    @property
    def tokenizer_digest(self) -> str:
        """By which another folder's tokenizer is known to be the same."""
        return str(self.about["tokenizer"])

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer can be loaded from."""
        return self.folder / "tokenizer"

    @property
    def fingerprint(self) -> str:
        """Of what the shards were made from."""
        return str(self.about["fingerprint"])

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names that `parse_label_cell` counts, or None for unlabelled text."""
        names = self.about["labels"]
        return None if names is None else tuple(names)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        offsets = self.offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def ids(self, document: int) -> NDArray[Any]:
        """The tokens of one document, as a view."""
        return self.flat[int(self.offsets[document]) : int(self.offsets[document + 1])]

    def split(self, held_out: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents to train on and those held out, chosen by a hash of the text and the seed.

        Doubles of a document fall on the same side, and a document keeps its side when others are added. Neither side
        is empty: when chance leaves one so, the document nearest to the border crosses it with its doubles.
        """
        places = _split_bits(self.digests, seed)
        lowest, highest = (places.min(), places.max()) if places.size else (0, 0)
        if lowest == highest:
            raise DataError(f"{self.folder} holds one document only, doubles aside; there is nothing to hold out")
        held = places < np.uint64(held_out * 2.0**64)
        if not held.any():
            held = places == lowest
        elif held.all():
            held = places != highest
        return np.flatnonzero(~held), np.flatnonzero(held)


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
    made: Recipe | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Shards:
    """Encode documents and write them through, a batch in memory at a time; the folder appears whole at the end.

    Args:
        labels: for labelled data, the index of each document's label in `label_names`.
        made: of what the fingerprint was taken, for folders that may be merged.
        extra: further facts for the manifest, read when all documents have passed.
    """
    about: dict[str, Any] = {}  # filled below: whole_folder writes it down when the block ends
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
        about.update(fingerprint=fingerprint, sources=source_records(sources), **(made.about() if made else {}))
        about.update(labels=None if label_names is None else list(label_names), **(extra or {}))
    return Shards.open(folder, deep=False)


def write_arrays(
    documents: Iterable[Document], tokenizer: Tokenizer, draft: Path, task: ProgressTask
) -> dict[str, Any]:
    """Encode documents into the arrays of a folder, a batch in memory at a time; returns what there is to say of them."""
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    encoder, width = WordEncoder(tokenizer, CODES[dtype]), np.dtype(CODES[dtype]).itemsize
    count = tokens = size = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context((draft / f"{name}.bin").open("wb")) for name in ARRAYS}
        files["offsets"].write(np.array([0], "<u8").tobytes())
        for batch in batched_documents(documents):
            sizes = [len(as_utf8(document.text)) for document in batch]
            encoded = encoder.packed([document.text for document in batch])
            ends = tokens + np.cumsum([len(ids) // width for ids in encoded])
            files["tokens"].writelines(encoded)
            files["offsets"].write(ends.astype("<u8").tobytes())
            files["bytes"].write(np.array(sizes, "<u4").tobytes())
            files["digests"].write(np.array([text_digest(document.text) for document in batch], "<u8").tobytes())
            count, tokens, size = count + len(batch), int(ends[-1]), size + sum(sizes)
            task.advance(len(batch))
    about = {"documents": count, "tokens": tokens, "bytes": size, "dtype": dtype}
    return about | {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.digest}


def save_tokenizer(tokenizer: Tokenizer, draft: Path) -> None:
    """Put the tokenizer beside the arrays that it made."""
    (draft / "tokenizer").mkdir()
    tokenizer.save(draft / "tokenizer")


def batched_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in bites bounded both ways: some corpora have a million short ones, some a few books."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def is_shards(path: str | Path) -> bool:
    """Whether a path is a folder of prepared shards, by what its manifest says; nothing else is checked."""
    try:
        manifest = read_json(Path(path) / MANIFEST)
    except StoreError:
        return False
    return isinstance(manifest, dict) and manifest.get("kind") == "shards"


def _check_about(folder: Path, about: dict[str, Any]) -> None:
    names = about.get("labels", 0)
    fine = all(type(about.get(name)) is kind for name, kind in _REQUIRED_KEYS.items()) and about["dtype"] in CODES
    if not fine or not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise StoreError(f"{folder / MANIFEST} is damaged: what it says about the shards is not complete")


def _mapped(path: Path, dtype: str, count: int) -> NDArray[Any]:
    wanted = count * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size != wanted:
        found = "is missing" if size < 0 else f"has {size} bytes"
        raise StoreError(f"{path} is damaged: it {found}, expected {wanted} bytes")
    if count == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def _is_sorted(numbers: NDArray[np.uint64]) -> bool:
    """Looked at a block at a time: the comparison of a large corpus's offsets would not be small."""
    blocks = (numbers[start : start + _BLOCK + 1] for start in range(0, len(numbers), _BLOCK))
    return not any((block[1:] < block[:-1]).any() for block in blocks)


def _largest(path: Path, code: str) -> int:
    """The highest number of an array, or -1 of an empty one; read, not mapped: what is mapped counts as memory in use."""
    largest = -1
    with path.open("rb") as file:
        while block := file.read(8 * _BLOCK):
            largest = max(largest, int(np.frombuffer(block, code).max()))
    return largest


def _split_bits(digests: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Scramble digests by a seed; equal stays equal. The constants are SplitMix64's (Steele, Lea and Flood, 2014)."""
    mask = (1 << 64) - 1
    mixed = np.asarray(digests, dtype=np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & mask)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True)
class ShardPart:
    """A folder of arrays, and what it says about them."""

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
    """Encode the documents of one file; there may be none. The folder appears whole at the end."""
    about: dict[str, Any] = {}
    with atomic_folder(folder, kind="part", about=about) as draft:
        about.update(write_arrays(documents, tokenizer, draft, task))
        about.update(fingerprint=fingerprint, sources=source_records([source]), **extra)


def read_part(folder: Path, fingerprint: str) -> ShardPart | None:
    """The part in a folder, if it is whole and made from what is asked for."""
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
        labels: the names of the labels that every part has, or None for text without.
        extra: what else the manifest says: fingerprint, and what was left out.
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
                    for block in _offsets(parts) if name == "offsets" else _blocks(parts, name):
                        target.write(block)
                task.advance()
        save_tokenizer(tokenizer, draft)
    return Shards.open(folder, deep=False)


def _blocks(parts: Sequence[ShardPart], name: str) -> Iterator[bytes]:
    for part in parts:
        with (part.folder / f"{name}.bin").open("rb") as file:
            while block := file.read(8 * _BLOCK):
                yield block


def _offsets(parts: Sequence[ShardPart]) -> Iterator[bytes]:
    """Where documents end among all tokens: each part counts from its own first."""
    yield np.array([0], "<u8").tobytes()
    before = 0
    for part in parts:
        with (part.folder / "offsets.bin").open("rb") as file:
            file.seek(8)
            while block := file.read(8 * _BLOCK):
                yield (np.frombuffer(block, "<u8") + np.uint64(before)).tobytes()
        before += part.about["tokens"]


def merged_exclusions(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """What was left out of all parts together; nothing is claimed where they did not all leave out the same files."""
    records = [part.about.get("left_out") for part in parts]
    if not all(record is not None and record["files"] == (records[0] or {}).get("files") for record in records):
        return {}
    counts = {name: sum(record[name] for record in records if record) for name in ("exact", "near", "kept")}
    return {"left_out": {"files": records[0]["files"], **counts}} if records[0] else {}


def remove_parts(folder: Path) -> None:
    """Let the parts go once the whole is there."""
    shutil.rmtree(folder, ignore_errors=True)
