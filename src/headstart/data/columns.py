"""Find the text and label columns of a table, and parse the cells of its rows."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headstart.config.schema import LabelledConfig
from headstart.data.formats import Row, unread_columns
from headstart.data.io import TextEncoding, single_line, suffix_of
from headstart.data.sources import read_rows
from headstart.errors import DataError
from headstart.tasks import TaskName

TEXT_NAMES = ("text", "review", "sentence", "content", "body", "document", "comment", "message", "tweet")
LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "rating", "polarity", "stars", "y")
SKIP_HINT = ", remove it, or skip such rows with labelled.skip_empty"
"""The end of a message about a row without a text or a label."""

_MAX_PROBED_ROWS = 1000
"""Maximum number of rows that are searched for one with all columns: keys may be missing in JSON objects."""
_SENTENCE_WORDS, _SENTENCE_LENGTH = 4, 60
"""A column name of this many words or characters looks like data."""
_SIMILARITY = 0.75
"""The difflib ratio from which a name is suggested; below it, all short names are similar."""
_MAX_SHOWN = 20
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
MAX_LABEL_CHARACTERS = 1000
"""A longer label is no label: it would fill every message, table and page that names it."""
_MAX_RATING = 1e300
"""Larger numbers count as infinite, because their square is."""


@dataclass(frozen=True)
class SkippedRows:
    """Counts of the rows of a file that were skipped because a cell is empty; each row is counted once."""

    no_text: int = 0
    no_label: int = 0

    def summary(self, name: str) -> str | None:
        """Describe the skipped rows of file `name`, or return None if there are none.

        >>> SkippedRows(2, 2750).summary("mails.csv")
        '2,750 rows of mails.csv have no label, 2 no text; they are skipped'
        >>> SkippedRows(1, 0).summary("mails.csv")
        '1 row of mails.csv has no text; it is skipped'
        """
        counts = [(count, column) for count, column in ((self.no_label, "label"), (self.no_text, "text")) if count]
        if not counts:
            return None
        (first, column), others = counts[0], "".join(f", {count:,} no {column}" for count, column in counts[1:])
        start = f"{first:,} row of {name} has" if first == 1 else f"{first:,} rows of {name} have"
        end = "it is" if self.no_label + self.no_text == 1 else "they are"
        return f"{start} no {column}{others}; {end} skipped"


def resolve_columns(path: str, config: LabelledConfig) -> Iterator[tuple[Row, list[str]]]:
    """Stream the rows of a file with the names of its columns; in JSON, the first rows may not have all of them."""
    names: list[str] | None = None
    pending: list[Row] = []
    first_error: DataError | None = None
    for row in read_rows(path, with_labels=True, encoding=labelled_encoding(config)):
        if names is None:
            pending.append(row)
            try:
                names = find_columns(path, list(row.values), config)
            except DataError as error:
                first_error = first_error or error
                if len(pending) < _MAX_PROBED_ROWS and suffix_of(path) in (".jsonl", ".ndjson", ".json"):
                    continue
                raise first_error from None
            yield from ((early, names) for early in pending)
        else:
            yield row, names
    if names is None and first_error is not None:
        raise first_error


def labelled_encoding(config: LabelledConfig) -> TextEncoding:
    """Return the encoding of labelled files."""
    return TextEncoding(config.encoding, "labelled.encoding")


def find_columns(path: str, columns: list[str], config: LabelledConfig) -> list[str]:
    """Return the names of the text column, of the second text column if one is configured, and of the label column."""
    text = text_column(path, columns, config.text_column, "labelled.text_column")
    second = [] if config.second_column is None else [column_named(path, columns, config.second_column)]
    if second == [text]:
        raise DataError(
            f"{path}: '{single_line(text)}' would be both texts of a pair; name the other column with labelled.text_column"
        )
    return [text, *second, label_column(path, columns, config.label_column, text=text)]


def text_column(path: str, columns: Sequence[str], name: str | None, setting: str) -> str:
    """Return the text column: `name` if it is set, or else the first common name, or else the only column.

    Args:
        setting: the option that names the column, for the message when none can be chosen.
    """
    if len(columns) == 1 and (name is None or suffix_of(path) in (".txt", ".spm")):
        return columns[0]  # plain text has no column names; the name is for the other files of the corpus
    return _column(path, columns, name, TEXT_NAMES, "text", setting)


def label_column(path: str, columns: Sequence[str], name: str | None, *, text: str) -> str:
    """Return the label column: `name` if it is set, or else the first common name that is not the text column."""
    usual_names = [usual for usual in LABEL_NAMES if usual != text.lower()]
    return _column(path, columns, name, usual_names, "label", "labelled.label_column")


def column_named(path: str, columns: Sequence[str], name: str) -> str:
    """Return the column `name`, which must exist."""
    return _column(path, columns, name, (), "", "")


def _column(
    path: str, columns: Sequence[str], name: str | None, usual_names: Iterable[str], role: str, setting: str
) -> str:
    if name is not None:
        if name in columns:
            return name
        similar = difflib.get_close_matches(name, columns, n=1, cutoff=_SIMILARITY)
        hint = f"; did you mean '{single_line(similar[0])}'?" if similar else _missing_hint(path, columns)
        raise DataError(f"{path} has no column '{name}'; {_list_columns(columns)}{hint}")
    by_lower_name = {column.lower(): column for column in reversed(columns)}
    for usual in usual_names:
        if usual in by_lower_name:
            return by_lower_name[usual]
    raise DataError(
        f"{path} has no column with a common name for the {role}; {_list_columns(columns)}; "
        f"name one with {setting}{_missing_hint(path, columns)}"
    )


def _missing_hint(path: str, columns: Sequence[str]) -> str:
    """Name the columns of a parquet file that are not read because of their type, or suggest that the header is missing."""
    unread = list(unread_columns(path).items())[:_MAX_SHOWN]
    if not unread:
        return _header_hint(path, columns)
    shown = ", ".join(f"'{single_line(name)}' ({single_line(kind)})" for name, kind in unread)
    return f"; ignored because of their type: {shown}; store them as strings or numbers"


def _header_hint(path: str, columns: Sequence[str]) -> str:
    """Suggest that the header is missing when a column name of a table looks like a sentence."""
    is_table = suffix_of(path) in (".csv", ".tsv")
    looks_like_data = any(len(name) > _SENTENCE_LENGTH or len(name.split()) >= _SENTENCE_WORDS for name in columns)
    return "; is the header line missing?" if is_table and looks_like_data else ""


def _list_columns(columns: Sequence[str]) -> str:
    shown = ", ".join(single_line(name) or "one without a name" for name in columns[:_MAX_SHOWN])
    num_omitted = len(columns) - _MAX_SHOWN
    return f"its columns are {shown}" + (f" and {num_omitted} more" if num_omitted > 0 else "")


def is_empty_cell(value: object, task_name: TaskName | None = None) -> bool:
    """Return whether a cell is empty; for several labels, an empty string means no label and is not empty.

    >>> is_empty_cell(" "), is_empty_cell(None), is_empty_cell(float("nan")), is_empty_cell(0), is_empty_cell("", "labels")
    (True, True, True, False, False)
    """
    if isinstance(value, str):
        return task_name != "labels" and not value.strip()
    return value is None or value != value  # noqa: PLR0124 (tables hold NaN for an empty cell)


def cell_value(values: object, column: str, where: str) -> object:
    """Return a cell of a row; a JSON row may not have all keys of the first row."""
    assert isinstance(values, dict)
    if column not in values:
        keys = ", ".join(single_line(repr(name)) for name in list(values)[:_MAX_SHOWN])
        raise DataError(f"{where}: no '{single_line(column)}'; it has {keys or 'nothing'}")
    return values[column]


def parse_text(value: object, where: str) -> str:
    """Parse a cell as a text; null is the empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: the text is {single_line(repr(value))}, expected a string")
    return _checked_unicode(value, where)


def parse_label(value: object, where: str, remedy: str = SKIP_HINT) -> str:
    """Parse a cell as a label: a stripped string, an integer without a decimal point, True or False.

    Args:
        remedy: the end of the message about an empty label.
    """
    if isinstance(value, float) and math.isfinite(value):
        label = str(int(value)) if value.is_integer() else str(value)
    elif isinstance(value, str | int):
        label = str(value).strip()
    elif is_empty_cell(value):
        label = ""
    else:
        raise DataError(f"{where}: the label is {single_line(repr(value))}, expected a string or a number")
    if not label:
        raise DataError(f"{where}: the label is empty; give the row a label{remedy}")
    if len(label) > MAX_LABEL_CHARACTERS:
        raise DataError(
            f"{where}: the label has {len(label):,} characters, and may have {MAX_LABEL_CHARACTERS:,}; is this the label "
            "column? select another with labelled.label_column"
        )
    return _checked_unicode(label, where)


def parse_labels(value: object, where: str, separator: str | None) -> tuple[str, ...]:
    """Parse a cell as a sorted set of labels: a list, or a string that is split at the separator."""
    if isinstance(value, str) and separator is not None:
        items: list[object] = [item for item in value.split(separator) if item.strip()]
    elif isinstance(value, (list, tuple)):
        items = list(value)
    elif value is None:
        raise DataError(f"{where}: the labels are missing; write an empty list for a text without any{SKIP_HINT}")
    elif isinstance(value, str):
        raise DataError(
            f"{where}: the labels are {single_line(repr(value))}, expected a list; set labelled.separator to the "
            "character that separates them"
        )
    else:
        raise DataError(f"{where}: the labels are {single_line(repr(value))}, expected a list of strings or numbers")
    names = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise DataError(
                f"{where}: the labels contain {single_line(repr(item))}, expected strings or numbers in the list"
            )
        names.append(parse_label(item, where, " or remove it"))
    return tuple(sorted(set(names)))


def parse_rating(value: object, where: str, lowest: float | None, highest: float | None) -> float:
    """Parse a cell as a finite number within the configured bounds."""
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < _MAX_RATING else math.inf
    elif isinstance(value, str) and value.strip():
        try:
            number = float(value)
        except ValueError:
            hint = "; use a decimal point, not a comma" if _DECIMAL_COMMA.fullmatch(value.strip()) else ""
            raise DataError(f"{where}: the rating is {single_line(repr(value))}, expected a number{hint}") from None
    elif value is None or value == "" or isinstance(value, str):
        raise DataError(f"{where}: the rating is empty; give the row a number{SKIP_HINT}")
    else:
        raise DataError(f"{where}: the rating is {single_line(repr(value))}, expected a number")
    if not math.isfinite(number):
        raise DataError(f"{where}: the rating is {single_line(str(value))}, expected a finite number")
    if lowest is not None and number < lowest:
        raise DataError(f"{where}: the rating is {number:g}, expected {lowest:g} (labelled.lowest) or more")
    if highest is not None and number > highest:
        raise DataError(f"{where}: the rating is {number:g}, expected {highest:g} (labelled.highest) or less")
    return number


def _checked_unicode(text: str, where: str) -> str:
    # JSON can escape half of a surrogate pair (\\ud83d), which is no character and has no UTF-8
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = f"\\u{ord(text[error.start]):04x}"
            raise DataError(
                f"{where}: {surrogate} is an unpaired surrogate; was the text cut inside a character?"
            ) from None
    return text
