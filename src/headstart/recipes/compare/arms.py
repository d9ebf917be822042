"""The arms of a comparison, and one run of a network.

The arms of a comparison by name, and the pretrained folders behind some of them.

majority  tfidf  naive_bayes  nbsvm      need no network
scratch                                  random weights
pretrained  frozen                       the backbone of --from, moving or not; with several folders, an arm each:
                                         pretrained:NAME after the folder

One network of a comparison: fine-tuned from its start, its rate chosen on validation if asked, test read once.
"""

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig, ModelConfig
from headstart.data.datasets import encode_inputs
from headstart.data.shards import is_shards
from headstart.errors import ConfigError, UsageError
from headstart.files import write_json
from headstart.interop.model_source import load_model_source
from headstart.interrupts import StopSignal
from headstart.metrics import Evaluation, evaluate_single_label, softmax
from headstart.progress import Progress
from headstart.recipes.compare.baselines import VALID_PROBABILITIES
from headstart.recipes.finetune.dataset import (
    EncodedSplit,
    LabelledData,
    build_classifier,
    model_config_for,
    resolve_attention,
)
from headstart.recipes.finetune.run import SCRATCH
from headstart.recipes.finetune.trainer import FinetuneOutcome, FinetuneTrainer
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.store.records import Budget, Epoch, RunRecord, Score, arm_type, round_probabilities
from headstart.store.run_folder import RunFolder
from headstart.tasks import AnyEvaluation
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.optimizers import epoch_and_total_steps
from headstart.train.scoring import score_texts

PRETRAINED = ("pretrained", "frozen")
NETWORK_ARMS = ("scratch", *PRETRAINED)
ARMS = ("majority", "tfidf", "naive_bayes", "nbsvm", *NETWORK_ARMS)
DEFAULT_ARMS = ("majority", "tfidf", "scratch", "pretrained")


@dataclass(frozen=True)
class PretrainedSource:
    """A pretrained folder of a comparison."""

    path: str
    """As the person wrote it."""
    name: str
    bundle: Bundle


def is_network(arm: str) -> bool:
    """Whether an arm is trained by gradient, and so by seed."""
    return arm_type(arm) in NETWORK_ARMS


def source_folders(source: str | Sequence[str] | None) -> tuple[str, ...]:
    """The pretrained folders that were named; the word scratch is none.

    >>> source_folders("runs/base"), source_folders(["a", "b"]), source_folders("scratch"), source_folders(None)
    (('runs/base',), ('a', 'b'), (), ())
    """
    given = (source,) if isinstance(source, str) else tuple(source or ())
    return tuple(path for path in given if path != SCRATCH)


def source_names(paths: Sequence[str]) -> tuple[str, ...]:
    """What folders are called: their last part, and as many parts before it as tell them apart.

    >>> source_names(["runs/base", "runs/large/bundle"]), source_names(["a/base", "b/base"])
    (('base', 'large'), ('a-base', 'b-base'))
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1 or _same(path, paths))
        raise UsageError(f"--from names {twice} twice; once is enough")
    parts = [Path(path).resolve().parts for path in paths]
    parts = [one[:-1] if one[-1] == "bundle" else one for one in parts]
    depth = 1
    while len(names := {_name(one[-depth:]) for one in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    if len(names) < len(parts):
        raise UsageError("the folders of --from cannot be told apart by name; rename one")
    return tuple(_name(one[-depth:]) for one in parts)


def _name(parts: Sequence[str]) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", "-".join(part.strip("/\\:") for part in parts)).lstrip("_.+-") or "model"


def _same(path: str, paths: Sequence[str]) -> bool:
    return sum(Path(other).resolve() == Path(path).resolve() for other in paths) > 1


def expand_arms(arms: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The arms that run: with several folders, one a folder where a folder is needed.

    >>> expand_arms(("scratch", "pretrained"), ["runs/a", "runs/b"])
    ('scratch', 'pretrained:a', 'pretrained:b')
    """
    for arm in arms:
        if arm not in ARMS:
            raise ConfigError(f"--arms knows {', '.join(ARMS)}, got {arm!r}")
        if arm in PRETRAINED and not paths:
            raise UsageError(
                f"compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without {arm}"
            )
    names = source_names(paths)
    found = [
        [f"{arm}:{name}" for name in names] if arm in PRETRAINED and len(names) > 1 else [arm]
        for arm in dict.fromkeys(arms)
    ]
    return tuple(arm for group in found for arm in group)


def load_sources(paths: Sequence[str], tokenizer: str | Path | None) -> tuple[PretrainedSource, ...]:
    """The language models to compare; a classifier has seen labels, and would make the comparison void."""
    found = []
    for path, name in zip(paths, source_names(paths), strict=True):
        bundle = load_model_source(path, head_type="language")
        if tokenizer is not None and load_tokenizer(Path(tokenizer)).digest != bundle.tokenizer.digest:
            raise UsageError(
                f"{path} was pretrained with another tokenizer than {tokenizer}; leave --tokenizer out to use its own"
            )
        found.append(PretrainedSource(path, name, bundle))
    return tuple(found)


def differences(sources: Sequence[PretrainedSource]) -> list[str]:
    """What a reader must know of folders that are not alike: there is one arm from scratch."""
    notes = []
    for source in sources[1:]:
        first = sources[0]
        other = [
            *(["shape"] if source.bundle.config != first.bundle.config else []),
            *(["tokenizer"] if source.bundle.tokenizer.digest != first.bundle.tokenizer.digest else []),
        ]
        if other:
            notes.append(
                f"{source.path} has another {' and '.join(other)} than {first.path}, whose network scratch is: "
                "their difference is not pretraining alone"
            )
    return notes


def encode_with(data: LabelledData, tokenizer: Tokenizer, path: str) -> LabelledData:
    """The same rows in the tokens of another model."""
    if tokenizer.digest == data.tokenizer.digest:
        return data
    parts = (data.train, data.valid, data.test)
    for part in parts:
        if part is not None and is_shards(part.name):
            raise UsageError(f"{part.name} was prepared with another tokenizer than {path}'s; give the file itself")

    def encode(part: EncodedSplit) -> EncodedSplit:
        ids = (np.asarray(row, dtype=np.int32) for row in encode_inputs(tokenizer, part.text_inputs))
        return replace(part, ids=tuple(ids))

    train, valid = encode(data.train), encode(data.valid)
    return replace(data, tokenizer=tokenizer, train=train, valid=valid, test=encode(data.test) if data.test else None)


LEARNING_RATES = (1.0, 3.0)
"""With --choose, the rates that validation chooses from, as multiples of the one that is set."""
FROZEN_SETTINGS = 10.0
"""A head alone is trained at so many times the rate: it is one small layer, and it starts from noise."""


@dataclass(frozen=True)
class NetworkJob:
    """What one cell is made from."""

    arm: str
    budget: Budget
    seed: int
    data: LabelledData
    config: FinetuneConfig
    shape: PretrainedSource | None
    """The folder whose shape and reading the network has; None takes those of the settings."""
    choose: bool
    work: Path
    """Where unfinished runs live."""
    receipt: Path

    def settings(self) -> list[FinetuneConfig]:
        """One configuration for each rate that is tried, the one that was set first."""
        frozen = arm_type(self.arm) == "frozen"
        rate = self.config.optim.lr * (FROZEN_SETTINGS if frozen else 1.0)
        own = {"transfer": {"freeze": True, "unfreeze_every": None}} if frozen else {}
        return [
            merge_config(
                FinetuneConfig,
                self.config.model_dump(),
                {"runtime": {"seed": self.seed}, "optim": {"lr": float(f"{rate * factor:.12g}")}, **own},
            )
            for factor in (LEARNING_RATES if self.choose else LEARNING_RATES[:1])
        ]


def run_network(
    job: NetworkJob, runtime: Runtime, stop: StopSignal, progress: Progress, *, say_truncation: bool
) -> RunRecord:
    """Train, choose by validation, read test once. On a stop the state is saved and Halt goes on to the caller."""
    started = time.perf_counter()
    settings = job.settings()
    # where there is a choice to make, no candidate sees test
    data = job.data if len(settings) == 1 else replace(job.data, test=None)
    outcomes: list[FinetuneOutcome] = []
    for place, config in enumerate(settings):
        training, resume = _training(job, config, place, data, runtime, stop, progress)
        if say_truncation and not place:
            training.say_truncation()
        outcomes.append(training.train(resume=resume))
    best = max(range(len(outcomes)), key=lambda place: _rank(outcomes[place], place))
    cell = _run_record(job, settings, outcomes, best, runtime, stop)
    for place in range(len(settings)):
        shutil.rmtree(_folder(job, place), ignore_errors=True)
    return cell.model_copy(update={"seconds": time.perf_counter() - started})


def _rank(outcome: FinetuneOutcome, place: int) -> tuple[float, float, int]:
    """Validation accuracy; among equals the lower loss, then the earlier setting."""
    return outcome.valid.selection_metric, -outcome.valid.loss, -place


def _folder(job: NetworkJob, place: int) -> Path:
    return job.work if place == 0 else job.work.with_name(f"{job.work.name}-{place + 1}")


def _training(
    job: NetworkJob,
    config: FinetuneConfig,
    place: int,
    data: LabelledData,
    runtime: Runtime,
    stop: StopSignal,
    progress: Progress,
) -> tuple[FinetuneTrainer, bool]:
    folder = _folder(job, place)
    resume = (folder / "run.json").is_file()
    if resume:
        run = RunFolder.open(folder, kind="cell")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        run = RunFolder.create(folder, kind="cell", command="", config=config, inputs={})
    bundle = job.shape.bundle if job.shape else None
    shape: ModelConfig = model_config_for(bundle, config.transfer) if bundle else config.model
    pretrained = None if arm_type(job.arm) == SCRATCH else bundle
    name = job.shape.path if job.shape else SCRATCH
    model, receipt = build_classifier(shape, data, pretrained, name, job.seed, resolve_attention(config, bundle))
    if receipt:
        write_json(job.receipt, receipt.as_dict())
    return FinetuneTrainer(run, config, data, model, runtime, stop, progress, quiet=True), resume


def _run_record(
    job: NetworkJob,
    settings: list[FinetuneConfig],
    outcomes: list[FinetuneOutcome],
    best: int,
    runtime: Runtime,
    stop: StopSignal,
) -> RunRecord:
    config, outcome, test = settings[best], outcomes[best], job.data.test
    assert test is not None
    rows = job.data.dataset(test, outcome.model.backbone.config.context, config.labelled)
    scores = outcome.test_logits
    if scores is None:
        scores = score_texts(outcome.model, rows, runtime, stop.check)
    tried = [
        {"lr": each.optim.lr, "valid_accuracy": found.valid.selection_metric, "valid_loss": found.valid.loss}
        for each, found in zip(settings, outcomes, strict=True)
    ]
    frozen = {"freeze": True} if config.transfer.freeze else {}
    few = outcome.valid_logits.size <= VALID_PROBABILITIES
    epoch, whole = epoch_and_total_steps(len(job.data.train), config.loop)
    return RunRecord(
        arm=job.arm,
        labels=job.budget,
        rows=len(job.data.train),
        seed=job.seed,
        setting={"lr": config.optim.lr, "epochs": whole // epoch, "batch_size": config.loop.batch_size, **frozen},
        epochs=tuple(Epoch(**figures) for figures in outcome.epochs),
        best_epoch=outcome.best_epoch,
        valid=_score(outcome.valid),
        test=_score(evaluate_single_label(scores, rows.labels, job.data.labels)),
        predictions=tuple(int(label) for label in scores.argmax(axis=1)),
        probabilities=round_probabilities(softmax(scores).tolist()),
        valid_probabilities=round_probabilities(softmax(outcome.valid_logits).tolist()) if few else None,
        temperature=outcome.calibrated.temperature,
        tried=tuple(tried) if len(tried) > 1 else (),
        seconds=0.0,
    )


def _score(evaluation: AnyEvaluation) -> Score:
    assert isinstance(evaluation, Evaluation)  # a comparison is of classes, which is checked when it begins
    return Score(accuracy=evaluation.accuracy, macro_f1=evaluation.macro_f1, confusion=evaluation.confusion)
