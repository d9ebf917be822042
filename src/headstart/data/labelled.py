"""Labelled text: one file -> texts with their labels, checked row by row, and the seeded choices made among rows."""

import difflib
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headstart.config import LabelledConfig
from headstart.data.columns import as_label, as_text, cell, label_column, text_column
from headstart.data.digests import text_digest
from headstart.data.opening import one_line, suffix_of
from headstart.data.sources import Row, expand, read_rows
from headstart.errors import DataError

_ENOUGH = 20
"""Rows from which on more labels than half of them are taken for a wrong column."""


@dataclass(frozen=True)
class LabelledTexts:
    """Rows in file order. `name` is the file as the user wrote it, `where` the place of each row in words."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    where: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def sha256(self) -> str:
        """Of the rows, not of the file: the same rows as csv or parquet, or picked out of more, have the same one."""
        digest = hashlib.sha256()
        for pair in zip(self.texts, self.labels, strict=True):
            digest.update(json.dumps(pair).encode("ascii") + b"\n")
        return digest.hexdigest()

    @cached_property
    def digests(self) -> tuple[int, ...]:
        """The digest of each text: doubles have equal ones."""
        return tuple(text_digest(text) for text in self.texts)

    def counts(self) -> dict[str, int]:
        """Rows of each label, in the order of the labels."""
        return dict(sorted(Counter(self.labels).items()))

    def take(self, indices: Iterable[int]) -> "LabelledTexts":
        """These rows, in this order."""
        chosen = list(indices)
        texts, labels, where = (
            tuple(column[index] for index in chosen) for column in (self.texts, self.labels, self.where)
        )
        return LabelledTexts(self.name, texts, labels, where)


def read_labelled(path: str, config: LabelledConfig) -> LabelledTexts:
    """Read one file, or the files of one pattern as if they were one; a row without text or label is refused."""
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder; labelled text is one file, or a pattern such as {Path(path) / 'train-*.csv'}"
        )
    texts: list[str] = []
    labels: list[str] = []
    where: list[str] = []
    for row, text, label in _cells(expand([path]), config):
        if not text.strip():
            raise DataError(f"{row.where}: the text is empty; give the row a text or remove it")
        texts.append(text)
        labels.append(label)
        where.append(row.where)
    if not texts:
        raise DataError(f"{path} holds no rows; expected a text and a label in each")
    return LabelledTexts(path, tuple(texts), tuple(labels), tuple(where))


def _cells(paths: list[str], config: LabelledConfig) -> Iterator[tuple[Row, str, str]]:
    for path in paths:
        names: tuple[str, str] | None = None
        if suffix_of(path) == ".txt":
            raise DataError(
                f"{path}: a .txt file has no labels; give a csv, tsv, jsonl or parquet file with a column of them"
            )
        for row in read_rows(path, with_labels=True):
            if names is None:
                columns = list(row.values)
                text = text_column(path, columns, config.text_column, "labelled.text_column")
                names = text, label_column(path, columns, config.label_column, text=text)
            cells = [cell(row.values, name, row.where) for name in names]
            yield row, as_text(cells[0], row.where), as_label(cells[1], row.where)


@dataclass(frozen=True)
class LabelSet:
    """The classes of a task, sorted; a class is known to a model by its index here."""

    names: tuple[str, ...]

    @classmethod
    def from_training(cls, texts: LabelledTexts) -> "LabelSet":
        """The labels that occur in the training rows; fewer than two leave nothing to learn."""
        names = tuple(texts.counts())
        if len(names) < 2:
            raise DataError(
                f"{texts.name}: every row has the label '{one_line(names[0])}'; a classifier needs at least two labels"
            )
        if len(texts) >= _ENOUGH and len(names) > len(texts) / 2:
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
    for label, where in zip(other.labels, other.where, strict=True):
        if label not in labels:
            close = difflib.get_close_matches(label, labels.names, n=1)
            shown = ", ".join(map(one_line, labels.names[:10])) + (", ..." if len(labels) > 10 else "")
            hint = f"did you mean '{one_line(close[0])}'?" if close else f"its labels are {shown}"
            raise DataError(f"{where}: label '{one_line(label)}' does not occur in {train_name}; {hint}")


def split_validation(texts: LabelledTexts, share: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Hold out about `share` of each class, never its last row, and never one of two doubles without the other.

    Which rows are held out depends on their texts, their labels and the seed, not on their order in the file.
    """
    groups: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (label, digest) in enumerate(zip(texts.labels, texts.digests, strict=True)):
        groups[label][digest].append(index)
    held: set[int] = set()
    for doubles in groups.values():
        rows = sum(map(len, doubles.values()))
        room = min(int(share * rows + 0.5), rows - 1)
        for digest in sorted(doubles, key=lambda digest: _draw(seed, digest)):
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
    for index in sorted(range(len(labels)), key=lambda index: _draw(seed, index if keys is None else keys[index])):
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


def _draw(seed: int, key: int) -> bytes:
    """A place in a shuffled order that no library version changes."""
    return hashlib.sha256(f"{seed}:{key}".encode("ascii")).digest()
