"""Training, validation and test rows, encoded; leak notes; building the classifier.

Labelled files, or prepared shards of them, as token rows with known labels: what fine-tuning and comparing read.

What a fine-tuning starts with: the network, how it reads, and the weight of each class.

What a model remembers of its pretraining text, and what that says about labelled rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config.schema import (
    AttentionDirection,
    FinetuneConfig,
    LabelledConfig,
    ModelConfig,
    TokenizerConfig,
    TransferConfig,
)
from headstart.data.datasets import LabelledDataset, encode_inputs
from headstart.data.decontamination import Membership
from headstart.data.labelled import (
    LabelledTexts,
    TextInput,
    check_task,
    describe_balance,
    infer_task,
    label_hints,
    read_labelled,
    split_validation,
)
from headstart.data.near_duplicates import Overlap, TextIndex, overlap
from headstart.data.shards import Shards, is_shards
from headstart.errors import ConfigError, DataError, UsageError
from headstart.model.heads import ClassifierHead, Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.progress import Progress
from headstart.store.bundle import Bundle
from headstart.store.transfer import TransferReceipt, transfer
from headstart.tasks import Task
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer


@dataclass(frozen=True)
class EncodedSplit:
    """One file of labelled texts, encoded."""

    name: str
    texts: tuple[str, ...]
    ids: tuple[NDArray[np.integer], ...]
    gold: NDArray[Any]
    """As the kind of answer has it: indices, rows of 0 and 1, or numbers."""
    sha256: str
    text_inputs: tuple[TextInput, ...]
    """What a model reads: the texts, or pairs of them."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "EncodedSplit":
        """Some of the rows, in the order given."""
        return replace(
            self,
            texts=tuple(self.texts[i] for i in indices),
            ids=tuple(self.ids[i] for i in indices),
            gold=self.gold[np.asarray(indices, dtype=np.int64)],
            text_inputs=tuple(self.text_inputs[i] for i in indices),
        )

    def describe(self, task: Task) -> dict[str, Any]:
        """Name, rows, rows a label (or what numbers), and hash: for the record."""
        return {"name": self.name, "rows": len(self), **task.describe(self.gold), "sha256": self.sha256}


@dataclass(frozen=True)
class LabelledData:
    """Train, validation and perhaps test, in one tokenizer, with one thing asked of them."""

    task: Task
    tokenizer: Tokenizer
    train: EncodedSplit
    valid: EncodedSplit
    test: EncodedSplit | None
    notes: tuple[str, ...]
    leaks: Overlap[int] = field(default_factory=lambda: Overlap({}, {}))
    """The rows of test that (almost) stand in train."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels in order."""
        return self.task.labels

    def fingerprints(self) -> dict[str, Any]:
        """A hash of each file's rows and of the tokenizer, by the names a person knows them by."""
        parts = {part.name: part.sha256 for part in (self.train, self.valid, self.test) if part}
        return parts | {"the tokenizer": self.tokenizer.digest}

    def rows(self, part: EncodedSplit, context: int, config: LabelledConfig) -> LabelledDataset:
        """A part as the model will read it."""
        windows = config.long_texts == "windows"
        special, pair = self.tokenizer.special, self.task.pair
        return LabelledDataset(part.ids, part.gold, special, context=context, windows=windows, pair=pair)


def load_labelled_data(
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
    notes = [one.skip_note for one in given.values() if isinstance(one, LabelledTexts) and one.skip_note]
    tokenizer = _tokenizer(given[train], tokenizer, tokenizer_config, notes, progress)
    training = _texts(given[train], tokenizer)
    task = infer_task(training, config)
    notes += [*filter(None, [describe_balance(training)]), *label_hints(training, config)]
    if valid is None:
        share, rows = config.valid_fraction, len(training)
        training, validation = split_validation(training, share, seed)
        validation = replace(validation, name=f"held-out rows of {train}")
        notes.append(
            f"no validation file: {len(validation):,} of {rows:,} rows of {train} held out, stratified, to choose on"
        )
    else:
        validation = _texts(given[valid], tokenizer)
        notes += check_task(task, validation, train)
    testing = None
    if test is not None:
        testing = _texts(given[test], tokenizer)
        notes += check_task(task, testing, train)
    leaks: Overlap[int] = Overlap({}, {})
    if doubles:
        with progress.task("looking for doubles", None, "files"):
            said, leaks = _overlaps(training, validation, testing)
        notes += said
    for note in notes:
        progress.say(note)
    parts = [
        None if texts is None else encode_split(texts, task, tokenizer, progress)
        for texts in (training, validation, testing)
    ]
    assert parts[0] is not None
    assert parts[1] is not None
    return LabelledData(task, tokenizer, parts[0], parts[1], parts[2], tuple(notes), leaks)


def check_single_label(data: LabelledData, command: str, instead: str) -> None:
    """Refuse what a command that counts right answers cannot judge, and say what to do instead."""
    if data.task.kind != "classes":
        has = "several labels a text" if data.task.kind == "labels" else "ratings"
        raise UsageError(f"{command} is for one class a text, and {data.train.name} has {has}; {instead}")


def _overlaps(train: LabelledTexts, valid: LabelledTexts, test: LabelledTexts | None) -> tuple[list[str], Overlap[int]]:
    """What a careful person would want to know about the files before believing a number; and what test has of train."""
    notes = []
    known = [(texts, TextIndex(texts.texts)) for texts in (train, valid, test) if texts is not None]
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
                if judged.task_name == "rating"
                else "label only ({})".format(
                    ", ".join(judged.labels[0]) if judged.task_name == "labels" else judged.labels[0]
                )
            )
            notes.append(f"{judged.name} has one {what}: a score on it says little")
    return notes, leaks


InputTexts = LabelledTexts | Shards


def _read(name: str, config: LabelledConfig, progress: Progress) -> InputTexts:
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


def _kind(train: InputTexts) -> str:
    return "classes" if isinstance(train, Shards) else train.task_name


def _tokenizer(
    train: InputTexts, tokenizer: Tokenizer | None, config: TokenizerConfig, notes: list[str], progress: Progress
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


def _texts(given: InputTexts, tokenizer: Tokenizer) -> LabelledTexts:
    """Shards give their texts back by decoding, so that the linear arms of a comparison can read them too."""
    if isinstance(given, LabelledTexts):
        return given
    if given.tokenizer_digest != tokenizer.digest:
        raise UsageError(
            f"{given.folder} was prepared with another tokenizer than the rest; prepare it again with that one"
        )
    assert given.labels is not None
    assert given.label_indices is not None
    name = str(given.folder)
    return LabelledTexts(
        name=name,
        texts=tuple(tokenizer.decode([int(token) for token in given.ids(i)]) for i in range(given.num_documents)),
        labels=tuple(given.labels[int(label)] for label in given.label_indices),
        where=tuple(f"{name}, document {i + 1}" for i in range(given.num_documents)),
    )


def encode_split(texts: LabelledTexts, task: Task, tokenizer: Tokenizer, progress: Progress) -> EncodedSplit:
    """Labelled texts as token rows."""
    ids: list[NDArray[np.integer]] = []
    text_inputs = texts.text_inputs
    with progress.task(f"encoding {texts.name}", len(text_inputs), "texts") as bar:
        for start in range(0, len(text_inputs), 1000):
            bite = text_inputs[start : start + 1000]
            ids += [np.asarray(row, dtype=np.int32) for row in encode_inputs(tokenizer, bite)]
            bar.advance(len(bite))
    return EncodedSplit(texts.name, texts.texts, tuple(ids), task.gold(texts.labels), texts.sha256, text_inputs)


def build_classifier(
    shape: ModelConfig, data: LabelledData, source: Bundle | None, name: str, seed: int, attention: AttentionDirection
) -> tuple[Model[ClassifierHead], TransferReceipt | None]:
    """A classifier of this shape, from a pretrained folder or from random weights; the head is the same in both."""
    model: Model[ClassifierHead] = Model(
        build_backbone(shape, source.model.backbone.vocab_size if source else data.tokenizer.vocab_size, seed),
        build_classifier_head(shape, data.task.outputs, seed, attention, bias=data.task.kind == "rating"),
    )
    return model, transfer(name, model, data.tokenizer, source) if source else None


def model_config_for(source: Bundle, transfer: TransferConfig) -> ModelConfig:
    """The shape of a pretrained network, with the context and dropout that are wanted in place of its own."""
    positions = source.config.generic.positions if source.config.generic else 0
    if transfer.context is not None and positions and transfer.context > positions:
        raise ConfigError(
            f"transfer.context must be at most {positions}, the positions that {source.name} has learnt, "
            f"got {transfer.context}"
        )
    wanted = {"context": transfer.context, "dropout": transfer.dropout}
    return source.config.model_copy(update={name: value for name, value in wanted.items() if value is not None})


def resolve_attention(config: FinetuneConfig, source: Bundle | None) -> AttentionDirection:
    """How the classifier reads: as asked, as the source learnt to, or as its kind of network does best from scratch."""
    if config.transfer.attention != "auto":
        return config.transfer.attention
    if source is not None:
        return source.attention
    return "causal" if config.model.block == "classic" else "bidirectional"


def class_weights(config: FinetuneConfig, task: Task, train: EncodedSplit) -> Tensor | None:
    """Weights in the order of the labels, from names or from the balance of the training rows; None without.

    Of several labels a text, a weight is that of the rows that have the label beside those that have not.
    """
    wanted = config.transfer.class_weights
    if wanted is None:
        return None
    labels = task.labels
    if task.kind == "rating":
        raise ConfigError("transfer.class_weights is for labels, and a rating has none; leave it out")
    if wanted == "balanced":
        if task.kind == "labels":
            has = np.maximum(train.gold.sum(axis=0), 1)
            return torch.tensor(np.maximum(len(train) - has, 1) / has, dtype=torch.float32)
        counts = np.bincount(train.gold, minlength=len(labels))
        return torch.tensor(len(train) / (len(labels) * np.maximum(counts, 1)), dtype=torch.float32)
    for name in wanted:
        if name not in labels:
            raise ConfigError(
                f"transfer.class_weights names {name!r}, which is not a label; labels: {', '.join(labels)}"
            )
    return torch.tensor([wanted.get(label, 1.0) for label in labels], dtype=torch.float32)


def note_pretraining_overlap(
    data: LabelledData, source: Path | None, name: str | None, progress: Progress
) -> LabelledData:
    """The data with a note on how many of its test rows the pretrained model at `source` has seen, if it knows."""
    known = Membership.load(source) if source is not None and data.test is not None else None
    if known is None or data.test is None:
        return data
    rows = len(known.rows_in(data.test.texts))
    what = f"{'none' if not rows else f'{rows:,}'} of the {len(data.test):,} texts of {data.test.name}"
    note = f"{what} {'were' if rows > 1 else 'was'} in the pretraining text of {name}, word for word"
    progress.say(note)
    return replace(data, notes=(*data.notes, note))
