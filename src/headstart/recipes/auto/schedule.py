"""The rules of `headstart auto`: when pretraining pays, and what network training the time allows.

Every rule is a function of numbers, so that it can be read, tested and tuned alone. No torch.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from headstart.config.schema import FinetuneLoop
from headstart.progress import pluralize

MIN_PRETRAINING_MEGABYTES = 1.0
GPU_PRETRAINING_SHARE = 0.4
CPU_PRETRAINING_SHARE = 0.5
MIN_CPU_PRETRAINING_MINUTES = 60.0
"""On a CPU, a network is pretrained on the table's own text from so many minutes on, and no starter is continued."""

LINEAR_FRACTION = 0.4
"""The fraction of the time that the linear model may take where a network follows; it is needed for large tables only."""
FOLDS = (5, 4, 3, 2)
FULL_PLAN_FOLDS = 2
"""The folds, with a final training on all rows, that the time must allow for a starter that has a faster alternative."""
HOLD_OUT_FRACTION, MAX_HOLD_OUT_ROWS = 0.2, 2000
MIN_STEPS = 100
"""A network that could be trained for fewer steps than this, where its settings ask for more, is left out."""
STEPS_PER_ROW = 3
"""Few rows have so many steps per row: on seven tables, 100 steps on 30 rows and 180 on 60 were as accurate as 300."""
TIME_FRACTION = 0.9
"""The fraction of the minutes that is planned; the rest absorbs what is slower than it was when it was timed."""
FINISH_SECONDS = 8.0
"""Seconds for the bundle and the report."""


def pretraining_minutes(megabytes: float, minutes: float, *, gpu: bool, starter: bool) -> float:
    """Return how long to pretrain on the table's own text, or to continue a starter on it; 0 where it does not pay.

    Args:
        megabytes: the text of the table, labelled or not, without test.
        minutes: the time of the whole command.
        starter: whether there is a starter to continue; else the network begins from random weights.

    >>> pretraining_minutes(5, 10, gpu=True, starter=True), pretraining_minutes(5, 10, gpu=False, starter=False)
    (4.0, 0.0)
    """
    if megabytes < MIN_PRETRAINING_MEGABYTES:
        return 0.0
    if gpu:
        return GPU_PRETRAINING_SHARE * minutes
    return CPU_PRETRAINING_SHARE * minutes if minutes >= MIN_CPU_PRETRAINING_MINUTES and not starter else 0.0


class Speed(NamedTuple):
    """How fast a network is on this machine."""

    step: float
    """Seconds per optimizer step."""
    row: float
    """Seconds to score one row."""


@dataclass(frozen=True)
class NetworkPlan:
    """How a network is cross-validated and trained."""

    folds: int
    """The number of folds; 1 is a single hold-out."""
    rows: int
    """The number of training rows that the network uses."""
    steps: int | None
    """The largest number of steps of a training; None takes that of the settings."""
    refit: bool
    """Train once more on all rows; else the network of the last fold is kept."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @property
    def held_out(self) -> int:
        """The rows that a fold holds out."""
        if self.folds > 1:
            return self.rows // self.folds
        return max(1, min(int(HOLD_OUT_FRACTION * self.rows), MAX_HOLD_OUT_ROWS))

    def loop(self, loop: FinetuneLoop) -> FinetuneLoop:
        """Return the loop settings of a training: those of the run, with the steps of the plan.

        The last epoch is kept: validation rows judge a fold, and may not also choose its epoch.
        """
        changes: dict[str, Any] = {"select": "last", "patience": None, "minutes": None}
        if self.steps is not None:
            max_steps = self.steps if loop.max_steps is None else min(loop.max_steps, self.steps)
            changes |= {"max_steps": max_steps, "min_steps": min(loop.min_steps, self.steps)}
        return loop.model_copy(update=changes)

    def training_steps(self, loop: FinetuneLoop) -> tuple[int, int]:
        """Return the steps of a fold and of the training on all rows."""
        from headstart.train.optimizers import epoch_and_total_steps

        planned = self.loop(loop)
        return (
            epoch_and_total_steps(self.rows - self.held_out, planned)[1],
            epoch_and_total_steps(self.rows, planned)[1],
        )

    def seconds(self, speed: Speed, loop: FinetuneLoop) -> float:
        """Forecast the seconds of all trainings: a fold scores its held-out rows at its end, and some after every epoch."""
        from headstart.recipes.finetune.trainer import INTERIM_FRACTION, MIN_INTERIM_ROWS

        fold_steps, all_steps = self.training_steps(loop)
        training = fold_steps * speed.step
        interim = max(INTERIM_FRACTION * training, (loop.epochs - 1) * MIN_INTERIM_ROWS * speed.row)
        scoring = min(interim, (loop.epochs - 1) * self.held_out * speed.row) + self.held_out * speed.row
        return self.folds * (training + scoring) + self.refit * all_steps * speed.step

    def describe(self, speed: Speed, loop: FinetuneLoop) -> str:
        """Describe the trainings and their forecast time in one line."""
        fold_steps, _ = self.training_steps(loop)
        folds = f"{self.folds} folds" if self.folds > 1 else "one hold-out split"
        last = " and a final training on all rows" if self.refit else ", no final training on all rows"
        each = " each" if self.folds > 1 or self.refit else ""
        minutes = round(self.seconds(speed, loop) / 60, 1)
        duration = f"about {pluralize(minutes, 'minute')}" if minutes else "a few seconds"
        return f"network: {folds}{last}, {pluralize(fold_steps, 'step')}{each} on {self.rows:,} rows, {duration}"


def plan_network(
    rows: int, seconds: float, speed: Speed, loop: FinetuneLoop, max_folds: int | None = None
) -> NetworkPlan | None:
    """Return the most thorough plan that fits into the seconds; None if the network could not learn enough in them.

    In this order: folds (5 to 2) and a final training on all rows, a hold-out and a final training, a hold-out alone, a
    hold-out with fewer rows or steps.
    """
    rows = most_rows(rows, loop)
    most = min(rows // 2, max_folds or FOLDS[0])
    plans = [NetworkPlan(folds, rows, None, True) for folds in (*FOLDS, 1) if folds <= most]
    plans.append(NetworkPlan(1, rows, None, False))
    for plan in plans:
        if plan.seconds(speed, loop) <= seconds:
            return plan
    return _reduced(rows, seconds, speed, loop)


def _reduced(rows: int, seconds: float, speed: Speed, loop: FinetuneLoop) -> NetworkPlan | None:
    """Return a hold-out plan with as many steps as fit into the seconds."""
    full, _ = NetworkPlan(1, rows, None, False).training_steps(loop)
    min_steps = min(MIN_STEPS, full)
    if _shortened(rows, min_steps, loop).seconds(speed, loop) > seconds:
        return None
    steps = full
    while steps > min_steps and _shortened(rows, steps, loop).seconds(speed, loop) > seconds:
        steps = max(min_steps, min(steps - 1, int(0.95 * steps)))
    return _shortened(rows, steps, loop)


def _shortened(rows: int, steps: int, loop: FinetuneLoop) -> NetworkPlan:
    """Return a hold-out plan with so many steps, and no more rows than they read."""
    held_out = NetworkPlan(1, rows, None, False).held_out
    return NetworkPlan(1, min(rows, steps * loop.batch_size * loop.accumulate + held_out), steps, False)


def steps_for_few_rows(rows: int, min_steps: int) -> int:
    """Return the smallest number of steps of a training on so many rows.

    >>> [steps_for_few_rows(rows, 300) for rows in (12, 60, 100, 1000)]
    [100, 180, 300, 300]
    """
    return min(min_steps, max(MIN_STEPS, STEPS_PER_ROW * rows))


def most_rows(rows: int, loop: FinetuneLoop) -> int:
    """Return the number of rows that the network can use: as many as its largest number of steps reads."""
    return rows if loop.max_steps is None else min(rows, loop.max_steps * loop.batch_size * loop.accumulate)


def seconds_for_network(rows: int, speed: Speed, loop: FinetuneLoop) -> float:
    """Return the seconds of the shortest plan: a hold-out with the smallest useful number of steps."""
    rows = most_rows(rows, loop)
    full, _ = NetworkPlan(1, rows, None, False).training_steps(loop)
    return _shortened(rows, min(MIN_STEPS, full), loop).seconds(speed, loop)
