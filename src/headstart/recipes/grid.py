"""A grid of runs: a comparison or a search for settings.

Each run writes one record when it is finished, so a grid that was killed continues with the runs that have no record, and
never repeats a finished one. Unfinished runs are kept in `work/`, and continue from their last checkpoint.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from headstart.config.schema import FinetuneConfig
from headstart.errors import Interrupted
from headstart.files import write_json
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.progress import Progress
from headstart.recipes.executors import Executor
from headstart.recipes.workers import MakeWorker, RunJob
from headstart.runtime import Runtime, environment
from headstart.store.run_folder import RunFolder

Spec = TypeVar("Spec", bound=tuple[Any, ...])
"""Identifies one run of a grid: a named tuple of plain values, which other processes receive."""
Record = TypeVar("Record")
"""The result of one run, as its file holds it."""
Result = TypeVar("Result")
"""The return value of the recipe."""


@dataclass(frozen=True)
class GridDisplay(Generic[Spec, Record]):
    """Callbacks that show the progress of a grid."""

    start: Callable[[Spec], None]
    """Called when a run begins in this process."""
    add: Callable[[Spec, Record], None]
    """Called when a run is finished, and for those that were finished before."""


@dataclass
class Grid(ABC, Generic[Spec, Record, Result]):
    """The runs of one folder and their common inputs; subclasses define a run."""

    folder: RunFolder
    config: FinetuneConfig
    progress: Progress
    runtime: Runtime
    specs: Sequence[Spec]
    """Every run of the grid, finished or not, in the order in which they begin."""

    command: ClassVar[str]
    """The command that runs the grid, which is also the kind of its folder."""

    @property
    def path(self) -> Path:
        """The folder of the grid."""
        return self.folder.path

    @property
    def work_folder(self) -> Path:
        """The folder of unfinished runs."""
        return self.path / "work"

    @property
    def resume_command(self) -> str:
        """The command that continues the grid."""
        return f"headstart {self.command} --resume --out {self.path}"

    @abstractmethod
    def record_path(self, spec: Spec) -> Path:
        """Return the path of the file that a finished run writes."""

    @abstractmethod
    def load_record(self, spec: Spec) -> Record:
        """Load the record of a finished run."""

    @abstractmethod
    def run_one(self, spec: Spec, stop: StopSignal) -> Record | None:
        """Execute one run and save its record; returns None if no further run should begin."""

    @abstractmethod
    def describe_record(self, record: Record) -> str:
        """Describe a finished run in one line."""

    @abstractmethod
    def describe_position(self) -> str:
        """Describe the progress of an interrupted grid."""

    @abstractmethod
    def display(self) -> AbstractContextManager[GridDisplay[Spec, Record]]:
        """Show the progress of the grid."""

    @abstractmethod
    def fingerprints(self) -> dict[str, Any]:
        """Return the hashes of the inputs of the grid, by their names in messages."""

    @abstractmethod
    def worker(self) -> tuple[MakeWorker, tuple[str, ...]]:
        """Return the module-level function that loads this grid in another process, and its arguments."""

    @abstractmethod
    def finish(self) -> Result:
        """Write the results of all runs and return them."""

    def phases(self, specs: list[Spec]) -> list[list[Spec]]:
        """Return the runs in groups; a group begins after the previous one is finished. By default, there is one group."""
        return [specs]

    def prepare(self) -> None:
        """Record the inputs before the first run begins; a resumed grid must have the same inputs."""
        write_json(self.path / "environment.json", environment(self.runtime))
        self.folder.check_inputs_unchanged(self.fingerprints())

    def run(self, executor: Executor, stop: StopSignal) -> None:
        """Execute the runs that have no record yet."""
        # records are loaded now, so that a damaged one is named before any run begins
        finished = {spec: self.load_record(spec) for spec in self.specs if self.record_path(spec).is_file()}
        remaining = [spec for spec in self.specs if spec not in finished]
        with self.display() as display:
            for spec, record in finished.items():
                display.add(spec, record)
            try:
                for spec, record in self._run_all(remaining, executor, stop, display.start):
                    display.add(spec, record)
                    self.progress.say(self.describe_record(record))
            except StopRequested:
                raise Interrupted(
                    f"{stop.why} {self.describe_position()}; saved. Continue with: {self.resume_command}",
                    stop.reason or "",
                ) from None
        shutil.rmtree(self.work_folder, ignore_errors=True)

    def _run_all(
        self, specs: list[Spec], executor: Executor, stop: StopSignal, start: Callable[[Spec], None]
    ) -> Iterator[tuple[Spec, Record]]:
        """Execute these runs and yield each one after its record was written."""
        if executor.is_multiprocess and specs:
            make_worker, arguments = self.worker()
            for phase in filter(None, self.phases(specs)):
                by_values: dict[tuple[Any, ...], Spec] = {tuple(spec): spec for spec in phase}
                jobs = list(by_values)
                for values in executor.map(make_worker, arguments, jobs, self.path, stop, self.resume_command):
                    if values is not None:
                        spec = by_values[tuple(values)]
                        yield spec, self.load_record(spec)
                stop.check()
            return
        for spec in specs:
            stop.check()
            start(spec)
            record = self.run_one(spec, stop)
            if record is None:
                return
            yield spec, record


def grid_worker(grid: Grid[Spec, Record, Result], spec_class: Callable[..., Spec]) -> RunJob:
    """Return the function that does the runs of a grid in another process; it returns the values of the spec, or None."""

    def run_job(job: tuple[Any, ...], stop: StopSignal) -> tuple[Any, ...] | None:
        record = grid.run_one(spec_class(*job), stop)
        return None if record is None else tuple(job)

    return run_job


def run_grid(
    folder: RunFolder,
    config: FinetuneConfig,
    executor: Executor,
    load: Callable[[], Grid[Spec, Record, Result]],
    *,
    resume: bool,
    since: float,
) -> Result:
    """Load a grid, do its remaining runs and finish it.

    Args:
        load: reads and checks everything; if it fails, a new folder is removed again.
        since: when the command began, for its time limit.
    """
    with folder.locked():
        with folder.remove_on_error(new=not resume):
            grid = load()
            grid.prepare()
        with handle_signals(config.runtime.time_limit, since) as stop:
            grid.run(replace(executor, threads=config.runtime.threads), stop)
            return grid.finish()


def open_cell(path: Path, config: FinetuneConfig) -> tuple[RunFolder, bool]:
    """Open or create the folder in which one run of a grid trains; the second value says whether the run resumes."""
    if (path / "run.json").is_file():
        return RunFolder.open(path, kind="cell"), True
    shutil.rmtree(path, ignore_errors=True)
    return RunFolder.create(path, kind="cell", command="", config=config, inputs={}), False
