"""Coverage of the intervals of a report, on simulated result tables and on real training runs.

python benchmarks/coverage.py                 result tables with a known true difference (a minute or two on one core)
python benchmarks/coverage.py --epochs        accuracies after every epoch with a known true value (two minutes)
python benchmarks/coverage.py --calibration   probabilities with a known calibration error (three minutes)
python benchmarks/coverage.py --trainings     tiny real training runs with a known true value (ten minutes on one core)

All write to docs/results/coverage.json; python benchmarks/results.py generates the page from it.
"""

import argparse
import csv
import json
import math
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from headstart.metrics import NUM_BINS, bin_indices
from headstart.report.gain import epochs_to_reach, labels_to_reach, text_variance_fraction
from headstart.report.intervals import half_width, macro_f1_values, variance_components
from headstart.report.reliability import calibration_error

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "coverage.json"
TABLES = 2000
NOMINAL = 0.95
CHUNK = 4_000_000  # values of one arm in memory at a time
METHODS = ("headstart", "satterthwaite", "seeds t", "seeds bootstrap", "texts")
"""Our interval and alternatives: one t with Satterthwaite's degrees of freedom, t over seeds alone, a bootstrap over seeds
alone, and the binomial interval over texts alone.
"""


@dataclass(frozen=True)
class Setting:
    """A scenario for the simulation of result tables.

    kind        networks: both arms train; linear: one answers alike whatever the seed; twins: neither leaves anything
                to chance, and they answer alike but for a text in a thousand; rare: both train, a tenth of the texts has the rare label, macro-F1 is measured
    difference  how much better the first arm is, in points: the truth that an interval should hold
    luck        standard deviation of an arm's accuracy over seeds, in points; half its variance is shared by the arms
    hardness    how alike seeds answer: the texts' chances to be answered rightly are Beta distributed with mean .75 and
                this sum of parameters; 1 is most texts easy or hopeless, 4 is most in between
    shared      the share of texts that are as hard for one arm as for the other
    """

    kind: str
    seeds: int
    texts: int
    difference: float = 0.0
    luck: float = 1.0
    hardness: float = 1.0
    shared: float = 0.5


def settings() -> Iterator[Setting]:
    for seeds, texts in product((3, 5, 10), (200, 2000)):
        for difference, luck, hardness in product((0.0, 1.0, 3.0), (0.0, 1.0, 3.0), (1.0, 4.0)):
            yield Setting("networks", seeds, texts, difference, luck, hardness)
        for shared in (0.0, 0.9):
            yield Setting("networks", seeds, texts, shared=shared)
        for difference, luck in product((0.0, 3.0), (0.0, 1.0, 3.0)):
            yield Setting("linear", seeds, texts, difference, luck)
        yield Setting("twins", seeds, texts, difference=0.1, luck=0.0)
        yield Setting("rare", seeds, texts)
    for seeds, difference in product((3, 5), (0.0, 1.0)):
        yield Setting("networks", seeds, 25_000, difference)


@cache
def chances(mean: float, hardness: float) -> np.ndarray:
    """Return 65,536 equally likely values of a Beta distribution, whose mean is `mean` to five digits."""
    positions = (np.arange(65_536) + 0.5) / 65_536
    return betaincinv(mean * hardness, (1 - mean) * hardness, positions).astype(np.float32)


def pulled(chances_BN: np.ndarray, luck_BS: np.ndarray, mean: float) -> np.ndarray:
    """Return the probabilities of every seed, shifted so that their mean changes by the random effect of that seed."""
    up, down = np.maximum(luck_BS, 0) / (1 - mean), np.maximum(-luck_BS, 0) / mean
    return (1 - up - down)[..., None] * chances_BN[:, None, :] + up[..., None]


def lucks(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """Draw the random effect of each arm, table and seed; symmetric about 0 and at most a tenth."""
    shared, own = rng.normal(size=(1, tables, setting.seeds)), rng.normal(size=(2, tables, setting.seeds))
    result = setting.luck / 100 * (math.sqrt(0.5) * shared + math.sqrt(0.5) * own)
    return np.clip(result, -0.1, 0.1).astype(np.float32)


def answers(rng: np.random.Generator, setting: Setting, tables: int, means: tuple[float, float]) -> list[np.ndarray]:
    """Draw the correctness of two arms (tables, seeds, texts) with these expected accuracies."""
    size = (tables, setting.texts)
    draw = rng.integers(65_536, size=size, dtype=np.uint16)
    other = np.where(rng.random(size, dtype=np.float32) < setting.shared, draw, rng.integers(65_536, size=size))
    luck = lucks(rng, setting, tables)
    result = []
    for arm, (mean, index) in enumerate(zip(means, (draw, other), strict=True)):
        chance = chances(round(mean, 6), setting.hardness)[index]
        if setting.kind == "linear" and arm == 1:
            right = (rng.random(size, dtype=np.float32) < chance)[:, None, :]
            result.append(np.broadcast_to(right, (tables, setting.seeds, setting.texts)))
            continue
        shape = (tables, setting.seeds, setting.texts)
        result.append(rng.random(shape, dtype=np.float32) < pulled(chance, luck[arm], mean))
    return result


def differences(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """Draw tables (tables, seeds, texts) of the difference of two arms."""
    if setting.kind == "twins":
        better = (rng.random((tables, 1, setting.texts)) < setting.difference / 100).astype(np.float64)
        return np.repeat(better, setting.seeds, axis=1)
    if setting.kind == "rare":
        return rare(rng, setting, tables)
    first, second = answers(rng, setting, tables, (0.75 + setting.difference / 100, 0.75))
    return first.astype(np.float64) - second


def rare(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """Draw contributions to macro-F1 of two arms with a recall of about 60 % and a high precision for a rare label."""
    gold = (rng.random((tables, setting.texts)) < 0.1).astype(np.int64)
    result, wrong = (answers(rng, setting, tables, (mean, mean)) for mean in (0.6, 0.95))
    values = []
    for arm in (0, 1):
        right = np.where(gold[:, None, :] == 1, result[arm], wrong[arm])
        predictions = np.where(right, gold[:, None, :], 1 - gold[:, None, :])
        rows = [[macro_f1_values(gold[table], row, 2) for row in predictions[table]] for table in range(tables)]
        values.append(np.array(rows))
    return values[0] - values[1]


def intervals(values: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the lower and upper ends of the interval of every table, by method."""
    seeds, texts = values.shape[-2:]
    by_seed = values.mean(axis=-1)
    centre = by_seed.mean(axis=-1)
    from_seeds, text_variance = variance_components(values)
    variance = from_seeds + text_variance / texts
    freedom = np.minimum(1e6, variance**2 * (seeds - 1) / np.maximum(1e-30, from_seeds**2))
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=400) / seeds
    low, high = np.quantile(by_seed @ drawn.T, (0.025, 0.975), axis=-1)
    halves = {
        "headstart": half_width(values),
        "satterthwaite": stdtrit(np.maximum(1, freedom), 0.975) * np.sqrt(variance),
        "seeds t": stdtrit(seeds - 1, 0.975) * np.sqrt(from_seeds),
        "texts": 1.96 * np.sqrt(values.mean(axis=-2).var(axis=-1, ddof=1) / texts),
    }
    return {name: (centre - half, centre + half) for name, half in halves.items()} | {"seeds bootstrap": (low, high)}


def measured(setting: Setting, tables: int, seed: int = 0) -> dict:
    """Return coverage, claims (intervals without 0), claims with the correct sign, and mean width in points, by method."""
    rng = np.random.default_rng([seed, zlib.crc32(repr(setting).encode())])
    truth = setting.difference / 100
    bounds: dict[str, list] = {name: [] for name in METHODS}
    chunk = max(1, min(tables, CHUNK // (setting.seeds * setting.texts)))
    for start in range(0, tables, chunk):
        for name, pair in intervals(differences(rng, setting, min(chunk, tables - start)), rng).items():
            bounds[name].append(pair)
    methods = {}
    for name, pairs in bounds.items():
        low, high = (np.concatenate(side) for side in zip(*pairs, strict=True))
        claims = (low > 0) | (high < 0)
        methods[name] = {
            "coverage": round(float(((low <= truth) & (truth <= high)).mean()), 4),
            "claims": round(float(claims.mean()), 4),
            "right_claims": round(float((low > 0).mean()), 4) if truth else 0.0,
            "width": round(float(100 * (high - low).mean()), 2),
        }
    return {**asdict(setting), "methods": methods}


SIZES, LEVELS = (50, 200, 800, 3200), (0.60, 0.66, 0.72, 0.78)
"""Return the accuracy of a curve that gains 6 points for four times as many labels; 70 % with 200 labels corresponds to
200 * 4^(2/3) labels.
"""
LABELS_TABLES = 500


def labels_measured(seeds: int, texts: int, luck: float, tables: int) -> dict:
    """Measure the coverage of the interval of the labels saved, and how often it has an upper end."""
    setting = Setting("networks", seeds, texts, luck=luck)
    rng = np.random.default_rng([1, zlib.crc32(repr(setting).encode())])
    truth, held, ended = 200 * 4 ** (2 / 3), 0, 0
    for _ in range(tables):
        draw, runs = rng.integers(65_536, size=texts), []
        for level in (0.70, *LEVELS):
            index = np.where(rng.random(texts) < setting.shared, draw, rng.integers(65_536, size=texts))
            shift = np.clip(rng.normal(0, luck / 100, (1, seeds)), -0.1, 0.1)
            chance = pulled(chances(level, setting.hardness)[index][None], shift, level)[0]
            runs.append((rng.random((seeds, texts)) < chance).astype(np.float64))
        result = labels_to_reach(runs[0], np.stack(runs[1:]), SIZES)
        held += result.low is not None and result.low <= truth <= (result.high or math.inf)
        ended += result.high is not None
    return {
        "seeds": seeds,
        "texts": texts,
        "luck": luck,
        "coverage": round(held / tables, 4),
        "has_upper_end": round(ended / tables, 4),
    }


def tolerance(tables: int, share: float = NOMINAL) -> float:
    """Return the random deviation of a measured fraction: three standard errors."""
    return 3 * math.sqrt(share * (1 - share) / tables)


def simulate(tables: int) -> dict:
    started = time.perf_counter()
    rows = []
    for setting in settings():
        rows.append(measured(setting, tables))
        ours = rows[-1]["methods"]["headstart"]
        flag = "  <- below" if ours["coverage"] < NOMINAL - tolerance(tables) else ""
        message = "false alarms" if setting.difference == 0 else "power"
        print(
            f"{setting}: coverage {ours['coverage']:.3f}, {message} {ours['claims']:.3f}, width {ours['width']:.1f}{flag}"
        )
    for name in METHODS:
        result = [row["methods"][name]["coverage"] for row in rows]
        below = sum(share < NOMINAL - tolerance(tables) for share in result)
        print(
            f"{name}: coverage {min(result):.3f} to {max(result):.3f}, {below} of {len(rows)} settings below .95 - {tolerance(tables):.3f}"
        )
    few = min(tables, LABELS_TABLES)
    labels = [labels_measured(*world, few) for world in product((3, 5, 10), (200, 2000), (1.0, 3.0))]
    for result in labels:
        print(f"worth in labels: {result}")
    print(f"{time.perf_counter() - started:.0f} seconds")
    return {
        "tables": tables,
        "tolerance": round(tolerance(tables), 4),
        "settings": rows,
        "labels_tables": few,
        "labels": labels,
    }


START = 0.75
CURVES = {
    "level": (0.75, 0.77, 0.785, 0.79, 0.79, 0.79, 0.79, 0.79),
    "soon": (0.70, 0.75, 0.77, 0.78, 0.785, 0.785, 0.785, 0.785),
    "rises": (0.60, 0.66, 0.70, 0.73, 0.75, 0.765, 0.775, 0.78),
    "between": (0.60, 0.66, 0.70, 0.74, 0.76, 0.77, 0.775, 0.78),
    "falls": (0.60, 0.70, 0.75, 0.765, 0.765, 0.74, 0.72, 0.71),
    "short": (0.60, 0.70, 0.735, 0.74, 0.74, 0.74, 0.74, 0.74),
    "almost": (0.60, 0.70, 0.745, *[0.7499] * 9),
}
"""The accuracy of the other arm after each epoch, where the pretrained arm has 75 % after its first: equal at once, after
two, at the fifth, between the fourth and the fifth, at the third and decreasing later, never by a point, and never by
very little.
"""


@dataclass(frozen=True)
class Epochs:
    """A scenario for the simulation of validation accuracies after every epoch.

    luck      standard deviation of an accuracy over seeds, in points
    jitter    the share of its variance that is drawn anew at every epoch; of the rest, half is shared by the arms
    final     accuracy of the better arm on test: the better, the less its right and wrong spread
    hardness  as above, on test: where it is not 1, as on validation, test says too little or too much of the texts
    """

    kind: str
    seeds: int
    texts: int
    luck: float
    jitter: float
    final: float
    hardness: float = 1.0

    @property
    def truth(self) -> float:
        """Return the first epoch after which the expected accuracy of the other arm is as high; infinite if none is."""
        return next((index for index, level in enumerate(CURVES[self.kind], start=1) if level >= START), math.inf)


def epochs_settings() -> Iterator[Epochs]:
    for seeds, texts, (luck, jitter) in product((3, 5, 10), (200, 600), ((1.0, 0.3), (3.0, 0.8))):
        for kind in CURVES:
            yield Epochs(kind, seeds, texts, luck, jitter, 0.80)
        for kind in ("level", "rises", "falls", "almost"):
            yield Epochs(kind, seeds, texts, luck, jitter, 0.92)
        for kind in ("level", "almost"):
            yield Epochs(kind, seeds, texts, luck, jitter, 0.92, hardness=4.0)


def epochs_drawn(rng: np.random.Generator, world: Epochs, tables: int) -> tuple[np.ndarray, ...]:
    """Draw the pretrained arm after one epoch (tables, seeds), the other after each (and epochs), and the test tables of
    both.
    """
    levels, size, chance_of = CURVES[world.kind], (tables, world.seeds, world.texts), rng.random
    both, own = rng.normal(size=(tables, world.seeds, 1)), rng.normal(size=(2, tables, world.seeds, 1))
    redrawn = rng.normal(size=(2, tables, world.seeds, len(levels)))
    kept = math.sqrt((1 - world.jitter) / 2)
    luck = np.clip(world.luck / 100 * (kept * (both + own) + math.sqrt(world.jitter) * redrawn), -0.1, 0.1)

    def positions() -> tuple[np.ndarray, np.ndarray]:
        one, other = rng.integers(65_536, size=(2, tables, world.texts), dtype=np.uint16)
        return one, np.where(chance_of(one.shape, dtype=np.float32) < 0.5, one, other)

    def right(
        index: np.ndarray, level: float, luck_BS: np.ndarray, draw: np.ndarray, hardness: float = 1.0
    ) -> np.ndarray:
        result = chances(round(level, 6), hardness)[index]
        return draw < pulled(result, luck_BS.astype(np.float32), level)

    ours, theirs = positions()
    start = right(ours, START, luck[0, ..., 0], chance_of(size, dtype=np.float32)).mean(axis=-1)
    curve, draw = [], chance_of(size, dtype=np.float32)
    for epoch, level in enumerate(levels):
        if epoch:  # most answers of a run stay what they were an epoch before
            draw = np.where(chance_of(size, dtype=np.float32) < 0.7, draw, chance_of(size, dtype=np.float32))
        curve.append(right(theirs, level, luck[1, ..., epoch], draw).mean(axis=-1))
    tests = [
        right(index, level, luck[arm, ..., -1], chance_of(size, dtype=np.float32), world.hardness).astype(np.float64)
        for arm, (index, level) in enumerate(zip(positions(), (world.final, world.final - 0.015), strict=True))
    ]
    return start, np.stack(curve, axis=-1), *tests


def epoch_by_epoch(start: np.ndarray, curve: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """An alternative: the first epoch whose interval, computed with the test texts, is below zero."""
    seeds, texts = ours.shape[-2:]
    lead = start[..., None] - curve
    squared = stdtrit(texts - 1, 0.975) ** 2 * (variance_components(ours - theirs)[1] / texts + 2 / texts**2)
    half = np.sqrt(squared[:, None] + stdtrit(seeds - 1, 0.975) ** 2 * lead.var(axis=1, ddof=1) / seeds)
    bounds = (lead.mean(axis=1) - half <= 0, lead.mean(axis=1) + half <= 0)
    return np.stack([np.where(gone.any(axis=1), gone.argmax(axis=1) + 1, math.inf) for gone in bounds], axis=1)


def epochs_measured(world: Epochs, tables: int) -> dict:
    """Measure the coverage of the interval of the epochs saved, the side of its misses, and its width."""
    rng = np.random.default_rng([2, zlib.crc32(repr(world).encode())])
    ours, others = [], []
    chunk = max(1, min(tables, CHUNK // (world.seeds * world.texts)))
    for done in range(0, tables, chunk):
        drawn = epochs_drawn(rng, world, min(chunk, tables - done))
        for start, curve, one, other in zip(*drawn, strict=True):
            result = epochs_to_reach(start, curve, text_variance_fraction(one, other), world.texts)
            ours.append([math.inf if end is None else end for end in (result.low, result.high)])
        others.append(epoch_by_epoch(*drawn))
    methods = {}
    for name, bounds in (("headstart", np.array(ours)), ("epoch by epoch", np.concatenate(others))):
        low, high = bounds.T
        beyond = len(CURVES[world.kind]) + 1  # for the width: an epoch more than were run
        methods[name] = {
            "coverage": round(float(((low <= world.truth) & (world.truth <= high)).mean()), 4),
            "too_many": round(float((low > world.truth).mean()), 4),
            "too_few": round(float((high < world.truth).mean()), 4),
            "has_upper_end": round(float(np.isfinite(high).mean()), 4),
            "width": round(float((np.minimum(high, beyond) - np.minimum(low, beyond)).mean()), 2),
        }
    return {**asdict(world), "truth": world.truth if math.isfinite(world.truth) else None, "methods": methods}


SURE = {
    "even": lambda positions: 0.5 + 0.5 * positions,
    "sure": lambda positions: 0.5 + 0.5 * betaincinv(4, 0.4, positions),
    "five": lambda positions: 0.2 + 0.8 * positions,
}
"""Distributions of confidence: for two classes, uniform between one half and 1 or mostly near 1; for five, uniform from a
fifth.
"""
FAULTS = {
    "none": lambda sure: 0 * sure,
    "too sure": lambda sure: -0.1 * np.maximum(0, 2 * sure - 1) * np.sqrt(4 * sure * (1 - sure)),
    "far too sure": lambda sure: -0.3 * np.maximum(0, 2 * sure - 1) * np.sqrt(4 * sure * (1 - sure)),
    "to and fro": lambda sure: 0.2 * np.sin(40 * sure) * sure * (1 - sure),
    "one bin": lambda sure: -0.1 * ((sure >= 12 / 15) & (sure < 13 / 15)),
}
"""The difference between accuracy and confidence."""
RESAMPLED_TABLES, RESAMPLES = 200, 200


@dataclass(frozen=True)
class Probabilities:
    """A scenario for the simulation of probabilities and correct predictions.

    sure, fault  see above
    luck         how much seeds differ in their fault: standard deviation in points, at a certainty of one half
    alike        the share of texts on which seeds are equally sure, and of which all answer rightly or none
    """

    sure: str
    fault: str
    seeds: int
    texts: int
    luck: float = 0.0
    alike: float = 0.7


def calibration_settings() -> Iterator[Probabilities]:
    for seeds, texts in product((3, 5, 10), (200, 1000)):
        for sure in SURE:
            for fault in FAULTS:
                yield Probabilities(sure, fault, seeds, texts)
            for fault in ("none", "too sure", "far too sure"):
                yield Probabilities(sure, fault, seeds, texts, luck=2.0)
        for alike in (0.2, 0.95):
            yield Probabilities("even", "none", seeds, texts, alike=alike)
    for seeds, fault in product((3, 5, 10), ("none", "too sure")):
        yield Probabilities("even", fault, seeds, 5000)


def right_chance(fault: str, sure: np.ndarray, luck: np.ndarray | float) -> np.ndarray:
    """Return the probability that a prediction is correct, by its confidence and the random effect of its run."""
    return np.clip(sure + FAULTS[fault](sure) + luck * 4 * sure * (1 - sure), 0, 1)


@cache
def certainties(name: str) -> np.ndarray:
    return SURE[name]((np.arange(65_536) + 0.5) / 65_536)


@cache
def true_error(sure: str, fault: str, luck: float) -> float:
    """Return the calibration error on infinitely many texts, in the same bins, averaged over the random effects of runs."""
    share = certainties(sure)
    lucks = luck / 100 * ndtri((np.arange(401) + 0.5) / 401) if luck else np.zeros(1)
    gaps = (share - right_chance(fault, share, each) for each in lucks)
    return float(np.mean([np.abs(np.bincount(bin_indices(share), gap)).sum() / len(share) for gap in gaps]))


def answered(rng: np.random.Generator, world: Probabilities) -> tuple[np.ndarray, np.ndarray]:
    """Draw the confidence and the correctness of every prediction (seeds, texts)."""
    shape = (world.seeds, world.texts)
    positions, draws = rng.integers(65_536, size=shape), rng.random(shape)
    same = rng.random((2, *shape)) < world.alike
    sure = certainties(world.sure)[np.where(same[0], positions[:1], positions)]
    luck = world.luck / 100 * rng.normal(size=(world.seeds, 1))
    return sure, np.where(same[1], draws[:1], draws) < right_chance(world.fault, sure, luck)


def resampled(rng: np.random.Generator, counts: np.ndarray, sure: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """An alternative: the quantiles of the error in a bootstrap over seeds and texts."""
    seeds, texts = sure.shape
    tables = (sure - right)[..., None] * (bin_indices(sure)[..., None] == np.arange(NUM_BINS))
    flat = tables.transpose(1, 0, 2).reshape(texts, seeds * NUM_BINS)
    errors = np.abs(counts @ flat).reshape(RESAMPLES, seeds, NUM_BINS).sum(axis=-1) / texts
    drawn = np.take_along_axis(errors, rng.integers(seeds, size=(RESAMPLES, seeds)), axis=1).mean(axis=1)
    error = float(np.abs(flat.sum(axis=0)).sum() / seeds / texts)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return min(error, float(low)), max(error, float(high))


def calibration_measured(world: Probabilities, tables: int) -> dict:
    """Measure the coverage of the interval of the calibration error, and how often it excludes 0."""
    rng = np.random.default_rng([3, zlib.crc32(repr(world).encode())])
    truth = true_error(world.sure, world.fault, world.luck)
    bounds: dict[str, list] = {"headstart": [], "as for accuracy": [], "resampled": []}
    counts = rng.multinomial(world.texts, np.full(world.texts, 1 / world.texts), size=RESAMPLES).astype(np.float64)
    errors = []
    for table in range(tables):
        sure, right = answered(rng, world)
        result = calibration_error(sure, right)
        errors.append(result.mean)
        bounds["headstart"].append((result.low, result.high))
        bounds["as for accuracy"].append((2 * result.mean - result.high, result.high))
        if table < RESAMPLED_TABLES:
            bounds["resampled"].append(resampled(rng, counts, sure, right))
    methods = {}
    for name, pairs in bounds.items():
        low, high = np.array(pairs).T
        methods[name] = {
            "coverage": round(float(((low <= truth) & (truth <= high)).mean()), 4),
            "claims": round(float((low > 0).mean()), 4),
            "width": round(float(100 * (high - np.maximum(0, low)).mean()), 2),
        }
    message = {"truth": round(100 * truth, 3), "mean": round(100 * float(np.mean(errors)), 3)}
    return {**asdict(world), **message, "methods": methods}


def simulate_more(worlds: Iterator, measure: Callable[..., dict], tables: int) -> dict:
    """Return a row per scenario, with a mark if the coverage is too low."""
    started, rows = time.perf_counter(), []
    for world in worlds:
        rows.append(measure(world, tables))
        ours = rows[-1]["methods"]["headstart"]
        flag = "  <- below" if ours["coverage"] < NOMINAL - tolerance(tables) else ""
        print(f"{world}: {ours}{flag}", flush=True)
    for name in rows[0]["methods"]:
        result = [row["methods"][name]["coverage"] for row in rows]
        print(f"{name}: coverage {min(result):.3f} to {max(result):.3f} in {len(rows)} settings")
    print(f"{time.perf_counter() - started:.0f} seconds")
    return {"tables": tables, "tolerance": round(tolerance(tables), 4), "settings": rows}


# Real trainings. Words are of two families, and a text has words of one family only.
#   coin    the labels of valid and test are tossed: nothing can help, the truth is 0 exactly
#   noise   pretrained on the same texts with their letters shuffled: there is nothing to learn from them
#   must    a text's label is its family; 12 labelled texts show few of the words, and that words go together can be
#           learned from the unlabelled texts alone

KINDS = ("coin", "noise", "must")
WORDS, WORDS_A_TEXT, LABELLED = 60, 4, 12
MODEL = {"model.width": 32, "model.depth": 1, "model.heads": 2, "model.feedforward": 64, "model.context": 24}
ONE_CORE = {"runtime.threads": 1, "runtime.device": "cpu"}


def write_world(folder: Path, kind: str, seed: int) -> None:
    """Write unlabelled texts, and three labelled files."""
    chance = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = chance.sample([one + other for one in syllables for other in syllables], 2 * WORDS)
    families = words[:WORDS], words[WORDS:]

    def text(family: int) -> str:
        return " ".join(chance.choice(families[family]) for _ in range(WORDS_A_TEXT))

    texts = [text(index % 2) for index in range(2000)]
    if kind == "noise":
        texts = ["".join(chance.sample(each, len(each))) for each in texts]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for name, rows in (("train", LABELLED), ("valid", 100), ("test", 300)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for index in range(rows):
                label = chance.randrange(2) if kind == "coin" and name != "train" else index % 2
                writer.writerow([text(chance.randrange(2) if kind == "coin" else label), "ab"[label]])


def train_and_judge(folder: Path, kind: str, seed: int) -> dict:
    """Pretrain, compare over five seeds, and return the claims of the report for all five and for the first three."""
    import headstart
    from headstart.report.gain import gain
    from headstart.report.load import load_comparison

    write_world(folder, kind, seed)
    pretraining = {"tokenizer.vocab_size": 400, "loop.steps": 300, "loop.batch_size": 32, "optim.lr": 5e-3}
    headstart.pretrain(
        folder / "texts.txt",
        out=folder / "base",
        settings={**MODEL, **ONE_CORE, **pretraining, "corpus.held_out": 0.02},
    )
    headstart.compare(
        folder / "train.csv",
        valid=folder / "valid.csv",
        test=folder / "test.csv",
        backbone=folder / "base",
        out=folder / "comparison",
        arms=("scratch", "pretrained"),
        settings={**ONE_CORE, "loop.epochs": 4, "loop.batch_size": 4, "optim.lr": 3e-3},
    )
    whole = load_comparison(folder / "comparison")
    result: dict = {"kind": kind, "seed": seed}
    for seeds in (3, 5):
        part = replace(whole, runs=tuple(cell for cell in whole.runs if cell.seed < seeds))
        points = gain(part, "all").points
        result[str(seeds)] = [round(value, 4) for value in (points.mean, points.low, points.high)]
    return result


def train(count: int) -> dict:
    started = time.perf_counter()
    rows = []
    for kind, seed in product(KINDS, range(count)):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(train_and_judge(Path(folder), kind, seed))
        print(rows[-1], flush=True)
    print(f"{time.perf_counter() - started:.0f} seconds")
    counts = [counted(rows, kind, seeds) for kind, seeds in product(KINDS, (3, 5))]
    return {"each": count, "counts": counts, "runs": rows}


def counted(rows: list[dict], kind: str, seeds: int) -> dict:
    """Count the runs of a kind for which a report claims a gain, a loss, or neither."""
    result = [row[str(seeds)] for row in rows if row["kind"] == kind]
    gains, losses = sum(low > 0 for _, low, _ in result), sum(high < 0 for _, _, high in result)
    held = sum(low <= 0 <= high for _, low, high in result)
    return {"kind": kind, "seeds": seeds, "gain": gains, "loss": losses, "neither": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--trainings", action="store_true", help="run real trainings instead of drawing tables")
    part.add_argument("--epochs", action="store_true", help="draw accuracies after every epoch")
    part.add_argument("--calibration", action="store_true", help="draw probabilities")
    parser.add_argument("--tables", type=int, default=TABLES, help="result tables a setting")
    parser.add_argument("--count", type=int, default=30, help="trainings of each kind")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {"format": 1}
    if options.trainings:
        known["trainings"] = train(options.count)
    elif options.epochs:
        known["epochs"] = simulate_more(epochs_settings(), epochs_measured, options.tables)
    elif options.calibration:
        result = simulate_more(calibration_settings(), calibration_measured, options.tables)
        known["calibration"] = {"resampled_tables": min(options.tables, RESAMPLED_TABLES), **result}
    else:
        known["simulation"] = simulate(options.tables)
    options.out.write_text(json.dumps(known).replace("}, {", "},\n{") + "\n", encoding="utf-8")  # a line a row
    sys.stdout.write(f"wrote {options.out}\n")


if __name__ == "__main__":
    main()
