"""The learning rate over the life of a run."""

import math

from headstart.config import OptimConfig


def lr_share(step: int, steps: int, config: OptimConfig) -> float:
    """The share of the peak rate at a step, counted from 0: a linear rise over the warm-up, then the schedule.

    >>> config = OptimConfig(warmup=1 / 3, schedule="linear")
    >>> [round(lr_share(step, 6, config), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rise = round(steps * config.warmup)
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    if config.schedule == "linear":
        return 1 - done
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "wsd":
        return min(1.0, (steps - step) / max(1, round(steps * config.cooldown)))
    return 1.0
