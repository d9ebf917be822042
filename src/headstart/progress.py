"""How long work tells a person where it stands, without the library printing anything itself.

Recipes are handed a `Progress`. The command line gives one that draws bars (`headstart.cli.console`); a library call
gives `Quiet` unless asked otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """One stretch of long work."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Say that `amount` more units are done; `note` is a short figure to show, such as a loss."""


class Progress(Protocol):
    """Where words and progress go."""

    def say(self, line: str) -> None:
        """Tell the person one line."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[Task]:
        """Show a stretch of work with its rate and the time left; `total` None when it is not known."""
        raise NotImplementedError


class _QuietTask:
    def advance(self, amount: float = 1, note: str = "") -> None:
        """Nothing to show."""


class Quiet:
    """Says nothing."""

    def say(self, line: str) -> None:
        """Nothing to say."""

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[Task]:  # noqa: ARG002
        """Show nothing."""
        yield _QuietTask()
