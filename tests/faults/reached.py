"""Which lines of the package the cases of a reader reached, so that "nothing gave" cannot mean "nothing was tried".

Counted are the lines of those functions that a case entered at least once: what a reader never calls is not its own.
Only some of the cases are traced, so that more lines may have been reached, and none fewer.
"""

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import headstart

PACKAGE = str(Path(headstart.__file__).parent) + "/"
ROOMS = ("files.py", "config/merge.py", "data/", "tokenization/", "store/", "serve/", "recipes/prepare.py")
"""Where readers live; what a network computes is not reading."""

Code = tuple[str, str, int]
"""A function: its file, its name and its first line."""


class Reached:
    """While it is entered, lines are noted; survives a fork by `dump` and `merge`."""

    def __init__(self, rooms: tuple[str, ...] = ROOMS) -> None:
        self.rooms = rooms
        self.left: dict[Code, set[int]] = {}
        """Of every function that was entered, the lines not reached yet."""
        self.every: dict[Code, frozenset[int]] = {}
        self._of: dict[CodeType, set[int] | None] = {}

    def __enter__(self) -> Self:
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code not in self._of:
            self._of[code] = self._begin(code)
        return self._line if self._of[code] else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        left = self._of[frame.f_code]
        if event == "line" and left:
            left.discard(frame.f_lineno)
        return self._line

    def _begin(self, code: CodeType) -> set[int] | None:
        """The lines of a function not reached yet; None for what is not ours, or a module's own."""
        file = code.co_filename.removeprefix(PACKAGE)
        if file == code.co_filename or not file.startswith(self.rooms) or code.co_name == "<module>":
            return None
        key = (file, code.co_qualname, code.co_firstlineno)
        if key not in self.every:
            lines = {line for _, _, line in code.co_lines() if line}
            if len(lines) > 1:
                lines.discard(code.co_firstlineno)  # the line of the `def` is no statement of it
            else:
                lines = (
                    set()
                )  # entering it is reaching it: comprehensions and lambdas count with the line they stand in
            self.every[key], self.left[key] = frozenset(lines), set(lines)
        return self.left[key]

    def dump(self) -> list[Any]:
        """For another process, as JSON."""
        return [[*key, sorted(self.every[key]), sorted(self.left[key])] for key in sorted(self.every)]

    def merge(self, dumped: list[Any]) -> None:
        """What another process, forked from this one, has reached."""
        for file, name, first, every, left in dumped:
            key = (file, name, first)
            self.every[key] = frozenset(every)
            self.left[key] = set(left) & self.left.get(key, set(left))

    def row(self) -> dict[str, Any]:
        """For the table: how many lines there were, and by file which were reached and which were not."""
        every, left = self._by_file(self.every), self._by_file(self.left)
        reached = {file: sorted(set(lines) - set(left.get(file, ()))) for file, lines in every.items()}
        return {
            "lines": sum(map(len, every.values())),
            "lines_reached": sum(map(len, reached.values())),
            "reached": {file: ranges(lines) for file, lines in sorted(reached.items()) if lines},
            "missed": {file: ranges(lines) for file, lines in sorted(left.items()) if lines},
        }

    def _by_file(self, result: dict[Code, Any]) -> dict[str, list[int]]:
        lines: dict[str, set[int]] = {}
        for (file, _, _), some in result.items():
            lines.setdefault(file, set()).update(some)
        if result is self.left:  # a line may belong to a function and to a comprehension in it
            seen: dict[str, set[int]] = {}
            for key, some in self.every.items():
                seen.setdefault(key[0], set()).update(set(some) - self.left[key])
            lines = {file: some - seen.get(file, set()) for file, some in lines.items()}
        return {file: sorted(some) for file, some in lines.items()}


def ranges(lines: list[int]) -> str:
    """Numbers as a person writes them.

    >>> ranges([3, 4, 5, 9])
    '3-5 9'
    """
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][-1] + 1:
            parts[-1][1:] = [line]
        else:
            parts.append([line])
    return " ".join("-".join(map(str, part)) for part in parts)


def numbers(text: str) -> set[int]:
    """The way back.

    >>> sorted(numbers("3-5 9"))
    [3, 4, 5, 9]
    """
    result: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        result.update(range(int(first), int(last or first) + 1))
    return result
