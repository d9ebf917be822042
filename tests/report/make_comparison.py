"""Comparison folders to test on: one written answer by answer, and one that looks like a real experiment.

`python tests/report/make_comparison.py FOLDER` writes the second, to look at.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headstart.files import write_json
from headstart.report.collect import collect
from headstart.report.mistakes import errors
from headstart.store.cells import (
    Budget,
    Cell,
    Data,
    Epoch,
    Score,
    Shares,
    Split,
    TestSplit,
    rounded,
    write_cell,
    write_data,
)
from headstart.store.quotes import write_quotes

LABELS = ("negative", "positive")
QUOTE = "This is how a quoted text begins, number"
NETWORKS = ("scratch", "pretrained")


def score(gold: Sequence[int], predictions: Sequence[int], labels: int) -> Score:
    confusion = np.zeros((labels, labels), dtype=int)
    np.add.at(confusion, (list(gold), list(predictions)), 1)
    denominators = confusion.sum(0) + confusion.sum(1)
    f1 = 2 * np.diag(confusion) / np.maximum(1, denominators)
    rows = tuple(tuple(map(int, row)) for row in confusion)
    return Score(accuracy=float(np.trace(confusion) / len(gold)), macro_f1=float(f1.mean()), confusion=rows)


def write_answers(
    folder: Path,
    answers: Mapping[str, Mapping[int, str]],
    *,
    budget: Budget = "all",
    curves: Mapping[str, Sequence[float]] | None = None,
    test_curves: Mapping[str, Mapping[int, Sequence[float]]] | None = None,
    overlap: Sequence[int] = (),
    near: Sequence[int] = (),
    labels: Sequence[str] = LABELS,
) -> Path:
    """Write a comparison from rights and wrongs: `{"scratch": {0: "1101"}}` is seed 0, right on three texts of four."""
    size = len(next(iter(next(iter(answers.values())).values())))
    gold = [text % 2 for text in range(size)]
    write_data(folder, _data(gold, labels, overlap=overlap, near=near))
    for arm, seeds in answers.items():
        for seed, marks in seeds.items():
            predictions = [right if mark == "1" else 1 - right for right, mark in zip(gold, marks, strict=True)]
            curve = (curves or {}).get(arm, (0.5, 0.6)) if arm in NETWORKS else ()
            on_test = (test_curves or {}).get(arm, {}).get(seed)
            cell = _cell(arm, budget, seed, gold, predictions, curve, len(labels), on_test=on_test)
            write_cell(folder, cell)
    return folder


def make_comparison(
    folder: Path,
    *,
    arms: Mapping[str, float],
    seeds: int = 5,
    budgets: Sequence[Budget] = ("all",),
    texts: int = 400,
    labels: Sequence[str] = LABELS,
    look_at_test: bool = False,
    extras: bool = False,
    networks: Sequence[str] = NETWORKS,
    probabilities: bool = False,
) -> Path:
    """Write a comparison as a real run would: hard texts are hard for all arms, seeds differ, curves rise."""
    rng = np.random.default_rng(0)
    gold = rng.integers(len(labels), size=texts)
    lengths = tuple(map(int, rng.integers(5, 400, texts))) if probabilities else None
    write_data(folder, _data(gold.tolist(), labels, overlap=range(0, texts, 50), lengths=lengths))
    hardness = rng.normal(0, 1, texts)
    for budget in budgets:
        loss = 0.0 if budget == "all" else 0.045 * np.log2(1600 / budget)
        for arm, accuracy in arms.items():
            wanted = accuracy - loss * {"pretrained": 0.55, "majority": 0}.get(arm, 1.0)
            for seed in range(seeds if arm in networks or budget != "all" else 1):
                if arm == "majority":
                    predictions = np.full(texts, int(np.bincount(gold).argmax()))
                else:
                    ease = hardness + rng.normal(0, 0.7, texts)
                    right = ease > np.quantile(ease, 1 - np.clip(wanted + rng.normal(0, 0.008), 0.02, 0.99))
                    predictions = np.where(right, gold, (gold + rng.integers(1, len(labels), texts)) % len(labels))
                curve = _curve(rng, arm, wanted) if arm in networks else ()
                on_test = [max(0.0, value - 0.01) for value in curve] if look_at_test else None
                cell = _cell(arm, budget, seed, gold, predictions, curve, len(labels), on_test=on_test)
                if probabilities:
                    own = _probabilities(predictions, gold, len(labels), hardness)
                    cell = cell.model_copy(update={"probabilities": own, "temperature": 1.2 + seed / 10})
                write_cell(folder, cell)
    if probabilities:
        found = errors(collect(folder))
        wrong = found.mistakes if found else ()
        write_quotes(folder, {mistake.row: f"{QUOTE} {mistake.row} " + "and so on " * 30 for mistake in wrong})
    _about(folder)
    if extras:
        _extras(folder)
    return folder


def _probabilities(predictions: np.ndarray, gold: np.ndarray, labels: int, hardness: np.ndarray) -> Shares:
    """Shares that are surer of easy texts, and a little too sure of mistakes."""
    sure = 1 / labels + (1 - 1 / labels) / (1 + np.exp(-1.2 * (hardness + 0.8 * (predictions == gold))))
    shares = np.repeat(((1 - sure) / (labels - 1))[:, None], labels, axis=1)
    shares[np.arange(len(gold)), predictions] = sure
    return rounded(shares.tolist())


def _curve(rng: np.random.Generator, arm: str, accuracy: float) -> list[float]:
    pace, start = (1.5, 0.07) if arm == "pretrained" else (4.0, 0.2)
    epochs = np.arange(15)
    fall = 0.0008 * np.maximum(0, epochs - 8) ** 1.5
    values = accuracy + 0.005 - start * np.exp(-epochs / pace) - fall + rng.normal(0, 0.007, 15)
    return [float(value) for value in np.clip(values, 0, 1)]


def _cell(
    arm: str,
    budget: Budget,
    seed: int,
    gold: Sequence[int],
    predictions: Sequence[int],
    curve: Sequence[float],
    labels: int,
    *,
    on_test: Sequence[float] | None = None,
) -> Cell:
    test = score(gold, predictions, labels)
    epochs = tuple(
        Epoch(
            epoch=number,
            train_loss=0.7 / number,
            valid_loss=0.6,
            valid_accuracy=value,
            valid_macro_f1=value,
            seconds=9.0,
            test_accuracy=on_test[number - 1] if on_test else None,
        )
        for number, value in enumerate(curve, start=1)
    )
    best = max(curve) if curve else test.accuracy
    return Cell(
        arm=arm,
        labels=budget,
        rows=1600 if budget == "all" else budget,
        seed=seed,
        setting={"tfidf": {"C": 10}, "majority": {}}.get(arm, {"lr": 0.0001}),
        epochs=epochs,
        best_epoch=list(curve).index(best) + 1 if curve else None,
        valid=Score(accuracy=best, macro_f1=best),
        test=test,
        predictions=tuple(map(int, predictions)),
        seconds=140.0 + seed if curve else 1.5,
    )


def _data(
    gold: Sequence[int],
    labels: Sequence[str],
    *,
    overlap: Sequence[int],
    near: Sequence[int] = (),
    lengths: tuple[int, ...] | None = None,
) -> Data:
    counts = {label: list(gold).count(index) for index, label in enumerate(labels)}
    return Data(
        labels=tuple(labels),
        train=Split(name="train.jsonl", rows=1600, counts=dict.fromkeys(labels, 1600 // len(labels)), sha256="a" * 64),
        valid=Split(name="valid.jsonl", rows=400, counts=dict.fromkeys(labels, 400 // len(labels)), sha256="b" * 64),
        test=TestSplit(
            name="test.jsonl",
            rows=len(gold),
            counts=counts,
            sha256="c" * 64,
            gold=tuple(gold),
            overlap=tuple(overlap),
            near=tuple(near),
            lengths=lengths,
        ),
        notes=(
            "8 rows of test stand word for word in train.",
            "26 rows of train are longer than 511 tokens and are cut.",
        ),
    )


def _about(folder: Path) -> None:
    command = "headstart compare train.jsonl --valid valid.jsonl --test test.jsonl --from runs/lm --seeds 5"
    write_json(folder / "run.json", {"format": 1, "kind": "compare", "command": command, "version": "0.1.0"})
    write_json(folder / "config.json", {"optim": {"lr": 0.0001, "optimizer": "adam"}, "loop": {"epochs": 15}})
    write_json(folder / "environment.json", {"python": "3.11.2", "torch": "2.11.0", "device": "cpu", "threads": 4})


def _extras(folder: Path) -> None:
    parts = [
        {"part": "embedding", "formula": "V d", "count": 10_000_200},
        {"part": "layers", "formula": "L (4 d (d+1) + ff (d+1) + d (ff+1) + 4 d)", "count": 968_000},
        {"part": "classification head", "formula": "C (d+1)", "count": 402},
    ]
    write_json(folder / "ledger.json", {"classifier": parts, "total": 10_968_602})
    moved = [
        {"name": f"layers.{layer}.attention.weight", "shape": [600, 200], "sha256": f"{layer:064x}"}
        for layer in range(4)
    ]
    new = [{"name": "head.weight", "shape": [2, 200]}, {"name": "head.bias", "shape": [2]}]
    receipt = {"source": "runs/lm/bundle", "tokenizer": "d" * 64, "moved": moved, "new": new}
    write_json(folder / "receipt.json", receipt)
    samples = [{"prompt": "Bonjour les", "text": "gens qui ont lu ce livre, il est très bien écrit."}]
    write_json(folder / "samples.json", samples)


if __name__ == "__main__":
    make_comparison(
        Path(sys.argv[1]),
        arms={"majority": 0.5, "tfidf": 0.841, "scratch": 0.755, "pretrained": 0.798},
        budgets=(100, 400, "all"),
        texts=2000,
        look_at_test=True,
        extras=True,
        probabilities=True,
    )
