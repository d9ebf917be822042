"""Labelled text as it is, faults and all: what training refuses at the first row is gathered here, row by row."""

from dataclasses import dataclass, field

from headstart.config import LabelledConfig
from headstart.data.cells import is_empty, with_columns
from headstart.data.columns import as_text, cell
from headstart.data.labelled import kind_of, label_of, names_in
from headstart.data.opening import is_marked, opened, suffix_of
from headstart.data.shards import is_shards
from headstart.data.sources import Row, expand
from headstart.errors import DataError
from headstart.kinds import Kind


@dataclass(frozen=True, slots=True)
class LooseRow:
    """A row, its place in words, and what training would refuse it for."""

    text: str
    """Of a pair both, on lines of their own."""
    label: str | None
    """In words: the one, or several with commas between them, or a number."""
    where: str
    faults: tuple[str, ...] = ()
    """Of: text empty, text unreadable, label missing, label unreadable."""
    names: tuple[str, ...] = ()
    """The labels one by one; a number is none."""
    number: float | None = None


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
    kind: Kind = "classes"
    """What the labels are for."""


def read_loosely(name: str, config: LabelledConfig) -> LooseFile:
    """Read a file, or the files of a pattern; refused is only what gives no row at all."""
    if is_shards(name):
        raise DataError(f"{name} is prepared already: its text is tokens now; give the file it was made from")
    file, is_known = LooseFile(name), False
    for path in expand([name]):
        if suffix_of(path) == ".txt":
            raise DataError(f"{path}: a .txt file has no labels; give unlabelled text with --texts")
        if suffix_of(path) != ".parquet":
            with opened(path) as raw:
                file.marked += [path] if is_marked(raw) else []
        before = len(file.rows)
        try:
            for row, names in with_columns(path, config):
                if not is_known:  # an empty cell tells nothing: that of the first row may be one
                    value = row.values.get(names[-1])
                    file.kind, is_known = kind_of(config, value), not is_empty(value)
                file.rows.append(_row(row, names, file.kind, config))
        except DataError as error:
            read = len(file.rows) - before
            if not read:  # nothing can be said about this file
                raise
            file.stopped.append(f"reading stopped at row {read + 1:,}: {error}")
    if not file.rows:
        raise DataError(f"{name} holds no rows; expected a text and a label in each")
    return file


def _row(row: Row, columns: list[str], kind: Kind, config: LabelledConfig) -> LooseRow:
    faults = []
    *text_names, label_name = columns
    texts = [""]
    try:
        texts = [as_text(cell(row.values, name, row.where), row.where) for name in text_names]
        if not all(text.strip() for text in texts):
            faults.append("text empty")
    except DataError:
        faults.append("text unreadable" if all(name in row.values for name in text_names) else "text empty")
    # a pair with one side is nothing to look for elsewhere
    text = "\n".join(texts) if "text empty" not in faults else ""
    try:
        label = label_of(cell(row.values, label_name, row.where), row.where, kind, config)
    except DataError:
        faults.append("label missing" if is_empty(row.values.get(label_name)) else "label unreadable")
        return LooseRow(text, None, row.where, tuple(faults))
    names = names_in(label)
    if kind == "rating":
        return LooseRow(text, f"{label:g}", row.where, tuple(faults), number=label)
    return LooseRow(text, ", ".join(names), row.where, tuple(faults), names)
