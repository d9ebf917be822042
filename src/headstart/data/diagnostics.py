"""Lenient reading of labelled files, and signs of damaged text: what `inspect` reports.

Training stops at the first row that it cannot use. Here the faults of every row are collected.
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
    """A row, its location for messages, and the faults for which training would refuse it."""

    text: str
    """The two texts of a pair are on separate lines."""
    label: str | None
    """The label, several labels separated by commas, or a number, as text."""
    where: str
    faults: tuple[str, ...] = ()
    """Any of: text empty, text unreadable, label missing, label unreadable."""
    names: tuple[str, ...] = ()
    """The labels of the row; empty for a number."""
    number: float | None = None


@dataclass
class RawFile:
    """A labelled file, as far as it can be read."""

    name: str
    """The name as the user wrote it."""
    rows: list[RawRow] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """One message for each file that could not be read to its end."""
    files_with_bom: list[str] = field(default_factory=list)
    task_name: TaskName = "classes"


def read_leniently(name: str, config: LabelledConfig) -> RawFile:
    """Read a file, or the files of a pattern; only a file without any readable row is refused."""
    if is_shards(name):
        raise DataError(f"{name} is prepared already: its text is tokens now; give the file it was made from")
    file, has_task = RawFile(name), False
    for path in expand_paths([name]):
        if suffix_of(path) == ".txt":
            raise DataError(f"{path}: a .txt file has no labels; give unlabelled text with --texts")
        if suffix_of(path) != ".parquet":
            with open_input(path) as raw:
                file.files_with_bom += [path] if has_bom(raw) else []
        num_before = len(file.rows)
        try:
            for row, names in resolve_columns(path, config):
                if not has_task:  # the task cannot be inferred from an empty cell, which the first row may have
                    value = row.values.get(names[-1])
                    file.task_name, has_task = infer_task_name(config, value), not is_empty_cell(value)
                file.rows.append(_read_row(row, names, file.task_name, config))
        except DataError as error:
            num_read = len(file.rows) - num_before
            if not num_read:
                raise
            file.stopped.append(f"reading stopped at row {num_read + 1:,}: {error}")
    if not file.rows:
        raise DataError(f"{name} holds no rows; expected a text and a label in each")
    return file


def _read_row(row: Row, columns: list[str], task_name: TaskName, config: LabelledConfig) -> RawRow:
    faults = []
    *text_names, label_name = columns
    texts = [""]
    try:
        texts = [parse_text(cell_value(row.values, name, row.where), row.where) for name in text_names]
        if not all(text.strip() for text in texts):
            faults.append("text empty")
    except DataError:
        faults.append("text unreadable" if all(name in row.values for name in text_names) else "text empty")
    # half a pair is not searched for in other files
    text = "\n".join(texts) if "text empty" not in faults else ""
    try:
        label = parse_label_cell(cell_value(row.values, label_name, row.where), row.where, task_name, config)
    except DataError:
        faults.append("label missing" if is_empty_cell(row.values.get(label_name)) else "label unreadable")
        return RawRow(text, None, row.where, tuple(faults))
    names = labels_in_cell(label)
    if task_name == "rating":
        return RawRow(text, f"{label:g}", row.where, tuple(faults), number=label)
    return RawRow(text, ", ".join(names), row.where, tuple(faults), names)


# the characters that the bytes 0x80 to 0xBF become when UTF-8 is decoded as Latin-1 or as Windows-1252
_CONTINUATION = "[\u0080-\u00bf" + "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0)) + "]"
_MOJIBAKE = (
    f"[ÂÃ]{_CONTINUATION}",  # é as Ã©, « as Â«
    f"â€{_CONTINUATION}",  # ’ as â€™
    f"(?:[Ä-ß]{_CONTINUATION}){{2,}}",  # Greek, Cyrillic; a single one may be a capital before a closing quote
    f"(?:[à-ï]{_CONTINUATION}{_CONTINUATION}){{2,}}",  # Chinese, Japanese
    f"ð{_CONTINUATION}{{3}}",  # emoji
)

ENCODING_ISSUES = {
    "mojibake": re.compile("|".join(_MOJIBAKE)),
    "replacement characters": re.compile("\ufffd"),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "byte order marks": re.compile("\ufeff"),
    "HTML": re.compile(r"</?(?:br|p|div|span|a|b|i|em|strong|li|ul)\b[^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{1,6});", re.I),
}
"""Signs that a text was decoded with the wrong encoding, or still contains markup."""


def encoding_issues(text: str) -> dict[str, str]:
    """Return the issues of a text, each with its first match.

    >>> encoding_issues("Un tr\\u00c3\\u00a8s bon livre")
    {'mojibake': 'Ã¨'}
    >>> encoding_issues("« À lire », dit-il à l'ami\\u2026 CAF\\u00c9\\u2026")
    {}
    """
    matches = {name: pattern.search(text) for name, pattern in ENCODING_ISSUES.items()}
    return {name: match.group() for name, match in matches.items() if match}
