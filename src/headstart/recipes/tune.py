"""Search for fine-tuning settings on validation data, within a time or a number of trials.

The next trial is a pure function of the finished trials. Every trial is a fine-tuning that reads train and validation, and
never test. A trial whose validation accuracy is below the median of earlier trials half-way is pruned. The search ends
with a file of settings and a command that repeats the best trial.
"""

import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal, NamedTuple, Self

from headstart.config.merge import merge_config, nest
from headstart.config.presets import preset_values
from headstart.config.schema import MAX_LR, MAX_MINUTES, MIN_LR, FinetuneConfig
from headstart.errors import ConfigError, TrainingError, UsageError
from headstart.files import MANIFEST, atomic_write, read_checksummed, sha256_of, write_checksummed, write_json
from headstart.interrupts import StopSignal
from headstart.metrics import Evaluation
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.executors import Executor, with_threads
from headstart.recipes.finetune.backbone_preset import SCRATCH
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    check_single_label,
    check_training_memory,
    class_weights,
    load_labelled_data,
    model_config_for,
    resolve_attention,
)
from headstart.recipes.finetune.run import LoadBackbone, choose_tokenizer, load_backbone, resolve_config
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.recipes.grid import Grid, GridDisplay, grid_worker, open_cell, run_grid
from headstart.recipes.memory import check_finetune_memory
from headstart.recipes.run_request import RunRequest, begin_or_resume, open_recorded
from headstart.recipes.workers import MakeWorker, RunJob
from headstart.runtime import setup_runtime
from headstart.store.bundle import Bundle
from headstart.store.records import Trial, best_trial, read_trial, read_trials, trial_path, write_trial
from headstart.store.run_folder import Metrics, RunFolder

BEST_FILE = "best.toml"
MAX_TRIALS = 1000
"""Trials of a search that is bounded by minutes alone."""
HyperparameterValue = float | int | str
SEARCH_SPACE = ("lr", "epochs", "layer_decay", "dropout", "attention")
"""The settings that may be searched, by the short names that `--search` takes."""
_RANDOM_TRIALS = 8
"""Trials before the sampler begins to learn from them."""
_FAILED_LOSS = 1e9
"""The loss of a trial that failed."""
_MIN_TRIALS_TO_PRUNE = 4
"""Earlier trials with a result half-way that pruning needs."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest(RunRequest):
    """The inputs and options of a search."""

    train: str | None = None
    """The labelled file to train on; None if the request resumes a search."""
    backbone: str | None = None
    """A pretrained folder, a starter, a model of transformers, or the word scratch; None if the request resumes."""
    valid: str | None = None
    tokenizer: Path | None = None
    minutes: float | None = None
    """No trial begins that would end later."""
    trials: int | None = None
    search: tuple[str, ...] = SEARCH_SPACE
    preset: str = "classic"
    """The preset of the settings, which best.toml is relative to."""
    executor: Executor = field(default_factory=Executor)

    def inputs(self) -> dict[str, Any]:
        """Return the values that run.json records: with the settings, all inputs of the trials."""
        return {
            "train": self.train,
            "valid": self.valid,
            "backbone": self.backbone,
            "tokenizer": str(self.tokenizer) if self.tokenizer else None,
            "minutes": self.minutes,
            "trials": self.trials,
            "search": list(self.search),
            "preset": self.preset,
        }

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        return replace(
            self,
            train=inputs["train"],
            backbone=inputs["backbone"],
            valid=inputs["valid"],
            tokenizer=Path(inputs["tokenizer"]) if inputs["tokenizer"] else None,
            minutes=inputs["minutes"],
            trials=inputs["trials"],
            search=tuple(inputs["search"]),
            preset=inputs["preset"],
        )


@dataclass(frozen=True)
class TuneResult:
    """The trials of a search, and the settings of the best one."""

    path: Path
    trials: tuple[Trial, ...]
    best: Trial
    toml: Path
    """The settings of the best trial, for `--config`."""
    command: str
    """The fine-tuning that repeats it."""


def run_tune(request: TuneRequest, config: FinetuneConfig | None, progress: Progress | None = None) -> TuneResult:
    """Run the trials that are not finished, and write the best settings."""
    progress, since = progress or SilentProgress(), time.monotonic()
    executor = request.executor
    executor.check()
    check_installed()
    # the backbone is checked before a folder is made, and used after: load it once
    load: LoadBackbone = cache(load_backbone)
    folder, plan, resolved = begin_or_resume(
        request,
        kind=TuneRun.command,
        config_class=FinetuneConfig,
        resolve=lambda: _resolve(request, config, load, progress),
    )

    def load_grid() -> TuneRun:
        deadline = _deadline(folder, plan.minutes, executor.jobs or 1)
        return TuneRun.load(folder, resolved, plan, progress, deadline, load)

    return run_grid(folder, resolved, executor, load_grid, resume=request.resume, since=since)


def _resolve(
    request: TuneRequest, config: FinetuneConfig | None, load: LoadBackbone, progress: Progress
) -> tuple[TuneRequest, FinetuneConfig]:
    """Return the request and the settings of a new search, including those that depend on the backbone and the machine."""
    if config is None or request.train is None or request.backbone is None:
        raise UsageError(
            "tune needs a labelled file, and --from with a pretrained folder, a starter or the word scratch"
        )
    _check(request, config)
    backbone = load(request.backbone)
    config = resolve_config(with_threads(config, request.executor), backbone, progress)
    search_dimensions(config, backbone, request.search)
    check_finetune_memory(config, backbone=backbone is not None)
    return request, config


def _check(request: TuneRequest, config: FinetuneConfig) -> None:
    if request.minutes is None and request.trials is None:
        raise UsageError("tune needs --minutes or --trials")
    for name, value in (("minutes", request.minutes), ("trials", request.trials)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"--{name} must be a finite number, got {value:g}")
        if value is not None and value <= 0:
            raise UsageError(f"--{name} must be above 0, got {value:g}")
    if request.minutes is not None and request.minutes > MAX_MINUTES:
        raise UsageError(f"--minutes must be at most {MAX_MINUTES:.0f}, got {request.minutes:g}")
    if config.loop.watch_test:
        raise UsageError("loop.watch_test cannot be used with tune, which does not read test data")


def check_installed() -> None:
    """Raise an error if optuna, which suggests settings, is not installed."""
    if find_spec("optuna") is None:
        raise UsageError("tune needs optuna: pip install 'headstart[tune]'")


def _deadline(folder: RunFolder, minutes: float | None, jobs: int) -> float | None:
    """Return when the minutes end, by the system clock, which processes share; the time of finished trials counts."""
    spent = sum(trial.seconds for trial in read_trials(folder.path)) / jobs
    return None if minutes is None else time.time() + 60 * minutes - spent


@dataclass(frozen=True)
class SearchDimension:
    """A setting that is searched, its configured value and its range."""

    name: str
    default: HyperparameterValue
    low: float = 0.0
    high: float = 0.0
    integer: bool = False
    log: bool = False
    choices: tuple[str, ...] = ()

    def round(self, value: Any) -> HyperparameterValue:
        """Round a suggestion to three digits within the bounds."""
        if self.choices:
            return str(value)
        if self.integer:
            return int(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def distribution(self) -> Any:
        """Return the distribution that optuna samples from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.integer:
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, log=self.log)


def search_dimensions(
    config: FinetuneConfig, backbone: Bundle | None, search: Sequence[str]
) -> tuple[SearchDimension, ...]:
    """Return the settings that are searched, without those that do not apply to this network."""
    for name in search:
        if name not in SEARCH_SPACE:
            raise ConfigError(f"--search must be among {', '.join(SEARCH_SPACE)}, got {name!r}")
    lr, epochs, decay = config.optim.lr, config.loop.epochs, config.transfer.layer_decay
    dropout = config.model.dropout
    lowest_lr, highest_lr = max(MIN_LR, float(f"{lr / 5:.3g}")), min(MAX_LR, float(f"{lr * 5:.3g}"))
    available = {
        "lr": SearchDimension("optim.lr", lr, lowest_lr, highest_lr, log=True),
        "epochs": SearchDimension("loop.epochs", epochs, max(1, epochs // 2), math.ceil(1.5 * epochs), integer=True),
        "dropout": SearchDimension(
            "transfer.dropout" if backbone else "model.dropout", dropout, min(0.0, dropout), max(0.3, dropout)
        ),
    }
    if backbone and not config.transfer.freeze:
        available["layer_decay"] = SearchDimension("transfer.layer_decay", decay, min(0.7, decay), 1.0)
    if backbone and backbone.objective == "hybrid" and config.transfer.attention == "auto":
        directions = ("bidirectional", "causal")
        available["attention"] = SearchDimension("transfer.attention", backbone.attention, choices=directions)
    dimensions = tuple(available[name] for name in search if name in available)
    if not dimensions:
        raise ConfigError(f"--search {','.join(search)} leaves nothing to search; available: {', '.join(available)}")
    return dimensions


def suggest(
    dimensions: Sequence[SearchDimension], seed: int, number: int, trials: Sequence[Trial], num_rows: int
) -> dict[str, HyperparameterValue]:
    """Suggest the settings of trial `number`: the configured ones first, then random ones, then by TPE.

    Args:
        trials: the finished trials, in any order.
        num_rows: rows of validation, which bound the resolution of accuracy.
    """
    if number == 0:
        return {dimension.name: dimension.default for dimension in dimensions}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {dimension.name: dimension.distribution() for dimension in dimensions}
    # every trial has its own seed: a resumed search needs no random state
    sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + number) % 2**32, n_startup_trials=_RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in sorted(trials, key=lambda trial: trial.trial):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.settings),
                distributions=distributions,
                value=objective_value(trial.accuracy, trial.loss, num_rows),
            )
        )
    suggested: Mapping[str, Any] = study.ask(distributions).params
    return {dimension.name: dimension.round(suggested[dimension.name]) for dimension in dimensions}


def objective_value(accuracy: float, loss: float, num_rows: int) -> float:
    """Return accuracy minus a small penalty for the loss, which is always less than one correct prediction.

    >>> objective_value(0.9, 0.5, 10) > objective_value(0.9, 0.6, 10) > objective_value(0.8, 0.1, 10)
    True
    """
    return accuracy - min(max(loss, 0.0), 10.0) / (20 * max(1, num_rows))


class _Pruned(Exception):
    """Raised at the end of an epoch to prune a trial."""


class _WatchedMetrics(Metrics):
    """Metrics that call a function at the end of each epoch."""

    def __init__(self, path: Path, on_epoch: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path)
        self._on_epoch = on_epoch

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        super().write(kind, **values)
        if kind == "epoch":
            self._on_epoch(values)


class TrialSpec(NamedTuple):
    """One trial of a search."""

    number: int


def tune_worker(path: str, deadline: str) -> RunJob:
    """Load the search in a folder and return the function that runs its trials, in another process or machine.

    Args:
        deadline: as `TuneRun` has it, or empty.
    """
    recorded = TuneRequest(out=Path(path), resume=True)
    folder, request, config = open_recorded(recorded, kind=TuneRun.command, config_class=FinetuneConfig)
    tuning = TuneRun.load(folder, config, request, SilentProgress(), float(deadline) if deadline else None)
    return grid_worker(tuning, TrialSpec)


@dataclass
class TuneRun(Grid[TrialSpec, Trial, TuneResult]):
    """The trials of one search."""

    request: TuneRequest
    backbone: Bundle | None
    data: LabelledData
    dimensions: tuple[SearchDimension, ...]
    deadline: float | None
    """When no further trial begins, by the system clock."""

    command: ClassVar[str] = "tune"

    @classmethod
    def load(
        cls,
        folder: RunFolder,
        config: FinetuneConfig,
        request: TuneRequest,
        progress: Progress,
        deadline: float | None,
        load: LoadBackbone = load_backbone,
    ) -> "TuneRun":
        """Read and check everything that the trials need."""
        runtime = setup_runtime(config.runtime)
        assert request.train is not None
        assert request.backbone is not None
        backbone = load(request.backbone)
        dimensions = search_dimensions(config, backbone, request.search)
        data = load_labelled_data(
            request.train,
            request.valid,
            None,
            config.labelled,
            tokenizer=choose_tokenizer(backbone, str(request.tokenizer) if request.tokenizer else None),
            tokenizer_config=config.tokenizer,
            seed=config.runtime.seed,
            progress=progress,
        )
        instead = "run finetune with different settings, and compare the validation scores in result.json"
        check_single_label(data, "tune", instead)
        class_weights(config, data.task, data.train)
        check_training_memory(config, data, backbone)
        return cls(
            folder=folder,
            config=config,
            progress=progress,
            runtime=runtime,
            specs=tuple(map(TrialSpec, range(request.trials or MAX_TRIALS))),
            request=request,
            backbone=backbone,
            data=data,
            dimensions=dimensions,
            deadline=deadline,
        )

    def record_path(self, spec: TrialSpec) -> Path:
        """Return the path of the file that a finished trial writes."""
        return trial_path(self.path, spec.number)

    def load_record(self, spec: TrialSpec) -> Trial:
        """Load a finished trial."""
        return read_trial(self.path, spec.number)

    def describe_record(self, record: Trial) -> str:
        """Describe a finished trial in one line."""
        values = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in record.settings.items())
        results = {
            "done": f"validation accuracy {record.accuracy:.4f}",
            "stopped": f"stopped after epoch {record.epochs}, validation accuracy {record.accuracy:.4f}",
            "failed": "its loss was not finite",
        }
        return f"trial {record.trial}: {values}: {results[record.state]}"

    def describe_position(self) -> str:
        """Say how many trials are finished."""
        return f"after {pluralize(len(read_trials(self.path)), 'trial')}"

    @contextmanager
    def display(self) -> Iterator[GridDisplay[TrialSpec, Trial]]:
        """Show a progress bar."""
        with self.progress.task("tuning", self.request.trials, "trials") as bar:
            yield GridDisplay(
                start=lambda _: None, add=lambda _, trial: bar.advance(1, f"accuracy {trial.accuracy:.4f}")
            )

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the rows and of the pretrained model."""
        models = {str(self.request.backbone): sha256_of(self.backbone.path / MANIFEST)} if self.backbone else {}
        return self.data.fingerprints() | models

    def worker(self) -> tuple[MakeWorker, tuple[str, ...]]:
        """Return the function that loads this search in another process, and its arguments."""
        return tune_worker, (str(self.path.resolve()), "" if self.deadline is None else repr(self.deadline))

    def run_one(self, spec: TrialSpec, stop: StopSignal) -> Trial | None:
        """Run one trial and save it; None if it would end after the deadline."""
        trials, work_folder = read_trials(self.path), self.work_folder / f"{spec.number:04d}"
        settings_file = work_folder / "asked.json"
        is_resumed = settings_file.is_file()
        mean_seconds = sum(trial.seconds for trial in trials) / max(1, len(trials))
        too_late = self.deadline is not None and time.time() + mean_seconds > self.deadline
        if trials and not is_resumed and too_late:
            return None
        if is_resumed:
            settings: dict[str, HyperparameterValue] = read_checksummed(settings_file)["settings"]
        else:
            shutil.rmtree(work_folder, ignore_errors=True)
            work_folder.mkdir(parents=True)
            settings = suggest(self.dimensions, self.config.runtime.seed, spec.number, trials, len(self.data.valid))
            write_checksummed(settings_file, {"settings": settings})
        trial = self._train(spec.number, settings, work_folder / "run", trials, stop)
        write_trial(self.path, trial)
        shutil.rmtree(work_folder, ignore_errors=True)
        return trial

    def finish(self) -> TuneResult:
        """Write best.toml and result.json."""
        trials, toml, request = read_trials(self.path), self.path / BEST_FILE, self.request
        best = best_trial(trials)
        preset = merge_config(FinetuneConfig, preset_values(request.preset, "finetune"))
        content = _as_toml(self.trial_config(best.settings), preset, pretrained=request.backbone != SCRATCH)
        atomic_write(toml, content.encode("utf-8"))
        inputs = request.inputs()
        words = ["headstart", "finetune", inputs["train"], "--from", inputs["backbone"]]
        for name in ("valid", "tokenizer", "preset"):
            words += [f"--{name}", inputs[name]] if inputs[name] else []
        command = shlex.join([*words, "--config", str(toml), "--out", f"{self.path}-clf"])
        result = {
            "best": best.model_dump(mode="json"),
            "trials": len(trials),
            "settings": BEST_FILE,
            "command": command,
        }
        write_json(self.path / "result.json", result)  # written last: the search is finished
        return TuneResult(self.path, tuple(trials), best, toml, command)

    def trial_config(self, settings: Mapping[str, HyperparameterValue]) -> FinetuneConfig:
        """Return the complete configuration of a trial."""
        config = merge_config(FinetuneConfig, self.config.model_dump(), nest(dict(settings)))
        if self.backbone is None:
            return config
        model_config = model_config_for(self.backbone, config.transfer)
        return merge_config(FinetuneConfig, config.model_dump(), {"model": model_config.model_dump()})

    def _train(
        self,
        number: int,
        settings: dict[str, HyperparameterValue],
        path: Path,
        trials: list[Trial],
        stop: StopSignal,
    ) -> Trial:
        start, config = time.perf_counter(), self.trial_config(settings)
        folder, resume = open_cell(path, config)
        half = _half_way_epoch(config)

        def prune(epoch: dict[str, Any]) -> None:
            if epoch["epoch"] == half and self._is_below_median(epoch, trials):
                raise _Pruned

        folder.metrics = _WatchedMetrics(folder.metrics.path, prune)
        name, attention = str(self.request.backbone), resolve_attention(config, self.backbone)
        model, _ = build_classifier(config.model, self.data, self.backbone, name, config.runtime.seed, attention)
        state: Literal["done", "stopped", "failed"] = "done"
        accuracy, loss, macro_f1 = 0.0, _FAILED_LOSS, 0.0
        try:
            trainer = FinetuneTrainer(
                folder, config, self.data, model, self.runtime, stop, SilentProgress(), quiet=True
            )
            valid = trainer.train(resume=resume).valid
            assert isinstance(valid, Evaluation)
            accuracy, loss, macro_f1 = valid.accuracy, valid.loss, valid.macro_f1
        except _Pruned:
            state, last = "stopped", folder.metrics.read("epoch")[-1]
            accuracy, loss, macro_f1 = last["valid_accuracy"], last["valid_loss"], last["valid_macro_f1"]
        except TrainingError:
            state = "failed"
        epochs = folder.metrics.read("epoch")
        return Trial(
            trial=number,
            settings=settings,
            state=state,
            accuracy=accuracy,
            loss=loss,
            macro_f1=macro_f1,
            epochs=len(epochs),
            half=next((_accuracy_and_loss(epoch) for epoch in epochs if epoch["epoch"] == half), None),
            seconds=round(time.perf_counter() - start, 3),
        )

    def _is_below_median(self, epoch: dict[str, Any], trials: list[Trial]) -> bool:
        """Return True if an epoch is below the median of earlier trials at the same fraction of their epochs."""
        num_rows = len(self.data.valid)
        values = [objective_value(*trial.half, num_rows) for trial in trials if trial.half is not None]
        if len(values) < _MIN_TRIALS_TO_PRUNE:
            return False
        return objective_value(*_accuracy_and_loss(epoch), num_rows) < median(values)


def _half_way_epoch(config: FinetuneConfig) -> int:
    """Return the epoch at half of the run, or 0 if there is only one epoch."""
    return (config.loop.epochs + 1) // 2 if config.loop.epochs > 1 else 0


def _accuracy_and_loss(epoch: dict[str, Any]) -> tuple[float, float]:
    return epoch["valid_accuracy"], epoch["valid_loss"]


def _as_toml(config: FinetuneConfig, preset: FinetuneConfig, *, pretrained: bool) -> str:
    """Write the settings that differ from the preset, by section; a pretrained network has its own shape and tokenizer."""
    lines = []
    preset_sections = preset.model_dump()
    for section, fields in config.model_dump().items():
        if pretrained and section in ("model", "tokenizer"):
            continue
        defaults = preset_sections[section]
        changed = {name: value for name, value in fields.items() if value != defaults[name] and value is not None}
        if changed:
            lines += [f"[{section}]", *(f"{name} = {_toml_value(value)}" for name, value in changed.items()), ""]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
