"""One process killed, a signal, a time that is over, a wrong file: all processes end, one line says why, nothing is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fixtures.torchrun import BOUND, apart, environment, pid_of, torchrun, until
from headstart.files import read_json
from headstart.store.run_folder import RunFolder

pytestmark = pytest.mark.slow

SMALL = """
[tokenizer]
vocab_size = 300
[model]
width = 16
depth = 2
feedforward = 24
context = 24
[runtime]
threads = 1
[pretrain.corpus]
held_out = 0.1
[pretrain.loop]
batch_size = 4
accumulate = 2
steps = 140
evaluate_every = 1000
save_every = 20
[pretrain.optim]
lr = 0.003
"""


@pytest.fixture
def here(data, tmp_path):
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    (tmp_path / "headstart.toml").write_text(SMALL)
    return tmp_path


def pretrain(here, out, world, *more, restarts=0, texts="texts.txt"):
    arguments = ["-m", "headstart", "pretrain", *([texts] if texts else []), "--out", out, *more]
    return torchrun(world, *arguments, restarts=restarts, cwd=here)


def headstart(here, *arguments):
    command = [sys.executable, "-m", "headstart", *arguments]
    return subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, check=True)


def said(process):
    """What was said in our name, once it has ended."""
    text, _ = process.communicate(timeout=120)
    return [line for line in text.splitlines() if line.startswith("headstart: ")], text


@pytest.mark.parametrize(("world", "parallel", "victim"), [(2, "ddp", 1), (4, "fsdp", 0)])
def test_a_killed_process_is_started_again_and_the_run_ends_as_if_nothing_had_happened(world, parallel, victim, here):
    headstart(here, "pretrain", "texts.txt", "--out", "whole", "-q")
    process = pretrain(here, "run", world, "--runtime.parallel", parallel, restarts=1)
    until(here / "run" / "checkpoints" / "step-00000040", process)
    os.kill(pid_of(process, victim), signal.SIGKILL)
    lines, text = said(process)
    assert process.returncode == 0, text[-3000:]
    assert "resuming run from step" in text
    assert len(lines) == 1  # of the first attempt
    assert lines[0].startswith("headstart: another process of this run has ended or cannot be reached (")
    assert len(RunFolder(here / "run").metrics.read("step")) == 140
    assert apart(here / "whole", here / "run") < BOUND


def test_without_a_restart_the_others_end_soon_and_the_run_can_be_taken_up_by_one(here):
    headstart(here, "pretrain", "texts.txt", "--out", "whole", "-q")
    process = pretrain(here, "run", 4)
    until(here / "run" / "checkpoints" / "step-00000040", process)
    os.kill(pid_of(process, 2), signal.SIGKILL)
    killed = time.monotonic()
    lines, text = said(process)
    assert process.returncode == 1
    assert time.monotonic() - killed < 60
    assert len(lines) == 1, text
    step = sorted((here / "run" / "checkpoints").iterdir())[-1].name.removeprefix("step-").lstrip("0")
    assert lines[0].endswith(
        f"; the checkpoint of step {step} is whole. Go on with the same command, --resume and --out run in place of the "
        "rest of it"
    )
    headstart(here, "pretrain", "--resume", "--out", "run", "-q")
    assert apart(here / "whole", here / "run") < BOUND


def test_a_signal_to_torchrun_saves_once_and_two_processes_go_on_where_three_stopped(here):
    headstart(here, "pretrain", "texts.txt", "--out", "whole", "-q")
    process = pretrain(here, "run", 3)
    until(here / "run" / "checkpoints" / "step-00000020", process)
    process.send_signal(signal.SIGTERM)
    lines, text = said(process)
    assert process.returncode != 0
    assert len(lines) == 1, text
    step = sorted((here / "run" / "checkpoints").iterdir())[-1].name.removeprefix("step-").lstrip("0")
    assert lines == [
        f"headstart: SIGTERM at step {step} of 140; saved. Go on with: headstart pretrain --resume --out run"
    ]
    again = pretrain(here, "run", 2, "--resume", texts=None)
    assert said(again)[0] == []
    assert again.returncode == 0
    assert apart(here / "whole", here / "run") < BOUND


def test_a_time_that_is_over_is_no_failure_where_torchrun_would_start_again(here):
    process = pretrain(here, "run", 2, "--runtime.time-limit", "0.0001", restarts=2)
    lines, text = said(process)
    assert process.returncode == 0, text
    assert lines == [
        "headstart: time limit reached at step 1 of 140; saved. Go on with: headstart pretrain --resume --out run"
    ]
    assert not (here / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "no such file: missing.txt"),
        (["texts.txt", "--loop.batch-size", "none"], "--loop.batch-size must be a whole number, got 'none'"),
        (["texts.txt", "--model.context", "5000"], "the training text holds"),
    ],
)
def test_a_wrong_question_is_answered_once(arguments, message, here):
    process = pretrain(here, "run", 3, *arguments[1:], texts=arguments[0])
    lines, text = said(process)
    assert process.returncode == 1  # torchrun's own; the processes' is in its table
    assert len(lines) == 1, text
    assert lines[0].startswith(f"headstart: {message}")
    assert "exitcode  : 2" in text
    assert not (here / "run").exists()


def test_a_run_of_another_command_is_not_taken_for_this_ones(here):
    headstart(here, "pretrain", "texts.txt", "--out", "run", "-q", "--loop.steps", "3")
    process = pretrain(here, "run", 2, restarts=1)
    lines, _ = said(process)
    assert process.returncode == 1
    line = "headstart: run already holds a run; continue it with --resume, or choose another --out"
    assert lines == [line, line]  # once each time that torchrun tried
    assert read_json(here / "run" / "result.json")["steps"] == 3


def test_other_commands_are_not_for_several_processes(here):
    process = torchrun(2, "-m", "headstart", "params", cwd=here)
    assert said(process)[0] == [
        "headstart: torchrun starts several processes for pretrain and finetune alone; start headstart params without it"
    ]
