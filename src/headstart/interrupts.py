"""Stopping a run early: signals, time limits, and the exception that ends the work."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from headstart.runtime import rank_info


class StopRequested(BaseException):
    """Raised after a stop was requested, between two units of work or in interruptible work; the recipe saves and ends.

    It is not an `Exception`: it may be raised inside a compiler, which would treat that as an error of its own.
    """


class StopSignal:
    """Holds the reason to stop a run, once there is one."""

    def __init__(self, time_limit: float | None = None, since: float | None = None) -> None:
        self.reason: str | None = None
        self.may_interrupt = False
        self.consensus: Callable[[str | None], str | None] | None = None
        """In a distributed run, `ProcessGroup.consensus`: all processes stop at the same step, for the same reason."""
        start = time.monotonic() if since is None else since
        self._deadline = None if time_limit is None else start + 60 * time_limit

    @property
    def requested(self) -> bool:
        """True once a signal came or the time limit passed."""
        if self.reason is None and self._deadline is not None and time.monotonic() > self._deadline:
            self.reason = "time limit reached"
        return self.reason is not None

    @property
    def why(self) -> str:
        """The reason for a message: a user knows the key and not the signal that it sends."""
        return "Ctrl-C" if self.reason == "SIGINT" else self.reason or ""

    def check(self) -> None:
        """Raise StopRequested if a stop was requested."""
        requested = self.requested
        if self.consensus is not None:
            self.reason = self.consensus(self.reason)
            requested = self.reason is not None
        if requested:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt this block at once: torch.compile does not poll, and the block has no side effects."""
        self.may_interrupt = True
        try:
            yield
        finally:
            self.may_interrupt = False


def step_context(stop: StopSignal, *, compiled: bool) -> Callable[[], AbstractContextManager[None]]:
    """Return the context to run a step in: interruptible where torch may compile, which takes too long to wait for."""
    # not in a distributed run: a process that leaves would keep the others waiting
    return stop.interruptible if compiled and stop.consensus is None else nullcontext


@contextmanager
def handle_signals(time_limit: float | None = None, since: float | None = None) -> Iterator[StopSignal]:
    """Treat the first SIGINT or SIGTERM as a request to stop soon; the second one acts at once, as usual.

    Under torchrun further signals are ignored: it sends its own after the first, and ends processes that take too long.

    Args:
        time_limit: minutes, counted from `since` (a value of `time.monotonic`), so that preparation counts too.
    """
    stop = StopSignal(time_limit, since)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request_stop(number: int, _frame: FrameType | None) -> None:
        stop.reason = stop.reason or signal.Signals(number).name
        if rank_info().world_size > 1:
            return
        for caught, handler in handlers.items():
            signal.signal(caught, handler)
        # not print: the handler may interrupt one
        os.write(2, b"\nstopping: saving first (press Ctrl-C again to stop at once)\n")
        if stop.may_interrupt:
            stop.may_interrupt = False
            raise StopRequested

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield stop
    except BaseException:
        if rank_info().world_size > 1:  # this process is ending: a signal from torchrun must not interrupt that
            handlers = dict.fromkeys(handlers, signal.SIG_IGN)
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
