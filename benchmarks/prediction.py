"""Prediction of many texts on CPU cores with packed weights in fp32 and bf16, compared with plain torch and onnxruntime.

python benchmarks/prediction.py --data FOLDER --work FOLDER [--part speed|answers] [--set imdb] [--threads 1]
    [--rounds 5] [--texts 60] [--compared 2000] [--out docs/results/prediction.json]

The first run fine-tunes `starter:en-reviews` on 1,000 or 2,000 training rows of each dataset and exports it to ONNX, in the folder of
--work. The texts are other training rows; test files are not read. `speed` measures all sides on the same texts in turn, in
one process; `answers` compares bf16 and the default, which computes close decisions again in fp32, with fp32. Tokenization
is included in the times.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.data.formats import read_parquet
from headstart.files import read_json
from headstart.predict.bundle_predictor import CLOSE_MARGIN
from headstart.predict.onnx_predictor import OnnxPredictor
from headstart.predict.outputs import decision_margins
from headstart.predict.predictor import Predictor
from headstart.runtime import Runtime
from headstart.store.bundle import load_bundle
from headstart.train.scoring import score_texts

SETS = {
    "imdb": "imdb/train.parquet",
    "complaints": "suite/complaints/train.jsonl.gz",
    "agnews": "suite/agnews/train.jsonl.gz",
}
LEARN = {"imdb": 1000, "complaints": 1000, "agnews": 2000}
"""Training rows."""
CPU = torch.device("cpu")
Logits = NDArray[np.float64]


def training_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a training file, in a fixed random order."""
    if path.suffix == ".parquet":
        rows = [dict(row.values) for row in read_parquet(str(path))]
    else:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    random.Random(1).shuffle(rows)
    return [{"text": str(row["text"]), "label": str(row["label"])} for row in rows]


def trained(work: Path, name: str, rows: Sequence[dict[str, str]]) -> Path:
    """Return the classifier of a dataset, and its export to ONNX."""
    folder = work / f"clf-{name}"
    if not (folder / "bundle").exists():
        train = work / f"{name}-train.jsonl"
        train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        command = ["finetune", str(train), "--from", "starter:en-reviews", "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "headstart", *command], check=True)
    if not (work / f"onnx-{name}").exists():
        command = ["export", str(folder), "--to", "onnx", "--out", str(work / f"onnx-{name}")]
        subprocess.run([sys.executable, "-m", "headstart", *command], check=True)
    return folder


def network(folder: Path, threads: int, precision: str) -> Predictor:
    """The classifier as `headstart predict` uses it with this precision."""
    runtime = Runtime(CPU, precision == "bf16", threads, mixed=precision == "auto")
    return Predictor(load_bundle(folder, head_type="classify"), runtime)


def speed(work: Path, name: str, texts: Sequence[str], threads: int, rounds: int) -> dict[str, Any]:
    """Return processor time and wall time per text in seconds, and ratios to plain torch: medians over rounds."""
    torch.set_num_threads(threads)
    folder = work / f"clf-{name}"
    plain = load_bundle(folder, head_type="classify").model
    auto, fp32, bf16 = (network(folder, threads, precision) for precision in ("auto", "fp32", "bf16"))
    exports = {
        f"onnxruntime {kind}": OnnxPredictor(work / f"onnx-{name}", int8=kind == "int8", threads=threads)
        for kind in ("fp32", "int8")
    }
    runs: dict[str, Callable[[], object]] = {
        "plain torch": lambda: score_texts(plain, fp32.dataset(texts), fp32.runtime, lambda: None),
        "default": lambda: auto.predict(texts),
        "packed fp32": lambda: fp32.predict(texts),
        "packed bf16": lambda: bf16.predict(texts),
        **{export: (lambda predictor=predictor: predictor.predict(texts)) for export, predictor in exports.items()},
    }
    times: dict[str, list[tuple[float, float]]] = {run: [] for run in runs}
    for turn in range(rounds + 1):
        for run, call in runs.items():
            processor, clock = time.process_time(), time.perf_counter()
            call()
            if turn:  # the first one warms up
                times[run].append((time.process_time() - processor, time.perf_counter() - clock))
    rows: dict[str, Any] = {}
    for run, pairs in times.items():
        row: dict[str, Any] = {}
        for index, kind in enumerate(("processor", "clock")):
            row[f"{kind}_ms_per_text"] = round(1000 * median(pair[index] for pair in pairs) / len(texts), 3)
            ratios = [before[index] / pair[index] for before, pair in zip(times["plain torch"], pairs, strict=True)]
            row[f"{kind}_ratio"] = round(median(ratios), 3)
        rows[run] = row
    tokens = float(np.mean([sum(fp32.padded_shape(text)[1:]) for text in fp32.encode(texts)]))
    return {
        "threads": threads,
        "rounds": rounds,
        "texts": len(texts),
        "tokens_per_text": round(tokens, 1),
        "rows": rows,
    }


def answers(work: Path, name: str, texts: Sequence[str]) -> dict[str, Any]:
    """The labels that bf16 and the default change, the largest changes, and the fraction that is computed twice."""
    auto, fp32, bf16 = (network(work / f"clf-{name}", 1, precision) for precision in ("auto", "fp32", "bf16"))
    encoded = fp32.encode(texts)
    exact, rounded, mixed = (predictor.probabilities(encoded) for predictor in (fp32, bf16, auto))
    margins, rounded_margins = (decision_margins(fp32.task, rows) for rows in (exact, rounded))
    labels = exact.argmax(axis=1)
    changed = rounded.argmax(axis=1) != labels
    signed_margins = np.where(changed, -rounded_margins, rounded_margins)
    return {
        "texts": len(texts),
        "changed": int(changed.sum()),
        "changed_by_default": int((mixed.argmax(axis=1) != labels).sum()),
        "computed_twice": round(float((rounded_margins < CLOSE_MARGIN).mean()), 5),
        "largest_change": round(float(np.abs(exact - rounded).max()), 5),
        "largest_margin_change": round(float(np.abs(margins - signed_margins).max()), 5),
        "largest_changed_margin": round(float(rounded_margins[changed].max(initial=0)), 5),
        "validation_accuracy": read_json(work / f"clf-{name}" / "result.json")["valid"]["accuracy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("HEADSTART_DATA"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--part", choices=("speed", "answers"), default="speed")
    parser.add_argument("--set", choices=SETS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--compared", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("docs/results/prediction.json"))
    arguments = parser.parse_args()
    for name in arguments.set or SETS:
        rows = training_rows(arguments.data / SETS[name])
        trained(arguments.work, name, rows[: LEARN[name]])
        texts = [row["text"] for row in rows[LEARN[name] :]]
        if arguments.part == "speed":
            part = f"speed_{arguments.threads}"
            result = speed(arguments.work, name, texts[: arguments.texts], arguments.threads, arguments.rounds)
        else:
            part, result = "answers", answers(arguments.work, name, texts[: arguments.compared])
        record = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
        record |= {"torch": torch.__version__, "processor": torch.cpu.get_capabilities().get("cpu_name", "")}
        record.setdefault(part, {})[name] = result
        arguments.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(part, name, json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
