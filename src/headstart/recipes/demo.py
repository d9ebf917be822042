"""The demo: few labels, a pretrained starter, and a comparison, in minutes on two CPU cores.

It uses sentences of film reviews from the `demo` extra, or the user's own folder. Test and validation rows of the film
reviews are those that no starter was pretrained on. Text, sizes and settings are chosen so that two CPU cores need less
than five minutes.

Without a starter, a small language model is pretrained in minutes on the unlabelled files of the folder and on the texts
of the training rows. So little pretraining rarely beats a linear model; it shows the steps.
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
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.finetune.run import backbone_preset
from headstart.recipes.pretrain.run import PretrainRequest, run_pretrain
from headstart.report.load import load_comparison
from headstart.report.page import write_report
from headstart.report.statistics import paired_difference
from headstart.report.summary import format_interval, format_points
from headstart.store.bundle import Bundle
from headstart.store.locate import INSTALL_STARTERS, STARTER_SCHEME, starters

DEMO_FILE = "demo.json"
"""The file that makes a folder a demo, and says what data it was made from."""
STARTER = "starter:en-reviews"
REVIEW_SOURCE = "rotten_tomatoes"
"""The film reviews of the demo: single sentences of about 27 tokens, which a laptop reads quickly."""
SPLITS = ("train", "valid", "test")
TRAIN_ROWS, VALID_ROWS, TEST_ROWS = 1000, 200, 1000
LABEL_BUDGETS = (50, 200)
LABEL_BUDGETS_AFTER_PRETRAINING = (200, 1000)
"""A model that a laptop pretrains in two minutes shows nothing with fewer labels."""
SEEDS = 3
ARMS = ("linear", "scratch", "pretrained")
PROMPT = "The film is"

PRETRAIN_SETTINGS = {
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
_OPTIM = {"optimizer": "adamw", "warmup": 0.1, "schedule": "linear", "clip": 1.0, "ema_decay": 0.9}
FINETUNE_SETTINGS = {
    "optim": {**_OPTIM, "lr": 1e-4},
    "loop": {"batch_size": 16, "epochs": 6, "min_steps": 50, "min_steps_per_label": 0, "select": "last"},
    "transfer": {"head_lr_multiplier": 1.0},
}
"""Chosen for the starter on rows of train; there are fewer steps than in the presets, because a demo must be short."""
FINETUNE_SETTINGS_AFTER_PRETRAINING = {
    "optim": {**_OPTIM, "lr": 3e-4},
    "loop": {"batch_size": 16, "epochs": 8, "min_steps": 60, "min_steps_per_label": 0, "select": "last"},
    "transfer": {"head_lr_multiplier": 1.0},
}

LabelledSplits = dict[str, LabelledTexts]
"""Labelled rows of `train`, `valid` and `test`."""


@dataclass(frozen=True)
class DemoRequest:
    """The inputs and options of a demo."""

    out: Path
    data: str | None = None
    """A folder with a labelled train.csv; None takes the film reviews."""
    backbone: str | None = None
    """The pretrained model; None takes the English starter."""
    pretrain: bool = False
    """Pretrain a small model here in place of a pretrained one."""
    encoding: str | None = None
    """The encoding of the files of `data` that are not UTF-8."""

    @property
    def command(self) -> str:
        """The command that continues the demo."""
        command = f"headstart demo --out {self.out}" + (f" --data {self.data}" if self.data else "")
        command += f" --encoding {self.encoding}" if self.encoding else ""
        return (
            command + (f" --from {self.backbone}" if self.backbone else "") + (" --pretrain" if self.pretrain else "")
        )


@dataclass(frozen=True)
class DemoResult:
    """The report of a demo."""

    page: Path
    headline: str
    """The gain from pretraining in one sentence."""
    backbone: str
    """The pretrained model."""


def run_demo(request: DemoRequest, progress: Progress | None = None) -> DemoResult:
    """Split the data, compare and report. A demo that was interrupted continues."""
    if request.backbone and request.pretrain:
        raise UsageError(f"--from {request.backbone} is already pretrained; remove --pretrain")
    progress, pretrain = progress or SilentProgress(), request.pretrain
    if not (request.backbone or pretrain or STARTER.removeprefix(STARTER_SCHEME) in starters()):
        progress.say(f"{STARTER} is not installed ({INSTALL_STARTERS}): a small model is pretrained here instead")
        pretrain = True
    try:
        return _run(request, None if pretrain else request.backbone or STARTER, progress)
    except Interrupted as error:
        raise Interrupted(
            f"{str(error).split(' Continue with: ')[0]} Continue with: {request.command}", error.reason
        ) from None


def _run(request: DemoRequest, backbone: str | None, progress: Progress) -> DemoResult:
    out, data = request.out, request.data
    user_files = None if data is None else _find_user_files(Path(data))
    _check_out(out, data)
    if backbone:
        load_model_source(backbone, head_type="language")  # a missing one is refused before anything is written
    if not (out / "data" / "train.jsonl").is_file():
        progress.say("splitting the data: test and validation rows first")
        splits = split_reviews() if user_files is None else _read_user_files(user_files, request.encoding)
        (out / "data").mkdir(parents=True, exist_ok=True)
        write_json(out / DEMO_FILE, {"format": FORMAT, "kind": "demo", "source": _describe_data(data)})
        write_splits(splits, out / "data")
    files = {name: str(out / "data" / f"{name}.jsonl") for name in SPLITS}
    pretrained_here = backbone is None
    if backbone is None:
        progress.say("pretraining a small language model on the unlabelled text")
        texts_file = out / "data" / "texts.jsonl"
        if not texts_file.is_file():
            texts = unlabelled_texts(
                Path(data) if data else None, (user_files or {}).values(), CorpusConfig(encoding=request.encoding)
            )
            _write_json_lines(texts_file, [{"text": text} for text in (*texts, *_read_texts(files["train"]))])
        held_out = [files["valid"], files["test"]]
        backbone = pretrain_small(texts_file, held_out, out / "pretrained", request.command, progress)
    bundle = load_model_source(backbone, head_type="language")
    page = _compare(request, files, backbone, bundle, progress, pretrained_here=pretrained_here)
    if bundle.objective != "masked" and data is None:
        samples = run_generate(bundle.path, PROMPT, sampling=Sampling(tokens=40, temperature=0.8, top_p=0.9), samples=3)
        write_json(page.parent / "samples.json", [{"prompt": PROMPT, "text": text} for text in samples])
        page = write_report(page.parent)
    return DemoResult(page, describe_gain(page.parent), backbone)


def _compare(
    request: DemoRequest,
    files: dict[str, str],
    backbone: str,
    bundle: Bundle,
    progress: Progress,
    *,
    pretrained_here: bool,
) -> Path:
    out = request.out / "comparison"
    budgets = _label_budgets(
        Path(files["train"]), LABEL_BUDGETS_AFTER_PRETRAINING if pretrained_here else LABEL_BUDGETS
    )
    progress.say(
        f"a linear model, a network from random weights and one from {backbone}, each with few labels, {SEEDS} times:"
    )
    progress.say(_describe_sizes(files, budgets, bundle))
    compare_request = CompareRequest(
        train=files["train"],
        out=out,
        backbones=(backbone,),
        valid=files["valid"],
        test=files["test"],
        seeds=SEEDS,
        label_budgets=budgets,
        arms=ARMS,
        resume=(out / "run.json").is_file(),
        command=request.command,
    )
    settings = FINETUNE_SETTINGS_AFTER_PRETRAINING if pretrained_here else FINETUNE_SETTINGS
    config = merge_config(FinetuneConfig, preset_values(backbone_preset(bundle), "finetune"), settings)
    return run_compare(compare_request, config, progress)


def unlabelled_texts(
    data: Path | None, labelled_files: Iterable[Path], corpus: CorpusConfig | None = None
) -> list[str]:
    """Read the other files of a folder than the labelled ones; of the film reviews, those that are not held out."""
    if data is None:
        return [review.text for review in read_reviews() if not review.set_aside]
    paths = sorted({path for path in data.iterdir() if path.is_file()} - set(labelled_files))
    return (
        [document.text for document in read_documents(list(map(str, paths)), corpus or CorpusConfig())] if paths else []
    )


def pretrain_small(texts: Path, held_out: list[str], out: Path, command: str, progress: Progress) -> str:
    """Pretrain a small model, or continue; returns its folder.

    Args:
        held_out: files whose rows are excluded from the text.
    """
    config = merge_config(
        PretrainConfig,
        preset_values("classic", "pretrain"),
        PRETRAIN_SETTINGS,
        {"corpus": {"exclude": ",".join(held_out)}},
    )
    resume = (out / "run.json").is_file()
    request = PretrainRequest(texts=(str(texts),), out=out, resume=resume, command=command)
    return str(run_pretrain(request, config, progress).path)


def describe_gain(folder: Path) -> str:
    """Describe the gain from pretraining with most labels, over a linear model and over random weights, even if it is none."""
    comparison = load_comparison(folder)
    budget = comparison.largest_budget
    labels = "all labels" if budget == "all" else f"{budget:,} labels"
    gains = []
    for arm, name in (("linear", "a linear model"), ("scratch", "the same network from random weights")):
        difference = paired_difference(comparison, "pretrained", arm, budget)
        assert difference is not None
        caveat = "" if difference.measurable else ", not statistically significant"
        gains.append(f"{format_points(difference.mean)} points over {name} ({format_interval(difference)}){caveat}")
    return f"With {labels}, pretraining gains {' and '.join(gains)}."


def _describe_data(data: str | None) -> str:
    return "the film reviews" if data is None else str(Path(data).resolve())


def _check_out(out: Path, data: str | None) -> None:
    """Refuse to continue a demo of other data, or to write in a folder that is no demo."""
    if (out / DEMO_FILE).is_file():
        made_from = read_json(out / DEMO_FILE).get("source")
        if made_from != _describe_data(data):
            raise UsageError(f"{out} was made from {made_from}; choose another --out")
    elif out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty and contains no demo; choose another --out")


def split_reviews() -> LabelledSplits:
    """Split the film reviews: validation and test are drawn from the held-out ones, train from the others."""
    reviews = [review for review in read_reviews() if review.source == REVIEW_SOURCE]
    train, held_out = (
        _as_labelled_texts([review for review in reviews if review.set_aside is is_held_out])
        for is_held_out in (False, True)
    )
    valid, test = split_validation(held_out, TEST_ROWS / len(held_out), seed=0)
    return {"train": _subsample(train, TRAIN_ROWS), "valid": _subsample(valid, VALID_ROWS), "test": test}


def _as_labelled_texts(reviews: list[Review]) -> LabelledTexts:
    """Return the reviews without duplicates, which could be on both sides of a split."""
    unique = list({text_digest(review.text): review for review in reviews}.values())
    return LabelledTexts(
        name="film reviews",
        texts=tuple(review.text for review in unique),
        labels=tuple(review.label for review in unique),
        where=tuple(f"film reviews, row {row}" for row in range(1, len(unique) + 1)),
    )


def _find_user_files(data: Path) -> dict[str, Path]:
    """Find `train.*`, and `valid.*` and `test.*` if they exist, in a user's folder."""
    if not data.is_dir():
        raise UsageError(f"no such folder: {data}; the demo needs a folder with a labelled train.csv")
    matches = {name: sorted(data.glob(f"{name}.*")) for name in SPLITS}
    if not matches["train"]:
        names = ", ".join(sorted(path.name for path in data.iterdir())[:5]) or "nothing"
        raise UsageError(f"{data} has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: {names}")
    return {name: paths[0] for name, paths in matches.items() if paths}


def _read_user_files(files: dict[str, Path], encoding: str | None) -> LabelledSplits:
    """Read a user's files, cut to the sizes of the demo; missing splits are drawn from train."""
    config = merge_config(LabelledConfig, {"encoding": encoding})
    splits = {name: read_labelled(str(path), config) for name, path in files.items()}
    train = _without_duplicates(splits["train"])
    max_rows = {"test": TEST_ROWS, "valid": VALID_ROWS, "train": TRAIN_ROWS}
    for seed, name in enumerate(("test", "valid")):
        if name not in splits:
            train, splits[name] = split_validation(train, min(0.25, max_rows[name] / len(train)), seed=seed)
    return {name: _subsample(split, max_rows[name]) for name, split in (splits | {"train": train}).items()}


def _without_duplicates(texts: LabelledTexts) -> LabelledTexts:
    first: dict[int, int] = {}
    for index, text in enumerate(texts.texts):
        first.setdefault(text_digest(text), index)
    return texts.take(first.values())


def _subsample(texts: LabelledTexts, max_rows: int) -> LabelledTexts:
    return texts if len(texts) <= max_rows else texts.take(label_subset(texts.labels, max_rows, seed=0))


def _label_budgets(train: Path, budgets: tuple[int, ...] = LABEL_BUDGETS) -> tuple[int | None, ...]:
    """Return the budgets below the number of rows, and None (all rows) if it is not above the largest budget."""
    num_rows = _count_rows(train)
    return tuple(budget for budget in budgets if budget < num_rows) + ((None,) if num_rows <= max(budgets) else ())


def _describe_sizes(files: dict[str, str], budgets: tuple[int | None, ...], bundle: Bundle) -> str:
    """Describe the sizes of data and model in one line: they are small enough for two CPU cores."""
    rows = {name: _count_rows(Path(path)) for name, path in files.items()}
    labels = " and ".join("all" if budget is None else f"{budget:,}" for budget in budgets)
    millions = sum(parameter.numel() for parameter in bundle.model.backbone.parameters()) / 1e6
    return (
        f"{labels} labels of the {rows['train']:,} training rows, {rows['valid']:,} validation rows, "
        f"{rows['test']:,} test rows, a network of {millions:.1f} M parameters"
    )


def _count_rows(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def write_splits(splits: LabelledSplits, folder: Path) -> None:
    """Write JSON lines, train last: if its file exists, all are complete."""
    for name in reversed(SPLITS):
        rows = zip(splits[name].texts, splits[name].labels, strict=True)
        _write_json_lines(folder / f"{name}.jsonl", [{"text": text, "label": label} for text, label in rows])


def _write_json_lines(path: Path, rows: list[dict[str, str]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    atomic_write(path, lines.encode("utf-8"))


def _read_texts(path: str) -> list[str]:
    return list(read_labelled(path, LabelledConfig()).texts)
