"""Records every number of small runs of each kind, and compares them later: the regression test of a refactoring.

python benchmarks/golden.py write benchmarks/golden-cpu.json            # at a commit whose numbers are correct
python benchmarks/golden.py check benchmarks/golden-cpu.json            # later: exit code 1 if a number has changed
python benchmarks/golden.py check FILE --only classic --only compare    # only these cases (and those that they depend on)
python benchmarks/golden.py gpu   FILE --write                          # a shorter set on a GPU; then without --write

The script does not import the package. It runs the command line of its own tree (`../src`) in a scratch folder, on generated
texts, and reads the files that the commands write: each logged loss and metric, each result, each prediction, and the sha256
(over dtype, shape and bytes) of each saved tensor. `check` computes all of them again and compares exactly.

The tables at the top list permitted changes: the names of settings, commands and files (COMMANDS, FLAGS, VALUES, FILES), and
the new names of old entries of the golden file (RENAMED). Numbers are bit-for-bit equal only on the same type of CPU with the
same versions; `check` reports if those differ.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODULE = "headstart"

# ---- how things are called today: a rename in the product is one edit here ------------------------------------------

COMMANDS = {
    "pretrain": "pretrain",
    "finetune": "finetune",
    "compare": "compare",
    "tune": "tune",
    "predict": "predict",
    "evaluate": "evaluate",
    "generate": "generate",
    "export": "export",
}
FLAGS = {
    "out": "--out",
    "from": "--from",
    "use_tokenizer": "--tokenizer",
    "teacher": "--teacher",
    "teacher_weight": "--teacher-weight",
    "preset": "--preset",
    "objective": "--objective",
    "stage": "--stage",
    "valid": "--valid",
    "test": "--test",
    "labels": "--labels",
    "seeds": "--seeds",
    "arms": "--arms",
    "trials": "--trials",
    "input": "--input",
    "explain": "--explain",
    "abstain": "--abstain",
    "json": "--json",
    "errors": "--errors",
    "quiet": "--quiet",
    "to": "--to",
    "weights": "--weights",
    "tokens": "--tokens",
    "temperature": "--temperature",
    "samples": "--samples",
    "top_k": "--top-k",
    "steps": "--loop.steps",
    "epochs": "--loop.epochs",
    "batch": "--loop.batch-size",
    "accumulate": "--loop.accumulate",
    "min_steps": "--loop.min-steps",
    "patience": "--loop.patience",
    "choose": "--loop.select",
    "watch_test": "--loop.watch-test",
    "evaluate_every": "--loop.evaluate-every",
    "pair_weight": "--next-sentence.weight",
    "mask_rate": "--masking.rate",
    "optimizer": "--optim.optimizer",
    "lr": "--optim.lr",
    "decay": "--optim.weight-decay",
    "warmup": "--optim.warmup",
    "schedule": "--optim.schedule",
    "ema_decay": "--optim.ema-decay",
    "freeze": "--transfer.freeze",
    "unfreeze_every": "--transfer.unfreeze-every",
    "layer_decay": "--transfer.layer-decay",
    "transfer_dropout": "--transfer.dropout",
    "reading": "--transfer.attention",
    "class_weights": "--transfer.class-weights",
    "block": "--model.block",
    "width": "--model.width",
    "depth": "--model.depth",
    "heads": "--model.heads",
    "feedforward": "--model.feedforward",
    "dropout": "--model.dropout",
    "context": "--model.context",
    "held_out": "--corpus.held-out",
    "layout": "--corpus.layout",
    "vocab": "--tokenizer.vocab-size",
    "text_column": "--labelled.text-column",
    "second_column": "--labelled.second-column",
    "task": "--labelled.task",
    "separator": "--labelled.separator",
    "long_texts": "--labelled.long-texts",
    # `predict` and `evaluate` have short names alone
    "evaluate_task": "--task",
    "evaluate_separator": "--separator",
    "evaluate_text_column": "--text-column",
    "evaluate_second_column": "--second-column",
    "seed": "--runtime.seed",
    "device": "--runtime.device",
    "precision": "--runtime.precision",
    "threads": "--runtime.threads",
}
VALUES: dict[tuple[str, str], str] = {("reading", "both"): "bidirectional"}
"""(setting, value) -> the current name of the value, such as ("choose", "last"): "final"."""
FILES = {
    "metrics": "metrics.jsonl",
    "result": "result.json",
    "receipt": "receipt.json",
    "results": "results.json",
    "cells": "cells/*.json",
    "trials": "trials/*.json",
    "bundle": "bundle",
    "weights": "*.safetensors",
}

RENAMED: dict[str, dict[str, str | None]] = {
    # names of settings where they are keys of a result (tune's trials): "optim.lr": "optimizer.rate"
    "settings": {
        "optim.average": "optim.ema_decay",
        "loop.choose": "loop.select",
        "labelled.valid_share": "labelled.valid_fraction",
    },
    # keys of metrics and results: "macro_f1": "f1_macro", or several in a row "test/loss": "test/log_loss"; None: gone
    "keys": {
        "scored": "num_targets",
        "target": "task",
        "share": "fraction",
        "worth": "gain",
        "flattery": "optimism",
        "sure": "confidence",
        **{f"bins/{index}/right": f"bins/{index}/accuracy" for index in range(15)},
        "left_out": "excluded",
    },
    # strings that were recorded, such as arms and labels: "nbsvm": "nb-svm"
    "values": {},
    # parts of tensor names, replaced in this order: "backbone:layers.": "model:trunk.layers."
    "tensors": {
        "attention.inward": "attention.qkv_proj",
        "attention.outward": "attention.out_proj",
        "first_norm": "embedding_norm",
        "head:ready": "head:transform",
    },
    # keys that were not there at the time of the golden file and may be there now: "new_key": None
    "added": {},
}
"""Old name -> new name of entries of the golden file."""

EXCLUDED = {
    *("seconds", "minutes", "tokens_per_second", "rows_per_second", "date", "time", "started", "ended"),
    *("headstart", "version", "versions", "environment", "commit", "format", "seal", "sha256", "config", "command"),
    *("corpus", "tokenizer", "source", "path", "name", "size", "notes", "verdict", "reason", "settings_file"),
}
"""Keys that are not recorded: times, versions, paths, hashes of configurations and files, sentences."""
STRINGS = {
    *("label", "labels", "predicted_label", "predicted_labels", "answer", "arm", "other", "linear", "by", "budget"),
    *("prompt", "state", "stage"),
}
"""Keys whose strings are recorded; of other keys, only numbers are."""

# ---- the made-up language ---------------------------------------------------------------------------------------------

TOPICS = ("river", "stone", "cloud")


def lexicon() -> dict[str, list[str]]:
    """Words: some for all texts, and some for each topic."""
    chance = random.Random(11)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ai", "en")]
    known: list[str] = []
    while len(known) < 240:
        word = "".join(chance.choice(syllables) for _ in range(chance.choice((1, 2, 2, 3))))
        if word not in known:
            known.append(word)
    return {"all": known[:90], **{topic: known[90 + 50 * at : 140 + 50 * at] for at, topic in enumerate(TOPICS)}}


WORDS = lexicon()
FOLLOWING = {
    word: [random.Random(f"{word}/{at}").choice(words) for at in range(3)] for words in WORDS.values() for word in words
}
"""The most frequent successors of a word: three words of the same kind."""


def text(chance: random.Random, topics: tuple[str, ...], words: int, share: float = 0.4) -> str:
    """Generate sentences in which the fraction `share` of the words belongs to `topics`, and most words depend on the
    previous one.
    """
    output, last = [], {"all": chance.choice(WORDS["all"]), **{topic: chance.choice(WORDS[topic]) for topic in TOPICS}}
    for at in range(words):
        kind = chance.choice(topics) if topics and chance.random() < share else "all"
        last[kind] = chance.choice(FOLLOWING[last[kind]]) if chance.random() < 0.85 else chance.choice(WORDS[kind])
        output.append(last[kind] + ("." if at % 9 == 8 else ""))
    return " ".join(output)


def table(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def classes(
    chance: random.Random, rows: int, words: tuple[int, int], fractions: tuple[int, ...] = (1, 1, 1)
) -> list[Any]:
    """Generate texts of one topic and `words` words each; `shares` are the frequencies of the topics."""
    drawn = [topic for topic, share in zip(TOPICS, fractions, strict=True) for _ in range(share)]
    labels = [chance.choice(drawn) for _ in range(rows)]
    return [(text(chance, (label,), chance.randrange(*words), 0.25), label) for label in labels]


def several(chance: random.Random, rows: int) -> list[tuple[str, ...]]:
    """Generate texts of zero to three topics each."""
    output = [tuple(topic for topic in TOPICS if chance.random() < 0.4) for _ in range(rows)]
    return [(text(chance, topics, chance.randrange(12, 40)), ";".join(topics)) for topics in output]


def ratings(chance: random.Random, rows: int) -> list[tuple[str, ...]]:
    """Generate texts whose rating is the fraction of the first topic."""
    fractions = [chance.random() for _ in range(rows)]
    return [(text(chance, TOPICS[:1], chance.randrange(12, 40), share), f"{1 + 4 * share:.2f}") for share in fractions]


def pairs(chance: random.Random, rows: int) -> list[tuple[str, ...]]:
    """Generate pairs of texts, of the same topic or not."""
    made: list[tuple[str, ...]] = []
    for _ in range(rows):
        first, second = chance.choice(TOPICS), chance.choice(TOPICS)
        texts = (text(chance, (first,), 12), text(chance, (second,), 12))
        made.append((*texts, "same" if first == second else "different"))
    return made


def make_inputs(folder: Path) -> None:
    """Write all files that the cases read."""
    for name, count in (("corpus", 900), ("other", 500)):
        chance = random.Random(f"text {name}")
        lines = [text(chance, (chance.choice(TOPICS),), chance.randrange(20, 90)) for _ in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    makers: dict[str, tuple[tuple[str, ...], Callable[[random.Random, int], list[Any]]]] = {
        "classes": (("text", "label"), lambda chance, rows: classes(chance, rows, (10, 40))),
        "few": (("text", "label"), lambda chance, rows: classes(chance, rows, (10, 40))),
        "uneven": (("text", "label"), lambda chance, rows: classes(chance, rows, (10, 40), (6, 3, 1))),
        "long": (("text", "label"), lambda chance, rows: classes(chance, rows, (60, 150))),
        "several": (("text", "label"), several),
        "ratings": (("text", "label"), ratings),
        "pairs": (("premise", "hypothesis", "label"), pairs),
    }
    for name, (header, maker) in makers.items():
        table(folder / f"{name}.csv", header, maker(random.Random(f"train {name}"), 100 if name == "few" else 400))
        table(folder / f"{name}-test.csv", header, maker(random.Random(f"test {name}"), 40 if name == "few" else 120))


# ---- the cases ----------------------------------------------------------------------------------------------------------

Settings = dict[str, Any]
SMALL = {"vocab": 600, "context": 64, "held_out": 0.05, "evaluate_every": 50}
CLASSIC = {"preset": "classic", "width": 48, "depth": 2, "heads": 2, "feedforward": 64, "lr": 0.002}
MODERN = {"preset": "modern-nano", "width": 64, "depth": 3, "heads": 2, "feedforward": 96, "batch": 16}
PRETRAIN = {**SMALL, "steps": 200}
FINETUNE = {"epochs": 5, "batch": 8, "min_steps": 0}
"""320 training rows, 8 per step: 200 steps."""
PROMPT = f"{WORDS['all'][0]} {WORDS['river'][0]}"


@dataclass(frozen=True)
class Command:
    """One call of the command line, and the output files that are recorded."""

    name: str
    arguments: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)
    out: str = ""
    """The folder that it writes; if there is none, its standard output is recorded."""
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A group of commands; `needs` are the cases whose folders they use."""

    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()


RUN = ("metrics", "result", "receipt", "bundle")


def pretraining(out: str, settings: Settings, texts: tuple[str, ...] = ("corpus.txt",)) -> Command:
    """A pretraining run and its output."""
    return Command("pretrain", texts, settings, out, RUN)


def classifier(out: str, data: str, settings: Settings, extra: Settings | None = None) -> tuple[Command, ...]:
    """A fine-tuning run on `data` with its test file, its predictions for some rows, and its metrics on all of them."""
    test, extra = f"{data}-test.csv", extra or {}
    columns = {name: value for name, value in extra.items() if name.endswith("column")}
    return (
        Command("finetune", (f"{data}.csv",), {**FINETUNE, "test": test, **settings}, out, RUN),
        Command("predict", (out,), {"input": test, **columns}, f"{out}.jsonl", ("answers",)),
        Command("evaluate", (out, test), {"json": True, **extra}),
    )


def export(source: str, to: str, weights: str = "") -> Command:
    """A model in another format: its tensors."""
    out = f"{source}-{weights or to}"
    return Command("export", (source,), {"to": to, **({"weights": weights} if weights else {})}, out, ("weights",))


CASES = {
    "classic": Case(
        (
            pretraining("classic", {**CLASSIC, **PRETRAIN}),
            Command("generate", ("classic", PROMPT), {"tokens": 20}),
            export("classic", "compact", "int8"),
            export("classic", "compact", "bf16"),
            export("classic", "hf"),
        )
    ),
    "modern": Case(
        (
            pretraining("modern", {**MODERN, **PRETRAIN}),
            Command("generate", ("modern", PROMPT), {"tokens": 20, "temperature": 0.8, "top_k": 20, "samples": 2}),
            export("modern", "compact", "int8"),
            export("modern", "compact", "bf16"),
            export("modern", "hf"),
        )
    ),
    "masked-pairs": Case(
        (pretraining("masked", {**CLASSIC, **PRETRAIN, "objective": "masked", "pair_weight": 1, "dropout": 0.1}),)
    ),
    "continued": Case(
        (
            pretraining(
                "continued",
                {"steps": 200, "held_out": 0.05, "evaluate_every": 50, "from": "classic", "schedule": "cosine"},
                ("other.txt",),
            ),
        ),
        ("classic",),
    ),
    "distilled": Case(
        (
            pretraining(
                "distilled",
                {"steps": 200, "held_out": 0.05, "evaluate_every": 50, "context": 64, "preset": "modern-nano"}
                | {"width": 32, "depth": 2, "feedforward": 64, "batch": 16}
                | {"teacher": "modern", "teacher_weight": 0.7, "use_tokenizer": "modern/bundle/tokenizer"},
                ("corpus.txt",),
            ),
        ),
        ("modern",),
    ),
    "stages": Case(
        (
            pretraining(
                "stages",
                {**CLASSIC, **PRETRAIN, "accumulate": 2, "batch": 8, "ema_decay": 0.98, "optimizer": "adamw"}
                | {"decay": 0.1, "warmup": 0.1, "schedule": "linear", "layout": "documents"}
                | {"stage": ("other.txt fraction=0.4 context=32", "corpus.txt fraction=0.6")},
                (),
            ),
        )
    ),
    "finetune-modern": Case(
        (
            *classifier("clf-modern", "classes", {"from": "modern"}),
            Command("predict", ("clf-modern", text(random.Random(5), ("stone",), 15)), {"json": True, "explain": True}),
            Command("evaluate", ("clf-modern", "classes-test.csv"), {"json": True, "errors": True}),
            export("clf-modern", "compact", "int8"),
            Command("predict", ("clf-modern-int8",), {"input": "classes-test.csv"}, "int8.jsonl", ("answers",)),
            export("clf-modern", "hf"),
        ),
        ("modern",),
    ),
    "finetune-classic": Case(
        (
            *classifier("clf-classic", "classes", {"from": "classic", "patience": 3, "lr": 0.001}),
            export("clf-classic", "hf"),
        ),
        ("classic",),
    ),
    "finetune-scratch": Case(
        classifier(
            "clf-scratch",
            "classes",
            {
                "from": "scratch",
                **CLASSIC,
                "vocab": 600,
                "context": 64,
                "dropout": 0.1,
                "lr": 0.001,
                "watch_test": True,
            },
        )
    ),
    "finetune-several": Case(
        classifier(
            "clf-several",
            "several",
            {"from": "modern", "separator": ";", "lr": 0.0005},
            {"evaluate_separator": ";"},
        ),
        ("modern",),
    ),
    "finetune-rating": Case(
        classifier("clf-rating", "ratings", {"from": "modern", "task": "rating"}, {"evaluate_task": "rating"}),
        ("modern",),
    ),
    "finetune-frozen": Case(
        classifier(
            "clf-frozen", "uneven", {"from": "classic", "freeze": True, "class_weights": "balanced", "lr": 0.003}
        ),
        ("classic",),
    ),
    "finetune-gradual": Case(
        classifier(
            "clf-gradual",
            "uneven",
            {"from": "modern", "unfreeze_every": 1, "class_weights": "river=0.5,stone=1,cloud=3", "ema_decay": 0},
        ),
        ("modern",),
    ),
    "finetune-windows": Case(
        classifier("clf-windows", "long", {"from": "masked", "long_texts": "windows", "layer_decay": 0.8, "lr": 0.001}),
        ("masked-pairs",),
    ),
    "finetune-pairs": Case(
        classifier(
            "clf-pairs",
            "pairs",
            {"from": "masked", "text_column": "premise", "second_column": "hypothesis", "accumulate": 2, "lr": 0.001},
            {"evaluate_text_column": "premise", "evaluate_second_column": "hypothesis"},
        ),
        ("masked-pairs",),
    ),
    "compare": Case(
        (
            Command(
                "compare",
                ("classes.csv",),
                {"test": "classes-test.csv", "from": "modern", "labels": "100,all", "seeds": 2, "epochs": 2}
                | {"arms": "majority,linear,nbsvm,scratch,frozen,pretrained", "min_steps": 0},
                "comparison",
                ("results", "cells"),
            ),
        ),
        ("modern",),
    ),
    "tune": Case(
        (
            Command(
                "tune", ("classes.csv",), {"from": "classic", "trials": 2, "epochs": 2}, "tuned", ("result", "trials")
            ),
        ),
        ("classic",),
    ),
    "starter": Case(
        classifier("clf-starter", "few", {"from": "starter:en-reviews", "freeze": True, "epochs": 1, "batch": 16}),
    ),
}

GPU_CASES = {
    "classic": Case((pretraining("classic", {"preset": "classic", "vocab": 1200, "held_out": 0.05, "steps": 60}),)),
    "modern": Case((pretraining("modern", {"preset": "modern-nano", "vocab": 1200, "held_out": 0.05, "steps": 60}),)),
    "finetune-classic": Case(
        (
            Command(
                "finetune",
                ("classes.csv",),
                {**FINETUNE, "epochs": 3, "batch": 16, "from": "classic", "test": "classes-test.csv"},
                "clf-classic",
                ("metrics", "result"),
            ),
        ),
        ("classic",),
    ),
    "finetune-modern": Case(
        (
            Command(
                "finetune",
                ("classes.csv",),
                {**FINETUNE, "epochs": 3, "batch": 16, "from": "modern", "test": "classes-test.csv"},
                "clf-modern",
                ("metrics", "result"),
            ),
        ),
        ("modern",),
    ),
}
"""60 steps each, with the sizes of the presets, so that the GPU kernels are used."""

# ---- running them ---------------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A command failed; the message has its name and its last lines."""


@dataclass(frozen=True)
class Runner:
    """Runs commands in the scratch folder, all with the same `common` settings."""

    folder: Path
    common: Settings
    forced: Settings
    """Training settings that override those of a case, to test the check itself."""

    def run(self, command: Command) -> str:
        """Run a command and return its standard output."""
        settings = {**command.settings, **self.common}
        if command.out:
            settings["out"] = command.out
        if command.name == "export":
            settings = {name: value for name, value in settings.items() if name not in self.common}
        if command.name in ("pretrain", "finetune", "compare", "tune"):
            settings |= {"seed": 0, **self.forced}
        line = [sys.executable, "-m", MODULE, COMMANDS[command.name], *command.arguments, FLAGS["quiet"]]
        for name, value in settings.items():
            for one in value if isinstance(value, tuple) else (value,):
                line += [FLAGS[name]] if one is True else [FLAGS[name], VALUES.get((name, str(one)), str(one))]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **threads, "PYTHONPATH": path, "COLUMNS": "200"}
        done = subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(line[2:])}\n{(done.stderr or done.stdout)[-1500:]}")
        return done.stdout

    def case(self, case: Case) -> dict[str, Any]:
        """Run a case and return its numbers and tensors."""
        numbers: dict[str, Any] = {}
        tensors: dict[str, str] = {}
        for at, command in enumerate(case.commands):
            output = self.run(command)
            name = f"{at} {command.name}"
            if not command.out:
                numbers[name] = pruned(decoded(output))
            for kind in command.reads:
                what, hashed = READERS[kind](self.folder / command.out)
                if what is not None:
                    numbers[f"{name} {kind}"] = what
                tensors |= {f"{command.out}/{tensor}": digest for tensor, digest in hashed.items()}
        return {"numbers": numbers, "tensors": tensors}


def decoded(output: str) -> Any:
    """Parse standard output as JSON, as lines of JSON, or as text."""
    try:
        return json.loads(output)
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(line) for line in output.splitlines() if line]
    except json.JSONDecodeError:
        return {"prompt": output}  # a recorded string


# ---- reading what they left -------------------------------------------------------------------------------------------------


def pruned(value: Any, key: str = "") -> Any:
    """Return a JSON value without EXCLUDED keys and without strings other than STRINGS; None if nothing remains."""
    if isinstance(value, dict):
        kept = {name: pruned(one, name) for name, one in value.items() if name not in EXCLUDED}
        return {name: one for name, one in kept.items() if one is not None or value[name] is None}
    if isinstance(value, list):
        items = [pruned(one, key) for one in value]
        return None if items and all(one is None for one in items) and any(value) else items
    if isinstance(value, str):
        return value if key in STRINGS else None
    return value


def columns(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Return logged rows by kind, each metric as a list, which is shorter; texts of samples are kept."""
    made: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        kind = made.setdefault(row["kind"], {})
        sample = {"prompt": row["text"]} if row["kind"] == "sample" else {}
        for path, value in flat(pruned({**row, **sample, "kind": None})):
            if path != "kind":
                kind.setdefault(path, []).append(value)
    return made


def read_metrics(folder: Path) -> tuple[Any, dict[str, str]]:
    """Read all logged rows."""
    lines = (folder / FILES["metrics"]).read_text(encoding="utf-8").splitlines()
    return columns([json.loads(line) for line in lines]), {}


def read_json(kind: str) -> Callable[[Path], tuple[Any, dict[str, str]]]:
    """Return a reader of one JSON file, or of several by a pattern."""

    def read(folder: Path) -> tuple[Any, dict[str, str]]:
        paths = sorted(folder.glob(FILES[kind]))
        if not paths:
            raise Failed(f"no {FILES[kind]} in {folder.name}")
        if "*" in FILES[kind]:
            return {path.stem: pruned(json.loads(path.read_text(encoding="utf-8"))) for path in paths}, {}
        return pruned(json.loads(paths[0].read_text(encoding="utf-8"))), {}

    return read


def read_receipt(folder: Path) -> tuple[Any, dict[str, str]]:
    """Return the tensors at the start of training: transferred and new ones. Pretraining from random weights has no
    receipt.
    """
    path = folder / FILES["receipt"]
    if not path.exists():
        return None, {}
    lists = json.loads(path.read_text(encoding="utf-8"))
    entries = [one for value in lists.values() if isinstance(value, list) for one in value if "sha256" in one]
    return None, {f"receipt:{one['name']}": one["sha256"] for one in entries}


def hashes(path: Path) -> dict[str, str]:
    """Return the sha256 over dtype, shape and bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    made = {}
    for name, about in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = about["data_offsets"]
            head = f"{about['dtype']} {about['shape']} ".encode()
            made[f"{path.stem}:{name}"] = hashlib.sha256(head + data[start + first : start + last]).hexdigest()
    return made


def read_weights(folder: Path) -> tuple[Any, dict[str, str]]:
    """Return the tensors of all safetensors files of a folder."""
    paths = sorted(folder.glob(FILES["weights"]))
    if not paths:
        raise Failed(f"no {FILES['weights']} in {folder.name}")
    return None, {name: digest for path in paths for name, digest in hashes(path).items()}


def read_answers(path: Path) -> tuple[Any, dict[str, str]]:
    """Read predictions, one line of JSON each."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [pruned(row) for row in rows[:40]], {}


READERS: dict[str, Callable[[Path], tuple[Any, dict[str, str]]]] = {
    "metrics": read_metrics,
    "result": read_json("result"),
    "results": read_json("results"),
    "cells": read_json("cells"),
    "trials": read_json("trials"),
    "receipt": read_receipt,
    "weights": read_weights,
    "bundle": lambda folder: read_weights(folder / FILES["bundle"]),
    "answers": read_answers,
}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number or string with its path, such as `test/per_class/0/f1`."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in parts:
            yield from flat(one, f"{path}/{name}" if path else str(name))
    else:
        yield path, value


# ---- comparing ---------------------------------------------------------------------------------------------------------------


def renamed_path(path: str) -> str | None:
    """Return the current name of a path in the golden file; None if it was removed."""
    names = {**RENAMED["settings"], **RENAMED["keys"]}
    parts = [names.get(part, part) for part in path.split("/")]
    if None in parts:
        return None
    path = "/".join(str(part) for part in parts)
    for old, new in RENAMED["keys"].items():
        if "/" in old and f"/{old}/" in f"/{path}/":
            if new is None:
                return None
            path = f"/{path}/".replace(f"/{old}/", f"/{new}/")[1:-1]
    return path


def renamed_tensor(name: str) -> str:
    """Return the current name of a tensor in the golden file."""
    for old, new in RENAMED["tensors"].items():
        name = name.replace(old, new or "")
    return name


def number_differences(old: Any, new: Any) -> list[str]:
    """Yield the differences between the numbers of a case, one line each."""
    known = {
        renamed_path(path): RENAMED["values"].get(value, value) if isinstance(value, str) else value
        for path, value in flat(old)
    }
    known.pop(None, None)
    outcome = dict(flat(new))
    lines = [
        f"{path}: {value!r} became {outcome[path]!r}" if path in outcome else f"{path}: {value!r} is missing"
        for path, value in known.items()
        if path not in outcome or repr(outcome[path]) != repr(value)
    ]
    added = [path for path in outcome if path not in known and not set(path.split("/")) & set(RENAMED["added"])]
    return lines + [f"{path}: {outcome[path]!r} is new" for path in added]


def tensor_differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Yield the differences between the tensors of a case; if only names differ, the mapping of old to new names."""
    known = {renamed_tensor(name): digest for name, digest in old.items()}
    changed = [f"tensor {name}: other bytes" for name in known if name in new and new[name] != known[name]]
    missing, added = [name for name in known if name not in new], [name for name in new if name not in known]
    lines = changed + [f"tensor {name}: missing" for name in missing] + [f"tensor {name}: new" for name in added]
    if lines and Counter(known.values()) == Counter(new.values()):
        where: dict[str, list[str]] = {}
        for name in added:
            where.setdefault(new[name], []).append(name)
        pairs = [f"{name} -> {' or '.join(where.get(known[name], ['?']))}" for name in missing]
        lines = [f"tensors: all {len(new)} have the same bytes, but {len(lines)} names differ", *pairs]
    return lines


def loss_differences(old: Any, new: Any, bound: float) -> list[str]:
    """Yield losses whose relative difference (with a denominator of at least 0.1) exceeds `bound`."""
    known, outcome = {renamed_path(path): value for path, value in flat(old)}, dict(flat(new))
    lines, worst = [], 0.0
    for path, value in known.items():
        if path is None or not re.search(r"(^|[/_])loss(/|$)", path) or not isinstance(value, float):
            continue
        if path not in outcome:
            lines.append(f"{path}: {value!r} is missing")
            continue
        difference = abs(outcome[path] - value) / max(abs(value), 0.1)
        worst = max(worst, difference)
        if not difference <= bound:
            lines.append(f"{path}: {value!r} became {outcome[path]!r} ({difference:.2g} apart)")
    print(f"  largest difference of a loss {worst:.2g}, bound {bound:g}")
    return lines


# ---- the script ----------------------------------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, str]:
    """Return the environment that the bits of a number depend on."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        about = dict(
            re.findall(r"^(model name|cpu family|model|stepping|flags)\s*: (.*)$", info.read_text(), re.MULTILINE)
        )
        wide = (
            "avx512" if "avx512f" in about.get("flags", "") else "avx2" if "avx2" in about.get("flags", "") else "none"
        )
        cpu = f"{about.get('model name')}, family {about.get('cpu family')}, model {about.get('model')}, {wide}"
    made = {"device": device, "cpu": cpu, "python": platform.python_version()}
    made |= {name: metadata.version(name) for name in ("torch", "numpy", "scikit-learn", "scipy", "tokenizers")}
    if device != "cpu":
        extra = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
        made["gpu"] = subprocess.run(extra, capture_output=True, text=True).stdout.strip()
    return made


def commit() -> str:
    """Return the commit of the tree, and whether its source differs from it."""
    extra = ["git", "-C", str(ROOT)]
    head = subprocess.run([*extra, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    dirty = subprocess.run([*extra, "status", "--porcelain", "src"], capture_output=True, text=True).stdout.strip()
    return (head or "unknown") + (" with changes in src" if dirty else "")


def wanted(cases: dict[str, Case], only: list[str]) -> list[str]:
    """Return the cases to run, in the order of their dependencies."""
    unknown = [name for name in only if name not in cases]
    if unknown:
        raise SystemExit(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    names: list[str] = []
    for name in only or cases:
        names += [one for one in (*cases[name].needs, name) if one not in names]
    return names


def computed(cases: dict[str, Case], names: list[str], runner: Runner, jobs: int) -> dict[str, dict[str, Any] | Failed]:
    """Run the cases; return their numbers and tensors, or the reason for a failure."""
    make_inputs(runner.folder)
    done: dict[str, Future[dict[str, Any]]] = {}
    lock = threading.Lock()

    def one(name: str) -> dict[str, Any]:
        for need in cases[name].needs:
            if done[need].exception() is not None:
                raise Failed(f"{need}, which it begins from, failed")
        start = time.perf_counter()
        made = runner.case(cases[name])
        with lock:
            print(f"  {name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        return made

    results: dict[str, dict[str, Any] | Failed] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for name in names:  # in order, so that what a case waits for is never behind it
            done[name] = pool.submit(one, name)
        for name in names:
            error = done[name].exception()
            if error is not None and not isinstance(error, Failed):
                error = Failed(f"{type(error).__name__}: {error}")
            results[name] = error if isinstance(error, Failed) else done[name].result()
    return results


def stored(made: dict[str, Any]) -> str:
    """Format the golden file with one line per part of a case, for readable diffs."""
    lines = []
    for name, case in made["cases"].items():
        parts = [
            f"   {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
            for key, value in case["numbers"].items()
        ]
        tensors = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in case["tensors"].items()]
        lines.append(
            f'  {json.dumps(name)}: {{"numbers": {{\n'
            + ",\n".join(parts)
            + '\n  }, "tensors": {\n'
            + ",\n".join(tensors)
            + "\n  }}"
        )
    about = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if key != "cases")
    return "{\n" + about + ',\n "cases": {\n' + ",\n".join(lines) + "\n }\n}\n"


def write(path: Path, results: dict[str, dict[str, Any] | Failed], device: str) -> int:
    """Write the numbers, unless a case failed."""
    failed = {name: result for name, result in results.items() if isinstance(result, Failed)}
    for name, error in failed.items():
        print(f"{name}: FAILED: {error}")
    if failed:
        return 1
    made = {"about": __doc__.splitlines()[0], "commit": commit(), "machine": machine(device), "cases": results}
    path.write_text(stored(made), encoding="utf-8")
    print(f"{len(results)} cases, {path.stat().st_size / 1000:.0f} kB in {path}")
    return 0


def compared(golden: dict[str, Any], name: str, result: dict[str, Any] | Failed, bound: float | None) -> list[str]:
    """Return the differences of a case."""
    if isinstance(result, Failed):
        return [f"FAILED: {result}"]
    if name not in golden["cases"]:
        return ["not in the golden file"]
    old, new = golden["cases"][name], json.loads(json.dumps(result))
    if bound is not None:
        return loss_differences(old["numbers"], new["numbers"], bound)
    return number_differences(old["numbers"], new["numbers"]) + tensor_differences(old["tensors"], new["tensors"])


def check(golden: dict[str, Any], results: dict[str, dict[str, Any] | Failed], show: int, bound: float | None) -> int:
    """Print the differences of each case; returns 1 if there are any."""
    wrong = 0
    for name, result in results.items():
        lines = compared(golden, name, result, bound)
        wrong += bool(lines)
        if lines:
            print(f"{name}: {len(lines)} differences")
            print("".join(f"    {line}\n" for line in lines[:show]), end="")
        elif isinstance(result, dict):
            print(f"{name}: same, {len(dict(flat(result['numbers'])))} numbers and {len(result['tensors'])} tensors")
    print(f"{wrong} of {len(results)} cases differ" if wrong else f"all {len(results)} cases are the same")
    return int(wrong > 0)


def say_machine(golden: dict[str, Any], device: str) -> None:
    """Return a note if the golden file was written on another machine or with other versions."""
    old, new = golden["machine"], machine(device)
    other = [
        f"{name} {old.get(name)} there, {new.get(name)} here"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    print(f"golden file of commit {golden['commit']}, source of {commit()}")
    if other:
        print(f"ANOTHER MACHINE OR OTHER VERSIONS, where the same bits cannot be expected: {'; '.join(other)}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "check", "gpu"))
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="this case alone; may be given again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time; the numbers are the same")
    parser.add_argument("--show", type=int, default=8, help="differences shown of each case")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all trainings, to see it fail"
    )
    parser.add_argument("--scratch", type=Path, help="an empty folder to work in and to keep")
    parser.add_argument("--device", help="cpu, and for gpu cuda")
    parser.add_argument("--bound", type=float, default=2e-3, help="gpu: how far apart losses may be, relatively")
    parser.add_argument("--write", action="store_true", help="gpu: write the file in place of comparing with it")
    return parser.parse_args()


def main() -> int:
    """Write or check a golden file."""
    args = arguments()
    gpu = args.what == "gpu"
    device = args.device or ("cuda" if gpu else "cpu")
    writes = args.what == "write" or (gpu and args.write)
    cases = GPU_CASES if gpu else CASES
    names = wanted(cases, args.only)
    golden = {} if writes else json.loads(args.file.read_text(encoding="utf-8"))
    if not writes:
        say_machine(golden, device)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        folder = args.scratch or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        common = {"device": device, "threads": 1, **({} if gpu else {"precision": "fp32"})}
        runner = Runner(folder.resolve(), common, dict(one.split("=", 1) for one in args.set))
        results = computed(cases, names, runner, args.jobs)
    print(f"computed in {time.perf_counter() - start:.0f} s")
    if writes:
        return write(args.file, results, device)
    if args.only:
        results = {name: results[name] for name in args.only}
    return check(golden, results, args.show, args.bound if gpu else None)


if __name__ == "__main__":
    sys.exit(main())
