"""What prepared data was made from, and whether that has changed since."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headstart.data.io import is_url, missing_file_error, remote_errors
from headstart.files import FORMAT, sha256_of


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read: its name as the user wrote it, its size, and a mark that changes when it does."""

    name: str
    size: int | None
    modified: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """Of what besides its files a fingerprint is: kept in the manifest, so that merged folders have the whole's."""

    tokenizer: str
    """Its digest, or for one trained in the flow the settings it is trained with."""
    settings: Mapping[str, Any]
    """What decides how the files are read."""
    modified: tuple[str, ...] = ()
    """The marks of the files, in order."""

    def about(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        content = {"tokenizer": self.tokenizer, "settings": dict(self.settings), "modified": list(self.modified)}
        return {"made": content}


def describe_sources(paths: Sequence[str]) -> list[SourceFile]:
    """Look at files without reading them."""
    return [_remote(path) if is_url(path) else _local(path) for path in paths]


def _local(path: str) -> SourceFile:
    try:
        facts = Path(path).stat()
    except FileNotFoundError:
        raise missing_file_error(path) from None
    return SourceFile(path, facts.st_size, str(facts.st_mtime_ns))


def _remote(path: str) -> SourceFile:
    from fsspec.core import url_to_fs

    with remote_errors(path):
        system, inner = url_to_fs(path)
        facts = system.info(inner)
    marks = (
        facts.get(name) for name in ("ETag", "etag", "sha256", "LastModified", "last_modified", "mtime", "created")
    )
    # a server that gives no mark may change the file unseen, so such a file counts as changed every time
    mark = next((str(mark) for mark in marks if mark), None) or f"unmarked-{time.time_ns()}"
    return SourceFile(path, facts.get("size"), mark)


def source_records(sources: Sequence[SourceFile]) -> list[dict[str, Any]]:
    """The sources as the manifest keeps them; the hash of a file elsewhere is not worth fetching it once more."""
    return [
        {
            "name": source.name,
            "size": source.size,
            "sha256": None if is_url(source.name) else sha256_of(Path(source.name)),
        }
        for source in sources
    ]


def source_names(abouts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The files behind shards, each once and without its folder: for what is handed on with a model."""
    found = [source for about in abouts for source in about.get("sources", ())]
    kept = {(source["name"], source["sha256"]): source for source in found}
    # what stands behind an address's question mark may be a key
    return [source | {"name": Path(urlsplit(source["name"]).path).name} for source in kept.values()]


def fingerprint(sources: Sequence[SourceFile], tokenizer: str, settings: Mapping[str, Any]) -> str:
    """A hash of all that the result depends on: equal means that nothing changed.

    Args:
        tokenizer: its digest, or for one trained in the flow the settings it is trained with.
        settings: what decides how the files are read.
    """
    facts = [[source.name, source.size, source.modified] for source in sources]
    whole = json.dumps([FORMAT, facts, tokenizer, settings], sort_keys=True)
    return hashlib.sha256(whole.encode("ascii")).hexdigest()
