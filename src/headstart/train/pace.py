"""How many steps fit into a time: a few are taken, timed and forgotten."""

import time
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from headstart.train.loop import StepReport
from headstart.train.ranks import ALONE, Ranks

TRAINING_SHARE = 0.93
"""Of the minutes; measuring, saving and sampling take their part too."""
_WARM, _LEAST, _MOST, _SHARE = 2, 2, 40, 0.05
_UNUSUAL = 5.0


def seconds_a_step(
    reports: Iterable[StepReport], budget: float, ranks: Ranks = ALONE, *, compiled: bool = False
) -> float:
    """The mean time of the first steps: some dozens, or what fits in a twentieth of `budget` seconds.

    Two are enough where they take a tenth of it and nothing is compiled: they are forgotten, and the time is not.
    Those that warm up do not count, nor do those that take many times as long as the one in the middle: a compiler that
    meets a new kind of row at the tenth step works for seconds, once. What it takes is no reason to stop early either,
    as long as it leaves most of the time.
    """
    started = time.monotonic()
    ends: list[float] = []
    for count, _ in enumerate(reports, start=1):
        ends.append(time.monotonic())
        taken = _after_warming_up(ends)
        quick = [seconds for seconds in taken if seconds <= _UNUSUAL * min(taken)]
        long = sum(quick) > _SHARE * budget or sum(taken) > 4 * _SHARE * budget
        enough = count >= _WARM + _MOST or (count >= _WARM + _LEAST and long)
        spent = (ends[-1] - started) / budget
        slow = not compiled and count > 1 and spent > 2 * _SHARE and ends[-1] - ends[-2] > 0.5 * (ends[0] - started)
        if ranks.any(enough or slow):  # clocks differ, and all must stop after the same step
            break
    taken = _after_warming_up(ends) or [after - before for before, after in pairwise(ends)] or [ends[-1] - started]
    usual = [seconds for seconds in taken if seconds <= _UNUSUAL * median(taken)]
    return sum(usual) / len(usual)


def _after_warming_up(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)][_WARM - 1 :]
