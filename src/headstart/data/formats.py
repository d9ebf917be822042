"""Readers and writers of csv, tsv, jsonl, json, parquet and SentencePiece files.

What stands between the cells of a .csv: found from its header line, never from later rows.

Commas, unless there is none outside quotes and there are semicolons, or else tabs: Excel writes semicolons wherever the comma
is the decimal mark. A quote opens a cell only where a cell begins, as in RFC 4180. A line `sep=;` before the header, which is
written for Excel, decides instead, and is no row.

One streaming reader a file format: a path -> rows, each knowing where it stands.

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
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, dropwhile, zip_longest
from typing import IO, Any

from headstart.data import io as opening
from headstart.data.io import decode_utf8, has_bom, is_gzip, open_input, read_lines, single_line
from headstart.errors import DataError
from headstart.progress import pluralize

SEPARATOR_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_ORDER = ",;\t"
_BOM = re.compile(f"[{_ORDER}]")
_SEP_LINE = re.compile(rf'("?)sep=([{_ORDER}])\1\r?\n?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How a table is written beside its cells."""

    separator: str = ","
    marked: bool = False
    """Whether a byte order mark stands first, by which spreadsheets know UTF-8."""
    told: bool = False
    """Whether a line such as `sep=;` stands before the header, by which Excel knows the separator."""


def detect_dialect(path: str) -> CsvDialect:
    """That of a .csv file; only its header is read."""
    with open_input(path) as file:
        marked, source = has_bom(file), dropwhile(_is_blank, read_lines(path, file))
        first = next(source, "")
        separator, _ = detect_separator(chain([first], source))
        return CsvDialect(separator, marked, told=_SEP_LINE.fullmatch(first) is not None)


def detect_separator(source: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The separator of a .csv, and its lines from the header on.

    >>> [detect_separator(iter([header]))[0] for header in ("text;label", "text,a;b", 'text;"a,b"', '"text;label"')]
    [';', ',', ';', ',']
    >>> detect_separator(iter(["sep=;\\n", "text,or not;label\\n"]))[0]
    ';'
    """
    held: list[str] = []
    source = dropwhile(_is_blank, source)
    first = next(source, "")
    if told := _SEP_LINE.fullmatch(first):
        return told[2], source
    source = chain([first], source)

    def noted() -> Iterator[str]:
        size = 0
        for line in source:
            held.append(line)
            size += len(line)
            yield line
            if size > opening.MAX_LINE_BYTES:  # a quote that is not closed, which the reader will tell
                return

    separator = _in_header(noted())
    return separator, chain(held, source)


def _is_blank(line: str) -> bool:
    return not line.strip("\r\n")


def _in_header(source: Iterable[str]) -> str:
    found: set[str] = set()
    is_quoted, at_start = False, True
    for line in source:  # several, where a name has a line break in it
        place = 0
        while place < len(line):
            if is_quoted:
                end = line.find('"', place)
                if end < 0:
                    break
                is_quoted = line.startswith('""', end)  # a quote written twice is a letter
                place = end + (2 if is_quoted else 1)
            elif at_start and line[place] == '"':
                is_quoted, at_start, place = True, False, place + 1
            elif mark := _BOM.search(line, place):
                if mark[0] == ",":
                    return ","
                found.add(mark[0])
                at_start, place = True, mark.end()
            else:
                break
        if not is_quoted:
            break
    return next((mark for mark in _ORDER if mark in found and not is_quoted), ",")


class TableWriter:
    """Writes a table that is read again as it was: in its layout, a line feed after each row."""

    def __init__(self, file: IO[str], layout: CsvDialect) -> None:
        self._file, self._layout = file, layout
        self._rows = csv.writer(self, delimiter=layout.separator)

    def write(self, line: str) -> object:
        """Take a row from csv; it would leave a carriage return without quotes were its own rows to end without one."""
        return self._file.write(line.removesuffix("\r\n") + "\n")

    def header(self, names: Sequence[str]) -> None:
        """The first row; names that hold what would be taken for the separator stand between quotes."""
        if self._layout.marked:
            self._file.write("\ufeff")
        if self._layout.told:
            self._file.write(f"sep={self._layout.separator}\n")
        earlier = _ORDER[: _ORDER.index(self._layout.separator)]
        is_misleading = any(mark in name for mark in earlier for name in names)
        quoted = csv.writer(self, delimiter=self._layout.separator, quoting=csv.QUOTE_ALL)
        (quoted if is_misleading else self._rows).writerow(names)

    def row(self, cells: Sequence[object]) -> None:
        """Any other row."""
        self._rows.writerow(cells)


JSON_LIMIT = 4 * opening.MAX_LINE_BYTES
"""Bytes of the largest .json list: it has to be read at once."""
_WORD_BOUNDARY = "▁"  # SentencePiece's mark for a blank before a piece


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file: its cells by column, and its place in words."""

    values: Mapping[str, object]
    where: str


def read_txt(path: str) -> Iterator[Row]:
    """A row a line; blank lines too, so that a count of rows is a count of lines."""
    with open_input(path) as file:
        for number, line in enumerate(read_lines(path, file), 1):
            yield Row({"text": line.rstrip("\r\n")}, f"{path}, line {number}")


def read_whole(path: str) -> Iterator[Row]:
    """The whole file as one row."""
    with open_input(path) as file:
        raw = file.read(opening.MAX_LINE_BYTES + 1)
        if len(raw) > opening.MAX_LINE_BYTES:
            raise DataError(
                f"{path}: longer than {opening.MAX_LINE_BYTES} bytes; read its lines as documents, or cut it"
            )
        if raw:
            yield Row({"text": decode_utf8(raw.removeprefix(b"\xef\xbb\xbf"), path, path)}, path)


def read_csv(path: str, delimiter: str | None = None) -> Iterator[Row]:
    """Records under a header, quoted as RFC 4180 says; line breaks inside quotes belong to the cell.

    Args:
        delimiter: what stands between cells; None finds it from the header, see separators.py.
    """
    # The limit belongs to the whole process and its default is too small for a long text. It is only ever raised,
    # never put back: putting it back would pull it from under another thread that is still reading.
    csv.field_size_limit(max(csv.field_size_limit(), opening.MAX_LINE_BYTES))
    with open_input(path) as file:
        source, separator = read_lines(path, file), delimiter
        if separator is None:
            separator, source = detect_separator(source)
        feed = _LineSource(path, source)
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
                shown = "" if separator == "," else f" ({SEPARATOR_NAMES[separator]})"
                raise DataError(
                    f"{feed.where}: {pluralize(len(cells), 'cell')} where the header has {len(header)}; "
                    f'put a text that holds the separator{shown} between quotes: "..."'
                )
            yield Row(dict(zip(header, cells, strict=True)), feed.where)


class _LineSource:
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
        if self.size > opening.MAX_LINE_BYTES:
            raise DataError(
                f"{self.path}, row {self.row + 1}: longer than {opening.MAX_LINE_BYTES} characters; is a quote not closed?"
            )
        return line


def _next_record(reader: Iterator[list[str]], feed: _LineSource) -> list[str] | None:
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
        raise DataError(f"{path}: two columns are called '{single_line(double)}'; rename one")
    return header


def read_jsonl(path: str) -> Iterator[Row]:
    """An object a line; blank lines are passed over."""
    with open_input(path) as file:
        for number, line in enumerate(read_lines(path, file), 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield Row(_an_object(_parsed(line, where), where), where)


def read_json(path: str) -> Iterator[Row]:
    """A list of objects; a file that does not open a list is read as JSON lines, which many call .json."""
    with open_input(path) as file:
        is_list = file.peek(1024)[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        raw = file.read(JSON_LIMIT + 1) if is_list else b""
    if not is_list:
        yield from read_jsonl(path)
        return
    if len(raw) > JSON_LIMIT:
        raise DataError(f"{path}: a list of more than {JSON_LIMIT} bytes; write an object a line instead (.jsonl)")
    text = decode_utf8(raw.removeprefix(b"\xef\xbb\xbf"), path, path)
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
    with open_input(path) as file, tempfile.TemporaryFile() as unpacked:
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
    return line.replace(" ", "").replace(_WORD_BOUNDARY, " ").strip()


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
