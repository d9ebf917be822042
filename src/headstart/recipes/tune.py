"""Hyperparameter search: space, trials and the run.

What a search for settings may turn, between which bounds, and what to try next: a pure function of the trials so far.

One search for settings under way: its trials, and how each is made, here or in a process of its own.

Every trial is a fine-tuning that reads train and validation; test has no place here. A trial that half-way is behind the
median of those before it is given up.

A search for settings within a time or a number of trials, on validation alone; ends with a file and a command.
"""

import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

from headstart.config.merge import Settings, merge_config, nest, refuse_model_settings, resolve_settings
from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig
from headstart.errors import ConfigError, Interrupted, TrainingError, UsageError
from headstart.files import MANIFEST, atomic_write, read_checksummed, sha256_of, write_checksummed, write_json
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.metrics import Evaluation
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.executors import Executor, run_grid, with_threads
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    check_single_label,
    class_weights,
    load_labelled_data,
    model_config_for,
    resolve_attention,
)
from headstart.recipes.finetune.run import choose_tokenizer, default_preset, load_source, resolve_config
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.runtime import Runtime, environment, setup_runtime
from headstart.store.bundle import Bundle
from headstart.store.records import Trial, best_trial, read_trial, read_trials, trial_path, write_trial
from headstart.store.run_folder import Metrics, RunFolder

HyperparameterValue = float | int | str
SEARCH_SPACE = ("lr", "epochs", "layer_decay", "dropout", "reading")
"""What may be searched, by the short names that `--search` takes."""
_RANDOM_TRIALS = 8
"""Trials before the sampler begins to learn from them."""


@dataclass(frozen=True)
class SearchDimension:
    """A setting, where it stands, and what it may be turned to."""

    name: str
    now: HyperparameterValue
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    logarithmic: bool = False
    choices: tuple[str, ...] = ()

    def settle(self, value: Any) -> HyperparameterValue:
        """A suggestion as it is written down: three digits, within the bounds."""
        if self.choices:
            return str(value)
        if self.whole:
            return int(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)


def search_dimensions(
    config: FinetuneConfig, source: Bundle | None, search: Sequence[str]
) -> tuple[SearchDimension, ...]:
    """The settings that are searched; those that have no meaning for this network are left out."""
    for name in search:
        if name not in SEARCH_SPACE:
            raise ConfigError(f"--search knows {', '.join(SEARCH_SPACE)}, got {name!r}")
    lr, epochs, decay = config.optim.lr, config.loop.epochs, config.transfer.layer_decay
    dropout = config.model.dropout
    found = {
        "lr": SearchDimension("optim.lr", lr, float(f"{lr / 5:.3g}"), float(f"{lr * 5:.3g}"), logarithmic=True),
        "epochs": SearchDimension("loop.epochs", epochs, max(1, epochs // 2), math.ceil(1.5 * epochs), whole=True),
        "dropout": SearchDimension(
            "transfer.dropout" if source else "model.dropout", dropout, min(0.0, dropout), max(0.3, dropout)
        ),
    }
    if source and not config.transfer.freeze:
        found["layer_decay"] = SearchDimension("transfer.layer_decay", decay, min(0.7, decay), 1.0)
    if source and source.objective == "hybrid" and config.transfer.attention == "auto":
        found["reading"] = SearchDimension("transfer.attention", source.attention, choices=("bidirectional", "causal"))
    knobs = tuple(found[name] for name in search if name in found)
    if not knobs:
        raise ConfigError(f"--search {','.join(search)} leaves nothing to search; what can be: {', '.join(found)}")
    return knobs


def check_installed() -> None:
    """One line where the library that suggests is not there."""
    if find_spec("optuna") is None:
        raise UsageError("tune needs optuna: pip install 'headstart[tune]'")


def suggest(
    knobs: Sequence[SearchDimension], seed: int, number: int, trials: Sequence[Trial], rows: int
) -> dict[str, HyperparameterValue]:
    """The settings of trial `number`: as they stand in the first, then by chance, then by TPE from those before it.

    Args:
        trials: those that are known, whatever their order.
        rows: of validation, which say how far accuracy can be told apart.
    """
    if number == 0:
        return {knob.name: knob.now for knob in knobs}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {knob.name: _distribution(knob) for knob in knobs}
    # a stream of its own for every trial: a search that goes on needs no random state
    sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + number) % 2**32, n_startup_trials=_RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in sorted(trials, key=lambda trial: trial.trial):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.settings),
                distributions=space,
                value=objective_value(trial.accuracy, trial.loss, rows),
            )
        )
    asked: Mapping[str, Any] = study.ask(space).params
    return {knob.name: knob.settle(asked[knob.name]) for knob in knobs}


def _distribution(knob: SearchDimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if knob.choices:
        return CategoricalDistribution(knob.choices)
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high))
    return FloatDistribution(knob.low, knob.high, log=knob.logarithmic)


def objective_value(accuracy: float, loss: float, rows: int) -> float:
    """One number to climb: accuracy, and the loss among equals; it never weighs as much as one answer.

    >>> objective_value(0.9, 0.5, 10) > objective_value(0.9, 0.6, 10) > objective_value(0.8, 0.1, 10)
    True
    """
    return accuracy - min(max(loss, 0.0), 10.0) / (20 * max(1, rows))


MAX_TRIALS = 1000
"""Trials of a search that is bounded by minutes alone."""
_NO_LIMIT = 1e9
"""The loss of a trial that came to nothing."""
_MIN_TRIALS = 4
"""Trials that must be known half-way before another is measured against them."""


class _Pruned(Exception):
    """Raised at the end of an epoch to give a trial up."""


class _WatchedMetrics(Metrics):
    """Metrics that are looked at when an epoch ends."""

    def __init__(self, path: Path, look: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path)
        self._look = look

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        super().write(kind, **values)
        if kind == "epoch":
            self._look(values)


def tune_worker(path: str, until: str) -> Callable[[tuple[int], StopSignal], int | None]:
    """What a process of its own, here or on another machine, does with the trials it is given; their files say the rest."""
    run = RunFolder.open(Path(path), kind="tune")
    inputs = run.facts["inputs"] | {"until": float(until) if until else None}
    tuning = TuneRun(run, merge_config(FinetuneConfig, run.settings), inputs, SilentProgress())
    tuning.read()

    def make(job: tuple[int], stop: StopSignal) -> int | None:
        trial = tuning.make(job[0], stop)
        return None if trial is None else trial.trial

    return make


@dataclass
class TuneRun:
    """One search under way."""

    run: RunFolder
    config: FinetuneConfig
    inputs: dict[str, Any]
    """As they were given; `until` is when no further trial is begun, by the clock on the wall."""
    progress: Progress

    def prepare(self) -> None:
        """Read and check everything before the first trial."""
        self.read()
        write_json(self.run.path / "environment.json", environment(self.runtime))
        models = {self.inputs["source"]: sha256_of(self.source.path / MANIFEST)} if self.source else {}
        self.run.check_inputs_unchanged(self.data.fingerprints() | models)

    def read(self) -> None:
        """Read and check everything."""
        self.runtime: Runtime = setup_runtime(self.config.runtime)
        self.source = load_source(self.inputs["source"])
        self.knobs: tuple[SearchDimension, ...] = search_dimensions(self.config, self.source, self.inputs["search"])
        tokenizer = choose_tokenizer(self.source, self.inputs["tokenizer"])
        self.data: LabelledData = load_labelled_data(
            self.inputs["train"],
            self.inputs["valid"],
            None,
            self.config.labelled,
            tokenizer=tokenizer,
            tokenizer_config=self.config.tokenizer,
            seed=self.config.runtime.seed,
            progress=self.progress,
        )
        instead = "run finetune with other settings, and compare what its result.json says of validation"
        check_single_label(self.data, "tune", instead)
        class_weights(self.config, self.data.task, self.data.train)

    def go(self, stop: StopSignal, engine: Executor) -> list[Trial]:
        """Run the trials that are not there yet."""
        path, wanted = self.run.path, self.inputs["trials"] or MAX_TRIALS
        there = read_trials(path)
        left = [number for number in range(wanted) if not trial_path(path, number).is_file()]
        with self.progress.task("tuning", self.inputs["trials"], "trials") as bar:
            bar.advance(len(there))
            try:
                for trial in self._done(left, engine, stop):
                    bar.advance(1, f"accuracy {trial.accuracy:.4f}")
                    self.progress.say(describe_trial(trial))
            except StopRequested:
                raise Interrupted(
                    f"{stop.why} after {pluralize(len(read_trials(path)), 'trial')}; saved. Go on with: {self._again}",
                    stop.reason or "",
                ) from None
        shutil.rmtree(path / "work", ignore_errors=True)
        return read_trials(path)

    @property
    def _again(self) -> str:
        return f"headstart tune --resume --out {self.run.path}"

    def _done(self, left: list[int], engine: Executor, stop: StopSignal) -> Iterator[Trial]:
        """The trials that are left, as they are finished; each is on disk when it comes."""
        if engine.is_apart and left:
            folder, until = self.run.path, self.inputs["until"]
            arguments = str(folder.resolve()), "" if until is None else repr(until)
            jobs = [(number,) for number in left]
            for number in run_grid(engine, tune_worker, arguments, jobs, folder, stop, self._again):
                if number is not None:
                    yield read_trial(folder, number)
            stop.check()
            return
        for number in left:
            stop.check()
            trial = self.make(number, stop)
            if trial is None:
                return
            yield trial

    def make(self, number: int, stop: StopSignal) -> Trial | None:
        """Run one trial and write it down; None where the time that is left would not do."""
        trials, folder = read_trials(self.run.path), self.run.path / "work" / f"{number:04d}"
        begun, until = (folder / "asked.json").is_file(), self.inputs["until"]
        usual = sum(trial.seconds for trial in trials) / max(1, len(trials))
        if trials and not begun and until is not None and time.time() + usual > until:
            return None
        if begun:
            settings: dict[str, Any] = read_checksummed(folder / "asked.json")["settings"]
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            settings = dict(suggest(self.knobs, self.config.runtime.seed, number, trials, len(self.data.valid)))
            write_checksummed(folder / "asked.json", {"settings": settings})
        trial = self._run(number, settings, folder / "run", trials, stop)
        write_trial(self.run.path, trial)
        shutil.rmtree(folder, ignore_errors=True)
        return trial

    def settled(self, settings: dict[str, Any]) -> FinetuneConfig:
        """The whole configuration of a trial."""
        config = merge_config(FinetuneConfig, self.config.model_dump(), nest(settings))
        if self.source is None:
            return config
        shape = model_config_for(self.source, config.transfer)
        return merge_config(FinetuneConfig, config.model_dump(), {"model": shape.model_dump()})

    def _run(self, number: int, settings: dict[str, Any], folder: Path, trials: list[Trial], stop: StopSignal) -> Trial:
        started, config = time.perf_counter(), self.settled(settings)
        resume = (folder / "run.json").is_file()
        if resume:
            run = RunFolder.open(folder, kind="cell")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            run = RunFolder.create(folder, kind="cell", command="", config=config, inputs={})
        half = _half(config)

        def look(epoch: dict[str, Any]) -> None:
            if epoch["epoch"] == half and self._is_behind(epoch, trials):
                raise _Pruned

        run.metrics = _WatchedMetrics(run.metrics.path, look)
        name, attention = self.inputs["source"], resolve_attention(config, self.source)
        model, _ = build_classifier(config.model, self.data, self.source, name, config.runtime.seed, attention)
        state: Literal["done", "stopped", "failed"] = "done"
        figures = 0.0, _NO_LIMIT, 0.0
        try:
            training = FinetuneTrainer(run, config, self.data, model, self.runtime, stop, SilentProgress(), quiet=True)
            valid = training.go(resume=resume).valid
            assert isinstance(valid, Evaluation)
            figures = valid.accuracy, valid.loss, valid.macro_f1
        except _Pruned:
            state, last = "stopped", run.metrics.read("epoch")[-1]
            figures = last["valid_accuracy"], last["valid_loss"], last["valid_macro_f1"]
        except TrainingError:
            state = "failed"
        epochs = run.metrics.read("epoch")
        return Trial(
            trial=number,
            settings=settings,
            state=state,
            accuracy=figures[0],
            loss=figures[1],
            macro_f1=figures[2],
            epochs=len(epochs),
            half=next((_score_pair(epoch) for epoch in epochs if epoch["epoch"] == half), None),
            seconds=round(time.perf_counter() - started, 3),
        )

    def _is_behind(self, epoch: dict[str, Any], trials: list[Trial]) -> bool:
        """Whether it is below the median of those before it at the same share of their way."""
        rows = len(self.data.valid)
        others = [objective_value(*trial.half, rows) for trial in trials if trial.half is not None]
        return len(others) >= _MIN_TRIALS and objective_value(*_score_pair(epoch), rows) < median(others)


def _half(config: FinetuneConfig) -> int:
    """The epoch that is half-way; 0, which none is, where there is no other before the last."""
    return (config.loop.epochs + 1) // 2 if config.loop.epochs > 1 else 0


def _score_pair(epoch: dict[str, Any]) -> tuple[float, float]:
    return epoch["valid_accuracy"], epoch["valid_loss"]


def describe_trial(trial: Trial) -> str:
    """One line for a person."""
    set_to = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in trial.settings.items())
    ends = {
        "done": f"validation accuracy {trial.accuracy:.4f}",
        "stopped": f"given up after epoch {trial.epochs}, validation accuracy {trial.accuracy:.4f}",
        "failed": "its loss was not finite",
    }
    return f"trial {trial.trial}: {set_to}: {ends[trial.state]}"


BEST_FILE = "best.toml"


@dataclass(frozen=True)
class TuneResult:
    """What a search came to."""

    path: Path
    trials: tuple[Trial, ...]
    best: Trial
    toml: Path
    """The settings of the best trial, for `--config`."""
    command: str
    """The fine-tuning that repeats it."""


def tune(
    train: str | Path,
    *,
    out: str | Path,
    source: str | Path,
    valid: str | Path | None = None,
    tokenizer: str | Path | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    search: Sequence[str] = SEARCH_SPACE,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Search for the settings of a fine-tuning that validation likes best.

    Args:
        source: a pretrained folder, hf: and a model of transformers, or "scratch".
        minutes: no trial is begun that would end later; beside `trials`, whichever comes first.
        search: what may be turned: lr, epochs, layer_decay, dropout, reading.
        jobs: trials at the same time, in processes of their own; a script must then guard its main part.
        engine: "ray" makes the trials on the Ray cluster at `address`, or on one that is started here.
    """
    refuse_model_settings(source, settings)
    preset = preset or default_preset(str(source))
    return run_tune(
        str(train),
        Path(out),
        None if resume else resolve_settings(FinetuneConfig, preset, "finetune", settings),
        source=str(source),
        valid=None if valid is None else str(valid),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        minutes=minutes,
        trials=trials,
        search=search,
        jobs=jobs,
        engine=engine,
        address=address,
        preset=preset,
        resume=resume,
        progress=progress,
    )


def run_tune(
    train: str | None,
    out: Path,
    config: FinetuneConfig | None,
    *,
    source: str | None = None,
    valid: str | None = None,
    tokenizer: Path | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    search: Sequence[str] = SEARCH_SPACE,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    preset: str = "classic",
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> TuneResult:
    """Run the trials; with `resume`, those that are left of the search in `out`."""
    progress, since = progress or SilentProgress(), time.monotonic()
    grid = Executor(cast(Literal["local", "ray"], engine), jobs, address)
    grid.check()
    check_installed()
    if resume:
        run = RunFolder.open(out, kind="tune")
        config, inputs = merge_config(FinetuneConfig, run.settings), run.facts["inputs"]
    else:
        if config is None or train is None or source is None:
            raise UsageError("tune needs a labelled file, and --from with a pretrained folder or the word scratch")
        inputs = {"train": train, "valid": valid, "source": source, "tokenizer": str(tokenizer) if tokenizer else None}
        inputs |= {"minutes": minutes, "trials": trials, "search": list(search), "preset": preset}
        run, config = _started(out, config, inputs, grid, command)
    with run.locked():
        tuning = TuneRun(run, config, dict(inputs), progress)
        tuning.inputs["until"] = _until(run, inputs["minutes"], jobs or 1)
        with run.remove_on_error(new=not resume):
            tuning.prepare()
        with handle_signals(config.runtime.time_limit, since) as stop:
            found = tuning.go(stop, replace(grid, threads=config.runtime.threads))
            return _finish(run, tuning, found)


def _started(
    out: Path, config: FinetuneConfig, inputs: dict[str, Any], engine: Executor, command: str
) -> tuple[RunFolder, FinetuneConfig]:
    """The folder of a new search, and the settings that its trials begin from."""
    if inputs["minutes"] is None and inputs["trials"] is None:
        raise UsageError("tune needs --minutes or --trials: how long to search")
    for name in ("minutes", "trials"):
        if inputs[name] is not None and inputs[name] <= 0:
            raise UsageError(f"--{name} must be above 0, got {inputs[name]:g}")
    if config.loop.watch_test:
        raise UsageError("loop.watch_test looks at test, which a search for settings may not see")
    bundle = load_source(inputs["source"])  # a wrong folder is found out before anything is written
    config = with_threads(config, engine)
    config = resolve_config(config, bundle)
    search_dimensions(config, bundle, inputs["search"])
    return RunFolder.create(out, kind="tune", command=command, config=config, inputs=inputs), config


def _until(run: RunFolder, minutes: float | None, jobs: int) -> float | None:
    """When the minutes end, by the clock on the wall, which processes share; what went before an interruption counts."""
    from headstart.store.records import read_trials

    spent = sum(trial.seconds for trial in read_trials(run.path)) / jobs
    return None if minutes is None else time.time() + 60 * minutes - spent


def _finish(run: RunFolder, tuning: TuneRun, trials: list[Trial]) -> TuneResult:
    best, toml, inputs = best_trial(trials), run.path / BEST_FILE, tuning.inputs
    used = tuning.settled(dict(best.settings))
    usual = merge_config(FinetuneConfig, preset_values(inputs["preset"], "finetune"))
    atomic_write(toml, _as_toml(used, usual, brought=inputs["source"] != "scratch").encode("utf-8"))
    words = ["headstart", "finetune", inputs["train"], "--from", inputs["source"]]
    for name in ("valid", "tokenizer", "preset"):
        words += [f"--{name}", inputs[name]] if inputs[name] else []
    command = shlex.join([*words, "--config", str(toml), "--out", f"{run.path}-clf"])
    result = {"best": best.model_dump(mode="json"), "trials": len(trials), "settings": BEST_FILE, "command": command}
    write_json(run.path / "result.json", result)  # written last: the search is finished
    return TuneResult(run.path, tuple(trials), best, toml, command)


def _as_toml(used: FinetuneConfig, usual: FinetuneConfig, *, brought: bool) -> str:
    """What differs from the preset, by section; a pretrained network brings its own shape and tokenizer."""
    lines = []
    before = usual.model_dump()
    for section, fields in used.model_dump().items():
        if brought and section in ("model", "tokenizer"):
            continue
        other = {name: value for name, value in fields.items() if value != before[section][name] and value is not None}
        if other:
            lines += [f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in other.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
