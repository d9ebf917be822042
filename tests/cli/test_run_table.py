"""The table of runs that fills up while a comparison runs, in windows of any width."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
import rich.console

from headstart.cli.console import Console, RunTable

SOURCE = Path(__file__).parents[2] / "src"
ARMS = ("linear", "scratch", "pretrained:books-and-reviews")
PLANNED = {(arm, budget): 1 if arm == "linear" and budget == "all" else 3 for arm in ARMS for budget in ("50", "all")}


def shown(width: int, board: RunTable) -> list[str]:
    console = rich.console.Console(width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(board.table(console))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.fixture
def board() -> RunTable:
    board = RunTable("test accuracy", PLANNED)
    for key, values in {
        ("linear", "50"): (0.6, 0.7, 0.8),
        ("scratch", "50"): (0.5, 0.6),
        ("linear", "all"): (0.8,),
    }.items():
        for value in values:
            board.start(key)
            board.add(key, value)
    board.start(("scratch", "50"))
    return board


def test_a_wide_window_has_means_counts_and_the_run_under_way(board):
    assert shown(140, board) == [
        "test accuracy                         50      all",
        "linear                          70.0 3/3     80.0",
        "scratch                       ▸ 55.0 2/3    · 0/3",
        "pretrained:books-and-reviews       · 0/3    · 0/3",
    ]


def test_a_narrow_window_leaves_counts_out_and_then_shortens_names(board):
    assert shown(46, board) == [
        "test accuracy                     50     all",
        "linear                          70.0    80.0",
        "scratch                       ▸ 55.0       ·",
        "pretrained:books-and-reviews       ·       ·",
    ]
    assert shown(38, board) == [
        "test accuracy         50     all",
        "linear              70.0    80.0",
        "scratch           ▸ 55.0       ·",
        "pretrai…-reviews       ·       ·",
    ]


@pytest.mark.parametrize("width", [10, 24, 60, 140])
def test_no_line_is_wider_than_the_window(board, width):
    assert max(map(len, shown(width, board))) <= width


def test_a_finished_run_is_no_longer_under_way(board):
    board.add(("scratch", "50"), 0.7)
    assert shown(140, board)[2] == "scratch                         60.0 3/3    · 0/3"


def test_elsewhere_no_table_is_drawn(capsys):
    console = Console()
    with console.task("comparing", 1, "runs") as bar, console.board("test accuracy", PLANNED) as board:
        board.start(("linear", "50"))
        board.add(("linear", "50"), 0.5)
        console.say("linear, 50 labels, seed 0: validation 0.5000, test 0.5000")
        bar.advance()
    assert capsys.readouterr().err == "linear, 50 labels, seed 0: validation 0.5000, test 0.5000\n"


STORY = """
from headstart.cli import console as module
module.SHORT_TASK_SECONDS = 0.0
console = module.Console()
planned = {(arm, "all"): 2 for arm in ("linear", "scratch")}
with console.task("comparing", 4, "runs") as bar, console.board("test accuracy", planned) as board:
    for key in planned:
        for value in (0.5, 0.75):
            board.start(key)
            console._bars.refresh()  # as it does some times a second
            board.add(key, value)
            bar.advance(1, key[0])
console.result("done")
"""


@pytest.mark.parametrize("columns", [60, 140])
def test_on_a_terminal_the_run_table_is_above_the_bar_and_disappears_at_the_end(columns):
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-c", STORY],
        stdout=follower,
        stderr=follower,
        stdin=follower,
        env=kept | {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color"},
    )
    os.close(follower)
    raw = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux's way of saying that the other side has closed
            break
        if not part:
            break
        raw += part
    assert process.wait() == 0
    os.close(leader)
    pictures = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", each) for each in re.split(r"\x1b\[\d*A", raw.decode())]
    assert any(re.search(r"scratch +▸ 50\.0 1/2", each) for each in pictures)
    assert "test accuracy" not in pictures[-1]
    assert re.search(r"comparing .*in \d+:\d\d\s+done", pictures[-1], re.DOTALL)
