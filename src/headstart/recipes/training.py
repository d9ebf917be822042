"""Fine-tuning one classifier on encoded rows: the part that `finetune` and every cell of `compare` share.

The head is drawn from the seed before the backbone is loaded, so two arms of a comparison differ in the backbone alone.
"""

import shutil
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.config import FinetuneConfig
from headstart.data.batches import Batch, LabelledRows, shuffled
from headstart.errors import StoreError
from headstart.files import read_json, read_manifest, read_sealed, whole_folder, write_sealed
from headstart.kinds import AnyEvaluation
from headstart.model.heads import ClassifierHead, Model
from headstart.progress import Progress, Task
from headstart.recipes.classifier import class_weights
from headstart.recipes.labelled_data import LabelledData
from headstart.runtime import Halt, Runtime, Stop, cuts
from headstart.store.checkpoint import resume_from, save_checkpoint, steps
from headstart.store.rundir import RunFolder
from headstart.store.tensors import load_into, load_tensors, save_tensors
from headstart.train.average import Average, averaged
from headstart.train.calibrate import fold_affine, fold_temperature
from headstart.train.evaluate import score_texts
from headstart.train.loop import StepReport, TrainState, fit
from headstart.train.objectives import LossSum, answering
from headstart.train.optim import build_optimizer, optimizer_tensors, restore_optimizer, set_trainable
from headstart.train.pace import TRAINING_SHARE, seconds_a_step
from headstart.train.schedule import epoch_and_run
from headstart.train.settle import Settled, reliability_of, settle

_SECONDS_BETWEEN_SAVES = 20.0
"""At the end of an epoch; `loop.save_every` counts steps besides."""


@dataclass(frozen=True)
class Outcome:
    """What fine-tuning came to: the model of the best epoch by validation, and its figures."""

    model: Model[ClassifierHead]
    epochs: tuple[dict[str, Any], ...]
    best_epoch: int
    valid: AnyEvaluation
    test: AnyEvaluation | None
    valid_scores: NDArray[np.float64]
    test_scores: NDArray[np.float64] | None
    """Scores of the rows over the labels, in file order."""
    settled: Settled
    """What validation settled; the temperature stands in the head already."""


class Finetuning:
    """One fine-tuning under way, in a run folder that can be resumed."""

    def __init__(
        self,
        run: RunFolder,
        config: FinetuneConfig,
        data: LabelledData,
        model: Model[ClassifierHead],
        runtime: Runtime,
        stop: Stop,
        progress: Progress,
        *,
        quiet: bool = False,
        began: float | None = None,
    ) -> None:
        """`began` is when the clock of `loop.minutes` started, if not now."""
        self.began = time.monotonic() if began is None else began
        self.run, self.config, self.data = run, config, data
        self.runtime, self.stop, self.progress = runtime, stop, progress
        self.model = model.to(runtime.device)
        self.seed = config.runtime.seed
        context = model.backbone.config.context
        self.train, self.valid = (data.rows(part, context, config.labelled) for part in (data.train, data.valid))
        self.test = data.rows(data.test, context, config.labelled) if data.test else None
        weights = class_weights(config, data.target, data.train)
        self.target, self.affine = data.target, data.target.affine
        self.ask = answering(data.target, None if weights is None else weights.to(runtime.device))
        self.rows_a_step = config.loop.batch_size * config.loop.accumulate
        self.pass_steps = -(-len(self.train) // self.rows_a_step)
        self.epoch_steps, self.steps = epoch_and_run(len(self.train), config.loop)
        self.state = self._fresh_state()
        self.best_epoch, self.best_merit, self.best_loss = 0, -1.0, 0.0
        self.best: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        """The weights of the best epoch, of backbone and head, in memory until a checkpoint is due."""
        self.loss, self.counted, self.seconds, self.saved = 0.0, 0, 0.0, 0
        self.saved_at = time.monotonic()
        self._ordered, self._order = -1, shuffled(0, 0, 0)
        self.quiet = quiet
        if not quiet:
            self.say_truncation()

    def say_truncation(self) -> None:
        """Long texts are never cut in silence."""
        parts = [(self.data.train, self.train), (self.data.valid, self.valid), (self.data.test, self.test)]
        cut = [f"{rows.long:,} of {len(rows):,} in {part.name}" for part, rows in parts if part and rows and rows.long]
        if not cut:
            return
        verb = (
            "read in windows" if self.train.windows else "cut there (labelled.long_texts windows would read all of it)"
        )
        self.progress.say(f"texts longer than the context of {self.train.context} tokens: {', '.join(cut)}; {verb}")

    def go(self, *, resume: bool) -> Outcome:
        """Train, choose by validation, read test once. On a stop the state is saved and Halt goes on to the caller."""
        if self.config.runtime.compile:
            self.model.backbone.compile_layers()
        self.steps = self._plan()
        if resume:
            moments, state = resume_from(self.run, self.model, self._say, self._check_best, self.progress.say)
            restore_optimizer(self.state.optimizer, self.model, moments, self.state.average)
            self.state.step = self.saved = state["step"]
            if state["step"]:
                self.best_epoch, self.best_merit, self.best_loss = state["best"]
                self.loss, self.counted, self.seconds = state["loss"], state["counted"], state["seconds"]
        try:
            self._train()
            return self._conclude()
        except Halt:
            self._save()
            raise

    def _check_best(self, state: dict[str, Any]) -> None:
        """A checkpoint is worth no more than the best epoch's weights that it speaks of."""
        if state["best"][0]:
            folder = self._best_folder(state["best"][0])
            try:
                read_manifest(folder, kind="best")
            except StoreError:
                shutil.rmtree(folder, ignore_errors=True)  # out of the way of the one to be written again
                raise

    def _fresh_state(self) -> TrainState:
        config = self.config
        optimizer = build_optimizer(self.model, config.optim, config.transfer.layer_decay)
        average = Average(self.model, config.optim.average) if config.optim.average else None
        return TrainState(self.model, optimizer, self.seed, average=average)

    def _plan(self) -> int:
        """How many steps: all epochs, or as many steps as the minutes allow; written down, so that resuming keeps it."""
        wanted, path = self.steps, self.run.path / "plan.json"
        if self.config.loop.minutes is None:
            return wanted
        if not path.is_file():
            self._say("timing a few steps")
            before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            started = time.monotonic()
            self._evaluate(self.valid)
            measuring = time.monotonic() - started
            budget, state = 60 * self.config.loop.minutes, self._fresh_state()
            with closing(self._fit(state, wanted)) as reports:
                a_step = seconds_a_step(reports, budget)
            self.model.load_state_dict(before)
            left = max(0.0, TRAINING_SHARE * budget - (time.monotonic() - self.began) - measuring)
            steps = max(1, min(wanted, int(left / (measuring + self.epoch_steps * a_step) * self.epoch_steps)))
            write_sealed(path, {"steps": steps, "seconds_a_step": a_step})
        steps = int(read_sealed(path)["steps"])
        self._say(f"{steps:,} steps, {steps / self.epoch_steps:.1f} epochs, in {self.config.loop.minutes:g} minutes")
        return steps

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.progress.say(line)

    def _train(self) -> None:
        with self.progress.task("fine-tuning", self.steps * self.rows_a_step, "texts") as bar:
            bar.advance(self.state.step * self.rows_a_step)
            if self.counted and self._is_epochs_end(self.state.step):
                # the stop came while this epoch was being measured
                self._end_epoch(-(-self.state.step // self.epoch_steps))
            while self.state.step < self.steps and not self._out_of_patience():
                epoch = self.state.step // self.epoch_steps
                set_trainable(self.model, self.config.transfer, epoch)
                self._train_epoch(epoch, bar)
                self.stop.check()

    def _train_epoch(self, epoch: int, bar: Task) -> None:
        # closed at the end of the epoch, so that nothing of it is still being fetched when the next begins
        with closing(self._fit(self.state, self.steps)) as reports:
            for report in reports:
                self.loss, self.counted = self.loss + report.loss * report.scored, self.counted + report.scored
                self.seconds += report.seconds
                bar.advance(self.rows_a_step, f"epoch {epoch + 1}, loss {self.loss / self.counted:.3f}")
                if self._is_epochs_end(report.step):
                    self._end_epoch(epoch + 1)
                    return
                if report.step % self.config.loop.save_every == 0:
                    self._save()
                self.stop.check()

    def _fit(self, state: TrainState, steps: int) -> Generator[StepReport, None, None]:
        optim, cutting = self.config.optim, cuts(self.config.runtime, self.stop)
        return fit(state, self._fetch, self._objective, optim, steps, self.runtime, cutting)

    def _is_epochs_end(self, step: int) -> bool:
        return step % self.epoch_steps == 0 or step == self.steps

    def _out_of_patience(self) -> bool:
        patience = self.config.loop.patience
        done, within = divmod(self.state.step, self.epoch_steps)
        return patience is not None and within == 0 and done > 0 and done - self.best_epoch >= patience

    def _fetch(self, step: int) -> list[Batch]:
        passes, place = divmod(step, self.pass_steps)
        if passes != self._ordered:
            self._ordered, self._order = passes, shuffled(len(self.train), self.seed, passes)
        order = self._order[place * self.rows_a_step : (place + 1) * self.rows_a_step]
        size = self.config.loop.batch_size
        return [self.train.batch(order[first : first + size]) for first in range(0, len(order), size)]

    def _objective(self, batch: Batch) -> LossSum:
        return self.ask(self.model, batch)

    def _end_epoch(self, epoch: int) -> None:
        """Measure on validation, remember the best epoch, save. A stop in the middle leaves the epoch to be ended again."""
        with averaged(self.model, self.state.average):
            valid = self._evaluate(self.valid)
            watched = self._evaluate(self.test) if self.config.loop.watch_test and self.test else None
            # among equals the lower validation loss, then the earlier epoch
            better = (valid.merit, -valid.loss) > (self.best_merit, -self.best_loss)
            if better or not self.best_epoch or self.config.loop.choose == "last":
                self.best_epoch, self.best_merit, self.best_loss = epoch, valid.merit, valid.loss
                self.best = _copied(self.model.backbone), _copied(self.model.head)
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
            f"{'  best so far' if self.best_epoch == epoch and self.config.loop.choose == 'best' else ''}"
        )
        if time.monotonic() - self.saved_at > _SECONDS_BETWEEN_SAVES:  # what is quickly done again need not be saved
            self._save()

    def _evaluate(self, rows: LabelledRows) -> AnyEvaluation:
        return self._measured(rows, self._scores(rows))

    def _measured(self, rows: LabelledRows, scores: NDArray[np.float64]) -> AnyEvaluation:
        return self.target.measure(scores, rows.labels, 0 if rows.windows else rows.long)

    def _scores(self, rows: LabelledRows) -> NDArray[np.float64]:
        factor, summand = self.affine
        return score_texts(self.model, rows, self.runtime, self.stop.check) * factor + summand

    @property
    def _best_path(self) -> Path:
        return self._best_folder(self.best_epoch)

    def _best_folder(self, epoch: int) -> Path:
        return self.run.path / f"best-epoch-{epoch:04d}"

    def _save(self) -> None:
        if self.state.step == self.saved:
            return
        if self.best and not self._best_path.exists():  # before the checkpoint that speaks of it
            with whole_folder(self._best_path, kind="best") as draft:
                save_tensors(draft / "backbone.safetensors", self.best[0])
                save_tensors(draft / "head.safetensors", self.best[1])
        state = {
            "best": [self.best_epoch, self.best_merit, self.best_loss],
            "loss": self.loss,
            "counted": self.counted,
            "seconds": self.seconds,
        }
        moments = optimizer_tensors(self.state.optimizer, self.model, self.state.average)
        save_checkpoint(self.run, self.state.step, self.model, moments, state, self.config.loop.keep)
        self.saved, self.saved_at = self.state.step, time.monotonic()
        spoken_of = {self._best_folder(read_json(step / "state.json")["best"][0]) for step in steps(self.run)}
        for old in self.run.path.glob("best-epoch-*"):
            if old not in spoken_of:
                shutil.rmtree(old, ignore_errors=True)

    def _conclude(self) -> Outcome:
        if self.best is None:  # found before an interruption
            read_manifest(self._best_path, kind="best")
            parts = (load_tensors(self._best_path / f"{name}.safetensors") for name in ("backbone", "head"))
            self.best = next(parts), next(parts)
        load_into(self.model.backbone, self.best[0], str(self._best_path))
        load_into(self.model.head, self.best[1], str(self._best_path))
        fold_affine(self.model.head, *self.affine)
        self.affine = 1.0, 0.0  # it stands in the head from here on
        valid_scores, test_scores, test = self._scores(self.valid), None, None
        settled = settle(self.target, valid_scores, self.valid.labels)
        self.target = settled.target
        fold_temperature(self.model.head, settled.temperature)
        valid_scores = valid_scores / settled.temperature
        valid = self._measured(self.valid, valid_scores)
        if self.test is not None:
            test_scores = self._scores(self.test)
            test = self._measured(self.test, test_scores)
            if settled.calibration:
                sure = reliability_of(self.target, test_scores, self.test.labels)
                settled = replace(settled, calibration=replace(settled.calibration, test=sure))
            self.run.metrics.write("test", epoch=self.best_epoch, **test.figures())
        epochs = tuple({k: v for k, v in line.items() if k != "kind"} for line in self.run.metrics.read("epoch"))
        return Outcome(self.model, epochs, self.best_epoch, valid, test, valid_scores, test_scores, settled)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module, away from the device and safe from what comes next."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
