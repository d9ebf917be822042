"""Shards that are put together from others: one part for each file of a corpus, or folders prepared on several machines.

A part is the arrays of shards without the tokenizer (`kind: part`). Joining copies arrays end to end, a block in memory at a
time, so that a corpus may be as large as the disk; what comes out is byte for byte what one process would have written.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.data.corpus import Document
from headstart.data.provenance import Source, listed
from headstart.data.shards import ARRAYS, Shards, save_tokenizer, write_arrays
from headstart.errors import DataError, StoreError
from headstart.files import MANIFEST, read_manifest, whole_folder
from headstart.progress import Progress, Task
from headstart.text.tokenizer import Tokenizer

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """A folder of arrays, and what it says about them."""

    folder: Path
    about: Mapping[str, Any]


def write_part(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: Source,
    fingerprint: str,
    extra: Mapping[str, Any],
    task: Task,
) -> None:
    """Encode the documents of one file; there may be none. The folder appears whole at the end."""
    about: dict[str, Any] = {}
    with whole_folder(folder, kind="part", about=about) as draft:
        about.update(write_arrays(documents, tokenizer, draft, task))
        about.update(fingerprint=fingerprint, sources=listed([source]), **extra)


def read_part(folder: Path, fingerprint: str) -> Part | None:
    """The part in a folder, if it is whole and made from what is asked for."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        about = read_manifest(folder, kind="part")
    except StoreError:
        return None
    return Part(folder, about) if about.get("fingerprint") == fingerprint else None


def join_parts(
    parts: Sequence[Part],
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
    with whole_folder(folder, kind="shards", about=about) as draft:
        with progress.task("join", len(names), "arrays") as task:
            for name in names:
                with (draft / f"{name}.bin").open("wb") as target:
                    for block in _offsets(parts) if name == "offsets" else _blocks(parts, name):
                        target.write(block)
                task.advance()
        save_tokenizer(tokenizer, draft)
    return Shards.open(folder, deep=False)


def _blocks(parts: Sequence[Part], name: str) -> Iterator[bytes]:
    for part in parts:
        with (part.folder / f"{name}.bin").open("rb") as file:
            while block := file.read(8 * _BLOCK):
                yield block


def _offsets(parts: Sequence[Part]) -> Iterator[bytes]:
    """Where documents end among all tokens: each part counts from its own first."""
    yield np.array([0], "<u8").tobytes()
    before = 0
    for part in parts:
        with (part.folder / "offsets.bin").open("rb") as file:
            file.seek(8)
            while block := file.read(8 * _BLOCK):
                yield (np.frombuffer(block, "<u8") + np.uint64(before)).tobytes()
        before += part.about["tokens"]


def left_out_of_all(parts: Sequence[Part]) -> dict[str, Any]:
    """What was left out of all parts together; nothing is claimed where they did not all leave out the same files."""
    records = [part.about.get("left_out") for part in parts]
    if not all(record is not None and record["files"] == (records[0] or {}).get("files") for record in records):
        return {}
    counts = {name: sum(record[name] for record in records if record) for name in ("exact", "near", "kept")}
    return {"left_out": {"files": records[0]["files"], **counts}} if records[0] else {}


def remove_parts(folder: Path) -> None:
    """Let the parts go once the whole is there."""
    shutil.rmtree(folder, ignore_errors=True)
