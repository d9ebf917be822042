"""Runs killed with SIGKILL, at random moments or at every operation on the disk, and resumed until they are done.

A child is forked for every attempt from a process that has torch imported already; nothing of torch has run in it, so
the children are real runs in real processes at a fraction of the price. One thread: forked thread pools do not work.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.disk import Disk, killed
from faults.runs import go, outcome
from fixtures.waiting import PATIENCE
from headstart.errors import HeadstartError, StoreError
from headstart.files import MANIFEST, read_json, read_manifest


def attempt(work: Callable[[], None], log: Path, kill_after: float | None = None) -> int:
    """Do something in a child; returns its exit code, -9 when it was killed, 1 for an error of ours, 70 for any other."""
    child = os.fork()
    if child == 0:
        _in_the_child(work, log)
    deadline = time.monotonic() + (PATIENCE if kill_after is None else kill_after)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL if kill_after is not None else 99
        time.sleep(0.0005)


def _in_the_child(work: Callable[[], None], log: Path) -> None:
    code = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        code = 0
    except HeadstartError as error:
        sys.stderr.write(f"headstart: {error}\n")
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def torn(out: Path) -> list[str]:
    """What stands in a run folder under its own name, as if it were whole, and is not."""
    result = []
    for path in out.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(out).parts):
            continue  # drafts are nobody's state
        try:
            if path.name == MANIFEST:
                read_manifest(path.parent, kind=read_json(path)["kind"])
            elif path.suffix == ".json":
                read_json(path)
        except (StoreError, KeyError) as error:
            result.append(str(error))
    return result


def phase(out: Path) -> str:
    """What a run that was just killed was doing."""
    if not (out / "run.json").exists():
        return "beginning"
    if any(".writing-" in path.name or ".old-" in path.name for path in out.rglob(".*")):
        return "writing"
    if (out / "parts").exists() and not (out / "choice.json").exists():
        return "training"  # `auto` has a bundle from its first part on
    if (out / "bundle").exists() or (out / "report.html").exists():
        return "ending"
    begun = (out / "cells").exists() or (out / "work").exists() or (out / "metrics.jsonl").exists()
    return "training" if begun else "preparing"


class Torture:
    """One kind of run, tortured again and again; `record` counts what became of it."""

    def __init__(self, kind: str, data: Path, work: Path, steps: int) -> None:
        self.kind, self.data, self.work, self.steps = kind, data, work, steps
        self.log = work / "log.txt"
        self.record: dict[str, Any] = {
            "runs": 0,
            "kills": 0,
            "lost": [],
            "torn": [],
            "different": [],
            "phases": Counter(),
        }
        work.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        code = self._attempt(work / "whole", resume=False)
        assert code == 0, self.log.read_text()[-2000:]
        self.duration = time.monotonic() - started
        self.whole = outcome(work / "whole")

    def _attempt(self, out: Path, *, resume: bool, kill_after: float | None = None, disk: Disk | None = None) -> int:
        def work() -> None:
            if disk is None:
                go(self.kind, self.data, out, resume=resume, steps=self.steps)
            else:
                with disk:
                    go(self.kind, self.data, out, resume=resume, steps=self.steps)

        return attempt(work, self.log, kill_after)

    def at_random(self, kills: int, seed: int) -> None:
        """Kill and resume at random moments, run after run, until there were so many kills; then let the last one end."""
        chance = random.Random(f"{self.kind} {seed}")
        wanted = self.record["kills"] + kills
        while self.record["kills"] < wanted:
            out = self._fresh()
            while True:
                # most attempts are cut early, so that one run dies many times; some may reach the end
                reach = 0.6 if chance.random() < 0.7 else 1.2
                delay = chance.uniform(0, reach * self.duration) if self.record["kills"] < wanted else None
                if not self._goes_on(out, self._attempt(out, resume=_begun(out), kill_after=delay)):
                    break

    def at_every_operation(self, every: int = 1) -> None:
        """Kill at each operation on the disk in turn, before, in or after it, and resume once."""
        out = self._fresh()
        counting = Disk(self.work)
        note = self.work / "operations"

        def work() -> None:
            with counting:
                go(self.kind, self.data, out, resume=False, steps=self.steps)
            note.write_text(str(len(counting.log)))

        assert attempt(work, self.log) == 0, self.log.read_text()[-2000:]
        for number in range(0, int(note.read_text()), every):
            out = self._fresh()
            disk = Disk(self.work, number, killed, late=bool(number // every % 2))
            if self._goes_on(out, self._attempt(out, resume=False, disk=disk)):
                self._goes_on(out, self._attempt(out, resume=_begun(out)))

    def _fresh(self) -> Path:
        out = self.work / "run"
        shutil.rmtree(out, ignore_errors=True)
        self.record["runs"] += 1
        return out

    def _goes_on(self, out: Path, code: int) -> bool:
        """Book what an attempt came to; True while the run is not over."""
        if code == -signal.SIGKILL:
            self.record["kills"] += 1
            self.record["phases"][phase(out)] += 1
            self.record["torn"] += torn(out)
            return True
        if code:
            self.record["lost"].append(f"exit code {code}: {self.log.read_text()[-500:].strip()}")
        elif outcome(out) != self.whole:
            names = sorted(name for name in self.whole if outcome(out).get(name) != self.whole[name])
            self.record["different"].append(", ".join(names) or "more files")
        return False


def _begun(out: Path) -> bool:
    """Whether there is a run to resume; a person starts it anew where there is not."""
    return (out / "run.json").is_file()
