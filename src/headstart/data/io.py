"""Open local, compressed and remote files, and decode their lines as strict UTF-8."""

import difflib
import gzip
import io
import os
import shlex
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from headstart.errors import DataError
from headstart.files import is_pickle, pickle_error

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Bytes of the longest line, csv row or single-document file: a longer one is a broken file more often than a text."""
MAX_INFLATION = 200
"""The largest compression ratio of a gzip file that unpacks to more than `MAX_LINE_BYTES`; that of text is about ten."""
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".spm")
BOM = b"\xef\xbb\xbf"
KNOWN_SUFFIXES = f"{', '.join(SUFFIXES)}, each also with .gz"


def single_line(text: str, limit: int = 40) -> str:
    """Format text of a file for a message: no line breaks, no control characters, and at most `limit` characters.

    >>> single_line("a\\nlabel\\x1b[31m")
    'a label [31m'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * limit])
    line = " ".join(printable.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def is_url(path: str) -> bool:
    """Return whether a path is a URL, which fsspec opens.

    >>> is_url("hf://datasets/me/reviews.csv"), is_url("reviews.csv")
    (True, False)
    """
    return "://" in path


def is_gzip(path: str) -> bool:
    """Return whether the name ends with .gz."""
    return _without_query(path).endswith(".gz")


def suffix_of(path: str) -> str | None:
    """Return the suffix that selects the reader, .gz aside; None if it is unknown.

    >>> suffix_of("a/Reviews.CSV.gz"), suffix_of("https://host/train.jsonl?download=1"), suffix_of("notes.md")
    ('.csv', '.jsonl', None)
    """
    name = _without_query(path).removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def _without_query(path: str) -> str:
    """Return the path in lower case, without the query and fragment of a URL."""
    if is_url(path):
        path = path.split("::")[0]  # fsspec chains file systems with ::, innermost file first
        path = path.split("#")[0].split("?")[0]
    return path.lower()


@contextmanager
def open_input(path: str) -> Iterator[io.BufferedReader]:
    """Open a file for reading uncompressed bytes; every error while it is open becomes a one-line DataError."""
    try:
        with ExitStack() as stack:
            file = raw = stack.enter_context(_open_raw(path))
            if is_gzip(path):
                file = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
                file = cast(IO[bytes], _GzipReader(path, file, raw))
            # a BufferedReader, because readline of some fsspec files ignores its limit
            reader: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, file))
            if is_pickle(reader.peek(512)[:512]):
                raise DataError(pickle_error(path, "Where you trust it, save its texts as .jsonl or .csv"))
            yield reader
    except EOFError:
        raise DataError(f"{path} is cut short: the gzip stream does not end; fetch or compress it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not whole gzip ({error}); fetch or compress it again") from None
    except FileNotFoundError:
        raise missing_file_error(path) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


class _GzipReader(io.RawIOBase):
    """A gzip stream that refuses a decompression bomb."""

    def __init__(self, path: str, file: IO[bytes], compressed: IO[bytes]) -> None:
        self._path, self._file, self._compressed = path, cast(io.BufferedIOBase, file), compressed
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._size += count
        if self._size > MAX_LINE_BYTES and self._size > MAX_INFLATION * self._compressed.tell():
            raise DataError(
                f"{self._path} unpacks to more than {MAX_INFLATION} times its size, as no text does; "
                "unpack it yourself to read it"
            )
        return count


def has_bom(file: io.BufferedReader) -> bool:
    """Return whether a file begins with the byte order mark of UTF-8; nothing is consumed."""
    return file.peek(3)[:3] == BOM


def missing_file_error(path: str) -> DataError:
    """Return the error for a missing file, with the most similar name in its folder."""
    if is_url(path):
        return DataError(f"no such file: {path}")
    folder = Path(path).parent
    if not folder.is_dir():
        return DataError(f"no such file: {path} (there is no folder {folder})")
    names = sorted(entry.name for entry in folder.iterdir())
    similar = difflib.get_close_matches(Path(path).name, names, n=1)
    hint = f"; did you mean {os.path.join(os.path.dirname(path), similar[0])}?" if similar else ""
    return DataError(f"no such file: {path}{hint}")


def _open_raw(path: str) -> IO[bytes]:
    if not is_url(path):
        return Path(path).open("rb")
    import fsspec

    with remote_errors(path):
        return cast(IO[bytes], fsspec.open(path, "rb").open())


@contextmanager
def remote_errors(path: str) -> Iterator[None]:
    """Turn errors of fsspec (unknown protocol, missing package, refused request) into a one-line DataError."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file_error(path) from None
    except ImportError as error:
        if path.startswith(("http://", "https://")):
            requirement = 'reading URLs needs two more packages; run: pip install "headstart[url]"'
        else:
            requirement = str(error).strip().splitlines()[0]  # fsspec names the missing package
        raise DataError(f"cannot open {path}: {requirement}") from None
    except _client_errors() as error:
        reason = str(error).strip() or type(error).__name__
        raise DataError(f"cannot open {path}: {reason.splitlines()[0]}") from None


def _client_errors() -> tuple[type[Exception], ...]:
    # fsspec passes on errors of aiohttp, which is no dependency of ours and must not be imported here
    aiohttp: Any = sys.modules.get("aiohttp")
    return (ValueError, OSError, aiohttp.ClientError) if aiohttp else (ValueError, OSError)


def read_lines(path: str, file: io.BufferedReader) -> Iterator[str]:
    """Stream the lines of a UTF-8 file with their ends, without a byte order mark; only \\n ends a line."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(f"{where}: longer than {MAX_LINE_BYTES} bytes; break it into lines")
        if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{where}: UTF-16, expected UTF-8; try: {_iconv_command(path, 'utf-16')}")
        if number == 1:
            raw = raw.removeprefix(BOM)
        yield decode_utf8(raw, where, path)


def _iconv_command(path: str, encoding: str) -> str:
    """Return the command that converts a file to UTF-8; it has no file names unless the file is local."""
    command = f"iconv -f {encoding} -t utf-8"
    if is_url(path) or not Path(path).is_file():
        return command
    name, target = shlex.quote(path), f"new{suffix_of(path) or '.txt'}"
    return f"gunzip -c {name} | {command} > {target}" if is_gzip(path) else f"{command} {name} > {target}"


def decode_utf8(raw: bytes, where: str, path: str) -> str:
    """Decode strict UTF-8 without NUL; a guessed encoding would put mojibake into the training data."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        is_table = suffix_of(path) in (".csv", ".tsv")
        advice = "save it from the spreadsheet as CSV UTF-8, or, if it is" if is_table else "if it is"
        raise DataError(
            f"{where}: not UTF-8 (0x{raw[error.start]:02x} is byte {error.start + 1} of it); "
            f"{advice} Windows-1252, try: {_iconv_command(path, 'cp1252')}"
        ) from None
    if "\0" in text:
        raise DataError(f"{where}: holds a NUL byte; is it UTF-16, or not text at all?")
    return text
