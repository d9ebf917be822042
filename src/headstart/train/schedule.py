"""The learning rate over the life of a run."""

import math

from headstart.config import FinetuneLoop, OptimConfig


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


def epoch_and_run(rows: int, loop: FinetuneLoop) -> tuple[int, int]:
    """The steps of an epoch and of the whole run over `rows` labelled rows.

    >>> epoch_and_run(1600, FinetuneLoop(batch_size=16, epochs=6, least_steps=300, most_steps=5000))
    (100, 600)
    >>> epoch_and_run(50, FinetuneLoop(batch_size=16, epochs=6, least_steps=300, most_steps=5000))  # 13 passes an epoch
    (52, 312)
    >>> epoch_and_run(25000, FinetuneLoop(batch_size=16, epochs=6, least_steps=300, most_steps=5000))  # 3 epochs
    (1563, 4689)
    """
    one_pass = -(-rows // (loop.batch_size * loop.accumulate))
    epoch = one_pass * max(1, -(-loop.least_steps // (one_pass * loop.epochs)))
    epochs = loop.epochs if loop.most_steps is None else max(1, min(loop.epochs, loop.most_steps // epoch))
    return epoch, epoch * epochs
