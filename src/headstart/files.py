"""Atomic files and folders, manifests and checksums.

A folder is written to a draft beside its target, flushed, and renamed. Its `manifest.json` lists the size and sha256 of
every file, with a checksum over the list itself (the key "seal"). A reader checks the manifest first, so a truncated,
edited or missing file is named and refused.
Nothing in the package unpickles: it reads JSON, plain arrays and safetensors only.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headstart.errors import StoreError, UsageError

FORMAT = 2
"""The version of the on-disk formats; any other is refused."""
MANIFEST = "manifest.json"
README = "README.md"
"""The manifest does not list the README, because users may edit it; older manifests do, and it is not checked."""
_JSON_LIMIT = 256 * 1024 * 1024
_CHECKSUM_PREFIX = "sha256:"
_HEAD_BYTES = 512


@contextmanager
def atomic_folder(target: Path, *, kind: str, about: dict[str, Any] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block succeeds, rename it to `target` with its manifest.

    Args:
        kind: the type of the folder ("checkpoint", "bundle", "shards"); a reader names the type it expects.
        about: plain values stored in the manifest.
    """
    draft = target.with_name(f".{target.name}.writing-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        yield draft
        files = {
            path.relative_to(draft).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(draft.rglob("*"))
            if path.is_file() and path != draft / README
        }
        content = {"format": FORMAT, "kind": kind, "about": about or {}, "files": files}
        write_json(draft / MANIFEST, content | {"seal": _checksum(content)})
        for path in draft.rglob("*"):
            _flush(path)
        _flush(draft)
        _move_into_place(draft, target)
    except (OSError, StoreError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        # our own message names the draft, which means nothing to a user
        reason = os_error_reason(error, target) if isinstance(error, OSError) else str(error).rpartition(": ")[2]
        raise StoreError(f"cannot write {target}: {reason}; nothing was changed") from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def check_file_name(path: str) -> None:
    """Refuse a name that is not UTF-8: it cannot be recorded in JSON, nor shown in a report."""
    shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if shown != path:
        raise UsageError(f"{shown}: the name is not valid UTF-8; rename the file or folder")


def os_error_reason(error: OSError, path: Path) -> str:
    """Explain why a path cannot be written; the system reports "File exists" for a file in place of a folder."""
    parent = next((folder for folder in path.parents if os.path.isfile(folder)), None)
    return f"{parent} is a file, not a folder" if parent is not None else error.strerror or str(error)


def _move_into_place(draft: Path, target: Path) -> None:
    """Rename a finished draft to its target; if that fails, restore the previous folder."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    replacing = target.exists()
    try:
        if replacing:
            target.rename(old)
        draft.rename(target)
        _flush(target.parent)
    except BaseException:  # an interruption, too, must not leave the target missing
        if not draft.exists():
            target.rename(draft)
        if replacing and not target.exists():
            old.rename(target)
        raise
    # the previous folder, and drafts that killed processes left behind
    for leftover in (*target.parent.glob(f".{target.name}.old-*"), *target.parent.glob(f".{target.name}.writing-*")):
        if not _belongs_to_live_process(leftover):
            shutil.rmtree(leftover, ignore_errors=True)


def _belongs_to_live_process(draft: Path) -> bool:
    """Return True if another live process is still writing the draft."""
    pid = draft.name.rpartition("-")[2]
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_manifest(folder: Path, *, kind: str, deep: bool = True) -> dict[str, Any]:
    """Return the `about` values of a folder after checking the size (and, if `deep`, the sha256) of every listed file."""
    path = folder / MANIFEST
    if not path.is_file():
        raise StoreError(f"{folder} is not a Headstart {kind}: it has no {MANIFEST}")
    raw, manifest = _read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise StoreError(f"{path} is damaged: it does not list files")
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} {wrong_format_error(manifest.get('format'), 'create it again')}")
    _verify_checksum(path, raw, manifest)
    if manifest.get("kind") != kind:
        raise UsageError(f"{folder} is a Headstart folder of kind {manifest.get('kind')}; this needs {kind}")
    for name, facts in manifest["files"].items():
        if name != README:
            _check_file(folder, name, facts, deep=deep)
    about = manifest.get("about", {})
    if not isinstance(about, dict):
        raise StoreError(f"{path} is damaged: what it says about the {kind} is not an object")
    return about


def _checksum(content: dict[str, Any]) -> str:
    """Return the checksum that a JSON file stores in itself, so that no bit of it can change unnoticed."""
    return hashlib.sha256(_canonical_json(content)).hexdigest()


def _verify_checksum(path: Path, raw: bytes, content: dict[str, Any]) -> None:
    """Remove the checksum from `content`, and refuse a file that is not byte for byte what was written."""
    seal = content.pop("seal", None)
    try:
        intact = str(seal).removeprefix(_CHECKSUM_PREFIX) == _checksum(content) and raw == _canonical_json(
            content | {"seal": seal}
        )
    except ValueError:  # NaN or half of a surrogate pair, which none of our files contains
        intact = False
    if not intact:
        raise StoreError(f"{path} is damaged: it is not what was written (sha256)")


def _check_file(folder: Path, name: str, facts: Any, *, deep: bool) -> None:
    if not isinstance(facts, dict) or name.startswith("/") or ".." in Path(name).parts or not name.isprintable():
        raise StoreError(f"{folder / MANIFEST} is damaged: it lists {name!r}")
    path = folder / name
    inside = path.relative_to(folder)
    try:
        if any((folder / part).is_symlink() for part in (inside, *inside.parents[:-1])) or not path.is_file():
            raise StoreError(f"{path} is missing; {folder} is damaged")
        size = path.stat().st_size
        if size != facts.get("size"):
            raise StoreError(f"{path} is damaged: {size} bytes where {facts.get('size')} were written")
        if deep and sha256_of(path) != facts.get("sha256"):
            raise StoreError(f"{path} is damaged: its bytes are not those that were written (sha256)")
    except OSError as error:  # a bad disk: an earlier checkpoint may still be readable
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None


def wrong_format_error(version: Any, remedy: str) -> str:
    """Return the end of a message about a file of another format version, with a remedy."""
    if type(version) is int and version > FORMAT:
        remedy = f"update Headstart, or {remedy}"
    return f"has format {repr(version)[:40]}, this version of Headstart reads {FORMAT}; {remedy}"


def write_checksummed(path: Path, content: dict[str, Any]) -> None:
    """Write a single JSON object with a checksum over the rest of it."""
    write_json(path, content | {"seal": _CHECKSUM_PREFIX + _checksum(content)})


def read_checksummed(path: Path) -> dict[str, Any]:
    """Read what `write_checksummed` wrote and verify it; an object without a checksum is returned as it is."""
    raw, content = _read_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged: it is not a JSON object")
    # a checksum under another key means that the key was damaged
    if "seal" in content or any(
        isinstance(value, str) and value.startswith(_CHECKSUM_PREFIX) for value in content.values()
    ):
        _verify_checksum(path, raw, content)
    return content


def write_json(path: Path, value: Any) -> None:
    """Write canonical JSON atomically; NaN is refused."""
    atomic_write(path, _canonical_json(value))


def _canonical_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file to a draft beside it, flush it, and rename it."""
    draft = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _flush(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file of ours; anything else is a damaged file."""
    return _read_json(path)[1]


def _read_json(path: Path) -> tuple[bytes, Any]:
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"{path} is not a file; expected a JSON file of Headstart")
        with path.open("rb") as file:
            raw = file.read(_JSON_LIMIT + 1)
        if len(raw) > _JSON_LIMIT:
            raise StoreError(f"{path} is damaged: it is larger than {_JSON_LIMIT} bytes")
        return raw, json.loads(raw.decode("utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also numbers of more digits than Python reads
        raise StoreError(f"{path} is damaged: {error}") from None


def is_pickle(head: bytes) -> bool:
    """Return True if a file that begins with `head` is a pickle, or an archive of one as torch writes it.

    >>> is_pickle(b"\\x80\\x04\\x95"), is_pickle(b"PK\\x03\\x04 archive/data.pkl"), is_pickle(b'{"a": 1}')
    (True, True, False)
    """
    return (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1) or (
        head[:4] == b"PK\x03\x04" and b"data.pkl" in head[:_HEAD_BYTES]
    )


def is_pickled(path: Path) -> bool:
    """Return True if a file is a pickle; a file that cannot be read is not."""
    try:
        with path.open("rb") as file:
            return is_pickle(file.read(_HEAD_BYTES))
    except OSError:
        return False


def pickle_error(path: Path | str, remedy: str) -> str:
    """Return the error message for a pickle file."""
    return f"{path} is a pickle, which may run code when it is opened; Headstart does not open pickles. {remedy}"


def pickled_weights(path: Path) -> str:
    """Return the error message for pickled weights, which shows how a user who trusts them converts them."""
    convert = (
        'If you trust it, convert it once: python -c "import torch, safetensors.torch as s; '
        f"d = torch.load('{path.name}', map_location='cpu', weights_only=True); "
        f"s.save_file({{k: v.contiguous() for k, v in d.get('model_state_dict', d).items()}}, '{path.stem}.safetensors')\", "
        "then see headstart import --help"
    )
    return pickle_error(path, convert)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
