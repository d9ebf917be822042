"""Progress bars, tables and the live table of runs.

A table of runs while they are under way: the mean so far in every cell, and which one is being worked on.

What a person sees: bars and remarks on stderr, results on stdout.

On a terminal, a bar with count, rate, note and time left, which drops its least needed parts as the window narrows.
Anywhere else, a plain line now and then, so that a log stays readable.
"""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import rich.console
from rich.progress import Progress, Task, TaskID
from rich.table import Table
from rich.text import Text

from headstart import progress
from headstart.cli.options import use_option_names
from headstart.progress import RunKey

_WAITING, _NAME = "·", 16


class RunTable:
    """The `progress.Board` of the command line; `planned` says how many results each cell will have."""

    def __init__(self, title: str, planned: Mapping[RunKey, int]) -> None:
        self._title, self._planned = title, planned
        self._values: dict[RunKey, list[float]] = {place: [] for place in planned}
        self._at: RunKey | None = None

    def start(self, place: RunKey) -> None:
        """Work in a cell begins."""
        self._at = place

    def add(self, place: RunKey, value: float) -> None:
        """A cell has one more result."""
        self._values[place].append(value)
        self._at = None if self._at == place else self._at

    def table(self, console: rich.console.Console) -> Table:
        """The table, with counts and whole names where the window is wide enough."""
        for counts, clip in ((True, False), (False, False), (False, True)):
            table = self._table(counts=counts, clip=clip, mark=">" if console.options.ascii_only else "▸")
            if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
                break
        return table

    def _table(self, *, counts: bool, clip: bool, mark: str) -> Table:
        rows, columns = (list(dict.fromkeys(place[side] for place in self._planned)) for side in (0, 1))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(self._title, no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            # what tells two folders apart may stand at either end
            name = f"{row[: _NAME // 2 - 1]}…{row[-_NAME // 2 :]}" if clip and len(row) > _NAME else row
            table.add_row(name, *(self._cell((row, column), counts, mark) for column in columns))
        return table

    def _cell(self, place: RunKey, counts: bool, mark: str) -> Text:
        values, wanted = self._values.get(place, []), self._planned.get(place, 0)
        figure = f"{100 * sum(values) / len(values):.1f}" if values else _WAITING if wanted else ""
        count = f" {len(values)}/{wanted}" if counts and wanted > 1 else ""
        if place == self._at:
            return Text(f"{mark} {figure}{count}", "bold cyan")
        # as wide as with the mark: a table that moves cannot be read
        return Text(f"  {figure}{count}", "" if len(values) == wanted else "dim")


REFRESH_SECONDS = 10.0
"""Seconds between two plain lines."""
SHORT_TASK_SECONDS = 1.0
"""Seconds: a shorter stretch of work leaves no trace once it is done."""
_FLUSH = 0.1
_WIDEST = 110
_CONTROL = {code: "�" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_SHORTEST, _LONGEST = 10, 40
# whether there must be room for a bar, and the figures beside it, from the widest window to the narrowest
_LAYOUTS: tuple[tuple[bool, *tuple[str, ...]], ...] = (
    (True, "count", "rate", "note", "left"),
    (True, "percent", "rate", "note", "left"),
    (True, "percent", "note", "left"),
    (False, "percent", "note", "left"),
    (False, "percent", "left"),
    (False, "percent"),
)


class Console:
    """The `progress.Progress` of the command line, and the printer of its results."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stderr = rich.console.Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._is_live = not quiet and self._stderr.is_terminal and not self._stderr.is_dumb_terminal
        self._bars: _Bars | None = None
        self._depth = 0
        self._last_line = time.monotonic()

    def say(self, line: str) -> None:
        """Tell the person one line, above the bars if there are any; settings are named as they are typed."""
        if not self._quiet:
            self._stderr.print(Text(printable(use_option_names(line))), soft_wrap=not self._stderr.is_terminal)

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[progress.ProgressTask]:
        """Show a stretch of work; one inside another is shown under it, and is gone when it is done."""
        if self._bars is None:
            self._bars = _Bars(self._stderr, is_live=self._is_live)
            self._bars.start()
            self._last_line = time.monotonic()
        bars, outermost = self._bars, self._depth == 0
        stretch = _TaskHandle(self, bars, bars.add_task(name, total=total, unit=unit, note=""))
        self._depth += 1
        try:
            yield stretch
        finally:
            self._depth -= 1
            stretch.flush()
            if outermost:
                self._end(bars, bars.of(stretch.task))
            else:
                bars.remove_task(stretch.task)

    @contextmanager
    def board(self, title: str, planned: Mapping[progress.RunKey, int]) -> Iterator[progress.RunBoard]:
        """Show a table of runs above the bars of the task under way; elsewhere remarks tell of every run."""
        board = RunTable(title, planned)
        if self._bars is not None:
            self._bars.board = board
        try:
            yield board
        finally:
            if self._bars is not None:
                self._bars.board = None

    def result(self, line: str = "") -> None:
        """Print a line of the answer."""
        print(printable(line) if sys.stdout.isatty() else line)  # noqa: T201

    def prose(self, line: str) -> None:
        """Print a sentence of the answer; on a terminal it is folded between words."""
        if sys.stdout.isatty():
            rich.console.Console(highlight=False, markup=False, emoji=False).print(Text(printable(line)))
        else:
            self.result(line)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> None:
        """Print a table of the answer; columns from `numbers_from` on are set to the right."""
        stdout = rich.console.Console(highlight=False, markup=False, emoji=False)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for index, column in enumerate(columns):
            table.add_column(Text(printable(column)), justify="left" if index < numbers_from else "right")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        if not stdout.is_terminal:
            # a file has no width: nothing is folded for it
            endless = stdout.options.update(max_width=sys.maxsize)
            stdout.width = max(stdout.width, stdout.measure(table, options=endless).maximum)
        stdout.print(table)

    def facts(self, title: str, facts: Iterable[tuple[str, str]]) -> None:
        """Print a title and lines of name and words under it; on a terminal the words are folded in their column."""
        rows = [(f"  {printable(name)}", printable(words)) for name, words in facts]
        stdout = rich.console.Console(highlight=False, markup=False, emoji=False)
        if not stdout.is_terminal:
            width = max((len(name) for name, _ in rows), default=0)
            self.result("\n".join([printable(title), *(f"{name:<{width}}  {words}" for name, words in rows)]))
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, words in rows:
            table.add_row(Text(name, "yellow" if "!" in name else "", no_wrap=True), Text(words))
        stdout.print(Text(printable(title), "bold"), table, sep="\n")

    def tell(self, task: Task) -> None:
        """Where no bar can be drawn, print a line every so often."""
        now = time.monotonic()
        if not self._is_live and not task.finished and now - self._last_line >= REFRESH_SECONDS:
            self._last_line = now
            self.say(describe_task(task, sys.maxsize, bar=""))

    def _end(self, bars: "_Bars", task: Task) -> None:
        task.finished_time = task.elapsed
        is_brief = (task.elapsed or 0.0) < SHORT_TASK_SECONDS
        bars.live.transient = is_brief
        bars.stop()
        self._bars = None
        if not self._is_live and not is_brief:
            self.say(describe_task(task, sys.maxsize, bar=""))


class _TaskHandle:
    """One stretch of work, as recipes see it; what is done is handed on a few times a second, not at every step."""

    def __init__(self, console: Console, bars: "_Bars", task: TaskID) -> None:
        self._console, self._bars, self.task = console, bars, task
        self._waiting, self._note, self._flushed = 0.0, "", 0.0

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Move on by `amount`; an empty note leaves the last one standing."""
        self._waiting += amount
        self._note = note or self._note
        if time.monotonic() - self._flushed >= _FLUSH:
            self.flush()
            self._console.tell(self._bars.of(self.task))

    def flush(self) -> None:
        """Hand on what is done."""
        self._bars.update(self.task, advance=self._waiting, note=self._note)
        self._waiting, self._flushed = 0.0, time.monotonic()


class _Bars(Progress):
    """Rich's bookkeeping and live display, with lines of ours."""

    def __init__(self, console: rich.console.Console, *, is_live: bool) -> None:
        self._window = console  # rich asks for the first picture while it is still being built
        self.board: RunTable | None = None
        # results may go to stdout while a bar stands on stderr: only stderr is led around the bar
        # the rate is taken over rich's last thousand samples, even where a comparison gives one in ten minutes
        super().__init__(
            console=console,
            disable=not is_live,
            redirect_stdout=False,
            refresh_per_second=4,
            speed_estimate_period=float("inf"),
        )

    def of(self, task: TaskID) -> Task:
        return self._tasks[task]

    def get_renderable(self) -> rich.console.RenderableType:
        """One line a task, names in one column; a table of runs above them."""
        width = min(self._window.width, _WIDEST)
        longest = max((len(task.description) for task in self.tasks), default=0)
        bar = "=-" if self._window.options.ascii_only else "━─"
        lines = [describe_task(task, width, bar=bar, name_width=longest) for task in self.tasks]
        picture = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        picture.highlight_regex(r"━+", "green")
        return rich.console.Group(self.board.table(self._window), "", picture) if self.board else picture


def describe_task(task: Task, width: int, *, bar: str, name_width: int = 0) -> str:
    """One line about a task, with as many of its parts as fit in `width`.

    Args:
        bar: the characters for what is done and what is not; empty for no bar.
    """
    name, figures = task.description.ljust(name_width), _task_numbers(task)
    draws = bool(bar and task.total)
    for with_bar, *parts in _LAYOUTS:
        words = [name, *(figures[part] for part in parts if figures[part])]
        room = width - len("  ".join(words)) - 2
        if room >= (_SHORTEST if with_bar and draws else -2):
            break
    if draws and room >= _SHORTEST:
        length = min(room, _LONGEST)
        done = min(round(length * task.completed / (task.total or 1)), length)
        words.insert(1, bar[0] * done + bar[1] * (length - done))
    return "  ".join(words)


def _task_numbers(task: Task) -> dict[str, str]:
    unit, speed, total = task.fields["unit"], task.finished_speed or task.speed, task.total
    done = math.floor(task.completed + 1e-6)  # a comparison counts its short runs as small parts of one
    shown = unit.removesuffix("s") if math.floor((total or done) + 1e-6) == 1 else unit
    count = f"{compact_number(done)} {shown}" if done else ""  # of work that is not counted, nothing is said
    figures = {"count": count, "percent": "", "rate": "", "note": task.fields["note"]}
    if total:
        figures["count"] = f"{compact_number(done)}/{compact_number(math.floor(total + 1e-6))} {shown}"
        figures["percent"] = f"{100 * task.completed / total:.0f}%"
    else:
        figures["percent"] = figures["count"]
    if speed:
        figures["rate"] = (
            f"{compact_number(speed)} {unit}/s" if speed >= 0.1 else f"{compact_number(60 * speed)} {unit}/min"
        )
    if task.finished_time is not None:
        figures["left"] = f"in {format_clock(task.finished_time)}"
    elif total and task.time_remaining is not None:
        figures["left"] = f"{format_clock(task.time_remaining)} left"
    else:
        figures["left"] = f"{format_clock(task.elapsed or 0)} so far"
    return figures


def printable(text: str) -> str:
    """Text that cannot steer a terminal: a file's label, or a model's next word, may hold an escape sequence.

    >>> printable("a\\tb\\x1b[31m")
    'a\\tb�[31m'
    """
    return text.translate(_CONTROL)


def compact_number(number: float) -> str:
    """A count or a rate in few characters.

    >>> [compact_number(number) for number in (0.123, 7, 52.06, 3200, 16384, 1_250_000, 3.2e9)]
    ['0.12', '7', '52.1', '3,200', '16.4k', '1.25M', '3.2G']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{letter}"
    if number == int(number) or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number < 1 else f"{number:.1f}"


def format_clock(seconds: float) -> str:
    """A duration as on a clock.

    >>> format_clock(5), format_clock(200), format_clock(3700), format_clock(200_000)
    ('0:05', '3:20', '1:01:40', '2d 7:33')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
