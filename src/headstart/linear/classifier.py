"""A linear classifier on TF-IDF of n-grams: fitting with cross-validation, logits, contributions, tensors. No torch.

The features are TF-IDF of one or two words and of two to five characters of a word. One support vector machine per label
is fitted on them, with complement naive Bayes beside it; cross-validation chooses the strength of regularization and the
proportion of the two, and out-of-fold logits calibrate the probabilities. `benchmarks/linear.py` compares it with others.

N texts, F n-grams, C labels.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.linear.features import FittedViews, fit_views
from headstart.linear.solver import (
    Design,
    fit_machines,
    fit_mixture,
    fit_naive_bayes,
    fold_numbers,
    measure_fit,
    out_of_fold,
    sample_rows,
)
from headstart.linear.views import LARGEST, View, checked_view
from headstart.linear.vocabulary import Kind, token_spans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STRENGTHS = (0.3, 1.0, 3.0)
"""The values of C that cross-validation chooses from; a larger one fits the texts more closely."""
DEFAULT_STRENGTH = 1.0
"""C where there are too few texts for cross-validation."""
COMPONENT_SCALES = (1.0, 0.5)
"""The weights of the components, beside 0, that cross-validation chooses from where there are unlabelled texts."""
MAX_NONZEROS = 100_000_000
"""Nonzero features that are fitted at a time; of more texts than have as many, a sample is fitted."""
MAX_SELECTION_ROWS, MAX_SELECTION_NONZEROS = 2_000, 1_500_000
"""Texts on which cross-validation chooses, and their features."""
MIN_SELECTION_ROWS = 20
TRIAL_NONZEROS = 1_000_000
"""The number of nonzero features on which a fit is timed; up to twice as many are fitted without that."""
TIME_GROWTH = 1.1
"""The time of a fit grows with this power of the number of texts (measured with 10,000 to 160,000 short texts)."""
NUM_FOLDS, NUM_FOLDS_OF_MANY = 5, 3


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A fitted linear classifier; `softmax(logits(texts))` are calibrated probabilities."""

    views: tuple[View, ...]
    bias: NDArray[np.float32]
    """The bias of each label, (C,); about -30 for a label that no training text had."""

    def logits(self, texts: Sequence[str]) -> Floats:
        """Return the calibrated logits of texts, (N, C)."""
        logits = np.tile(self.bias.astype(np.float64), (len(texts), 1))
        for view in self.views:
            logits += view.logits(texts)
        return logits

    def contributions(self, text: str, label: int) -> list[tuple[int, int, float]]:
        """Return (start, end, contribution) of the spans of a text: its words, and what is between them and blanks.

        They sum to the margin of the label less the margin of its bias, where a margin is the label's logit minus the
        mean of the other labels' logits. The words or characters of an n-gram share its contribution equally.
        """
        spans = _spans(text)
        owners = np.full(len(text), -1)
        for number, (start, end) in enumerate(spans):
            owners[start:end] = number
        scores = np.zeros(len(spans))
        for view in self.views:
            others = np.delete(view.weight, label, axis=1).astype(np.float64)
            direction = view.weight[:, label] - (others.mean(axis=1) if others.shape[1] else 0.0)
            for start, _, score in view.contributions(text, direction):
                scores[owners[start]] += score
        return [(start, end, float(score)) for (start, end), score in zip(spans, scores, strict=True)]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for safetensors."""
        tensors: dict[str, NDArray[Any]] = {"bias": self.bias}
        for view in self.views:
            tensors |= {
                f"{view.kind}.ngrams": view.ngrams,
                f"{view.kind}.idf": view.idf,
                f"{view.kind}.weight": view.weight.astype(np.float16),
            }
        return tensors

    def facts(self) -> dict[str, Any]:
        """Return everything else as JSON values."""
        return {"views": [{"kind": view.kind, "tokens": list(view.tokens)} for view in self.views]}

    @classmethod
    def from_tensors(cls, facts: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> "LinearClassifier":
        """Rebuild a classifier; a ValueError says what does not fit."""
        kinds, bias = _view_facts(facts), tensors.get("bias")
        if bias is None or bias.ndim != 1 or not len(bias) or bias.dtype.kind != "f":
            raise ValueError("bias is not an array of one number per label")
        if not np.isfinite(bias).all() or np.abs(bias).max() > LARGEST:
            raise ValueError(f"bias has a value that is not finite or beyond {LARGEST:,}")
        expected = {"bias"} | {f"{kind}.{name}" for kind in kinds for name in ("ngrams", "idf", "weight")}
        if set(tensors) != expected:
            raise ValueError(f"the tensors are {', '.join(sorted(tensors))}; expected {', '.join(sorted(expected))}")
        views = tuple(
            checked_view(
                kind,
                tokens,
                {name: tensors[f"{kind}.{name}"] for name in ("ngrams", "idf", "weight")},
                num_labels=len(bias),
            )
            for kind, tokens in kinds.items()
        )
        return cls(views, bias.astype(np.float32))


def _view_facts(facts: Mapping[str, Any]) -> dict[Kind, tuple[str, ...]]:
    """Return the tokens of each view; a ValueError says what is wrong."""
    views = facts.get("views") if isinstance(facts, Mapping) else None
    if not isinstance(views, list) or not all(isinstance(view, Mapping) for view in views):
        raise ValueError("views is not a list of objects")
    tokens: dict[Kind, tuple[str, ...]] = {}
    for view in views:
        kind, names = view.get("kind"), view.get("tokens")
        if kind not in ("words", "characters") or kind in tokens:
            raise ValueError(f"the kind of a view is {kind!r}; expected words or characters, each once")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"the tokens of {kind} are not a list of strings")
        if len(set(names)) < len(names):
            raise ValueError(f"{kind} has a token twice")
        if kind == "characters" and any(len(name) != 1 for name in names):
            raise ValueError("a token of characters is not a single character")
        if any("\ud800" <= letter <= "\udfff" for letter in "".join(names)):
            raise ValueError(f"a token of {kind} contains an unpaired surrogate")
        tokens[kind] = tuple(names)
    return tokens


def _spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text's words, and of the runs of other characters that are not blank."""
    words = token_spans("words", text)
    free = np.zeros(len(text) + 2, dtype=np.int8)  # with a border at both ends
    for start, end in token_spans("characters", text):
        free[start + 1 : end + 1] = 1
    for start, end in words:
        free[start + 1 : end + 1] = 0
    changes = np.diff(free)
    others = zip(np.flatnonzero(changes == 1).tolist(), np.flatnonzero(changes == -1).tolist(), strict=True)
    return sorted([*words, *others])


@dataclass(frozen=True)
class LinearFit:
    """A fitted classifier, and what cross-validation measured."""

    classifier: LinearClassifier
    oof_logits: Floats
    """Out-of-fold logits of the training texts, calibrated like the classifier's."""
    setting: dict[str, Any]
    """The settings that cross-validation chose, as JSON values."""
    tried: tuple[dict[str, Any], ...]
    """The settings that were tried, with their cross-validated accuracy and loss."""


def fit_linear(
    texts: Sequence[str],
    gold: Sequence[int] | NDArray[np.int64],
    num_labels: int,
    *,
    unlabelled: Sequence[str] = (),
    seed: int = 0,
    seconds: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> LinearFit:
    """Fit a linear classifier; cross-validation chooses its regularization. The order of the texts does not matter.

    Args:
        unlabelled: further texts of the same kind: their n-grams and the components of their features help where
            labelled texts are few.
        seconds: the approximate time limit. If there are too many texts for it, a sample of them is fitted, and
            `setting["rows"]` is its size.
        check: called between fits; it may raise to interrupt.
    """
    started = time.perf_counter()
    if not len(texts) or len(texts) != len(gold):
        raise ValueError(f"{len(texts)} texts and {len(gold)} labels; expected the same number, and one or more")
    order = sorted(range(len(texts)), key=lambda row: (texts[row], gold[row]))
    texts, gold = [texts[row] for row in order], np.asarray(gold, dtype=np.int64)[order]
    fitted = fit_views(texts, sorted(unlabelled), num_labels, seed, check)
    design = _make_design(fitted, texts, gold, num_labels, seed)
    setting, tried = _choose_setting(design, check)
    design = replace(design, scale=setting.get("components", 0.0))
    strength = setting["C"]
    num_folds = NUM_FOLDS_OF_MANY if len(texts) > MAX_SELECTION_ROWS else NUM_FOLDS
    size = _rows_with(MAX_NONZEROS, design)
    if seconds is not None:
        left = seconds - (time.perf_counter() - started)
        size = min(size, _affordable_rows(design, strength, num_folds + 1, left, check))
    rows = sample_rows(design.gold, size, seed)
    folds = fold_numbers(design, num_folds)
    out = out_of_fold(design, strength, folds, rows=rows, check=check)
    mixture = fit_mixture(out, design.gold)
    check()
    chosen = design.take(rows)
    weight, bias = fit_machines(chosen, strength)
    weight = (weight + out.coefficient(mixture.bayes) * fit_naive_bayes(chosen)) / mixture.calibration.temperature
    bias = mixture.calibration.apply(bias)
    boundaries = np.cumsum([len(view.ngrams) for view in fitted.views])[:-1]
    views = tuple(
        replace(view, weight=part.astype(np.float16).astype(np.float32))
        for view, part in zip(fitted.views, np.split(weight, boundaries), strict=True)
    )
    classifier = LinearClassifier(views, bias.astype(np.float32))
    setting |= {"naive_bayes": mixture.bayes, "temperature": mixture.calibration.temperature}
    if len(rows) < len(texts):
        setting["rows"] = len(rows)
    return LinearFit(classifier, mixture.logits[np.argsort(order)], setting, tried)


def _rows_with(nonzeros: int, design: Design) -> int:
    """Return the number of texts that have about this many nonzero features in total."""
    return int(nonzeros / max(1, design.features.nnz) * len(design.gold))


def _affordable_rows(design: Design, strength: float, fits: int, seconds: float, check: Callable[[], None]) -> int:
    """Return the number of texts for which `fits` fits take about `seconds`, estimated from a fit of a sample."""
    trial = _rows_with(TRIAL_NONZEROS, design)
    if 2 * trial >= len(design.gold):
        return len(design.gold)
    trial_seconds = fits * measure_fit(design.take(sample_rows(design.gold, trial, design.seed)), strength)
    check()
    return int(trial * max(1.0, seconds / trial_seconds) ** (1 / TIME_GROWTH))


def _make_design(fitted: FittedViews, texts: Sequence[str], gold: Ints, num_labels: int, seed: int) -> Design:
    groups = np.cumsum([0, *(before != text for before, text in pairwise(texts))])
    components = fitted.components
    projections = None if components is None else fitted.features @ components
    return Design(fitted.features, gold, groups, num_labels, seed, components, projections)


def _choose_setting(design: Design, check: Callable[[], None]) -> tuple[dict[str, float], tuple[dict[str, Any], ...]]:
    """Return the setting with the lowest cross-validated loss, and what was tried."""
    scale = {"components": COMPONENT_SCALES[0]} if design.components is not None else {}
    best: dict[str, Any] = {"C": DEFAULT_STRENGTH} | scale
    num_folds = NUM_FOLDS_OF_MANY if len(design.gold) > MAX_SELECTION_ROWS else NUM_FOLDS
    size = _rows_with(MAX_SELECTION_NONZEROS, design)
    design = design.take(
        sample_rows(design.gold, min(MAX_SELECTION_ROWS, max(size, 10 * len(design.present))), design.seed)
    )
    if len(design.gold) < MIN_SELECTION_ROWS or len(design.present) < 2:
        return best, ()
    folds = fold_numbers(design, num_folds)
    tried: list[dict[str, Any]] = []

    def best_of(settings: list[dict[str, float]]) -> dict[str, float]:
        for setting in settings:
            seen = replace(design, scale=setting.get("components", 0.0))
            mixture = fit_mixture(out_of_fold(seen, setting["C"], folds, check=check), design.gold)
            accuracy = float((mixture.logits.argmax(axis=1) == design.gold).mean())
            tried.append(setting | {"naive_bayes": mixture.bayes, "accuracy": accuracy, "loss": mixture.loss})
        chosen = min(tried, key=lambda one: one["loss"])
        return {name: chosen[name] for name in best}

    best = best_of([best | {"C": strength} for strength in STRENGTHS])
    if scale:
        best = best_of([best | {"components": other} for other in (*COMPONENT_SCALES[1:], 0.0)])
    return best, tuple(tried)
