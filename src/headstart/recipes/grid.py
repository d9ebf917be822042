"""The runs of a comparison in several processes at once: small networks leave most of a GPU, or of many cores, idle.

A run gives the same file whichever process makes it, here or on a cluster (cluster.py). Workers read the data for
themselves, learn of a stop from a pipe of their own, and end when the process that started them is gone (workers.py).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from headstart.config import FinetuneConfig
from headstart.errors import TrainingError, UsageError
from headstart.layering import layered
from headstart.recipes.workers import Worker, end_all, wait_for_any
from headstart.runtime import Stop, free_cores


@dataclass(frozen=True)
class Engine:
    """Where the runs of a grid are made: in this process, in several on this machine, or on a Ray cluster."""

    name: Literal["local", "ray"] = "local"
    jobs: int | None = None
    """Runs at the same time; None is one here, and as many as there is room for on a cluster."""
    address: str | None = None
    """Of the cluster; None starts one on this machine."""
    threads: int | None = None
    """Of one run, as the settings say."""

    @property
    def is_apart(self) -> bool:
        """Whether runs are made in processes of their own."""
        return self.name == "ray" or (self.jobs or 1) > 1

    def check(self) -> None:
        """Refuse what makes no sense, as it was typed."""
        if self.name not in get_args(Engine.__annotations__["name"]):
            raise UsageError(f"--engine must be local or ray, got {self.name!r}")
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {self.jobs}")
        if self.address is not None and self.name != "ray":
            raise UsageError("--address is that of a Ray cluster; it needs --engine ray")


def with_threads(config: FinetuneConfig, engine: Engine) -> FinetuneConfig:
    """The settings of runs that share a machine: threads for each, unless they are set."""
    if not engine.is_apart or config.runtime.threads is not None:
        return config
    # nobody knows how many cores the machines of a cluster have to spare
    threads = 1 if engine.name == "ray" else max(1, free_cores() // (engine.jobs or 1))
    return layered(FinetuneConfig, config.model_dump(), {"runtime": {"threads": threads}})


def run_grid(
    engine: Engine,
    make_worker: Callable[..., Callable[[Any, Stop], Any]],
    arguments: tuple[str, ...],
    jobs: Sequence[Any],
    folder: Path,
    stop: Stop,
    again: str,
) -> Iterator[Any]:
    """Do every job on the engine and yield the results as they come: one runner for every grid, see its engines."""
    if engine.name == "local":
        yield from run_parallel(make_worker, arguments, jobs, min(engine.jobs or 1, len(jobs)), stop, again)
        return
    from headstart.recipes.cluster import Cluster, run_on_cluster

    cluster = Cluster(address=engine.address, at_once=engine.jobs, cpus=engine.threads or 1)
    yield from run_on_cluster(make_worker, arguments, jobs, cluster, folder, stop, again)


def run_parallel(
    make_worker: Callable[..., Callable[[Any, Stop], Any]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Any],
    processes: int,
    stop: Stop,
    again: str,
    kept: str = "finished runs are kept",
) -> Iterator[Any]:
    """Do every job in one of several processes and yield the results as they come; Halt once all have stopped.

    Args:
        make_worker: called in each process with `arguments`; gives what is called with a job and a stop.
        again: the command that goes on with what is left, should a process be ended from outside.
        kept: what is not lost then.
    """
    waiting, left, workers = deque(jobs), len(jobs), list[Worker]()
    try:
        for _ in range(min(processes, left)):
            workers.append(Worker(make_worker, arguments))
            workers[-1].give(waiting.popleft())
        while left:
            wait_for_any(workers)
            for worker in workers:
                for result in worker.answers():
                    left -= 1
                    if waiting:
                        worker.give(waiting.popleft())
                    yield result
            if left and any(worker.has_died for worker in workers):
                raise TrainingError(f"a process was ended from outside (out of memory?); {kept}. Go on with: {again}")
            stop.check()
    finally:
        end_all(workers)  # whatever ended this ends the others, with their state saved
