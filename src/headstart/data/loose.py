"""Labelled text as it is, faults and all: what training refuses at the first row is gathered here, row by row."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headstart.config import LabelledConfig
from headstart.data.columns import as_label, as_text, cell, label_column, text_column
from headstart.data.opening import opened, suffix_of
from headstart.data.shards import is_shards
from headstart.data.sources import Row, expand, read_rows
from headstart.errors import DataError

_PATIENCE = 1000
"""Rows that may come before the first with both columns: keys may be missing in JSON."""


@dataclass(frozen=True, slots=True)
class LooseRow:
    """A row, its place in words, and what training would refuse it for."""

    text: str
    label: str | None
    where: str
    faults: tuple[str, ...] = ()
    """Of: text empty, text unreadable, label missing, label unreadable."""


@dataclass
class LooseFile:
    """A file of labelled text, as far as it can be read."""

    name: str
    """As the user wrote it."""
    rows: list[LooseRow] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """Why reading a file ended before its end, one message a file."""
    marked: list[str] = field(default_factory=list)
    """Files that begin with a byte order mark."""


def read_loosely(name: str, config: LabelledConfig) -> LooseFile:
    """Read a file, or the files of a pattern; refused is only what gives no row at all."""
    if is_shards(name):
        raise DataError(f"{name} is prepared already: its text is tokens now; give the file it was made from")
    file = LooseFile(name)
    for path in expand([name]):
        if suffix_of(path) == ".txt":
            raise DataError(f"{path}: a .txt file has no labels; give unlabelled text with --texts")
        if suffix_of(path) != ".parquet":
            with opened(path) as raw:
                if raw.peek(3)[:3] == b"\xef\xbb\xbf":
                    file.marked.append(path)
        before = len(file.rows)
        try:
            for row, names in _with_columns(path, config):
                file.rows.append(_row(row, *names))
        except DataError as error:
            if len(file.rows) == before:  # nothing can be said about this file
                raise
            file.stopped.append(str(error))
    if not file.rows:
        raise DataError(f"{name} holds no rows; expected a text and a label in each")
    return file


def _with_columns(path: str, config: LabelledConfig) -> Iterator[tuple[Row, tuple[str, str]]]:
    names: tuple[str, str] | None = None
    waiting: list[Row] = []
    refusal: DataError | None = None
    for row in read_rows(path, with_labels=True):
        if names is None:
            waiting.append(row)
            try:
                columns = list(row.values)
                text = text_column(path, columns, config.text_column, "labelled.text_column")
                names = text, label_column(path, columns, config.label_column, text=text)
            except DataError as error:
                refusal = refusal or error
                if len(waiting) < _PATIENCE and suffix_of(path) in (".jsonl", ".ndjson", ".json"):
                    continue
                raise refusal from None
            yield from ((early, names) for early in waiting)
        else:
            yield row, names
    if names is None and refusal is not None:
        raise refusal


def _row(row: Row, text_name: str, label_name: str) -> LooseRow:
    faults = []
    text, label = "", None
    try:
        text = as_text(cell(row.values, text_name, row.where), row.where)
        if not text.strip():
            faults.append("text empty")
    except DataError:
        faults.append("text unreadable" if text_name in row.values else "text empty")
    try:
        label = as_label(cell(row.values, label_name, row.where), row.where)
    except DataError:
        value = row.values.get(label_name)
        is_missing = value is None or value != value or not str(value).strip()  # noqa: PLR0124 (NaN is no label)
        faults.append("label missing" if is_missing else "label unreadable")
    return LooseRow(text, label, row.where, tuple(faults))
