"""Lenient reading and encoding problems, for `inspect`.

Labelled text as it is, faults and all: what training refuses at the first row is gathered here, row by row.

Signs that a text was damaged on its way: read in the wrong encoding, or with markup left in.
"""

import re
from dataclasses import dataclass, field

from headstart.config.schema import LabelledConfig
from headstart.data.columns import cell_value, is_empty_cell, parse_text, resolve_columns
from headstart.data.formats import Row
from headstart.data.io import has_bom, open_input, suffix_of
from headstart.data.labelled import infer_task_name, labels_in_cell, parse_label_cell
from headstart.data.shards import is_shards
from headstart.data.sources import expand_paths
from headstart.errors import DataError
from headstart.tasks import TaskName


@dataclass(frozen=True, slots=True)
class RawRow:
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
class RawFile:
    """A file of labelled text, as far as it can be read."""

    name: str
    """As the user wrote it."""
    rows: list[RawRow] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """Why reading a file ended before its end, one message a file."""
    marked: list[str] = field(default_factory=list)
    """Files that begin with a byte order mark."""
    kind: TaskName = "classes"
    """What the labels are for."""


def read_leniently(name: str, config: LabelledConfig) -> RawFile:
    """Read a file, or the files of a pattern; refused is only what gives no row at all."""
    if is_shards(name):
        raise DataError(f"{name} is prepared already: its text is tokens now; give the file it was made from")
    file, is_known = RawFile(name), False
    for path in expand_paths([name]):
        if suffix_of(path) == ".txt":
            raise DataError(f"{path}: a .txt file has no labels; give unlabelled text with --texts")
        if suffix_of(path) != ".parquet":
            with open_input(path) as raw:
                file.marked += [path] if has_bom(raw) else []
        before = len(file.rows)
        try:
            for row, names in resolve_columns(path, config):
                if not is_known:  # an empty cell tells nothing: that of the first row may be one
                    value = row.values.get(names[-1])
                    file.kind, is_known = infer_task_name(config, value), not is_empty_cell(value)
                file.rows.append(_row(row, names, file.kind, config))
        except DataError as error:
            read = len(file.rows) - before
            if not read:  # nothing can be said about this file
                raise
            file.stopped.append(f"reading stopped at row {read + 1:,}: {error}")
    if not file.rows:
        raise DataError(f"{name} holds no rows; expected a text and a label in each")
    return file


def _row(row: Row, columns: list[str], kind: TaskName, config: LabelledConfig) -> RawRow:
    faults = []
    *text_names, label_name = columns
    texts = [""]
    try:
        texts = [parse_text(cell_value(row.values, name, row.where), row.where) for name in text_names]
        if not all(text.strip() for text in texts):
            faults.append("text empty")
    except DataError:
        faults.append("text unreadable" if all(name in row.values for name in text_names) else "text empty")
    # a pair with one side is nothing to look for elsewhere
    text = "\n".join(texts) if "text empty" not in faults else ""
    try:
        label = parse_label_cell(cell_value(row.values, label_name, row.where), row.where, kind, config)
    except DataError:
        faults.append("label missing" if is_empty_cell(row.values.get(label_name)) else "label unreadable")
        return RawRow(text, None, row.where, tuple(faults))
    names = labels_in_cell(label)
    if kind == "rating":
        return RawRow(text, f"{label:g}", row.where, tuple(faults), number=label)
    return RawRow(text, ", ".join(names), row.where, tuple(faults), names)


# what the bytes 0x80 to 0xBF become when UTF-8 is read as Latin-1 or as Windows-1252
_LEFTOVERS = "[\u0080-\u00bf" + "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0)) + "]"
_MOJIBAKE = (
    f"[ÂÃ]{_LEFTOVERS}",  # é as Ã©, « as Â«
    f"â€{_LEFTOVERS}",  # ’ as â€™
    f"(?:[Ä-ß]{_LEFTOVERS}){{2,}}",  # Greek, Cyrillic; once may be a capital before a closing quote
    f"(?:[à-ï]{_LEFTOVERS}{_LEFTOVERS}){{2,}}",  # Chinese, Japanese
    f"ð{_LEFTOVERS}{{3}}",  # emoji
)

ENCODING_ISSUES = {
    "mojibake": re.compile("|".join(_MOJIBAKE)),
    "replacement characters": re.compile("\ufffd"),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "byte order marks": re.compile("\ufeff"),
    "HTML": re.compile(r"</?(?:br|p|div|span|a|b|i|em|strong|li|ul)\b[^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{1,6});", re.I),
}
"""What may be wrong with a text, and how it shows."""


def encoding_issues(text: str) -> dict[str, str]:
    """What is odd about a text, each with the first place it shows.

    >>> encoding_issues("Un tr\\u00c3\\u00a8s bon livre")
    {'mojibake': 'Ã¨'}
    >>> encoding_issues("« À lire », dit-il à l'ami\\u2026 CAF\\u00c9\\u2026")
    {}
    """
    found = {name: pattern.search(text) for name, pattern in ENCODING_ISSUES.items()}
    return {name: match.group() for name, match in found.items() if match}
