"""Progress of long calls in a notebook: messages as lines, and each task as one line that is updated."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.display import DisplayHandle, Pretty, display

_SECONDS_BETWEEN_UPDATES = 0.5


class NotebookProgress:
    """An object for the argument `progress` of `headstart.pretrain`, `finetune` and `compare`."""

    def say(self, line: str) -> None:
        """Print a message."""
        print(line)

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator["_TaskLine"]:
        """Show a task as one line."""
        line = _TaskLine(name, total, unit)
        try:
            yield line
        finally:
            line.show()

    @contextmanager
    def board(self, title: str, planned: dict[tuple[str, str], int]) -> Iterator["_Runs"]:  # noqa: ARG002
        """Show no table of runs: `say` prints the result of each run."""
        yield _Runs()


class _TaskLine:
    def __init__(self, name: str, total: float | None, unit: str) -> None:
        self.name, self.total, self.unit, self.note = name, total, unit, ""
        self.done = 0.0
        self._handle: DisplayHandle | None = display(Pretty(f"{name} …"), display_id=True)
        self._last_update = time.monotonic()

    def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
        """Add finished units."""
        self.done, self.note, self.total = self.done + amount, note, total or self.total
        if time.monotonic() - self._last_update > _SECONDS_BETWEEN_UPDATES:
            self.show()

    def show(self) -> None:
        """Update the line."""
        count = f"{self.done:,.0f} of {self.total:,.0f}" if self.total else f"{self.done:,.0f}"
        words = [f"{self.name}: {count} {self.unit}"] if self.done else [self.name]
        if self._handle is not None:
            self._handle.update(Pretty(", ".join([*words, self.note] if self.note else words)))
        self._last_update = time.monotonic()


class _Runs:
    def start(self, key: tuple[str, str]) -> None:
        """Show nothing."""

    def add(self, key: tuple[str, str], value: float) -> None:
        """Show nothing."""
