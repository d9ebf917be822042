"""The whole story in minutes, on reviews that come with the `demo` extra or on one's own folder.

Test rows are set aside first, then validation and training rows; the texts of all other rows, without their labels,
are what the network is pretrained on. Sizes are chosen so that two CPU cores need a few minutes.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from headstart.config import CorpusConfig, FinetuneConfig, LabelledConfig, PretrainConfig
from headstart.data.builtin import builtin_reviews
from headstart.data.corpus import read_documents
from headstart.data.digests import text_digest
from headstart.data.labelled import LabelledTexts, label_subset, read_labelled, split_validation
from headstart.errors import Interrupted, UsageError
from headstart.files import FORMAT, read_json, write_json, write_whole
from headstart.layering import layered
from headstart.model.presets import values
from headstart.predict.generate import Sampling, run_generate
from headstart.progress import Progress, Quiet
from headstart.recipes.compare import run_compare
from headstart.recipes.pretrain import run_pretrain
from headstart.report.page import write_report

MARK = "demo.json"
"""The file that makes a folder a demo, and says what it was made from."""
TRAIN_ROWS, VALID_ROWS, TEST_ROWS = 1000, 400, 1000
SEEDS = 3
PROMPT = "The film is"

_MODEL = {"width": 128, "depth": 2, "heads": 2, "feedforward": 256, "context": 128, "dropout": 0.1}
_PRETRAIN = {
    "tokenizer": {"vocab_size": 4096, "megabytes": 5.0},
    "model": _MODEL,
    "corpus": {"held_out": 0.01},
    "optim": {
        "optimizer": "adamw",
        "lr": 2e-3,
        "weight_decay": 0.01,
        "warmup": 0.05,
        "schedule": "cosine",
        "clip": 1.0,
    },
    "loop": {"batch_size": 16, "steps": 1000, "evaluate_every": 250, "save_every": 250, "prompt": PROMPT},
}
_FINETUNE = {
    "model": _MODEL,
    "optim": {"optimizer": "adamw", "lr": 5e-4, "warmup": 0.1, "schedule": "linear", "clip": 1.0},
    "loop": {"batch_size": 16, "epochs": 8},
}


def run_demo(out: Path, data: str | None = None, progress: Progress | None = None) -> Path:
    """Set data aside, pretrain, compare, report; returns the report's path. Called again, it goes on where it stopped."""
    command = f"headstart demo --out {out}" + (f" --data {data}" if data else "")
    try:
        return _story(out, data, command, progress or Quiet())
    except Interrupted as error:
        raise Interrupted(f"{str(error).split(' Go on with: ')[0]} Go on with: {command}", error.reason) from None


def _story(out: Path, data: str | None, command: str, progress: Progress) -> Path:
    found = None if data is None else _found(Path(data))
    _check_out(out, data)
    if not (out / "data" / "texts.jsonl").is_file():
        progress.say(
            "1/3  setting data aside: test first, then validation and training rows; the other texts lose their labels"
        )
        rows = _builtin() if found is None else _own(Path(str(data)), found, progress)
        (out / "data").mkdir(parents=True, exist_ok=True)
        write_json(out / MARK, {"format": FORMAT, "kind": "demo", "source": _source(data)})
        _write(*rows, out / "data")
    files = {name: str(out / "data" / f"{name}.jsonl") for name in ("train", "valid", "test")}
    progress.say("2/3  pretraining a small language model on the unlabelled text")
    config = layered(PretrainConfig, values("classic", "pretrain"), _PRETRAIN)
    base = out / "pretrained"
    run_pretrain(
        [str(out / "data" / "texts.jsonl")], base, config, resume=_started(base), command=command, progress=progress
    )
    progress.say("3/3  fine-tuning from it and from random weights, with the linear baselines beside them")
    cmp = out / "comparison"
    run_compare(
        files["train"],
        cmp,
        layered(FinetuneConfig, values("classic", "finetune"), _FINETUNE),
        source=str(base),
        valid=files["valid"],
        test=files["test"],
        seeds=SEEDS,
        resume=_started(cmp),
        command=command,
        progress=progress,
    )
    sampling = Sampling(tokens=40, temperature=0.8, top_p=0.9)
    texts = run_generate(base, PROMPT, sampling=sampling, samples=3)
    write_json(cmp / "samples.json", [{"prompt": PROMPT, "text": text} for text in texts])
    return write_report(cmp)


def _started(run: Path) -> bool:
    return (run / "run.json").is_file()


def _source(data: str | None) -> str:
    return "the film reviews" if data is None else str(Path(data).resolve())


def _check_out(out: Path, data: str | None) -> None:
    """Go on with a demo of the same data only, and never in a folder of something else."""
    if (out / MARK).is_file():
        made_from = read_json(out / MARK).get("source")
        if made_from != _source(data):
            raise UsageError(f"{out} was made from {made_from}; choose another --out")
    elif out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty and holds no demo; choose another --out")


Rows = tuple[LabelledTexts, LabelledTexts | None, LabelledTexts | None, Sequence[str]]
"""What is labelled for training, validation and test, as far as there is any, and the texts to pretrain on."""


def _builtin() -> Rows:
    """Short film reviews with labels, and long ones without, from the package that the extra installs."""
    with builtin_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"0": "negative", "1": "positive"}
    short = [row for row in rows if row["source"] == "rotten_tomatoes"]
    labelled = LabelledTexts(
        name="film reviews",
        texts=tuple(row["text"].strip() for row in short),
        labels=tuple(names[row["label"]] for row in short),
        where=tuple(f"film reviews, row {place}" for place in range(1, len(short) + 1)),
    )
    return labelled, None, None, [row["text"] for row in rows]


def _found(data: Path) -> dict[str, list[Path]]:
    """The labelled files of a person's own folder: `train.*`, and `valid.*` and `test.*` if there are any."""
    if not data.is_dir():
        raise UsageError(f"no such folder: {data}; the demo wants one with a labelled train.csv in it")
    found = {name: sorted(data.glob(f"{name}.*")) for name in ("train", "valid", "test")}
    if not found["train"]:
        held = ", ".join(sorted(path.name for path in data.iterdir())[:5]) or "nothing"
        raise UsageError(f"{data} has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: {held}")
    return found


def _own(data: Path, found: dict[str, list[Path]], progress: Progress) -> Rows:
    """A person's own folder: the labelled files; every other file is text."""
    read = {name: read_labelled(str(paths[0]), LabelledConfig()) if paths else None for name, paths in found.items()}
    known = {path for paths in found.values() for path in paths}
    others = [str(path) for path in sorted(data.iterdir()) if path.is_file() and path not in known]
    texts = [document.text for document in read_documents(others, CorpusConfig())] if others else []
    if not texts:
        progress.say(f"{data} has no unlabelled text: the training texts alone are pretrained on")
    assert read["train"] is not None
    return read["train"], read["valid"], read["test"], [*texts, *read["train"].texts]


def _write(
    train: LabelledTexts, valid: LabelledTexts | None, test: LabelledTexts | None, texts: Sequence[str], folder: Path
) -> None:
    """Cut to the demo's sizes and write JSON lines, the unlabelled texts last: their file says that all is there."""
    train = _without_doubles(train)
    if test is None:
        train, test = split_validation(train, min(0.25, TEST_ROWS / len(train)), seed=0)
    if valid is None:
        train, valid = split_validation(train, min(0.25, VALID_ROWS / len(train)), seed=1)
    train, valid, test = _at_most(train, TRAIN_ROWS), _at_most(valid, VALID_ROWS), _at_most(test, TEST_ROWS)
    for name, part in (("train", train), ("valid", valid), ("test", test)):
        rows = zip(part.texts, part.labels, strict=True)
        _write_lines(folder / f"{name}.jsonl", [{"text": text, "label": label} for text, label in rows])
    judged = {text_digest(text) for part in (valid, test) for text in part.texts}
    _write_lines(folder / "texts.jsonl", [{"text": text} for text in texts if text_digest(text) not in judged])


def _without_doubles(texts: LabelledTexts) -> LabelledTexts:
    """Each text once: a double could stand on both sides of a split."""
    first: dict[int, int] = {}
    for index, text in enumerate(texts.texts):
        first.setdefault(text_digest(text), index)
    return texts.take(first.values())


def _at_most(texts: LabelledTexts, rows: int) -> LabelledTexts:
    return texts if len(texts) <= rows else texts.take(label_subset(texts.labels, rows, seed=0))


def _write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    buffer = io.StringIO()
    for row in rows:
        buffer.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_whole(path, buffer.getvalue().encode("utf-8"))
