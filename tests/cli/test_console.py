"""Bars on a terminal, plain lines elsewhere, results on stdout."""

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
import rich.console
from rich.progress import Task

from headstart.cli import console as room
from headstart.cli.console import Console, describe_task

SOURCE = Path(__file__).parents[2] / "src"


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr(room, "_Bars", lambda *args, **kwargs: _bars(clock, *args, **kwargs))
    return clock


def _bars(clock: Clock, *args, **kwargs):
    bars = BARS(*args, **kwargs)
    bars.get_time = clock
    return bars


BARS = room._Bars


def task(done: float, total: float | None, *, seconds: float = 10.0) -> Task:
    """A task that reached `done` at an even pace."""
    clock = Clock()
    progress = _bars(clock, rich.console.Console(), is_live=False)
    name = progress.add_task("pretraining", total=total, unit="steps", note="loss 3.214")
    progress.update(name, advance=done / 2)
    clock.now += seconds
    progress.update(name, advance=done / 2)
    return progress.of(name)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (110, f"pretraining  {'━' * 10}{'─' * 30}  25/100 steps  1.2 steps/s  loss 3.214  1:00 left"),
        (80, f"pretraining  {'━' * 4}{'─' * 13}  25/100 steps  1.2 steps/s  loss 3.214  1:00 left"),
        (60, f"pretraining  {'━' * 5}{'─' * 14}  25%  loss 3.214  1:00 left"),
        (40, "pretraining  25%  loss 3.214  1:00 left"),
        (30, "pretraining  25%  1:00 left"),
        (12, "pretraining  25%"),
    ],
)
def test_a_narrow_window_shows_fewer_figures(width, expected):
    line = describe_task(task(25, 100), width, bar="━─")
    assert line == expected
    assert len(line) <= max(width, 16)


def test_work_without_a_known_end_shows_its_count_and_rate():
    assert describe_task(task(25, None), 80, bar="━─") == "pretraining  25 steps  1.2 steps/s  loss 3.214  0:10 so far"


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(1, 1, "1/1 step"), (0, 1, "0/1 step"), (1, 2, "1/2 steps"), (1, None, "1 step"), (2, None, "2 steps")],
)
def test_one_is_singular(done, total, shown):
    assert describe_task(task(done, total), 200, bar="").split("  ")[1] == shown


def test_uncounted_work_shows_only_the_time():
    assert describe_task(task(0, None), 80, bar="━─") == "pretraining  loss 3.214  0:10 so far"


def test_slow_work_is_counted_by_the_minute():
    assert (
        describe_task(task(2, 4, seconds=100), 200, bar="")
        == "pretraining  2/4 steps  0.60 steps/min  loss 3.214  3:20 left"
    )


def test_elsewhere_a_line_is_printed_every_ten_seconds_and_at_the_end(clock, capsys):
    console = Console()
    with console.task("reading", 100, "rows") as bar:
        for _ in range(100):
            clock.now += 0.5
            bar.advance(1, "3 odd")
    assert capsys.readouterr().err.splitlines() == [
        "reading  20/100 rows  2 rows/s  3 odd  0:40 left",
        "reading  40/100 rows  2 rows/s  3 odd  0:30 left",
        "reading  60/100 rows  2 rows/s  3 odd  0:20 left",
        "reading  80/100 rows  2 rows/s  3 odd  0:10 left",
        "reading  100/100 rows  2 rows/s  3 odd  in 0:50",
    ]


def test_work_that_takes_no_time_leaves_no_line(clock, capsys):
    with Console().task("reading", 2, "rows") as bar:
        bar.advance(2)
    assert capsys.readouterr().err == ""


def test_work_that_is_taken_up_again_is_not_counted_as_fast(clock, capsys):
    with Console().task("pretraining", 1000, "steps") as bar:
        bar.advance(900)
        for _ in range(11):
            clock.now += 1
            bar.advance(1)
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "pretraining  910/1,000 steps  1 steps/s  1:30 left"


def test_a_nested_task_is_printed_only_when_it_lasts(clock, capsys):
    console = Console()
    with console.task("comparing", 2, "runs") as bar:
        with console.task("seed 0", 10, "epochs") as inner:
            clock.now += 3
            inner.advance(10)
        bar.advance()
        with console.task("seed 1", 10, "epochs") as inner:
            clock.now += 8
            inner.advance(5)
        bar.advance()
    assert capsys.readouterr().err.splitlines() == [
        "seed 1  5/10 epochs  0:08 so far",
        "comparing  2/2 runs  0.12 runs/s  in 0:11",
    ]


def test_remarks_are_printed_without_markup(capsys):
    Console().say("[bold]a label[/bold] :smile: " + 60 * "long ")
    assert capsys.readouterr().err == "[bold]a label[/bold] :smile: " + 60 * "long " + "\n"


def test_remarks_name_settings_by_their_options(capsys):
    Console().say("truncated (labelled.long_texts windows reads them completely)")
    assert capsys.readouterr().err == "truncated (--labelled.long-texts windows reads them completely)\n"


def test_nothing_that_is_shown_can_steer_the_terminal(capsys):
    console = Console()
    console.say("a label \x1b[2J")
    console.table(["class"], [["\x1b]0;title\x07"]])
    shown = capsys.readouterr()
    assert (shown.err, shown.out) == ("a label �[2J\n", "class     \n�]0;title�\n")


def test_a_label_in_a_table_is_one_line_in_its_own_order(capsys):
    Console().table(["class"], [["first\nsecond\u202eegassem"]])
    assert capsys.readouterr().out == "class               \nfirst second�egassem\n"


def test_quiet_says_nothing_but_still_prints_results(clock, capsys):
    console = Console(quiet=True)
    console.say("a remark")
    with console.task("reading", 10, "rows") as bar:
        clock.now += 60
        bar.advance(5)
    console.result("the answer")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("the answer\n", "")


def test_a_table_in_a_file_is_never_folded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    Console().table(["class", "rows"], [["[a] long name of a class", "1,000"], ["b", "7"]])
    assert capsys.readouterr().out.splitlines() == [
        "class                      rows",
        "[a] long name of a class  1,000",
        "b                             7",
    ]


STORY = """
from headstart.cli import console as module
module.SHORT_TASK_SECONDS = 0.0  # the bar of a longer task stays
console = module.Console()
with console.task("pretraining", 30, "steps") as bar:
    for step in range(30):
        bar.advance(1, f"loss {step / 10:.3f}")
        if step == 15:
            console.say("held-out loss 3.214")
console.result("done")
"""


def on_a_terminal(columns: int, **variables: str) -> str:
    """What the story writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    environment |= {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", **variables}
    process = subprocess.Popen(
        [sys.executable, "-c", STORY], stdout=follower, stderr=follower, stdin=follower, env=environment
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux's way of saying that the other side has closed
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    os.close(leader)
    return shown.decode()


def test_a_terminal_gets_a_bar_in_colour():
    shown = on_a_terminal(100)
    assert "30/30 steps" in shown
    assert "\x1b[32m━" in shown
    assert "held-out loss 3.214\r\n" in shown
    assert shown.endswith("done\r\n")


def test_no_color_is_respected():
    shown = on_a_terminal(100, NO_COLOR="1")
    assert "━" in shown
    assert "\x1b[32m" not in shown


def test_a_dumb_terminal_gets_lines():
    shown = on_a_terminal(100, TERM="dumb")
    assert "━" not in shown
    assert "\x1b[" not in shown
    assert "pretraining  30/30 steps" in shown


@pytest.mark.parametrize(("done", "shown"), [(3.98, "3/12 steps"), (12.2, "12/12 steps")])
def test_parts_of_a_run_are_not_counted(done, shown):
    """A comparison counts its linear arms as small parts of a run."""
    assert describe_task(task(done, 12.2), 200, bar="").split("  ")[1] == shown
