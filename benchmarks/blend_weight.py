"""Compare rules for the weight of a blend on training rows of several datasets, many samples each.

python benchmarks/blend_weight.py --data DATA --work FOLDER --out docs/results/blend_weight.json

A logistic regression on frozen, mean-pooled features of a starter (128 tokens) stands for the network, because it takes
seconds: with two strengths of regularization and three starters, it is up to 26 points better and up to 15 points worse than
the linear classifier. Both are cross-validated on a sample, a rule chooses the weight, and 1,000 other training rows are
predicted. FOLDER keeps the features and logits, so that another call only repeats the rules. No test file is read.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.data.labelled import read_labelled
from headstart.interop.model_source import load_model_source
from headstart.linear.blend import GRID, blend_logits, fit_blend, log_softmax
from headstart.linear.classifier import fit_linear
from headstart.metrics import best_temperature, log_loss
from headstart.progress import SilentProgress
from headstart.recipes.auto.linear_probe import frozen_features
from headstart.recipes.finetune.dataset import LabelledData, encode_split
from headstart.runtime import setup_runtime
from headstart.tasks import SingleLabel
from headstart.train.calibration import fit_temperature
from recipes import draw, load

SETS = {"trec6": 1600, "cr": 1600, "tweet-emotion": 1600, "clinc150": 3200, "agnews": 1600, "imdb": 1600}
"""Rows of each dataset from which samples are drawn."""
STARTERS = ("en", "en-large", "en-reviews")
SIZES, STRENGTHS, FOLDS, MAX_TOKENS = ("8x", "50", "100", "200"), (0.01, 0.1), 3, 128
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def write_features(work: Path, data: Path, threads: int) -> None:
    """Write the frozen features of the rows of every dataset and starter."""
    runtime = setup_runtime(RuntimeConfig(threads=threads))
    for name, size in SETS.items():
        texts, gold = load(data, name)
        for starter in STARTERS:
            path = work / "features" / f"{name}.{starter}.npy"
            if path.is_file():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                rows = Path(folder, "rows.jsonl")
                lines = ({"text": text, "label": f"{label:03d}"} for text, label in zip(texts, gold, strict=True))
                rows.write_text("".join(json.dumps(line) + "\n" for line in list(lines)[:size]))
                labelled = read_labelled(str(rows), LabelledConfig())
            bundle = load_model_source(f"starter:{starter}", head_type="language")
            task = SingleLabel(tuple(sorted(set(map(str, labelled.labels)))))
            split = encode_split(labelled, task, bundle.tokenizer, SilentProgress())
            dataset = LabelledData(task, bundle.tokenizer, split, split, None, ()).dataset(
                split, MAX_TOKENS, LabelledConfig()
            )
            np.save(path, frozen_features(bundle, dataset, runtime, lambda: None).astype(np.float32))
            print(path.name, flush=True)


def write_logits(work: Path, data: Path, draws: int) -> None:
    """Write the out-of-fold and the held-out logits of both classifiers for every sample."""
    for name, pool in SETS.items():
        texts, gold = load(data, name)
        texts, gold = texts[:pool], gold[:pool]
        features = {starter: np.load(work / "features" / f"{name}.{starter}.npy") for starter in STARTERS}
        for size in ("5x",) if name == "clinc150" else SIZES:
            for seed in range(draws):
                path = work / "logits" / f"{name}.{size}.{seed}.npz"
                if path.is_file():
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                train, evaluated = draw(gold, size, seed)
                linear = fit_linear([texts[row] for row in train], gold[train], int(gold.max() + 1), seed=seed)
                arrays = {
                    "gold": gold[train],
                    "test_gold": gold[evaluated],
                    "linear": linear.oof_logits,
                    "linear_test": linear.classifier.logits([texts[row] for row in evaluated]),
                }
                for starter, rows in features.items():
                    for strength in STRENGTHS:
                        key = f"{starter} {strength}"
                        arrays[key] = out_of_fold(rows[train], gold[train], int(gold.max() + 1), strength, seed)
                        arrays[f"{key}_test"] = regression_logits(
                            rows[train], gold[train], rows[evaluated], int(gold.max() + 1), strength
                        )
                np.savez_compressed(path, **arrays)
        print(name, flush=True)


def regression_logits(features: np.ndarray, gold: np.ndarray, others: np.ndarray, labels: int, c: float) -> np.ndarray:
    """Fit a logistic regression, and return the logits of other rows."""
    logits, known = np.full((len(others), labels), -30.0), np.unique(gold)
    scaler = StandardScaler().fit(features)
    if len(known) == 1:
        logits[:, known] = 0.0
        return logits
    fitted = LogisticRegression(C=c, max_iter=200).fit(scaler.transform(features), gold)
    scores = fitted.decision_function(scaler.transform(others))
    logits[:, known] = np.stack([-scores / 2, scores / 2], 1) if len(known) == 2 else scores
    return logits


def out_of_fold(features: np.ndarray, gold: np.ndarray, labels: int, c: float, seed: int) -> np.ndarray:
    """Return the logits of each row by a regression that was not fitted on it."""
    rng, fold_of = np.random.default_rng(seed), np.zeros(len(gold), int)
    for label in np.unique(gold):
        rows = rng.permutation(np.flatnonzero(gold == label))
        fold_of[rows] = (np.arange(len(rows)) + rng.integers(FOLDS)) % FOLDS
    logits = np.zeros((len(gold), labels))
    for fold in range(FOLDS):
        held_out = fold_of == fold
        logits[held_out] = regression_logits(features[~held_out], gold[~held_out], features[held_out], labels, c)
    return logits


def row_losses(network: np.ndarray, linear: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return the loss of every row with every weight of the grid, each at its best temperature."""
    losses = []
    for weight in GRID:
        logits = blend_logits(network, linear, weight)
        enough = len(gold) >= 50 and not (logits.argmax(axis=1) == gold).all()
        temperature = best_temperature(logits, gold) if enough else 1.0
        losses.append(-log_softmax(logits / temperature)[np.arange(len(gold)), gold])
    return np.stack(losses)


def best_weight(network: np.ndarray, linear: np.ndarray, gold: np.ndarray) -> float:
    return float(GRID[row_losses(network, linear, gold).mean(axis=1).argmin()])


def nearest_half(network: np.ndarray, linear: np.ndarray, gold: np.ndarray) -> float:
    """Return the weight nearest to one half whose loss is within one standard error of the lowest."""
    losses = row_losses(network, linear, gold)
    differences = losses - losses[losses.mean(axis=1).argmin()]
    as_good = np.flatnonzero(differences.mean(axis=1) <= differences.std(axis=1) / np.sqrt(len(gold)))
    chosen = as_good[np.abs(GRID - 0.5)[as_good].argmin()]
    reach = 0.5 * min(1.0, len(gold) / 50)
    return float(np.clip(GRID[chosen], 0.5 - reach, 0.5 + reach))


RULES: dict[str, Rule] = {
    "lowest log-loss": best_weight,
    "nearest to one half within one standard error": nearest_half,
    "always 0.5": lambda *_: 0.5,
    "always 0.6": lambda *_: 0.6,
    "posterior mean, Beta(5, 3) prior": lambda network, linear, gold: fit_blend(network, linear, gold).weight,
}
CHOICES = {
    "best cross-validated accuracy": 0.0,
    "the blend unless worse by one standard error": 1.0,
    "the blend unless worse by two standard errors": 2.0,
}


def evaluate(work: Path) -> dict[str, Any]:
    """Return the accuracies of every rule, and of the choice among three arms, in every cell."""
    cells: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for path in sorted((work / "logits").glob("*.npz")):
        arrays, (name, size, _) = np.load(path), path.stem.split(".")
        gold, test_gold, linear, linear_test = (arrays[key] for key in ("gold", "test_gold", "linear", "linear_test"))
        for key in (f"{starter} {strength}" for starter in STARTERS for strength in STRENGTHS):
            temperature, _ = fit_temperature(arrays[key], gold)
            network, network_test = arrays[key] / temperature, arrays[f"{key}_test"] / temperature
            scores = {"network": accuracy(network_test, test_gold), "linear": accuracy(linear_test, test_gold)}
            for rule, choose in RULES.items():
                weight = choose(network, linear, gold)
                blended = blend_logits(network, linear, weight)
                scores[rule] = accuracy(blend_logits(network_test, linear_test, weight), test_gold)
            arms = {"linear": linear, "network": network, rule: blended}  # the last rule is ours
            scores |= {choice: scores[choose_arm(arms, rule, gold, errors)] for choice, errors in CHOICES.items()}
            for arm, score in scores.items():
                cells.setdefault((name, size, key), {}).setdefault(arm, []).append(score)
    means = {cell: {arm: float(np.mean(scores)) for arm, scores in arms.items()} for cell, arms in cells.items()}
    return {
        "samples": max(len(scores) for arms in cells.values() for scores in arms.values()),
        "cells": len(means),
        "datasets": sorted({cell[0] for cell in means}),
        "rules": {arm: summarize(means, arm) for arm in next(iter(means.values()))},
    }


def accuracy(logits: np.ndarray, gold: np.ndarray) -> float:
    return float((logits.argmax(axis=1) == gold).mean())


def choose_arm(arms: dict[str, np.ndarray], blend: str, gold: np.ndarray, errors: float) -> str:
    """Return the arm with the best accuracy; the blend unless it is worse by so many standard errors."""
    right = {arm: (logits.argmax(axis=1) == gold).astype(float) for arm, logits in arms.items()}
    best = max(arms, key=lambda arm: (right[arm].mean(), -log_loss(arms[arm], gold)))
    difference = right[best] - right[blend]
    standard_error = np.sqrt(difference.var() / len(gold) + 2 / len(gold) ** 2)
    return blend if errors and difference.mean() <= errors * standard_error else best


def summarize(means: dict[tuple[str, ...], dict[str, float]], arm: str) -> dict[str, float]:
    gaps = [cell[arm] - max(cell["network"], cell["linear"]) for cell in means.values()]
    strong = [cell[arm] - cell["network"] for cell in means.values() if cell["network"] - cell["linear"] > 0.05]
    return {
        "accuracy": round(float(np.mean([cell[arm] for cell in means.values()])), 4),
        "worst_gap": round(min(gaps), 4),
        "cells_one_point_worse": sum(gap < -0.01 for gap in gaps),
        "gap_where_the_network_leads_by_five": round(float(np.mean(strong)), 4),
        "cells_where_the_network_leads_by_five": len(strong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_features(options.work, options.data, options.threads)
    write_logits(options.work, options.data, options.draws)
    record = evaluate(options.work)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    for rule, row in record["rules"].items():
        print(f"{rule:50} {row}")


if __name__ == "__main__":
    main()
