"""The learning rate over the life of a run."""

import math
from typing import Literal


def lr_share(step: int, *, steps: int, warmup: float, schedule: Literal["constant", "linear", "cosine"]) -> float:
    """The share of the peak rate at a step, counted from 0: a linear rise over `warmup` of the steps, then the schedule.

    >>> [round(lr_share(step, steps=6, warmup=1 / 3, schedule="linear"), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rise = round(steps * warmup)
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    if schedule == "linear":
        return 1 - done
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0
