"""The runs of a comparison in several processes at once: small networks leave most of a GPU, or of many cores, idle.

A run gives the same file whichever process makes it, here or on a cluster (cluster.py). Workers read the data for
themselves, learn of a stop from an event, and end when the process that started them is gone.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, get_args

from headstart.config import FinetuneConfig
from headstart.errors import TrainingError, UsageError
from headstart.layering import layered
from headstart.runtime import Halt, Stop, free_cores

_LOOK_UP = 0.2
"""Seconds between two looks at whether a stop was asked for."""

_work: Callable[[Any, Stop], Any]
_stop: Stop


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


class _Told(Stop):
    """A stop that another process asks for."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._event = event

    @property
    def requested(self) -> bool:
        """True once the event is set."""
        if self._event.is_set():
            self.reason = self.reason or "stopped"
        return self.reason is not None


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
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    event = context.Event()
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(make_worker, arguments, event)
    ) as pool:
        waiting: set[Future[Any]] = {pool.submit(_do, job) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_LOOK_UP, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                stop.check()
        except BrokenProcessPool:
            raise TrainingError(
                f"a process was ended from outside (out of memory?); {kept}. Go on with: {again}"
            ) from None
        finally:
            event.set()  # whatever ended this ends the others, with their state saved
            pool.shutdown(cancel_futures=True)


def _begin(make_worker: Callable[..., Callable[[Any, Stop], Any]], arguments: tuple[Any, ...], event: Event) -> None:
    global _work, _stop
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal signals the whole group; one process decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work, _stop = make_worker(*arguments), _Told(event)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(job: Any) -> Any:
    """One job; a stop gives None, and what was done is saved."""
    try:
        _stop.check()
        return _work(job, _stop)
    except Halt:
        return None
