"""The choice among several starters of one language: linear probing (Alain and Bengio, 2017) on a sample of labelled rows.

A logistic regression is cross-validated on the frozen, mean-pooled hidden states of each starter. In measurements on seven
datasets with 100 and 1,000 labels, its log-loss ranked the starters as fine-tuning did (`docs/results/starters.md`), at
a small fraction of the time.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from headstart.config.schema import LabelledConfig
from headstart.data.datasets import LabelledDataset
from headstart.data.labelled import LabelledTexts, label_subset
from headstart.interop.model_source import load_model_source
from headstart.model.heads import ClassifierHead, Model
from headstart.progress import SilentProgress, pluralize
from headstart.recipes.auto.schedule import Speed
from headstart.recipes.auto.table import Table, stratified_folds
from headstart.recipes.finetune.dataset import LabelledData, encode_split
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.train.scoring import score_texts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_ROWS, MAX_TOKENS, FOLDS = 200, 128, 3
MIN_ROWS = 50
"""With fewer rows than this, where the time is short, the starters are not compared."""
PROBE_FRACTION = 0.1
"""The fraction of the time for training that the comparison may take."""
_TRIAL_ROWS = 8
_SIMILAR_TIME = 1.5
"""Forward passes whose times differ by no more than this factor count as equally fast."""
_BACKWARD = 3.0
"""The time of a training step relative to that of its forward pass, for a starter that there is no time to measure."""
_C = 0.01
_MIN_PROBABILITY = 1e-6


@dataclass(frozen=True)
class Probe:
    """The result of probing one starter."""

    name: str
    log_loss: float | None
    """Cross-validated, per row; None if there was no time to compare the starters."""
    row_seconds: float
    """The time of the forward pass of one row."""


@dataclass(frozen=True)
class Probes:
    """The starters from the lowest log-loss to the highest, or in the given order if they were not compared."""

    starters: tuple[Probe, ...]
    rows: int
    """The rows on which they were compared; 0 if they were not."""

    def describe(self, chosen: Probe) -> str:
        """Return the log-losses and the choice in one line."""
        before = self.starters[: self.starters.index(chosen)]
        slow = " and ".join(probe.name for probe in before)
        choice = f"{chosen.name} ({slow} would take too long)" if slow else chosen.name
        if not self.rows:
            return f"starters were not compared, because the time is short; chosen: {choice}"
        losses = ", ".join(f"{probe.name} {probe.log_loss:.3f}" for probe in self.starters)
        return (
            f"starters on {pluralize(self.rows, 'row')}, log-loss of a linear probe (lower is better): {losses}; "
            f"chosen: {choice}"
        )


def probe_starters(
    names: Sequence[str],
    table: Table,
    labelled: LabelledConfig,
    runtime: Runtime,
    seed: int,
    check: Callable[[], None],
    seconds: float = math.inf,
) -> Probes:
    """Probe each starter on the same rows.

    Args:
        check: may raise between batches, to stop.
        seconds: the time that the forward passes may take; they then read fewer rows, or only those that time them.
    """
    train = table.train
    order = np.array(label_subset(list(train.labels), min(MAX_ROWS, len(train)), seed, train.digests))
    texts = train.take(order)
    candidates = [_Candidate.load(name, texts, table, labelled, runtime, check) for name in names]
    affordable = seconds / sum(candidate.probe_row_seconds for candidate in candidates)
    if affordable < min(MIN_ROWS, len(order)):
        return Probes(tuple(Probe(one.name, None, one.row_seconds) for one in candidates), 0)
    rows = np.arange(len(order))
    if affordable < len(order):
        rows = np.array(label_subset(list(texts.labels), int(affordable), seed, texts.digests))
    gold, fold_of = table.gold[order[rows]], stratified_folds(texts.take(rows), FOLDS, seed)
    probes = []
    for candidate in candidates:
        features = frozen_features(candidate.bundle, candidate.dataset.subset(rows), runtime, check)
        log_loss = cross_validated_log_loss(features, gold, len(table.task.labels), fold_of)
        probes.append(Probe(candidate.name, log_loss, candidate.row_seconds))
    return Probes(tuple(sorted(probes, key=lambda probe: (probe.log_loss, probe.name))), len(rows))


@dataclass(frozen=True)
class _Candidate:
    """A starter, the texts in its tokens, and the time that a text takes."""

    name: str
    bundle: Bundle
    dataset: LabelledDataset
    token_seconds: float

    @classmethod
    def load(
        cls,
        name: str,
        texts: LabelledTexts,
        table: Table,
        labelled: LabelledConfig,
        runtime: Runtime,
        check: Callable[[], None],
    ) -> Self:
        bundle = load_model_source(name, head_type="language")
        split = encode_split(texts, table.task, bundle.tokenizer, SilentProgress())
        data = LabelledData(table.task, bundle.tokenizer, split, split, None, ())
        dataset = data.dataset(split, min(MAX_TOKENS, bundle.config.context), labelled)
        trial = dataset.subset(np.arange(min(_TRIAL_ROWS, len(texts))))
        frozen_features(bundle, trial, runtime, check)  # the first time is slower than all others
        started = time.perf_counter()
        frozen_features(bundle, trial, runtime, check)
        return cls(name, bundle, dataset, (time.perf_counter() - started) / trial.num_tokens)

    @property
    def probe_row_seconds(self) -> float:
        """The seconds of a row, truncated as for the probe."""
        return self.token_seconds * self.dataset.num_tokens / len(self.dataset)

    @property
    def row_seconds(self) -> float:
        """The seconds of a row, truncated at the context of the starter if long texts are truncated."""
        lengths, context = self.dataset.lengths, self.bundle.config.context
        return float(self.token_seconds * (lengths if self.dataset.windows else np.minimum(lengths, context)).mean())


def frozen_features(bundle: Bundle, dataset: LabelledDataset, runtime: Runtime, check: Callable[[], None]) -> Floats:
    """Return the mean-pooled hidden states of the texts."""
    head = ClassifierHead(bundle.config, bundle.config.width, "bidirectional")
    head.dense = None
    nn.init.eye_(head.linear.weight)
    nn.init.zeros_(head.linear.bias)
    model = Model(bundle.model.backbone, head).to(runtime.device)
    features: Floats = score_texts(model, dataset, runtime, check).astype(np.float64)
    return features


def cross_validated_log_loss(features: Floats, gold: Ints, num_labels: int, fold_of: Ints) -> float:
    """Return the log-loss per row of logistic regressions, each on the rows of the other folds."""
    losses = np.zeros(len(gold))
    for fold in np.unique(fold_of):
        held_out = fold_of == fold
        probabilities = np.full((held_out.sum(), num_labels), _MIN_PROBABILITY)
        known = np.unique(gold[~held_out])
        if len(known) > 1:
            scaler = StandardScaler().fit(features[~held_out])
            regression = LogisticRegression(C=_C, max_iter=200)
            with warnings.catch_warnings():  # many classes for few rows, and a fit that has not converged yet
                warnings.simplefilter("ignore")
                regression.fit(scaler.transform(features[~held_out]), gold[~held_out])
            probabilities[:, known] = regression.predict_proba(scaler.transform(features[held_out]))
        else:
            probabilities[:, known] = 1.0
        own = probabilities[np.arange(held_out.sum()), gold[held_out]]
        losses[held_out] = -np.log(np.maximum(own, _MIN_PROBABILITY))
    return float(losses.mean())


def choose_probe(
    probes: Sequence[Probe],
    rows_per_step: int,
    fits: Callable[[Speed], bool],
    measure_speed: Callable[[str], Speed | None],
    can_train: Callable[[Speed], bool] = lambda _: True,
    *,
    asynchronous: bool = False,
) -> tuple[Probe, Speed]:
    """Return the first starter whose training fits into the time, else the first of the fastest; and its speed.

    Args:
        probes: from the lowest log-loss to the highest.
        rows_per_step: the batch size of the training.
        fits: whether the trainings of a network of this speed fit into the time that is left.
        measure_speed: times a few steps of a starter, or returns None if there is no time for that.
        can_train: whether the shortest training fits; if not even its forward passes do, nothing is measured.
        asynchronous: the device is a GPU, whose captured steps may be faster than an eager forward pass. Elsewhere, a
            starter whose forward passes alone would take too long is not measured.
    """
    speeds: dict[str, Speed] = {}
    for probe in probes:
        if not asynchronous and not fits(Speed(probe.row_seconds * rows_per_step, probe.row_seconds)):
            continue
        speed = measure_speed(probe.name)
        if speed is None:
            break
        speeds[probe.name] = speed
        if fits(speed):
            return probe, speed
    limit = _SIMILAR_TIME * min(probe.row_seconds for probe in probes)
    fastest = next(probe for probe in probes if probe.row_seconds <= limit)
    forecast = Speed(_BACKWARD * fastest.row_seconds * rows_per_step, fastest.row_seconds)
    if fastest.name in speeds:
        return fastest, speeds[fastest.name]
    if not asynchronous and not can_train(Speed(fastest.row_seconds * rows_per_step, fastest.row_seconds)):
        return fastest, forecast
    return fastest, measure_speed(fastest.name) or forecast
