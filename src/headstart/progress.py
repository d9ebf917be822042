"""How long work tells a person where it stands, without the library printing anything itself.

Recipes are handed a `Progress`. The command line gives one that draws bars (`headstart.cli.console`); a library call
gives `SilentProgress` unless asked otherwise.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


def pluralize(count: float, noun: str) -> str:
    """How many of something, in words.

    >>> pluralize(1, "step"), pluralize(1200, "step"), pluralize(1.0, "minute"), pluralize(0.5, "minute")
    ('1 step', '1,200 steps', '1 minute', '0.5 minutes')
    """
    number = int(count) if count == int(count) else count
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ProgressTask(Protocol):
    """One stretch of long work."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Say that `amount` more units are done; `note` is a short figure to show, such as a loss."""


RunKey = tuple[str, str]
"""A row and a column of a table of runs."""


class RunBoard(Protocol):
    """A table of runs that fills up."""

    def start(self, place: RunKey) -> None:
        """Say that work in a cell begins."""

    def add(self, place: RunKey, value: float) -> None:
        """Say that a cell has one more result, a share; the mean so far is shown."""


class Progress(Protocol):
    """Where words and progress go."""

    def say(self, line: str) -> None:
        """Tell the person one line."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:
        """Show a stretch of work with its rate and the time left; `total` None when it is not known."""
        raise NotImplementedError

    @contextmanager
    def board(self, title: str, planned: Mapping[RunKey, int]) -> Iterator[RunBoard]:
        """Show a table of runs above the task under way, where there is a window for it; `planned` counts each cell's."""
        raise NotImplementedError


class _SilentTask:
    def advance(self, amount: float = 1, note: str = "") -> None:
        """Nothing to show."""


class _SilentBoard:
    def start(self, place: RunKey) -> None:
        """Nothing to show."""

    def add(self, place: RunKey, value: float) -> None:
        """Nothing to show."""


class SilentProgress:
    """Says nothing."""

    def say(self, line: str) -> None:
        """Nothing to say."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:  # noqa: ARG002
        """Show nothing."""
        yield _SilentTask()

    @contextmanager
    def board(self, title: str, planned: Mapping[RunKey, int]) -> Iterator[RunBoard]:  # noqa: ARG002
        """Show nothing."""
        yield _SilentBoard()
