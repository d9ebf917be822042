"""Lenient reading of labelled files, signs of damaged text, and problems of labelled rows.

Training stops at the first row that it cannot use. For `inspect`, the faults of every row are collected. The problems of
texts and labels (`text_problems`, `label_problems`) are those that `inspect` reports and training checks first.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from headstart.config.schema import LabelledConfig
from headstart.data.columns import (
    cell_value,
    find_columns,
    is_empty_cell,
    labelled_encoding,
    parse_text,
    resolve_columns,
)
from headstart.data.formats import Row
from headstart.data.io import has_bom, open_input, single_line, suffix_of
from headstart.data.labelled import LabelledTexts, infer_task_name, labels_in_cell, parse_label_cell
from headstart.data.shards import is_shards
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import DataError
from headstart.progress import pluralize
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
        raise DataError(
            f"{name} is a prepared folder, which contains tokens and no text; use the file that it was prepared from"
        )
    file, has_task = RawFile(name), False
    for path in expand_paths([name]):
        if suffix_of(path) == ".txt":
            raise DataError(f"{path}: a .txt file has no labels; pass unlabelled text with --texts")
        if suffix_of(path) != ".parquet":
            with open_input(path, labelled_encoding(config)) as raw:
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
        raise DataError(f"{name} contains no rows; expected a text and a label in each row")
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
    # a single text of a pair is not searched for in other files
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


# problems of labelled rows

_MIN_ROWS = 20
"""Minimum number of rows for conclusions about a column."""
_MIN_ID_FRACTION = 0.9
"""A column in which at least this fraction of the cells look like ids is not a text column."""
_SAMPLED_TEXTS = 1000
"""Number of cells that are examined to classify a column."""
_MAX_LISTED = 5
_SENTENCE_WORDS = 3
"""Minimum mean number of words of a text column."""
_PLACEHOLDERS = frozenset({"nan", "none", "null", "n/a", "#n/a", "<na>", "-", "--"})
"""Common placeholders for a missing value, in lower case."""
_MAX_ID_LENGTH = 64
_CODE = re.compile(r"(?=.*\d)[A-Za-z0-9_.:#/+-]+")
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+", re.I)


@dataclass(frozen=True)
class Problem:
    """A problem of labelled rows that does not raise an error in training."""

    kind: str
    """The part of the rows that has the problem: texts or labels."""
    message: str
    rows: tuple[int, ...]
    """The indices of the rows that have the problem."""
    is_error: bool = False
    """True if a model cannot be trained on these rows."""


def check_training_rows(texts: LabelledTexts, config: LabelledConfig) -> list[str]:
    """Raise an error for rows that a model cannot be trained on, and return notes on other problems."""
    names = [labels_in_cell(label) for label in texts.labels]
    problems = chain(text_problems(texts.name, texts.texts, config), label_problems(names))
    return _notes(texts.name, problems)


def check_scored_rows(texts: LabelledTexts, config: LabelledConfig) -> list[str]:
    """Raise an error for validation or test rows whose texts are in another column, and return notes on other problems."""
    return _notes(texts.name, text_problems(texts.name, texts.texts, config, training=False))


def _notes(name: str, problems: Iterable[Problem]) -> list[str]:
    notes = []
    for problem in problems:
        if problem.is_error:
            raise DataError(f"{name}: {problem.message}")
        notes.append(f"{name}: {problem.message}")
    return notes


def text_problems(
    name: str, texts: Sequence[str], config: LabelledConfig, *, training: bool = True
) -> Iterator[Problem]:
    """Find ids in place of texts, and few different texts.

    Args:
        name: the file as the user wrote it; its other columns are read if this one holds no texts.
        training: False for validation and test rows.
    """
    all_rows = tuple(range(len(texts)))
    different = len(set(texts))
    if training and different == 1 and len(texts) > 1:
        yield Problem(
            "texts", "every row has the same text; a classifier cannot be trained on it", all_rows, is_error=True
        )
        return
    if len(texts) < _MIN_ROWS:
        return
    if 2 * different <= len(texts):
        yield Problem(
            "texts",
            f"{len(texts):,} rows have only {different:,} different texts; repeated texts add little, and "
            "the accuracy on repeated texts does not carry over to new texts",
            all_rows,
        )
    sample = texts[:: max(1, len(texts) // _SAMPLED_TEXTS)]
    if are_mostly_ids(sample):
        yield _id_problem(name, [text for text in sample if looks_like_id(text)], all_rows, config)


def are_mostly_ids(texts: Sequence[str]) -> bool:
    """Return whether nearly all of some texts are ids, numbers, dates or addresses.

    >>> are_mostly_ids(["https://example.org/a", "C-1041"]), are_mostly_ids(["C-1041", "late again"]), are_mostly_ids([])
    (True, False, False)
    """
    return bool(texts) and sum(map(looks_like_id, texts)) >= _MIN_ID_FRACTION * len(texts)


def looks_like_id(text: str) -> bool:
    """Return whether a text is an id, a number, a date or an address rather than words.

    >>> [looks_like_id(text) for text in ("C-1041", "2024-01-31 10:00", "https://example.org/a", "3.5")]
    [True, True, True, True]
    >>> [looks_like_id(text) for text in ("late again", "refund", "\u597d\u8bc4", "2 stars", ":-)")]
    [False, False, False, False, False]
    """
    text = text.strip()
    if len(text) > _MAX_ID_LENGTH:
        return bool(_ADDRESS.fullmatch(text))
    has_letter, has_digit = any(map(str.isalpha, text)), any(map(str.isdigit, text))
    return bool((has_digit and not has_letter) or _CODE.fullmatch(text) or _ADDRESS.fullmatch(text))


def _id_problem(name: str, ids: Sequence[str], rows: tuple[int, ...], config: LabelledConfig) -> Problem:
    holds = f"ids, numbers or addresses, such as '{single_line(ids[0])}', not sentences"
    columns = None if is_shards(name) else _text_columns(name, config)
    if columns is None:
        return Problem("texts", f"the texts are {holds}", rows)
    column, better = columns
    message = f"the text column '{single_line(column)}' holds {holds}"
    if better is None:
        return Problem("texts", f"{message}; is this the text column?", rows)
    suggestion = f"'{single_line(better)}' looks like the text column: select it with labelled.text_column"
    if config.text_column is not None:
        return Problem("texts", f"{message}; {suggestion}", rows)
    return Problem("texts", f"{message}; {suggestion}, or name '{single_line(column)}' to keep it", rows, is_error=True)


def _text_columns(name: str, config: LabelledConfig) -> tuple[str, str | None]:
    """Return the text column of a file, and another one that looks more like texts."""
    path = expand_paths([name])[0]
    rows = [row.values for row in islice(read_rows(path, with_labels=True), _SAMPLED_TEXTS)]
    columns = list(rows[0])
    used = find_columns(path, columns, config)
    lengths: dict[str, float] = {}
    for column in columns:
        cells = [cell for row in rows if isinstance(cell := row.get(column), str) and not looks_like_id(cell)]
        words = [len(cell.split()) for cell in cells]
        if column not in used and 2 * len(cells) >= len(rows) and sum(words) >= _SENTENCE_WORDS * len(cells):
            lengths[column] = sum(words) / len(cells)
    return used[0], max(lengths, key=lambda column: lengths[column], default=None)


def label_problems(names: Sequence[tuple[str, ...]], *, training: bool = True) -> Iterator[Problem]:
    """Find labels that are placeholders, probably misspelt, or, in training rows, too rare to learn.

    Args:
        names: the labels of each row.
        training: False for validation and test rows, where a label may be rare.
    """
    counts = Counter(name for row in names for name in row)
    for label in sorted(counts):
        if label.casefold() in _PLACEHOLDERS and len(counts) > 1:
            rows = _rows_with(names, {label})
            have = "has" if len(rows) == 1 else "have"
            yield Problem(
                "labels",
                f"{pluralize(len(rows), 'row')} {have} the label '{label}', which usually means that the label is missing; it "
                "is used as a separate label; remove these rows, or empty the cells and set labelled.skip_empty",
                rows,
            )
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in sorted(counts):
        spellings[" ".join(unicodedata.normalize("NFKC", label).casefold().split())].append(label)
    for similar in spellings.values():
        if len(similar) > 1:
            rows = _rows_with(names, set(similar[1:]))
            listed = " and ".join(f"'{single_line(name)}'" for name in similar)
            message = f"{pluralize(len(rows), 'row')} may be misspelt: {listed} are different labels"
            yield Problem("labels", message, rows)
    if training:
        yield from _rare_labels(names, counts)


def _rare_labels(names: Sequence[tuple[str, ...]], counts: Counter[str]) -> Iterator[Problem]:
    rare = sorted(label for label, count in counts.items() if count == 1)
    if not rare or len(names) < _MIN_ROWS or 2 * len(counts) > len(names):  # then the column is the problem
        return
    listed = ", ".join(f"'{single_line(label)}'" for label in rare[:_MAX_LISTED])
    listed += f" and {len(rare) - _MAX_LISTED:,} more" if len(rare) > _MAX_LISTED else ""
    have = "label has a single row" if len(rare) == 1 else "labels have a single row each"
    yield Problem(
        "labels",
        f"{len(rare):,} {have} ({listed}): a single row cannot be used for both training and validation; add "
        "rows, merge these labels with others, or remove them",
        _rows_with(names, set(rare)),
    )


def _rows_with(names: Sequence[tuple[str, ...]], labels: set[str]) -> tuple[int, ...]:
    return tuple(index for index, row in enumerate(names) if not labels.isdisjoint(row))
