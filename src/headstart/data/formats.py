"""Streaming readers of text, csv, tsv, jsonl, json, parquet and SentencePiece files, and a writer of csv.

A reader yields the rows of a file, each with its location for messages:

    .txt                a line is a row (or the file is)        "notes.txt, line 12"
    .csv .tsv           a record under the header               "reviews.csv, row 12" (the header is not counted)
    .jsonl .ndjson      an object per line                      "reviews.jsonl, line 12"
    .json               a list of objects, or JSON lines        "reviews.json, row 12"
    .parquet            scalar columns                          "reviews.parquet, row 12"
    .spm                SentencePiece pieces, a text per line   "train.review.spm, line 12"

The separator of a .csv file is detected from its header line only. It is a comma, unless the header has none outside
quotes but has semicolons, or else tabs: Excel writes semicolons wherever the comma is the decimal mark. A quote opens a
cell only at the start of a cell, as in RFC 4180. A line `sep=;` before the header, which is written for Excel, takes
precedence and is no row.

columns.py decides which column holds the text and which the label.
"""

import csv
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, dropwhile, zip_longest
from typing import IO, Any

from headstart.data import io as data_io
from headstart.data.io import (
    UTF_8,
    TextEncoding,
    decode_utf8,
    has_bom,
    is_gzip,
    is_url,
    open_input,
    read_lines,
    single_line,
)
from headstart.errors import DataError
from headstart.progress import pluralize

SEPARATOR_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
JSON_LIMIT = 4 * data_io.MAX_LINE_BYTES
"""Bytes of the largest .json list, which has to be read at once."""

_SEPARATORS = ",;\t"
"""In order of precedence."""
_SEPARATOR = re.compile(f"[{_SEPARATORS}]")
_SEP_LINE = re.compile(rf'("?)sep=([{_SEPARATORS}])\1\r?\n?', re.IGNORECASE)
_WORD_BOUNDARY = "▁"  # SentencePiece's mark for a blank before a piece


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row by column, and its location for messages."""

    values: Mapping[str, object]
    where: str


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The layout of a .csv file."""

    separator: str = ","
    has_bom: bool = False
    """The file begins with a byte order mark, by which spreadsheets recognise UTF-8."""
    has_sep_line: bool = False
    """A line such as `sep=;` comes before the header, which sets the separator for Excel."""


def detect_dialect(path: str, encoding: TextEncoding = UTF_8) -> CsvDialect:
    """Detect the dialect of a .csv file from its header; one in another encoding gets a byte order mark as UTF-8."""
    with open_input(path, encoding) as file:
        starts_with_bom = has_bom(file) or encoding.name is not None
        lines = dropwhile(_is_blank, read_lines(path, file, encoding))
        first = next(lines, "")
        separator, _ = detect_separator(chain([first], lines))
        return CsvDialect(separator, starts_with_bom, has_sep_line=_SEP_LINE.fullmatch(first) is not None)


def detect_separator(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the separator of a .csv file, and its lines from the header on.

    >>> [detect_separator(iter([header]))[0] for header in ("text;label", "text,a;b", 'text;"a,b"', '"text;label"')]
    [';', ',', ';', ',']
    >>> detect_separator(iter(["sep=;\\n", "text,or not;label\\n"]))[0]
    ';'
    """
    consumed: list[str] = []
    lines = dropwhile(_is_blank, lines)
    first = next(lines, "")
    if sep_line := _SEP_LINE.fullmatch(first):
        return sep_line[2], lines
    lines = chain([first], lines)

    def header_lines() -> Iterator[str]:
        size = 0
        for line in lines:
            consumed.append(line)
            size += len(line)
            yield line
            if size > data_io.MAX_LINE_BYTES:  # an open quote, which the reader reports
                return

    separator = _header_separator(header_lines())
    return separator, chain(consumed, lines)


def _is_blank(line: str) -> bool:
    return not line.strip("\r\n")


def _header_separator(lines: Iterable[str]) -> str:
    separators: set[str] = set()
    is_quoted, at_start = False, True
    for line in lines:  # the header has several lines if a name contains a line break
        position = 0
        while position < len(line):
            if is_quoted:
                end = line.find('"', position)
                if end < 0:
                    break
                is_quoted = line.startswith('""', end)  # a doubled quote is a literal quote
                position = end + (2 if is_quoted else 1)
            elif at_start and line[position] == '"':
                is_quoted, at_start, position = True, False, position + 1
            elif match := _SEPARATOR.search(line, position):
                if match[0] == ",":
                    return ","
                separators.add(match[0])
                at_start, position = True, match.end()
            else:
                break
        if not is_quoted:
            break
    return next((separator for separator in _SEPARATORS if separator in separators and not is_quoted), ",")


class TableWriter:
    """Writes a table in a dialect, so that `read_csv` reads the same cells; rows end with a line feed."""

    def __init__(self, file: IO[str], dialect: CsvDialect) -> None:
        self._file, self._dialect = file, dialect
        self._writer = csv.writer(self, delimiter=dialect.separator)

    def write(self, line: str) -> object:
        """Write a line of `csv.writer`, which quotes carriage returns only if its own line ends contain one."""
        return self._file.write(line.removesuffix("\r\n") + "\n")

    def header(self, names: Sequence[str]) -> None:
        """Write the header; it is quoted if a name contains a character that would be detected as the separator."""
        if self._dialect.has_bom:
            self._file.write("\ufeff")
        if self._dialect.has_sep_line:
            self._file.write(f"sep={self._dialect.separator}\n")
        preferred = _SEPARATORS[: _SEPARATORS.index(self._dialect.separator)]
        is_misleading = any(separator in name for separator in preferred for name in names)
        quoted = csv.writer(self, delimiter=self._dialect.separator, quoting=csv.QUOTE_ALL)
        (quoted if is_misleading else self._writer).writerow(names)

    def row(self, cells: Sequence[object]) -> None:
        """Write a row below the header."""
        self._writer.writerow(cells)


def read_txt(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read a row per line, blank lines included, so that row numbers are line numbers."""
    with open_input(path, encoding) as file:
        for number, line in enumerate(read_lines(path, file, encoding), 1):
            yield Row({"text": line.rstrip("\r\n")}, f"{path}, line {number}")


def read_file_as_row(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read a file as one row."""
    with open_input(path, encoding) as file:
        raw = file.read(data_io.MAX_LINE_BYTES + 1)
        if len(raw) > data_io.MAX_LINE_BYTES:
            raise DataError(
                f"{path}: longer than {data_io.MAX_LINE_BYTES} bytes; read its lines as documents, or split the file"
            )
        if raw:
            yield Row({"text": decode_utf8(raw.removeprefix(b"\xef\xbb\xbf"), path, path, encoding)}, path)


def read_csv(path: str, encoding: TextEncoding = UTF_8, delimiter: str | None = None) -> Iterator[Row]:
    """Read records under a header, quoted as in RFC 4180; line breaks inside quotes belong to the cell.

    Args:
        delimiter: the separator of cells; None detects it from the header.
    """
    # The limit is global and its default is too small for a long text. It is raised and never restored, because
    # another thread may still be reading.
    csv.field_size_limit(max(csv.field_size_limit(), data_io.MAX_LINE_BYTES))
    with open_input(path, encoding) as file:
        lines, separator = read_lines(path, file, encoding), delimiter
        if separator is None:
            separator, lines = detect_separator(lines)
        source = _LineSource(path, lines)
        reader = csv.reader(source, delimiter=separator, strict=True)
        header: list[str] = []
        while (cells := _next_record(reader, source)) is not None:
            if not cells:  # a blank line
                continue
            if not header:
                header = _checked_header(path, cells, is_tsv=delimiter is not None)
                continue
            source.row += 1
            if len(cells) != len(header):
                shown = "" if separator == "," else f" ({SEPARATOR_NAMES[separator]})"
                raise DataError(
                    f"{source.where}: {pluralize(len(cells), 'cell')}, but the header has {len(header)}; "
                    f'put quotes around a text that contains the separator{shown}: "..."'
                )
            yield Row(dict(zip(header, cells, strict=True)), source.where)


class _LineSource:
    """An iterator of lines for `csv.reader` that refuses an endless record, such as one with an open quote."""

    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self.path, self.lines = path, lines
        self.row = 0  # the current row; the header is row 0
        self.record_size = 0  # characters of the current record

    @property
    def where(self) -> str:
        return f"{self.path}, row {self.row}" if self.row else f"{self.path}, header"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.record_size += len(line)
        if self.record_size > data_io.MAX_LINE_BYTES:
            raise DataError(
                f"{self.path}, row {self.row + 1}: longer than {data_io.MAX_LINE_BYTES} characters; is a quote not closed?"
            )
        return line


def _next_record(reader: Iterator[list[str]], source: _LineSource) -> list[str] | None:
    source.record_size = 0
    try:
        return next(reader, None)
    except csv.Error as error:
        reason = str(error).split(" - ")[0]
        if reason == "unexpected end of data":
            reason = "the file ends inside quotes"
        if reason == "new-line character seen in unquoted field":
            raise DataError(
                f"{source.path}, row {source.row + 1}: a line ends with a carriage return (CR) alone, which is "
                "not supported; save the spreadsheet as CSV UTF-8"
            ) from None
        raise DataError(
            f'{source.path}, row {source.row + 1}: {reason}; a quote inside a quoted text is written twice: ""'
        ) from None


def _checked_header(path: str, cells: list[str], *, is_tsv: bool) -> list[str]:
    header = [cell.strip() for cell in cells]
    # the separator of a .csv was detected, so a comma or a semicolon in its only name is quoted
    wrong_separator = next((mark for mark in (";,|" if is_tsv else "|") if mark in header[0]), None)
    if len(header) == 1 and wrong_separator:
        shown = {",": "commas", ";": "semicolons"}.get(wrong_separator, f"'{wrong_separator}'")
        expected, replacement = ("tabs", "tabs") if is_tsv else ("commas, semicolons or tabs", "commas")
        fix = f"save it with {replacement}" if wrong_separator == "|" else "call it .csv"
        raise DataError(f"{path}: columns appear to be separated by {shown}, expected {expected}; {fix}")
    refuse_duplicate_names(path, header)
    return header


def refuse_duplicate_names(path: str, names: Sequence[str]) -> None:
    """Refuse a table with two columns of one name; columns without a name may be several."""
    duplicate = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if duplicate:
        raise DataError(f"{path}: two columns are called '{single_line(duplicate)}'; rename one")


def read_jsonl(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read an object per line; blank lines are skipped."""
    with open_input(path, encoding) as file:
        for number, line in enumerate(read_lines(path, file, encoding), 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield Row(_checked_object(_parse_json(line, where), where), where)


def read_json_rows(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read a list of objects; a file that does not begin a list is read as JSON lines, which are often named .json."""
    with open_input(path, encoding) as file:
        is_list = file.peek(1024)[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        raw = file.read(JSON_LIMIT + 1) if is_list else b""
    if not is_list:
        yield from read_jsonl(path, encoding)
        return
    if len(raw) > JSON_LIMIT:
        raise DataError(f"{path}: a list of more than {JSON_LIMIT} bytes; write one object per line instead (.jsonl)")
    text = decode_utf8(raw.removeprefix(b"\xef\xbb\xbf"), path, path, encoding)
    for number, value in enumerate(_parse_json(text, path), 1):
        where = f"{path}, row {number}"
        yield Row(_checked_object(value, where), where)


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise DataError(f"{where}: not valid JSON ({error.msg}, {position})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, or brackets nested too deeply
        raise DataError(f"{where}: not valid JSON ({str(error).split(';')[0]})") from None


def _checked_object(value: Any, where: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    type_names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    raise DataError(
        f'{where}: expected an object such as {{"text": "..."}}, found {type_names.get(type(value), "a number")}'
    )


def read_parquet(path: str, _encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read the columns of scalars, whose text is always UTF-8; lists and bytes (vectors, images) are not read at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    with open_input(path) as file, tempfile.TemporaryFile() as unpacked:
        if is_gzip(path):  # parquet is read from its end, which a gzip stream does not support
            shutil.copyfileobj(file, unpacked)
        try:
            table = pq.ParquetFile(unpacked if is_gzip(path) else file, page_checksum_verification=True)
            refuse_duplicate_names(path, table.schema_arrow.names)
            names = [field.name for field in table.schema_arrow if _is_scalar(field.type)]
            for batch in table.iter_batches(batch_size=1000, columns=names):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, f"{path}, row {number}")
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(". ") if str(error) else type(error).__name__
            position = f" after row {number}" if number else ""
            raise DataError(f"{path} is not a complete parquet file{position}: {reason}") from None


def unread_columns(path: str) -> dict[str, str]:
    """Return the columns of a parquet file that `read_parquet` does not read, with their types; none of other files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if is_url(path) or not path.lower().endswith(".parquet"):
        return {}
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError):
        return {}
    return {field.name: str(field.type) for field in schema if not _is_scalar(field.type)}


def _is_scalar(arrow_type: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    strings = (types.is_string, types.is_large_string, types.is_string_view)
    tests = (*strings, types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return any(test(arrow_type) for test in tests)


def read_spm(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read texts that are split into SentencePiece pieces, and join the pieces."""
    for row in read_txt(path, encoding):
        yield Row({"text": join_pieces(str(row.values["text"]))}, row.where)


def read_spm_pairs(path: str, encoding: TextEncoding = UTF_8) -> Iterator[Row]:
    """Read the texts of `x.review.spm` with the labels of `x.label` beside it, line by line."""
    labels = label_path(path)
    for text, label in zip_longest(read_spm(path, encoding), read_txt(labels, encoding)):
        if text is None or label is None:
            longer, shorter = (path, labels) if label is None else (labels, path)
            line = (text or label).where.removeprefix(f"{longer}, ")
            raise DataError(
                f"{longer}, {line}: {shorter} has no such line; the two files must have the same number of lines"
            )
        yield Row({**text.values, "label": label.values["text"]}, text.where)


def label_path(path: str) -> str:
    """Return the path of the label file beside a file of pieces.

    >>> label_path("cls/train.review.spm"), label_path("train.spm.gz")
    ('cls/train.label', 'train.label.gz')
    """
    gz = ".gz" if is_gzip(path) else ""
    stem = path.removesuffix(gz).removesuffix(".spm").removesuffix(".review")
    return f"{stem}.label{gz}"


def join_pieces(line: str) -> str:
    """Join pieces that are separated by blanks.

    >>> join_pieces("▁Un ▁roman ▁in oubli able .")
    'Un roman inoubliable.'
    """
    return line.replace(" ", "").replace(_WORD_BOUNDARY, " ").strip()


READERS: dict[str, Callable[[str, TextEncoding], Iterator[Row]]] = {
    ".txt": read_txt,
    ".csv": read_csv,
    ".tsv": partial(read_csv, delimiter="\t"),
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json_rows,
    ".parquet": read_parquet,
    ".spm": read_spm,
}
