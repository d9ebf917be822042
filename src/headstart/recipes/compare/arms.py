"""The arms of a comparison, and one run of a network.

majority  linear  naive_bayes  nbsvm      need no network
scratch                                  random weights
pretrained  frozen                       the backbone of --from, trained or frozen; with several folders, one arm per
                                         folder: pretrained:NAME
blend                                    the pretrained network and a linear classifier, pooled
"""

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

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
from headstart.recipes.compare.baselines import MAX_VALID_PROBABILITIES
from headstart.recipes.compare.blending import RunLogits, write_logits
from headstart.recipes.finetune.backbone_preset import SCRATCH
from headstart.recipes.finetune.dataset import (
    EncodedSplit,
    LabelledData,
    build_classifier,
    model_config_for,
    resolve_attention,
)
from headstart.recipes.finetune.trainer import FinetuneOutcome, FinetuneTrainer
from headstart.recipes.grid import open_cell
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.store.records import Budget, Epoch, RunRecord, Score, arm_type, record_path, round_probabilities
from headstart.tasks import AnyEvaluation
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.optimizers import epoch_and_total_steps
from headstart.train.scoring import score_texts

PRETRAINED = ("pretrained", "frozen")
NETWORK_ARMS = ("scratch", *PRETRAINED)
BLEND = "blend"
ARMS = ("majority", "linear", "naive_bayes", "nbsvm", *NETWORK_ARMS, BLEND)
DEFAULT_ARMS = ("majority", "linear", "scratch", "pretrained")

LR_FACTORS = (1.0, 3.0)
"""With --choose, validation chooses among these multiples of the configured learning rate."""
FROZEN_LR_FACTOR = 10.0
"""Factor of the learning rate of the head on a frozen backbone, which is one small layer with random weights."""
_LINEAR_COST = 0.02


class RunSpec(NamedTuple):
    """One run of a comparison."""

    arm: str
    budget: Budget
    seed: int

    @property
    def is_network(self) -> bool:
        """True if the arm is trained by gradient descent, and so depends on the seed."""
        return arm_type(self.arm) in NETWORK_ARMS

    @property
    def is_blend(self) -> bool:
        """True if the run blends a finished run of a network, and so depends on the seed too."""
        return arm_type(self.arm) == BLEND

    @property
    def cost(self) -> float:
        """The part of the progress bar for this run: linear arms take seconds, and would distort the remaining time."""
        return 1.0 if self.is_network else _LINEAR_COST

    @property
    def row_and_column(self) -> tuple[str, str]:
        """The row and column of the run in the table of runs."""
        return self.arm, str(self.budget)

    def describe(self) -> str:
        """Describe the run in a few words."""
        return f"{self.arm}, {self.budget} labels, seed {self.seed}"

    def record_path(self, folder: Path) -> Path:
        """Return the path of the run's record in the comparison in `folder`."""
        return record_path(folder, self.arm, self.budget, self.seed)


@dataclass(frozen=True)
class PretrainedBackbone:
    """A pretrained folder of a comparison."""

    path: str
    """As the user wrote it."""
    name: str
    bundle: Bundle


def pretrained_paths(backbones: Sequence[str]) -> tuple[str, ...]:
    """Return the backbones that are pretrained, without the word scratch.

    >>> pretrained_paths(["a", "b"]), pretrained_paths(["scratch"])
    (('a', 'b'), ())
    """
    return tuple(path for path in backbones if path != SCRATCH)


def backbone_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Name folders by their last path component, and by as many components before it as make the names unique.

    >>> backbone_names(["runs/base", "runs/large/bundle"]), backbone_names(["a/base", "b/base"])
    (('base', 'large'), ('a-base', 'b-base'))
    """
    resolved = [Path(path).resolve() for path in paths]
    if len(set(resolved)) < len(paths):
        twice = next(path for path in paths if resolved.count(Path(path).resolve()) > 1)
        raise UsageError(f"--from lists {twice} twice; list each folder once")
    all_parts = [path.parts[:-1] if path.parts[-1] == "bundle" else path.parts for path in resolved]
    depth = 1
    while len(names := {_name(parts[-depth:]) for parts in all_parts}) < len(paths) and depth < max(
        map(len, all_parts)
    ):
        depth += 1
    if len(names) < len(paths):
        raise UsageError("the folders of --from have the same name; rename one")
    return tuple(_name(parts[-depth:]) for parts in all_parts)


def _name(parts: Sequence[str]) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", "-".join(part.strip("/\\:") for part in parts)).lstrip("_.+-") or "model"


def expand_arms(arms: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """Return the arms that run: with several folders, a pretrained arm becomes one arm per folder.

    >>> expand_arms(("scratch", "pretrained"), ["runs/a", "runs/b"])
    ('scratch', 'pretrained:a', 'pretrained:b')
    """
    if BLEND in arms and "pretrained" not in arms:
        raise UsageError("--arms blend also needs pretrained, the network that it blends with a linear model")
    arms = sorted(arms, key=lambda arm: arm == BLEND)  # after the runs that it blends
    for arm in arms:
        if arm not in ARMS:
            raise ConfigError(f"--arms must be among {', '.join(ARMS)}, got {arm!r}")
        if arm in PRETRAINED and not paths:
            raise UsageError(
                f"compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without {arm}"
            )
    names = backbone_names(paths)
    expanded = [
        [f"{arm}:{name}" for name in names] if arm in (*PRETRAINED, BLEND) and len(names) > 1 else [arm]
        for arm in dict.fromkeys(arms)
    ]
    return tuple(arm for group in expanded for arm in group)


def load_backbones(paths: Sequence[str], tokenizer: Path | None) -> tuple[PretrainedBackbone, ...]:
    """Load the language models to compare; classifiers are refused, because they were trained on labels."""
    backbones = []
    for path, name in zip(paths, backbone_names(paths), strict=True):
        bundle = load_model_source(path, head_type="language")
        if tokenizer is not None and load_tokenizer(tokenizer).digest != bundle.tokenizer.digest:
            raise UsageError(
                f"{path} was pretrained with another tokenizer than {tokenizer}; remove --tokenizer to use its own"
            )
        backbones.append(PretrainedBackbone(path, name, bundle))
    return tuple(backbones)


def describe_differences(backbones: Sequence[PretrainedBackbone]) -> list[str]:
    """Note backbones whose shape or tokenizer differ from the first one's: there is only one arm from scratch."""
    notes = []
    for backbone in backbones[1:]:
        first = backbones[0]
        differences = [
            *(["shape"] if backbone.bundle.config != first.bundle.config else []),
            *(["tokenizer"] if backbone.bundle.tokenizer.digest != first.bundle.tokenizer.digest else []),
        ]
        if differences:
            notes.append(
                f"{backbone.path} has another {' and '.join(differences)} than {first.path}, which scratch uses: "
                "the difference from scratch is not due to pretraining alone"
            )
    return notes


def encode_with(data: LabelledData, tokenizer: Tokenizer, path: str) -> LabelledData:
    """Encode the same rows with the tokenizer of another model."""
    if tokenizer.digest == data.tokenizer.digest:
        return data
    for split in (data.train, data.valid, data.test):
        if split is not None and is_shards(split.name):
            raise UsageError(f"{split.name} was prepared with another tokenizer than {path}'s; use the original file")

    def encode(split: EncodedSplit) -> EncodedSplit:
        ids = (np.asarray(row, dtype=np.int32) for row in encode_inputs(tokenizer, split.text_inputs))
        return replace(split, ids=tuple(ids))

    train, valid = encode(data.train), encode(data.valid)
    return replace(data, tokenizer=tokenizer, train=train, valid=valid, test=encode(data.test) if data.test else None)


@dataclass(frozen=True)
class NetworkRun:
    """The inputs of one run of a network, and the files that it writes."""

    spec: RunSpec
    data: LabelledData
    config: FinetuneConfig
    backbone: PretrainedBackbone | None
    """The folder whose shape and attention direction the network has; None takes those of the settings."""
    choose: bool
    """Let validation choose the learning rate."""
    work_folder: Path
    """The folder of the unfinished run; further candidates have the same name with a number."""
    receipt: Path
    logits: Path | None = None
    """The file for the logits of validation and test, which a blend reads; None without one."""
    bound_steps: int | None = None
    """With `loop.minutes`, the steps of the first network of this seed and budget; None if this is the first."""

    def candidates(self) -> list[FinetuneConfig]:
        """Return one configuration per learning rate that is tried, the configured rate first."""
        frozen = arm_type(self.spec.arm) == "frozen"
        lr = self.config.optim.lr * (FROZEN_LR_FACTOR if frozen else 1.0)
        transfer = {"transfer": {"freeze": True, "unfreeze_every": None, "head_lr_multiplier": 1.0}} if frozen else {}
        return [
            merge_config(
                FinetuneConfig,
                self.config.model_dump(),
                {"runtime": {"seed": self.spec.seed}, "optim": {"lr": float(f"{lr * factor:.12g}")}, **transfer},
            )
            for factor in (LR_FACTORS if self.choose else LR_FACTORS[:1])
        ]

    def candidate_folder(self, index: int) -> Path:
        """Return the run folder of a candidate."""
        return self.work_folder if index == 0 else self.work_folder.with_name(f"{self.work_folder.name}-{index + 1}")


def run_network(
    network_run: NetworkRun, runtime: Runtime, stop: StopSignal, progress: Progress, *, say_truncation: bool
) -> RunRecord:
    """Train every candidate, choose by validation and read test once. On a stop the state is saved."""
    start = time.perf_counter()
    candidates = network_run.candidates()
    # where validation chooses among candidates, none of them sees test
    data = network_run.data if len(candidates) == 1 else replace(network_run.data, test=None)
    outcomes: list[FinetuneOutcome] = []
    for index, config in enumerate(candidates):
        if outcomes and config.loop.minutes is not None:
            network_run = replace(network_run, bound_steps=outcomes[0].steps)
        trainer, resume = _trainer(network_run, config, index, data, runtime, stop, progress)
        if say_truncation and not index:
            trainer.say_truncation()
        outcomes.append(trainer.train(resume=resume))
    best = max(range(len(outcomes)), key=lambda index: _rank(outcomes[index], index))
    record = _run_record(network_run, candidates, outcomes, best, runtime, stop)
    for index in range(len(candidates)):
        shutil.rmtree(network_run.candidate_folder(index), ignore_errors=True)
    return record.model_copy(update={"seconds": time.perf_counter() - start})


def _rank(outcome: FinetuneOutcome, index: int) -> tuple[float, float, int]:
    """Rank by validation accuracy, then by lower loss, then by the earlier candidate."""
    return outcome.valid.selection_metric, -outcome.valid.loss, -index


def _trainer(
    network_run: NetworkRun,
    config: FinetuneConfig,
    index: int,
    data: LabelledData,
    runtime: Runtime,
    stop: StopSignal,
    progress: Progress,
) -> tuple[FinetuneTrainer, bool]:
    """Build the trainer of a candidate; the second value says whether it resumes."""
    folder, resume = open_cell(network_run.candidate_folder(index), config)
    spec, backbone = network_run.spec, network_run.backbone
    bundle = backbone.bundle if backbone else None
    model_config: ModelConfig = model_config_for(bundle, config.transfer) if bundle else config.model
    pretrained = None if arm_type(spec.arm) == SCRATCH else bundle
    name = backbone.path if backbone else SCRATCH
    model, receipt = build_classifier(
        model_config, data, pretrained, name, spec.seed, resolve_attention(config, bundle)
    )
    if receipt:
        write_json(network_run.receipt, receipt.as_dict())
    trainer = FinetuneTrainer(
        folder, config, data, model, runtime, stop, progress, quiet=True, bound_steps=network_run.bound_steps
    )
    return trainer, resume


def _run_record(
    network_run: NetworkRun,
    candidates: list[FinetuneConfig],
    outcomes: list[FinetuneOutcome],
    best: int,
    runtime: Runtime,
    stop: StopSignal,
) -> RunRecord:
    spec, data = network_run.spec, network_run.data
    config, outcome = candidates[best], outcomes[best]
    assert data.test is not None
    dataset = data.dataset(data.test, outcome.model.backbone.config.context, config.labelled)
    logits = outcome.test_logits
    if logits is None:
        logits = score_texts(outcome.model, dataset, runtime, stop.check)
    if network_run.logits:
        write_logits(network_run.logits, RunLogits(outcome.valid_logits, logits))
    tried = [
        {"lr": candidate.optim.lr, "valid_accuracy": tried.valid.selection_metric, "valid_loss": tried.valid.loss}
        for candidate, tried in zip(candidates, outcomes, strict=True)
    ]
    freeze = {"freeze": True} if config.transfer.freeze else {}
    save_valid = outcome.valid_logits.size <= MAX_VALID_PROBABILITIES
    epoch_steps, total_steps = epoch_and_total_steps(len(data.train), config.loop, len(data.labels))
    return RunRecord(
        arm=spec.arm,
        labels=spec.budget,
        rows=len(data.train),
        seed=spec.seed,
        setting={
            "lr": config.optim.lr,
            "epochs": total_steps // epoch_steps,
            "batch_size": config.loop.batch_size,
            **freeze,
        },
        epochs=tuple(Epoch(**metrics) for metrics in outcome.epochs),
        best_epoch=outcome.best_epoch,
        valid=_score(outcome.valid),
        test=_score(evaluate_single_label(logits, dataset.labels, data.labels)),
        predictions=tuple(int(label) for label in logits.argmax(axis=1)),
        probabilities=round_probabilities(softmax(logits).tolist()),
        valid_probabilities=round_probabilities(softmax(outcome.valid_logits).tolist()) if save_valid else None,
        temperature=outcome.calibrated.temperature,
        tried=tuple(tried) if len(tried) > 1 else (),
        steps=outcome.steps,
        seconds=0.0,
    )


def _score(evaluation: AnyEvaluation) -> Score:
    assert isinstance(evaluation, Evaluation)  # checked when the comparison begins
    return Score(accuracy=evaluation.accuracy, macro_f1=evaluation.macro_f1, confusion=evaluation.confusion)
