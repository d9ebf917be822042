"""The runs of a grid on a Ray cluster: the same work as in local processes, wherever there is room.

Nothing but names and numbers travels: which function makes a worker, what it is called with, and the jobs. Workers read data
and write results in folders that all machines see, so a run that dies with its machine goes on from its last checkpoint
wherever it is tried again. A stop is a file beside the runs.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headstart import errors
from headstart.errors import HeadstartError, StoreError, TrainingError, UsageError
from headstart.runtime import Halt, Stop

RETRIES = 3
"""Times that a job is tried again after its process or its machine died; errors of its own are not tried again."""
_LOOK_UP = 0.2
_ANSWER = 10.0
"""Seconds that a cluster has to answer."""
_NOTICE = 0.5
"""Seconds between two looks for the file that asks to stop: it may lie on a slow disk."""

_workers: dict[tuple[str, tuple[str, ...]], Callable[[Any, Stop], Any]] = {}


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what one job takes."""

    address: str | None = None
    """Of a running cluster; None starts one on this machine."""
    at_once: int | None = None
    """Jobs at the same time; None for as many as there is room for."""
    cpus: int = 1
    gpus: float | None = None
    """None: one GPU where the cluster has any."""


class _Asked(Stop):
    """A stop that the presence of a file asks for."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._looked = file, 0.0

    @property
    def requested(self) -> bool:
        """True once the file was seen."""
        if self.reason is None and time.monotonic() - self._looked > _NOTICE:
            self._looked = time.monotonic()
            self.reason = "stopped" if self._file.exists() else None
        return self.reason is not None


def run_on_cluster(
    make_worker: Callable[..., Callable[[Any, Stop], Any]],
    arguments: tuple[str, ...],
    jobs: Sequence[Any],
    cluster: Cluster,
    folder: Path,
    stop: Stop,
    again: str,
) -> Iterator[Any]:
    """Do every job somewhere on the cluster and yield the results as they come; Halt once all have stopped.

    Args:
        make_worker: found by its name in each process and called with `arguments`; gives what is called with a job and a
            stop. Its results, like the jobs, are plain values: they are what travels.
        folder: one that all machines see.
        again: the command that goes on with what is left, should a job fail for good.
    """
    ray = _ray()
    asked = folder / ".stop"
    asked.unlink(missing_ok=True)
    name = f"{make_worker.__module__}:{make_worker.__qualname__}"
    with _connected(ray, cluster):
        gpus = cluster.gpus if cluster.gpus is not None else float(min(1, ray.cluster_resources().get("GPU", 0)))
        task = ray.remote(num_cpus=cluster.cpus, num_gpus=gpus, max_retries=RETRIES)(_do)
        waiting, under_way = list(jobs), set[Any]()
        try:
            while waiting or under_way:
                while waiting and (cluster.at_once is None or len(under_way) < cluster.at_once):
                    job = list(waiting.pop(0))
                    under_way.add(task.remote(name, list(arguments), job, os.getcwd(), str(folder.resolve())))
                done, _ = ray.wait(list(under_way), num_returns=1, timeout=_LOOK_UP)
                under_way -= set(done)
                for each in done:
                    yield _result(ray, each, again)
                stop.check()
        finally:
            if under_way:
                _all_stopped(ray, under_way, asked)


def _all_stopped(ray: Any, under_way: set[Any], asked: Path) -> None:
    """Ask what is under way to save and stop, and wait until it has; what has not begun never does."""
    asked.touch()
    try:
        ray.wait(list(under_way), num_returns=len(under_way))
    finally:
        asked.unlink(missing_ok=True)


def _result(ray: Any, reference: Any, again: str) -> Any:
    try:
        answer = ray.get(reference)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.RaySystemError, ray.exceptions.OutOfMemoryError):
        raise TrainingError(
            f"a run's process died {RETRIES + 1} times (out of memory?); finished runs are kept. Go on with: {again}"
        ) from None
    if "error" in answer:
        raise _as_it_was(*answer["error"])
    return answer["result"]


def _as_it_was(kind: str, message: str) -> HeadstartError:
    """An error of ours that was raised on another machine; classes travel by name."""
    found = getattr(errors, kind, HeadstartError)
    made: HeadstartError = found(message)
    return made


def _do(name: str, arguments: list[str], job: list[Any], here: str, folder: str) -> dict[str, Any]:
    """One job, in a process of Ray's; a stop gives None, and what was done is saved."""
    stop = _Asked(Path(folder) / ".stop")
    try:
        _enter(here, folder)
        stop.check()
        key = name, tuple(arguments)
        if key not in _workers:
            module, _, function = name.partition(":")
            _workers[key] = getattr(import_module(module), function)(*arguments)
        return {"result": _workers[key](tuple(job), stop)}
    except Halt:
        return {"result": None}
    except HeadstartError as error:
        return {"error": [type(error).__name__, str(error)]}


def _enter(here: str, folder: str) -> None:
    """Go where the command was given: paths are as the person wrote them."""
    for place in (here, folder):
        if not Path(place).is_dir():
            raise StoreError(f"{socket.gethostname()} does not see {place}; every machine of the cluster must see it")
    os.chdir(here)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry unless asked
    try:
        return import_module("ray")
    except ImportError:
        raise UsageError('--engine ray needs one more package; run: pip install "headstart[cluster]"') from None


def _knock(address: str) -> None:
    """See whether anyone answers there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()


@contextmanager
def _connected(ray: Any, cluster: Cluster) -> Iterator[None]:
    """Join the cluster, or start one here; one that was joined before is used and left as it is."""
    if ray.is_initialized():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if cluster.address:
            _knock(cluster.address)
        ray.init(
            address=cluster.address or "local",
            include_dashboard=None if cluster.address else False,
            logging_level="ERROR",
            log_to_driver=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        words = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        reason = words.splitlines()[0]
        raise UsageError(f"cannot reach a Ray cluster at {cluster.address or 'this machine'}: {reason}") from None
    for number, handler in before.items():  # Ray puts its own in their place
        signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()
