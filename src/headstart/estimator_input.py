"""Texts and labels in memory as the recipes take them: what a scikit-learn estimator is given, checked."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from headstart.config import FinetuneConfig
from headstart.data.labelled import LabelledTexts, Question, split_validation
from headstart.data.targets import target_of
from headstart.errors import DataError
from headstart.kinds import Classes, Kind, Label, Labels, Target
from headstart.progress import Quiet
from headstart.recipes.labelled_data import LabelledData, encoded
from headstart.store.bundle import Bundle
from headstart.text.tokenizer import Tokenizer, train_tokenizer


class InputError(DataError, ValueError):
    """Texts or labels that cannot be learnt from; scikit-learn's own tools expect a ValueError here."""


def texts_in(X: Iterable[Any], name: str) -> list[Question]:
    """Texts from whatever holds them in a row (a list, a tuple, an array or a column of a table), or pairs of them."""
    if isinstance(X, (str, bytes)) or not isinstance(X, Iterable):
        raise InputError(f"{name} must be a sequence of texts, got {X!r:.40}")
    if getattr(X, "ndim", 1) != 1:
        raise InputError(f"{name} must be a sequence of texts, got an array of {X.ndim} dimensions; give one column")  # type: ignore[attr-defined]
    texts = list(X)
    pair = bool(texts) and isinstance(texts[0], tuple)
    found: list[Question] = []
    for place, text in enumerate(texts):
        if pair and not (isinstance(text, tuple) and len(text) == 2):
            raise InputError(f"{name}[{place}] is {text!r:.40}, expected a pair of texts as in {name}[0]")
        for part in text if pair else (text,):
            if not isinstance(part, str):
                raise InputError(f"{name}[{place}] is {text!r:.40}, expected a text")
            if not part.strip():
                raise InputError(f"{name}[{place}] is empty; there is nothing to read")
        found.append((str(text[0]), str(text[1])) if pair else str(text))  # numpy's strings are not quite Python's
    if not texts:
        raise InputError(f"{name} holds no texts")
    return found


def labels_in(y: Iterable[Any] | None, rows: int, who: str) -> tuple[Kind, np.ndarray, list[Label]]:
    """The kind of answer, the different labels in order, and what each row is labelled with, by names."""
    if y is None:
        raise InputError(f"{who} requires y to be passed, but the target y is None")
    if getattr(y, "ndim", 1) == 2 and y.shape[1] > 1:  # type: ignore[attr-defined]
        return _indicators(np.asarray(y), rows)
    if isinstance(y, (list, tuple)) and y and isinstance(y[0], (list, tuple, set, frozenset)):
        return _several(y, rows)
    labels = column_or_1d(y, warn=True)
    _check_count(len(labels), rows)
    for place, label in enumerate(labels.tolist()):
        if label is None or (isinstance(label, float) and not math.isfinite(label)):
            raise InputError(f"y[{place}] is {label!r}, expected a label")
    check_classification_targets(labels)
    classes, gold = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least two labels")
    names = names_of("classes", classes)
    return "classes", classes, [names[index] for index in gold]


def _indicators(y: np.ndarray, rows: int) -> tuple[Kind, np.ndarray, list[Label]]:
    """A column a label, as scikit-learn has it: 1 where a row has it."""
    _check_count(len(y), rows)
    if not np.isin(y, (0, 1)).all():
        raise InputError("y has a column a label and must hold 0 and 1 alone")
    classes = np.arange(y.shape[1])
    names = names_of("labels", classes)
    return "labels", classes, [tuple(names[place] for place in np.flatnonzero(row)) for row in y]


def names_of(kind: Kind, classes: np.ndarray) -> tuple[str, ...]:
    """The names of labels in their order; the numbers of columns with zeros in front, so that names sort likewise."""
    names = list(map(str, classes.tolist()))
    width = max(map(len, names), default=0) if kind == "labels" and classes.dtype.kind == "i" else 0
    return tuple(name.zfill(width) for name in names)


def _several(y: Sequence[Any], rows: int) -> tuple[Kind, np.ndarray, list[Label]]:
    _check_count(len(y), rows)
    for place, names in enumerate(y):
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
            raise InputError(f"y[{place}] is {names!r:.40}, expected a list of label names")
    found = [tuple(sorted(set(map(str, names)))) for names in y]
    return "labels", np.array(sorted({name for names in found for name in names})), list(found)


def numbers_in(y: Iterable[Any] | None, rows: int, who: str) -> list[Label]:
    """A finite number a row."""
    if y is None:
        raise InputError(f"{who} requires y to be passed, but the target y is None")
    try:
        numbers = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y must be a number for each text") from None
    _check_count(len(numbers), rows)
    for place, number in enumerate(numbers.tolist()):
        if not math.isfinite(number):
            raise InputError(f"y[{place}] is {number!r}, expected a finite number")
    return list(map(float, numbers))


def _check_count(labels: int, rows: int) -> None:
    if labels != rows:
        raise InputError(f"X has {rows:,} texts and y {labels:,} labels; expected one each")


def data_of(
    texts: list[Question],
    labels: list[Label],
    kind: Kind,
    names: tuple[str, ...],
    config: FinetuneConfig,
    source: Bundle | None,
) -> LabelledData:
    """The rows as fine-tuning takes them, a share held out for validation."""
    where = tuple(f"X[{place}]" for place in range(len(texts)))
    pairs = tuple(text for text in texts if not isinstance(text, str)) or None
    whole = tuple(text if isinstance(text, str) else "\n".join(text) for text in texts)
    rows = LabelledTexts("X", whole, tuple(labels), where, kind, pairs)
    target = _target(rows, names, config)
    try:
        parts = split_validation(rows, config.labelled.valid_share, config.runtime.seed)
    except DataError:
        raise InputError(
            f"{len(texts)} texts are too few to hold out {config.labelled.valid_share:g} of each label for validation"
        ) from None
    tokenizer: Tokenizer = source.tokenizer if source else train_tokenizer(rows.texts, config.tokenizer)
    train, valid = (encoded(part, target, tokenizer, Quiet()) for part in parts)
    return LabelledData(target, tokenizer, train, valid, None, ())


def _target(rows: LabelledTexts, names: tuple[str, ...], config: FinetuneConfig) -> Target:
    pair = rows.pairs is not None
    if rows.kind == "classes":
        return Classes(names, pair)
    if rows.kind == "labels":
        if not names:
            raise InputError("y has no label in any row; there is nothing to learn")
        return Labels(names, pair)
    if len(set(rows.labels)) < 2:
        raise InputError(f"y has one number only, {rows.labels[0]:g}; there is nothing to tell apart")
    return target_of(rows, config.labelled)
