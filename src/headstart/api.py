"""The verbs in Python: what the commands do, as functions.

Settings have the names they have everywhere, in a mapping:

    run = headstart.pretrain("reviews.txt", out="runs/base", settings={"model.depth": 2, "loop.epochs": 3})
    headstart.finetune("train.csv", out="runs/clf", source="runs/base")
    headstart.load("runs/clf").predict(["un livre magnifique"])
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headstart.config import CorpusConfig, FinetuneConfig, PretrainConfig, Section, TokenizerConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError
from headstart.layering import layered, nested
from headstart.model.presets import values
from headstart.predict.generate import Sampling, run_generate
from headstart.predict.predictor import Predictor
from headstart.progress import Progress, Quiet
from headstart.recipes.compare import DEFAULT_ARMS, run_compare
from headstart.recipes.evaluate import run_evaluate
from headstart.recipes.finetune import SCRATCH, run_finetune
from headstart.recipes.prepare import run_prepare, run_tokenizer
from headstart.recipes.pretrain import run_pretrain
from headstart.store.rundir import RunFolder
from headstart.text.tokenizer import ReportCard
from headstart.train.evaluate import Evaluation

Paths = str | Path | Sequence[str | Path]
Settings = Mapping[str, Any]
C = TypeVar("C", bound=Section)


def train_tokenizer(
    texts: Paths, *, out: str | Path, settings: Settings | None = None, progress: Progress | None = None
) -> ReportCard:
    """Train a byte-level BPE on text files and save it; returns its report card."""
    config = layered(TokenizerConfig, nested(settings or {}))
    return run_tokenizer(_paths(texts), Path(out), config, CorpusConfig(), progress or Quiet())


def prepare(
    texts: Paths,
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Shards:
    """Encode text files into token shards, once; nothing is done again when nothing changed."""
    return run_prepare(
        _paths(texts),
        Path(out),
        layered(CorpusConfig, nested(settings or {})),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        tokenizer_config=TokenizerConfig(),
        progress=progress or Quiet(),
    )


def pretrain(
    texts: Paths,
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    preset: str = "classic",
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> RunFolder:
    """Pretrain a language model on text files or prepared shards; returns its run folder."""
    return run_pretrain(
        _paths(texts),
        Path(out),
        _settings(PretrainConfig, preset, "pretrain", settings),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        resume=resume,
        progress=progress,
    )


def finetune(
    train: str | Path,
    *,
    out: str | Path,
    source: str | Path,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    tokenizer: str | Path | None = None,
    preset: str = "classic",
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> RunFolder:
    """Fine-tune a classifier from a pretrained folder, or from random weights with source="scratch"."""
    _check_shape(source, settings)
    return run_finetune(
        str(train),
        Path(out),
        _settings(FinetuneConfig, preset, "finetune", settings),
        source=str(source),
        valid=_text(valid),
        test=_text(test),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        resume=resume,
        progress=progress,
    )


def compare(
    train: str | Path,
    *,
    out: str | Path,
    test: str | Path,
    source: str | Path | None = None,
    valid: str | Path | None = None,
    seeds: int = 5,
    labels: tuple[int | None, ...] = (None,),
    arms: tuple[str, ...] = DEFAULT_ARMS,
    preset: str = "classic",
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Compare a pretrained backbone with random weights and the linear baselines; returns the report's path."""
    _check_shape(source, settings)
    return run_compare(
        str(train),
        Path(out),
        _settings(FinetuneConfig, preset, "finetune", settings),
        source=_text(source),
        valid=_text(valid),
        test=str(test),
        seeds=seeds,
        labels=labels,
        arms=arms,
        resume=resume,
        progress=progress,
    )


def load(folder: str | Path) -> Predictor:
    """A classifier that answers: `load("runs/clf").predict(texts)`."""
    return Predictor.load(Path(folder))


def evaluate(folder: str | Path, file: str | Path) -> Evaluation:
    """Measure a classifier on a labelled file."""
    return run_evaluate(Path(folder), str(file))


def generate(folder: str | Path, prompt: str, *, samples: int = 1, sampling: Sampling | None = None) -> list[str]:
    """Continue a prompt with a pretrained language model."""
    return run_generate(Path(folder), prompt, sampling=sampling or Sampling(), samples=samples)


def _check_shape(source: str | Path | None, settings: Settings | None) -> None:
    """A pretrained folder brings its own shape and tokenizer: settings that would be ignored are refused."""
    if source is not None and str(source) != SCRATCH:
        for name in settings or {}:
            if name.startswith(("model.", "tokenizer.")):
                raise ConfigError(f"{name} is set, but {source} brings its own; leave it out, or use source='scratch'")


def _settings(kind: type[C], preset: str, command: str, settings: Settings | None) -> C:
    return layered(kind, values(preset, command), nested(settings or {}))


def _paths(texts: Paths) -> list[str]:
    return [str(texts)] if isinstance(texts, (str, Path)) else [str(path) for path in texts]


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
