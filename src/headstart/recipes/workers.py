"""Worker processes that share nothing: each has its own pipe, so the death of one never blocks another.

Jobs, the stop signal and results travel through the pipe, and its end of file tells either side that the other is gone.
There is no lock and no queue between processes: a process killed while it holds one would never release it.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headstart.errors import TrainingError
from headstart.interrupts import StopRequested, StopSignal

POLL_SECONDS = 0.2
"""Seconds between two checks for events that no pipe reports."""
STOP_TIMEOUT_SECONDS = 600.0
"""Seconds in which workers must save and exit after a stop request, enough for a long step and a large checkpoint."""

_STOP = b"stop"
"""Differs from every pickle, which begins with its protocol version."""
_SIGNALS = signal.SIGINT, signal.SIGTERM

RunJob = Callable[[Any, StopSignal], Any]
"""Does one job; raises `StopRequested` once the stop signal is set."""
MakeWorker = Callable[..., RunJob]
"""Called once in each process, with the same arguments in all of them."""


def run_parallel(
    make_worker: MakeWorker,
    arguments: tuple[Any, ...],
    jobs: Sequence[Any],
    num_processes: int,
    stop: StopSignal,
    resume_command: str,
    kept: str = "finished runs are kept",
) -> Iterator[Any]:
    """Run all jobs in several processes and yield results as they arrive; raises `StopRequested` once all have stopped.

    Args:
        make_worker: called in each process with `arguments`; returns the function that does a job.
        resume_command: the command that finishes the remaining jobs; it is part of the message if a process is killed.
        kept: the part of that message about the results that are kept.
    """
    waiting, num_remaining, workers = deque(jobs), len(jobs), list[Worker]()
    try:
        for _ in range(min(num_processes, num_remaining)):
            workers.append(Worker(make_worker, arguments))
            workers[-1].send(waiting.popleft())
        while num_remaining:
            wait_for_any(workers)
            for worker in workers:
                for result in worker.results():
                    num_remaining -= 1
                    if waiting:
                        worker.send(waiting.popleft())
                    yield result
            if num_remaining and any(worker.has_died for worker in workers):
                raise TrainingError(
                    f"a worker process was killed (out of memory?); {kept}. Continue with: {resume_command}"
                )
            stop.check()
    except (KeyboardInterrupt, SystemExit):  # a second signal, before the first one was noticed
        for worker in workers:
            worker.kill()
        raise
    finally:
        stop_all(workers)  # an error or a stop here stops the others, with their state saved


class WorkerTraceback(Exception):
    """The traceback of an error that was raised in a worker; the cause of that error when it is raised in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Worker:
    """A worker process, seen from its parent."""

    has_died = False
    """True once the worker is known to have exited without a stop request."""

    def __init__(self, make_worker: MakeWorker, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
        self._pipe, child_pipe = context.Pipe(duplex=True)
        self.process = context.Process(target=_worker_main, args=(child_pipe,))
        with _safe_start():
            self.process.start()
        child_pipe.close()  # from here on, the end of the process is the end of file
        self.send((make_worker, arguments))

    def send(self, job: Any) -> None:
        """Send a job; a dead worker is noticed when its result is due."""
        with suppress(OSError):
            self._pipe.send(job)

    def request_stop(self) -> None:
        """Ask the worker to save its state and exit."""
        with suppress(OSError):
            self._pipe.send_bytes(_STOP)

    def results(self) -> Iterator[Any]:
        """Yield the result that has arrived since the last call, if one has. Raises the error of the job."""
        has_exited = self.has_exited  # before the pipe is polled: a last result may still be in it
        try:
            if not self._pipe.poll():
                self.has_died = has_exited
                return
            message = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.has_died = True
            return
        result, error, formatted_traceback = ForkingPickler.loads(message)
        if error is not None:
            raise error from WorkerTraceback(formatted_traceback)
        yield result

    def discard_results(self) -> None:
        """Empty the pipe, so that a stopping worker can finish sending its last result."""
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                self._pipe.recv_bytes()

    @property
    def has_exited(self) -> bool:
        """True if the process has exited; its sentinel alone would not tell while a process forked by it is alive."""
        return self.process.exitcode is not None or bool(connection.wait([self.process.sentinel], 0))

    def kill(self) -> None:
        """Kill the process; does nothing if it has exited."""
        self.process.kill()

    def close(self) -> None:
        """Release the resources of a process that has exited or was killed."""
        self.process.join()
        self._pipe.close()
        self.process.close()

    @property
    def waitables(self) -> tuple[Any, int]:
        """The objects that become readable when the worker sends a result or exits."""
        return self._pipe, self.process.sentinel


def wait_for_any(workers: Sequence[Worker]) -> None:
    """Wait until a worker sends a result or exits, briefly: the caller must also check for a stop request."""
    connection.wait([waitable for worker in workers for waitable in worker.waitables], POLL_SECONDS)


def stop_all(workers: Sequence[Worker]) -> None:
    """Ask every worker to stop, and wait until all have saved and exited.

    Workers that take longer than `STOP_TIMEOUT_SECONDS` are killed, and all of them if an exception (a second signal)
    interrupts the wait.
    """
    try:
        for worker in workers:
            worker.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while (alive := [worker for worker in workers if not worker.has_exited]) and time.monotonic() < deadline:
            for worker in alive:
                worker.discard_results()
            connection.wait([worker.process.sentinel for worker in alive], POLL_SECONDS)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.close()


@contextmanager
def _safe_start() -> Iterator[None]:
    """Start a process with a short `sys.argv`, and with signals blocked until it can ignore them.

    The standard library writes `sys.argv` to a pipe that it holds open at both ends: if a process died before it had
    read thousands of file names, this one would write for ever.
    """
    resource_tracker.ensure_running()  # would unblock signals if it were started along the way
    argv, sys.argv = sys.argv, sys.argv[:1]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        sys.argv = argv
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _worker_main(pipe: "connection.Connection[Any, Any]") -> None:
    """Run in a worker process: do jobs one by one until the stop request."""
    for number in _SIGNALS:  # a terminal signals the whole group; one process decides
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    stop, inbox = StopSignal(), queue.SimpleQueue[bytes | None]()
    threading.Thread(target=_receive, args=(pipe, stop, inbox), daemon=True).start()
    run_job: RunJob | None = None
    while (message := inbox.get()) is not None:
        try:
            stop.check()
            content = ForkingPickler.loads(message)
            if run_job is None:
                make_worker, arguments = content
                run_job = make_worker(*arguments)
                continue
            reply = ForkingPickler.dumps((run_job(content, stop), None, ""))
        except StopRequested:
            reply = ForkingPickler.dumps((None, None, ""))  # the result is None, and the state is saved
        except BaseException as error:
            reply = _error_reply(error)
        try:
            pipe.send_bytes(reply)
        except OSError:
            os._exit(1)  # the parent is gone
        if run_job is None:
            return


def _receive(
    pipe: "connection.Connection[Any, Any]", stop: StopSignal, inbox: "queue.SimpleQueue[bytes | None]"
) -> None:
    """Read the pipe as long as the process lives: jobs, as bytes (imports belong to the main thread), or the stop request."""
    try:
        while (message := pipe.recv_bytes()) != _STOP:
            inbox.put(message)
        stop.reason = "stopped"
        inbox.put(None)
        pipe.recv_bytes()  # nothing comes after a stop but the end of the file
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone


def _error_reply(error: BaseException) -> Any:
    """Pickle an error; one that does not survive pickling is replaced by a RuntimeError with its text."""
    formatted_traceback = "".join(traceback.format_exception(error))
    try:
        reply = ForkingPickler.dumps((None, error, formatted_traceback))
        ForkingPickler.loads(reply)
    except BaseException:
        text = "".join(traceback.format_exception_only(error)).strip()
        reply = ForkingPickler.dumps((None, RuntimeError(text), formatted_traceback))
    return reply
