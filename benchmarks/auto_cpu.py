"""`headstart auto TABLE --minutes 10` on two cores: accuracy of every arm, and the time from start to exit.

    python benchmarks/auto_cpu.py --data DATA --work runs/auto-cpu

Rows are sampled from the training parts of `DATA/suite`: complaints (600 of 8,000 rows with a label, the others without; three
samples), clinc150 (10 rows of each of 150 intents), cls-de-books (600 labels in 2,000 rows) and zh-shop (600 in 10,000). The
test file is read once per sample. An interrupted run continues, and every sample is recorded in docs/results/auto_cpu.json.

`--rehearse` evaluates on other training rows instead of the test file and writes rehearsal.json in the work folder.
"""

import argparse
import csv
import gzip
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "auto_cpu.json"
REHEARSAL_ROWS = 500
Rows = list[dict[str, str]]


class Cell(NamedTuple):
    """A table to sample: the dataset, its number of rows, the number of labels, and the number of samples."""

    name: str
    labels: int
    rows: int
    draws: int
    per_label: int | None = None
    """Rows per label, for a table without unlabelled rows."""


CELLS = (
    Cell("complaints", 600, 8000, 3),
    Cell("clinc150", 1500, 1500, 1, per_label=10),
    Cell("cls-de-books", 600, 2000, 1),
    Cell("zh-shop", 600, 10000, 1),
)


def read_split(data: Path, name: str, split: str) -> Rows:
    with gzip.open(data / "suite" / name / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [{"text": str(row["text"]), "label": str(row["label"])} for row in map(json.loads, lines)]


def draw_rows(rows: Rows, cell: Cell, seed: int) -> Rows:
    """Sample the rows of a table; the label is empty in all rows but those that have one."""
    rows = list(rows)
    random.Random(seed).shuffle(rows)
    if cell.per_label is None:
        return [row if index < cell.labels else row | {"label": ""} for index, row in enumerate(rows[: cell.rows])]
    of_label: dict[str, Rows] = {}
    for row in rows:
        of_label.setdefault(row["label"], []).append(row)
    return [row for chosen in of_label.values() for row in chosen[: cell.per_label]]


def write_files(data: Path, folder: Path, cell: Cell, seed: int, *, rehearse: bool) -> tuple[Path, Path]:
    """Write the table of a sample and the rows for its evaluation."""
    train = read_split(data, cell.name, "train")
    if rehearse:
        random.Random(0).shuffle(train)
        test, train = train[:REHEARSAL_ROWS], train[REHEARSAL_ROWS:]
    else:
        test = read_split(data, cell.name, "test")
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{cell.name}.csv", folder / "test.csv"
    for path, rows in zip(paths, (draw_rows(train, cell, seed), test), strict=True):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ("text", "label"))
            writer.writeheader()
            writer.writerows(rows)
    return paths


def run_draw(data: Path, work: Path, cell: Cell, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the command once and return its accuracies and its duration."""
    folder = work / f"{cell.name}-{seed}-{options.minutes:g}"
    table, test = write_files(data, folder, cell, seed, rehearse=options.rehearse)
    words = ["auto", table.name, "--test", test.name, "--minutes", f"{options.minutes:g}", "--out", "run"]
    shutil.rmtree(folder / "run", ignore_errors=True)  # of a draw that was stopped: its time would not count
    load_before, started = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, "-m", "headstart", *words, "--runtime.seed", str(seed)]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    (folder / "output.txt").write_text(shown.stdout + shown.stderr, encoding="utf-8")
    if shown.returncode:
        raise SystemExit(f"{folder}: exit code {shown.returncode}\n{shown.stderr[-2000:]}")
    result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    plan = folder / "run" / "plan.json"
    network = json.loads(plan.read_text(encoding="utf-8")).get("network") if plan.is_file() else None
    return {
        "set": cell.name,
        "seed": seed,
        "labels": cell.labels,
        "rows": cell.rows,
        "minutes": options.minutes,
        "seconds": round(seconds, 1),
        "winner": result["winner"],
        "scores": result["scores"],
        "headline": result["headline"],
        "network": network,
        "threads": json.loads((folder / "run" / "environment.json").read_text(encoding="utf-8"))["threads"],
        "load": [round(load_before, 2), round(os.getloadavg()[0], 2)],
    }


def about() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": "python benchmarks/auto_cpu.py --data DATA",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with suite/ in it")
    parser.add_argument("--work", type=Path, default=Path("runs/auto-cpu"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--set", action="append", dest="sets", choices=[cell.name for cell in CELLS])
    parser.add_argument("--draws", type=int, help="at most so many draws of a set")
    parser.add_argument("--rehearse", action="store_true", help="evaluate on training rows; no test file is read")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    out = options.work / "rehearsal.json" if options.rehearse else RESULTS
    kept = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"about": about(), "runs": []}
    done = {(run["set"], run["seed"], run["minutes"]) for run in kept["runs"]}
    for cell in CELLS:
        for seed in range(min(cell.draws, options.draws or cell.draws)):
            if (cell.name, seed, options.minutes) in done or cell.name not in (options.sets or [cell.name]):
                continue
            run = run_draw(options.data, options.work, cell, seed, options)
            kept["runs"].append(run)
            out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(
                f"{cell.name} {seed}: {run['seconds']:.0f} s of {60 * options.minutes:.0f}; {run['headline']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
