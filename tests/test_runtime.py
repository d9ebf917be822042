"""Device, precision, threads, seeds and signals."""

import os
import signal
import time

import pytest
import torch

from headstart import runtime
from headstart.config.schema import ModelConfig, RuntimeConfig
from headstart.interrupts import StopSignal, handle_signals
from headstart.runtime import (
    describe_threads,
    environment,
    free_cores,
    resolve_precision,
    resolve_threads,
    seed_step,
    setup_runtime,
)


@pytest.mark.parametrize(("precision", "bf16"), [("auto", False), ("fp32", False), ("bf16", True)])
def test_the_configured_precision_is_used(precision, bf16):
    assert setup_runtime(RuntimeConfig(device="cpu", precision=precision, threads=1)).bf16 is bf16


@pytest.mark.parametrize(
    ("settings", "width", "fast", "precision"),
    [
        ({}, 128, True, "bf16"),
        ({}, 128, False, "fp32"),
        ({}, 64, True, "fp32"),
        ({"compile": True}, 128, True, "fp32"),
        ({"precision": "bf16"}, 64, False, "bf16"),
        ({"precision": "fp32"}, 128, True, "fp32"),
    ],
)
def test_a_cpu_trains_in_bf16_where_that_is_faster_unless_told_otherwise(settings, width, fast, precision, monkeypatch):
    monkeypatch.setattr(runtime, "_is_bf16_fast", lambda: fast)
    assert resolve_precision(RuntimeConfig(device="cpu", **settings), ModelConfig(width=width)) == precision


def test_the_speed_of_bf16_is_measured_once():
    runtime._is_bf16_fast.cache_clear()
    answers = {runtime._is_bf16_fast() for _ in range(3)}
    assert len(answers) == 1
    assert runtime._is_bf16_fast.cache_info().misses == 1


def test_a_cpu_scores_in_fp32_what_it_trains_in_bf16():
    low = setup_runtime(RuntimeConfig(device="cpu", precision="bf16", threads=1))
    with low.autocast():
        assert torch.is_autocast_enabled("cpu")
    with low.autocast(scoring=True):
        assert not torch.is_autocast_enabled("cpu")


def test_determinism_and_threads_are_set_for_the_process(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert not torch.are_deterministic_algorithms_enabled()
    deterministic = setup_runtime(RuntimeConfig(device="cpu", deterministic=True, threads=3))
    assert torch.are_deterministic_algorithms_enabled()
    assert (deterministic.threads, torch.get_num_threads()) == (3, 3)
    assert environment(deterministic)["deterministic"] is True
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    setup_runtime(RuntimeConfig(device="cpu", threads=1))
    assert environment(deterministic)["deterministic"] is False  # control: it holds for a run, not for the process


def test_busy_cores_are_not_free(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    counts = []
    for idle in (100, 50, 0):
        ticks = iter([(0, 0), (idle, 100)])
        monkeypatch.setattr(runtime, "_cpu_ticks", lambda _cores, ticks=ticks: next(ticks))
        counts.append(free_cores())
    assert counts == [8, 4, 1]


def test_resolving_the_threads_changes_neither_torch_nor_the_environment(monkeypatch):
    monkeypatch.setattr(runtime, "free_cores", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads, variables = torch.get_num_threads(), dict(os.environ)
    assert resolve_threads(RuntimeConfig(threads=3, deterministic=True)) == 3
    assert resolve_threads(RuntimeConfig(deterministic=True)) == 6
    assert torch.get_num_threads() == threads
    assert dict(os.environ) == variables
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert resolve_threads(RuntimeConfig()) == 1  # four processes on this machine have six cores


def test_omp_num_threads_is_kept_unless_a_launcher_has_set_it(monkeypatch):
    monkeypatch.setattr(runtime, "free_cores", lambda: 1)
    for value, threads in (("2", 2), ("8,4", 8), ("0", 1), ("many", 1), ("", 1), ("9" * 12, 1024)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert resolve_threads(RuntimeConfig()) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert resolve_threads(RuntimeConfig(threads=3)) == 3
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert resolve_threads(RuntimeConfig()) == 2
    monkeypatch.setattr(runtime, "free_cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what torchrun sets for several processes
    assert resolve_threads(RuntimeConfig()) == 3


def test_fewer_threads_than_cores_are_explained_unless_they_were_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert describe_threads(RuntimeConfig(), 3) == (
        "training uses 3 of 8 cores: the other cores are busy; set runtime.threads or OMP_NUM_THREADS to change it"
    )
    assert describe_threads(RuntimeConfig(), 8) is None
    assert describe_threads(RuntimeConfig(threads=3), 3) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert describe_threads(RuntimeConfig(), 3) is None


def test_a_time_limit_is_in_minutes(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stop = StopSignal(time_limit=2)
    now = 100 + 119.0
    assert not stop.requested
    now = 100 + 121.0
    assert stop.requested
    assert stop.reason == "time limit reached"


def test_the_first_signal_requests_a_stop_and_the_second_acts_at_once(capsys):
    before = signal.getsignal(signal.SIGINT)
    with handle_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        assert stop.reason == "SIGINT"
        assert stop.why == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("reason", ["SIGTERM", "time limit reached", "stopped"])
def test_only_ctrl_c_has_another_name_than_its_signal(reason):
    stop = StopSignal()
    stop.reason = reason
    assert stop.why == reason


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handle_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]  # control: another handler inside the block
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_time_limit_counts_from_its_start(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 100 + 121.0)
    assert StopSignal(time_limit=2, since=100.0).requested
    assert not StopSignal(time_limit=2).requested  # control


def test_a_step_draws_the_numbers_of_torch_manual_seed():
    seed_step(3, 7)
    numbers = torch.rand(4)
    torch.manual_seed((3 * 0x9E3779B1 + 7 * 0x85EBCA6B + 1) % 2**63)
    assert torch.equal(numbers, torch.rand(4))
    seed_step(3, 8)
    assert not torch.equal(numbers, torch.rand(4))  # control
