"""What the user named -> files -> rows: globs, folders and URLs are spelled out, and each file finds its reader."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headstart.data.formats import READERS, Row, read_spm_pairs, read_whole
from headstart.data.io import KNOWN_SUFFIXES, is_url, missing_file_error, remote_errors, suffix_of
from headstart.errors import DataError, StoreError
from headstart.files import MANIFEST, is_pickled, pickle_error, read_json


def read_rows(path: str, *, whole_files: bool = False, with_labels: bool = False) -> Iterator[Row]:
    """Stream the rows of one file.

    Args:
        whole_files: a .txt file is one row, not a row a line.
        with_labels: the .label file beside a .spm file is read too.
    """
    suffix = suffix_of(path)
    if suffix is None:
        raise _unknown(path)
    if whole_files and suffix == ".txt":
        return read_whole(path)
    if with_labels and suffix == ".spm":
        return read_spm_pairs(path)
    return READERS[suffix](path)


def expand_paths(paths: Sequence[str]) -> list[str]:
    """Spell out globs, folders (all files below, of known suffixes, sorted) and URLs, in the order given.

    Folders that Headstart wrote are passed over: their JSON is not the user's text.
    What is named twice is read twice: repeating a file is a way to weigh it.
    """
    if not paths:
        raise DataError("no file was named")
    return [file for path in paths for file in (_remote(path) if is_url(path) else _local(path))]


def _local(path: str) -> list[str]:
    here = Path(path)
    if here.is_dir():
        if kind := _is_headstart_folder(here):
            raise DataError(f"{path} is a Headstart {kind} folder, not text; name the text files")
        if _is_broken_shards(here):
            state = "damaged" if (here / MANIFEST).exists() else "missing"
            raise DataError(f"{path} holds prepared shards, but their {MANIFEST} is {state}; prepare them again")
        found = _below(path)
        if not found and any(_is_headstart_folder(folder) for folder in here.iterdir()):
            raise DataError(f"{path} holds no text, only folders that Headstart wrote")
        return _known_files(found, f"{path} holds no readable file")
    if here.exists():  # before globs: a file may be called "a[1].txt"
        return _single_path(path, is_file=here.is_file())
    if glob.has_magic(path):
        found = [file for match in sorted(glob.glob(path, recursive=True)) for file in _below(match)]
        return _known_files(found, f"{path} matches no readable file")
    raise missing_file_error(path)


def _single_path(path: str, *, is_file: bool) -> list[str]:
    if not is_file:
        raise DataError(f"{path} is neither a file nor a folder")
    if suffix_of(path) is None:
        raise _unknown(path)
    return [path]


def _below(match: str) -> list[str]:
    """A file itself, or the files below a folder, without hidden ones and without what Headstart wrote."""
    if not Path(match).is_dir():
        return [match]
    found = []
    for folder, names, files in os.walk(match):
        here = Path(folder)
        if _is_headstart_folder(here) or _is_broken_shards(here):
            names.clear()  # nor what lies below
            continue
        names[:] = [name for name in names if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if os.path.isfile(path))


def _is_headstart_folder(folder: Path) -> str | None:
    """What a folder that Headstart wrote calls itself: a run, a demo, shards, a tokenizer, a bundle, a checkpoint."""
    for name in ("run.json", "demo.json", MANIFEST):
        if (folder / name).is_file():
            try:
                content = read_json(folder / name)
            except StoreError:
                continue
            if isinstance(content, dict) and {"format", "kind"} <= content.keys():
                return "run" if name == "run.json" else str(content["kind"])
    return None


def _is_broken_shards(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("tokens.bin", "offsets.bin"))


def _known_files(found: list[str], nothing: str) -> list[str]:
    known = [file for file in found if suffix_of(file)]
    if known:
        return known
    names = [os.path.basename(file) for file in found]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    advice = "; save spreadsheets as CSV UTF-8" if any(map(_is_spreadsheet, names)) else ""
    raise DataError(f"{nothing}; found: {shown or 'nothing'}; known: {KNOWN_SUFFIXES}{advice}")


def _remote(path: str) -> list[str]:
    """A URL of one file is left as it is: only patterns and folders ask the other side what there is."""
    has_pattern = "*" in path.split("?")[0]
    if not has_pattern and suffix_of(path):
        return [path]
    from fsspec.core import url_to_fs

    with remote_errors(path):
        system, inner = url_to_fs(path)
        if has_pattern:
            found = system.glob(inner)
        elif system.isdir(inner):
            found = system.find(inner)
        else:
            raise _unknown(path)
        return _known_files([system.unstrip_protocol(name) for name in sorted(found)], f"{path} holds no readable file")


def _unknown(path: str) -> DataError:
    if not is_url(path) and is_pickled(Path(path)):
        return DataError(pickle_error(path, "Where you trust it, save its texts as .jsonl or .csv"))
    advice = "; save it as CSV UTF-8" if _is_spreadsheet(path) else ""
    return DataError(f"{path}: no reader for this suffix; known: {KNOWN_SUFFIXES}{advice}")


def _is_spreadsheet(path: str) -> bool:
    return path.lower().endswith((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers"))
