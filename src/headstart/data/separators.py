"""What stands between the cells of a .csv: found from its header line, never from later rows.

Commas, unless there is none outside quotes and there are semicolons, or else tabs: Excel writes semicolons wherever the comma
is the decimal mark. A quote opens a cell only where a cell begins, as in RFC 4180. A line `sep=;` before the header, which is
written for Excel, decides instead, and is no row.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from typing import IO

from headstart.data import opening
from headstart.data.opening import is_marked, lines, opened

IN_WORDS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_ORDER = ",;\t"
_MARK = re.compile(f"[{_ORDER}]")
_TOLD = re.compile(rf'("?)sep=([{_ORDER}])\1\r?\n?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is written beside its cells."""

    separator: str = ","
    marked: bool = False
    """Whether a byte order mark stands first, by which spreadsheets know UTF-8."""
    told: bool = False
    """Whether a line such as `sep=;` stands before the header, by which Excel knows the separator."""


def layout_of(path: str) -> Layout:
    """That of a .csv file; only its header is read."""
    with opened(path) as file:
        marked, source = is_marked(file), dropwhile(_is_blank, lines(path, file))
        first = next(source, "")
        separator, _ = find_separator(chain([first], source))
        return Layout(separator, marked, told=_TOLD.fullmatch(first) is not None)


def find_separator(source: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The separator of a .csv, and its lines from the header on.

    >>> [find_separator(iter([header]))[0] for header in ("text;label", "text,a;b", 'text;"a,b"', '"text;label"')]
    [';', ',', ';', ',']
    >>> find_separator(iter(["sep=;\\n", "text,or not;label\\n"]))[0]
    ';'
    """
    held: list[str] = []
    source = dropwhile(_is_blank, source)
    first = next(source, "")
    if told := _TOLD.fullmatch(first):
        return told[2], source
    source = chain([first], source)

    def noted() -> Iterator[str]:
        size = 0
        for line in source:
            held.append(line)
            size += len(line)
            yield line
            if size > opening.LIMIT:  # a quote that is not closed, which the reader will tell
                return

    separator = _in_header(noted())
    return separator, chain(held, source)


def _is_blank(line: str) -> bool:
    return not line.strip("\r\n")


def _in_header(source: Iterable[str]) -> str:
    found: set[str] = set()
    is_quoted, at_start = False, True
    for line in source:  # several, where a name has a line break in it
        place = 0
        while place < len(line):
            if is_quoted:
                end = line.find('"', place)
                if end < 0:
                    break
                is_quoted = line.startswith('""', end)  # a quote written twice is a letter
                place = end + (2 if is_quoted else 1)
            elif at_start and line[place] == '"':
                is_quoted, at_start, place = True, False, place + 1
            elif mark := _MARK.search(line, place):
                if mark[0] == ",":
                    return ","
                found.add(mark[0])
                at_start, place = True, mark.end()
            else:
                break
        if not is_quoted:
            break
    return next((mark for mark in _ORDER if mark in found and not is_quoted), ",")


class TableWriter:
    """Writes a table that is read again as it was: in its layout, a line feed after each row."""

    def __init__(self, file: IO[str], layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._rows = csv.writer(self, delimiter=layout.separator)

    def write(self, line: str) -> object:
        """Take a row from csv; it would leave a carriage return without quotes were its own rows to end without one."""
        return self._file.write(line.removesuffix("\r\n") + "\n")

    def header(self, names: Sequence[str]) -> None:
        """The first row; names that hold what would be taken for the separator stand between quotes."""
        if self._layout.marked:
            self._file.write("\ufeff")
        if self._layout.told:
            self._file.write(f"sep={self._layout.separator}\n")
        earlier = _ORDER[: _ORDER.index(self._layout.separator)]
        is_misleading = any(mark in name for mark in earlier for name in names)
        quoted = csv.writer(self, delimiter=self._layout.separator, quoting=csv.QUOTE_ALL)
        (quoted if is_misleading else self._rows).writerow(names)

    def row(self, cells: Sequence[object]) -> None:
        """Any other row."""
        self._rows.writerow(cells)
