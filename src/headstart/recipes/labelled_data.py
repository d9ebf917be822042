"""Labelled files, or prepared shards of them, as token rows with known labels: what fine-tuning and comparing read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import LabelledConfig, TokenizerConfig
from headstart.data.batches import LabelledRows
from headstart.data.doubles import Known, Overlap, overlap
from headstart.data.hints import hints_on
from headstart.data.joined import encode_questions
from headstart.data.labelled import LabelledTexts, Question, read_labelled, split_validation
from headstart.data.shards import Shards
from headstart.data.targets import balance_of, check_target, target_of
from headstart.errors import DataError, UsageError
from headstart.kinds import Target
from headstart.progress import Progress
from headstart.recipes.prepare import is_shards
from headstart.text.tokenizer import Tokenizer, load_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Part:
    """One file of labelled texts, encoded."""

    name: str
    texts: tuple[str, ...]
    ids: tuple[NDArray[np.integer], ...]
    gold: NDArray[Any]
    """As the kind of answer has it: indices, rows of 0 and 1, or numbers."""
    sha256: str
    questions: tuple[Question, ...]
    """What a model reads: the texts, or pairs of them."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "Part":
        """Some of the rows, in the order given."""
        return replace(
            self,
            texts=tuple(self.texts[i] for i in indices),
            ids=tuple(self.ids[i] for i in indices),
            gold=self.gold[np.asarray(indices, dtype=np.int64)],
            questions=tuple(self.questions[i] for i in indices),
        )

    def describe(self, target: Target) -> dict[str, Any]:
        """Name, rows, rows a label (or what numbers), and hash: for the record."""
        return {"name": self.name, "rows": len(self), **target.describe(self.gold), "sha256": self.sha256}


@dataclass(frozen=True)
class LabelledData:
    """Train, validation and perhaps test, in one tokenizer, with one thing asked of them."""

    target: Target
    tokenizer: Tokenizer
    train: Part
    valid: Part
    test: Part | None
    notes: tuple[str, ...]
    leaks: Overlap[int] = field(default_factory=lambda: Overlap({}, {}))
    """The rows of test that (almost) stand in train."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels in order."""
        return self.target.labels

    def fingerprints(self) -> dict[str, Any]:
        """A hash of each file's rows and of the tokenizer, by the names a person knows them by."""
        parts = {part.name: part.sha256 for part in (self.train, self.valid, self.test) if part}
        return parts | {"the tokenizer": self.tokenizer.digest}

    def rows(self, part: Part, context: int, config: LabelledConfig) -> LabelledRows:
        """A part as the model will read it."""
        windows = config.long_texts == "windows"
        special, pair = self.tokenizer.special, self.target.pair
        return LabelledRows(part.ids, part.gold, special, context=context, windows=windows, pair=pair)


def load_data(
    train: str,
    valid: str | None,
    test: str | None,
    config: LabelledConfig,
    *,
    tokenizer: Tokenizer | None,
    tokenizer_config: TokenizerConfig,
    seed: int,
    progress: Progress,
    doubles: bool = True,
) -> LabelledData:
    """Read, check and encode. Without `valid` a stratified share of train is held out; without a tokenizer one is trained.

    Args:
        doubles: look for texts that stand in two files; a process that only trains, where another has looked, need not.
    """
    for name, role in ((valid, "validation"), (test, "test")):
        if name is not None and Path(name).resolve() == Path(train).resolve():
            raise UsageError(
                f"{name} is both the training and the {role} file; what was learnt by heart proves nothing"
            )
    given = {train: _read(train, config, progress)}
    same = config.model_copy(update={"task": _kind(given[train])})
    given |= {name: _read(name, same, progress) for name in (valid, test) if name is not None}
    notes = [one.left_out for one in given.values() if isinstance(one, LabelledTexts) and one.left_out]
    tokenizer = _tokenizer(given[train], tokenizer, tokenizer_config, notes, progress)
    training = _texts(given[train], tokenizer)
    target = target_of(training, config)
    notes += [*filter(None, [balance_of(training)]), *hints_on(training, config)]
    if valid is None:
        share, rows = config.valid_share, len(training)
        training, validation = split_validation(training, share, seed)
        validation = replace(validation, name=f"held-out rows of {train}")
        notes.append(
            f"no validation file: {len(validation):,} of {rows:,} rows of {train} held out, stratified, to choose on"
        )
    else:
        validation = _texts(given[valid], tokenizer)
        notes += check_target(target, validation, train)
    testing = None
    if test is not None:
        testing = _texts(given[test], tokenizer)
        notes += check_target(target, testing, train)
    leaks: Overlap[int] = Overlap({}, {})
    if doubles:
        with progress.task("looking for doubles", None, "files"):
            said, leaks = _overlaps(training, validation, testing)
        notes += said
    for note in notes:
        progress.say(note)
    parts = [
        None if texts is None else encoded(texts, target, tokenizer, progress)
        for texts in (training, validation, testing)
    ]
    assert parts[0] is not None
    assert parts[1] is not None
    return LabelledData(target, tokenizer, parts[0], parts[1], parts[2], tuple(notes), leaks)


def check_one_class(data: LabelledData, command: str, instead: str) -> None:
    """Refuse what a command that counts right answers cannot judge, and say what to do instead."""
    if data.target.kind != "classes":
        has = "several labels a text" if data.target.kind == "labels" else "ratings"
        raise UsageError(f"{command} is for one class a text, and {data.train.name} has {has}; {instead}")


def _overlaps(train: LabelledTexts, valid: LabelledTexts, test: LabelledTexts | None) -> tuple[list[str], Overlap[int]]:
    """What a careful person would want to know about the files before believing a number; and what test has of train."""
    notes = []
    known = [(texts, Known(texts.texts)) for texts in (train, valid, test) if texts is not None]
    leaks: Overlap[int] = Overlap({}, {})
    for (other, others), (part, rows) in ((known[a], known[b]) for a, b in ((0, 1), (0, 2), (1, 2)) if b < len(known)):
        found = overlap(rows, others)
        if part is test and other is train:
            leaks = found
        if found.exact:
            stand = "stands" if len(found.exact) == 1 else "stand"
            notes.append(f"{len(found.exact):,} of {len(part):,} texts of {part.name} also {stand} in {other.name}")
        if found.near:
            more, stand = " more" if found.exact else "", "stands" if len(found.near) == 1 else "stand"
            notes.append(
                f"{len(found.near):,}{more} of {len(part):,} texts of {part.name} almost {stand} in {other.name}: "
                "words changed, or part of a longer text"
            )
    for judged in (valid, test):
        if judged is not None and len(set(judged.labels)) == 1:
            what = (
                f"rating only ({judged.labels[0]:g})"
                if judged.kind == "rating"
                else "label only ({})".format(
                    ", ".join(judged.labels[0]) if judged.kind == "labels" else judged.labels[0]
                )
            )
            notes.append(f"{judged.name} has one {what}: a score on it says little")
    return notes, leaks


Given = LabelledTexts | Shards


def _read(name: str, config: LabelledConfig, progress: Progress) -> Given:
    if is_shards(name):
        shards = Shards.open(Path(name))
        if shards.labels is None:
            raise DataError(f"{name} holds prepared text without labels; prepare it with --labelled")
        if config.task not in ("auto", "classes") or config.second_column or config.separator:
            raise DataError(
                f"{name} is prepared, for one class a text; for labels, ratings or pairs give the file itself"
            )
        return shards
    progress.say(f"reading {name}")
    return read_labelled(name, config)


def _kind(train: Given) -> str:
    return "classes" if isinstance(train, Shards) else train.kind


def _tokenizer(
    train: Given, tokenizer: Tokenizer | None, config: TokenizerConfig, notes: list[str], progress: Progress
) -> Tokenizer:
    if isinstance(train, Shards):
        own = load_tokenizer(train.folder / "tokenizer")
        if tokenizer is not None and tokenizer.digest != own.digest:
            raise UsageError(
                f"{train.folder} was prepared with another tokenizer than the model's; prepare it again with that one"
            )
        return own
    if tokenizer is not None:
        return tokenizer
    trained = train_tokenizer(train.texts, config, progress)
    notes.append(f"no tokenizer given: one of {trained.vocab_size:,} entries was trained on {train.name}")
    return trained


def _texts(given: Given, tokenizer: Tokenizer) -> LabelledTexts:
    """Shards give their texts back by decoding, so that the linear arms of a comparison can read them too."""
    if isinstance(given, LabelledTexts):
        return given
    if given.tokenizer_digest != tokenizer.digest:
        raise UsageError(
            f"{given.folder} was prepared with another tokenizer than the rest; prepare it again with that one"
        )
    assert given.labels is not None
    assert given.label_of is not None
    name = str(given.folder)
    return LabelledTexts(
        name=name,
        texts=tuple(tokenizer.decode([int(token) for token in given.ids(i)]) for i in range(given.documents)),
        labels=tuple(given.labels[int(label)] for label in given.label_of),
        where=tuple(f"{name}, document {i + 1}" for i in range(given.documents)),
    )


def encoded(texts: LabelledTexts, target: Target, tokenizer: Tokenizer, progress: Progress) -> Part:
    """Labelled texts as token rows."""
    ids: list[NDArray[np.integer]] = []
    questions = texts.questions
    with progress.task(f"encoding {texts.name}", len(questions), "texts") as bar:
        for start in range(0, len(questions), 1000):
            bite = questions[start : start + 1000]
            ids += [np.asarray(row, dtype=np.int32) for row in encode_questions(tokenizer, bite)]
            bar.advance(len(bite))
    return Part(texts.name, texts.texts, tuple(ids), target.gold(texts.labels), texts.sha256, questions)
