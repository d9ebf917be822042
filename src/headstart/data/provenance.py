"""The files that prepared data was made from, and a fingerprint that changes when they do."""

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
    """A file that was read: its name as the user wrote it, its size, and a marker that changes with its content."""

    name: str
    size: int | None
    modified: str


@dataclass(frozen=True, slots=True)
class FingerprintInputs:
    """The inputs of a fingerprint besides names and sizes of files.

    The manifest stores them, so that folders which are merged have the fingerprint of the whole corpus.
    """

    tokenizer: str
    """The digest of the tokenizer; for one that is trained from the same text, the settings of its training."""
    settings: Mapping[str, Any]
    """The settings that determine how files are read."""
    modified: tuple[str, ...] = ()
    """The markers of the files, in order."""

    def manifest_entry(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        content = {"tokenizer": self.tokenizer, "settings": dict(self.settings), "modified": list(self.modified)}
        return {"made": content}


def stat_sources(paths: Sequence[str]) -> list[SourceFile]:
    """Return size and modification marker of files without reading them."""
    return [_stat_remote(path) if is_url(path) else _stat_local(path) for path in paths]


def _stat_local(path: str) -> SourceFile:
    try:
        stat = Path(path).stat()
    except FileNotFoundError:
        raise missing_file_error(path) from None
    return SourceFile(path, stat.st_size, str(stat.st_mtime_ns))


def _stat_remote(path: str) -> SourceFile:
    from fsspec.core import url_to_fs

    with remote_errors(path):
        filesystem, remote_path = url_to_fs(path)
        info = filesystem.info(remote_path)
    markers = (
        info.get(name) for name in ("ETag", "etag", "sha256", "LastModified", "last_modified", "mtime", "created")
    )
    # without a marker a change would go unnoticed, so such a file counts as changed every time
    marker = next((str(marker) for marker in markers if marker), None) or f"unmarked-{time.time_ns()}"
    return SourceFile(path, info.get("size"), marker)


def source_records(sources: Sequence[SourceFile]) -> list[dict[str, Any]]:
    """Return the sources as the manifest stores them; remote files have no sha256, which would cost a second download."""
    return [
        {
            "name": source.name,
            "size": source.size,
            "sha256": None if is_url(source.name) else sha256_of(Path(source.name)),
        }
        for source in sources
    ]


def source_names(abouts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the unique source files of some shards without their folders, because a bundle may be published."""
    sources = [source for about in abouts for source in about.get("sources", ())]
    unique = {(source["name"], source["sha256"]): source for source in sources}
    # the query of a URL may contain a key
    return [source | {"name": Path(urlsplit(source["name"]).path).name} for source in unique.values()]


def fingerprint(sources: Sequence[SourceFile], tokenizer: str, settings: Mapping[str, Any]) -> str:
    """Return a hash of everything that prepared data depends on; the arguments are those of `FingerprintInputs`."""
    files = [[source.name, source.size, source.modified] for source in sources]
    content = json.dumps([FORMAT, files, tokenizer, settings], sort_keys=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()
