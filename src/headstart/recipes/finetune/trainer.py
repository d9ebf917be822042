"""The trainer of classifiers, which `finetune`, `tune` and every network of `compare` use.

The head is drawn from the seed before the backbone is loaded, so that two arms of a comparison differ in the backbone
alone.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import FinetuneConfig
from headstart.data.batch import Batch, dummy_batch
from headstart.data.datasets import LabelledDataset
from headstart.data.hashing import seeded_permutation
from headstart.interrupts import StopSignal
from headstart.kernels.dispatch import divides_long_batches
from headstart.model.heads import ClassifierHead, Model
from headstart.progress import Progress, ProgressTask, pluralize
from headstart.recipes.finetune.dataset import LabelledData, class_weights
from headstart.recipes.memory import max_micro_batch_tokens
from headstart.recipes.trainer import Trainer
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
from headstart.train.ema import ema_weights
from headstart.train.objectives import LossSum, objective_for
from headstart.train.optimizers import epoch_and_total_steps, set_trainable
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.plan import TIME_FRACTION, Plan
from headstart.train.scoring import score_texts

_MIN_EPOCH_FRACTION = 0.5
"""A note is printed if `loop.minutes` limits a run to less than this fraction of its steps."""
_TIMED_ROWS = 500
"""Validation rows that are scored to estimate the time of an evaluation."""
INTERIM_FRACTION = 0.1
"""The fraction of the time of training that `finetune` spends on evaluations whose result decides nothing."""
_TRAINING_PASSES = 3.0
"""A token of training costs as much as so many tokens of an evaluation: a forward pass and twice that for gradients."""
_BF16_SPEED = 2.0
"""How many times as fast training is in bf16; evaluations are not computed in bf16."""
MIN_INTERIM_ROWS = 60
_SECONDS_BETWEEN_SAVES = 20.0
"""At the end of an epoch; `loop.save_every` counts steps besides."""


@dataclass(frozen=True)
class FinetuneOutcome:
    """The model of the best epoch by validation, and its scores."""

    model: Model[ClassifierHead]
    epochs: tuple[dict[str, Any], ...]
    """The metrics of every epoch."""
    best_epoch: int
    steps: int
    """The steps of the run as planned at its end; `loop.patience` may have ended it earlier."""
    valid: AnyEvaluation
    test: AnyEvaluation | None
    valid_logits: NDArray[np.float64]
    test_logits: NDArray[np.float64] | None
    """Logits of the rows over the labels, in file order, divided by the temperature."""
    calibrated: CalibrationResult
    """The calibration on validation; its temperature is folded into the head."""


class Deadline(NamedTuple):
    """When a run must end, and how fast its steps and evaluations were when they were timed."""

    time: float
    """By `time.monotonic`."""
    seconds_per_step: float
    seconds_per_row: float
    """The seconds to score one row."""


class BestEpoch(NamedTuple):
    """The best epoch so far by validation; epoch 0 means none."""

    epoch: int = 0
    metric: float = -1.0
    loss: float = 0.0


class EpochSums(NamedTuple):
    """The sums of the current epoch."""

    loss: float = 0.0
    num_targets: int = 0
    seconds: float = 0.0


class FinetuneTrainer(Trainer[FinetuneConfig]):
    """Trains a classifier in a run folder."""

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
        strategy: ParallelStrategy = SINGLE,
        bound_steps: int | None = None,
        deadline: Deadline | None = None,
        interim_fraction: float | None = None,
    ) -> None:
        """Build the trainer of a model on labelled data; for the other arguments see `Trainer`.

        Args:
            bound_steps: the steps of a run that must be as long as another one, independent of `loop.minutes`.
            deadline: when a run without `loop.minutes` must end; it makes fewer steps if they take longer than forecast.
            interim_fraction: the fraction of the time of training that the evaluations before the last one may take,
                if they choose nothing (`loop.select` last): they then read a part of a large validation file.
        """
        context = model.backbone.config.context
        self.data, self.task, self.affine = data, data.task, data.task.affine
        self.train_dataset, self.valid_dataset = (
            data.dataset(split, context, config.labelled) for split in (data.train, data.valid)
        )
        self.test_dataset = data.dataset(data.test, context, config.labelled) if data.test else None
        weights = class_weights(config, data.task, data.train)
        # the loss of weighted classes reads a count from the device, which a CUDA graph cannot capture
        self._can_capture = weights is None or data.task.kind != "classes"
        self._task_loss = objective_for(data.task, None if weights is None else weights.to(runtime.device))
        self.rows_per_step = config.loop.batch_size * config.loop.accumulate
        self.steps_per_pass = -(-len(self.train_dataset) // self.rows_per_step)
        self.epoch_steps, self._all_steps = epoch_and_total_steps(
            len(self.train_dataset), config.loop, self.task.outputs
        )
        self.interim_dataset = self._interim_rows(config, interim_fraction, bf16=runtime.bf16)
        self.best, self.sums = BestEpoch(), EpochSums()
        self._best_weights: ModelWeights | None = None  # in memory until a checkpoint is written
        self._saved_at = time.monotonic()
        self._ordered_pass, self._order = -1, seeded_permutation(0, 0, 0)
        self._bound_steps, self._deadline = bound_steps, deadline
        divided = strategy is SINGLE and divides_long_batches(runtime.device)
        self._max_tokens = max_micro_batch_tokens(model.backbone.config) if divided else None
        self._valid_logits: tuple[int, NDArray[np.float64]] | None = None  # of the last evaluated epoch
        options = {"compile_layers": bool(config.runtime.compile), "quiet": quiet}
        super().__init__(run, config, model, runtime, stop, progress, **options, began=began, strategy=strategy)
        if not quiet:
            self.say_truncation()

    def _interim_rows(self, config: FinetuneConfig, fraction: float | None, *, bf16: bool) -> LabelledDataset:
        """Return the validation rows that an epoch before the last one is evaluated on."""
        valid, train = self.valid_dataset, self.train_dataset
        if fraction is None or config.loop.select == "best":
            return valid
        cost = (1.0 if config.transfer.freeze else _TRAINING_PASSES) / (_BF16_SPEED if bf16 else 1.0)
        tokens = fraction * cost * self.epoch_steps * self.rows_per_step * train.num_tokens / max(1, len(train))
        order = seeded_permutation(len(valid), config.runtime.seed, 0)
        count = int(np.searchsorted(valid.tokens_read[order].cumsum(), tokens, side="right"))
        count = max(count, MIN_INTERIM_ROWS)
        return valid if count >= len(valid) else valid.subset(np.sort(order[:count]))

    def say_truncation(self) -> None:
        """Report the texts that are longer than the context."""
        splits = [
            (self.data.train, self.train_dataset),
            (self.data.valid, self.valid_dataset),
            (self.data.test, self.test_dataset),
        ]
        counts = [
            f"{dataset.num_long:,} of {len(dataset):,} in {split.name}"
            for split, dataset in splits
            if split and dataset and dataset.num_long
        ]
        if not counts:
            return
        verb = (
            "read in windows"
            if self.train_dataset.windows
            else "truncated (labelled.long_texts windows reads them completely)"
        )
        context = self.train_dataset.context
        self.progress.say(f"texts longer than the context of {context} tokens: {', '.join(counts)}; {verb}")

    def train(self, *, resume: bool) -> FinetuneOutcome:
        """Train, select by validation, score test once; on a stop, save the state and raise StopRequested."""
        self._plan_steps()
        if resume:
            self._resume(partial(check_best, self.run))
        with self._saved_on_stop():
            self._run_epochs()
            return self._finish()

    def measure_speed(self, budget: float) -> tuple[float, float]:
        """Return the seconds of a step and of scoring the validation rows; the weights are restored.

        Args:
            budget: the seconds of the training that is planned; the timing takes about a twentieth of them.
        """
        with self._discarded_steps():
            self._evaluate(self.model, self.valid_dataset)  # the first time is slower than all others
            started = time.monotonic()
            self._evaluate(self.model, self.valid_dataset)
            scoring = time.monotonic() - started
            step = self._seconds_per_step(self._new_state(), self._fetch, self.steps, budget)
        self._release_graphs()
        return step, scoring

    def _prepare_sharding(self) -> None:
        set_trainable(self.model, self.config.transfer, 0)

    def _build_graphs(self) -> GraphCache | None:
        return text_graphs(self.model, self.runtime, self.strategy, self._say) if self._can_capture else None

    def _configured_steps(self) -> int:
        return self._all_steps

    @property
    def _lr_multipliers(self) -> tuple[float, float]:
        return self.config.transfer.layer_decay, self.config.transfer.head_lr_multiplier

    def _checkpoint_extra(self) -> dict[str, Any]:
        loss, num_targets, seconds = self.sums
        return {"best": list(self.best), "loss": loss, "counted": num_targets, "seconds": seconds}

    def _restore_extra(self, values: Mapping[str, Any]) -> None:
        self.best = BestEpoch(*values["best"])
        self.sums = EpochSums(values["loss"], values["counted"], values["seconds"])

    def _plan_steps(self) -> None:
        """Plan the steps that fit into the minutes, at most those of all epochs; a resumed run keeps its recorded plan."""
        minutes = self.config.loop.minutes
        if minutes is None:
            self._follow_deadline()
            return
        recorded = self._read_plan()
        if recorded:
            self._set_plan(Plan.from_dict(recorded))
        elif self._bound_steps is not None:
            self._record_plan(Plan(self._bound_steps))
        else:
            self._time_steps(60 * minutes)
        self._say_plan(minutes)

    def _follow_deadline(self) -> None:
        """Revise the plan to meet the deadline, if there is one; a resumed run keeps its recorded plan."""
        recorded, deadline = self._read_plan(), self._deadline
        if recorded:
            self._set_plan(Plan.from_dict(recorded))
        elif deadline is not None:
            self._measuring = deadline.seconds_per_row * len(self.valid_dataset), deadline.seconds_per_step
            seconds = max(1e-3, deadline.time - self.began)  # the time may be over already
            self._begin_pace(seconds / TIME_FRACTION, deadline.seconds_per_step)

    def _say_plan(self, minutes: float) -> None:
        repeats = self.epoch_steps // self.steps_per_pass
        noun = "epoch" if repeats == 1 else "pass", "epochs" if repeats == 1 else "passes"
        passes, all_passes = (
            f"{number:,g} {noun[number != 1]}"
            for number in (round(steps / self.steps_per_pass, 1) for steps in (self.steps, self._all_steps))
        )
        few = f" over the rows (an epoch is {repeats:,} passes, because the rows are few)" if repeats > 1 else ""
        self._say(f"{pluralize(self.steps, 'step')}, {passes}{few}, in {pluralize(minutes, 'minute')}")
        if self.pace and self.steps < _MIN_EPOCH_FRACTION * self._all_steps:
            steps_seconds = self._all_steps * self.pace.seconds_per_step
            needed = self.pace.minutes_for(self._elapsed, steps_seconds + self._other_seconds(self._all_steps))
            self._say(
                f"this is a small part of the {all_passes} in the settings; about "
                f"{needed:,.{0 if needed >= 10 else 1}f} minutes would be enough for all of them"
            )

    def _time_steps(self, budget: float) -> None:
        """Time an evaluation and a few steps, whose updates are discarded, and record the steps that fit."""
        with self._discarded_steps():
            self._time_evaluation()
            seconds = self._seconds_per_step(self._new_state(), self._fetch, self._all_steps, budget)
        pace = self._begin_pace(budget, seconds)
        steps = pace.fitting_steps(0, self._elapsed, self._other_seconds, limit=self._all_steps)
        self._record_plan(Plan(self.group.broadcast(lambda: steps)))

    def _time_evaluation(self) -> None:
        """Estimate the time of an evaluation from some of the validation rows."""
        valid = self.valid_dataset
        sample = valid.subset(range(0, len(valid), -(-len(valid) // _TIMED_ROWS)))
        started = time.monotonic()
        with self.strategy.full_model(self.model) as model:
            self._logits(model, sample)
        self._note_measuring((time.monotonic() - started) * valid.num_tokens / max(1, sample.num_tokens))

    def _max_steps(self) -> int:
        return self._all_steps

    def _other_seconds(self, steps: int) -> float:
        """Add the evaluations: one at the end of each epoch, and at the end of the run validation and test."""
        epochs = -(-steps // self.epoch_steps) - self.state.step // self.epoch_steps
        test_share = len(self.test_dataset) / max(1, len(self.valid_dataset)) if self.test_dataset else 0.0
        interim_share = self.interim_dataset.num_tokens / max(1, self.valid_dataset.num_tokens)
        evaluations = max(0, epochs - 1) * interim_share + min(epochs, 1)
        evaluations += epochs * test_share if self.config.loop.watch_test else 0.0
        at_end = test_share + (0 if self._can_reuse_logits and self.config.loop.select == "last" else 1)
        return super()._other_seconds(steps) + self._measuring_seconds * (evaluations + at_end)

    def _run_epochs(self) -> None:
        with self.progress.task("fine-tuning", self.steps * self.rows_per_step, "texts") as bar:
            bar.advance(self.state.step * self.rows_per_step)
            if self.sums.num_targets and self._ends_epoch(self.state.step):
                # the run was stopped while this epoch was being evaluated
                self._end_epoch(-(-self.state.step // self.epoch_steps))
            while self.state.step < self.steps and not self._out_of_patience():
                epoch = self.state.step // self.epoch_steps
                set_trainable(self.model, self.config.transfer, epoch)
                self._run_epoch(epoch, bar)
                self.stop.check()

    def _run_epoch(self, epoch: int, bar: ProgressTask) -> None:
        # closed at the end of the epoch, so that no batch is being prefetched when the next one begins
        with closing(self._fit(self.state, self._fetch, self.plan)) as reports:
            for report in reports:
                loss, num_targets, seconds = self.sums
                self.sums = EpochSums(
                    loss + report.loss * report.num_targets, num_targets + report.num_targets, seconds + report.seconds
                )
                mean_loss = self.sums.loss / self.sums.num_targets
                bar.advance(self.rows_per_step, f"epoch {epoch + 1}, loss {mean_loss:.3f}")
                ends_epoch = self._ends_epoch(report.step)
                if ends_epoch:
                    self._end_epoch(epoch + 1)
                replanned = self._replan(report.seconds)
                if replanned:
                    bar.advance(0, total=self.steps * self.rows_per_step)
                if not ends_epoch and report.step % self.config.loop.save_every == 0:
                    self._save()
                if ends_epoch:
                    return
                self.stop.check()
                if replanned:  # the next steps follow the new plan
                    return

    def _ends_epoch(self, step: int) -> bool:
        return step % self.epoch_steps == 0 or step == self.steps

    def _out_of_patience(self) -> bool:
        patience = self.config.loop.patience
        epochs, steps_within = divmod(self.state.step, self.epoch_steps)
        return patience is not None and steps_within == 0 and epochs > 0 and epochs - self.best.epoch >= patience

    def _fetch(self, step: int) -> list[Batch]:
        pass_index, step_within = divmod(step, self.steps_per_pass)
        if pass_index != self._ordered_pass:
            order = seeded_permutation(len(self.train_dataset), self.config.runtime.seed, pass_index)
            self._ordered_pass, self._order = pass_index, order
        indices = self._order[step_within * self.rows_per_step : (step_within + 1) * self.rows_per_step]
        slices = self.strategy.portion.micro_batches(len(indices), self.config.loop.batch_size)
        if self._max_tokens is not None:
            batches = (
                self.train_dataset.micro_batches(indices[first:last], self._max_tokens) for first, last in slices
            )
            return [self.train_dataset.batch(rows) for rows in chain.from_iterable(batches)]
        return [
            self.train_dataset.batch(indices[first:last])
            if first < last
            else dummy_batch(self.train_dataset.batch(indices[:1]))
            for first, last in slices
        ]

    def _objective(self, batch: Batch) -> LossSum:
        return self._task_loss(self.model, batch)

    def _end_epoch(self, epoch: int) -> None:
        """Evaluate on validation, keep the best weights and log; a stop during this makes a resumed run repeat it."""
        with ema_weights(self.model, self.state.ema), self.strategy.full_model(self.model) as model:
            started = time.monotonic()
            dataset = self.valid_dataset if self.state.step == self.steps else self.interim_dataset
            logits = self._logits(model, dataset)
            valid = self._measure(dataset, logits)
            self._valid_logits = (epoch, logits) if dataset is self.valid_dataset else None
            seconds = time.monotonic() - started
            self._note_measuring(seconds * self.valid_dataset.num_tokens / max(1, dataset.num_tokens))
            watch_test = self.config.loop.watch_test and self.test_dataset
            test = self._evaluate(model, self.test_dataset) if watch_test and self.test_dataset else None
            # ties go to the lower validation loss, then to the earlier epoch
            better = (valid.selection_metric, -valid.loss) > (self.best.metric, -self.best.loss)
            if better or not self.best.epoch or self.config.loop.select == "last":
                self.best = BestEpoch(epoch, valid.selection_metric, valid.loss)
                self._best_weights = copy_weights(model.backbone), copy_weights(model.head)
        values: dict[str, Any] = {
            "epoch": epoch,
            "train_loss": self.sums.loss / self.sums.num_targets,
            "valid_loss": valid.loss,
            **{f"valid_{name}": value for name, value in valid.figures().items()},
            "seconds": round(self.sums.seconds, 3),
            **({} if dataset is self.valid_dataset else {"valid_rows": len(dataset)}),
        }
        if test:
            name, value = next(iter(test.figures().items()))
            values[f"test_{name}"] = value
        self.run.metrics.write("epoch", **values)
        self.sums = EpochSums()
        self._say(
            f"epoch {epoch:>2}: train loss {values['train_loss']:.3f}, validation {valid.headline}"
            f"{'  best so far' if self.best.epoch == epoch and self.config.loop.select == 'best' else ''}"
        )
        # short epochs need not all be saved: they are quickly repeated
        if self.group.any(time.monotonic() - self._saved_at > _SECONDS_BETWEEN_SAVES):
            self._save()

    def _evaluate(self, model: Model[ClassifierHead], dataset: LabelledDataset) -> AnyEvaluation:
        return self._measure(dataset, self._logits(model, dataset))

    def _measure(self, dataset: LabelledDataset, logits: NDArray[np.float64]) -> AnyEvaluation:
        return self.task.measure(logits, dataset.labels, 0 if dataset.windows else dataset.num_long)

    def _logits(self, model: Model[ClassifierHead], dataset: LabelledDataset) -> NDArray[np.float64]:
        scale, offset = self.affine
        return score_texts(model, dataset, self.runtime, self.stop.check, ranks=self.group) * scale + offset

    def _save(self) -> None:
        """Write a checkpoint with the weights of the best epoch that it refers to."""
        if self.state.step == self.saved_step:
            return
        self.group.broadcast(lambda: save_best(self.run, self.best.epoch, self._best_weights))
        super()._save()
        self._saved_at = time.monotonic()
        self.group.broadcast(lambda: remove_best(self.run))

    def _finish(self) -> FinetuneOutcome:
        """Load the best weights, calibrate on validation, fold the result into the head and score test."""
        self._release_graphs()
        model = self._load_best_weights()
        known = self._valid_logits if self._can_reuse_logits else None
        fold_affine(model.head, *self.affine)
        self.affine = 1.0, 0.0  # the head has it from here on
        is_known = known is not None and known[0] == self.best.epoch
        valid_logits = known[1] if known and is_known else self._logits(model, self.valid_dataset)
        test_logits, test = None, None
        calibrated = calibrate_task(self.task, valid_logits, self.valid_dataset.labels)
        self.task = calibrated.task
        fold_temperature(model.head, calibrated.temperature)
        valid_logits = valid_logits / calibrated.temperature
        valid = self._measure(self.valid_dataset, valid_logits)
        if self.test_dataset is not None:
            test_logits = self._logits(model, self.test_dataset)
            test = self._measure(self.test_dataset, test_logits)
            if calibrated.calibration:
                reliability = reliability_of(self.task, test_logits, self.test_dataset.labels)
                calibrated = replace(calibrated, calibration=replace(calibrated.calibration, test=reliability))
            self.run.metrics.write("test", epoch=self.best.epoch, **test.figures())
        epochs = tuple({k: v for k, v in line.items() if k != "kind"} for line in self.run.metrics.read("epoch"))
        return FinetuneOutcome(
            model, epochs, self.best.epoch, self.steps, valid, test, valid_logits, test_logits, calibrated
        )

    @property
    def _can_reuse_logits(self) -> bool:
        """True if the validation logits of an epoch are, to the bit, those of the finished model."""
        return self.affine == (1.0, 0.0)

    def _load_best_weights(self) -> Model[ClassifierHead]:
        weights = self._best_weights or load_best(self.run, self.best.epoch)  # on disk if found before an interruption
        name = str(best_folder(self.run, self.best.epoch))
        with self.strategy.full_model(self.model) as model:
            load_into(model.backbone, weights[0], name)
            load_into(model.head, weights[1], name)
        full_model: Model[ClassifierHead] = model
        return full_model
