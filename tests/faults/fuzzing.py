"""Mutations of valid files, a bite of them in a child of its own: a crash, a hang or a flood of memory is a fault.

A case is known by its reader and its number, and can be made again from these two alone.
"""

import json
import os
import random
import resource
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from faults.mutate import mutate
from faults.reached import Reached
from faults.readers import Reader, fresh
from fixtures.waiting import PATIENCE
from headstart.errors import HeadstartError

CHUNK = 500
SECONDS = 10
"""A case that takes so much of a processor hangs, and one that has not ended after six times as long."""
MEMORY = 1 << 30
"""Bytes of address space that reading a small file may take on top of what the process has."""


class Hang(BaseException):
    """A case took too long."""


def case(reader: Reader, number: int) -> tuple[str, bytes]:
    """The file and the bytes of one case; those below 0 are not changed."""
    chance = random.Random(f"{reader.name} {number}")
    file = chance.choice(reader.files)
    content = (reader.folder / file).read_bytes()
    return file, content if number < 0 else mutate(content, chance, content)


def try_one(reader: Reader, file: str, content: bytes, target_folder: Path, reached: Reached | None = None) -> str:
    """Read one case: `read`, `refused`, or what went wrong."""
    folder = fresh(reader, target_folder, file, content)
    try:
        with reached or nullcontext():
            reader.read(folder)
    except HeadstartError as error:
        output = str(error)
        return "refused" if output and "\n" not in output else f"not one line: {output!r}"
    except BaseException as error:  # a panic in Rust is no Exception
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def torture(reader: Reader, cases: int, target_folder: Path, first: int = 0) -> dict[str, Any]:
    """Try so many cases; what failed is kept by its number, and the lines that were reached by their files."""
    record: dict[str, Any] = {"cases": 0, "read": 0, "refused": 0, "faults": []}
    reached = Reached(reader.rooms)
    control = _chunk(reader, range(-1, 0), target_folder)
    assert control == [(-1, "read")], f"{reader.name}: {control}"
    for start in range(first, first + cases, CHUNK):
        numbers = range(start, min(start + CHUNK, first + cases))
        traced = start // CHUNK < 4 or start // CHUNK % 5 == 0  # tracing takes twice the time
        result = _chunk(reader, numbers, target_folder, reached if traced else None)
        if result is None:  # the child died: which case was it?
            for number in numbers:
                one = _chunk(reader, range(number, number + 1), target_folder)
                _book(record, one or [(number, "killed the process")])
        else:
            _book(record, [_surely(reader, number, what, target_folder) for number, what in result])
    return record | reached.row()


def _surely(reader: Reader, number: int, what: str, target_folder: Path) -> tuple[int, str]:
    """A hang counts once it hangs alone as well: whoever is at work beside it is no fault of the reader's."""
    again = _chunk(reader, range(number, number + 1), target_folder) if what.startswith("Hang") else None
    return again[0] if again else (number, what)


def _book(record: dict[str, Any], result: list[tuple[int, str]]) -> None:
    for number, what in result:
        record["cases"] += 1
        if what in ("read", "refused"):
            record[what] += 1
        else:
            record["faults"].append(f"case {number}: {what}")


def _chunk(
    reader: Reader, numbers: range, target_folder: Path, reached: Reached | None = None
) -> list[tuple[int, str]] | None:
    """The cases of a bite, in a child; None when it did not come back."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _in_the_child(reader, numbers, target_folder / str(os.getpid()), write_end, reached)
    os.close(write_end)
    deadline = time.monotonic() + 2 * PATIENCE
    with os.fdopen(read_end, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        content = b""
        while time.monotonic() < deadline:
            piece = pipe.read()
            if piece == b"":
                break
            content += piece or b""
            time.sleep(0.002)
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        return None
    answers, lines = json.loads(content)
    if reached:
        reached.merge(lines)
    return [(number, what) for number, what in answers]


def _in_the_child(reader: Reader, numbers: range, target_folder: Path, write_end: int, reached: Reached | None) -> None:
    code = 70
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

        def hang(_number: int, _frame: object) -> None:
            raise Hang(f"more than {SECONDS} seconds")

        signal.signal(signal.SIGALRM, hang)
        signal.signal(signal.SIGPROF, hang)
        answers = []
        for number in numbers:
            signal.alarm(PATIENCE)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                what = try_one(reader, *case(reader, number), target_folder, reached)
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            answers.append((number, what))
        shutil.rmtree(target_folder, ignore_errors=True)
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(json.dumps([answers, reached.dump() if reached else []]).encode())
        code = 0
    finally:
        os._exit(code)
