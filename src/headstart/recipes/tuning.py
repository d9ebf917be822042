"""One search for settings under way: its trials, and how each is made, here or in a process of its own.

Every trial is a fine-tuning that reads train and validation; test has no place here. A trial that half-way is behind the
median of those before it is given up.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from headstart.config import FinetuneConfig
from headstart.errors import Interrupted, TrainingError
from headstart.evaluations import Evaluation
from headstart.files import MANIFEST, read_sealed, sha256_of, write_json, write_sealed
from headstart.layering import layered, nested
from headstart.progress import Progress, Quiet, counted
from headstart.recipes.classifier import build_classifier, class_weights, reading_of, shape_of
from headstart.recipes.finetune import choose_tokenizer, load_source
from headstart.recipes.grid import Engine, run_grid
from headstart.recipes.labelled_data import LabelledData, check_one_class, load_data
from headstart.recipes.space import Knob, knobs_of, suggest, worth
from headstart.recipes.training import Finetuning
from headstart.runtime import Halt, Runtime, Stop, environment, start
from headstart.store.rundir import Metrics, RunFolder
from headstart.store.trials import Trial, read_trial, read_trials, trial_path, write_trial

MOST = 1000
"""Trials of a search that is bounded by minutes alone."""
_ENDLESS = 1e9
"""The loss of a trial that came to nothing."""
_ENOUGH = 4
"""Trials that must be known half-way before another is measured against them."""


class _Behind(Exception):
    """Raised at the end of an epoch to give a trial up."""


class _Watched(Metrics):
    """Metrics that are looked at when an epoch ends."""

    def __init__(self, path: Path, look: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path)
        self._look = look

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        super().write(kind, **values)
        if kind == "epoch":
            self._look(values)


def worker(path: str, until: str) -> Callable[[tuple[int], Stop], int | None]:
    """What a process of its own, here or on another machine, does with the trials it is given; their files say the rest."""
    run = RunFolder.open(Path(path), kind="tune")
    inputs = run.facts["inputs"] | {"until": float(until) if until else None}
    tuning = Tuning(run, layered(FinetuneConfig, run.settings), inputs, Quiet())
    tuning.read()

    def make(job: tuple[int], stop: Stop) -> int | None:
        trial = tuning.make(job[0], stop)
        return None if trial is None else trial.trial

    return make


@dataclass
class Tuning:
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
        self.run.same_inputs(self.data.fingerprints() | models)

    def read(self) -> None:
        """Read and check everything."""
        self.runtime: Runtime = start(self.config.runtime)
        self.source = load_source(self.inputs["source"])
        self.knobs: tuple[Knob, ...] = knobs_of(self.config, self.source, self.inputs["search"])
        tokenizer = choose_tokenizer(self.source, self.inputs["tokenizer"])
        self.data: LabelledData = load_data(
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
        check_one_class(self.data, "tune", instead)
        class_weights(self.config, self.data.target, self.data.train)

    def go(self, stop: Stop, engine: Engine) -> list[Trial]:
        """Run the trials that are not there yet."""
        path, wanted = self.run.path, self.inputs["trials"] or MOST
        there = read_trials(path)
        left = [number for number in range(wanted) if not trial_path(path, number).is_file()]
        with self.progress.task("tuning", self.inputs["trials"], "trials") as bar:
            bar.advance(len(there))
            try:
                for trial in self._done(left, engine, stop):
                    bar.advance(1, f"accuracy {trial.accuracy:.4f}")
                    self.progress.say(words(trial))
            except Halt:
                raise Interrupted(
                    f"{stop.why} after {counted(len(read_trials(path)), 'trial')}; saved. Go on with: {self._again}",
                    stop.reason or "",
                ) from None
        shutil.rmtree(path / "work", ignore_errors=True)
        return read_trials(path)

    @property
    def _again(self) -> str:
        return f"headstart tune --resume --out {self.run.path}"

    def _done(self, left: list[int], engine: Engine, stop: Stop) -> Iterator[Trial]:
        """The trials that are left, as they are finished; each is on disk when it comes."""
        if engine.is_apart and left:
            folder, until = self.run.path, self.inputs["until"]
            arguments = str(folder.resolve()), "" if until is None else repr(until)
            jobs = [(number,) for number in left]
            for number in run_grid(engine, worker, arguments, jobs, folder, stop, self._again):
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

    def make(self, number: int, stop: Stop) -> Trial | None:
        """Run one trial and write it down; None where the time that is left would not do."""
        trials, folder = read_trials(self.run.path), self.run.path / "work" / f"{number:04d}"
        begun, until = (folder / "asked.json").is_file(), self.inputs["until"]
        usual = sum(trial.seconds for trial in trials) / max(1, len(trials))
        if trials and not begun and until is not None and time.time() + usual > until:
            return None
        if begun:
            settings: dict[str, Any] = read_sealed(folder / "asked.json")["settings"]
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            settings = dict(suggest(self.knobs, self.config.runtime.seed, number, trials, len(self.data.valid)))
            write_sealed(folder / "asked.json", {"settings": settings})
        trial = self._run(number, settings, folder / "run", trials, stop)
        write_trial(self.run.path, trial)
        shutil.rmtree(folder, ignore_errors=True)
        return trial

    def settled(self, settings: dict[str, Any]) -> FinetuneConfig:
        """The whole configuration of a trial."""
        config = layered(FinetuneConfig, self.config.model_dump(), nested(settings))
        if self.source is None:
            return config
        shape = shape_of(self.source, config.transfer)
        return layered(FinetuneConfig, config.model_dump(), {"model": shape.model_dump()})

    def _run(self, number: int, settings: dict[str, Any], folder: Path, trials: list[Trial], stop: Stop) -> Trial:
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
                raise _Behind

        run.metrics = _Watched(run.metrics.path, look)
        name, reading = self.inputs["source"], reading_of(config, self.source)
        model, _ = build_classifier(config.model, self.data, self.source, name, config.runtime.seed, reading)
        state: Literal["done", "stopped", "failed"] = "done"
        figures = 0.0, _ENDLESS, 0.0
        try:
            training = Finetuning(run, config, self.data, model, self.runtime, stop, Quiet(), quiet=True)
            valid = training.go(resume=resume).valid
            assert isinstance(valid, Evaluation)
            figures = valid.accuracy, valid.loss, valid.macro_f1
        except _Behind:
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
            half=next((_pair(epoch) for epoch in epochs if epoch["epoch"] == half), None),
            seconds=round(time.perf_counter() - started, 3),
        )

    def _is_behind(self, epoch: dict[str, Any], trials: list[Trial]) -> bool:
        """Whether it is below the median of those before it at the same share of their way."""
        rows = len(self.data.valid)
        others = [worth(*trial.half, rows) for trial in trials if trial.half is not None]
        return len(others) >= _ENOUGH and worth(*_pair(epoch), rows) < median(others)


def _half(config: FinetuneConfig) -> int:
    """The epoch that is half-way; 0, which none is, where there is no other before the last."""
    return (config.loop.epochs + 1) // 2 if config.loop.epochs > 1 else 0


def _pair(epoch: dict[str, Any]) -> tuple[float, float]:
    return epoch["valid_accuracy"], epoch["valid_loss"]


def words(trial: Trial) -> str:
    """One line for a person."""
    set_to = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in trial.settings.items())
    ends = {
        "done": f"validation accuracy {trial.accuracy:.4f}",
        "stopped": f"given up after epoch {trial.epochs}, validation accuracy {trial.accuracy:.4f}",
        "failed": "its loss was not finite",
    }
    return f"trial {trial.trial}: {set_to}: {ends[trial.state]}"
