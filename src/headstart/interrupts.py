"""How a run is asked to stop: signals, time limits, and the exception that ends the work.

Where the arithmetic runs, from which seed, and how a run is asked to stop.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from headstart.runtime import rank_info

if TYPE_CHECKING:
    pass


class StopRequested(BaseException):
    """Raised once a stop was asked for, between two pieces of work or in one that may be cut; the recipe saves and leaves.

    No `Exception`: it comes out of the middle of a compiler, which would take that for a fault of its own.
    """


class StopSignal:
    """Whether someone asked the run to stop, and why."""

    def __init__(self, time_limit: float | None = None, since: float | None = None) -> None:
        self.reason: str | None = None
        self.may_interrupt = False
        self.consensus: Callable[[str | None], str | None] | None = None
        """Where several processes train together: makes one reason of theirs, so that all stop at the same moment."""
        begun = time.monotonic() if since is None else since
        self._deadline = None if time_limit is None else begun + 60 * time_limit

    @property
    def requested(self) -> bool:
        """True once a signal came or the time limit passed."""
        if self.reason is None and self._deadline is not None and time.monotonic() > self._deadline:
            self.reason = "time limit reached"
        return self.reason is not None

    @property
    def why(self) -> str:
        """The reason as it is told to a person, who knows a key and not the signal that it sends."""
        return "Ctrl-C" if self.reason == "SIGINT" else self.reason or ""

    def check(self) -> None:
        """Leave the work in hand if a stop was asked for."""
        requested = self.requested
        if self.consensus is not None:
            self.reason = self.consensus(self.reason)
            requested = self.reason is not None
        if requested:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Work that a signal leaves in the middle, because nothing of it is kept: a compiler looks up for nobody."""
        self.may_interrupt = True
        try:
            yield
        finally:
            self.may_interrupt = False


def step_context(stop: StopSignal, *, compiled: bool) -> Callable[[], AbstractContextManager[None]]:
    """How a step is entered: one that torch may compile in takes too long for a signal to wait for its end."""
    # where several train together, one that leaves would keep the others waiting
    return stop.interruptible if compiled and stop.consensus is None else nullcontext


@contextmanager
def handle_signals(time_limit: float | None = None, since: float | None = None) -> Iterator[StopSignal]:
    """Catch the first SIGINT or SIGTERM as a wish to stop soon; the second one acts at once, as usual.

    Where torchrun started several processes, it sends signals of its own after the first, and ends those that take too long:
    further ones are not listened to.

    Args:
        time_limit: minutes, counted from `since` (as `time.monotonic` has it): what came before training counts too.
    """
    stop = StopSignal(time_limit, since)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.reason = stop.reason or signal.Signals(number).name
        if rank_info().world_size > 1:
            return
        for each, handler in before.items():
            signal.signal(each, handler)
        # not print: a handler may run in the middle of one
        os.write(2, b"\nstopping: saving first (press Ctrl-C again to stop at once)\n")
        if stop.may_interrupt:
            stop.may_interrupt = False
            raise StopRequested

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    except BaseException:
        if rank_info().world_size > 1:  # this process ends, and torchrun's wish that it should must not come between
            before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
