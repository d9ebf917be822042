"""The choice among several starters of one language: linear probing (Alain and Bengio, 2017) on a sample of labelled rows.

A logistic regression is cross-validated on the frozen, mean-pooled hidden states of each starter. In measurements on seven
datasets with 100 and 1,000 labels, its log-loss ranked the starters as fine-tuning did (`docs/results/starters.md`), at
a small fraction of the time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from headstart.config.schema import FinetuneLoop, LabelledConfig
from headstart.data.datasets import LabelledDataset
from headstart.data.labelled import label_subset
from headstart.interop.model_source import load_model_source
from headstart.model.heads import ClassifierHead, Model
from headstart.progress import SilentProgress
from headstart.recipes.auto.schedule import NetworkPlan, Speed
from headstart.recipes.auto.table import Table, stratified_folds
from headstart.recipes.finetune.dataset import LabelledData, encode_split
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.train.scoring import score_texts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_ROWS, MAX_TOKENS, FOLDS = 200, 128, 3
_C = 0.01
_MIN_PROBABILITY = 1e-6
FULL_PLAN_FOLDS = 2
"""The folds, with a final training on all rows, that the time must allow for a starter that has a faster alternative."""


@dataclass(frozen=True)
class Probe:
    """The result of probing one starter."""

    name: str
    log_loss: float
    """Cross-validated, per row."""
    row_seconds: float
    """The time of the forward pass of one row."""


def probe_starters(
    names: Sequence[str],
    table: Table,
    labelled: LabelledConfig,
    runtime: Runtime,
    seed: int,
    check: Callable[[], None],
) -> list[Probe]:
    """Probe each starter on the same rows; returns them from the lowest log-loss to the highest.

    Args:
        check: may raise between batches, to stop.
    """
    train = table.train
    chosen = np.array(label_subset(list(train.labels), min(MAX_ROWS, len(train)), seed, train.digests))
    texts, gold = train.take(chosen), table.gold[chosen]
    fold_of = stratified_folds(texts, FOLDS, seed)
    probes = []
    for name in names:
        bundle = load_model_source(name, head_type="language")
        split = encode_split(texts, table.task, bundle.tokenizer, SilentProgress())
        data = LabelledData(table.task, bundle.tokenizer, split, split, None, ())
        dataset = data.dataset(split, min(MAX_TOKENS, bundle.config.context), labelled)
        mean_tokens = float(np.minimum(dataset.lengths, bundle.config.context).mean())
        started = time.perf_counter()
        features = frozen_features(bundle, dataset, runtime, check)
        per_token = (time.perf_counter() - started) / np.minimum(dataset.lengths, MAX_TOKENS).sum()
        per_row = float(per_token * mean_tokens)
        log_loss = cross_validated_log_loss(features, gold, len(table.task.labels), fold_of)
        probes.append(Probe(name, log_loss, per_row))
    return sorted(probes, key=lambda probe: (probe.log_loss, probe.name))


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
            regression.fit(scaler.transform(features[~held_out]), gold[~held_out])
            probabilities[:, known] = regression.predict_proba(scaler.transform(features[held_out]))
        else:
            probabilities[:, known] = 1.0
        own = probabilities[np.arange(held_out.sum()), gold[held_out]]
        losses[held_out] = -np.log(np.maximum(own, _MIN_PROBABILITY))
    return float(losses.mean())


def choose_probe(
    probes: Sequence[Probe],
    rows: int,
    loop: FinetuneLoop,
    measure_speed: Callable[[str], Speed],
    seconds_left: Callable[[], float],
) -> tuple[Probe, Speed]:
    """Return the starter with the lowest log-loss whose full training fits into the time, else the fastest; and its speed.

    Args:
        probes: from the lowest log-loss to the highest.
        measure_speed: times a few steps of a starter; called for those only whose forward passes alone would fit.
        seconds_left: the time that is left for training.
    """
    plan, rows_per_step = NetworkPlan(FULL_PLAN_FOLDS, rows, None, True), loop.batch_size * loop.accumulate
    speeds: dict[str, Speed] = {}
    for probe in probes:
        if plan.seconds(Speed(probe.row_seconds * rows_per_step, probe.row_seconds), loop) > seconds_left():
            continue
        speeds[probe.name] = measure_speed(probe.name)
        if plan.seconds(speeds[probe.name], loop) <= seconds_left():
            return probe, speeds[probe.name]
    fastest = min(probes, key=lambda probe: probe.row_seconds)
    return fastest, speeds.get(fastest.name) or measure_speed(fastest.name)


def describe_choice(probes: Sequence[Probe], chosen: Probe) -> str:
    """Return the name of the chosen starter, and those with a lower log-loss, which are too slow."""
    slow = " and ".join(probe.name for probe in probes[: probes.index(chosen)])
    return f"{chosen.name} ({slow} would take too long)" if slow else chosen.name
