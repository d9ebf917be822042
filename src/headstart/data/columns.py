"""Find the text and label columns of a table, and parse its cells.

From the rows of a file to the cells that matter: which columns hold texts and label, and which cells hold nothing.

Which column holds the text and which the label, and what a cell of either may be.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headstart.config.schema import LabelledConfig
from headstart.data.formats import Row
from headstart.data.io import single_line, suffix_of
from headstart.data.sources import read_rows
from headstart.errors import DataError
from headstart.tasks import TaskName

_MAX_PROBED_ROWS = 1000
"""Rows that may come before the first with both columns: keys may be missing in JSON."""


@dataclass(frozen=True)
class SkippedRows:
    """How many rows of a file were left out because they are not full; each is counted once."""

    no_text: int = 0
    no_label: int = 0

    def in_words(self, name: str) -> str | None:
        """A line about it, or None where every row is full.

        >>> SkippedRows(2, 2750).in_words("mails.csv")
        '2,750 rows of mails.csv have no label, 2 no text; they are left out'
        >>> SkippedRows(1, 0).in_words("mails.csv")
        '1 row of mails.csv has no text; it is left out'
        """
        found = [(count, what) for count, what in ((self.no_label, "label"), (self.no_text, "text")) if count]
        if not found:
            return None
        (first, what), rest = found[0], "".join(f", {count:,} no {other}" for count, other in found[1:])
        start = f"{first:,} row of {name} has" if first == 1 else f"{first:,} rows of {name} have"
        end = "it is" if self.no_label + self.no_text == 1 else "they are"
        return f"{start} no {what}{rest}; {end} left out"


def is_empty_cell(value: object, kind: TaskName | None = None) -> bool:
    """Whether a cell holds nothing; of several labels, none at all is an answer and only a missing one is nothing.

    >>> is_empty_cell(" "), is_empty_cell(None), is_empty_cell(float("nan")), is_empty_cell(0), is_empty_cell("", "labels")
    (True, True, True, False, False)
    """
    if isinstance(value, str):
        return kind != "labels" and not value.strip()
    return value is None or value != value  # noqa: PLR0124 (NaN is what tables write for nothing)


def find_columns(path: str, columns: list[str], config: LabelledConfig) -> list[str]:
    """The column of the text, that of a second one if there is to be one, and that of the label."""
    text = text_column(path, columns, config.text_column, "labelled.text_column")
    second = [] if config.second_column is None else [column_named(path, columns, config.second_column)]
    if second == [text]:
        raise DataError(
            f"{path}: '{single_line(text)}' is both texts of a pair; name the other with labelled.text_column"
        )
    return [text, *second, label_column(path, columns, config.label_column, text=text)]


def resolve_columns(path: str, config: LabelledConfig) -> Iterator[tuple[Row, list[str]]]:
    """Each row and the columns, where the first rows of JSON may lack a key."""
    names: list[str] | None = None
    waiting: list[Row] = []
    refusal: DataError | None = None
    for row in read_rows(path, with_labels=True):
        if names is None:
            waiting.append(row)
            try:
                names = find_columns(path, list(row.values), config)
            except DataError as error:
                refusal = refusal or error
                if len(waiting) < _MAX_PROBED_ROWS and suffix_of(path) in (".jsonl", ".ndjson", ".json"):
                    continue
                raise refusal from None
            yield from ((early, names) for early in waiting)
        else:
            yield row, names
    if names is None and refusal is not None:
        raise refusal


TEXT_NAMES = ("text", "review", "sentence", "content", "body", "document", "comment", "message", "tweet")
LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "rating", "polarity", "stars", "y")


SKIP_HINT = ", remove it, or leave such rows out with labelled.skip_empty"
"""What else to do about a row without a text or a label."""
_WORDY, _LONG = 4, 60
_SIMILARITY = 0.75
"""How much of a name must be right for a guess: below it, short names are like all others."""


def text_column(path: str, columns: Sequence[str], wanted: str | None, setting: str) -> str:
    """The column of the text: the one named, else the first usual name, else the only one there is.

    Args:
        setting: what a person names the column with, for the message when it cannot be told.
    """
    if len(columns) == 1 and (wanted is None or suffix_of(path) in (".txt", ".spm")):
        return columns[0]  # plain text has no names to choose from, so a name is for the other files of the corpus
    return _column(path, columns, wanted, TEXT_NAMES, "text", setting)


def label_column(path: str, columns: Sequence[str], wanted: str | None, *, text: str) -> str:
    """The column of the label: the one named, else the first usual name besides the column of the text."""
    usual = [name for name in LABEL_NAMES if name != text.lower()]
    return _column(path, columns, wanted, usual, "label", "labelled.label_column")


def column_named(path: str, columns: Sequence[str], name: str) -> str:
    """A column that was asked for by name."""
    return _column(path, columns, name, (), "", "")


def _column(
    path: str, columns: Sequence[str], wanted: str | None, usual: Iterable[str], what: str, setting: str
) -> str:
    if wanted is not None:
        if wanted in columns:
            return wanted
        close = difflib.get_close_matches(wanted, columns, n=1, cutoff=_SIMILARITY)
        hint = f"; did you mean '{single_line(close[0])}'?" if close else _no_header_error(path, columns)
        raise DataError(f"{path} has no column '{wanted}'; {_list_columns(columns)}{hint}")
    lower = {name.lower(): name for name in reversed(columns)}
    for name in usual:
        if name in lower:
            return lower[name]
    raise DataError(
        f"{path} has no column with a usual name for the {what}; {_list_columns(columns)}; "
        f"name one with {setting}{_no_header_error(path, columns)}"
    )


def _no_header_error(path: str, columns: Sequence[str]) -> str:
    """A question to add when the names of the columns read like a row: a sentence is no name."""
    is_table = suffix_of(path) in (".csv", ".tsv")
    reads_like_data = any(len(name) > _LONG or len(name.split()) >= _WORDY for name in columns)
    return "; is the header line missing?" if is_table and reads_like_data else ""


def _list_columns(columns: Sequence[str]) -> str:
    shown = ", ".join(single_line(name) for name in columns[:20])
    return f"its columns are {shown}" + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")


def cell_value(values: object, column: str, where: str) -> object:
    """The cell of a row, which in JSON may lack the key that the first row had."""
    assert isinstance(values, dict)
    if column not in values:
        found = ", ".join(single_line(repr(name)) for name in list(values)[:20])
        raise DataError(f"{where}: no '{single_line(column)}'; it has {found or 'nothing'}")
    return values[column]


def parse_text(value: object, where: str) -> str:
    """A cell as a text; null is the empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: the text is {single_line(repr(value))}, expected a string")
    return _encodable(value, where)


def parse_label(value: object, where: str, otherwise: str = SKIP_HINT) -> str:
    """A cell as a label: a string without blanks around it, a whole number without its point, True or False.

    Args:
        otherwise: what else to do about an empty one.
    """
    if isinstance(value, float) and math.isfinite(value):
        label = str(int(value)) if value.is_integer() else str(value)
    elif isinstance(value, str | int):
        label = str(value).strip()
    elif value is None or isinstance(value, float):
        label = ""
    else:
        raise DataError(f"{where}: the label is {single_line(repr(value))}, expected a string or a number")
    if not label:
        raise DataError(f"{where}: the label is empty; give the row a label{otherwise}")
    return _encodable(label, where)


def parse_labels(value: object, where: str, separator: str | None) -> tuple[str, ...]:
    """A cell as any number of labels, sorted, none twice: a list, or a string that is cut at the separator."""
    if isinstance(value, str) and separator is not None:
        parts: list[object] = [part for part in value.split(separator) if part.strip()]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif value is None:
        raise DataError(f"{where}: the labels are missing; write an empty list for a text without any{SKIP_HINT}")
    elif isinstance(value, str):
        raise DataError(
            f"{where}: the labels are {single_line(repr(value))}, expected a list; "
            "name what stands between them with labelled.separator"
        )
    else:
        raise DataError(f"{where}: the labels are {single_line(repr(value))}, expected a list of strings or numbers")
    names = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int, float)):
            raise DataError(
                f"{where}: the labels hold {single_line(repr(part))}, expected strings or numbers in the list"
            )
        names.append(parse_label(part, where, " or remove it"))
    return tuple(sorted(set(names)))


def parse_rating(value: object, where: str, lowest: float | None, highest: float | None) -> float:
    """A cell as a finite number within the bounds that were named."""
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < _HUGE else math.inf
    elif isinstance(value, str) and value.strip():
        try:
            number = float(value)
        except ValueError:
            hint = "; write a point for the decimal comma" if _COMMA.fullmatch(value.strip()) else ""
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


_COMMA = re.compile(r"[+-]?\d+,\d+")
_HUGE = 1e300
"""Beyond this a number is as good as infinite: its square is."""


def _encodable(text: str, where: str) -> str:
    # JSON can spell half of a surrogate pair (\\ud83d), which is no character and has no UTF-8
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise DataError(f"{where}: {half} is half of a character; was the text cut in the middle of one?") from None
    return text
