"""Compare fine-tuning settings or starters on many kinds of text, on training rows of several datasets and label counts.

python benchmarks/recipes.py --data DATA --recipes recipes.json --out runs.json --jobs 7 [--draws 2] [--limit MINUTES]
python benchmarks/recipes.py --data DATA --backbone a=runs/a --backbone b=runs/b --out runs.json --jobs 7 --sizes 100 1000

recipes.json maps a name to the settings that differ from the preset, in dotted names, such as {"h5": {"optim.lr": 3e-4}}. Of
each dataset (see suite.py) training rows are sampled: 8 per label, 100 and 1,000 (of clinc150 5 and 10 per label); other rows
of the training part are predicted. All settings and backbones of a sample share rows, order and head. No test file is read.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
from suite import SETS, STARTERS, read_split

POOL, EVALUATED, VALID = 6000, 1000, 32
SIZES = {"clinc150": ("5x", "10x")}
EQUIVALENT = {"5x": "100", "10x": "1000"}
_sets: dict[str, tuple[list[str], np.ndarray]] = {}


def load(data: Path, name: str) -> tuple[list[str], np.ndarray]:
    """Return the texts of a set's training rows and their label indices, without duplicates, in a fixed random order."""
    if name not in _sets:
        rows = list(
            {
                row["text"].strip().lower(): row for row in read_split(data, name, "train") if row["text"].strip()
            }.values()
        )
        rows = [rows[index] for index in np.random.default_rng(0).permutation(len(rows))[:POOL]]
        labels = sorted({row["label"] for row in rows})
        _sets[name] = [row["text"] for row in rows], np.array([labels.index(row["label"]) for row in rows])
    return _sets[name]


def draw(gold: np.ndarray, size: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training rows, stratified, and rows to predict; `size` is a number of rows or, as in 8x, per label."""
    rng = np.random.default_rng([seed, len(gold)])
    order = rng.permutation(len(gold))
    chosen: list[int] = []
    for label in range(gold.max() + 1):
        rows = order[gold[order] == label]
        count = int(size[:-1]) if size.endswith("x") else max(1, round(int(size) * len(rows) / len(gold)))
        chosen += rows[:count].tolist()
    rest = rng.permutation(np.setdiff1d(order, chosen))
    return np.array(chosen), rest[:EVALUATED]


def run(task: tuple[str, str, str, int, str, dict[str, Any], str | None]) -> dict[str, Any]:
    """Fine-tune a backbone, or the starter of a dataset, with one set of settings, and evaluate it."""
    import tempfile

    import headstart

    data, name, size, seed, recipe, settings, backbone = task
    texts, gold = load(Path(data), name)
    train, evaluated = draw(gold, size, seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # few validation rows: they are scored after every epoch, and the last epoch is kept
        paths = {"train": train, "valid": evaluated[:VALID]}
        for split, rows in paths.items():
            lines = (json.dumps({"text": texts[row], "label": f"label {gold[row]:03d}"}) + "\n" for row in rows)
            Path(folder, f"{split}.jsonl").write_text("".join(lines))
        files = {split: str(Path(folder, f"{split}.jsonl")) for split in paths}
        out = Path(folder, "run")
        backbone = backbone or f"starter:{STARTERS.get(name, 'en')}"
        headstart.finetune(**files, out=out, backbone=backbone, settings=settings | {"runtime.seed": seed})
        predictions = headstart.load(str(out)).predict([texts[row] for row in evaluated])
        correct = [p.label == f"label {gold[row]:03d}" for p, row in zip(predictions, evaluated, strict=True)]
    seconds = round(time.monotonic() - started, 1)
    return {
        "set": name,
        "size": size,
        "draw": seed,
        "recipe": recipe,
        "accuracy": float(np.mean(correct)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipes", type=Path, help="the default is one recipe, that of the preset")
    parser.add_argument(
        "--backbone", action="append", default=[], metavar="NAME=FOLDER", help="instead of the starters"
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--sizes", nargs="+", help="of 8x, 100 and 1000; clinc150 has 5x and 10x for the last two")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--limit", type=float, help="end after so many minutes")
    options = parser.parse_args()
    recipes, started = json.loads(options.recipes.read_text()) if options.recipes else {"default": {}}, time.monotonic()
    backbones = dict(pair.split("=", 1) for pair in options.backbone) or {"": None}
    cells = [
        (name, size)
        for name in options.sets
        for size in SIZES.get(name, ("8x", "100", "1000"))
        if options.sizes is None or EQUIVALENT.get(size, size) in options.sizes
    ]
    tasks = []
    for seed in range(options.draws):
        for index in np.random.default_rng(seed).permutation(len(cells)):
            for recipe, settings in recipes.items():
                for name, folder in backbones.items():
                    full_name = f"{recipe} {name}".strip() if options.recipes else name or recipe
                    tasks.append((str(options.data), *cells[index], seed, full_name, settings, folder))
    runs = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for result in pool.imap_unordered(run, tasks):
            runs.append(result)
            options.out.write_text(json.dumps(runs))
            print(result, flush=True)
            if options.limit is not None and time.monotonic() - started > 60 * options.limit:
                pool.terminate()
                break
    print_means(runs)


def print_means(runs: list[dict[str, Any]]) -> None:
    """Print the mean accuracy of every recipe and size over the sets that all recipes have."""
    names = list(dict.fromkeys(run["recipe"] for run in runs))
    cells: dict[tuple[str, str, int], dict[str, float]] = {}
    for run in runs:
        cells.setdefault((run["set"], run["size"], run["draw"]), {})[run["recipe"]] = run["accuracy"]
    complete = {key: row for key, row in cells.items() if len(row) == len(names)}
    for size in dict.fromkeys(EQUIVALENT.get(size, size) for _, size, _ in complete):
        sets = sorted({name for name, of, _ in complete if EQUIVALENT.get(of, of) == size})
        print(f"labels {size}: {len(sets)} sets: {' '.join(sets)}")
        for recipe in names:
            means = [
                np.mean(
                    [
                        row[recipe]
                        for (n, of, _), row in complete.items()
                        if n == name and EQUIVALENT.get(of, of) == size
                    ]
                )
                for name in sets
            ]
            print(f"  {recipe:24} {np.mean(means):.4f}  {' '.join(f'{mean:.3f}' for mean in means)}")


if __name__ == "__main__":
    main()
