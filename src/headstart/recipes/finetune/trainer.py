"""Fine-tuning one classifier on encoded rows: the part that `finetune` and every cell of `compare` share.

The head is drawn from the seed before the backbone is loaded, so two arms of a comparison differ in the backbone alone.
"""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import FinetuneConfig
from headstart.data.batch import Batch, dummy_batch
from headstart.data.datasets import LabelledDataset
from headstart.data.hashing import seeded_permutation
from headstart.files import read_checksummed
from headstart.interrupts import StopRequested, StopSignal, step_context
from headstart.model.heads import ClassifierHead, Model
from headstart.progress import Progress, ProgressTask, pluralize
from headstart.recipes.finetune.dataset import LabelledData, class_weights
from headstart.recipes.trainer import resume_state, save_state
from headstart.runtime import Runtime
from headstart.store.checkpoint import (
    ModelWeights,
    best_folder,
    check_best,
    copy_weights,
    load_best,
    remove_best,
    save_best,
)
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_into
from headstart.tasks import AnyEvaluation
from headstart.train.calibration import CalibrationResult, calibrate_task, fold_affine, fold_temperature, reliability_of
from headstart.train.cuda_graphs import GraphCache, text_graphs
from headstart.train.ema import EMA, ema_weights
from headstart.train.loop import TRAINING_FRACTION, StepReport, TrainState, fit, seconds_per_step
from headstart.train.objectives import LossSum, objective_for
from headstart.train.optimizers import build_optimizer, epoch_and_total_steps, set_trainable
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.scoring import score_texts

_MIN_VALID_ROWS = 0.5
"""The share of its epochs below which a run that the minutes cut short is told so."""
_SECONDS_BETWEEN_SAVES = 20.0
"""At the end of an epoch; `loop.save_every` counts steps besides."""


@dataclass(frozen=True)
class FinetuneOutcome:
    """What fine-tuning came to: the model of the best epoch by validation, and its figures."""

    model: Model[ClassifierHead]
    epochs: tuple[dict[str, Any], ...]
    best_epoch: int
    valid: AnyEvaluation
    test: AnyEvaluation | None
    valid_scores: NDArray[np.float64]
    test_scores: NDArray[np.float64] | None
    """Scores of the rows over the labels, in file order."""
    settled: CalibrationResult
    """What validation settled; the temperature stands in the head already."""


class FinetuneTrainer:
    """One fine-tuning under way, in a run folder that can be resumed."""

    def __init__(
        self,
        run: RunFolder,
        config: FinetuneConfig,
        data: LabelledData,
        model: Model[ClassifierHead],
        runtime: Runtime,
        stop: StopSignal,
        progress: Progress,
        *,
        quiet: bool = False,
        began: float | None = None,
        way: ParallelStrategy = SINGLE,
    ) -> None:
        """`began` is when the clock of `loop.minutes` started, if not now."""
        self.began = time.monotonic() if began is None else began
        self.run, self.config, self.data, self.way = run, config, data, way
        self.runtime, self.stop, self.progress = runtime, stop, progress
        self.model = model.to(runtime.device)
        self.model.backbone.recompute = config.runtime.recompute
        self.seed = config.runtime.seed
        context = model.backbone.config.context
        self.train, self.valid = (data.rows(part, context, config.labelled) for part in (data.train, data.valid))
        self.test = data.rows(data.test, context, config.labelled) if data.test else None
        weights = class_weights(config, data.task, data.train)
        self.task, self.affine = data.task, data.task.affine
        # what weighted classes count is asked of the device in the middle of a pass, which cannot be recorded
        self._recordable = weights is None or data.task.kind != "classes"
        self._graphs: GraphCache | None = None
        self.ask = objective_for(data.task, None if weights is None else weights.to(runtime.device))
        self.rows_per_step = config.loop.batch_size * config.loop.accumulate
        self.pass_steps = -(-len(self.train) // self.rows_per_step)
        self.epoch_steps, self.steps = epoch_and_total_steps(len(self.train), config.loop)
        if not way.sharded:
            self.state = self._fresh_state()
        self.best_epoch, self.best_metric, self.best_loss = 0, -1.0, 0.0
        self.best: ModelWeights | None = None
        """The weights of the best epoch, in memory until a checkpoint is due."""
        self.loss, self.counted, self.seconds, self.saved = 0.0, 0, 0.0, 0
        self.saved_at = time.monotonic()
        self._ordered, self._order = -1, seeded_permutation(0, 0, 0)
        self.quiet = quiet
        if not quiet:
            self.say_truncation()

    def say_truncation(self) -> None:
        """Long texts are never cut in silence."""
        parts = [(self.data.train, self.train), (self.data.valid, self.valid), (self.data.test, self.test)]
        cut = [
            f"{rows.num_long:,} of {len(rows):,} in {part.name}"
            for part, rows in parts
            if part and rows and rows.num_long
        ]
        if not cut:
            return
        verb = (
            "read in windows" if self.train.windows else "cut there (labelled.long_texts windows would read all of it)"
        )
        self.progress.say(f"texts longer than the context of {self.train.context} tokens: {', '.join(cut)}; {verb}")

    def go(self, *, resume: bool) -> FinetuneOutcome:
        """Train, choose by validation, read test once. On a stop the state is saved and Halt goes on to the caller."""
        if self.config.runtime.compile:
            self.model.backbone.compile_layers()
        if self._recordable:
            self._graphs = text_graphs(self.model, self.runtime, self.way, self._say)
        if self.way.sharded:
            set_trainable(self.model, self.config.transfer, 0)
            self.way.shard(self.model, self.runtime)
            self.state = self._fresh_state()
        self.steps = self._plan()
        if resume:
            state = resume_state(self.run, self.state, self._say, partial(check_best, self.run), self.progress.say)
            self.saved = state["step"]
            if state["step"]:
                self.best_epoch, self.best_metric, self.best_loss = state["best"]
                self.loss, self.counted, self.seconds = state["loss"], state["counted"], state["seconds"]
        try:
            self._train()
            return self._conclude()
        except StopRequested:
            self._save()
            raise

    def _fresh_state(self) -> TrainState:
        config = self.config
        optimizer = build_optimizer(self.model, config.optim, config.transfer.layer_decay)
        ema = EMA(self.model, config.optim.ema_decay) if config.optim.ema_decay else None
        return TrainState(self.model, optimizer, self.seed, ema=ema, strategy=self.way)

    def _plan(self) -> int:
        """How many steps: all epochs, or as many steps as the minutes allow; written down, so that resuming keeps it."""
        wanted, path = self.steps, self.run.path / "plan.json"
        if self.config.loop.minutes is None:
            return wanted
        ranks = self.way.ranks
        if not ranks.broadcast(path.is_file):
            self._say("timing a few steps")
            before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            started = time.monotonic()
            with self.way.full_model(self.model) as model:
                self._evaluate(model, self.valid)
            measuring = time.monotonic() - started
            budget, state = 60 * self.config.loop.minutes, self._fresh_state()
            with closing(self._fit(state, wanted)) as reports:
                a_step = seconds_per_step(reports, budget, ranks, compiled=self.model.backbone.compiled)
            self.model.load_state_dict(before)
            left = max(0.0, TRAINING_FRACTION * budget - (time.monotonic() - self.began) - measuring)
            steps = max(1, min(wanted, int(left / (measuring + self.epoch_steps * a_step) * self.epoch_steps)))
            self.run.write_json(path.name, {"steps": steps, "seconds_a_step": a_step}, checksummed=True)
        steps = ranks.broadcast(lambda: int(read_checksummed(path)["steps"]))
        minutes, epochs, all_epochs = self.config.loop.minutes, steps / self.epoch_steps, wanted / self.epoch_steps
        self._say(f"{pluralize(steps, 'step')}, {epochs:.1f} epochs, in {pluralize(minutes, 'minute')}")
        if epochs < _MIN_VALID_ROWS * all_epochs:
            needed = f"about {minutes / epochs * all_epochs:.2g} minutes would allow all"
            self._say(f"that is little of the {pluralize(round(all_epochs, 2), 'epoch')} it should learn for; {needed}")
        return steps

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.progress.say(line)

    def _train(self) -> None:
        with self.progress.task("fine-tuning", self.steps * self.rows_per_step, "texts") as bar:
            bar.advance(self.state.step * self.rows_per_step)
            if self.counted and self._is_epochs_end(self.state.step):
                # the stop came while this epoch was being measured
                self._end_epoch(-(-self.state.step // self.epoch_steps))
            while self.state.step < self.steps and not self._out_of_patience():
                epoch = self.state.step // self.epoch_steps
                set_trainable(self.model, self.config.transfer, epoch)
                self._train_epoch(epoch, bar)
                self.stop.check()

    def _train_epoch(self, epoch: int, bar: ProgressTask) -> None:
        # closed at the end of the epoch, so that nothing of it is still being fetched when the next begins
        with closing(self._fit(self.state, self.steps)) as reports:
            for report in reports:
                self.loss, self.counted = (
                    self.loss + report.loss * report.num_targets,
                    self.counted + report.num_targets,
                )
                self.seconds += report.seconds
                bar.advance(self.rows_per_step, f"epoch {epoch + 1}, loss {self.loss / self.counted:.3f}")
                if self._is_epochs_end(report.step):
                    self._end_epoch(epoch + 1)
                    return
                if report.step % self.config.loop.save_every == 0:
                    self._save()
                self.stop.check()

    def _fit(self, state: TrainState, steps: int) -> Generator[StepReport, None, None]:
        optim, interruptible = self.config.optim, step_context(self.stop, compiled=self.model.backbone.compiled)
        return fit(state, self._fetch, self._objective, optim, steps, self.runtime, interruptible, self._graphs)

    def _is_epochs_end(self, step: int) -> bool:
        return step % self.epoch_steps == 0 or step == self.steps

    def _out_of_patience(self) -> bool:
        patience = self.config.loop.patience
        done, within = divmod(self.state.step, self.epoch_steps)
        return patience is not None and within == 0 and done > 0 and done - self.best_epoch >= patience

    def _fetch(self, step: int) -> list[Batch]:
        passes, place = divmod(step, self.pass_steps)
        if passes != self._ordered:
            self._ordered, self._order = passes, seeded_permutation(len(self.train), self.seed, passes)
        order = self._order[place * self.rows_per_step : (place + 1) * self.rows_per_step]
        pieces = self.way.portion.micro_batches(len(order), self.config.loop.batch_size)
        return [
            self.train.batch(order[first:last]) if first < last else dummy_batch(self.train.batch(order[:1]))
            for first, last in pieces
        ]

    def _objective(self, batch: Batch) -> LossSum:
        return self.ask(self.model, batch)

    def _end_epoch(self, epoch: int) -> None:
        """Measure on validation, remember the best epoch, save. A stop in the middle leaves the epoch to be ended again."""
        with ema_weights(self.model, self.state.ema), self.way.full_model(self.model) as model:
            valid = self._evaluate(model, self.valid)
            watched = self._evaluate(model, self.test) if self.config.loop.watch_test and self.test else None
            # among equals the lower validation loss, then the earlier epoch
            better = (valid.selection_metric, -valid.loss) > (self.best_metric, -self.best_loss)
            if better or not self.best_epoch or self.config.loop.select == "last":
                self.best_epoch, self.best_metric, self.best_loss = epoch, valid.selection_metric, valid.loss
                self.best = copy_weights(model.backbone), copy_weights(model.head)
        figures: dict[str, Any] = {
            "epoch": epoch,
            "train_loss": self.loss / self.counted,
            "valid_loss": valid.loss,
            **{f"valid_{name}": value for name, value in valid.figures().items()},
            "seconds": round(self.seconds, 3),
        }
        if watched:
            name = next(iter(watched.figures()))
            figures[f"test_{name}"] = watched.figures()[name]
        self.run.metrics.write("epoch", **figures)
        self.loss, self.counted, self.seconds = 0.0, 0, 0.0
        self._say(
            f"epoch {epoch:>2}: train loss {figures['train_loss']:.3f}, validation {valid.headline}"
            f"{'  best so far' if self.best_epoch == epoch and self.config.loop.select == 'best' else ''}"
        )
        # what is quickly done again need not be saved
        if self.way.ranks.any(time.monotonic() - self.saved_at > _SECONDS_BETWEEN_SAVES):
            self._save()

    def _evaluate(self, model: Model[ClassifierHead], rows: LabelledDataset) -> AnyEvaluation:
        return self._measured(rows, self._scores(model, rows))

    def _measured(self, rows: LabelledDataset, scores: NDArray[np.float64]) -> AnyEvaluation:
        return self.task.measure(scores, rows.labels, 0 if rows.windows else rows.num_long)

    def _scores(self, model: Model[ClassifierHead], rows: LabelledDataset) -> NDArray[np.float64]:
        factor, summand = self.affine
        return score_texts(model, rows, self.runtime, self.stop.check, ranks=self.way.ranks) * factor + summand

    def _save(self) -> None:
        if self.state.step == self.saved:
            return
        self.way.ranks.broadcast(
            lambda: save_best(self.run, self.best_epoch, self.best)
        )  # before the checkpoint that speaks of it
        state = {
            "best": [self.best_epoch, self.best_metric, self.best_loss],
            "loss": self.loss,
            "counted": self.counted,
            "seconds": self.seconds,
        }
        save_state(self.run, self.state, state, self.config.loop.keep)
        self.saved, self.saved_at = self.state.step, time.monotonic()
        self.way.ranks.broadcast(lambda: remove_best(self.run))

    def _conclude(self) -> FinetuneOutcome:
        if self._graphs:
            self._graphs.reset()  # the model is handed on without gradients, and test may need the memory
        if self.best is None:  # found before an interruption
            self.best = load_best(self.run, self.best_epoch)
        name = str(best_folder(self.run, self.best_epoch))
        with self.way.full_model(self.model) as model:
            load_into(model.backbone, self.best[0], name)
            load_into(model.head, self.best[1], name)
        fold_affine(model.head, *self.affine)
        self.affine = 1.0, 0.0  # it stands in the head from here on
        valid_scores, test_scores, test = self._scores(model, self.valid), None, None
        settled = calibrate_task(self.task, valid_scores, self.valid.labels)
        self.task = settled.task
        fold_temperature(model.head, settled.temperature)
        valid_scores = valid_scores / settled.temperature
        valid = self._measured(self.valid, valid_scores)
        if self.test is not None:
            test_scores = self._scores(model, self.test)
            test = self._measured(self.test, test_scores)
            if settled.calibration:
                sure = reliability_of(self.task, test_scores, self.test.labels)
                settled = replace(settled, calibration=replace(settled.calibration, test=sure))
            self.run.metrics.write("test", epoch=self.best_epoch, **test.figures())
        epochs = tuple({k: v for k, v in line.items() if k != "kind"} for line in self.run.metrics.read("epoch"))
        return FinetuneOutcome(model, epochs, self.best_epoch, valid, test, valid_scores, test_scores, settled)
