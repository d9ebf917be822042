"""Console output: progress and messages on stderr, results on stdout, and the live table of runs.

On a terminal, a bar shows count, rate, note and time left, and drops the least important of them as the window narrows.
Elsewhere a plain line is printed every few seconds, so that a log stays readable.
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

REFRESH_SECONDS = 10.0
"""Seconds between two plain lines."""
SHORT_TASK_SECONDS = 1.0
"""A shorter task is not shown once it is done."""
_FLUSH_SECONDS = 0.1
_MAX_WIDTH = 110
_MIN_BAR, _MAX_BAR = 10, 40
_PENDING, _MAX_NAME = "·", 16
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that make a terminal show the rest of a line in another order."""
_CONTROL_CHARACTERS = {code: "�" for code in (*range(32), *range(127, 160), *_REORDERING) if chr(code) not in "\t\n"}
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

    def __init__(self, *, quiet: bool = False, names: Mapping[str, str] | None = None) -> None:
        """Create a console.

        Args:
            names: the options of the command by setting, where they differ from those of the training commands.
        """
        self._quiet = quiet
        self._names = names
        self._stderr = rich.console.Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._is_live = not quiet and self._stderr.is_terminal and not self._stderr.is_dumb_terminal
        self._bars: _Bars | None = None
        self._depth = 0
        self._last_line = time.monotonic()

    def say(self, line: str) -> None:
        """Print one line, above the bars if there are any; settings are named by their options."""
        if not self._quiet:
            self._stderr.print(
                Text(printable(use_option_names(line, self._names))), soft_wrap=not self._stderr.is_terminal
            )

    @contextmanager
    def task(self, name: str, total: float | None, unit: str) -> Iterator[progress.ProgressTask]:
        """Show a task; a nested task is shown below it, and disappears when it is done."""
        if self._bars is None:
            self._bars = _Bars(self._stderr, is_live=self._is_live)
            self._bars.start()
            self._last_line = time.monotonic()
        bars, outermost = self._bars, self._depth == 0
        handle = _TaskHandle(self, bars, bars.add_task(name, total=total, unit=unit, note=""))
        self._depth += 1
        try:
            yield handle
        finally:
            self._depth -= 1
            handle.flush()
            if outermost:
                self._end(bars, bars.of(handle.task))
            else:
                bars.remove_task(handle.task)

    @contextmanager
    def board(self, title: str, planned: Mapping[progress.RunKey, int]) -> Iterator[progress.RunBoard]:
        """Show a table of runs above the bars of the current task; without a terminal nothing is drawn."""
        board = RunTable(title, planned)
        if self._bars is not None:
            self._bars.board = board
        try:
            yield board
        finally:
            if self._bars is not None:
                self._bars.board = None

    def result(self, line: str = "") -> None:
        """Print a line of the result."""
        print(printable(line) if sys.stdout.isatty() else line)  # noqa: T201

    def prose(self, line: str) -> None:
        """Print a sentence of the result; on a terminal it is wrapped between words."""
        if sys.stdout.isatty():
            rich.console.Console(highlight=False, markup=False, emoji=False).print(Text(printable(line)))
        else:
            self.result(line)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> None:
        """Print a table of the result; columns from `numbers_from` on are right-aligned."""
        stdout = rich.console.Console(highlight=False, markup=False, emoji=False)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for index, column in enumerate(columns):
            table.add_column(Text(printable_line(column)), justify="left" if index < numbers_from else "right")
        for row in rows:
            table.add_row(*(Text(printable_line(cell)) for cell in row))
        if not stdout.is_terminal:
            # a file has no width: nothing is wrapped
            unlimited = stdout.options.update(max_width=sys.maxsize)
            stdout.width = max(stdout.width, stdout.measure(table, options=unlimited).maximum)
        stdout.print(table)

    def facts(self, title: str, facts: Iterable[tuple[str, str]]) -> None:
        """Print a title and rows of name and text below it; on a terminal the text is wrapped in its column."""
        rows = [(f"  {printable(name)}", printable(text)) for name, text in facts]
        stdout = rich.console.Console(highlight=False, markup=False, emoji=False)
        if not stdout.is_terminal:
            width = max((len(name) for name, _ in rows), default=0)
            self.result("\n".join([printable(title), *(f"{name:<{width}}  {text}" for name, text in rows)]))
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, text in rows:
            table.add_row(Text(name, "yellow" if "!" in name else "", no_wrap=True), Text(text))
        stdout.print(Text(printable(title), "bold"), table, sep="\n")

    def log_progress(self, task: Task) -> None:
        """Print a line every few seconds where no bar can be drawn."""
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
    """A task as recipes see it; updates reach rich a few times per second, not at every step."""

    def __init__(self, console: Console, bars: "_Bars", task: TaskID) -> None:
        self._console, self._bars, self.task = console, bars, task
        self._pending, self._note, self._flushed = 0.0, "", 0.0

    def advance(self, amount: float = 1, note: str = "", total: float | None = None) -> None:
        """Advance by `amount`; an empty note keeps the last one."""
        if total is not None:
            self._bars.update(self.task, total=total)
        self._pending += amount
        self._note = note or self._note
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()
            self._console.log_progress(self._bars.of(self.task))

    def flush(self) -> None:
        """Pass pending updates to rich."""
        self._bars.update(self.task, advance=self._pending, note=self._note)
        self._pending, self._flushed = 0.0, time.monotonic()


class _Bars(Progress):
    """The tasks and live display of rich, with our own lines."""

    def __init__(self, console: rich.console.Console, *, is_live: bool) -> None:
        self._window = console  # rich renders once while it is still being constructed
        self.board: RunTable | None = None
        # results may go to stdout while a bar is shown on stderr: only stderr is redirected around the bar
        # the rate is taken over rich's last thousand samples, even where a comparison adds one in ten minutes
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
        """Render a line per task, names in one column, with a table of runs above them."""
        width = min(self._window.width, _MAX_WIDTH)
        name_width = max((len(task.description) for task in self.tasks), default=0)
        bar = "=-" if self._window.options.ascii_only else "━─"
        lines = [describe_task(task, width, bar=bar, name_width=name_width) for task in self.tasks]
        bars = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        bars.highlight_regex(r"━+", "green")
        return rich.console.Group(self.board.table(self._window), "", bars) if self.board else bars


class RunTable:
    """The `RunBoard` of the command line; `planned` is the number of runs per row and column."""

    def __init__(self, title: str, planned: Mapping[RunKey, int]) -> None:
        self._title, self._planned = title, planned
        self._values: dict[RunKey, list[float]] = {key: [] for key in planned}
        self._current: RunKey | None = None

    def start(self, key: RunKey) -> None:
        """Mark a run as current."""
        self._current = key

    def add(self, key: RunKey, value: float) -> None:
        """Add the result of a run."""
        self._values[key].append(value)
        self._current = None if self._current == key else self._current

    def table(self, console: rich.console.Console) -> Table:
        """Return the table, with counts and full names where the window is wide enough."""
        for counts, clip in ((True, False), (False, False), (False, True)):
            table = self._table(counts=counts, clip=clip, mark=">" if console.options.ascii_only else "▸")
            if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
                break
        return table

    def _table(self, *, counts: bool, clip: bool, mark: str) -> Table:
        rows, columns = (list(dict.fromkeys(key[axis] for key in self._planned)) for axis in (0, 1))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(self._title, no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            # two folder names may differ at either end
            name = f"{row[: _MAX_NAME // 2 - 1]}…{row[-_MAX_NAME // 2 :]}" if clip and len(row) > _MAX_NAME else row
            table.add_row(name, *(self._cell((row, column), counts, mark) for column in columns))
        return table

    def _cell(self, key: RunKey, counts: bool, mark: str) -> Text:
        values, planned = self._values.get(key, []), self._planned.get(key, 0)
        mean = f"{100 * sum(values) / len(values):.1f}" if values else _PENDING if planned else ""
        count = f" {len(values)}/{planned}" if counts and planned > 1 else ""
        if key == self._current:
            return Text(f"{mark} {mean}{count}", "bold cyan")
        # as wide as with the mark, so that the table does not move
        return Text(f"  {mean}{count}", "" if len(values) == planned else "dim")


def describe_task(task: Task, width: int, *, bar: str, name_width: int = 0) -> str:
    """Return one line about a task, with as many figures as fit in `width`.

    Args:
        bar: the characters of the done and the remaining part; empty for no bar.
    """
    name, figures = task.description.ljust(name_width), _task_numbers(task)
    draws_bar = bool(bar and task.total)
    for with_bar, *columns in _LAYOUTS:
        texts = [name, *(figures[column] for column in columns if figures[column])]
        room = width - len("  ".join(texts)) - 2
        if room >= (_MIN_BAR if with_bar and draws_bar else -2):
            break
    if draws_bar and room >= _MIN_BAR:
        length = min(room, _MAX_BAR)
        done = min(round(length * task.completed / (task.total or 1)), length)
        texts.insert(1, bar[0] * done + bar[1] * (length - done))
    return "  ".join(texts)


def _task_numbers(task: Task) -> dict[str, str]:
    unit, speed, total = task.fields["unit"], task.finished_speed or task.speed, task.total
    done = math.floor(task.completed + 1e-6)  # a comparison counts its short runs as fractions of one
    noun = unit.removesuffix("s") if math.floor((total or done) + 1e-6) == 1 else unit
    count = f"{compact_number(done)} {noun}" if done else ""  # empty for work that is not counted
    figures = {"count": count, "percent": "", "rate": "", "note": task.fields["note"]}
    if total:
        figures["count"] = f"{compact_number(done)}/{compact_number(math.floor(total + 1e-6))} {noun}"
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
    """Replace control characters: a label of a file, or a generated word, may contain an escape sequence.

    >>> printable("a\\tb\\x1b[31m")
    'a\\tb�[31m'
    """
    return text.translate(_CONTROL_CHARACTERS)


def printable_line(text: str) -> str:
    """Replace control characters, and line ends by spaces: a label is one line wherever it is shown.

    >>> printable_line("a\\nb\\x1b[31m")
    'a b�[31m'
    """
    return printable(text).replace("\n", " ")


def compact_number(number: float) -> str:
    """Format a count or a rate in few characters.

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
    """Format a duration as on a clock.

    >>> format_clock(5), format_clock(200), format_clock(3700), format_clock(200_000)
    ('0:05', '3:20', '1:01:40', '2d 7:33')
    """
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02}"
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"
