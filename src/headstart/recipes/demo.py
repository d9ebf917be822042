"""The demo.

For the demo without a starter: a small language model of one's own, pretrained in minutes on two CPU cores.

It learns from the unlabelled files of a person's folder and from the texts of the rows that are not judged by. So little
pretraining rarely beats a linear model; it shows the steps, and it needs nobody's text but one's own.

The whole story in minutes: few labels, a starter that comes with the package, and who wins.

On sentences of film reviews that the `demo` extra brings, or on one's own folder. Test and validation rows of the film
reviews are those that no starter was pretrained on. Text, sizes and settings are chosen so that two CPU cores need
less than five minutes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headstart.config.merge import merge_config
from headstart.config.presets import preset_values
from headstart.config.schema import CorpusConfig, FinetuneConfig, LabelledConfig, PretrainConfig
from headstart.data.corpus import Review, read_documents, read_reviews
from headstart.data.hashing import text_digest
from headstart.data.labelled import LabelledTexts, label_subset, read_labelled, split_validation
from headstart.errors import Interrupted, UsageError
from headstart.files import FORMAT, atomic_write, read_json, write_json
from headstart.interop.model_source import load_model_source
from headstart.predict.generate import Sampling, run_generate
from headstart.progress import Progress, SilentProgress
from headstart.recipes.compare.run import run_compare
from headstart.recipes.finetune.run import backbone_preset
from headstart.recipes.pretrain.run import run_pretrain
from headstart.report.load import load_comparison
from headstart.report.page import write_report
from headstart.report.statistics import paired_difference
from headstart.report.summary import format_interval, format_points
from headstart.store.bundle import Bundle
from headstart.store.locate import STARTER_SCHEME, starters

_SETTINGS = {
    "tokenizer": {"vocab_size": 4096, "megabytes": 5.0},
    "model": {"width": 128, "depth": 2, "heads": 2, "feedforward": 256, "context": 128, "dropout": 0.1},
    "corpus": {"held_out": 0.01},
    "optim": {
        "optimizer": "adamw",
        "lr": 2e-3,
        "weight_decay": 0.01,
        "warmup": 0.05,
        "schedule": "cosine",
        "clip": 1.0,
    },
    "loop": {"batch_size": 16, "steps": 1000, "evaluate_every": 250, "save_every": 250},
}


def unlabelled(data: Path | None, known: Iterable[Path]) -> list[str]:
    """The texts of the files of a folder that are not labelled ones; of the film reviews, those not judged by."""
    if data is None:
        return [review.text for review in read_reviews() if not review.set_aside]
    others = sorted({path for path in data.iterdir() if path.is_file()} - set(known))
    return [document.text for document in read_documents(list(map(str, others)), CorpusConfig())] if others else []


def pretrain_small(texts: Path, judged: list[str], out: Path, command: str, progress: Progress) -> str:
    """Pretrain, or go on; returns the folder.

    Args:
        judged: the files whose rows are not learnt from.
    """
    config = merge_config(
        PretrainConfig, preset_values("classic", "pretrain"), _SETTINGS, {"corpus": {"exclude": ",".join(judged)}}
    )
    resume = (out / "run.json").is_file()
    return str(run_pretrain([str(texts)], out, config, resume=resume, command=command, progress=progress).path)


DEMO_FILE = "demo.json"
"""The file that makes a folder a demo, and says what it was made from."""
STARTER = "starter:en"
SOURCE = "rotten_tomatoes"
"""The film reviews of the demo: single sentences, about 27 tokens each, which a laptop reads quickly."""
TRAIN_ROWS, VALID_ROWS, TEST_ROWS = 1000, 200, 1000
LABELS = (50, 200)
LABELS_HERE = (200, 1000)
"""With what a laptop pretrains in two minutes fewer labels show nothing."""
SEEDS = 3
ARMS = ("tfidf", "scratch", "pretrained")
PROMPT = "The film is"

_OPTIM = {"optimizer": "adamw", "warmup": 0.1, "schedule": "linear", "clip": 1.0, "ema_decay": 0.9}
FINETUNE = {
    "optim": {**_OPTIM, "lr": 1e-4},
    "loop": {"batch_size": 16, "epochs": 6, "min_steps": 50, "select": "last"},
}
"""Chosen for the starter on rows of the training part; minutes count here, so there are fewer steps than the presets take."""
FINETUNE_HERE = {
    "optim": {**_OPTIM, "lr": 3e-4},
    "loop": {"batch_size": 16, "epochs": 8, "min_steps": 60, "select": "last"},
}


@dataclass(frozen=True)
class Demo:
    """What a demo came to."""

    page: Path
    headline: str
    """What the head start was worth, in a sentence."""
    source: str
    """The model it started from."""


def run_demo(
    out: Path,
    data: str | None = None,
    source: str | None = None,
    *,
    pretrain: bool = False,
    progress: Progress | None = None,
) -> Demo:
    """Set data aside, compare, report. Called again, it goes on where it stopped.

    Args:
        data: a folder with a labelled train.csv; None takes the film reviews.
        source: the pretrained model whose worth is shown; None takes the English starter.
        pretrain: show that of a small model pretrained here and now instead.
    """
    if source and pretrain:
        raise UsageError(f"--from {source} is pretrained already; leave --pretrain out")
    command = f"headstart demo --out {out}" + (f" --data {data}" if data else "")
    command += (f" --from {source}" if source else "") + (" --pretrain" if pretrain else "")
    progress = progress or SilentProgress()
    if not (source or pretrain or STARTER.removeprefix(STARTER_SCHEME) in starters()):
        progress.say(
            f"{STARTER} is not in this installation (docs/starters.md): a small model is pretrained here instead"
        )
        pretrain = True
    try:
        return _run_story(out, data, None if pretrain else source or STARTER, command, progress)
    except Interrupted as error:
        raise Interrupted(f"{str(error).split(' Go on with: ')[0]} Go on with: {command}", error.reason) from None


def _run_story(out: Path, data: str | None, source: str | None, command: str, progress: Progress) -> Demo:
    found = None if data is None else _user_parts(Path(data))
    _check_out(out, data)
    if source:
        load_model_source(source, head_type="language")  # one that is not there is told before anything is written
    if not (out / "data" / "train.jsonl").is_file():
        progress.say("setting data aside: test and validation rows first")
        parts = builtin_parts() if found is None else _read_user_parts(found)
        (out / "data").mkdir(parents=True, exist_ok=True)
        write_json(out / DEMO_FILE, {"format": FORMAT, "kind": "demo", "source": _source(data)})
        write_parts(parts, out / "data")
    files = {name: str(out / "data" / f"{name}.jsonl") for name in ("train", "valid", "test")}
    own_model = source is None
    if source is None:
        progress.say("pretraining a small language model on the unlabelled text")
        texts = out / "data" / "texts.jsonl"
        if not texts.is_file():
            own = unlabelled(Path(data) if data else None, (found or {}).values())
            _write_lines(texts, [{"text": text} for text in (*own, *_texts(files["train"]))])
        source = pretrain_small(texts, [files["valid"], files["test"]], out / "pretrained", command, progress)
    bundle = load_model_source(source, head_type="language")
    cmp, budgets = out / "comparison", _budgets(Path(files["train"]), LABELS_HERE if own_model else LABELS)
    progress.say(f"TF-IDF, a network from random weights and one from {source}, each with few labels, {SEEDS} times:")
    progress.say(_demo_settings(files, budgets, bundle))
    page = run_compare(
        files["train"],
        cmp,
        merge_config(
            FinetuneConfig, preset_values(backbone_preset(bundle), "finetune"), FINETUNE_HERE if own_model else FINETUNE
        ),
        source=source,
        valid=files["valid"],
        test=files["test"],
        seeds=SEEDS,
        labels=budgets,
        arms=ARMS,
        resume=(cmp / "run.json").is_file(),
        command=command,
        progress=progress,
    )
    if bundle.objective != "masked" and data is None:
        samples = run_generate(bundle.path, PROMPT, sampling=Sampling(tokens=40, temperature=0.8, top_p=0.9), samples=3)
        write_json(cmp / "samples.json", [{"prompt": PROMPT, "text": text} for text in samples])
        page = write_report(cmp)
    return Demo(page, headline(cmp), source)


def headline(folder: Path) -> str:
    """What the head start was worth with most labels, over TF-IDF and over random weights; also when it was nothing."""
    comparison = load_comparison(folder)
    budget = comparison.largest_budget
    many = "all labels" if budget == "all" else f"{budget:,} labels"
    told = []
    for other, name in (("tfidf", "TF-IDF + logistic regression"), ("scratch", "the same network from random weights")):
        found = paired_difference(comparison, "pretrained", other, budget)
        assert found is not None
        sure = "" if found.measurable else ", which is not measurable"
        told.append(f"{format_points(found.mean)} points over {name} ({format_interval(found)}){sure}")
    return f"With {many}, the head start is worth {' and '.join(told)}."


def _source(data: str | None) -> str:
    return "the film reviews" if data is None else str(Path(data).resolve())


def _check_out(out: Path, data: str | None) -> None:
    """Go on with a demo of the same data only, and never in a folder of something else."""
    if (out / DEMO_FILE).is_file():
        made_from = read_json(out / DEMO_FILE).get("source")
        if made_from != _source(data):
            raise UsageError(f"{out} was made from {made_from}; choose another --out")
    elif out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty and holds no demo; choose another --out")


Parts = dict[str, LabelledTexts]
"""Labelled rows for `train`, `valid` and `test`."""


def builtin_parts() -> Parts:
    """Sentences of film reviews: those set aside for validation and test, and of the others some to learn from."""
    reviews = [review for review in read_reviews() if review.source == SOURCE]
    train, judged = (_labelled([each for each in reviews if each.set_aside is aside]) for aside in (False, True))
    rest, test = split_validation(judged, TEST_ROWS / len(judged), seed=0)
    return {"train": _at_most(train, TRAIN_ROWS), "valid": _at_most(rest, VALID_ROWS), "test": test}


def _labelled(reviews: list[Review]) -> LabelledTexts:
    """Each text once: a double could stand on both sides of a split."""
    once = list({text_digest(review.text): review for review in reviews}.values())
    return LabelledTexts(
        name="film reviews",
        texts=tuple(review.text for review in once),
        labels=tuple(review.label for review in once),
        where=tuple(f"film reviews, row {place}" for place in range(1, len(once) + 1)),
    )


def _user_parts(data: Path) -> dict[str, Path]:
    """The labelled files of a person's own folder: `train.*`, and `valid.*` and `test.*` if there are any."""
    if not data.is_dir():
        raise UsageError(f"no such folder: {data}; the demo wants one with a labelled train.csv in it")
    found = {name: sorted(data.glob(f"{name}.*")) for name in ("train", "valid", "test")}
    if not found["train"]:
        held = ", ".join(sorted(path.name for path in data.iterdir())[:5]) or "nothing"
        raise UsageError(f"{data} has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: {held}")
    return {name: paths[0] for name, paths in found.items() if paths}


def _read_user_parts(found: dict[str, Path]) -> Parts:
    """A person's own folder, cut to the demo's sizes; what it has no file for is split off from train."""
    read = {name: read_labelled(str(path), LabelledConfig()) for name, path in found.items()}
    train = _without_duplicates(read["train"])
    most = {"test": TEST_ROWS, "valid": VALID_ROWS, "train": TRAIN_ROWS}
    for seed, name in enumerate(("test", "valid")):
        if name not in read:
            train, read[name] = split_validation(train, min(0.25, most[name] / len(train)), seed=seed)
    return {name: _at_most(part, most[name]) for name, part in (read | {"train": train}).items()}


def _without_duplicates(texts: LabelledTexts) -> LabelledTexts:
    first: dict[int, int] = {}
    for index, text in enumerate(texts.texts):
        first.setdefault(text_digest(text), index)
    return texts.take(first.values())


def _at_most(texts: LabelledTexts, rows: int) -> LabelledTexts:
    return texts if len(texts) <= rows else texts.take(label_subset(texts.labels, rows, seed=0))


def _budgets(train: Path, wanted: tuple[int, ...] = LABELS) -> tuple[int | None, ...]:
    """So many labels, or fewer where there are not so many."""
    rows = train.read_bytes().count(b"\n")
    return tuple(labels for labels in wanted if labels < rows) + ((None,) if rows <= max(wanted) else ())


def _demo_settings(files: dict[str, str], budgets: tuple[int | None, ...], bundle: Bundle) -> str:
    """What was made small enough for two CPU cores, in a line."""
    rows = {name: Path(path).read_bytes().count(b"\n") for name, path in files.items()}
    many = " and ".join("all" if budget is None else f"{budget:,}" for budget in budgets)
    size = sum(parameter.numel() for parameter in bundle.model.backbone.parameters()) / 1e6
    return (
        f"{many} labels of the {rows['train']:,} rows to learn from, {rows['valid']:,} rows to validate on, "
        f"{rows['test']:,} to test on, a network of {size:.1f} M parameters"
    )


def write_parts(parts: Parts, folder: Path) -> None:
    """JSON lines, the training rows last: their file says that all is there."""
    for name in ("test", "valid", "train"):
        rows = zip(parts[name].texts, parts[name].labels, strict=True)
        _write_lines(folder / f"{name}.jsonl", [{"text": text, "label": label} for text, label in rows])


def _write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    atomic_write(path, lines.encode("utf-8"))


def _texts(path: str) -> list[str]:
    return list(read_labelled(path, LabelledConfig()).texts)
