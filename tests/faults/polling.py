"""A grid of jobs that do nothing but poll the stop signal, in real worker processes: what is left when one is killed is known.

    python tests/faults/polling.py FOLDER PROCESSES SECONDS SECONDS ...

One job for each number of seconds. A job writes `begun-JOB` with the process id of its worker, then `done-JOB` at its
end, or `saved-JOB` if it was asked to stop. A job that has a `done-JOB` already is left out. Needs no torch, so that
hundreds of cases take minutes.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from headstart.errors import HeadstartError
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.recipes.workers import run_parallel

HALTED, FAILED = 3, 1
Job = tuple[int, float]


def make_worker(folder: str) -> Callable[[Job, StopSignal], int]:
    """What a worker does with a job: poll the stop signal in steps as short as they can be."""
    target_folder = Path(folder)

    def do(job: Job, stop: StopSignal) -> int:
        number, seconds = job
        _write(target_folder / f"begun-{number}", str(os.getpid()))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if stop.requested:
                _write(target_folder / f"saved-{number}", "")
                raise StopRequested
            time.sleep(0 if number % 2 else 0.0001)
        _write(target_folder / f"done-{number}", "")
        return number

    return do


def make_deaf_worker(folder: str) -> Callable[[Job, StopSignal], int]:
    """A worker that never looks at the stop signal."""
    work = make_worker(folder)
    return lambda job, _stop: work(job, StopSignal())


def make_failing_worker(folder: str) -> Callable[[Job, StopSignal], int]:
    """A worker whose job 0 fails with an error that names it, and job 1 with one that cannot be pickled."""
    work = make_worker(folder)

    def do(job: Job, stop: StopSignal) -> int:
        if job[0] == 0:
            raise FileNotFoundError(2, "No such file", "0.txt")
        if job[0] == 1:
            raise _Unpicklable("1.txt", line=7)
        return work(job, stop)

    return do


def make_no_worker(folder: str) -> Callable[[Job, StopSignal], int]:
    """What cannot be made: an error before the first job."""
    raise HeadstartError(f"{folder} cannot be used")


class _Unpicklable(Exception):
    def __init__(self, name: str, *, line: int) -> None:
        super().__init__(f"{name}, line {line}")


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(143)


def main(folder: str, processes: str, *seconds: str) -> int:
    """Do the jobs that are left; the results and the error are what is printed."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = [(n, float(each)) for n, each in enumerate(seconds) if not (Path(folder) / f"done-{n}").exists()]
    try:
        with handle_signals() as stop:
            for result in run_parallel(make_worker, (folder,), jobs, int(processes), stop, "this again"):
                print(result, flush=True)  # noqa: T201
    except StopRequested:
        return HALTED
    except HeadstartError as error:
        print(error, flush=True)  # noqa: T201
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
