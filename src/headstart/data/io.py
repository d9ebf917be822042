"""Open local, compressed and remote files; expand globs, folders and URLs."""

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
"""Bytes of the longest line, csv row or whole-file document: more is a broken file far more often than a text."""
MAX_INFLATION = 200
"""Times its size that a gzip file may unpack to, once that is beyond `MAX_LINE_BYTES`: text shrinks to a tenth at most."""
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".spm")
BOM = b"\xef\xbb\xbf"
KNOWN_SUFFIXES = f"{', '.join(SUFFIXES)}, each also with .gz"


def single_line(words: str, limit: int = 40) -> str:
    """What a file holds, fit for a message: no line breaks, nothing a terminal would obey, not too long.

    >>> single_line("a\\nlabel\\x1b[31m")
    'a label [31m'
    """
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in words[: 4 * limit]).split())
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def is_url(path: str) -> bool:
    """Whether fsspec must open it.

    >>> is_url("hf://datasets/me/reviews.csv"), is_url("reviews.csv")
    (True, False)
    """
    return "://" in path


def is_gzip(path: str) -> bool:
    """Whether the name says that the bytes are compressed."""
    return _without_query(path).endswith(".gz")


def suffix_of(path: str) -> str | None:
    """The suffix that says how to read a file, without .gz; None when it is not one we know.

    >>> suffix_of("a/Reviews.CSV.gz"), suffix_of("https://host/train.jsonl?download=1"), suffix_of("notes.md")
    ('.csv', '.jsonl', None)
    """
    name = _without_query(path).removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def _without_query(path: str) -> str:
    """The name in lower case, without what a URL puts behind it."""
    if is_url(path):
        path = path.split("::")[0]  # fsspec chains file systems with ::, the innermost file first
        path = path.split("#")[0].split("?")[0]
    return path.lower()


@contextmanager
def open_input(path: str) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes, uncompressed; whatever goes wrong while it is open becomes one line."""
    try:
        with ExitStack() as stack:
            file = raw = stack.enter_context(_open_raw(path))
            if is_gzip(path):
                file = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
                file = cast(IO[bytes], _GzipReader(path, file, raw))
            # a reader of our own: readline of some fsspec files ignores its limit
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
    """What gzip gives, as long as it is in proportion to what it is given."""

    def __init__(self, path: str, file: IO[bytes], packed: IO[bytes]) -> None:
        self._path, self._file, self._packed, self._size = path, cast(io.BufferedIOBase, file), packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._size += count
        if self._size > MAX_LINE_BYTES and self._size > MAX_INFLATION * self._packed.tell():
            raise DataError(
                f"{self._path} unpacks to more than {MAX_INFLATION} times its size, as no text does; unpack it yourself to read it"
            )
        return count


def has_bom(file: io.BufferedReader) -> bool:
    """Whether a file begins with the byte order mark that some programs put before UTF-8; nothing is consumed."""
    return file.peek(3)[:3] == BOM


def missing_file_error(path: str) -> DataError:
    """The error for a file that is not there, with the nearest name that is."""
    if is_url(path):
        return DataError(f"no such file: {path}")
    folder = Path(path).parent
    if not folder.is_dir():
        return DataError(f"no such file: {path} (there is no folder {folder})")
    names = sorted(entry.name for entry in folder.iterdir())
    close = difflib.get_close_matches(Path(path).name, names, n=1)
    hint = f"; did you mean {os.path.join(os.path.dirname(path), close[0])}?" if close else ""
    return DataError(f"no such file: {path}{hint}")


def _open_raw(path: str) -> IO[bytes]:
    if not is_url(path):
        return Path(path).open("rb")
    import fsspec

    with remote_errors(path):
        return cast(IO[bytes], fsspec.open(path, "rb").open())


@contextmanager
def remote_errors(path: str) -> Iterator[None]:
    """Tell in one line what keeps a URL from being opened: an unknown protocol, a package to install, a refusal."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file_error(path) from None
    except ImportError as error:
        if path.startswith(("http://", "https://")):
            needed = 'reading URLs needs two more packages; run: pip install "headstart[url]"'
        else:
            needed = str(error).strip().splitlines()[0]  # fsspec names the package it lacks
        raise DataError(f"cannot open {path}: {needed}") from None
    except _refusals() as error:
        words = str(error).strip() or type(error).__name__
        raise DataError(f"cannot open {path}: {words.splitlines()[0]}") from None


def _refusals() -> tuple[type[Exception], ...]:
    # fsspec lets the errors of the http client through; the client is not a dependency of ours, so look, do not import
    client: Any = sys.modules.get("aiohttp")
    plain = (ValueError, OSError)
    return (*plain, client.ClientError) if client else plain


def read_lines(path: str, file: io.BufferedReader) -> Iterator[str]:
    """The lines of a UTF-8 file, their ends kept, a byte order mark dropped; \\n alone ends a line."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(f"{where}: longer than {MAX_LINE_BYTES} bytes; break it into lines")
        if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{where}: UTF-16, expected UTF-8; try: {_iconv(path, 'utf-16')}")
        if number == 1:
            raw = raw.removeprefix(BOM)
        yield decode_utf8(raw, where, path)


def _iconv(path: str, encoding: str) -> str:
    """The command that makes UTF-8 of a file; what is not a file on this machine has no name to put into it."""
    command = f"iconv -f {encoding} -t utf-8"
    if is_url(path) or not Path(path).is_file():
        return command
    name, new = shlex.quote(path), f"new{suffix_of(path) or '.txt'}"
    return f"gunzip -c {name} | {command} > {new}" if is_gzip(path) else f"{command} {name} > {new}"


def decode_utf8(raw: bytes, where: str, path: str) -> str:
    """Strict UTF-8 without NUL: a wrong guess here would teach the model mojibake."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        is_table = suffix_of(path) in (".csv", ".tsv")
        advice = "save it from the spreadsheet as CSV UTF-8, or, if it is" if is_table else "if it is"
        raise DataError(
            f"{where}: not UTF-8 (0x{raw[error.start]:02x} is byte {error.start + 1} of it); "
            f"{advice} Windows-1252, try: {_iconv(path, 'cp1252')}"
        ) from None
    if "\0" in text:
        raise DataError(f"{where}: holds a NUL byte; is it UTF-16, or not text at all?")
    return text
