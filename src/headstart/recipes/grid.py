"""The runs of a comparison in several processes at once: small networks leave most of a GPU, or of many cores, idle.

A run gives the same file whichever process makes it. Workers read the data for themselves, learn of a stop from an event,
and end when the process that started them is gone.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import Any

from headstart.errors import TrainingError
from headstart.runtime import Halt, Stop

_LOOK_UP = 0.2
"""Seconds between two looks at whether a stop was asked for."""

_work: Callable[[Any, Stop], Any]
_stop: Stop


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
