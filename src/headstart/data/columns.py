"""Which column holds the text and which the label, and what a cell of either may be."""

import difflib
import math
import re
from collections.abc import Iterable, Sequence

from headstart.data.opening import one_line, suffix_of
from headstart.errors import DataError

TEXT_NAMES = ("text", "review", "sentence", "content", "body", "document", "comment", "message", "tweet")
LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "rating", "polarity", "stars", "y")


OR_SKIP = ", remove it, or leave such rows out with labelled.skip_empty"
"""What else to do about a row without a text or a label."""
_WORDY, _LONG = 4, 60
_ALIKE = 0.75
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
        close = difflib.get_close_matches(wanted, columns, n=1, cutoff=_ALIKE)
        hint = f"; did you mean '{one_line(close[0])}'?" if close else _headless(path, columns)
        raise DataError(f"{path} has no column '{wanted}'; {_listed(columns)}{hint}")
    lower = {name.lower(): name for name in reversed(columns)}
    for name in usual:
        if name in lower:
            return lower[name]
    raise DataError(
        f"{path} has no column with a usual name for the {what}; {_listed(columns)}; "
        f"name one with {setting}{_headless(path, columns)}"
    )


def _headless(path: str, columns: Sequence[str]) -> str:
    """A question to add when the names of the columns read like a row: a sentence is no name."""
    is_table = suffix_of(path) in (".csv", ".tsv")
    reads_like_data = any(len(name) > _LONG or len(name.split()) >= _WORDY for name in columns)
    return "; is the header line missing?" if is_table and reads_like_data else ""


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in columns[:20])
    return f"its columns are {shown}" + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")


def cell(values: object, column: str, where: str) -> object:
    """The cell of a row, which in JSON may lack the key that the first row had."""
    assert isinstance(values, dict)
    if column not in values:
        found = ", ".join(one_line(repr(name)) for name in list(values)[:20])
        raise DataError(f"{where}: no '{one_line(column)}'; it has {found or 'nothing'}")
    return values[column]


def as_text(value: object, where: str) -> str:
    """A cell as a text; null is the empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: the text is {one_line(repr(value))}, expected a string")
    return _encodable(value, where)


def as_label(value: object, where: str, otherwise: str = OR_SKIP) -> str:
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
        raise DataError(f"{where}: the label is {one_line(repr(value))}, expected a string or a number")
    if not label:
        raise DataError(f"{where}: the label is empty; give the row a label{otherwise}")
    return _encodable(label, where)


def as_labels(value: object, where: str, separator: str | None) -> tuple[str, ...]:
    """A cell as any number of labels, sorted, none twice: a list, or a string that is cut at the separator."""
    if isinstance(value, str) and separator is not None:
        parts: list[object] = [part for part in value.split(separator) if part.strip()]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif value is None:
        raise DataError(f"{where}: the labels are missing; write an empty list for a text without any{OR_SKIP}")
    elif isinstance(value, str):
        raise DataError(
            f"{where}: the labels are {one_line(repr(value))}, expected a list; "
            "name what stands between them with labelled.separator"
        )
    else:
        raise DataError(f"{where}: the labels are {one_line(repr(value))}, expected a list of strings or numbers")
    names = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int, float)):
            raise DataError(f"{where}: the labels hold {one_line(repr(part))}, expected strings or numbers in the list")
        names.append(as_label(part, where, " or remove it"))
    return tuple(sorted(set(names)))


def as_rating(value: object, where: str, lowest: float | None, highest: float | None) -> float:
    """A cell as a finite number within the bounds that were named."""
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < _HUGE else math.inf
    elif isinstance(value, str) and value.strip():
        try:
            number = float(value)
        except ValueError:
            hint = "; write a point for the decimal comma" if _COMMA.fullmatch(value.strip()) else ""
            raise DataError(f"{where}: the rating is {one_line(repr(value))}, expected a number{hint}") from None
    elif value is None or value == "" or isinstance(value, str):
        raise DataError(f"{where}: the rating is empty; give the row a number{OR_SKIP}")
    else:
        raise DataError(f"{where}: the rating is {one_line(repr(value))}, expected a number")
    if not math.isfinite(number):
        raise DataError(f"{where}: the rating is {one_line(str(value))}, expected a finite number")
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
