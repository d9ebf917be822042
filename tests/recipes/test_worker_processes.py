"""Runs in several processes give the same results, save on a stop, and survive the death of a worker."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from faults import polling, worker_kills
from fixtures.forked import ForkedProcess, run_headstart
from fixtures.tiny import write_reviews
from fixtures.waiting import PATIENCE, wait_until
from headstart.cli.main import run
from headstart.errors import HeadstartError, TrainingError
from headstart.files import read_json
from headstart.interrupts import StopRequested, StopSignal
from headstart.recipes import workers
from headstart.recipes.workers import run_parallel

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to find processes")

FLAGS = [
    "--model.width",
    "16",
    "--model.depth",
    "1",
    "--model.heads",
    "2",
    "--model.feedforward",
    "24",
    "--model.context",
    "12",
    "--tokenizer.vocab-size",
    "300",
    "--optim.lr",
    "5e-3",
    "--runtime.threads",
    "1",
]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


def command(reviews, out, *options, seeds=3):
    files = [str(reviews / "train.csv"), "--valid", str(reviews / "valid.csv"), "--test", str(reviews / "test.csv")]
    arms = ["--arms", "majority,linear,scratch", "--seeds", str(seeds), "--out", str(out)]
    return [sys.executable, "-m", "headstart", "compare", *files, *arms, *FLAGS, *options]


def load_records(out):
    """Load the run records of a comparison, without times."""
    records = {path.name: read_json(path) for path in sorted((out / "cells").iterdir())}
    for record in records.values():
        record.pop("seconds")
        record.pop("seal", None)
        for epoch in record["epochs"]:
            epoch.pop("seconds")
    return records


def workers_of(process):
    """List the worker processes of a process."""
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            if parent == process.pid and b"spawn_main" in words:
                pids.append(int(entry))
    return pids


@pytest.fixture
def start(tmp_path):
    """A function that starts commands; those that still run after the test are killed, and their workers end."""
    processes = []

    def start_process(words):
        processes.append(ForkedProcess(run_headstart, words[2:], tmp_path / "log.txt"))
        return processes[-1]

    yield start_process
    for process in processes:
        process.kill()
        process.wait(PATIENCE)


SHORT = ("--loop.epochs", "12")


@pytest.fixture(scope="module")
def in_one_process(reviews, tmp_path_factory):
    """The records of the comparison that the tests make in several processes."""
    out = tmp_path_factory.mktemp("one") / "run"
    assert run(command(reviews, out, *SHORT, "-q", "--jobs", "1")[3:]) == 0
    return load_records(out)


@pytest.mark.slow  # the next but one stops runs in several processes, and they resume to the same records
def test_several_processes_give_the_results_of_one(reviews, in_one_process, tmp_path):
    subprocess.run(command(reviews, tmp_path / "2", *SHORT, "-q", "--jobs", "2"), check=True, capture_output=True)
    assert load_records(tmp_path / "2") == in_one_process
    assert len(in_one_process) == 5
    assert (tmp_path / "2" / "report.html").is_file()


@pytest.mark.slow  # test_a_stop_waits_until_every_worker_has_saved stops the same pool
def test_a_signal_stops_every_process_with_its_state_saved(reviews, tmp_path, start):
    out = tmp_path / "run"
    long = command(reviews, out, "--loop.epochs", "20000", "--jobs", "2")
    process = start(long)
    wait_until(lambda: len(list((out / "work").glob("*/metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    output = (tmp_path / "log.txt").read_text()
    assert process.returncode == 143, output
    assert (
        f"SIGTERM at scratch, all labels, seed 0; saved. Continue with: headstart compare --resume --out {out}"
        in output
    )
    assert len(list((out / "work").glob("*/checkpoints/step-*"))) == 2


@needs_proc
def test_a_killed_worker_costs_only_its_own_run(reviews, in_one_process, tmp_path, start):
    out = tmp_path / "run"
    process = start(command(reviews, out, *SHORT, "--jobs", "2"))
    wait_until(lambda: any((out / "work").glob("*/metrics.jsonl")) and len(workers_of(process)) == 2, process)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    process.wait(PATIENCE)
    assert process.returncode == 1
    last = (tmp_path / "log.txt").read_text().strip().splitlines()[-1]
    assert last == (
        "headstart: a worker process was killed (out of memory?); finished runs are kept. Continue with: "
        f"headstart compare --resume --out {out}"
    )
    assert run(["compare", "--resume", "--out", str(out), "--jobs", "1", "-q"]) == 0
    assert load_records(out) == in_one_process
    assert json.loads((out / "result.json").read_text()) == {"report": "report.html"}


def test_zero_jobs_are_refused(reviews, tmp_path, capsys):
    assert run(command(reviews, tmp_path / "run", "--jobs", "0")[3:]) == 2
    assert capsys.readouterr().err == "headstart: --jobs must be at least 1, got 0\n"


@needs_proc
@pytest.mark.parametrize(
    "phase", ["busy", "stopping", *(pytest.param(phase, marks=pytest.mark.slow) for phase in ("idle", "starting"))]
)
def test_a_worker_killed_at_any_moment_ends_the_others_with_their_state_saved(phase, tmp_path):
    """One random kill besides those of faults/test_torture.py; `make torture` has more of them, and a busy machine."""
    counts = worker_kills.Kills(phase, tmp_path / "run").go(1, seed=1)
    assert counts == {"runs": counts["runs"], "kills": 1, "hung": [], "lost": [], "faults": []}


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_workers_that_cannot_stop(number, tmp_path):
    group = worker_kills.Group(polling_command(tmp_path, 2, "600", "600"), tmp_path / "log.txt")
    try:
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, group.process)
        stuck, killed = (int((tmp_path / f"begun-{job}").read_text()) for job in (0, 1))
        os.kill(stuck, signal.SIGSTOP)  # it reacts to nothing but SIGKILL
        os.kill(killed, signal.SIGKILL)
        for times in (1, 2):
            wait_until(lambda: killed not in group.left(), group.process)
            group.process.send_signal(number)
            if times == 1:
                wait_until(lambda: "stopping: saving first" in group.log.read_text(), group.process)
    finally:
        code, remaining = group.end()
    assert (code, remaining) == ({signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[number], [])


@needs_proc
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    group = worker_kills.Group(polling_command(tmp_path, 2, "600", "600"), tmp_path / "log.txt")
    try:
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, group.process)
        group.process.kill()
    finally:
        code, remaining = group.end()
    assert (code, remaining, group.log.read_text()) == (-signal.SIGKILL, [], "")


def polling_command(folder, processes, *seconds):
    return [sys.executable, polling.__file__, str(folder), str(processes), *seconds]


def run_jobs(make_worker, folder, seconds, processes=2, stop=None):
    return run_parallel(
        make_worker,
        (str(folder),),
        list(enumerate(seconds)),
        processes,
        stop or StopSignal(),
        "this again",
        "all is kept",
    )


def pids_of_jobs(folder):
    """Return the process ids of the workers by job."""
    return {path.name: int(path.read_text()) for path in Path(folder).glob("begun-*")}


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_arrive_as_jobs_finish_in_at_most_the_requested_number_of_workers(tmp_path):
    with closing(run_jobs(polling.make_worker, tmp_path, [600, 0])) as results:
        assert next(results) == 1
        worker_kills.until(lambda: len(pids_of_jobs(tmp_path)) == 2)
    assert (tmp_path / "saved-0").exists()
    assert sorted(run_jobs(polling.make_worker, tmp_path, [0] * 7)) == list(range(7))
    assert len(set(pids_of_jobs(tmp_path).values())) <= 2
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


def test_closing_the_results_leaves_no_worker_behind(tmp_path):
    with closing(run_jobs(polling.make_worker, tmp_path, [0, 600, 600])) as results:
        assert next(results) == 0
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


def test_a_stop_waits_until_every_worker_has_saved(tmp_path):
    stop = StopSignal()
    results = run_jobs(polling.make_worker, tmp_path, [0, 600, 600], stop=stop)
    assert next(results) == 0
    worker_kills.until(lambda: len(pids_of_jobs(tmp_path)) == 3)
    stop.reason = "SIGTERM"
    with pytest.raises(StopRequested):
        next(results)
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-1", "saved-2"}
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


@pytest.mark.parametrize("second_signal", [KeyboardInterrupt, SystemExit])
def test_a_second_signal_that_precedes_the_stop_kills_every_worker(second_signal, tmp_path):
    results = run_jobs(polling.make_worker, tmp_path, [0, 600, 600])
    assert next(results) == 0
    worker_kills.until(lambda: len(pids_of_jobs(tmp_path)) == 3)
    with pytest.raises(second_signal):
        results.throw(second_signal)
    assert list(tmp_path.glob("saved-*")) == []
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


@needs_proc
def test_a_stop_after_the_death_of_a_worker_saves_the_state_of_the_others(tmp_path):
    stop = StopSignal()
    results = run_jobs(polling.make_worker, tmp_path, [0, 600, 600], processes=3, stop=stop)
    assert next(results) == 0
    worker_kills.until(lambda: len(pids_of_jobs(tmp_path)) == 3)
    os.kill(pids_of_jobs(tmp_path)["begun-0"], signal.SIGKILL)
    worker_kills.until(lambda: not is_running(pids_of_jobs(tmp_path)["begun-0"]))
    stop.reason = "SIGTERM"
    with pytest.raises((StopRequested, TrainingError)) as caught:  # whichever is seen first
        next(results)
    assert str(caught.value) in (
        "",
        "a worker process was killed (out of memory?); all is kept. Continue with: this again",
    )
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-1", "saved-2"}
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


def is_running(pid):
    """Return True if a process exists and is no zombie, as a killed one is until its parent waits for it."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


def test_a_worker_that_does_not_stop_is_killed_after_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "STOP_TIMEOUT_SECONDS", 1.0)
    results = run_jobs(polling.make_deaf_worker, tmp_path, [0, 600])
    assert next(results) == 0
    worker_kills.until(lambda: len(pids_of_jobs(tmp_path)) == 2)
    results.close()
    assert not (tmp_path / "saved-1").exists()
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


def test_an_error_of_a_worker_is_raised_in_the_parent(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        list(run_jobs(polling.make_failing_worker, tmp_path, [0], processes=1))
    assert (caught.value.filename, caught.value.errno) == ("0.txt", 2)
    assert "polling.py" in str(caught.value.__cause__)
    jobs = [(1, 0.0), (2, 600.0)]
    with pytest.raises(RuntimeError) as caught:
        list(run_parallel(polling.make_failing_worker, (str(tmp_path),), jobs, 2, StopSignal(), ""))
    assert str(caught.value) == "faults.polling._Unpicklable: 1.txt, line 7"
    with pytest.raises(HeadstartError) as caught:
        list(run_jobs(polling.make_no_worker, "nowhere", [0, 0]))
    assert str(caught.value) == "nowhere cannot be used"
    assert not any(map(exists, pids_of_jobs(tmp_path).values()))


def test_a_worker_that_dies_before_reading_a_long_command_line_does_not_block_the_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["headstart", *["a-file-with-a-long-name.txt"] * 50_000])
    resource_tracker.ensure_running()  # it is started by the same executable
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: os.fsencode(shutil.which("false")))
    with pytest.raises(TrainingError):
        list(run_jobs(polling.make_worker, tmp_path, [0, 0]))
    assert len(sys.argv) == 50_001
