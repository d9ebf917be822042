"""The columns of a table whose names are not usual ones, found by their contents. No torch."""

from collections.abc import Mapping, Sequence
from itertools import islice

from headstart.config.schema import LabelledConfig
from headstart.data.columns import find_columns, is_empty_cell, label_column, labelled_encoding, text_column
from headstart.data.diagnostics import are_mostly_ids
from headstart.data.io import single_line
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import DataError
from headstart.linear.vocabulary import lower, word_pattern

MAX_SAMPLED_ROWS = 2_000
MIN_TEXT_WORDS, MAX_LABEL_WORDS = 3.0, 20.0
"""Mean words of a cell: a text has at least so many, a label at most."""
MIN_DIFFERENT_TEXTS = 0.5
"""The fraction of the cells of a text column that differ."""
MIN_ROWS_PER_LABEL = 3

Cells = Mapping[str, Sequence[str]]
"""The cells of each column that are not empty."""


def choose_columns(path: str, config: LabelledConfig) -> tuple[LabelledConfig, str | None]:
    """Return the settings with the columns of a table, and a line about those that were found by their contents.

    Columns that are named in the settings, or have a usual name, are kept. A table whose contents do not decide is
    refused with the message of every other command, and the columns that could be the label.
    """
    file = expand_paths([path])[0]
    rows = [row.values for row in islice(read_rows(file, encoding=labelled_encoding(config)), MAX_SAMPLED_ROWS)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns or config.second_column is not None:
        return config, None
    try:
        find_columns(file, columns, config)
        return config, None
    except DataError:
        cells = {name: [str(row[name]) for row in rows if not is_empty_cell(row.get(name))] for name in columns}
    text = _text_column(file, cells, config)
    label = _label_column(file, cells, config, text)
    return config.model_copy(update={"text_column": text, "label_column": label}), (
        f"columns found by their contents: text '{single_line(text)}', label '{single_line(label)}' "
        f"(--text-column and --label-column select others){_header_hint(cells, label)}"
    )


def _header_hint(cells: Cells, label: str) -> str:
    """Suggest that the header is missing when the name of the label column is one of its labels."""
    return "; is the header line missing?" if label in cells[label] else ""


def _text_column(path: str, cells: Cells, config: LabelledConfig) -> str:
    """Return the column with most words, of those whose cells differ and are no ids or addresses.

    Beside a single other column, it may have fewer words than usual, such as names.
    """
    try:
        return text_column(path, list(cells), config.text_column, "labelled.text_column")
    except DataError:
        if config.text_column is not None:
            raise
        words = {
            name: mean_words(column)
            for name, column in cells.items()
            if name != config.label_column
            and len(set(column)) >= MIN_DIFFERENT_TEXTS * max(1, len(column))
            and not are_mostly_ids(column)
        }
        best = max(words, key=lambda name: words[name], default=None)
        if best is None or (words[best] < MIN_TEXT_WORDS and len(cells) > 2):
            raise
        return best


def _label_column(path: str, cells: Cells, config: LabelledConfig, text: str) -> str:
    """Return the only column whose few values are repeated."""
    try:
        return label_column(path, list(cells), config.label_column, text=text)
    except DataError as error:
        if config.label_column is not None:
            raise
        candidates = [
            name
            for name, column in cells.items()
            if name != text
            and 2 <= len(set(column)) <= max(2, len(column) // MIN_ROWS_PER_LABEL)
            and mean_words(column) <= MAX_LABEL_WORDS
        ]
        if len(candidates) != 1:
            listed = ", ".join(single_line(name) for name in candidates)
            raise DataError(f"{error}; by their contents it could be {listed}" if candidates else str(error)) from None
        return candidates[0]


def mean_words(column: Sequence[str]) -> float:
    """Return the mean number of words of some cells; a character of a script without spaces counts as one.

    >>> mean_words(["where is my refund", "退款"])
    3.0
    """
    pattern = word_pattern()
    return sum(len(pattern.findall(lower(cell))) for cell in column) / max(1, len(column))
