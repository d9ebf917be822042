"""Expand globs, folders and URLs to files, and read the rows of a file with the reader of its suffix."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headstart.data.formats import READERS, Row, read_file_as_row, read_spm_pairs
from headstart.data.io import (
    KNOWN_SUFFIXES,
    UTF_8,
    TextEncoding,
    is_url,
    missing_file_error,
    remote_errors,
    suffix_of,
)
from headstart.errors import DataError, StoreError
from headstart.files import MANIFEST, check_file_name, is_pickled, pickle_error, read_json


def read_rows(
    path: str, *, file_as_row: bool = False, with_labels: bool = False, encoding: TextEncoding = UTF_8
) -> Iterator[Row]:
    """Stream the rows of one file.

    Args:
        file_as_row: a .txt file is one row instead of one row per line.
        with_labels: the .label file beside a .spm file is read too.
        encoding: the encoding of a file that is not UTF-8.
    """
    suffix = suffix_of(path)
    if suffix is None:
        raise _unknown_suffix_error(path)
    if file_as_row and suffix == ".txt":
        return read_file_as_row(path, encoding)
    if with_labels and suffix == ".spm":
        return read_spm_pairs(path, encoding)
    return READERS[suffix](path, encoding)


def expand_paths(paths: Sequence[str]) -> list[str]:
    """Expand globs, folders (all files below with known suffixes, sorted) and URLs, in order.

    Folders that Headstart wrote are skipped, because their JSON is not the user's text. A file that is named twice is
    read twice, which gives it more weight.
    """
    if not paths:
        raise DataError("no file was specified")
    files = [file for path in paths for file in (_expand_remote(path) if is_url(path) else _expand_local(path))]
    for file in files:
        check_file_name(file)
    return files


def _expand_local(path: str) -> list[str]:
    folder = Path(path)
    if folder.is_dir():
        if kind := _headstart_kind(folder):
            raise DataError(f"{path} is a Headstart {kind} folder, not text; use the text files")
        if _is_broken_shards(folder):
            state = "damaged" if (folder / MANIFEST).exists() else "missing"
            raise DataError(f"{path} contains prepared shards, but their {MANIFEST} is {state}; prepare them again")
        files = _files_below(path)
        if not files and any(_headstart_kind(entry) for entry in folder.iterdir()):
            raise DataError(f"{path} contains no text, only folders that Headstart wrote")
        return _readable_files(files, f"{path} contains no readable file")
    if folder.exists():  # before globs, because a file may be called "a[1].txt"
        return _single_file(path)
    if glob.has_magic(path):
        files = [file for match in sorted(glob.glob(path, recursive=True)) for file in _files_below(match)]
        return _readable_files(files, f"{path} matches no readable file")
    raise missing_file_error(path)


def _single_file(path: str) -> list[str]:
    if not Path(path).is_file():
        raise DataError(f"{path} is neither a file nor a folder")
    if suffix_of(path) is None:
        raise _unknown_suffix_error(path)
    return [path]


def _files_below(path: str) -> list[str]:
    """Return a file itself, or the files below a folder except dotfiles and folders that Headstart wrote."""
    if not Path(path).is_dir():
        return [path]
    files = []
    for folder, folder_names, file_names in os.walk(path):
        if _headstart_kind(Path(folder)) or _is_broken_shards(Path(folder)):
            folder_names.clear()  # do not descend
            continue
        folder_names[:] = [name for name in folder_names if not name.startswith(".")]
        files += [os.path.join(folder, name) for name in file_names if not name.startswith(".")]
    return sorted(file for file in files if os.path.isfile(file))


def _headstart_kind(folder: Path) -> str | None:
    """Return the kind of a folder that Headstart wrote (run, demo, shards, tokenizer, bundle, checkpoint), or None."""
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


def _readable_files(files: list[str], error: str) -> list[str]:
    """Return the files with a known suffix; none is an error, which lists the others."""
    readable = [file for file in files if suffix_of(file)]
    if readable:
        return readable
    names = [os.path.basename(file) for file in files]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    advice = "; save spreadsheets as CSV UTF-8" if any(map(_is_spreadsheet, names)) else ""
    raise DataError(f"{error}; found: {shown or 'nothing'}; supported: {KNOWN_SUFFIXES}{advice}")


def _expand_remote(path: str) -> list[str]:
    """Return the URL of one file as it is; only patterns and folders require a request."""
    has_pattern = "*" in path.split("?")[0]
    if not has_pattern and suffix_of(path):
        return [path]
    from fsspec.core import url_to_fs

    with remote_errors(path):
        filesystem, remote_path = url_to_fs(path)
        if has_pattern:
            matches = filesystem.glob(remote_path)
        elif filesystem.isdir(remote_path):
            matches = filesystem.find(remote_path)
        else:
            raise _unknown_suffix_error(path)
        urls = [filesystem.unstrip_protocol(name) for name in sorted(matches)]
        return _readable_files(urls, f"{path} contains no readable file")


def _unknown_suffix_error(path: str) -> DataError:
    if not is_url(path) and is_pickled(Path(path)):
        return DataError(pickle_error(path, "If you trust it, save its texts as .jsonl or .csv"))
    advice = "; save it as CSV UTF-8" if _is_spreadsheet(path) else ""
    return DataError(f"{path}: unsupported file suffix; supported: {KNOWN_SUFFIXES}{advice}")


def _is_spreadsheet(path: str) -> bool:
    return path.lower().endswith((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers"))
