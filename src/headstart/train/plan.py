"""How many steps a run has, and how that number follows the clock where `loop.minutes` limits the run. No clock, no torch.

A run with minutes is planned from a few timed steps and planned again while it trains. Each change is recorded with the
step at which it takes effect, so learning rates and stages are functions of the step and of what was recorded: a resumed
run repeats them to the bit.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TIME_FRACTION = 0.97
"""The target fraction of the minutes, because the duration of the end of a run is an estimate."""
MILESTONES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Fractions of a run at which its steps are planned again if the forecast is off by `_SMALL_ERROR`."""
_SMALL_ERROR, _LARGE_ERROR = 0.01, 0.04
"""Errors of the forecast as fractions of the minutes; the large one changes the steps at any check."""
_MIN_DISTANCE = 0.02
"""The fraction of the minutes between two changes."""
_CHECKS, _CHECKED_FRACTION = 200, 50
"""A check comes after a two-hundredth of the run, or a fiftieth of the steps that were made, whichever is less."""
_WINDOW = 0.06
"""The fraction of the minutes over which the time of a step is averaged."""


class Replan(NamedTuple):
    """A change of the number of steps."""

    step: int
    """The steps that were made when it takes effect."""
    steps: int
    """The steps of the run from then on."""


@dataclass(frozen=True)
class Plan:
    """The steps of a run: as first planned, and every change since.

    >>> plan = Plan(100).replanned(50, 75)  # the second half in half the steps
    >>> plan.steps, [plan.position(step) for step in (10, 50, 51, 75)]
    (75, [10.0, 50.0, 52.0, 100.0])
    """

    first: int
    """The steps as planned before the first one."""
    replans: tuple[Replan, ...] = ()

    @property
    def steps(self) -> int:
        """The steps of the run, all changes included."""
        return self.replans[-1].steps if self.replans else self.first

    def steps_at(self, step: int) -> int:
        """Return the steps of the run as they were planned when step `step`, counted from 0, was made."""
        return next((replan.steps for replan in reversed(self.replans) if replan.step <= step), self.first)

    def position(self, step: int) -> float:
        """Return where a step, counted from 0, is in the first plan, whose schedule is stretched over the steps there are."""
        position, begin, steps = 0.0, 0, self.first
        for replan in self.replans:
            if replan.step > step:
                break
            position += (replan.step - begin) * (self.first - position) / (steps - begin)
            begin, steps = replan
        return position + (step - begin) * (self.first - position) / (steps - begin)

    def replanned(self, step: int, steps: int) -> "Plan":
        """Return the plan with another number of steps from `step` on."""
        return Plan(self.first, (*self.replans, Replan(step, steps)))

    def passes(self, step: int, fractions: Sequence[float]) -> bool:
        """Return whether one of these fractions of the run is reached by the step that ends at `step`."""
        before, now = self.position(step - 1), self.position(step)
        return any(before < fraction * self.first <= now for fraction in fractions)

    def is_check(self, step: int) -> bool:
        """Return whether the forecast is checked after `step` steps; the same in every process."""
        # the steps that were made bound the interval, too: the plan may be far too long
        interval = max(1, min(self.steps // _CHECKS, step // _CHECKED_FRACTION))
        return 0 < step < self.steps and (step % interval == 0 or self.passes(step, MILESTONES))

    def as_dict(self) -> dict[str, Any]:
        """Return the entries of plan.json."""
        replans = {"replans": [replan._asdict() for replan in self.replans]} if self.replans else {}
        return {"steps": self.first, **replans}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Return the plan that plan.json holds."""
        replans = tuple(Replan(int(entry["step"]), int(entry["steps"])) for entry in values.get("replans", ()))
        return cls(int(values["steps"]), replans)


OtherSeconds = Callable[[int], float]
"""Returns the remaining seconds of a run of this many steps apart from its steps: evaluation, saving, the end."""


@dataclass
class Pace:
    """The speed of a run, and the number of steps that follows from it."""

    budget: float
    """The time limit of the command in seconds."""
    seconds_per_step: float
    """The mean of the recent steps; at first as timed before training."""
    last_planned: float = 0.0
    """When the steps were planned last."""
    _recent: deque[float] = field(default_factory=deque)
    _sum: float = 0.0

    def add(self, seconds: float) -> None:
        """Add the duration of a step."""
        self._recent.append(seconds)
        self._sum += seconds
        while len(self._recent) > 1 and self._sum - self._recent[0] > _WINDOW * self.budget:
            self._sum -= self._recent.popleft()
        self.seconds_per_step = self._sum / len(self._recent)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the run should end."""
        return TIME_FRACTION * self.budget - now

    def minutes_for(self, now: float, seconds: float) -> float:
        """Return the minutes with which a run that needs `seconds` more would be planned in full."""
        return (now + seconds) / TIME_FRACTION / 60

    def fitting_steps(self, step: int, now: float, other: OtherSeconds, *, minimum: int = 1, limit: int) -> int:
        """Return the maximum number of steps of a run that has made `step` of them, between `step + minimum` and `limit`."""
        low, high = step + minimum, max(step + minimum, limit)
        while low < high:
            steps = (low + high + 1) // 2
            if (steps - step) * self.seconds_per_step + other(steps) <= self.seconds_left(now):
                low = steps
            else:
                high = steps - 1
        return low

    def new_steps(
        self, plan: Plan, step: int, now: float, other: OtherSeconds, *, minimum: int = 1, limit: int
    ) -> int | None:
        """Return another number of steps for the run if the forecast misses the minutes; None keeps the plan."""
        forecast = (plan.steps - step) * self.seconds_per_step + other(plan.steps)
        error = abs(forecast - self.seconds_left(now)) / self.budget
        at_milestone = plan.passes(step, MILESTONES)
        too_soon = now - self.last_planned < _MIN_DISTANCE * self.budget
        if error <= (_SMALL_ERROR if at_milestone else _LARGE_ERROR) or (too_soon and not at_milestone):
            return None
        steps = self.fitting_steps(step, now, other, minimum=minimum, limit=limit)
        if steps == plan.steps:
            return None
        self.last_planned = now
        return steps
