"""Runs the tests several times beside busy loops: a test that depends on the speed of the machine fails here.

    python tests/under_load.py --all 2 --processes 5

`--all` is how often the unit tests of `make test` run, `--processes` how often the tests that start processes and signal,
kill or ask them. Prints the seconds and the failed tests of every run. Exits with 1 if a test failed.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent
STARTS_PROCESSES = re.compile(r"Popen|fixtures\.serving|fixtures\.torchrun|run_parallel|worker_kills|\bonce\(")
"""What the source of a test has that starts processes and then acts on them; `subprocess.run` alone waits for an end."""


def process_tests() -> list[str]:
    """Return the test files that start processes."""
    folders_with_servers = {TESTS / "serve", TESTS / "distributed"}
    return [
        str(path)
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.parent in folders_with_servers or STARTS_PROCESSES.search(path.read_text(encoding="utf-8"))
    ]


def run_tests(files: Sequence[str], marks: str) -> tuple[int, list[str]]:
    """Run pytest as `make test` does, and return its exit code and the last lines, with the failed tests."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "-m",
        marks,
    ]
    done = subprocess.run(
        [*command, *files], cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = done.stdout.splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "E   "))]
    return done.returncode, [*failures, *lines[-1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", type=int, default=1, help="times that all unit tests run")
    parser.add_argument("--processes", type=int, default=3, help="times that the tests of processes run")
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside them")
    parser.add_argument("--marks", default="not slow and not gpu", help="the tests, as for pytest -m")
    requested = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))  # and what is below ends what was started
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with this process, too
    loops = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(requested.loops)]
    failed = 0
    try:
        runs = [("all tests", [], requested.all), ("tests of processes", process_tests(), requested.processes)]
        for name, files, times in runs:
            for number in range(1, times + 1):
                started = time.monotonic()
                code, lines = run_tests(files, requested.marks)
                failed += code != 0
                seconds = time.monotonic() - started
                sys.stdout.write(f"{name}, run {number} of {times}: {seconds:.0f} s, exit code {code}\n")
                sys.stdout.write("".join(f"  {line}\n" for line in lines))
                sys.stdout.flush()
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
    sys.stdout.write(f"{failed} runs failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
