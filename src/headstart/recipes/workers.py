"""Worker processes that share nothing: each has a pipe of its own, so one that dies, at whatever moment, blocks no other.

Jobs, the stop signal and answers travel through the pipe; its end of file tells either side that the other one is gone.
There is no lock and no queue between processes: a process killed while it held one would keep it for ever.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headstart.runtime import Halt, Stop

LOOK_UP = 0.2
"""Seconds between two looks at what no pipe tells."""
PATIENCE = 600.0
"""Seconds that workers have to save and end once they were asked to: a long step, or a large checkpoint on a slow disk."""

_STOP = b"stop"
"""Differs from every pickle, which begins with its version."""
_SIGNALS = signal.SIGINT, signal.SIGTERM

MakeWorker = Callable[..., Callable[[Any, Stop], Any]]


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
    stop, inbox = Stop(), queue.SimpleQueue[bytes | None]()
    threading.Thread(target=_listen, args=(pipe, stop, inbox), daemon=True).start()
    work: Callable[[Any, Stop], Any] | None = None
    while (message := inbox.get()) is not None:
        try:
            stop.check()
            given = ForkingPickler.loads(message)
            if work is None:
                work = given[0](*given[1])
                continue
            answer = ForkingPickler.dumps((work(given, stop), None, ""))
        except Halt:
            answer = ForkingPickler.dumps((None, None, ""))  # a stop gives None, and what was done is saved
        except BaseException as error:
            answer = _failure(error)
        try:
            pipe.send_bytes(answer)
        except OSError:
            os._exit(1)  # the parent is gone
        if work is None:
            return


def _listen(pipe: "connection.Connection[Any, Any]", stop: Stop, inbox: "queue.SimpleQueue[bytes | None]") -> None:
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
