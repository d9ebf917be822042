"""A killed process, a signal, a time limit, a wrong file: all processes end, one line says why, nothing is lost."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from fixtures.torchrun import MAX_LOSS_DIFFERENCE, environment, max_loss_difference, pid_of, torchrun, wait_for_path
from fixtures.waiting import PATIENCE
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
def folder(data, tmp_path):
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    (tmp_path / "headstart.toml").write_text(SMALL)
    return tmp_path


def pretrain(folder, out, num_processes, *options, restarts=0, texts="texts.txt"):
    arguments = ["-m", "headstart", "pretrain", *([texts] if texts else []), "--out", out, *options]
    return torchrun(num_processes, *arguments, restarts=restarts, cwd=folder)


def headstart(folder, *arguments):
    command = [sys.executable, "-m", "headstart", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)


def finish(process):
    """Wait for the end; return the lines that Headstart printed, and all output."""
    text, _ = process.communicate(timeout=PATIENCE)
    return [line for line in text.splitlines() if line.startswith("headstart: ")], text


@pytest.mark.parametrize(("num_processes", "parallel", "victim"), [(2, "ddp", 1), (4, "fsdp", 0)])
def test_a_killed_process_is_started_again_and_the_run_ends_as_if_nothing_had_happened(
    num_processes, parallel, victim, folder
):
    headstart(folder, "pretrain", "texts.txt", "--out", "uninterrupted", "-q")
    process = pretrain(folder, "run", num_processes, "--runtime.parallel", parallel, restarts=1)
    wait_for_path(folder / "run" / "checkpoints" / "step-00000040", process)
    os.kill(pid_of(process, victim), signal.SIGKILL)
    lines, text = finish(process)
    assert process.returncode == 0, text[-3000:]
    assert "resuming run from step" in text
    assert len(lines) == 1  # of the first attempt
    assert lines[0].startswith("headstart: another process of this run has ended or cannot be reached (")
    assert len(RunFolder(folder / "run").metrics.read("step")) == 140
    assert max_loss_difference(folder / "uninterrupted", folder / "run") < MAX_LOSS_DIFFERENCE


def test_without_a_restart_the_other_processes_end_soon_and_one_can_resume_the_run(folder):
    headstart(folder, "pretrain", "texts.txt", "--out", "uninterrupted", "-q")
    process = pretrain(folder, "run", 4)
    wait_for_path(folder / "run" / "checkpoints" / "step-00000040", process)
    os.kill(pid_of(process, 2), signal.SIGKILL)
    lines, text = finish(process)
    assert process.returncode == 1
    assert len(lines) == 1, text
    step = sorted((folder / "run" / "checkpoints").iterdir())[-1].name.removeprefix("step-").lstrip("0")
    assert lines[0].endswith(
        f"; the checkpoint of step {step} is complete. Continue with the same command and only the options "
        "--resume and --out run"
    )
    headstart(folder, "pretrain", "--resume", "--out", "run", "-q")
    assert max_loss_difference(folder / "uninterrupted", folder / "run") < MAX_LOSS_DIFFERENCE


def test_a_signal_to_torchrun_saves_once_and_two_processes_resume_the_run_of_three(folder):
    headstart(folder, "pretrain", "texts.txt", "--out", "uninterrupted", "-q")
    process = pretrain(folder, "run", 3)
    wait_for_path(folder / "run" / "checkpoints" / "step-00000020", process)
    process.send_signal(signal.SIGTERM)
    lines, text = finish(process)
    assert process.returncode != 0
    assert len(lines) == 1, text
    step = sorted((folder / "run" / "checkpoints").iterdir())[-1].name.removeprefix("step-").lstrip("0")
    assert lines == [
        f"headstart: SIGTERM at step {step} of 140; saved. Continue with: headstart pretrain --resume --out run"
    ]
    resumed = pretrain(folder, "run", 2, "--resume", texts=None)
    assert finish(resumed)[0] == []
    assert resumed.returncode == 0
    assert max_loss_difference(folder / "uninterrupted", folder / "run") < MAX_LOSS_DIFFERENCE


def test_a_time_limit_is_no_failure_where_torchrun_would_restart(folder):
    process = pretrain(folder, "run", 2, "--runtime.time-limit", "0.0001", restarts=2)
    lines, text = finish(process)
    assert process.returncode == 0, text
    assert lines == [
        "headstart: time limit reached at step 1 of 140; saved. Continue with: headstart pretrain --resume --out run"
    ]
    assert not (folder / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "no such file: missing.txt"),
        (["texts.txt", "--loop.batch-size", "none"], "--loop.batch-size must be an integer, got 'none'"),
        (["texts.txt", "--model.context", "5000"], "the training text holds"),
    ],
)
def test_a_usage_error_is_reported_once(arguments, message, folder):
    process = pretrain(folder, "run", 3, *arguments[1:], texts=arguments[0])
    lines, text = finish(process)
    assert process.returncode == 1  # torchrun's own; the processes' is in its table
    assert len(lines) == 1, text
    assert lines[0].startswith(f"headstart: {message}")
    assert "exitcode  : 2" in text
    assert not (folder / "run").exists()


def test_a_run_of_another_command_is_not_resumed_after_a_restart(folder):
    headstart(folder, "pretrain", "texts.txt", "--out", "run", "-q", "--loop.steps", "3")
    process = pretrain(folder, "run", 2, restarts=1)
    lines, _ = finish(process)
    assert process.returncode == 1
    line = "headstart: run already contains a run; continue it with --resume, or choose another --out"
    assert lines == [line, line]  # once each time that torchrun tried
    assert read_json(folder / "run" / "result.json")["steps"] == 3


def test_other_commands_refuse_to_run_in_several_processes(folder):
    process = torchrun(2, "-m", "headstart", "params", cwd=folder)
    assert finish(process)[0] == [
        "headstart: torchrun with several processes supports only pretrain and finetune; run headstart params without it"
    ]
