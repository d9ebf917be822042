"""The data and the network of a fine-tuning: labelled files or prepared shards, encoded; leak notes; the classifier."""

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
from headstart.data.diagnostics import check_scored_rows, check_training_rows
from headstart.data.labelled import (
    LabelledTexts,
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
from headstart.recipes.memory import check_finetune_memory
from headstart.store.bundle import Bundle
from headstart.store.transfer import TransferReceipt, transfer
from headstart.tasks import Task, TextInput
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

_CHUNK = 1000
"""Texts that are encoded at once."""

InputTexts = LabelledTexts | Shards


@dataclass(frozen=True)
class EncodedSplit:
    """One file of labelled texts, encoded."""

    name: str
    texts: tuple[str, ...]
    ids: tuple[NDArray[np.integer], ...]
    gold: NDArray[Any]
    """The labels as the task has them: indices, rows of 0 and 1, or numbers."""
    sha256: str
    text_inputs: tuple[TextInput, ...]
    """The inputs of the model: the texts, or pairs of texts."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Sequence[int]) -> "EncodedSplit":
        """Return the rows at the indices, in their order."""
        return replace(
            self,
            texts=tuple(self.texts[i] for i in indices),
            ids=tuple(self.ids[i] for i in indices),
            gold=self.gold[np.asarray(indices, dtype=np.int64)],
            text_inputs=tuple(self.text_inputs[i] for i in indices),
        )

    def describe(self, task: Task) -> dict[str, Any]:
        """Return name, number of rows, a summary of the labels and the hash, for the record."""
        return {"name": self.name, "rows": len(self), **task.describe(self.gold), "sha256": self.sha256}


@dataclass(frozen=True)
class LabelledData:
    """Training, validation and perhaps test rows, with one tokenizer and one task."""

    task: Task
    tokenizer: Tokenizer
    train: EncodedSplit
    valid: EncodedSplit
    test: EncodedSplit | None
    notes: tuple[str, ...]
    leaks: Overlap[int] = field(default_factory=lambda: Overlap({}, {}))
    """The test rows with an exact or a near-duplicate in train."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels in order."""
        return self.task.labels

    def fingerprints(self) -> dict[str, Any]:
        """Return a hash of each file's rows and of the tokenizer, by the names that an error message uses."""
        splits = {split.name: split.sha256 for split in (self.train, self.valid, self.test) if split}
        return splits | {"the tokenizer": self.tokenizer.digest}

    def dataset(self, split: EncodedSplit, context: int, config: LabelledConfig) -> LabelledDataset:
        """Return a split as rows of at most `context` tokens."""
        windows = config.long_texts == "windows"
        special, pair = self.tokenizer.special, self.task.pair
        return LabelledDataset(split.ids, split.gold, special, context=context, windows=windows, pair=pair)


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
    find_duplicates: bool = True,
) -> LabelledData:
    """Read, check and encode labelled files.

    Without `valid`, a stratified fraction of train is held out. Without a tokenizer, one is trained.

    Args:
        find_duplicates: search for texts that occur in two files; worker processes skip this.
    """
    _check_files_differ(train, valid, test)
    sources = {train: _read(train, config, progress)}
    same_task = config.model_copy(update={"task": _task_name(sources[train])})
    sources |= {name: _read(name, same_task, progress) for name in (valid, test) if name is not None}
    notes = [texts.skip_note for texts in sources.values() if isinstance(texts, LabelledTexts) and texts.skip_note]
    tokenizer = _tokenizer_for(sources[train], tokenizer, tokenizer_config, notes, progress)
    train_texts = _texts_of(sources[train], tokenizer)
    task = infer_task(train_texts, config)
    notes += check_training_rows(train_texts, config)
    notes += [*filter(None, [describe_balance(train_texts)]), *label_hints(train_texts, config)]
    if valid is None:
        rows = len(train_texts)
        train_texts, valid_texts = split_validation(train_texts, config.valid_fraction, seed)
        valid_texts = replace(valid_texts, name=f"held-out rows of {train}")
        notes.append(
            f"no validation file: {len(valid_texts):,} of {rows:,} rows of {train} held out for validation (stratified)"
        )
    else:
        valid_texts = _texts_of(sources[valid], tokenizer)
        notes += check_task(task, valid_texts, train) + check_scored_rows(valid_texts, config)
    test_texts = None
    if test is not None:
        test_texts = _texts_of(sources[test], tokenizer)
        notes += check_task(task, test_texts, train) + check_scored_rows(test_texts, config)
    leaks: Overlap[int] = Overlap({}, {})
    if find_duplicates:
        with progress.task("looking for duplicates", None, "files"):
            overlap_notes, leaks = _find_overlaps(train_texts, valid_texts, test_texts)
        notes += overlap_notes
    for note in notes:
        progress.say(note)
    train_split, valid_split = (encode_split(texts, task, tokenizer, progress) for texts in (train_texts, valid_texts))
    test_split = None if test_texts is None else encode_split(test_texts, task, tokenizer, progress)
    return LabelledData(task, tokenizer, train_split, valid_split, test_split, tuple(notes), leaks)


def _check_files_differ(train: str, valid: str | None, test: str | None) -> None:
    for name, role in ((valid, "validation"), (test, "test")):
        if name is not None and Path(name).resolve() == Path(train).resolve():
            raise UsageError(
                f"{name} is both the training file and the {role} file; a score on training rows is meaningless"
            )


def check_single_label(data: LabelledData, command: str, instead: str) -> None:
    """Raise an error for tasks other than single-label classification, with the alternative."""
    if data.task.kind != "classes":
        labels = "several labels per text" if data.task.kind == "labels" else "ratings"
        raise UsageError(f"{command} supports one class per text, but {data.train.name} has {labels}; {instead}")


def _find_overlaps(
    train: LabelledTexts, valid: LabelledTexts, test: LabelledTexts | None
) -> tuple[list[str], Overlap[int]]:
    """Return notes on texts that appear in two files or have one label only, and the overlap of test with train."""
    notes: list[str] = []
    indexed = [(texts, TextIndex(texts.texts)) for texts in (train, valid, test) if texts is not None]
    leaks: Overlap[int] = Overlap({}, {})
    for first, second in ((0, 1), (0, 2), (1, 2)):
        if second >= len(indexed):
            continue
        (earlier, earlier_index), (texts, index) = indexed[first], indexed[second]
        repeated = overlap(index, earlier_index)
        if texts is test and earlier is train:
            leaks = repeated
        notes += _overlap_notes(repeated, texts, earlier.name)
    for split in (valid, test):
        if split is not None and len(set(split.labels)) == 1:
            notes.append(f"{split.name} has one {_describe_only_label(split)}: its score has little meaning")
    return notes, leaks


def _overlap_notes(repeated: Overlap[int], texts: LabelledTexts, earlier: str) -> list[str]:
    notes = []
    exact, near = len(repeated.exact), len(repeated.near)
    if exact:
        notes.append(
            f"{exact:,} of {len(texts):,} texts of {texts.name} {_have(exact)} an exact duplicate in {earlier}"
        )
    if near:
        more = " more" if exact else ""
        notes.append(
            f"{near:,}{more} of {len(texts):,} texts of {texts.name} {_have(near)} a near-duplicate in {earlier}: "
            f"some words differ, or the text is part of a longer one"
        )
    return notes


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _describe_only_label(texts: LabelledTexts) -> str:
    label = texts.labels[0]
    if texts.task_name == "rating":
        return f"rating only ({label:g})"
    return f"label only ({', '.join(label) if texts.task_name == 'labels' else label})"


def _read(name: str, config: LabelledConfig, progress: Progress) -> InputTexts:
    if is_shards(name):
        shards = Shards.open(Path(name))
        if shards.labels is None:
            raise DataError(f"{name} was prepared without labels; prepare it with --labelled")
        if config.task not in ("auto", "classes") or config.second_column or config.separator:
            raise DataError(
                f"{name} is a prepared folder for one class per text; for several labels, ratings or pairs use the file itself"
            )
        return shards
    progress.say(f"reading {name}")
    return read_labelled(name, config)


def _task_name(train: InputTexts) -> str:
    return "classes" if isinstance(train, Shards) else train.task_name


def _tokenizer_for(
    train: InputTexts, tokenizer: Tokenizer | None, config: TokenizerConfig, notes: list[str], progress: Progress
) -> Tokenizer:
    """Return the tokenizer of the shards, the given one, or one that is trained here (noted in `notes`)."""
    if isinstance(train, Shards):
        shard_tokenizer = load_tokenizer(train.folder / "tokenizer")
        if tokenizer is not None and tokenizer.digest != shard_tokenizer.digest:
            raise UsageError(
                f"{train.folder} was prepared with another tokenizer than the model's; prepare it again with the "
                f"model's tokenizer"
            )
        return shard_tokenizer
    if tokenizer is not None:
        return tokenizer
    trained = train_tokenizer(train.texts, config, progress)
    notes.append(f"no tokenizer given: a tokenizer with {trained.vocab_size:,} entries was trained on {train.name}")
    return trained


def _texts_of(source: InputTexts, tokenizer: Tokenizer) -> LabelledTexts:
    """Return the texts of a file; those of shards are decoded, since the linear arms of a comparison read them too."""
    if isinstance(source, LabelledTexts):
        return source
    if source.tokenizer_digest != tokenizer.digest:
        raise UsageError(
            f"{source.folder} was prepared with another tokenizer than the other files; prepare it again with the "
            f"same tokenizer"
        )
    assert source.labels is not None
    assert source.label_indices is not None
    name = str(source.folder)
    return LabelledTexts(
        name=name,
        texts=tuple(tokenizer.decode([int(token) for token in source.ids(i)]) for i in range(source.num_documents)),
        labels=tuple(source.labels[int(label)] for label in source.label_indices),
        where=tuple(f"{name}, document {i + 1}" for i in range(source.num_documents)),
    )


def encode_split(texts: LabelledTexts, task: Task, tokenizer: Tokenizer, progress: Progress) -> EncodedSplit:
    """Encode labelled texts."""
    ids: list[NDArray[np.integer]] = []
    text_inputs = texts.text_inputs
    with progress.task(f"encoding {texts.name}", len(text_inputs), "texts") as bar:
        for start in range(0, len(text_inputs), _CHUNK):
            chunk = text_inputs[start : start + _CHUNK]
            ids += [np.asarray(row, dtype=np.int32) for row in encode_inputs(tokenizer, chunk)]
            bar.advance(len(chunk))
    return EncodedSplit(texts.name, texts.texts, tuple(ids), task.gold(texts.labels), texts.sha256, text_inputs)


def check_training_memory(
    config: FinetuneConfig,
    data: LabelledData,
    backbone: Bundle | None,
    *,
    frozen: bool = False,
    max_rows: int | None = None,
) -> None:
    """Refuse to train on these rows where it cannot fit into memory, before the network is built.

    Args:
        frozen: only heads are trained.
        max_rows: no run is trained on more rows than this.
    """
    vocab_size = backbone.model.backbone.vocab_size if backbone else data.tokenizer.vocab_size
    rows = data.dataset(data.train, config.model.context, config.labelled)
    check_finetune_memory(config, vocab_size, rows, max_rows, backbone=backbone is not None, frozen=frozen)


def build_classifier(
    config: ModelConfig,
    data: LabelledData,
    backbone: Bundle | None,
    name: str,
    seed: int,
    attention: AttentionDirection,
) -> tuple[Model[ClassifierHead], TransferReceipt | None]:
    """Build a classifier with a pretrained or a random backbone; the head is the same in both.

    Args:
        name: how the receipt names the backbone.
    """
    vocab_size = backbone.model.backbone.vocab_size if backbone else data.tokenizer.vocab_size
    model: Model[ClassifierHead] = Model(
        build_backbone(config, vocab_size, seed),
        build_classifier_head(config, data.task.outputs, seed, attention, bias=data.task.kind == "rating"),
    )
    return model, transfer(name, model, data.tokenizer, backbone) if backbone else None


def model_config_for(backbone: Bundle, transfer: TransferConfig) -> ModelConfig:
    """Return the shape of a pretrained network, with the context and the dropout that `transfer` sets."""
    positions = backbone.config.generic.positions if backbone.config.generic else 0
    if transfer.context is not None and positions and transfer.context > positions:
        raise ConfigError(
            f"transfer.context must be at most {positions}, the number of positions of {backbone.name}, got {transfer.context}"
        )
    changes = {"context": transfer.context, "dropout": transfer.dropout}
    return backbone.config.model_copy(update={name: value for name, value in changes.items() if value is not None})


def resolve_attention(config: FinetuneConfig, backbone: Bundle | None) -> AttentionDirection:
    """Return the attention direction: as set, that of the backbone, or the better one of a block from scratch."""
    if config.transfer.attention != "auto":
        return config.transfer.attention
    if backbone is not None:
        return backbone.attention
    return "causal" if config.model.block == "classic" else "bidirectional"


def class_weights(config: FinetuneConfig, task: Task, train: EncodedSplit) -> Tensor | None:
    """Return the weights in the order of the labels, by name or balanced over the training rows; None without any.

    With several labels per text, a weight is that of the rows with the label against the rows without it.
    """
    weights = config.transfer.class_weights
    if weights is None:
        return None
    labels = task.labels
    if task.kind == "rating":
        raise ConfigError("transfer.class_weights needs labels, but the task is a rating; remove it")
    if weights == "balanced":
        if task.kind == "labels":
            positives = np.maximum(train.gold.sum(axis=0), 1)
            return torch.tensor(np.maximum(len(train) - positives, 1) / positives, dtype=torch.float32)
        counts = np.bincount(train.gold, minlength=len(labels))
        return torch.tensor(len(train) / (len(labels) * np.maximum(counts, 1)), dtype=torch.float32)
    for name in weights:
        if name not in labels:
            raise ConfigError(
                f"transfer.class_weights names {name!r}, which is not a label; labels: {', '.join(labels)}"
            )
    return torch.tensor([weights.get(label, 1.0) for label in labels], dtype=torch.float32)


def note_pretraining_overlap(
    data: LabelledData, folder: Path | None, name: str | None, progress: Progress
) -> LabelledData:
    """Add a note on how many test rows the pretrained model in `folder` has seen, if its bundle records that."""
    members = Membership.load(folder) if folder is not None and data.test is not None else None
    if members is None or data.test is None:
        return data
    rows = len(members.rows_in(data.test.texts))
    counted = f"{'none' if not rows else f'{rows:,}'} of the {len(data.test):,} texts of {data.test.name}"
    note = f"{counted} {'have' if rows > 1 else 'has'} an exact duplicate in the pretraining text of {name}"
    progress.say(note)
    return replace(data, notes=(*data.notes, note))
