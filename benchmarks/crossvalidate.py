"""Fine-tuning evaluated by cross-validation on training and validation rows together; no test file is read.

    python benchmarks/crossvalidate.py RUN ... --train train.jsonl --valid valid.jsonl --out cv.json \
        --try base: --try "slow:optim.lr=5e-5" --jobs 4

Each RUN is a pretrained folder (or scratch), each --try a name and settings that differ from the preset's. Rows with the
same text always share a fold. The script prints one line per combination: mean of the last epochs, worst fold,
and the variation between epochs.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

PRESET = "modern"


def folds_of(texts, gold, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each row: stratified, with duplicates in the same fold."""
    from headstart.data.hashing import seeded_permutation, text_digest

    fold = np.zeros(len(gold), dtype=np.int64)
    for label in np.unique(gold):
        rows = np.flatnonzero(gold == label)
        fold[rows[seeded_permutation(len(rows), seed, 0)]] = np.arange(len(rows)) % folds
    first: dict[int, int] = {}
    for row, text in enumerate(texts):
        fold[row] = fold[first.setdefault(text_digest(text), row)]
    return fold


def train_fold(task: dict) -> dict:
    """Run one fine-tuning in a separate process."""
    from headstart.config import presets
    from headstart.config.merge import merge_config, nest
    from headstart.config.schema import FinetuneConfig
    from headstart.interrupts import StopSignal
    from headstart.progress import SilentProgress
    from headstart.recipes.finetune.dataset import build_classifier, load_labelled_data, resolve_attention
    from headstart.recipes.finetune.run import choose_tokenizer, load_backbone, resolve_config
    from headstart.recipes.finetune.trainer import FinetuneTrainer
    from headstart.runtime import setup_runtime
    from headstart.store.run_folder import RunFolder

    started = time.time()
    source = load_backbone(task["run"])
    settings = nest({**task["settings"], "runtime.seed": task["seed"]})
    config = resolve_config(
        merge_config(FinetuneConfig, presets.preset_values(task["preset"], "finetune"), settings), source
    )
    data = load_labelled_data(
        task["train"],
        task["valid"],
        None,
        config.labelled,
        tokenizer=choose_tokenizer(source, None),
        tokenizer_config=config.tokenizer,
        seed=0,
        progress=SilentProgress(),
    )
    both = replace(
        data.train,
        texts=data.train.texts + data.valid.texts,
        ids=data.train.ids + data.valid.ids,
        gold=np.concatenate((data.train.gold, data.valid.gold)),
    )
    fold = folds_of(both.texts, both.gold, task["folds"], seed=0)
    data = replace(
        data,
        train=both.take(np.flatnonzero(fold != task["fold"])),
        valid=both.take(np.flatnonzero(fold == task["fold"])),
    )
    shape = config.model
    model, _ = build_classifier(shape, data, source, task["run"], task["seed"], resolve_attention(config, source))
    with tempfile.TemporaryDirectory() as scratch:
        run = RunFolder.create(Path(scratch) / "run", kind="finetune", command="", config=config, inputs={})
        training = FinetuneTrainer(
            run, config, data, model, setup_runtime(config.runtime), StopSignal(), SilentProgress(), quiet=True
        )
        outcome = training.train(resume=False)
    accuracies = [epoch["valid_accuracy"] for epoch in outcome.epochs]
    return {k: task[k] for k in ("run", "name", "fold", "seed")} | {
        "rows": len(data.valid),
        "epochs": accuracies,
        "chosen": outcome.valid.accuracy,
        "loss": outcome.valid.loss,
        "seconds": round(time.time() - started, 1),
    }


def table(results: list[dict]) -> list[dict]:
    """Print one line per combination of folder and settings."""
    lines = []
    for key in dict.fromkeys((r["run"], r["name"]) for r in results):
        mine = [r for r in results if (r["run"], r["name"]) == key]
        last = np.array([r["chosen"] for r in mine])
        rows = np.array([r["rows"] for r in mine])
        second_half = [r["epochs"][len(r["epochs"]) // 2 :] for r in mine]
        lines.append(
            {
                "run": Path(key[0]).name,
                "setting": key[1],
                "accuracy": round(float((last * rows).sum() / rows.sum()), 4),
                "worst_fold": round(float(last.min()), 4),
                "swing": round(float(np.mean([max(e) - min(e) for e in second_half])), 4),
                "loss": round(float(np.mean([r["loss"] for r in mine])), 4),
                "runs": len(mine),
                "seconds_a_run": round(float(np.mean([r["seconds"] for r in mine])), 1),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--try", dest="tries", action="append", default=[])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    tasks = []
    for run in arguments.runs:
        for words in arguments.tries or ["base:"]:
            name, _, settings = words.partition(":")
            changed = dict(pair.split("=", 1) for pair in settings.split(",") if pair)
            for seed in range(arguments.seeds):
                for fold in range(arguments.folds):
                    tasks.append(
                        {
                            "run": run,
                            "name": name,
                            "settings": changed,
                            "fold": fold,
                            "seed": seed,
                            "folds": arguments.folds,
                            "train": arguments.train,
                            "valid": arguments.valid,
                            "preset": arguments.preset,
                        }
                    )
    if arguments.jobs == 1:
        results = [train_fold(task) for task in tasks]
    else:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            results = []
            for result in pool.imap_unordered(train_fold, tasks):
                results.append(result)
                print(json.dumps(result), flush=True)
    lines = table(results)
    Path(arguments.out).write_text(json.dumps({"table": lines, "results": results}, indent=1))
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
