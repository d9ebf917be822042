"""A comparison on a Ray cluster writes the files of a local one, survives the death of a process, and saves on a stop.

These tests start a cluster on this machine; they are skipped where Ray (extra `cluster`) is not installed.
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
from fixtures.waiting import PATIENCE, wait_until
from headstart.errors import ConfigError, DataError, HeadstartError, UsageError
from headstart.files import read_json
from headstart.interrupts import StopRequested
from headstart.recipes.executors import Executor
from headstart.recipes.ray_cluster import _do_remote, _FileStopSignal, _rebuild_error, _workers
from recipes.test_worker_processes import command, load_records

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
    """The address of a cluster of two cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the path of a socket must be short
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
    wait_until(lambda: _listens(port), process)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=PATIENCE)
    shutil.rmtree(folder, ignore_errors=True)


def _listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def compare(reviews, out, *options, seeds=2):
    return subprocess.Popen(
        command(reviews, out, *options, seeds=seeds),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers():
    """List the processes of Ray that do one of our jobs."""
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().startswith(b"ray::_do"):
                        pids.append(int(entry))
            except OSError:
                continue
    return pids


@needs_ray
@pytest.mark.slow
def test_a_cluster_writes_the_files_of_one_process(reviews, tmp_path, address):
    short = ["--loop.epochs", "2", "-q"]
    ray = compare(reviews, tmp_path / "ray", *short, "--engine", "ray", "--address", address)
    _, stderr = ray.communicate(timeout=PATIENCE)
    assert (ray.returncode, stderr) == (0, "")
    local = compare(reviews, tmp_path / "local", *short)
    assert local.communicate(timeout=PATIENCE)[1] == ""
    assert load_records(tmp_path / "ray") == load_records(tmp_path / "local")
    assert len(load_records(tmp_path / "ray")) == 4

    def names(out):
        return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())

    assert names(tmp_path / "ray") == names(tmp_path / "local")
    for name in ("data.json", "ledger.json", "config.json", "quotes.json", "inputs.json"):
        assert read_json(tmp_path / "ray" / name) == read_json(tmp_path / "local" / name), name


@needs_ray
@pytest.mark.slow
def test_a_search_on_a_cluster_equals_that_of_one_process(reviews, tmp_path, address):
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
    for name, options in (("ray", on_ray), ("local", [])):
        completed = subprocess.run(
            [*words, *options, "--out", str(tmp_path / name)], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert (completed.returncode, completed.stderr) == (0, "")

    def trials(out):
        records = [read_json(path) for path in sorted((out / "trials").iterdir())]
        return [{key: value for key, value in trial.items() if key not in ("seconds", "seal")} for trial in records]

    assert trials(tmp_path / "ray") == trials(tmp_path / "local")
    assert len(trials(tmp_path / "ray")) == 3


@needs_ray
@pytest.mark.slow
def test_a_run_whose_process_is_killed_resumes_from_its_checkpoint(reviews, tmp_path, address):
    out = tmp_path / "ray"
    long = ["--loop.epochs", "150", "--loop.save-every", "20", "-q"]
    process = compare(reviews, out, *long, "--engine", "ray", "--address", address, "--jobs", "1", seeds=1)
    wait_until(lambda: any(out.glob("work/*/checkpoints/step-*/manifest.json")), process)
    (inode,) = (path.stat().st_ino for path in out.glob("work/*/run.json"))
    (killed,) = workers()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: bool(workers()) and killed not in workers(), process)
    wait_until(lambda: not any(out.glob("work/*/run.json")) or _grew(out), process)
    after = [path.stat().st_ino for path in out.glob("work/*/run.json")]
    assert after == [inode]  # the same run, not another one in its place
    _, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (0, "")
    local = compare(reviews, tmp_path / "local", *long, seeds=1)
    local.communicate(timeout=PATIENCE)
    assert load_records(out) == load_records(tmp_path / "local")


def _grew(out, size={}):  # noqa: B006
    """Return True if the metrics of a run have grown since the first call."""
    (path,) = out.glob("work/*/metrics.jsonl")
    before = size.setdefault(path, path.stat().st_size)
    return path.stat().st_size > before


@needs_ray
@pytest.mark.slow
def test_a_signal_stops_the_runs_on_a_cluster(reviews, tmp_path, address):
    out = tmp_path / "ray"
    process = compare(reviews, out, "--loop.epochs", "4000", "--engine", "ray", "--address", address)
    wait_until(lambda: len(list(out.glob("work/*/metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert (
        f"Ctrl-C at scratch, all labels, seed 0; saved. Continue with: headstart compare --resume --out {out}" in stderr
    )
    assert len(list(out.glob("work/*/checkpoints/step-*"))) >= 2
    assert not (out / ".stop").exists()


@needs_ray
@pytest.mark.slow
def test_an_unreachable_cluster_is_refused_in_one_line(reviews, tmp_path):
    process = compare(reviews, tmp_path / "ray", "--engine", "ray", "--address", "127.0.0.1:9")
    last_line = process.communicate(timeout=PATIENCE)[1].strip().splitlines()[-1]
    assert process.returncode == 2
    assert last_line == "headstart: cannot connect to a Ray cluster at 127.0.0.1:9: Connection refused"


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_line_says_what_to_install(reviews, tmp_path):
    process = compare(reviews, tmp_path / "ray", "--engine", "ray", "--loop.epochs", "1")
    stderr = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert stderr.strip().splitlines()[-1] == (
        'headstart: --engine ray needs one more package; install it with: pip install "headstart[cluster]"'
    )


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (Executor("slurm"), "--engine must be local or ray, got 'slurm'"),
        (Executor("ray", jobs=0), "--jobs must be at least 1, got 0"),
        (Executor(address="head:6379"), "--address needs --engine ray"),
    ],
)
def test_an_invalid_executor_is_refused(executor, message):
    with pytest.raises(UsageError) as caught:
        executor.check()
    assert str(caught.value) == message


def test_an_executor_knows_whether_runs_are_in_other_processes():
    assert [
        executor.is_multiprocess for executor in (Executor(), Executor(jobs=1), Executor(jobs=2), Executor("ray"))
    ] == [
        False,
        False,
        True,
        True,
    ]


def squares(power):
    """Make a worker; any process can import this function by name."""

    def run_job(job, stop):
        stop.check()
        if job[0] < 0:
            raise DataError(f"{job[0]} is below zero")
        return job[0] ** int(power)

    return run_job


def test_a_remote_job_takes_and_returns_plain_values(tmp_path, monkeypatch):
    monkeypatch.setitem(_workers, ("anything:squares", ("2",)), squares("2"))
    folder = str(tmp_path)
    assert _do_remote("anything:squares", ["2"], [3], folder, folder) == {"result": 9}
    assert _do_remote("anything:squares", ["2"], [-3], folder, folder) == {"error": ["DataError", "-3 is below zero"]}
    (tmp_path / ".stop").touch()
    assert _do_remote("anything:squares", ["2"], [3], folder, folder) == {"result": None}
    missing = _do_remote("anything:squares", ["2"], [3], "/no/such/folder", folder)
    assert missing["error"] == [
        "StoreError",
        f"{socket.gethostname()} cannot access /no/such/folder; every machine of the cluster must have access to it",
    ]


def test_an_error_from_another_machine_has_the_same_class_and_message():
    error = _rebuild_error("ConfigError", "model.width must be 8")
    assert (type(error), str(error)) == (ConfigError, "model.width must be 8")
    assert type(_rebuild_error("no such class", "x")) is HeadstartError


def test_the_presence_of_a_file_is_a_stop_request(tmp_path):
    stop = _FileStopSignal(tmp_path / ".stop")
    stop.check()
    (tmp_path / ".stop").touch()
    stop._last_check = time.monotonic() - 1
    with pytest.raises(StopRequested):
        stop.check()
