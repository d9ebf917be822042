"""Jobs on a Ray cluster: the same work as in local worker processes.

Only names and plain values are sent: the name of the function that makes a worker, its arguments, and the jobs. Workers
read data and write results in folders that all machines see, so a run that dies with its machine continues from its last
checkpoint wherever it is retried. A stop request is a file in the run folder.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headstart import errors
from headstart.errors import HeadstartError, StoreError, TrainingError, UsageError
from headstart.interrupts import StopRequested, StopSignal
from headstart.recipes.workers import MakeWorker, RunJob

MAX_RETRIES = 3
"""Retries of a job whose process or machine died; an error that the job raises is not retried."""
_POLL_SECONDS = 0.2
_CONNECT_TIMEOUT_SECONDS = 10.0
_STOP_FILE_POLL_SECONDS = 0.5
"""Seconds between two checks for the stop file: it may be on a slow disk."""
_STOP_FILE = ".stop"

_workers: dict[tuple[str, tuple[str, ...]], RunJob] = {}
"""The workers of this process, by the name of the function that made them and its arguments."""


@dataclass(frozen=True)
class RayCluster:
    """The address of a cluster and the resources of one job."""

    address: str | None = None
    """None starts a cluster on this machine."""
    max_jobs: int | None = None
    """The number of concurrent jobs; None for the capacity of the cluster."""
    num_cpus: int = 1
    num_gpus: float | None = None
    """None: one GPU if the cluster has any."""


class _FileStopSignal(StopSignal):
    """A stop signal that is set by the presence of a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._last_check = file, 0.0

    @property
    def requested(self) -> bool:
        """True once the file was seen."""
        if self.reason is None and time.monotonic() - self._last_check > _STOP_FILE_POLL_SECONDS:
            self._last_check = time.monotonic()
            self.reason = "stopped" if self._file.exists() else None
        return self.reason is not None


def run_on_cluster(
    make_worker: MakeWorker,
    arguments: tuple[str, ...],
    jobs: Sequence[tuple[Any, ...]],
    cluster: RayCluster,
    folder: Path,
    stop: StopSignal,
    resume_command: str,
) -> Iterator[Any]:
    """Run all jobs on the cluster and yield results as they arrive; raises `StopRequested` once all have stopped.

    Args:
        make_worker: imported by name in each process and called with `arguments`; returns the function that does a job.
            Its results, like the jobs, are plain values.
        folder: a folder that all machines see.
        resume_command: the command that finishes the remaining jobs; it is part of the message if a job fails for good.
    """
    ray = _import_ray()
    stop_file = folder / _STOP_FILE
    stop_file.unlink(missing_ok=True)
    worker_name = f"{make_worker.__module__}:{make_worker.__qualname__}"
    with _connection(ray, cluster):
        num_gpus = cluster.num_gpus
        if num_gpus is None:
            num_gpus = float(min(1, ray.cluster_resources().get("GPU", 0)))
        task = ray.remote(num_cpus=cluster.num_cpus, num_gpus=num_gpus, max_retries=MAX_RETRIES)(_do_remote)
        waiting, pending = list(jobs), set[Any]()
        try:
            while waiting or pending:
                while waiting and (cluster.max_jobs is None or len(pending) < cluster.max_jobs):
                    job = list(waiting.pop(0))
                    pending.add(task.remote(worker_name, list(arguments), job, os.getcwd(), str(folder.resolve())))
                done, _ = ray.wait(list(pending), num_returns=1, timeout=_POLL_SECONDS)
                pending -= set(done)
                for reference in done:
                    yield _result(ray, reference, resume_command)
                stop.check()
        finally:
            if pending:
                _stop_all(ray, pending, stop_file)


def _stop_all(ray: Any, pending: set[Any], stop_file: Path) -> None:
    """Request that the pending jobs save and stop, and wait for them; jobs that have not started return at once."""
    stop_file.touch()
    try:
        ray.wait(list(pending), num_returns=len(pending))
    finally:
        stop_file.unlink(missing_ok=True)


def _result(ray: Any, reference: Any, resume_command: str) -> Any:
    try:
        reply = ray.get(reference)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.RaySystemError, ray.exceptions.OutOfMemoryError):
        raise TrainingError(
            f"a run's process died {MAX_RETRIES + 1} times (out of memory?); finished runs are kept. Continue "
            f"with: {resume_command}"
        ) from None
    if "error" in reply:
        raise _rebuild_error(*reply["error"])
    return reply["result"]


def _rebuild_error(class_name: str, message: str) -> HeadstartError:
    """Rebuild an error that was raised on another machine from the name of its class."""
    error: HeadstartError = getattr(errors, class_name, HeadstartError)(message)
    return error


def _do_remote(
    worker_name: str, arguments: list[str], job: list[Any], working_directory: str, folder: str
) -> dict[str, Any]:
    """Run one job in a Ray process; after a stop request, the state is saved and the result is None."""
    stop = _FileStopSignal(Path(folder) / _STOP_FILE)
    try:
        _change_directory(working_directory, folder)
        stop.check()
        key = worker_name, tuple(arguments)
        if key not in _workers:
            module, _, function = worker_name.partition(":")
            _workers[key] = getattr(import_module(module), function)(*arguments)
        return {"result": _workers[key](tuple(job), stop)}
    except StopRequested:
        return {"result": None}
    except HeadstartError as error:
        return {"error": [type(error).__name__, str(error)]}


def _change_directory(working_directory: str, folder: str) -> None:
    """Change to the working directory of the command, because paths are relative to it."""
    for path in (working_directory, folder):
        if not Path(path).is_dir():
            raise StoreError(
                f"{socket.gethostname()} cannot access {path}; every machine of the cluster must have access to it"
            )
    os.chdir(working_directory)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry unless the user enables it
    try:
        return import_module("ray")
    except ImportError:
        raise UsageError(
            '--engine ray needs one more package; install it with: pip install "headstart[cluster]"'
        ) from None


def _check_reachable(address: str) -> None:
    """Try to connect to the address once, because Ray itself would retry for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()


@contextmanager
def _connection(ray: Any, cluster: RayCluster) -> Iterator[None]:
    """Join the cluster, or start one here; an existing connection is used and left open."""
    if ray.is_initialized():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if cluster.address:
            _check_reachable(cluster.address)
        ray.init(
            address=cluster.address or "local",
            include_dashboard=None if cluster.address else False,
            logging_level="ERROR",
            log_to_driver=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        message = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        reason = message.splitlines()[0]
        raise UsageError(f"cannot connect to a Ray cluster at {cluster.address or 'this machine'}: {reason}") from None
    for number, handler in handlers.items():  # Ray has installed its own
        signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()
