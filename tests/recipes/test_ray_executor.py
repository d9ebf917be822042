"""Comparisons on a Ray cluster: the files of a local one, a death that costs its run alone, and a stop that saves.

These tests start a cluster of their own on this machine; they skip, saying so, where Ray (extra `cluster`) is not installed.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

import pytest

from fixtures.tiny import write_reviews
from headstart.errors import ConfigError, DataError, HeadstartError, UsageError
from headstart.files import read_json
from headstart.interrupts import StopRequested
from headstart.recipes.executors import Executor, _do_remote, _FileStop, _rebuild_error, _workers
from recipes.test_worker_processes import cells, command, once

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason='Ray is not installed: pip install "headstart[cluster]"'
)
ENVIRONMENT = os.environ | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def address():
    """A cluster of two cores; ended with its own process, by nobody else's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short names
    words = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    words += [
        "--include-dashboard=false",
        f"--temp-dir={folder}",
        "--object-store-memory=80000000",
        "--disable-usage-stats",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    once(lambda: _listens(port), process, 120)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def _listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def compare(reviews, out, *more, seeds=2):
    return subprocess.Popen(
        command(reviews, out, *more, seeds=seeds),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers():
    """The processes of Ray that do a job of ours now."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().startswith(b"ray::_do"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_files_of_one_process(reviews, tmp_path, address):
    short = ["--loop.epochs", "2", "-q"]
    ray = compare(reviews, tmp_path / "ray", *short, "--engine", "ray", "--address", address)
    _, said = ray.communicate(timeout=300)
    assert (ray.returncode, said) == (0, "")
    here = compare(reviews, tmp_path / "here", *short)
    assert here.communicate(timeout=300)[1] == ""
    assert cells(tmp_path / "ray") == cells(tmp_path / "here")
    assert len(cells(tmp_path / "ray")) == 4

    def names(out):
        return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())

    assert names(tmp_path / "ray") == names(tmp_path / "here")
    for name in ("data.json", "ledger.json", "config.json", "quotes.json", "inputs.json"):
        assert read_json(tmp_path / "ray" / name) == read_json(tmp_path / "here" / name), name


@needs_ray
@pytest.mark.slow
def test_a_search_for_settings_on_a_cluster_is_that_of_one_process(reviews, tmp_path, address):
    pytest.importorskip("optuna", reason="needs the extra tune")
    shape = ["--tokenizer.vocab-size", "300", "--model.width", "16", "--model.depth", "1", "--model.context", "24"]
    words = [
        sys.executable,
        "-m",
        "headstart",
        "tune",
        str(reviews / "train.csv"),
        "--valid",
        str(reviews / "valid.csv"),
    ]
    words += ["--from", "scratch", "--trials", "3", "--loop.epochs", "1", "--runtime.threads", "1", *shape, "-q"]
    on_ray = ["--engine", "ray", "--address", address, "--jobs", "1"]
    for name, more in (("ray", on_ray), ("here", [])):
        done = subprocess.run(
            [*words, *more, "--out", str(tmp_path / name)], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")

    def trials(out):
        found = [read_json(path) for path in sorted((out / "trials").iterdir())]
        return [{key: value for key, value in trial.items() if key not in ("seconds", "seal")} for trial in found]

    assert trials(tmp_path / "ray") == trials(tmp_path / "here")
    assert len(trials(tmp_path / "ray")) == 3


@needs_ray
@pytest.mark.slow
def test_a_run_whose_process_is_killed_goes_on_from_its_checkpoint(reviews, tmp_path, address):
    out = tmp_path / "ray"
    long = ["--loop.epochs", "150", "--loop.save-every", "20", "-q"]
    process = compare(reviews, out, *long, "--engine", "ray", "--address", address, "--jobs", "1", seeds=1)
    once(lambda: any(out.glob("work/*/checkpoints/step-*/manifest.json")), process, 200)
    (began,) = (path.stat().st_ino for path in out.glob("work/*/run.json"))
    (killed,) = workers()
    os.kill(killed, signal.SIGKILL)
    once(lambda: bool(workers()) and killed not in workers(), process, 200)
    once(lambda: not any(out.glob("work/*/run.json")) or _grew(out), process, 200)
    after = [path.stat().st_ino for path in out.glob("work/*/run.json")]
    assert after == [began]  # the same run, not another one in its place
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, "")
    here = compare(reviews, tmp_path / "here", *long, seeds=1)
    here.communicate(timeout=300)
    assert cells(out) == cells(tmp_path / "here")


def _grew(out, size={}):  # noqa: B006
    """Whether a run has more to say than when it was last asked."""
    (path,) = out.glob("work/*/metrics.jsonl")
    before = size.setdefault(path, path.stat().st_size)
    return path.stat().st_size > before


@needs_ray
@pytest.mark.slow
def test_a_wish_to_stop_reaches_the_cluster(reviews, tmp_path, address):
    out = tmp_path / "ray"
    process = compare(reviews, out, "--loop.epochs", "4000", "--engine", "ray", "--address", address)
    once(lambda: len(list(out.glob("work/*/metrics.jsonl"))) == 2, process, 200)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert f"Ctrl-C at scratch, all labels, seed 0; saved. Go on with: headstart compare --resume --out {out}" in said
    assert len(list(out.glob("work/*/checkpoints/step-*"))) >= 2
    assert not (out / ".stop").exists()


@needs_ray
@pytest.mark.slow
def test_no_cluster_where_one_was_named_is_one_line(reviews, tmp_path):
    process = compare(reviews, tmp_path / "ray", "--engine", "ray", "--address", "127.0.0.1:9")
    said = process.communicate(timeout=200)[1].strip().splitlines()[-1]
    assert process.returncode == 2
    assert said == "headstart: cannot reach a Ray cluster at 127.0.0.1:9: Connection refused"


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_line_says_what_to_install(reviews, tmp_path):
    process = compare(reviews, tmp_path / "ray", "--engine", "ray", "--loop.epochs", "1")
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 2
    assert said.strip().splitlines()[-1] == (
        'headstart: --engine ray needs one more package; run: pip install "headstart[cluster]"'
    )


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Executor("slurm"), "--engine must be local or ray, got 'slurm'"),
        (Executor("ray", jobs=0), "--jobs must be at least 1, got 0"),
        (Executor(address="head:6379"), "--address is that of a Ray cluster; it needs --engine ray"),
    ],
)
def test_engines_that_make_no_sense_are_refused(engine, message):
    with pytest.raises(UsageError) as caught:
        engine.check()
    assert str(caught.value) == message


def test_an_engine_knows_whether_runs_leave_this_process():
    assert [each.is_apart for each in (Executor(), Executor(jobs=1), Executor(jobs=2), Executor("ray"))] == [
        False,
        False,
        True,
        True,
    ]


def squares(power):
    """A worker that any process can make from its name."""

    def work(job, stop):
        stop.check()
        if job[0] < 0:
            raise DataError(f"{job[0]} is below zero")
        return job[0] ** int(power)

    return work


def test_what_travels_is_names_and_plain_values(tmp_path, monkeypatch):
    monkeypatch.setitem(_workers, ("anything:squares", ("2",)), squares("2"))
    here = str(tmp_path)
    assert _do_remote("anything:squares", ["2"], [3], here, here) == {"result": 9}
    assert _do_remote("anything:squares", ["2"], [-3], here, here) == {"error": ["DataError", "-3 is below zero"]}
    (tmp_path / ".stop").touch()
    assert _do_remote("anything:squares", ["2"], [3], here, here) == {"result": None}
    missing = _do_remote("anything:squares", ["2"], [3], "/no/such/folder", here)
    assert missing["error"] == [
        "StoreError",
        f"{socket.gethostname()} does not see /no/such/folder; every machine of the cluster must see it",
    ]


def test_an_error_from_another_machine_is_the_same_error():
    found = _rebuild_error("ConfigError", "model.width must be 8")
    assert (type(found), str(found)) == (ConfigError, "model.width must be 8")
    assert type(_rebuild_error("no such class", "x")) is HeadstartError


def test_a_file_asks_to_stop(tmp_path):
    stop = _FileStop(tmp_path / ".stop")
    stop.check()
    (tmp_path / ".stop").touch()
    stop._looked = time.monotonic() - 1
    with pytest.raises(StopRequested):
        stop.check()
