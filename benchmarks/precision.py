"""Accuracy of fine-tuning from a starter on a CPU in bf16 and in fp32, paired by seed.

python benchmarks/precision.py --data DATA [--seeds 5] [--out docs/results/precision.json]

DATA has the folder `suite`. A run is trained on labelled rows of a training part and evaluated on other rows of it; test parts
are not read. The record is written after every run, and the script continues with the runs that are missing in it.

Both precisions of a seed drop the same activations on a CPU, so that the precision is the only difference between them.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from suite import digests, read_split

from headstart.data.labelled import label_subset
from headstart.estimator import TextClassifier

CELLS = [("trec6", 100), ("tweet-emotion", 100), ("cr", 100), ("agnews", 100), ("trec6", 1000)]
MEASURED_ROWS = 1000
"""Maximum number of evaluation rows, which no seed is trained on."""


def rows_of(data: Path, name: str, labels: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the training rows, which depend on the seed, and the evaluation rows, which do not."""
    rows = read_split(data, name, "train")
    rows = list(dict(zip(digests(rows), rows, strict=True)).values())
    size = min(MEASURED_ROWS, len(rows) // 3)
    held_out = set(label_subset([row["label"] for row in rows], size, 0, digests(rows)))
    pool = [row for index, row in enumerate(rows) if index not in held_out]
    chosen = label_subset([row["label"] for row in pool], labels, seed + 1, digests(pool))
    return [pool[index] for index in chosen], [rows[index] for index in sorted(held_out)]


def run(data: Path, name: str, labels: int, seed: int, precision: str) -> dict[str, Any]:
    """Run one training and its evaluation."""
    train, measured = rows_of(data, name, labels, seed)
    settings = {"runtime.precision": precision, "runtime.threads": 1}
    started = time.process_time()
    classifier = TextClassifier("starter:en-reviews", seed=seed, device="cpu", settings=settings)
    classifier.fit([row["text"] for row in train], [row["label"] for row in train])
    seconds = time.process_time() - started
    answers = classifier.predict([row["text"] for row in measured])
    correct = [str(answer) == row["label"] for answer, row in zip(answers, measured, strict=True)]
    return {
        "set": name,
        "labels": labels,
        "seed": seed,
        "precision": precision,
        "rows": len(measured),
        "accuracy": round(float(np.mean(correct)), 5),
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", choices=sorted({name for name, _ in CELLS}), action="append")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "docs" / "results" / "precision.json"
    )
    arguments = parser.parse_args()
    record = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"runs": []}
    done = {(one["set"], one["labels"], one["seed"], one["precision"]) for one in record["runs"]}
    for seed in range(arguments.seeds):
        for name, labels in [cell for cell in CELLS if arguments.set is None or cell[0] in arguments.set]:
            for precision in ("bf16", "fp32"):
                if (name, labels, seed, precision) in done:
                    continue
                record["runs"].append(run(arguments.data, name, labels, seed, precision))
                record["command"] = f"python benchmarks/precision.py --data DATA --seeds {arguments.seeds}"
                record["torch"], record["processor"] = torch.__version__, platform.machine()
                arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
                print(record["runs"][-1], flush=True)


if __name__ == "__main__":
    main()
