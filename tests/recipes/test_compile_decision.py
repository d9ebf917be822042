"""Compiling is for those who ask for it, and for runs on a GPU that earn it back."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fixtures.tiny import pretrain_config
from headstart.recipes.pretrain import trainer as compiling
from headstart.recipes.pretrain.trainer import MIN_COMPILE_FLOPS, compile_pays, compiler_error, should_compile

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
MODEL = nn.Linear(1000, 1000, bias=False)
"""A million parameters."""
STAGES = [SimpleNamespace(rows_per_step=64, epoch_dataset=SimpleNamespace(rows=640))]


def settings(**changes):
    return pretrain_config(model={"context": 512}, **changes)


def enough(steps_more=0, **runtime):
    """A run that just earns it back, or one of so many steps more."""
    steps = round(MIN_COMPILE_FLOPS / (6 * 1e6 * 64 * 512)) + 1
    return settings(loop={"steps": steps + steps_more}, runtime=runtime)


@pytest.fixture(autouse=True)
def a_compiler(monkeypatch):
    monkeypatch.setattr(compiling, "compiler_error", lambda device: None)


def asked(config, device=CUDA, *, alone=True):
    said = []
    return should_compile(config, MODEL, STAGES, device, said.append, single_process=alone), said


def test_a_long_run_on_a_gpu_is_compiled_and_a_short_one_is_not():
    assert asked(enough()) == (True, [])
    assert asked(enough(-2)) == (False, [])


@pytest.mark.parametrize("runtime", [{"deterministic": True}, {"recompute": True}])
def test_what_was_asked_for_besides_comes_first(runtime):
    assert asked(enough(**runtime)) == (False, [])


def test_a_cpu_and_several_processes_do_without():
    assert asked(enough(), CPU) == (False, [])
    assert asked(enough(), alone=False) == (False, [])


def test_who_says_so_is_obeyed():
    assert asked(enough(-2, compile=True), CPU) == (True, [])
    assert asked(enough(compile=False)) == (False, [])


def test_minutes_count_in_place_of_steps():
    assert compile_pays(settings(loop={"minutes": 3, "steps": None}), MODEL, STAGES)
    assert not compile_pays(settings(loop={"minutes": 2.9, "steps": None}), MODEL, STAGES)


def test_epochs_count_as_the_steps_they_come_to():
    ten_steps = settings(loop={"epochs": 1.0, "steps": None})
    assert not compile_pays(ten_steps, MODEL, STAGES)
    many = enough().loop.steps
    assert compile_pays(settings(loop={"epochs": many / 10, "steps": None}), MODEL, STAGES)


def test_a_missing_compiler_is_said_in_a_line_and_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(compiling, "compiler_error", compiler_error)

    def broken(function):
        raise RuntimeError("Failed to find C compiler. Please specify via CC.\nmore of it")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch, "ones", lambda size, device: None)
    said = "layers are not compiled, which would be faster: Failed to find C compiler. Please specify via CC."
    assert asked(enough()) == (False, [said])
