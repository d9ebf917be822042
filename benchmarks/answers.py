"""Speed of predictions on CPU cores, compared with a transformers pipeline of the same model: many texts, and the first one.

python benchmarks/answers.py --work FOLDER [--threads 1] [--rounds 5] [--out docs/results/cpu.json]

The first run creates the models in FOLDER: for each type of network a tokenizer and a short fine-tuning on the snippets of the
demo, then `headstart export --to hf` and `--to onnx`. All sides predict the same texts in turn, in one process. The number of
predictions that int8 does not change is counted once, on more texts. Cold starts are separate processes, also in turn.
"""

import csv
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from cpu import keep, made_by, options

import headstart
from headstart.config.schema import RuntimeConfig
from headstart.data.corpus import builtin_reviews
from headstart.predict.onnx_predictor import OnnxPredictor
from headstart.predict.predictor import Predictor

KINDS = {
    "classic": ("classic", {"loop.epochs": 2, "optim.lr": 3e-4}),
    "modern-nano": ("modern-nano", {"loop.epochs": 2, "loop.min_steps": 1, "optim.lr": 1e-3}),
}
LEARN, SNIPPETS, REVIEWS = 1500, 600, 600
"""Training rows, and texts that are timed."""
MORE = 2000
"""Texts of each kind for the comparison of predictions."""
LINEAR = "TF-IDF + logistic regression (another model)"
PIPELINES = ("pipeline, one at a time (its default)", "pipeline, batches of 8")
COLD = {
    "headstart": [
        sys.executable,
        "-m",
        "headstart",
        "predict",
        "{folder}",
        "a wonderful film",
        "--runtime.threads",
        "1",
    ],
    "transformers": [
        sys.executable,
        "-c",
        "import sys; from transformers import pipeline; "
        "print(pipeline('text-classification', model=sys.argv[1])('a wonderful film'))",
        "{folder}-hf",
    ],
}


def texts() -> tuple[list[dict[str, str]], list[str], list[str]]:
    """Return training rows, snippets, and reviews of up to a hundred words, as many as are compared."""
    with builtin_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    short = [row for row in rows if row["source"] == "rotten_tomatoes"]
    order = np.random.default_rng(0).permutation(len(short))
    short = [short[index] for index in order]
    long = [row["text"] for row in rows if row["source"] == "imdb" and len(row["text"].split()) < 100]
    return short[:LEARN], [row["text"] for row in short[LEARN : LEARN + MORE]], long[:MORE]


def made(work: Path, kind: str) -> Path:
    """Return the classifier of a type of network, and its two exports."""
    folder = work / kind
    if not (folder / "bundle").exists():
        train = work / "train.csv"
        with train.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(texts()[0])
        preset, settings = KINDS[kind]
        settings = settings | {"tokenizer.vocab_size": 16384, "runtime.threads": 1}
        headstart.finetune(train, out=folder, backbone="scratch", preset=preset, settings=settings)
        headstart.export(folder, out=f"{folder}-hf", to="hf")
        headstart.export(folder, out=f"{folder}-onnx", to="onnx")
    return folder


def answerers(folder: Path, threads: int) -> dict:
    """Return the sides, each a function from texts to labels."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from transformers import pipeline

    predictor = Predictor.load(folder, RuntimeConfig(device="cpu", threads=threads))
    small = OnnxPredictor(Path(f"{folder}-onnx"), int8=True, threads=threads)
    full = OnnxPredictor(Path(f"{folder}-onnx"), threads=threads)
    plain = pipeline("text-classification", model=f"{folder}-hf", device="cpu")
    linear = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    learnt = texts()[0]
    linear.fit([row["text"] for row in learnt], [row["label"] for row in learnt])
    return {
        "headstart": lambda batch: [answer.label for answer in predictor.predict(batch)],
        "headstart, int8 export": lambda batch: [answer.label for answer in small.predict(batch)],
        "headstart, fp32 export in onnxruntime": lambda batch: [answer.label for answer in full.predict(batch)],
        PIPELINES[0]: lambda batch: [row["label"] for row in plain(batch, truncation=True)],
        PIPELINES[1]: lambda batch: [row["label"] for row in plain(batch, truncation=True, batch_size=8)],
        LINEAR: lambda batch: list(linear.predict(batch)),
    }


def compared(kind: str, folder: Path, threads: int, rounds: int) -> list[dict]:
    """Measure rates and agreement on snippets and reviews."""
    predictor = Predictor.load(folder, RuntimeConfig(device="cpu", threads=threads))
    rows = []
    _, short, long = texts()
    everyone = answerers(folder, threads)
    for what, batch in (("snippets", short[:SNIPPETS]), ("reviews", long[:REVIEWS])):
        ours = everyone["headstart"](batch)
        seconds = {name: {"wall": [], "cpu": []} for name in everyone}
        same = {}
        for _ in range(rounds):
            for name, answer in everyone.items():
                wall, cpu = time.perf_counter(), time.process_time()
                labels = answer(batch)
                seconds[name]["wall"].append(time.perf_counter() - wall)
                seconds[name]["cpu"].append(time.process_time() - cpu)
                same[name] = sum(a == b for a, b in zip(ours, labels, strict=True))
        tokens = float(np.mean([len(ids) + 1 for ids in predictor.encode(batch)]))
        wall, cpu = ({name: median(taken[clock]) for name, taken in seconds.items()} for clock in ("wall", "cpu"))
        for name in seconds:
            rows.append(
                {
                    "model": kind,
                    "texts": what,
                    "count": len(batch),
                    "mean_tokens": round(tokens, 1),
                    "who": name,
                    "texts_per_cpu_second": round(len(batch) / cpu[name], 1),
                    "wall": round(wall[name] / wall["headstart"], 3),
                    "cpu": round(cpu[name] / cpu["headstart"], 3),
                    "pipeline_wall": round(min(wall[pipe] for pipe in PIPELINES) / wall[name], 2),
                    "pipeline_cpu": round(min(cpu[pipe] for pipe in PIPELINES) / cpu[name], 2),
                    "same": None if name == LINEAR else same[name],
                }
            )
            print(rows[-1], flush=True)
    return rows


def agreed(kind: str, folder: Path) -> list[dict]:
    """Count the labels of the exports that equal those of torch in full precision."""
    predictor = Predictor.load(folder, RuntimeConfig(device="cpu", threads=1))
    rows = []
    for what, batch in zip(("snippets", "reviews"), texts()[1:], strict=True):
        ours = [answer.label for answer in predictor.predict(batch)]
        row = {"model": kind, "texts": what, "count": len(batch)}
        for name, int8 in (("int8", True), ("fp32", False)):
            answers = OnnxPredictor(Path(f"{folder}-onnx"), int8=int8, threads=1).predict(batch)
            row[name] = sum(label == answer.label for label, answer in zip(ours, answers, strict=True))
        rows.append(row)
        print(row, flush=True)
    return rows


def cold(kind: str, folder: Path, rounds: int) -> list[dict]:
    """Return the seconds from the start of a command to its prediction."""
    result = {name: {"wall": [], "cpu": []} for name in COLD}
    for _ in range(rounds):
        for name, command in COLD.items():
            before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([part.format(folder=folder) for part in command], check=True, capture_output=True)
            result[name]["wall"].append(time.perf_counter() - wall)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            result[name]["cpu"].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    rows = [
        {
            "model": kind,
            "who": name,
            "wall_s": round(median(taken["wall"]), 2),
            "cpu_s": round(median(taken["cpu"]), 2),
            "wall": round(median(taken["wall"]) / median(result["headstart"]["wall"]), 2),
            "cpu": round(median(taken["cpu"]) / median(result["headstart"]["cpu"]), 2),
        }
        for name, taken in result.items()
    ]
    print(rows, flush=True)
    return rows


def main() -> None:
    parser = options()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=("make", "predict", "agree", "cold"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    folders = {kind: made(arguments.work, kind) for kind in KINDS}
    about = made_by(arguments, "python benchmarks/answers.py --work FOLDER")

    def part(measure: Callable[..., list[dict]], *settings: int) -> dict:
        rows = [row for kind, folder in folders.items() for row in measure(kind, folder, *settings)]
        return {"rounds": arguments.rounds, "rows": rows, "machine": about}

    if arguments.only in (None, "predict"):
        keep(arguments.out, **{f"predict_{arguments.threads}": part(compared, arguments.threads, arguments.rounds)})
    if arguments.only in (None, "agree"):
        keep(arguments.out, agree=part(agreed))
    if arguments.only in (None, "cold"):
        keep(arguments.out, cold=part(cold, arguments.rounds))


if __name__ == "__main__":
    main()
