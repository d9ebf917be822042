"""Labelled texts: reading files, inferring the task, splitting off validation rows and choosing label budgets."""

import difflib
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from headstart.config.schema import LabelledConfig
from headstart.data.columns import (
    SKIP_HINT,
    SkippedRows,
    cell_value,
    find_columns,
    is_empty_cell,
    labelled_encoding,
    parse_label,
    parse_labels,
    parse_rating,
    parse_text,
    resolve_columns,
)
from headstart.data.formats import Row
from headstart.data.hashing import text_digest
from headstart.data.io import single_line, suffix_of
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import DataError
from headstart.metrics import number_bins
from headstart.tasks import Label, MultiLabel, Regression, SingleLabel, Task, TaskName, TextInput

_MIN_ROWS = 20
"""With at least this many rows, more labels than half of the rows mean a wrong label column."""
_IMBALANCE_RATIO = 3.0
"""A note is printed if the most frequent label is at least this many times as frequent as the rarest."""
_SEPARATORS = ("|", ";", ",", "/", "+")
_MIN_JOINED_FRACTION = 0.05
"""The fraction of rows that must join known labels by a separator before a hint is given."""
_RATING_NAMES = ("rating", "stars", "score")
_MIN_SCALE_POINTS = 4
"""With at least this many different integers, labels are a scale rather than names of two or three classes."""


@dataclass(frozen=True)
class LabelledTexts:
    """Rows of a labelled file, in file order."""

    name: str
    """The file name as the user wrote it."""
    texts: tuple[str, ...]
    """The two texts of a pair are joined by a line break; duplicate search, digests and linear models read this."""
    labels: tuple[Label, ...]
    where: tuple[str, ...]
    """The location of each row, for messages."""
    task_name: TaskName = "classes"
    pairs: tuple[tuple[str, str], ...] | None = None
    """The two texts of each row, when rows are pairs."""
    skip_note: str | None = None
    """A message with the number of rows that were skipped because they have no text or no label; None if there are none."""
    label_name: str = field(default="", compare=False)
    """The name of the label column."""

    @property
    def text_inputs(self) -> tuple[TextInput, ...]:
        """The model input of each row."""
        return self.pairs or self.texts

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def sha256(self) -> str:
        """A hash of the rows, not of the file: the same rows have the same hash in every format."""
        digest = hashlib.sha256()
        for row in zip(self.text_inputs, self.labels, strict=True):
            digest.update(json.dumps(row).encode("ascii") + b"\n")
        return digest.hexdigest()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """The digest of each text; exact duplicates have equal digests."""
        return tuple(text_digest(text) for text in self.texts)

    def counts(self) -> dict[str, int]:
        """Count the rows of each label, sorted by label; ratings have none."""
        return dict(sorted(Counter(name for label in self.labels for name in labels_in_cell(label)).items()))

    def strata(self) -> list[str]:
        """Return the stratum of each row: its label, the rarest of its labels, or the quartile of its number."""
        if self.task_name == "classes":
            return list(self.labels)
        if self.task_name == "rating":
            return number_bins(self.labels)[0]
        counts = self.counts()
        return [min(names, key=lambda name: (counts[name], name), default="") for names in self.labels]

    def take(self, indices: Iterable[int]) -> "LabelledTexts":
        """Return the rows at `indices`, in that order."""
        rows = list(indices)
        texts, labels, where = (
            tuple(column[index] for index in rows) for column in (self.texts, self.labels, self.where)
        )
        pairs = None if self.pairs is None else tuple(self.pairs[index] for index in rows)
        return replace(self, texts=texts, labels=labels, where=where, pairs=pairs)


def labels_in_cell(label: Label) -> tuple[str, ...]:
    """Return the label names of a row.

    >>> labels_in_cell("a"), labels_in_cell(("a", "b")), labels_in_cell(3.5)
    (('a',), ('a', 'b'), ())
    """
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, str) else ()


def infer_task_name(config: LabelledConfig, value: object) -> TaskName:
    """Return the configured task, else `labels` if the cell is a list or a separator is set, else `classes`."""
    if config.task != "auto":
        return config.task
    return "labels" if config.separator is not None or isinstance(value, (list, tuple)) else "classes"


def parse_label_cell(value: object, where: str, task_name: TaskName, config: LabelledConfig) -> Label:
    """Parse a label cell as the task requires."""
    if task_name == "labels":
        return parse_labels(value, where, config.separator)
    if task_name == "rating":
        return parse_rating(value, where, config.lowest, config.highest)
    return parse_label(value, where)


def read_labelled(path: str, config: LabelledConfig) -> LabelledTexts:
    """Read one file, or the files of one pattern as a single one.

    A row without a text or a label is refused, or skipped and counted if `config.skip_empty` is set.
    """
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder; labelled text must be one file, or a pattern such as {Path(path) / 'train-*.csv'}"
        )
    texts: list[tuple[str, ...]] = []
    labels: list[Label] = []
    where: list[str] = []
    task_name: TaskName | None = None
    no_text = no_label = 0
    label_name = ""
    for row, columns, (*text_cells, label_cell) in _read_cells(expand_paths([path]), config):
        row_task = task_name or infer_task_name(config, label_cell)
        if config.skip_empty and any(map(is_empty_cell, text_cells)):
            no_text += 1
            continue
        if config.skip_empty and is_empty_cell(label_cell, row_task):
            no_label += 1
            continue
        task_name, label_name = row_task, columns[-1]
        texts.append(_parse_texts(text_cells, row))
        labels.append(parse_label_cell(label_cell, row.where, task_name, config))
        where.append(row.where)
    if no_text + no_label and not texts:
        raise DataError(f"{path}: no row has both a text and a label; rows without one of them are skipped")
    if not texts or task_name is None:
        raise DataError(f"{path} contains no rows; expected a text and a label in each row")
    return LabelledTexts(
        path,
        tuple(map("\n".join, texts)),
        tuple(labels),
        tuple(where),
        task_name,
        tuple((first, second) for first, second in texts) if config.second_column is not None else None,
        SkippedRows(no_text, no_label).summary(path),
        label_name,
    )


def _parse_texts(cells: Sequence[object], row: Row) -> tuple[str, ...]:
    """Parse the text of a row, or its two texts; an empty one is refused."""
    texts = tuple(parse_text(cell, row.where) for cell in cells)
    for text, name in zip(texts, ("text", "second text"), strict=False):
        if not text.strip():
            raise DataError(f"{row.where}: the {name} is empty; give the row a text{SKIP_HINT}")
    return texts


def _read_cells(paths: list[str], config: LabelledConfig) -> Iterator[tuple[Row, list[str], list[object]]]:
    """Stream each row with its columns and their cells; with `skip_empty`, a missing cell is None."""
    for path in paths:
        names: list[str] = []
        if suffix_of(path) == ".txt":
            raise DataError(
                f"{path}: a .txt file has no labels; use a csv, tsv, jsonl or parquet file with a label column"
            )
        if config.skip_empty:
            for row, names in resolve_columns(path, config):
                yield row, names, [row.values.get(name) for name in names]
            continue
        for row in read_rows(path, with_labels=True, encoding=labelled_encoding(config)):
            if not names:
                names = find_columns(path, list(row.values), config)
            yield row, names, [cell_value(row.values, name, row.where) for name in names]


@dataclass(frozen=True)
class LabelSet:
    """The sorted classes of a task; a class index is a position in `names`."""

    names: tuple[str, ...]

    @classmethod
    def from_training(cls, texts: LabelledTexts) -> "LabelSet":
        """Collect the labels of the training rows; a single-label task needs at least two."""
        names = tuple(texts.counts())
        if not names:
            raise DataError(f"{texts.name}: no row has a label; is this the label column?")
        if len(names) < 2 and texts.task_name == "classes":
            raise DataError(
                f"{texts.name}: every row has the label '{single_line(names[0])}'; a classifier needs at least two labels"
            )
        if len(texts) >= _MIN_ROWS and len(names) > len(texts) / 2:
            raise DataError(
                f"{texts.name}: {len(names):,} different labels in {len(texts):,} rows; is this the label "
                "column? select another with labelled.label_column"
            )
        return cls(names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def index(self, label: str) -> int:
        """Return the index of a label of this set."""
        return self._indices[label]

    def __contains__(self, label: str) -> bool:
        return label in self._indices


def check_split(labels: LabelSet, texts: LabelledTexts, train_name: str) -> None:
    """Raise an error for validation or test rows with a label that no training row has, usually a typing error."""
    unknown = [
        (where, label)
        for row_labels, where in zip(texts.labels, texts.where, strict=True)
        for label in labels_in_cell(row_labels)
        if label not in labels
    ]
    if not unknown:
        return
    where, label = unknown[0]
    similar = difflib.get_close_matches(label, labels.names, n=1)
    shown = ", ".join(map(single_line, labels.names[:10])) + (", ..." if len(labels) > 10 else "")
    hint = f"did you mean '{single_line(similar[0])}'?" if similar else f"its labels are {shown}"
    rows = len({row for row, _ in unknown})
    others = f"; {rows:,} rows have such labels: correct or remove them" if rows > 1 else ""
    raise DataError(f"{where}: label '{single_line(label)}' does not occur in {train_name}; {hint}{others}")


def infer_task(train: LabelledTexts, config: LabelledConfig) -> Task:
    """Build the task from the training rows: their labels, or the bounds, mean and deviation of their numbers."""
    pair = train.pairs is not None
    if train.task_name == "labels":
        return MultiLabel(LabelSet.from_training(train).names, pair)
    if train.task_name == "classes":
        return SingleLabel(LabelSet.from_training(train).names, pair)
    numbers = np.array(train.labels)
    if np.ptp(numbers) == 0:
        raise DataError(f"{train.name}: every row has the rating {numbers[0]:g}; a model cannot be trained on it")
    lowest = float(numbers.min()) if config.lowest is None else config.lowest
    highest = float(numbers.max()) if config.highest is None else config.highest
    return Regression((), pair, lowest, highest, float(numbers.mean()), float(numbers.std()))


def check_task(task: Task, texts: LabelledTexts, train_name: str) -> list[str]:
    """Raise an error for rows with a label that no training row has, and return notes about ratings out of bounds."""
    if task.kind != "rating":
        check_split(LabelSet(task.labels), texts, train_name)
        return []
    assert isinstance(task, Regression)
    numbers = np.array(texts.labels)
    num_outside = int(((numbers < task.lowest) | (numbers > task.highest)).sum())
    if not num_outside:
        return []
    bounds = f"{task.lowest:g} to {task.highest:g}"
    return [f"{num_outside:,} of {len(texts):,} ratings of {texts.name} are outside {bounds}, the range of predictions"]


def split_validation(texts: LabelledTexts, fraction: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Hold out about `fraction` of each class, never all of its rows, and never only some copies of a duplicate.

    The choice depends on the texts, their labels and the seed, not on the order of the rows.
    """
    groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (label, digest) in enumerate(zip(texts.strata(), texts.digests, strict=True)):
        groups[label][digest].append(index)
    held_out: set[int] = set()
    for duplicates in groups.values():
        num_rows = sum(map(len, duplicates.values()))
        room = min(int(fraction * num_rows + 0.5), num_rows - 1)
        for digest in sorted(duplicates, key=lambda digest: _shuffle_key(seed, digest)):
            if len(duplicates[digest]) <= room:
                held_out.update(duplicates[digest])
                room -= len(duplicates[digest])
    if not held_out:
        different = len(set(texts.digests))
        rows = (
            f"{len(texts)} rows" if different == len(texts) else f"{len(texts)} rows with {different} different texts"
        )
        raise DataError(
            f"{texts.name}: {rows} are too few to hold out {fraction:g} of each label for validation; use a validation file"
        )
    train = [index for index in range(len(texts)) if index not in held_out]
    return texts.take(train), texts.take(sorted(held_out))


def label_subset(labels: Sequence[str], count: int, seed: int, keys: Sequence[int] | None = None) -> list[int]:
    """Choose `count` rows, stratified; with the same seed, a smaller subset is contained in every larger one.

    Every class has a row as soon as `count` allows it, and is within one row of its proportion as soon as the
    proportions give every class a row. The indices are sorted.

    Args:
        keys: a key for each row, such as the digest of its text, which makes the choice independent of the row order.
            By default the index of a row is its key.
    """
    if not 1 <= count <= len(labels):
        raise DataError(f"cannot choose {count} labelled rows out of {len(labels)}")
    names, sizes = zip(*sorted(Counter(labels).items()), strict=True)
    order = _fair_order(np.array(sizes), len(labels))
    first_turns = sorted(order.index(class_index) for class_index in range(len(names)))
    is_first = set(first_turns)
    order = [order[turn] for turn in first_turns] + [
        class_index for turn, class_index in enumerate(order) if turn not in is_first
    ]
    rows: dict[str, list[int]] = defaultdict(list)
    for index in sorted(
        range(len(labels)), key=lambda index: _shuffle_key(seed, index if keys is None else keys[index])
    ):
        rows[labels[index]].append(index)
    queues = [iter(rows[name]) for name in names]
    return sorted(next(queues[class_index]) for class_index in order[:count])


def _fair_order(sizes: np.ndarray, count: int) -> list[int]:
    """Return a sequence of classes of which every prefix is within one row of the class proportions.

    This is Tijdeman's algorithm (The chairman assignment problem, 1980): among the classes that may be chosen without
    getting more than one row ahead, take the one whose next turn is due first. The greedy choice of the class that is
    furthest behind deviates by more than one row when there are many classes.
    """
    if len(sizes) == 1:
        return [0] * count
    total, slack = int(sizes.sum()), 2 * len(sizes) - 2
    num_chosen = np.zeros(len(sizes), dtype=np.int64)
    order: list[int] = []
    for step in range(1, count + 1):
        eligible = slack * (step * sizes - num_chosen * total) >= total
        due = (slack * (num_chosen + 1) - 1) / sizes
        class_index = int(np.where(eligible, due, np.inf).argmin())
        num_chosen[class_index] += 1
        order.append(class_index)
    return order


def _shuffle_key(seed: int, key: int) -> bytes:
    """Return a sort key for a shuffled order that does not depend on any library version."""
    return hashlib.sha256(f"{seed}:{key}".encode("ascii")).digest()


def describe_balance(texts: LabelledTexts) -> str | None:
    """Describe the class imbalance, if it is large."""
    counts = texts.counts()
    if len(counts) < 2 or max(counts.values()) < _IMBALANCE_RATIO * min(counts.values()):
        return None
    extremes = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    percentages = (
        f"{single_line(name)} {counts[name]:,} ({100 * counts[name] / len(texts):.1f} %)" for name in extremes
    )
    return (
        f"imbalanced labels in {texts.name}: from {' to '.join(percentages)}; macro-F1 weights all labels "
        "equally, and transfer.class_weights balanced gives rare labels more weight"
    )


def label_hints(texts: LabelledTexts, config: LabelledConfig) -> list[str]:
    """Suggest settings for labels that were probably meant as several labels or as numbers."""
    if config.task != "auto" or texts.task_name != "classes" or not texts.label_name:  # shards have no columns
        return []
    return [hint for hint in (_multi_label_hint(texts), _rating_hint(texts)) if hint]


def _multi_label_hint(texts: LabelledTexts) -> str | None:
    """Suggest a separator for labels such as complaint|loan, if complaint and loan are labels too."""
    names = set(texts.labels)
    for separator in _SEPARATORS:
        joined = [label for label in texts.labels if separator in label and _joins_labels(label, separator, names)]
        if joined and len(joined) >= _MIN_JOINED_FRACTION * len(texts):
            return (
                f"{len(joined):,} of {len(texts):,} rows of {texts.name} have labels such as '{single_line(joined[0])}', whose "
                f"parts are labels too; if a text may have several labels, set labelled.separator '{separator}'"
            )
    return None


def _joins_labels(label: str, separator: str, names: set[str]) -> bool:
    return all(part.strip() in names for part in label.split(separator))


def _rating_hint(texts: LabelledTexts) -> str | None:
    """Suggest the rating task for labels such as stars."""
    names = texts.counts()
    is_scale = len(names) >= _MIN_SCALE_POINTS and all(re.fullmatch(r"-?\d+", name) for name in names)
    if not is_scale or texts.label_name.lower() not in _RATING_NAMES:
        return None
    return (
        f"the labels of {texts.name} are {len(names)} whole numbers ({single_line(texts.label_name)}), "
        "read as class names without an order; labelled.task rating reads them as numbers"
    )
