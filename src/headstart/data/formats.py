"""One streaming reader a file format: a path -> rows, each knowing where it stands.

    .txt                a line is a row (or the file is)        "notes.txt, line 12"
    .csv .tsv           a record under the header               "reviews.csv, row 12" (the header is not counted)
    .jsonl .ndjson      an object a line                        "reviews.jsonl, line 12"
    .json               a list of objects, or JSON lines        "reviews.json, row 12"
    .parquet            scalar columns                          "reviews.parquet, row 12"
    .spm                SentencePiece pieces, a text a line     "train.review.spm, line 12"

Which column holds what is not decided here: see columns.py.
"""

import csv
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from headstart.data import opening
from headstart.data.opening import decoded, is_gzip, lines, one_line, opened
from headstart.data.separators import IN_WORDS, find_separator
from headstart.errors import DataError
from headstart.progress import counted

JSON_LIMIT = 4 * opening.LIMIT
"""Bytes of the largest .json list: it has to be read at once."""
_SPACE = "▁"  # SentencePiece's mark for a blank before a piece


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file: its cells by column, and its place in words."""

    values: Mapping[str, object]
    where: str


def read_txt(path: str) -> Iterator[Row]:
    """A row a line; blank lines too, so that a count of rows is a count of lines."""
    with opened(path) as file:
        for number, line in enumerate(lines(path, file), 1):
            yield Row({"text": line.rstrip("\r\n")}, f"{path}, line {number}")


def read_whole(path: str) -> Iterator[Row]:
    """The whole file as one row."""
    with opened(path) as file:
        raw = file.read(opening.LIMIT + 1)
        if len(raw) > opening.LIMIT:
            raise DataError(f"{path}: longer than {opening.LIMIT} bytes; read its lines as documents, or cut it")
        if raw:
            yield Row({"text": decoded(raw.removeprefix(b"\xef\xbb\xbf"), path, path)}, path)


def read_csv(path: str, delimiter: str | None = None) -> Iterator[Row]:
    """Records under a header, quoted as RFC 4180 says; line breaks inside quotes belong to the cell.

    Args:
        delimiter: what stands between cells; None finds it from the header, see separators.py.
    """
    # The limit belongs to the whole process and its default is too small for a long text. It is only ever raised,
    # never put back: putting it back would pull it from under another thread that is still reading.
    csv.field_size_limit(max(csv.field_size_limit(), opening.LIMIT))
    with opened(path) as file:
        source, separator = lines(path, file), delimiter
        if separator is None:
            separator, source = find_separator(source)
        feed = _Feed(path, source)
        reader = csv.reader(feed, delimiter=separator, strict=True)
        header: list[str] = []
        while (cells := _next_record(reader, feed)) is not None:
            if not cells:  # a blank line
                continue
            if not header:
                header = _checked_header(path, cells, is_tsv=delimiter is not None)
                continue
            feed.row += 1
            if len(cells) != len(header):
                shown = "" if separator == "," else f" ({IN_WORDS[separator]})"
                raise DataError(
                    f"{feed.where}: {counted(len(cells), 'cell')} where the header has {len(header)}; "
                    f'put a text that holds the separator{shown} between quotes: "..."'
                )
            yield Row(dict(zip(header, cells, strict=True)), feed.where)


class _Feed:
    """Hands lines to csv and refuses a record that never ends, as one with an open quote does."""

    def __init__(self, path: str, source: Iterator[str]) -> None:
        self.path, self.source = path, source
        self.row = 0  # rows read; the header is row 0
        self.size = 0  # characters handed out for the record being read

    @property
    def where(self) -> str:
        return f"{self.path}, row {self.row}" if self.row else f"{self.path}, header"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self.source)
        self.size += len(line)
        if self.size > opening.LIMIT:
            raise DataError(
                f"{self.path}, row {self.row + 1}: longer than {opening.LIMIT} characters; is a quote not closed?"
            )
        return line


def _next_record(reader: Iterator[list[str]], feed: _Feed) -> list[str] | None:
    feed.size = 0
    try:
        return next(reader, None)
    except csv.Error as error:
        words = str(error).split(" - ")[0]
        if words == "unexpected end of data":
            words = "the file ends inside quotes"
        raise DataError(
            f'{feed.path}, row {feed.row + 1}: {words}; a quote inside a quoted text is written twice: ""'
        ) from None


def _checked_header(path: str, cells: list[str], *, is_tsv: bool) -> list[str]:
    header = [cell.strip() for cell in cells]
    # of a .csv the separator was found: one that stands in its only name stands between quotes
    other = next((mark for mark in (";,|" if is_tsv else "|") if mark in header[0]), None)
    if len(header) == 1 and other:
        shown = {",": "commas", ";": "semicolons"}.get(other, f"'{other}'")
        wanted, some = ("tabs", "tabs") if is_tsv else ("commas, semicolons or tabs", "commas")
        fix = f"save it with {some}" if other == "|" else "call it .csv"
        raise DataError(f"{path}: its columns seem to be separated by {shown}, expected {wanted}; {fix}")
    double = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if double:
        raise DataError(f"{path}: two columns are called '{one_line(double)}'; rename one")
    return header


def read_jsonl(path: str) -> Iterator[Row]:
    """An object a line; blank lines are passed over."""
    with opened(path) as file:
        for number, line in enumerate(lines(path, file), 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield Row(_an_object(_parsed(line, where), where), where)


def read_json(path: str) -> Iterator[Row]:
    """A list of objects; a file that does not open a list is read as JSON lines, which many call .json."""
    with opened(path) as file:
        is_list = file.peek(1024)[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        raw = file.read(JSON_LIMIT + 1) if is_list else b""
    if not is_list:
        yield from read_jsonl(path)
        return
    if len(raw) > JSON_LIMIT:
        raise DataError(f"{path}: a list of more than {JSON_LIMIT} bytes; write an object a line instead (.jsonl)")
    text = decoded(raw.removeprefix(b"\xef\xbb\xbf"), path, path)
    for number, value in enumerate(_parsed(text, path), 1):
        where = f"{path}, row {number}"
        yield Row(_an_object(value, where), where)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise DataError(f"{where}: not valid JSON ({error.msg}, {place})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, or brackets nested without end
        raise DataError(f"{where}: not valid JSON ({str(error).split(';')[0]})") from None


def _an_object(value: Any, where: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    kinds = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    raise DataError(
        f'{where}: expected an object such as {{"text": "..."}}, found {kinds.get(type(value), "a number")}'
    )


def read_parquet(path: str) -> Iterator[Row]:
    """The columns of plain values; lists and bytes (vectors, pictures) are not read at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    with opened(path) as file, tempfile.TemporaryFile() as unpacked:
        if is_gzip(path):  # parquet is read from its end, a gzip stream only from its start
            shutil.copyfileobj(file, unpacked)
        try:
            table = pq.ParquetFile(unpacked if is_gzip(path) else file, page_checksum_verification=True)
            names = [field.name for field in table.schema_arrow if _is_plain(field.type)]
            for batch in table.iter_batches(batch_size=1000, columns=names):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, f"{path}, row {number}")
        except (pa.ArrowException, OSError, ValueError) as error:
            words = str(error).splitlines()[0].rstrip(". ") if str(error) else type(error).__name__
            place = f" after row {number}" if number else ""
            raise DataError(f"{path} is not whole parquet{place}: {words}") from None


def _is_plain(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return any(test(kind) for test in tests)


def read_spm(path: str) -> Iterator[Row]:
    """Texts cut into SentencePiece pieces, put together again."""
    for row in read_txt(path):
        yield Row({"text": join_pieces(str(row.values["text"]))}, row.where)


def read_spm_pairs(path: str) -> Iterator[Row]:
    """The texts of `x.review.spm` with the labels of `x.label` beside it, line by line."""
    labels = label_path(path)
    for text, label in zip_longest(read_spm(path), read_txt(labels)):
        if text is None or label is None:
            longer, shorter = (path, labels) if label is None else (labels, path)
            place = (text or label).where.removeprefix(f"{longer}, ")
            raise DataError(f"{longer}, {place}: {shorter} has no such line; the two must pair up line by line")
        yield Row({**text.values, "label": label.values["text"]}, text.where)


def label_path(path: str) -> str:
    """The file of labels beside a file of pieces.

    >>> label_path("cls/train.review.spm"), label_path("train.spm.gz")
    ('cls/train.label', 'train.label.gz')
    """
    packed = ".gz" if is_gzip(path) else ""
    stem = path.removesuffix(packed).removesuffix(".spm").removesuffix(".review")
    return f"{stem}.label{packed}"


def join_pieces(line: str) -> str:
    """The text that pieces separated by blanks stand for.

    >>> join_pieces("▁Un ▁roman ▁in oubli able .")
    'Un roman inoubliable.'
    """
    return line.replace(" ", "").replace(_SPACE, " ").strip()


READERS: dict[str, Callable[[str], Iterator[Row]]] = {
    ".txt": read_txt,
    ".csv": read_csv,
    ".tsv": partial(read_csv, delimiter="\t"),
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".spm": read_spm,
}
