"""One network of a comparison: fine-tuned from its start, its rate chosen on validation if asked, test read once."""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.config import FinetuneConfig, ModelConfig
from headstart.files import write_json
from headstart.kinds import AnyEvaluation
from headstart.layering import layered
from headstart.progress import Progress
from headstart.recipes.arms import Source
from headstart.recipes.baselines import VALID_SHARES
from headstart.recipes.classifier import build_classifier, reading_of, shape_of
from headstart.recipes.finetune import SCRATCH
from headstart.recipes.labelled_data import LabelledData
from headstart.recipes.training import Finetuning, Outcome
from headstart.runtime import Runtime, Stop
from headstart.store.cells import Budget, Cell, Epoch, Score, kind_of, rounded
from headstart.store.rundir import RunFolder
from headstart.train.evaluate import Evaluation, evaluate_scores, score_texts
from headstart.train.schedule import epoch_and_run
from headstart.train.shares import probabilities

RATES = (1.0, 3.0)
"""With --choose, the rates that validation chooses from, as multiples of the one that is set."""
FROZEN = 10.0
"""A head alone is trained at so many times the rate: it is one small layer, and it starts from noise."""


@dataclass(frozen=True)
class NetworkRun:
    """What one cell is made from."""

    arm: str
    budget: Budget
    seed: int
    data: LabelledData
    config: FinetuneConfig
    shape: Source | None
    """The folder whose shape and reading the network has; None takes those of the settings."""
    choose: bool
    work: Path
    """Where unfinished runs live."""
    receipt: Path

    def settings(self) -> list[FinetuneConfig]:
        """One configuration for each rate that is tried, the one that was set first."""
        frozen = kind_of(self.arm) == "frozen"
        rate = self.config.optim.lr * (FROZEN if frozen else 1.0)
        own = {"transfer": {"freeze": True, "unfreeze_every": None}} if frozen else {}
        return [
            layered(
                FinetuneConfig,
                self.config.model_dump(),
                {"runtime": {"seed": self.seed}, "optim": {"lr": float(f"{rate * factor:.12g}")}, **own},
            )
            for factor in (RATES if self.choose else RATES[:1])
        ]


def run_network(job: NetworkRun, runtime: Runtime, stop: Stop, progress: Progress, *, say_truncation: bool) -> Cell:
    """Train, choose by validation, read test once. On a stop the state is saved and Halt goes on to the caller."""
    started = time.perf_counter()
    settings = job.settings()
    # where there is a choice to make, no candidate sees test
    data = job.data if len(settings) == 1 else replace(job.data, test=None)
    outcomes: list[Outcome] = []
    for place, config in enumerate(settings):
        training, resume = _training(job, config, place, data, runtime, stop, progress)
        if say_truncation and not place:
            training.say_truncation()
        outcomes.append(training.go(resume=resume))
    best = max(range(len(outcomes)), key=lambda place: _rank(outcomes[place], place))
    cell = _cell(job, settings, outcomes, best, runtime, stop)
    for place in range(len(settings)):
        shutil.rmtree(_folder(job, place), ignore_errors=True)
    return cell.model_copy(update={"seconds": time.perf_counter() - started})


def _rank(outcome: Outcome, place: int) -> tuple[float, float, int]:
    """Validation accuracy; among equals the lower loss, then the earlier setting."""
    return outcome.valid.merit, -outcome.valid.loss, -place


def _folder(job: NetworkRun, place: int) -> Path:
    return job.work if place == 0 else job.work.with_name(f"{job.work.name}-{place + 1}")


def _training(
    job: NetworkRun,
    config: FinetuneConfig,
    place: int,
    data: LabelledData,
    runtime: Runtime,
    stop: Stop,
    progress: Progress,
) -> tuple[Finetuning, bool]:
    folder = _folder(job, place)
    resume = (folder / "run.json").is_file()
    if resume:
        run = RunFolder.open(folder, kind="cell")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        run = RunFolder.create(folder, kind="cell", command="", config=config, inputs={})
    bundle = job.shape.bundle if job.shape else None
    shape: ModelConfig = shape_of(bundle, config.transfer) if bundle else config.model
    pretrained = None if kind_of(job.arm) == SCRATCH else bundle
    name = job.shape.path if job.shape else SCRATCH
    model, receipt = build_classifier(shape, data, pretrained, name, job.seed, reading_of(config, bundle))
    if receipt:
        write_json(job.receipt, receipt.as_dict())
    return Finetuning(run, config, data, model, runtime, stop, progress, quiet=True), resume


def _cell(
    job: NetworkRun, settings: list[FinetuneConfig], outcomes: list[Outcome], best: int, runtime: Runtime, stop: Stop
) -> Cell:
    config, outcome, test = settings[best], outcomes[best], job.data.test
    assert test is not None
    rows = job.data.rows(test, outcome.model.backbone.config.context, config.labelled)
    scores = outcome.test_scores
    if scores is None:
        scores = score_texts(outcome.model, rows, runtime, stop.check)
    tried = [
        {"lr": each.optim.lr, "valid_accuracy": found.valid.merit, "valid_loss": found.valid.loss}
        for each, found in zip(settings, outcomes, strict=True)
    ]
    frozen = {"freeze": True} if config.transfer.freeze else {}
    few = outcome.valid_scores.size <= VALID_SHARES
    epoch, whole = epoch_and_run(len(job.data.train), config.loop)
    return Cell(
        arm=job.arm,
        labels=job.budget,
        rows=len(job.data.train),
        seed=job.seed,
        setting={"lr": config.optim.lr, "epochs": whole // epoch, "batch_size": config.loop.batch_size, **frozen},
        epochs=tuple(Epoch(**figures) for figures in outcome.epochs),
        best_epoch=outcome.best_epoch,
        valid=_score(outcome.valid),
        test=_score(evaluate_scores(scores, rows.labels, job.data.labels)),
        predictions=tuple(int(label) for label in scores.argmax(axis=1)),
        probabilities=rounded(probabilities(scores).tolist()),
        valid_probabilities=rounded(probabilities(outcome.valid_scores).tolist()) if few else None,
        temperature=outcome.settled.temperature,
        tried=tuple(tried) if len(tried) > 1 else (),
        seconds=0.0,
    )


def _score(evaluation: AnyEvaluation) -> Score:
    assert isinstance(evaluation, Evaluation)  # a comparison is of classes, which is checked when it begins
    return Score(accuracy=evaluation.accuracy, macro_f1=evaluation.macro_f1, confusion=evaluation.confusion)
