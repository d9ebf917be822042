"""Labelled rows: reading, tasks from labels, splits, subsets and hints about wrong columns.

Labelled text: one file -> texts with their labels, checked row by row, and the seeded choices made among rows.

What the training rows ask of a model, and whether other rows ask the same.

Labels that are probably read in another way than they are meant: a remark each, where it is plain.
"""

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
from headstart.tasks import Label, MultiLabel, Regression, SingleLabel, Task, TaskName

TextInput = str | tuple[str, str]
"""What is read: a text, or a pair of them."""
_MIN_ROWS = 20
"""Rows from which on more labels than half of them are taken for a wrong column."""


@dataclass(frozen=True)
class LabelledTexts:
    """Rows in file order. `name` is the file as the user wrote it, `where` the place of each row in words."""

    name: str
    texts: tuple[str, ...]
    """Of a pair, both on lines of their own: what doubles, digests and linear models look at."""
    labels: tuple[Label, ...]
    where: tuple[str, ...]
    kind: TaskName = "classes"
    pairs: tuple[tuple[str, str], ...] | None = None
    """The two texts of each row, where rows are pairs."""
    left_out: str | None = None
    """How many rows of the file are not here because they lack a text or a label, in words."""
    label_name: str = field(default="", compare=False)
    """The column of the labels."""

    @property
    def text_inputs(self) -> tuple[TextInput, ...]:
        """What a model reads of each row."""
        return self.pairs or self.texts

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def sha256(self) -> str:
        """Of the rows, not of the file: the same rows as csv or parquet, or picked out of more, have the same one."""
        digest = hashlib.sha256()
        for row in zip(self.text_inputs, self.labels, strict=True):
            digest.update(json.dumps(row).encode("ascii") + b"\n")
        return digest.hexdigest()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """The digest of each text: doubles have equal ones."""
        return tuple(text_digest(text) for text in self.texts)

    def counts(self) -> dict[str, int]:
        """Rows of each label, in the order of the labels; numbers have none."""
        return dict(sorted(Counter(name for label in self.labels for name in labels_in_cell(label)).items()))

    def strata(self) -> list[str]:
        """What a fair share of rows is fair to: the label; of several the rarest; of a number its quarter."""
        if self.kind == "classes":
            return list(self.labels)
        if self.kind == "rating":
            return number_bins(self.labels)[0]
        counts = self.counts()
        return [min(names, key=lambda name: (counts[name], name), default="") for names in self.labels]

    def take(self, indices: Iterable[int]) -> "LabelledTexts":
        """These rows, in this order."""
        chosen = list(indices)
        texts, labels, where = (
            tuple(column[index] for index in chosen) for column in (self.texts, self.labels, self.where)
        )
        pairs = None if self.pairs is None else tuple(self.pairs[index] for index in chosen)
        return replace(self, texts=texts, labels=labels, where=where, pairs=pairs)


def labels_in_cell(label: Label) -> tuple[str, ...]:
    """The names that a row is labelled with.

    >>> labels_in_cell("a"), labels_in_cell(("a", "b")), labels_in_cell(3.5)
    (('a',), ('a', 'b'), ())
    """
    if isinstance(label, tuple):
        return label
    return (label,) if isinstance(label, str) else ()


def infer_task_name(config: LabelledConfig, value: object) -> TaskName:
    """What a cell of labels is for: what was asked for, else several labels where it is a list or is to be cut."""
    if config.task != "auto":
        return config.task
    return "labels" if config.separator is not None or isinstance(value, (list, tuple)) else "classes"


def parse_label_cell(value: object, where: str, kind: TaskName, config: LabelledConfig) -> Label:
    """A cell as the label of a row."""
    if kind == "labels":
        return parse_labels(value, where, config.separator)
    if kind == "rating":
        return parse_rating(value, where, config.lowest, config.highest)
    return parse_label(value, where)


def read_labelled(path: str, config: LabelledConfig) -> LabelledTexts:
    """Read one file, or the files of one pattern as if they were one.

    A row without a text or a label is refused, or left out and counted where `config.skip_empty` asks for it.
    """
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder; labelled text is one file, or a pattern such as {Path(path) / 'train-*.csv'}"
        )
    pairs: list[tuple[str, ...]] = []
    labels: list[Label] = []
    where: list[str] = []
    kind: TaskName | None = None
    no_text = no_label = 0
    names: list[str] = [""]
    for row, found, (*cells, value) in _rows(expand_paths([path]), config):
        here = kind or infer_task_name(config, value)
        if config.skip_empty and (any(map(is_empty_cell, cells)) or is_empty_cell(value, here)):
            no_text, no_label = (no_text + 1, no_label) if any(map(is_empty_cell, cells)) else (no_text, no_label + 1)
            continue
        kind, names = here, found
        pairs.append(_texts_of(cells, row))
        labels.append(parse_label_cell(value, row.where, kind, config))
        where.append(row.where)
    if no_text + no_label and not pairs:
        raise DataError(f"{path}: every row lacks a text or a label, and labelled.skip_empty leaves all of them out")
    if not pairs or kind is None:
        raise DataError(f"{path} holds no rows; expected a text and a label in each")
    both = tuple((first, second) for first, second in pairs) if config.second_column is not None else None
    left_out = SkippedRows(no_text, no_label).in_words(path)
    texts = tuple(map("\n".join, pairs))
    return LabelledTexts(path, texts, tuple(labels), tuple(where), kind, both, left_out, names[-1])


def _texts_of(cells: Sequence[object], row: Row) -> tuple[str, ...]:
    """The text of a row, or two."""
    texts = tuple(parse_text(one, row.where) for one in cells)
    for text, name in zip(texts, ("text", "second text"), strict=False):
        if not text.strip():
            raise DataError(f"{row.where}: the {name} is empty; give the row a text{SKIP_HINT}")
    return texts


def _rows(paths: list[str], config: LabelledConfig) -> Iterator[tuple[Row, list[str], list[object]]]:
    """Each row with its columns and their cells; where rows may be empty, a cell may be missing."""
    for path in paths:
        names: list[str] = []
        if suffix_of(path) == ".txt":
            raise DataError(
                f"{path}: a .txt file has no labels; give a csv, tsv, jsonl or parquet file with a column of them"
            )
        if config.skip_empty:
            for row, names in resolve_columns(path, config):
                yield row, names, [row.values.get(name) for name in names]
            continue
        for row in read_rows(path, with_labels=True):
            if not names:
                names = find_columns(path, list(row.values), config)
            yield row, names, [cell_value(row.values, name, row.where) for name in names]


@dataclass(frozen=True)
class LabelSet:
    """The classes of a task, sorted; a class is known to a model by its index here."""

    names: tuple[str, ...]

    @classmethod
    def from_training(cls, texts: LabelledTexts) -> "LabelSet":
        """The labels that occur in the training rows; fewer than two leave nothing to learn."""
        names = tuple(texts.counts())
        if not names:
            raise DataError(f"{texts.name}: no row has a label; is this the label column?")
        if len(names) < 2 and texts.kind == "classes":
            raise DataError(
                f"{texts.name}: every row has the label '{single_line(names[0])}'; a classifier needs at least two labels"
            )
        if len(texts) >= _MIN_ROWS and len(names) > len(texts) / 2:
            raise DataError(
                f"{texts.name}: {len(names):,} different labels in {len(texts):,} rows; is this the label column? "
                "name another with labelled.label_column"
            )
        return cls(names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def index(self, label: str) -> int:
        """The index of a label that has been checked to be one of ours."""
        return self._indices[label]

    def __contains__(self, label: str) -> bool:
        return label in self._indices


def check_split(labels: LabelSet, other: LabelledTexts, train_name: str) -> None:
    """Refuse validation or test rows whose label no training row has: most often it is a typing error."""
    places = zip(other.labels, other.where, strict=True)
    for label, where in ((name, where) for found, where in places for name in labels_in_cell(found)):
        if label not in labels:
            close = difflib.get_close_matches(label, labels.names, n=1)
            shown = ", ".join(map(single_line, labels.names[:10])) + (", ..." if len(labels) > 10 else "")
            hint = f"did you mean '{single_line(close[0])}'?" if close else f"its labels are {shown}"
            raise DataError(f"{where}: label '{single_line(label)}' does not occur in {train_name}; {hint}")


def split_validation(texts: LabelledTexts, share: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Hold out about `share` of each class, never its last row, and never one of two doubles without the other.

    Which rows are held out depends on their texts, their labels and the seed, not on their order in the file.
    """
    groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (label, digest) in enumerate(zip(texts.strata(), texts.digests, strict=True)):
        groups[label][digest].append(index)
    held: set[int] = set()
    for doubles in groups.values():
        rows = sum(map(len, doubles.values()))
        room = min(int(share * rows + 0.5), rows - 1)
        for digest in sorted(doubles, key=lambda digest: _random_key(seed, digest)):
            if len(doubles[digest]) <= room:
                held.update(doubles[digest])
                room -= len(doubles[digest])
    if not held:
        raise DataError(
            f"{texts.name}: {len(texts)} rows are too few to hold out {share:g} of each label for validation; "
            "give a validation file"
        )
    train = [index for index in range(len(texts)) if index not in held]
    return texts.take(train), texts.take(sorted(held))


def label_subset(labels: Sequence[str], count: int, seed: int, keys: Sequence[int] | None = None) -> list[int]:
    """Choose `count` rows, stratified, so that a smaller choice with the same seed lies inside a larger one.

    Every class has a row as soon as `count` allows it, and is within one row of its share as soon as the shares give
    every class a row. Indices come in file order.

    Args:
        keys: by what a row is drawn, such as the digest of its text: the same texts are then chosen in whatever order
            the rows stand. Without them a row is drawn by its place.
    """
    if not 1 <= count <= len(labels):
        raise DataError(f"cannot choose {count} labelled rows out of {len(labels)}")
    names, sizes = zip(*sorted(Counter(labels).items()), strict=True)
    order = _fair_order(np.array(sizes), len(labels))
    first = [order.index(kind) for kind in range(len(names))]
    firsts = sorted(first)
    late = set(firsts)
    order = [order[place] for place in firsts] + [kind for place, kind in enumerate(order) if place not in late]
    rows: dict[str, list[int]] = defaultdict(list)
    for index in sorted(
        range(len(labels)), key=lambda index: _random_key(seed, index if keys is None else keys[index])
    ):
        rows[labels[index]].append(index)
    queues = [iter(rows[name]) for name in names]
    return sorted(next(queues[kind]) for kind in order[:count])


def _fair_order(sizes: np.ndarray, count: int) -> list[int]:
    """A sequence of classes of which every beginning is within one row of the classes' shares.

    This is Tijdeman's algorithm (The chairman assignment problem, 1980): among the classes that have fallen behind
    enough to be chosen without getting too far ahead, take the one whose next turn is due first. Taking the one that
    is furthest behind, as one would, strays by more than a row when there are many classes.
    """
    if len(sizes) == 1:
        return [0] * count
    total, slack = int(sizes.sum()), 2 * len(sizes) - 2
    taken = np.zeros(len(sizes), dtype=np.int64)
    order: list[int] = []
    for step in range(1, count + 1):
        eligible = slack * (step * sizes - taken * total) >= total
        due = (slack * (taken + 1) - 1) / sizes
        kind = int(np.where(eligible, due, np.inf).argmin())
        taken[kind] += 1
        order.append(kind)
    return order


def _random_key(seed: int, key: int) -> bytes:
    """A place in a shuffled order that no library version changes."""
    return hashlib.sha256(f"{seed}:{key}".encode("ascii")).digest()


_IMBALANCE = 3.0
"""So many times as many rows of one label as of another are worth a remark."""


def infer_task(train: LabelledTexts, config: LabelledConfig) -> Task:
    """The labels that occur, or the numbers' bounds and scale."""
    pair = train.pairs is not None
    if train.kind == "labels":
        return MultiLabel(LabelSet.from_training(train).names, pair)
    if train.kind == "classes":
        return SingleLabel(LabelSet.from_training(train).names, pair)
    numbers = np.array(train.labels)
    if np.ptp(numbers) == 0:
        raise DataError(f"{train.name}: every row has the rating {numbers[0]:g}; there is nothing to tell apart")
    lowest = float(numbers.min()) if config.lowest is None else config.lowest
    highest = float(numbers.max()) if config.highest is None else config.highest
    return Regression((), pair, lowest, highest, float(numbers.mean()), float(numbers.std()))


def check_task(task: Task, other: LabelledTexts, train_name: str) -> list[str]:
    """Refuse rows whose label no training row has; what else there is to know about them comes back in words."""
    if task.kind != "rating":
        check_split(LabelSet(task.labels), other, train_name)
        return []
    assert isinstance(task, Regression)
    numbers = np.array(other.labels)
    outside = int(((numbers < task.lowest) | (numbers > task.highest)).sum())
    if not outside:
        return []
    cu_seqlens = f"{task.lowest:g} to {task.highest:g}"
    return [f"{outside:,} of {len(other):,} ratings of {other.name} lie outside of {cu_seqlens}, which no answer does"]


def describe_balance(texts: LabelledTexts) -> str | None:
    """How uneven the labels are, where that is worth knowing."""
    counts = texts.counts()
    if len(counts) < 2 or max(counts.values()) < _IMBALANCE * min(counts.values()):
        return None
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    shares = (
        f"{single_line(name)} {counts[name]:,} ({100 * counts[name] / len(texts):.1f} %)" for name in (most, least)
    )
    return (
        f"uneven labels in {texts.name}: from {' down to '.join(shares)}; macro-F1 counts all alike, and "
        "transfer.class_weights balanced lets the rare ones weigh more"
    )


_SEPARATORS = ("|", ";", ",", "/", "+")
_MIN_FRACTION = 0.05
"""The part of the rows that must hold a separator between known labels."""
_NUMBERED = ("rating", "stars", "score")
_SCALE = 4
"""Whole numbers from which on they are a scale, and no names of two or three classes."""


def label_hints(texts: LabelledTexts, config: LabelledConfig) -> list[str]:
    """What to try, where nothing was said about the labels."""
    if config.task != "auto" or texts.kind != "classes" or not texts.label_name:  # shards have no columns
        return []
    return [hint for hint in (_multi_label_hint(texts), _number_hint(texts)) if hint]


def _multi_label_hint(texts: LabelledTexts) -> str | None:
    """Labels such as complaint|loan, where complaint and loan stand alone too."""
    known = set(texts.labels)
    for separator in _SEPARATORS:
        joined = [label for label in texts.labels if separator in label and _parts_are_known(label, separator, known)]
        if joined and len(joined) >= _MIN_FRACTION * len(texts):
            return (
                f"{len(joined):,} of {len(texts):,} rows of {texts.name} have labels such as '{single_line(joined[0])}', whose "
                f"parts are labels too; if a text may have several, add labelled.separator '{separator}'"
            )
    return None


def _parts_are_known(label: str, separator: str, known: set[str]) -> bool:
    return all(part.strip() in known for part in label.split(separator))


def _number_hint(texts: LabelledTexts) -> str | None:
    """Stars that are read as names."""
    names = texts.counts()
    is_scale = len(names) >= _SCALE and all(re.fullmatch(r"-?\d+", name) for name in names)
    if not is_scale or texts.label_name.lower() not in _NUMBERED:
        return None
    return (
        f"the labels of {texts.name} are {len(names)} whole numbers ({single_line(texts.label_name)}), read as names without an "
        "order; labelled.task rating reads them as numbers"
    )
