"""From the rows of a file to the cells that matter: which columns hold texts and label, and which cells hold nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from headstart.config import LabelledConfig
from headstart.data.columns import column_named, label_column, text_column
from headstart.data.opening import one_line, suffix_of
from headstart.data.sources import Row, read_rows
from headstart.errors import DataError
from headstart.kinds import Kind

_PATIENCE = 1000
"""Rows that may come before the first with both columns: keys may be missing in JSON."""


@dataclass(frozen=True)
class LeftOut:
    """How many rows of a file were left out because they are not full; each is counted once."""

    no_text: int = 0
    no_label: int = 0

    def in_words(self, name: str) -> str | None:
        """A line about it, or None where every row is full.

        >>> LeftOut(2, 2750).in_words("mails.csv")
        '2,750 rows of mails.csv have no label, 2 no text; they are left out'
        >>> LeftOut(1, 0).in_words("mails.csv")
        '1 row of mails.csv has no text; it is left out'
        """
        found = [(count, what) for count, what in ((self.no_label, "label"), (self.no_text, "text")) if count]
        if not found:
            return None
        (first, what), rest = found[0], "".join(f", {count:,} no {other}" for count, other in found[1:])
        start = f"{first:,} row of {name} has" if first == 1 else f"{first:,} rows of {name} have"
        end = "it is" if self.no_label + self.no_text == 1 else "they are"
        return f"{start} no {what}{rest}; {end} left out"


def is_empty(value: object, kind: Kind | None = None) -> bool:
    """Whether a cell holds nothing; of several labels, none at all is an answer and only a missing one is nothing.

    >>> is_empty(" "), is_empty(None), is_empty(float("nan")), is_empty(0), is_empty("", "labels")
    (True, True, True, False, False)
    """
    if isinstance(value, str):
        return kind != "labels" and not value.strip()
    return value is None or value != value  # noqa: PLR0124 (NaN is what tables write for nothing)


def columns_of(path: str, columns: list[str], config: LabelledConfig) -> list[str]:
    """The column of the text, that of a second one if there is to be one, and that of the label."""
    text = text_column(path, columns, config.text_column, "labelled.text_column")
    second = [] if config.second_column is None else [column_named(path, columns, config.second_column)]
    if second == [text]:
        raise DataError(f"{path}: '{one_line(text)}' is both texts of a pair; name the other with labelled.text_column")
    return [text, *second, label_column(path, columns, config.label_column, text=text)]


def with_columns(path: str, config: LabelledConfig) -> Iterator[tuple[Row, list[str]]]:
    """Each row and the columns, where the first rows of JSON may lack a key."""
    names: list[str] | None = None
    waiting: list[Row] = []
    refusal: DataError | None = None
    for row in read_rows(path, with_labels=True):
        if names is None:
            waiting.append(row)
            try:
                names = columns_of(path, list(row.values), config)
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
