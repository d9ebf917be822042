"""Runs of a comparison in several processes: the same results, a stop that saves, and a death that costs little."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from headstart.files import read_json
from tiny import write_reviews

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


def once(condition, process, seconds=60):
    """Wait until something holds; the process must still be there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    pytest.fail("it never came to that")


def test_several_processes_give_the_results_of_one(reviews, tmp_path):
    short = ["--loop.epochs", "2", "-q"]
    for jobs in ("1", "2"):
        subprocess.run(command(reviews, tmp_path / jobs, *short, "--jobs", jobs), check=True, capture_output=True)
    one, two = cells(tmp_path / "1"), cells(tmp_path / "2")
    assert one == two
    assert len(one) == 5
    assert (tmp_path / "2" / "report.html").is_file()


def test_a_wish_to_stop_reaches_every_process_and_nothing_is_lost(reviews, tmp_path):
    out = tmp_path / "run"
    long = command(reviews, out, "--loop.epochs", "400", "--jobs", "2")
    process = subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    once(lambda: len(list((out / "work").glob("*/metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert f"SIGTERM at scratch, all labels, seed 0; saved. Go on with: headstart compare --resume --out {out}" in said
    assert len(list((out / "work").glob("*/checkpoints/step-*"))) == 2


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found in /proc")
def test_a_process_that_dies_costs_its_own_run_alone(reviews, tmp_path):
    out = tmp_path / "run"
    long = command(reviews, out, "--loop.epochs", "30", "--jobs", "2", seeds=4)
    process = subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    once(lambda: any((out / "work").glob("*/metrics.jsonl")) and len(workers_of(process)) == 2, process)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
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
