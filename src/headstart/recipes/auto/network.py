"""The network of `headstart auto`: timed first, then trained once per fold, then once more on all rows.

Each training is a run folder in work/, which resumes from its checkpoint; its result is kept by `parts`.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.data.hashing import seeded_permutation
from headstart.data.labelled import LabelledTexts, label_subset
from headstart.files import write_json
from headstart.interrupts import StopSignal
from headstart.progress import Progress, ProgressTask, RunBoard, RunKey, pluralize
from headstart.recipes.auto.parts import (
    FoldResult,
    read_fold,
    read_fold_count,
    read_network,
    use_fold_network,
    write_fold,
    write_fold_count,
    write_network,
)
from headstart.recipes.auto.schedule import NetworkPlan, Speed
from headstart.recipes.auto.table import Table, stratified_folds
from headstart.recipes.finetune.dataset import (
    EncodedSplit,
    LabelledData,
    build_classifier,
    encode_split,
    model_config_for,
    resolve_attention,
)
from headstart.recipes.finetune.trainer import INTERIM_FRACTION, Deadline, FinetuneOutcome, FinetuneTrainer
from headstart.recipes.grid import open_cell
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.store.transfer import TransferReceipt
from headstart.train.calibration import fold_temperature
from headstart.train.scoring import score_texts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TRIAL_ROWS, TRIAL_SCORED_ROWS = 512, 48
_LONGER = 1.1
"""A training on all rows takes longer than that of a fold, and another fold may take longer than the last."""
_SHOWN_ROWS = 32
"""Training rows that are scored in place of validation rows in the final training; too few to fit a temperature."""


@dataclass(frozen=True)
class Network:
    """What every training of the network has in common."""

    folder: Path
    config: FinetuneConfig
    table: Table
    backbone: Bundle
    name: str
    """The backbone as messages and receipts name it."""
    runtime: Runtime
    stop: StopSignal
    progress: Progress

    @property
    def rows_per_step(self) -> int:
        """Rows per optimizer step."""
        return self.config.loop.batch_size * self.config.loop.accumulate

    def choose_rows(self, count: int) -> Ints:
        """Return the training rows that the network uses: all, or a stratified part of them."""
        train = self.table.train
        if count >= len(train):
            return np.arange(len(train))
        return np.array(label_subset(list(train.labels), count, self.config.runtime.seed, train.digests))

    def measure_speed(self, seconds: float) -> Speed:
        """Time some steps and the scoring of some rows, and forget what they changed.

        Args:
            seconds: the time of all trainings; the timing takes about a twentieth of it.
        """
        rows = self.choose_rows(min(TRIAL_ROWS, len(self.table.train)))
        split = self.encode(self.table.train.take(rows))
        order = seeded_permutation(len(split), self.config.runtime.seed, 0)  # tables may be sorted by length
        valid = split.take(np.sort(order[:TRIAL_SCORED_ROWS]).tolist())
        folder = self.folder / "work" / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        loop = self.config.loop.model_copy(update={"select": "last", "patience": None, "minutes": None})
        trainer, _, _ = self._trainer(folder, self.config.model_copy(update={"loop": loop}), split, valid)
        step, scoring = trainer.measure_speed(seconds)
        shutil.rmtree(folder, ignore_errors=True)
        return Speed(step, scoring / len(valid))

    def encode(self, texts: LabelledTexts) -> EncodedSplit:
        """Encode labelled texts with the tokenizer of the backbone."""
        return encode_split(texts, self.table.task, self.backbone.tokenizer, self.progress)

    def logits(self, bundle: Bundle, texts: LabelledTexts) -> Floats:
        """Return the logits of a trained network."""
        split = self.encode(texts)
        data = self._data(split, split)
        dataset = data.dataset(split, bundle.config.context, self.config.labelled)
        bundle.model.to(self.runtime.device)
        return score_texts(bundle.model, dataset, self.runtime, self.stop.check)

    def _data(self, train: EncodedSplit, valid: EncodedSplit) -> LabelledData:
        return LabelledData(self.table.task, self.backbone.tokenizer, train, valid, None, ())

    def _trainer(
        self,
        folder: Path,
        config: FinetuneConfig,
        train: EncodedSplit,
        valid: EncodedSplit,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[FinetuneTrainer, bool, TransferReceipt | None]:
        data = self._data(train, valid)
        run, resume = open_cell(folder, config)
        model, receipt = build_classifier(
            model_config_for(self.backbone, config.transfer),
            data,
            self.backbone,
            self.name,
            config.runtime.seed,
            resolve_attention(config, self.backbone),
        )
        trainer = FinetuneTrainer(
            run,
            config,
            data,
            model,
            self.runtime,
            self.stop,
            progress or self.progress,
            quiet=True,
            deadline=deadline,
            interim_fraction=INTERIM_FRACTION,
        )
        return trainer, resume, receipt

    def train(
        self,
        name: str,
        plan: NetworkPlan,
        train: EncodedSplit,
        valid: EncodedSplit,
        progress: Progress,
        deadline: Deadline | None,
    ) -> FinetuneOutcome:
        """Train in work/NAME, or continue there; if steps become slower, fewer are made, so that the deadline is met."""
        config = merge_config(
            FinetuneConfig, self.config.model_dump(), {"loop": plan.loop(self.config.loop).model_dump()}
        )
        folder = self.folder / "work" / name
        trainer, resume, receipt = self._trainer(folder, config, train, valid, progress, deadline)
        if receipt:
            write_json(self.folder / "receipt.json", receipt.as_dict())
        return trainer.train(resume=resume)


@dataclass(frozen=True)
class CrossValidation:
    """The out-of-fold logits of a network, and the network itself."""

    rows: Ints
    """The training rows that were held out, in order."""
    logits: Floats
    """Their logits, not calibrated."""
    epochs: tuple[dict[str, Any], ...]
    """The metrics of every epoch, averaged over the folds."""
    network: Bundle
    seconds: float
    folds: int = 1
    """The number of folds that were trained; 1 is a single hold-out."""


def cross_validate(network: Network, plan: NetworkPlan, deadline: Deadline | None) -> CrossValidation:
    """Train the folds of a plan and the final network, or go on where an interrupted run ended.

    Args:
        deadline: when the trainings must be done; what would end later is left out, and a training that has become slow
            makes fewer steps. None for a resumed run, which keeps its plan.
    """
    rows = network.choose_rows(plan.rows)
    texts = network.table.train.take(rows)
    split = network.encode(texts)
    fold_of = _folds(texts, plan, network.config.runtime.seed)
    fold_steps, all_steps = plan.training_steps(network.config.loop)
    total = (plan.folds * fold_steps + plan.refit * all_steps) * network.rows_per_step
    with network.progress.task("training the network", total, "texts") as bar:
        trainings = _Trainings(network, plan, split, fold_of, deadline, TotalBar(bar, total))
        # the network that is used comes second, so that a slow machine costs folds only
        results = trainings.folds(first=0, last=1)
        bundle = trainings.final_network(results)
        results += trainings.folds(first=1, last=read_fold_count(network.folder) or plan.folds, finished=results)
    logits = np.zeros((len(rows), len(network.table.task.labels)))
    for fold, result in enumerate(results):
        logits[fold_of == fold] = result.logits
    covered = np.flatnonzero((fold_of >= 0) & (fold_of < len(results)))
    seconds = sum(result.seconds for result in results)
    return CrossValidation(rows[covered], logits[covered], _mean_epochs(results), bundle, seconds, len(results))


def _folds(texts: LabelledTexts, plan: NetworkPlan, seed: int) -> Ints:
    """Return the fold of each row; with a single hold-out, rows of fold -1 are never held out."""
    if plan.folds > 1:
        return stratified_folds(texts, plan.folds, seed)
    parts = max(2, -(-len(texts) // plan.held_out))
    return np.where(stratified_folds(texts, parts, seed) == 0, 0, -1)


@dataclass(frozen=True)
class _Trainings:
    """The folds and the final training of one network."""

    network: Network
    plan: NetworkPlan
    split: EncodedSplit
    fold_of: Ints
    deadline: Deadline | None
    bar: "TotalBar"

    def folds(self, first: int, last: int, finished: Sequence[FoldResult] = ()) -> list[FoldResult]:
        """Train these folds, or read what they left; further folds end early where the time is short."""
        results: list[FoldResult] = []
        step_rows = self.plan.training_steps(self.network.config.loop)[0] * self.network.rows_per_step
        for fold in range(first, last):
            result = read_fold(self.network.folder, fold)
            if result is not None:
                self.bar.advance(step_rows)
            elif finished and self._too_late([*finished, *results]):
                done = len(finished) + len(results)
                self.network.progress.say(f"not enough time: {pluralize(done, 'fold')} instead of {self.plan.folds}")
                write_fold_count(self.network.folder, done)
                break
            else:
                self.network.stop.check()
                result = self._run_fold(fold)
            results.append(result)
        return results

    def final_network(self, finished: Sequence[FoldResult]) -> Bundle:
        """Return the network that is used: trained on all rows, or the first fold's where the time does not allow that."""
        network = self.network
        if read_network(network.folder) is None:
            network.stop.check()
            if not self.plan.refit or self._too_late(finished):
                which = "first fold" if self.plan.folds > 1 else "hold-out"
                network.progress.say(
                    f"the network of the {which} is used: there is not enough time to train on all rows"
                )
                use_fold_network(network.folder)
            else:
                shown = self.split.take(range(min(_SHOWN_ROWS, len(self.split))))
                outcome = self._train("all-rows", self.split, shown)
                _keep_network(network, outcome, of_fold=False)
                shutil.rmtree(network.folder / "work" / "all-rows", ignore_errors=True)
        elif self.plan.refit:
            self.bar.advance(self.plan.training_steps(network.config.loop)[1] * network.rows_per_step)
        bundle = read_network(network.folder)
        assert bundle is not None
        return bundle

    def _too_late(self, finished: Sequence[FoldResult]) -> bool:
        """Return True if one more training would end after the deadline."""
        slowest = max(result.seconds for result in finished)
        return self.deadline is not None and time.monotonic() + _LONGER * slowest > self.deadline.time

    def _train(self, name: str, train: EncodedSplit, valid: EncodedSplit) -> FinetuneOutcome:
        progress = TotalProgress(self.network.progress, self.bar)
        return self.network.train(name, self.plan, train, valid, progress, self.deadline)

    def _run_fold(self, fold: int) -> FoldResult:
        network, plan, start = self.network, self.plan, time.perf_counter()
        train, valid = (
            self.split.take(np.flatnonzero(mask).tolist()) for mask in (self.fold_of != fold, self.fold_of == fold)
        )
        outcome = self._train(f"fold-{fold}", train, valid)
        # the trainer divides by a temperature that it fits on these very rows: undone, since one for all folds follows
        logits = outcome.valid_logits * outcome.calibrated.temperature
        result = FoldResult(logits, outcome.epochs, time.perf_counter() - start)
        if fold == 0:
            _keep_network(network, outcome, of_fold=True)
        write_fold(network.folder, fold, result)
        shutil.rmtree(network.folder / "work" / f"fold-{fold}", ignore_errors=True)
        which = f"fold {fold + 1} of {plan.folds}" if plan.folds > 1 else "hold-out"
        accuracy = 100 * outcome.valid.selection_metric
        network.progress.say(f"network, {which}: accuracy {accuracy:.1f} % on {len(valid):,} held-out rows")
        return result


def _keep_network(network: Network, outcome: FinetuneOutcome, *, of_fold: bool) -> None:
    fold_temperature(outcome.model.head, 1 / outcome.calibrated.temperature)
    windows = network.config.labelled.long_texts == "windows"
    bundle = Bundle(
        outcome.model,
        network.backbone.tokenizer,
        network.table.task,
        windows=windows,
        attention=outcome.model.head.attention,
    )
    write_network(network.folder, bundle, of_fold=of_fold)


def _mean_epochs(results: Sequence[FoldResult]) -> tuple[dict[str, Any], ...]:
    """Average the metrics of each epoch over the folds that have it; seconds are summed.

    The evaluated rows are summed as well where a fold evaluated a part of its held-out rows.
    """
    epochs = []
    for index in range(max(len(result.epochs) for result in results)):
        trained = [(result.epochs[index], len(result.logits)) for result in results if index < len(result.epochs)]
        lines = [line for line, _ in trained]
        means = {name: float(np.mean([line[name] for line in lines])) for name in lines[0] if name != "valid_rows"}
        rows = sum(line.get("valid_rows", held_out) for line, held_out in trained)
        part = {"valid_rows": rows} if any("valid_rows" in line for line in lines) else {}
        epochs.append(means | part | {"epoch": index + 1, "seconds": sum(line["seconds"] for line in lines)})
    return tuple(epochs)


class TotalBar:
    """The bar of all trainings together. A training whose own total changes moves the total of the bar by as much."""

    def __init__(self, bar: ProgressTask, total: float) -> None:
        self._bar, self._total, self._part = bar, total, 0.0

    def begin_part(self, total: float) -> None:
        """Begin a training of so many units."""
        self._part = total

    def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
        """Report progress of the current training.

        Args:
            total: the units of this training, if that number has changed.
        """
        if total is not None:
            self._total, self._part = self._total + total - self._part, total
        self._bar.advance(amount, note, None if total is None else self._total)


class TotalProgress:
    """A progress whose tasks advance one bar, so that its time left is that of all trainings."""

    def __init__(self, progress: Progress, bar: TotalBar) -> None:
        self._progress, self._bar = progress, bar

    def say(self, line: str) -> None:
        """Show one line."""
        self._progress.say(line)

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:  # noqa: ARG002
        """Advance the bar of all trainings."""
        self._bar.begin_part(total or 0.0)
        yield self._bar

    @contextmanager
    def board(self, title: str, planned: Mapping[RunKey, int]) -> Iterator[RunBoard]:
        """Show a table of runs."""
        with self._progress.board(title, planned) as board:
            yield board


def calibrated_network(bundle: Bundle, temperature: float, about: dict[str, Any]) -> Bundle:
    """Return the network with its logits divided by a temperature."""
    fold_temperature(bundle.model.head, temperature)
    return replace(bundle, about=about, folder=None)
