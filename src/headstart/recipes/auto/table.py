"""The data of `headstart auto`: the labelled rows of a table, its test part, and the text without labels. No torch."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.columns import SkippedRows, is_empty_cell, parse_text, resolve_columns
from headstart.data.corpus import read_documents
from headstart.data.diagnostics import check_scored_rows, check_training_rows
from headstart.data.hashing import random_bits, text_digest
from headstart.data.io import single_line
from headstart.data.labelled import (
    LabelledTexts,
    check_task,
    describe_balance,
    infer_task,
    label_hints,
    read_labelled,
)
from headstart.data.near_duplicates import Overlap, TextIndex, overlap
from headstart.data.shards import is_shards
from headstart.data.sources import expand_paths
from headstart.errors import DataError, UsageError
from headstart.progress import Progress, pluralize
from headstart.tasks import SingleLabel

Ints = NDArray[np.int64]
TEST_FRACTION = 0.2
MAX_TEST_ROWS = 2000
"""The test part is a fifth of the rows, and no more rows than this: the rest is better used for training."""
MIN_TRAIN_ROWS = 4
MAX_UNLABELLED_CHARACTERS = 200_000_000
"""Text without labels beyond this is not read: no model of this command could learn from more of it."""
MAX_NEAR_CHARACTERS = 50_000_000
"""Near-duplicates of test rows are looked for in this much text (about 8 seconds); in more, exact ones only."""
_TEST_STREAM, _FOLD_STREAM = 11, 12


@dataclass(frozen=True)
class Table:
    """The rows of a table, split into train and test, and the text without labels."""

    train: LabelledTexts
    test: LabelledTexts
    unlabelled: tuple[str, ...]
    """Rows without a label and documents of further files, without the texts of test."""
    task: SingleLabel
    notes: tuple[str, ...]
    leaks: Overlap[int]
    """The test rows with an exact or a near-duplicate in train."""
    sha256: str
    """A hash of the labelled rows of the table, with those that are held out for the test."""

    @property
    def gold(self) -> Ints:
        """The label indices of the training rows."""
        return np.asarray(self.task.gold(self.train.labels), dtype=np.int64)

    @property
    def test_gold(self) -> Ints:
        """The label indices of the test rows."""
        return np.asarray(self.task.gold(self.test.labels), dtype=np.int64)

    @property
    def megabytes(self) -> float:
        """The text that a language model could learn from, that of train and unlabelled text, in millions of bytes."""
        return sum(len(text.encode("utf-8")) for text in (*self.train.texts, *self.unlabelled)) / 1e6

    def fingerprints(self) -> dict[str, str]:
        """Return a hash of each file's rows and of the text without labels, by the names that an error message uses."""
        digest = hashlib.sha256()
        for text in self.unlabelled:
            digest.update(text_digest(text).to_bytes(8, "little"))
        further = f"the unlabelled text of {self.train.name}"
        return {self.train.name: self.train.sha256, self.test.name: self.test.sha256, further: digest.hexdigest()}


def load_table(
    path: str, texts: Sequence[str], test: str | None, config: LabelledConfig, seed: int, progress: Progress
) -> Table:
    """Read a table, hold out test rows unless there is a test file, and collect the unlabelled text."""
    labelled, further, notes = _read(path, config, progress)
    task = infer_task(labelled, config)
    assert isinstance(task, SingleLabel)
    # both name settings at their end, which other commands have
    balance = (describe_balance(labelled) or "").partition(";")[0]
    notes += [*filter(None, [balance]), *(f"{hint} (headstart finetune)" for hint in label_hints(labelled, config))]
    # rows without a label are left out of train here, without a setting
    notes += [note.replace(" and set labelled.skip_empty", "") for note in check_training_rows(labelled, config)]
    notes += _conflict_notes(labelled, held_out=test is None)
    if test is None:
        train, held_out = set_aside(labelled, seed)
        notes.append(
            f"no test file: {pluralize(len(held_out), 'row')} of {len(labelled):,} are held out for the test (stratified) "
            f"and read once, at the end"
        )
    else:
        train, (held_out, unlabelled_test, test_notes) = labelled, _read(test, config, progress)
        notes += test_notes + check_scored_rows(held_out, config)
        notes += [f"{len(unlabelled_test):,} rows of {test} have no label and are not used"] if unlabelled_test else []
    notes += check_task(task, held_out, path)
    if len(train) < MIN_TRAIN_ROWS:
        raise DataError(f"{path}: {len(train)} labelled rows are too few for training and validation; label more rows")
    with progress.task("looking for duplicates", None, "files"):
        leaks = _find_leaks(train, held_out)
    notes += _leak_notes(leaks, held_out)
    unlabelled = _without(further + _documents(texts, config), held_out)
    if unlabelled:
        verb = "is" if len(unlabelled) == 1 else "are"
        notes.append(f"{pluralize(len(unlabelled), 'text')} without a label {verb} used as unlabelled text")
    for note in notes:
        progress.say(note)
    return Table(train, held_out, unlabelled, task, tuple(notes), leaks, labelled.sha256)


def _read(path: str, config: LabelledConfig, progress: Progress) -> tuple[LabelledTexts, tuple[str, ...], list[str]]:
    """Return the labelled rows of a file, the texts of its rows without a label, and a note on rows without a text."""
    if is_shards(path):
        raise UsageError(f"{path} is a prepared folder; use the table that it was prepared from")
    if config.second_column is not None:
        raise UsageError("auto supports one text per row; for pairs (labelled.second_column) use headstart finetune")
    progress.say(f"reading {path}")
    labelled = read_labelled(path, config.model_copy(update={"skip_empty": True}))
    if labelled.task_name != "classes":
        raise UsageError(
            f"auto supports one class per text, but {path} has several labels per text; use headstart finetune"
        )
    unlabelled, no_text = [], 0
    for file in expand_paths([path]):
        for row, (text_name, *_, label_name) in resolve_columns(file, config):
            if is_empty_cell(row.values.get(text_name)):
                no_text += 1
            elif is_empty_cell(row.values.get(label_name)):
                unlabelled.append(parse_text(row.values[text_name], row.where))
    return labelled, tuple(unlabelled), [*filter(None, [SkippedRows(no_text).summary(path)])]


def _documents(paths: Sequence[str], config: LabelledConfig) -> tuple[str, ...]:
    if not paths:
        return ()
    documents, room = [], MAX_UNLABELLED_CHARACTERS
    for document in read_documents(paths, CorpusConfig(text_column=config.text_column, encoding=config.encoding)):
        documents.append(document.text)
        room -= len(document.text)
        if room < 0:
            break
    return tuple(documents)


def _without(texts: tuple[str, ...], test: LabelledTexts) -> tuple[str, ...]:
    """Return each text once, without those of test."""
    seen = set(test.digests)
    kept = []
    for text in texts:
        digest = text_digest(text)
        if digest not in seen:
            seen.add(digest)
            kept.append(text)
    return tuple(kept)


def _find_leaks(train: LabelledTexts, test: LabelledTexts) -> Overlap[int]:
    if sum(map(len, train.texts)) <= MAX_NEAR_CHARACTERS:
        return overlap(TextIndex(test.texts), TextIndex(train.texts))
    rows = {digest: row for row, digest in enumerate(train.digests)}
    return Overlap({row: rows[digest] for row, digest in enumerate(test.digests) if digest in rows}, {})


def _conflict_notes(texts: LabelledTexts, *, held_out: bool) -> list[str]:
    """Count the texts with more than one label; `set_aside` does not hold them out, which makes the test easier."""
    labels: defaultdict[int, list[str]] = defaultdict(list)
    for digest, label in zip(texts.digests, texts.labels, strict=True):
        labels[digest].append(label)
    conflicts = [names for names in labels.values() if len(set(names)) > 1]
    if not conflicts:
        return []
    have, rows = "has" if len(conflicts) == 1 else "have", sum(map(len, conflicts))
    effect = "; these rows are not held out, which makes the test easier" if held_out else ""
    return [
        f"{texts.name}: {pluralize(len(conflicts), 'text')} {have} more than one label, in {rows:,} rows{effect} "
        "(headstart inspect lists them)"
    ]


def _leak_notes(leaks: Overlap[int], test: LabelledTexts) -> list[str]:
    counts = ((len(leaks.exact), "an exact duplicate"), (len(leaks.near), "a near-duplicate"))
    return [
        f"{count:,} of {len(test):,} test texts {'has' if count == 1 else 'have'} {kind} in the training rows"
        for count, kind in counts
        if count
    ]


def set_aside(texts: LabelledTexts, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """Split off the test part: a fraction of each label, never all of its rows, never some copies of a text only.

    A text that appears with two labels stays in train with all its copies.
    """
    fraction = min(TEST_FRACTION, MAX_TEST_ROWS / len(texts))
    room: dict[str, int] = {}
    for label, count in texts.counts().items():
        room[label] = min(int(fraction * count + 0.5), count - 1)
    held_out: set[int] = set()
    for rows in _shuffled_groups(texts, seed, _TEST_STREAM):
        labels = {texts.labels[row] for row in rows}
        label = texts.labels[rows[0]]
        if len(labels) == 1 and len(rows) <= room[label]:
            held_out.update(rows)
            room[label] -= len(rows)
    if not held_out:
        different = len(set(texts.digests))
        copies = f" with {pluralize(different, 'different text')}" if different < len(texts) else ""
        raise DataError(
            f"{texts.name}: {pluralize(len(texts), 'labelled row')}{copies} of {pluralize(len(room), 'label')} are "
            "too few to hold out test rows; label more rows, or use a test file with --test"
        )
    train = texts.take(row for row in range(len(texts)) if row not in held_out)
    test = texts.take(sorted(held_out))
    return replace(train, name=texts.name), replace(test, name=f"held-out rows of {texts.name}")


def stratified_folds(texts: LabelledTexts, folds: int, seed: int) -> Ints:
    """Return the fold of each row: stratified, copies of a text in one fold, whatever the order of the rows."""
    fold_of = np.zeros(len(texts), dtype=np.int64)
    of_label = {label: np.zeros(folds, dtype=np.int64) for label in texts.counts()}
    total = np.zeros(folds, dtype=np.int64)
    for rows in _shuffled_groups(texts, seed, _FOLD_STREAM):
        counts = of_label[texts.labels[rows[0]]]
        fold = int(np.lexsort((total, counts))[0])  # the fold with the smallest number of this label, then of rows
        fold_of[rows] = fold
        total[fold] += len(rows)
        for row in rows:
            of_label[texts.labels[row]][fold] += 1
    return fold_of


def _shuffled_groups(texts: LabelledTexts, seed: int, stream: int) -> list[list[int]]:
    """Return the rows of each different text, in an order that depends on the texts and the seed only."""
    groups: dict[int, list[int]] = {}
    for row, digest in enumerate(texts.digests):
        groups.setdefault(digest, []).append(row)
    digests = np.array(list(groups), dtype=np.uint64)
    keys = random_bits(digests, seed, stream)
    return [groups[int(digests[index])] for index in np.lexsort((digests, keys))]


def describe_table(table: Table) -> str:
    """Describe the rows and the most frequent label in one line."""
    counts = table.train.counts()
    common = max(counts, key=lambda name: counts[name])
    return (
        f"{len(table.train):,} training rows, {len(table.test):,} test rows, {len(counts):,} classes; "
        f"{100 * counts[common] / len(table.train):.1f} % of the training rows are '{single_line(common)}'"
    )
