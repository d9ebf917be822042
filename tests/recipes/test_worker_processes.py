"""Runs of a comparison in several processes: the same results, a stop that saves, and a death that costs little."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from faults import polling, worker_kills
from fixtures.tiny import write_reviews
from headstart.errors import HeadstartError, TrainingError
from headstart.files import read_json
from headstart.interrupts import StopRequested, StopSignal
from headstart.recipes import executors as workers
from headstart.recipes.executors import run_parallel

PATIENCE = 600
"""Seconds after which something has hung, on however busy a machine."""
in_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found in /proc")

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


def command(reviews, out, *more, seeds=3):
    files = [str(reviews / "train.csv"), "--valid", str(reviews / "valid.csv"), "--test", str(reviews / "test.csv")]
    arms = ["--arms", "majority,tfidf,scratch", "--seeds", str(seeds), "--out", str(out)]
    return [sys.executable, "-m", "headstart", "compare", *files, *arms, *FLAGS, *more]


def cells(out):
    found = {path.name: read_json(path) for path in sorted((out / "cells").iterdir())}
    for cell in found.values():
        cell.pop("seconds")
        cell.pop("seal", None)
        for epoch in cell["epochs"]:
            epoch.pop("seconds")
    return found


def workers_of(process):
    """The processes that a process started and that train."""
    found = []
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
                found.append(int(entry))
    return found


def once(condition, process, seconds=PATIENCE):
    """Wait until something holds; the process must still be there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    pytest.fail("it never came to that")


@pytest.fixture
def started():
    """Starts commands; what is still there after the test is killed, and the workers end with it."""
    processes = []

    def start(words):
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_several_processes_give_the_results_of_one(reviews, tmp_path):
    short = ["--loop.epochs", "2", "-q"]
    for jobs in ("1", "2"):
        subprocess.run(command(reviews, tmp_path / jobs, *short, "--jobs", jobs), check=True, capture_output=True)
    one, two = cells(tmp_path / "1"), cells(tmp_path / "2")
    assert one == two
    assert len(one) == 5
    assert (tmp_path / "2" / "report.html").is_file()


def test_a_wish_to_stop_reaches_every_process_and_nothing_is_lost(reviews, tmp_path, started):
    out = tmp_path / "run"
    long = command(reviews, out, "--loop.epochs", "400", "--jobs", "2")
    process = started(long)
    once(lambda: len(list((out / "work").glob("*/metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, said
    assert f"SIGTERM at scratch, all labels, seed 0; saved. Go on with: headstart compare --resume --out {out}" in said
    assert len(list((out / "work").glob("*/checkpoints/step-*"))) == 2


@in_proc
def test_a_process_that_dies_costs_its_own_run_alone(reviews, tmp_path, started):
    out = tmp_path / "run"
    long = command(reviews, out, "--loop.epochs", "30", "--jobs", "2", seeds=4)
    process = started(long)
    once(lambda: any((out / "work").glob("*/metrics.jsonl")) and len(workers_of(process)) == 2, process)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    last = said.strip().splitlines()[-1]
    assert last == (
        "headstart: a process was ended from outside (out of memory?); finished runs are kept. "
        f"Go on with: headstart compare --resume --out {out}"
    )
    subprocess.run(
        [sys.executable, "-m", "headstart", "compare", "--resume", "--out", str(out), "--jobs", "2", "-q"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        command(reviews, tmp_path / "whole", "--loop.epochs", "30", "-q", seeds=4), check=True, capture_output=True
    )
    assert cells(out) == cells(tmp_path / "whole")
    assert json.loads((out / "result.json").read_text()) == {"report": "report.html"}


def test_no_process_is_a_wrong_number_of_them(reviews, tmp_path):
    found = subprocess.run(
        command(reviews, tmp_path / "run", "--jobs", "0"), capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (2, "headstart: --jobs must be at least 1, got 0\n")


@in_proc
@pytest.mark.parametrize("kind", ["busy", "idle", "starting", "stopping"])
def test_a_worker_killed_at_any_moment_ends_the_others_with_their_state_saved(kind, tmp_path):
    """A few random kills; `make torture` has more of them, and a busy machine."""
    found = worker_kills.Kills(kind, tmp_path / "run").go(3)
    assert found == {"runs": found["runs"], "kills": 3, "hung": [], "lost": [], "faults": []}


@in_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_workers_that_a_death_left_stopped(number, tmp_path):
    group = worker_kills.Group(polling_command(tmp_path, 2, "600", "600"), tmp_path / "log.txt")
    try:
        once(lambda: len(list(tmp_path.glob("begun-*"))) == 2, group.process)
        stuck, killed = (int((tmp_path / f"begun-{job}").read_text()) for job in (0, 1))
        os.kill(stuck, signal.SIGSTOP)  # it cannot react to anything but a kill
        os.kill(killed, signal.SIGKILL)
        for times in (1, 2):
            once(lambda: killed not in group.left(), group.process)
            group.process.send_signal(number)
            if times == 1:
                once(lambda: "stopping: saving first" in group.log.read_text(), group.process)
    finally:
        code, stayed = group.end()
    assert (code, stayed) == ({signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[number], [])


@in_proc
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    group = worker_kills.Group(polling_command(tmp_path, 2, "600", "600"), tmp_path / "log.txt")
    try:
        once(lambda: len(list(tmp_path.glob("begun-*"))) == 2, group.process)
        group.process.kill()
    finally:
        code, stayed = group.end()
    assert (code, stayed, group.log.read_text()) == (-signal.SIGKILL, [], "")


def polling_command(folder, processes, *seconds):
    return [sys.executable, polling.__file__, str(folder), str(processes), *seconds]


def running(make_worker, folder, seconds, processes=2, stop=None):
    return run_parallel(
        make_worker,
        (str(folder),),
        list(enumerate(seconds)),
        processes,
        stop or StopSignal(),
        "this again",
        "all is kept",
    )


def begun(folder):
    """The process ids of the workers by job."""
    return {path.name: int(path.read_text()) for path in Path(folder).glob("begun-*")}


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_as_they_are_made_from_no_more_workers_than_asked_for(tmp_path):
    with closing(running(polling.make_worker, tmp_path, [600, 0])) as found:
        assert next(found) == 1
        worker_kills.until(lambda: len(begun(tmp_path)) == 2)
    assert (tmp_path / "saved-0").exists()
    assert sorted(running(polling.make_worker, tmp_path, [0] * 7)) == list(range(7))
    assert len(set(begun(tmp_path).values())) <= 2
    assert not any(map(is_there, begun(tmp_path).values()))


def test_whoever_takes_no_more_results_leaves_no_worker_behind(tmp_path):
    with closing(running(polling.make_worker, tmp_path, [0, 600, 600])) as found:
        assert next(found) == 0
    assert not any(map(is_there, begun(tmp_path).values()))


def test_a_stop_is_told_to_every_worker_and_waited_for(tmp_path):
    stop = StopSignal()
    found = running(polling.make_worker, tmp_path, [0, 600, 600], stop=stop)
    assert next(found) == 0
    worker_kills.until(lambda: len(begun(tmp_path)) == 3)
    stop.reason = "SIGTERM"
    with pytest.raises(StopRequested):
        next(found)
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-1", "saved-2"}
    assert not any(map(is_there, begun(tmp_path).values()))


@in_proc
def test_a_stop_asked_for_while_a_worker_is_dead_saves_the_state_of_the_others(tmp_path):
    stop = StopSignal()
    found = running(polling.make_worker, tmp_path, [0, 600, 600], processes=3, stop=stop)
    assert next(found) == 0
    worker_kills.until(lambda: len(begun(tmp_path)) == 3)
    os.kill(begun(tmp_path)["begun-0"], signal.SIGKILL)
    worker_kills.until(lambda: not is_running(begun(tmp_path)["begun-0"]))
    stop.reason = "SIGTERM"
    with pytest.raises((StopRequested, TrainingError)) as caught:  # whichever is seen first
        next(found)
    assert str(caught.value) in (
        "",
        "a process was ended from outside (out of memory?); all is kept. Go on with: this again",
    )
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-1", "saved-2"}
    assert not any(map(is_there, begun(tmp_path).values()))


def is_running(pid):
    """Whether a process is there and no zombie, which a killed one is until its parent has looked."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


def test_a_worker_that_does_not_stop_is_killed_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    found = running(polling.make_deaf_worker, tmp_path, [0, 600])
    assert next(found) == 0
    worker_kills.until(lambda: len(begun(tmp_path)) == 2)
    found.close()
    assert not (tmp_path / "saved-1").exists()
    assert not any(map(is_there, begun(tmp_path).values()))


def test_an_error_of_a_worker_is_raised_here_as_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        list(running(polling.make_failing_worker, tmp_path, [0], processes=1))
    assert (caught.value.filename, caught.value.errno) == ("0.txt", 2)
    assert "polling.py" in str(caught.value.__cause__)
    jobs = [(1, 0.0), (2, 600.0)]
    with pytest.raises(RuntimeError) as caught:
        list(run_parallel(polling.make_failing_worker, (str(tmp_path),), jobs, 2, StopSignal(), ""))
    assert str(caught.value) == "faults.polling._Unpicklable: 1.txt, line 7"
    with pytest.raises(HeadstartError) as caught:
        list(running(polling.make_no_worker, "nowhere", [0, 0]))
    assert str(caught.value) == "nowhere cannot be used"
    assert not any(map(is_there, begun(tmp_path).values()))


def test_a_worker_that_dies_before_it_has_read_a_long_command_line_blocks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["headstart", *["a-file-with-a-long-name.txt"] * 50_000])
    resource_tracker.ensure_running()  # it is started by the same executable
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: os.fsencode(shutil.which("false")))
    with pytest.raises(TrainingError):
        list(running(polling.make_worker, tmp_path, [0, 0]))
    assert len(sys.argv) == 50_001
