"""The suite itself: no test waits for less than minutes, and what a test starts it ends."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.forked import ForkedProcess
from fixtures.order import LONGEST
from fixtures.processes import end_survivors, started_processes
from fixtures.waiting import PATIENCE, wait_until

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.py"))
NEVER_ENDING = "import os, sys, threading; print(os.getpid(), flush=True); threading.Event().wait()"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {NEVER_ENDING!r}])"
REQUESTS = {"get", "post", "put", "stream", "request", "Client"}


def short_waits(source: str) -> list[str]:
    """Return the calls whose `timeout` or hypothesis `deadline` is a few seconds, and requests with httpx2's own."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if _is_short(call)]


def _is_short(call: ast.Call) -> bool:
    limits = {word.arg: word.value for word in call.keywords if word.arg in ("timeout", "deadline")}
    is_request = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "httpx2"
    if is_request and call.func.attr in REQUESTS and "timeout" not in limits:
        return True
    return any(isinstance(limit, ast.Constant) and limit.value is not None for limit in limits.values())


def test_no_wait_is_limited_to_seconds():
    """The longest is `PATIENCE`; a shorter one would depend on how busy the machine is."""
    assert len(FILES) > 200
    waits = {str(path.relative_to(HERE)): short_waits(path.read_text("utf-8")) for path in FILES}
    assert {name: calls for name, calls in waits.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    ["process.wait(timeout=60)", "httpx2.get(url)", "settings(max_examples=9, deadline=200)", "httpx2.Client()"],
)
def test_short_waits_are_noticed(source):
    assert short_waits(source) == [source]
    assert (
        short_waits("process.wait(timeout=PATIENCE); httpx2.get(url, timeout=PATIENCE); settings(deadline=None)") == []
    )


def test_the_files_that_run_first_exist():
    assert [name for name in LONGEST if not (HERE / name).is_file()] == []


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to find processes")


@needs_proc
@pytest.mark.parametrize("session", [False, True])
def test_a_process_that_survives_is_named_and_ended_even_if_its_parent_has_ended(session):
    before = set(started_processes())
    parent = [sys.executable, "-c", PARENT]
    done = subprocess.Popen(parent, stdout=subprocess.PIPE, text=True, start_new_session=session)
    pid = int(done.stdout.readline())
    assert done.wait(PATIENCE) == 0
    assert pid in started_processes()
    (survivor,) = end_survivors(before, seconds=0)
    assert NEVER_ENDING in survivor
    wait_until(lambda: pid not in started_processes())
    assert end_survivors(before) == []
    done.stdout.close()


@needs_proc
def test_a_process_of_the_session_is_no_survivor():
    process = subprocess.Popen([sys.executable, "-c", NEVER_ENDING], stdout=subprocess.DEVNULL)
    try:
        assert end_survivors({*started_processes()}, seconds=0) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@needs_proc
def test_a_forked_process_that_survives_is_named_but_not_the_one_that_it_is_a_copy_of(tmp_path):
    before = set(started_processes())
    process = ForkedProcess(signal.pause, ["pause"], tmp_path / "log.txt")
    assert set(started_processes()) - before == {process.pid}
    (survivor,) = end_survivors(before, seconds=0)
    assert "multiprocessing.forkserver" in survivor
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert end_survivors(before) == []
