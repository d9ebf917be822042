"""Where the runs of a grid are executed: worker processes on this machine, or a Ray cluster.

Worker processes that share nothing: each has a pipe of its own, so one that dies, at whatever moment, blocks no other.

Jobs, the stop signal and answers travel through the pipe; its end of file tells either side that the other one is gone.
There is no lock and no queue between processes: a process killed while it held one would keep it for ever.

The runs of a comparison in several processes at once: small networks leave most of a GPU, or of many cores, idle.

A run gives the same file whichever process makes it, here or on a cluster (cluster.py). Workers read the data for
themselves, learn of a stop from a pipe of their own, and end when the process that started them is gone (workers.py).

The runs of a grid on a Ray cluster: the same work as in local processes, wherever there is room.

Nothing but names and numbers travels: which function makes a worker, what it is called with, and the jobs. Workers read data
and write results in folders that all machines see, so a run that dies with its machine goes on from its last checkpoint
wherever it is tried again. A stop is a file beside the runs.
"""

import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal, get_args

from headstart import errors
from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.errors import HeadstartError, StoreError, TrainingError, UsageError
from headstart.interrupts import StopRequested, StopSignal
from headstart.runtime import free_cores

LOOK_UP = 0.2
"""Seconds between two looks at what no pipe tells."""
PATIENCE = 600.0
"""Seconds that workers have to save and end once they were asked to: a long step, or a large checkpoint on a slow disk."""

_STOP = b"stop"
"""Differs from every pickle, which begins with its version."""
_SIGNALS = signal.SIGINT, signal.SIGTERM

MakeWorker = Callable[..., Callable[[Any, StopSignal], Any]]


class WorkerTraceback(Exception):
    """Where in a worker an error was raised; the cause of that error as it is raised in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Worker:
    """A worker process, seen from its parent."""

    has_died = False
    """True once the worker was found to have ended without being asked to."""

    def __init__(self, make_worker: MakeWorker, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
        self._pipe, theirs = context.Pipe(duplex=True)
        self.process = context.Process(target=_work, args=(theirs,))
        with _starting():
            self.process.start()
        theirs.close()  # from here on, the end of the process is the end of file
        self.give((make_worker, arguments))

    def give(self, job: Any) -> None:
        """Hand over a job; a worker that has died is noticed when it should answer."""
        with suppress(OSError):
            self._pipe.send(job)

    def ask_to_stop(self) -> None:
        """Ask the worker to save what it does, and to end."""
        with suppress(OSError):
            self._pipe.send_bytes(_STOP)

    def answers(self) -> Iterator[Any]:
        """What the worker has answered since the last look, if it has: at most one result. Raises what the job raised."""
        is_over = self.is_over  # before the look at the pipe: a last answer may still be in there
        try:
            if not self._pipe.poll():
                self.has_died = is_over
                return
            message = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.has_died = True
            return
        result, error, where = ForkingPickler.loads(message)
        if error is not None:
            raise error from WorkerTraceback(where)
        yield result

    def discard_answers(self) -> None:
        """Make room in the pipe, so that a worker that is asked to stop can finish its last answer."""
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                self._pipe.recv_bytes()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended; its sentinel alone would not tell if a process forked by it lives on."""
        return self.process.exitcode is not None or bool(connection.wait([self.process.sentinel], 0))

    def kill(self) -> None:
        """End the process whatever it does; nothing happens to one that has ended."""
        self.process.kill()

    def close(self) -> None:
        """Take leave of a process that has ended or was killed."""
        self.process.join()
        self._pipe.close()
        self.process.close()

    @property
    def watched(self) -> tuple[Any, int]:
        """What becomes readable when the worker answers or ends."""
        return self._pipe, self.process.sentinel


def wait_for_any(workers: Sequence[Worker]) -> None:
    """Wait until a worker answers or ends, but not for long: whether a stop was asked for must be looked at too."""
    connection.wait([each for worker in workers for each in worker.watched], LOOK_UP)


def end_all(workers: Sequence[Worker]) -> None:
    """Ask every worker to stop, and wait until all have saved and ended.

    Those that take longer than `PATIENCE`, or are overtaken by an exception here (a second signal), are killed.
    """
    try:
        for worker in workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + PATIENCE
        while (alive := [each for each in workers if not each.is_over]) and time.monotonic() < deadline:
            for worker in alive:
                worker.discard_answers()
            connection.wait([worker.process.sentinel for worker in alive], LOOK_UP)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.close()


@contextmanager
def _starting() -> Iterator[None]:
    """What a new process is given: few bytes, and no signal that would end it before it can ignore signals.

    The standard library writes `sys.argv` to a pipe that it holds open at both ends: a process that dies before it has
    read thousands of file names would leave this one writing for ever.
    """
    resource_tracker.ensure_running()  # would unblock signals if it were started along the way
    before, sys.argv = sys.argv, sys.argv[:1]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        sys.argv = before
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(pipe: "connection.Connection[Any, Any]") -> None:
    """All that a worker process does: its jobs one by one, until it is asked to stop."""
    for number in _SIGNALS:  # a terminal signals the whole group; one process decides
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    stop, inbox = StopSignal(), queue.SimpleQueue[bytes | None]()
    threading.Thread(target=_listen, args=(pipe, stop, inbox), daemon=True).start()
    work: Callable[[Any, StopSignal], Any] | None = None
    while (message := inbox.get()) is not None:
        try:
            stop.check()
            given = ForkingPickler.loads(message)
            if work is None:
                work = given[0](*given[1])
                continue
            answer = ForkingPickler.dumps((work(given, stop), None, ""))
        except StopRequested:
            answer = ForkingPickler.dumps((None, None, ""))  # a stop gives None, and what was done is saved
        except BaseException as error:
            answer = _failure(error)
        try:
            pipe.send_bytes(answer)
        except OSError:
            os._exit(1)  # the parent is gone
        if work is None:
            return


def _listen(
    pipe: "connection.Connection[Any, Any]", stop: StopSignal, inbox: "queue.SimpleQueue[bytes | None]"
) -> None:
    """Read the pipe for as long as the process lives: jobs as bytes (imports belong to the main thread), or the stop signal."""
    try:
        while (message := pipe.recv_bytes()) != _STOP:
            inbox.put(message)
        stop.reason = "stopped"
        inbox.put(None)
        pipe.recv_bytes()  # nothing comes after a stop but the end of the file
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone


def _failure(error: BaseException) -> Any:
    """An error as an answer; one that cannot be pickled, or not be made again, is told in words."""
    where = "".join(traceback.format_exception(error))
    try:
        answer = ForkingPickler.dumps((None, error, where))
        ForkingPickler.loads(answer)
    except BaseException:
        words = "".join(traceback.format_exception_only(error)).strip()
        answer = ForkingPickler.dumps((None, RuntimeError(words), where))
    return answer


@dataclass(frozen=True)
class Executor:
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
        if self.name not in get_args(Executor.__annotations__["name"]):
            raise UsageError(f"--engine must be local or ray, got {self.name!r}")
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {self.jobs}")
        if self.address is not None and self.name != "ray":
            raise UsageError("--address is that of a Ray cluster; it needs --engine ray")


def with_threads(config: FinetuneConfig, engine: Executor) -> FinetuneConfig:
    """The settings of runs that share a machine: threads for each, unless they are set."""
    if not engine.is_apart or config.runtime.threads is not None:
        return config
    # nobody knows how many cores the machines of a cluster have to spare
    threads = 1 if engine.name == "ray" else max(1, free_cores() // (engine.jobs or 1))
    return merge_config(FinetuneConfig, config.model_dump(), {"runtime": {"threads": threads}})


def run_grid(
    engine: Executor,
    make_worker: Callable[..., Callable[[Any, StopSignal], Any]],
    arguments: tuple[str, ...],
    jobs: Sequence[Any],
    folder: Path,
    stop: StopSignal,
    again: str,
) -> Iterator[Any]:
    """Do every job on the engine and yield the results as they come: one runner for every grid, see its engines."""
    if engine.name == "local":
        yield from run_parallel(make_worker, arguments, jobs, min(engine.jobs or 1, len(jobs)), stop, again)
        return

    cluster = Cluster(address=engine.address, at_once=engine.jobs, cpus=engine.threads or 1)
    yield from run_on_cluster(make_worker, arguments, jobs, cluster, folder, stop, again)


def run_parallel(
    make_worker: Callable[..., Callable[[Any, StopSignal], Any]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Any],
    processes: int,
    stop: StopSignal,
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


RETRIES = 3
"""Times that a job is tried again after its process or its machine died; errors of its own are not tried again."""
_RAY_POLL_SECONDS = 0.2
_REPLY_SECONDS = 10.0
"""Seconds that a cluster has to answer."""
_NOTICE = 0.5
"""Seconds between two looks for the file that asks to stop: it may lie on a slow disk."""

_workers: dict[tuple[str, tuple[str, ...]], Callable[[Any, StopSignal], Any]] = {}


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


class _FileStop(StopSignal):
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
    make_worker: Callable[..., Callable[[Any, StopSignal], Any]],
    arguments: tuple[str, ...],
    jobs: Sequence[Any],
    cluster: Cluster,
    folder: Path,
    stop: StopSignal,
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
        task = ray.remote(num_cpus=cluster.cpus, num_gpus=gpus, max_retries=RETRIES)(_do_remote)
        waiting, under_way = list(jobs), set[Any]()
        try:
            while waiting or under_way:
                while waiting and (cluster.at_once is None or len(under_way) < cluster.at_once):
                    job = list(waiting.pop(0))
                    under_way.add(task.remote(name, list(arguments), job, os.getcwd(), str(folder.resolve())))
                done, _ = ray.wait(list(under_way), num_returns=1, timeout=_RAY_POLL_SECONDS)
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
        raise _rebuild_error(*answer["error"])
    return answer["result"]


def _rebuild_error(kind: str, message: str) -> HeadstartError:
    """An error of ours that was raised on another machine; classes travel by name."""
    found = getattr(errors, kind, HeadstartError)
    made: HeadstartError = found(message)
    return made


def _do_remote(name: str, arguments: list[str], job: list[Any], here: str, folder: str) -> dict[str, Any]:
    """One job, in a process of Ray's; a stop gives None, and what was done is saved."""
    stop = _FileStop(Path(folder) / ".stop")
    try:
        _enter(here, folder)
        stop.check()
        key = name, tuple(arguments)
        if key not in _workers:
            module, _, function = name.partition(":")
            _workers[key] = getattr(import_module(module), function)(*arguments)
        return {"result": _workers[key](tuple(job), stop)}
    except StopRequested:
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


def _check_reachable(address: str) -> None:
    """See whether anyone answers there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_REPLY_SECONDS).close()


@contextmanager
def _connected(ray: Any, cluster: Cluster) -> Iterator[None]:
    """Join the cluster, or start one here; one that was joined before is used and left as it is."""
    if ray.is_initialized():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
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
        words = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        reason = words.splitlines()[0]
        raise UsageError(f"cannot reach a Ray cluster at {cluster.address or 'this machine'}: {reason}") from None
    for number, handler in before.items():  # Ray puts its own in their place
        signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()
