"""The steps of a run follow the clock: simulated runs, whose steps take as long as the test says."""

import json
from itertools import pairwise
from random import Random

import pytest

from headstart.config.schema import OptimConfig
from headstart.recipes.pretrain.stages import stage_ends
from headstart.train.optimizers import lr_factor
from headstart.train.plan import MILESTONES, Pace, Plan

BUDGET = 120.0
RNG = Random(0)
END = 2.0
"""Seconds from the last step to the end."""


def simulate(seconds_at, timed, *, limit=2**31, evaluation=0.0, epoch=10**9):
    """Run steps that take `seconds_at(now)`, planned from the step time `timed`; returns the plan and the end."""
    now, step, pace = 3.0, 0, Pace(BUDGET, timed, 3.0)

    def other(steps):
        return (-(-steps // epoch) - step // epoch) * evaluation + END

    plan = Plan(pace.fitting_steps(0, now, other, limit=limit))
    while step < plan.steps:
        seconds = seconds_at(now)
        now, step = now + seconds, step + 1
        if step % epoch == 0 or step == plan.steps:
            now += evaluation
        pace.add(seconds)
        if plan.is_check(step) and (steps := pace.new_steps(plan, step, now, other, limit=limit)):
            plan = plan.replanned(step, steps)
    return plan, now + END


@pytest.mark.parametrize(
    "seconds_at",
    [
        lambda now: 0.1,
        lambda now: 0.1 if now < 60 else 0.6,  # other work starts halfway
        lambda now: 0.5 if now < 10 else 0.1,  # other work ends soon
        lambda now: 0.1 if now < 100 else 0.3,  # other work starts late
        lambda now: 0.1 + 0.4 * (int(now / 7) % 2),  # other work comes and goes
        lambda now: 0.02,  # the timed steps were slow
        lambda now: 1.5,  # the timed steps were fast
        lambda now: RNG.expovariate(10),
    ],
)
@pytest.mark.parametrize("evaluation", [0.0, 2.0])
def test_the_minutes_are_kept_within_a_tenth(seconds_at, evaluation):
    plan, end = simulate(seconds_at, timed=0.1, evaluation=evaluation, epoch=40 if evaluation else 10**9)
    assert 0.9 * BUDGET < end < 1.1 * BUDGET
    assert len(plan.replans) <= 50


@pytest.mark.parametrize("timed", [1e-5, 10.0])
def test_a_first_plan_that_is_wrong_by_far_is_put_right(timed):
    plan, end = simulate(lambda now: 0.05, timed)
    assert 0.9 * BUDGET < end < 1.1 * BUDGET
    assert plan.position(plan.steps - 1) > 0.99 * plan.first


def test_a_steady_run_is_planned_again_at_milestones_at_most():
    plan, _ = simulate(lambda now: 0.101, timed=0.1)
    assert len(plan.replans) <= len(MILESTONES)


def test_a_run_never_has_more_steps_than_its_limit():
    plan, end = simulate(lambda now: 0.1, timed=0.5, limit=300)
    assert plan.steps == 300
    assert end < 60
    plan, end = simulate(lambda now: 0.1 if now < 5 else 1.0, timed=0.1, limit=300)
    assert plan.steps < 150
    assert 0.9 * BUDGET < end < 1.1 * BUDGET


def test_a_plan_without_changes_has_the_rates_of_its_steps():
    config = OptimConfig(warmup=0.1, schedule="cosine")
    for steps in (1, 7, 1000, 2**31):
        for step in range(min(steps, 50)):
            assert lr_factor(Plan(steps).position(step), steps, config) == lr_factor(step, steps, config)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_the_rate_goes_on_from_where_it_is_and_falls_to_its_end(schedule):
    config = OptimConfig(warmup=0.05, schedule=schedule)
    plan = Plan(1000).replanned(300, 400).replanned(350, 800)
    factors = [lr_factor(plan.position(step), plan.first, config) for step in range(plan.steps)]
    first = [lr_factor(step, 1000, config) for step in range(300)]
    assert factors[:300] == first
    assert max(abs(a - b) for a, b in pairwise(factors[50:])) < 0.02
    assert factors[-1] < 0.01
    assert plan.position(plan.steps) == pytest.approx(1000)


def test_a_plan_is_the_same_after_it_was_written_and_read():
    plan = Plan(1000).replanned(300, 400).replanned(350, 800)
    assert Plan.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan
    assert plan.as_dict() == {"steps": 1000, "replans": [{"step": 300, "steps": 400}, {"step": 350, "steps": 800}]}
    assert Plan(5).as_dict() == {"steps": 5}


def test_a_step_knows_the_number_of_steps_that_was_planned_when_it_was_made():
    plan = Plan(1000).replanned(300, 400).replanned(350, 800)
    assert [plan.steps_at(step) for step in (0, 299, 300, 349, 350, 799)] == [1000, 1000, 400, 400, 800, 800]


def test_a_change_of_the_plan_moves_the_ends_of_unfinished_stages_alone():
    assert stage_ends(Plan(100), [0.2, 0.4, 0.4]) == [20, 60, 100]
    assert stage_ends(Plan(100).replanned(40, 70), [0.2, 0.4, 0.4]) == [20, 50, 70]
    assert stage_ends(Plan(100).replanned(40, 42), [0.2, 0.4, 0.4]) == [20, 41, 42]
    assert stage_ends(Plan(100).replanned(10, 400).replanned(395, 396), [0.2, 0.8]) == [53, 396]
