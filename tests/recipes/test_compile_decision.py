"""Layers are compiled on request, and in runs on a GPU that are long enough."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fixtures.tiny import pretrain_config
from headstart.recipes.pretrain import trainer
from headstart.recipes.pretrain.trainer import MIN_COMPILE_FLOPS, compile_pays, compiler_error, should_compile

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
MODEL = nn.Linear(1000, 1000, bias=False)
"""A million parameters."""
STAGES = [SimpleNamespace(rows_per_step=64, epoch_dataset=SimpleNamespace(num_rows=640))]


def settings(**changes):
    return pretrain_config(model={"context": 512}, **changes)


def run_that_pays(steps_more=0, **runtime):
    """A run that just earns it back, or one of so many steps more."""
    steps = round(MIN_COMPILE_FLOPS / (6 * 1e6 * 64 * 512)) + 1
    return settings(loop={"steps": steps + steps_more}, runtime=runtime)


@pytest.fixture(autouse=True)
def _working_compiler(monkeypatch):
    monkeypatch.setattr(trainer, "compiler_error", lambda device: None)


def decide(config, device=CUDA, *, single_process=True):
    lines = []
    return should_compile(config, MODEL, STAGES, device, lines.append, single_process=single_process), lines


def test_a_long_run_on_a_gpu_is_compiled_and_a_short_one_is_not():
    assert decide(run_that_pays()) == (True, [])
    assert decide(run_that_pays(-2)) == (False, [])


@pytest.mark.parametrize("runtime", [{"deterministic": True}, {"recompute": True}])
def test_deterministic_and_recomputed_runs_are_not_compiled(runtime):
    assert decide(run_that_pays(**runtime)) == (False, [])


def test_runs_on_a_cpu_or_in_several_processes_are_not_compiled():
    assert decide(run_that_pays(), CPU) == (False, [])
    assert decide(run_that_pays(), single_process=False) == (False, [])


def test_the_setting_overrides_the_decision_to_compile():
    assert decide(run_that_pays(-2, compile=True), CPU) == (True, [])
    assert decide(run_that_pays(compile=False)) == (False, [])


def test_compiling_pays_by_minutes():
    assert compile_pays(settings(loop={"minutes": 3, "steps": None}), MODEL, STAGES)
    assert not compile_pays(settings(loop={"minutes": 2.9, "steps": None}), MODEL, STAGES)


def test_compiling_pays_by_the_steps_of_all_epochs():
    ten_steps = settings(loop={"epochs": 1.0, "steps": None})
    assert not compile_pays(ten_steps, MODEL, STAGES)
    many = run_that_pays().loop.steps
    assert compile_pays(settings(loop={"epochs": many / 10, "steps": None}), MODEL, STAGES)


def test_a_missing_compiler_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr(trainer, "compiler_error", compiler_error)

    def broken(function):
        raise RuntimeError("Failed to find C compiler. Please specify via CC.\nmore of it")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch, "ones", lambda size, device: None)
    lines = "layers are not compiled, which would be faster: Failed to find C compiler. Please specify via CC."
    assert decide(run_that_pays()) == (False, [lines])
