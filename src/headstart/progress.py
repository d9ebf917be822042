"""The progress protocol: how long work reports its state without printing anything itself.

Recipes take a `Progress`. The command line passes one that draws bars (`headstart.cli.console`); a call from Python
uses `SilentProgress` unless it passes another.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


def pluralize(count: float, noun: str) -> str:
    """Return a count with its noun.

    >>> pluralize(1, "step"), pluralize(1200, "step"), pluralize(1.0, "minute"), pluralize(0.5, "minute")
    ('1 step', '1,200 steps', '1 minute', '0.5 minutes')
    """
    number = int(count) if count == int(count) else count
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ProgressTask(Protocol):
    """One stretch of long work, drawn as a bar."""

    def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
        """Report that `amount` more units are done.

        Args:
            note: a short value to show, such as a loss.
            total: the units of the whole work, if that number has changed.
        """


RunKey = tuple[str, str]
"""The row and the column of a table of runs."""


class RunBoard(Protocol):
    """A table of runs that fills up."""

    def start(self, key: RunKey) -> None:
        """Report that a run begins."""

    def add(self, key: RunKey, value: float) -> None:
        """Report the result of a run, a fraction; the mean so far is shown."""


class Progress(Protocol):
    """The receiver of messages and progress."""

    def say(self, line: str) -> None:
        """Show one line."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:
        """Show a stretch of work with its rate and the time left; `total` is None when it is not known."""
        raise NotImplementedError

    @contextmanager
    def board(self, title: str, planned: Mapping[RunKey, int]) -> Iterator[RunBoard]:
        """Show a table of runs above the current task on a terminal; `planned` counts the runs of each row and column."""
        raise NotImplementedError


class _SilentTask:
    def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
        """Show nothing."""


class _SilentBoard:
    def start(self, key: RunKey) -> None:
        """Show nothing."""

    def add(self, key: RunKey, value: float) -> None:
        """Show nothing."""


class SilentProgress:
    """A `Progress` that shows nothing."""

    def say(self, line: str) -> None:
        """Show nothing."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:  # noqa: ARG002
        """Show nothing."""
        yield _SilentTask()

    @contextmanager
    def board(self, title: str, planned: Mapping[RunKey, int]) -> Iterator[RunBoard]:  # noqa: ARG002
        """Show nothing."""
        yield _SilentBoard()
