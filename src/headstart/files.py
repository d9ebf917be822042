"""Files that are whole or not there, and the manifest by which a reader knows it.

A folder of ours is written beside its place, flushed, listed in `manifest.json` with the size and sha256 of every
file and a seal over the list itself, and renamed. A reader checks the list first, so a torn, edited or truncated file
is named and refused.
Nothing here or anywhere else in the package unpickles: JSON, plain arrays and safetensors only.
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
"""The number of the on-disk formats; another number is refused, never guessed at."""
MANIFEST = "manifest.json"
README = "README.md"
"""For people, who may add a licence or a name to it: not listed, and not checked where an older list has it."""
_JSON_LIMIT = 256 * 1024 * 1024
_CHECKSUM_SUFFIX = "sha256:"
_HEAD = 512


@contextmanager
def atomic_folder(target: Path, *, kind: str, about: dict[str, Any] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends well it appears at `target`, whole, with its manifest.

    Args:
        kind: what the folder is ("checkpoint", "bundle", "shards"); a reader asks for the kind it expects.
        about: plain values kept in the manifest, for readers that need no more than those.
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
        write_json(draft / MANIFEST, content | {"seal": _checksum_line(content)})
        for path in draft.rglob("*"):
            _flush(path)
        _flush(draft)
        _move_into_place(draft, target)
    except (OSError, StoreError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        # a message of ours names the draft, which means nothing to a person
        reason = os_error_reason(error, target) if isinstance(error, OSError) else str(error).rpartition(": ")[2]
        raise StoreError(f"cannot write {target}: {reason}; nothing was changed") from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def os_error_reason(error: OSError, path: Path) -> str:
    """What keeps a path from being written; the system says "File exists" of a file where a folder should be."""
    above = next((folder for folder in path.parents if os.path.isfile(folder)), None)
    return f"{above} is a file, not a folder" if above is not None else error.strerror or str(error)


def _move_into_place(draft: Path, target: Path) -> None:
    """Rename a finished draft into its place; if that fails, what stood there stands there again."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    replacing = target.exists()
    try:
        if replacing:
            target.rename(old)
        draft.rename(target)
        _flush(target.parent)
    except BaseException:  # an interruption, too, must not leave the place empty
        if not draft.exists():
            target.rename(draft)
        if replacing and not target.exists():
            old.rename(target)
        raise
    # this one's predecessor, and whatever processes that died in this place left behind
    for leftover in (*target.parent.glob(f".{target.name}.old-*"), *target.parent.glob(f".{target.name}.writing-*")):
        if not _belongs_to_live_process(leftover):
            shutil.rmtree(leftover, ignore_errors=True)


def _belongs_to_live_process(draft: Path) -> bool:
    """Whether another process that is alive is still writing a draft."""
    number = draft.name.rpartition("-")[2]
    if not number.isdecimal() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_manifest(folder: Path, *, kind: str, deep: bool = True) -> dict[str, Any]:
    """Return what a folder says about itself, once every file in its list is there with its size (and its sha256)."""
    path = folder / MANIFEST
    if not path.is_file():
        raise StoreError(f"{folder} is not a Headstart {kind}: it has no {MANIFEST}")
    raw, manifest = _read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise StoreError(f"{path} is damaged: it does not list files")
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} {wrong_format_error(manifest.get('format'), 'make it anew')}")
    _verify_checksum(path, raw, manifest)
    if manifest.get("kind") != kind:
        raise UsageError(f"{folder} is a folder of Headstart's, but of kind {manifest.get('kind')}; this needs {kind}")
    for name, facts in manifest["files"].items():
        if name != README:
            _check_file(folder, name, facts, deep=deep)
    about = manifest.get("about", {})
    if not isinstance(about, dict):
        raise StoreError(f"{path} is damaged: what it says about the {kind} is not an object")
    return about


def _checksum_line(content: dict[str, Any]) -> str:
    """The hash of a JSON file in itself, so that not even a bit of it can change unnoticed."""
    return hashlib.sha256(_canonical_json(content)).hexdigest()


def _verify_checksum(path: Path, raw: bytes, content: dict[str, Any]) -> None:
    """Take the seal out of what was read, and refuse a file that is not byte for byte what was sealed."""
    seal = content.pop("seal", None)
    try:
        whole = str(seal).removeprefix(_CHECKSUM_SUFFIX) == _checksum_line(content) and raw == _canonical_json(
            content | {"seal": seal}
        )
    except ValueError:  # what no file of ours holds: NaN, half of a surrogate pair
        whole = False
    if not whole:
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
    except OSError as error:  # a worn disk: a checkpoint before this one may still be read
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None


def wrong_format_error(found: Any, way_out: str) -> str:
    """The end of a message about a file of another version, and what to do."""
    if type(found) is int and found > FORMAT:
        way_out = f"update Headstart, or {way_out}"
    return f"has format {repr(found)[:40]}, this version of Headstart reads {FORMAT}; {way_out}"


def write_checksummed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object that stands alone, with a seal over the rest of it."""
    write_json(path, content | {"seal": _CHECKSUM_SUFFIX + _checksum_line(content)})


def read_checksummed(path: Path) -> dict[str, Any]:
    """Read what `write_checksummed` wrote, if not a bit of it changed; what never had a seal is read as it is."""
    raw, content = _read_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged: it is not a JSON object")
    # a seal under a damaged name is a damaged seal
    if "seal" in content or any(
        isinstance(value, str) and value.startswith(_CHECKSUM_SUFFIX) for value in content.values()
    ):
        _verify_checksum(path, raw, content)
    return content


def write_json(path: Path, value: Any) -> None:
    """Write JSON the same way every time, whole or not at all. NaN is refused: no reader should meet one."""
    atomic_write(path, _canonical_json(value))


def _canonical_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it, and rename it into place."""
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
    """Read JSON of ours; anything else is a damaged file."""
    return _read_json(path)[1]


def _read_json(path: Path) -> tuple[bytes, Any]:
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"{path} is not a file; expected JSON of Headstart's")
        with path.open("rb") as file:
            raw = file.read(_JSON_LIMIT + 1)
        if len(raw) > _JSON_LIMIT:
            raise StoreError(f"{path} is damaged: more than {_JSON_LIMIT} bytes are too many for a JSON file of ours")
        return raw, json.loads(raw.decode("utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also numbers of more digits than Python reads
        raise StoreError(f"{path} is damaged: {error}") from None


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins like this is a pickle, or an archive of one as torch writes it.

    >>> is_pickle(b"\\x80\\x04\\x95"), is_pickle(b"PK\\x03\\x04 archive/data.pkl"), is_pickle(b'{"a": 1}')
    (True, True, False)
    """
    return (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1) or (
        head[:4] == b"PK\x03\x04" and b"data.pkl" in head[:_HEAD]
    )


def is_pickled(path: Path) -> bool:
    """The same of a file; one that cannot be read is not."""
    try:
        with path.open("rb") as file:
            return is_pickle(file.read(_HEAD))
    except OSError:
        return False


def pickle_error(path: Path | str, way_out: str) -> str:
    """The message about a pickle, wherever it is met; its bytes are never looked at beyond the first."""
    return f"{path} is a pickle, which may run code when it is opened; Headstart opens none. {way_out}"


def pickled_weights(path: Path) -> str:
    """The message about weights in a pickle: a person who trusts them converts them, we never do."""
    convert = (
        'Where you trust it, convert it once: python -c "import torch, safetensors.torch as s; '
        f"d = torch.load('{path.name}', map_location='cpu', weights_only=True); "
        f"s.save_file({{k: v.contiguous() for k, v in d.get('model_state_dict', d).items()}}, '{path.stem}.safetensors')\", "
        "then see headstart import --help"
    )
    return pickle_error(path, convert)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Make a file's bytes, or a folder's names, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
