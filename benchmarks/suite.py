"""`headstart auto` over many kinds of text: the linear model, the default network, the blend and the winner, on one test part.

python benchmarks/suite.py tables --data DATA --out tables           the rows of every run, drawn from the training parts
python benchmarks/suite.py run tables --out runs.json --jobs 7       one `auto` per table; continues with the tables that are missing in runs.json
python benchmarks/suite.py table runs.json --out docs/results/suite.json

DATA has the folders `suite`, `cls-books` and `imdb`. A cell is a set and a number of labels; a run is a cell and a seed. The
network starts from the starter of the set's language; where there is none, `auto` has no network. No other text is used.
"""

import argparse
import gzip
import json
import multiprocessing
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from headstart.data.hashing import text_digest
from headstart.data.labelled import label_subset
from headstart.report.intervals import estimate

ENGLISH = ("agnews", "complaints", "trec6", "tweet-emotion", "cr", "clinc150", "imdb")
SETS = (*ENGLISH, "cls-books", "cls-de-books", "zh-shop")
BUDGETS = {"clinc150": (750, 1500)}
"""Labels of the two cells of a set, where they are not 100 and 1,000: 5 and 10 for each of 150 intents."""
TEST_ROWS = {"imdb": 1000}
MAX_TEST_ROWS = 1500
SEEDS = 5
ARMS = ("majority", "linear", "pretrained", "blend")
STARTERS = {**dict.fromkeys(ENGLISH, "en"), "cls-books": "fr", "cls-de-books": "multi", "zh-shop": "multi"}
Rows = list[dict[str, str]]


def read_split(data: Path, name: str, split: str) -> Rows:
    """Read the rows of a set in file order."""
    if name == "imdb":
        import pyarrow.parquet as parquet

        rows = parquet.read_table(data / "imdb" / f"{split}.parquet", columns=["text", "label"]).to_pylist()
        return [{"text": row["text"], "label": str(row["label"])} for row in rows]
    folder = data if name == "cls-books" else data / "suite"
    path = next(path for path in folder.glob(f"{name}/{split}.jsonl*"))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [{"text": str(row["text"]), "label": str(row["label"])} for row in map(json.loads, file)]


def write_tables(data: Path, out: Path) -> None:
    """Write the training rows of every run and the test rows of every set; rows of train that test repeats are left out."""
    out.mkdir(parents=True)
    for name in SETS:
        test = read_split(data, name, "test")
        size = TEST_ROWS.get(name, MAX_TEST_ROWS)
        chosen = label_subset([row["label"] for row in test], min(size, len(test)), 0, digests(test))
        write_rows(out / f"{name}.test.jsonl.gz", [test[index] for index in chosen])
        known = {row["text"].strip() for row in test}
        train = [
            row for row in read_split(data, name, "train") if row["text"].strip() and row["text"].strip() not in known
        ]
        for budget in BUDGETS.get(name, (100, 1000)):
            for seed in range(SEEDS):
                rows = label_subset([row["label"] for row in train], budget, seed, digests(train))
                write_rows(out / f"{name}.{budget}.{seed}.jsonl.gz", [train[index] for index in rows])


def digests(rows: Rows) -> list[int]:
    return [text_digest(row["text"]) for row in rows]


def write_rows(path: Path, rows: Rows) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


Task = tuple[str, str, float, int | None, str | None, dict[str, Any], Path | None]


def disable_continued_pretraining() -> None:
    """On a GPU, `auto` continues a starter on a table of 1 MB or more; the rows of one table of results should be alike."""
    from headstart.recipes.auto import run

    run.pretraining_minutes = lambda *_, **__: 0.0


def run_table(task: Task) -> dict[str, Any]:
    """Run `auto` on one table; returns the test predictions of every arm."""
    from headstart.recipes.auto.run import AutoRequest, run_auto
    from headstart.store.records import read_record, record_path

    path, test, minutes, folds, backbone, settings, probabilities = task
    disable_continued_pretraining()
    name, budget, seed = Path(path).name.split(".")[:3]
    work = Path(tempfile.mkdtemp())
    started = time.monotonic()
    request = AutoRequest(
        table=path,
        test=test,
        out=work / "auto",
        backbone=backbone,
        minutes=minutes,
        max_folds=folds,
        settings={"runtime.seed": int(seed)} | settings,
    )
    result = run_auto(request)
    records = {arm: read_record(record_path(work / "auto", arm, "all", int(seed))) for arm in result.scores}
    data = json.loads((work / "auto" / "data.json").read_text())
    if probabilities is not None:
        write_probabilities(Path(probabilities) / f"{name}.{budget}.{seed}.npz", records, data)
    run = {
        "set": name,
        "labels": int(budget),
        "seed": int(seed),
        "winner": result.winner,
        "seconds": round(time.monotonic() - started, 1),
        "plan": json.loads((work / "auto" / "plan.json").read_text())
        if (work / "auto" / "plan.json").is_file()
        else None,
        "settings": {arm: record.setting for arm, record in records.items()},
        "cross_validation": {arm: record.valid.accuracy for arm, record in records.items()},
        "predictions": {arm: list(record.predictions) for arm, record in records.items()},
        "gold": data["test"]["gold"],
    }
    shutil.rmtree(work)
    return run


def write_probabilities(path: Path, records: dict[str, Any], data: dict[str, Any]) -> None:
    """Write the probabilities of the linear model and the network, so that other rules of blending can be compared later."""
    arrays = {"valid_gold": np.array(data["valid"]["gold"]), "test_gold": np.array(data["test"]["gold"])}
    for arm in {"linear", "pretrained"} & set(records):
        for part, values in (("test", records[arm].probabilities), ("valid", records[arm].valid_probabilities)):
            if values is not None:
                arrays[f"{arm}_{part}"] = np.array(values, dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def backbone_for(name: str, options: argparse.Namespace) -> str | None:
    """Return the backbone of a set's runs; None lets `auto` choose among the installed starters."""
    from headstart.recipes.auto.run import NO_NETWORK

    if options.linear:
        return NO_NETWORK
    folders = dict(pair.split("=", 1) for pair in options.starter)
    return folders.get(STARTERS[name])


def run_tables(options: argparse.Namespace) -> None:
    """Run every table that `out` has no run of; what is finished is written after each run."""
    tables, out, limit, started = options.tables, options.out, options.limit, time.monotonic()
    runs = json.loads(out.read_text()) if out.is_file() else []
    done = {(run["set"], run["labels"], run["seed"]) for run in runs}
    tasks = []
    for path in sorted(tables.glob("*.jsonl.gz"), key=lambda path: path.name.split(".")[2]):  # a seed after the other
        name, budget, seed = path.name.split(".")[:3]
        if budget != "test" and (name, int(budget), int(seed)) not in done and name in options.sets:
            test = str(tables / f"{name}.test.jsonl.gz")
            backbone = backbone_for(name, options)
            tasks.append(
                (str(path), test, options.minutes, options.folds, backbone, options.settings, options.probabilities)
            )
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for run in pool.imap_unordered(run_table, tasks):
            runs.append(run | {"commit": commit()})
            out.write_text(json.dumps(runs))
            print(
                f"{len(runs):3d} {run['set']} {run['labels']} seed {run['seed']}: {run['winner']}, {run['seconds']} s",
                flush=True,
            )
            if limit is not None and time.monotonic() - started > 60 * limit:
                pool.terminate()
                break


def commit() -> str:
    shown = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or "unknown"


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the accuracies of every cell, arm by arm and seed by seed, and the distance of `auto` to the linear model."""
    cells = []
    for name in SETS:
        for labels in BUDGETS.get(name, (100, 1000)):
            chosen = sorted(
                (run for run in runs if (run["set"], run["labels"]) == (name, labels)), key=lambda run: run["seed"]
            )
            if chosen:
                cells.append({"set": name, "labels": labels, **summarize_cell(chosen)})
    differences = [cell["auto_less_linear"]["mean"] for cell in cells]
    return {
        "commits": sorted({run["commit"] for run in runs}),
        "cells": cells,
        "means": {
            arm: statistics.mean(cell["accuracy"][arm] for cell in cells if arm in cell["accuracy"])
            for arm in (*ARMS, "auto")
        },
        "auto_less_linear": statistics.mean(differences),
    }


def starter_of(run: dict[str, Any]) -> str | None:
    """Return the starter of a run's network."""
    if "pretrained" not in run["predictions"]:
        return None
    chosen: str | None = (run["plan"] or {}).get("starter")
    return chosen or f"starter:{STARTERS[run['set']]}"


def summarize_cell(runs: list[dict[str, Any]]) -> dict[str, Any]:
    right = {arm: [] for arm in (*ARMS, "auto") if arm == "auto" or arm in runs[0]["predictions"]}
    for run in runs:
        gold = np.array(run["gold"])
        for arm in right:
            right[arm].append(np.array(run["predictions"][run["winner"] if arm == "auto" else arm]) == gold)
    arrays = {arm: np.array(rows, dtype=float) for arm, rows in right.items()}
    difference = estimate(arrays["auto"] - arrays["linear"])
    return {
        "seeds": len(runs),
        "test_rows": len(runs[0]["gold"]),
        "folds": sorted(
            {run["plan"]["network"]["folds"] for run in runs if run["plan"] and run["plan"].get("network")}
        ),
        "starters": dict(Counter(starter for run in runs if (starter := starter_of(run)))),
        "winners": [run["winner"] for run in runs],
        "weights": [run["settings"]["blend"]["weight"] for run in runs if "blend" in run["settings"]],
        "accuracies": {arm: [round(float(row.mean()), 4) for row in rows] for arm, rows in arrays.items()},
        "accuracy": {arm: round(float(rows.mean()), 4) for arm, rows in arrays.items()},
        "cross_validation": {
            arm: round(statistics.mean(run["cross_validation"][arm] for run in runs), 4)
            for arm in right
            if arm != "auto"
        },
        "auto_less_linear": {
            "mean": round(difference.mean, 4),
            "low": round(difference.low, 4),
            "high": round(difference.high, 4),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    tables = actions.add_parser("tables")
    tables.add_argument("--data", type=Path, required=True)
    tables.add_argument("--out", type=Path, required=True)
    run = actions.add_parser("run")
    run.add_argument("tables", type=Path)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--minutes", type=float, default=60.0, help="the limit of one run of auto")
    run.add_argument("--limit", type=float, help="end after so many minutes; another call goes on")
    run.add_argument("--folds", type=int, help="at most so many folds")
    run.add_argument("--linear", action="store_true", help="no network: the linear model alone")
    run.add_argument(
        "--probabilities", type=Path, metavar="FOLDER", help="also keep the probabilities of the arms, here"
    )
    run.add_argument("--settings", type=json.loads, default={}, help="settings of auto, as JSON")
    run.add_argument("--sets", nargs="+", default=list(SETS))
    run.add_argument(
        "--starter", action="append", default=[], metavar="NAME=FOLDER", help="instead of the one that auto chooses"
    )
    table = actions.add_parser("table")
    table.add_argument("runs", type=Path)
    table.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.action == "tables":
        write_tables(options.data, options.out)
    elif options.action == "run":
        run_tables(options)
    else:
        summary = summarize(json.loads(options.runs.read_text()))
        options.out.write_text(json.dumps(summary, indent=1) + "\n")
        for cell in summary["cells"]:
            figures = " ".join(f"{arm} {value:.3f}" for arm, value in cell["accuracy"].items())
            print(f"{cell['set']:14} {cell['labels']:5} {figures}  {cell['auto_less_linear']}")
        print(summary["means"])


if __name__ == "__main__":
    main()
