"""Worker processes of a grid, killed with SIGKILL at random moments on a busy machine; counts what hung and what was lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from faults import polling
from faults.runs import outcome
from fixtures.waiting import PATIENCE

ENDED = "a worker process was killed (out of memory?); finished runs are kept. Continue with: "
LONG = str(2 * PATIENCE)
"""Seconds of a job that ends only because it is stopped."""
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


@contextmanager
def load(loops: int = 4) -> Iterator[None]:
    """So many busy loops beside the work."""
    busy = [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


class Group:
    """A command in a session of its own, so that every process that it starts can be found, and ended, whatever happens."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def workers(self) -> list[int]:
        """The worker processes that are alive, in the order of their start."""
        return [pid for pid, parent, words in self._members() if parent == self.process.pid and b"spawn_main" in words]

    def left(self) -> list[int]:
        """Every process of the session that is alive."""
        return [pid for pid, _, _ in self._members()]

    def end(self) -> tuple[int | None, list[int]]:
        """Wait for the end: the exit code, or None if it hung, and the processes that stayed; none stay after this."""
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(PATIENCE)
        stayed = self.left() if code is None or not until(lambda: not self.left(), PATIENCE) else []
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return code, stayed

    def _members(self) -> list[tuple[int, int, bytes]]:
        result = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError):
                    fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                    if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                        words = Path(f"/proc/{entry}/cmdline").read_bytes()
                        result.append((int(entry), int(fields[1]), words))
        return sorted(result)


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait until something holds; False if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def kill(pid: int) -> bool:
    """SIGKILL to one process; False if it had ended before."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Kills:
    """One kind of worker, killed again and again; `record` counts what became of the runs.

    Kinds: `busy` with a job; `idle`, its job done while another worker has one; `starting`, within its first moments;
    `stopping`, just before or after its parent is sent SIGTERM or SIGINT.
    """

    def __init__(self, kind: str, work: Path) -> None:
        self.kind, self.folder = kind, work
        self.record: dict[str, Any] = {"runs": 0, "kills": 0, "hung": [], "lost": [], "faults": []}

    def go(self, kills: int, seed: int = 0) -> dict[str, Any]:
        """So many kills, each of a run of its own that is then finished by another."""
        chance = random.Random(f"{self.kind} {seed}")
        while self.record["kills"] < kills and len(self.record["hung"]) < 5:
            self._case(chance)
        return self.record

    def _case(self, chance: random.Random) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.record["runs"] += 1
        seconds = ["0", LONG, LONG] if self.kind == "idle" else [LONG] * 3
        group = Group(self._command(3, *seconds), self.folder / "log.txt")
        try:
            killed = getattr(self, f"_{self.kind}")(group, chance)
        finally:
            code, stayed = group.end()
        self.record["kills"] += killed is not None
        self._book(group, killed, code, stayed)

    def _command(self, processes: int, *seconds: str) -> list[str]:
        return [sys.executable, str(polling.__file__), str(self.folder), str(processes), *seconds]

    def _begun(self) -> dict[int, int]:
        """The worker of every job that has begun."""
        return {int(path.name.partition("-")[2]): int(path.read_text()) for path in self.folder.glob("begun-*")}

    def _is(self, state: str, job: int) -> bool:
        return (self.folder / f"{state}-{job}").exists()

    def _busy(self, group: Group, chance: random.Random) -> int | None:
        until(lambda: len(self._begun()) == 3)
        time.sleep(chance.uniform(0, 0.02))
        pid = self._begun()[chance.randrange(3)]
        return pid if kill(pid) else None

    def _idle(self, group: Group, chance: random.Random) -> int | None:
        until(lambda: len(self._begun()) == 3 and self._is("done", 0))
        time.sleep(chance.uniform(0, 0.02))
        pid = self._begun()[0]
        return pid if kill(pid) else None

    def _starting(self, group: Group, chance: random.Random) -> int | None:
        wanted = chance.randrange(3)
        until(lambda: len(group.workers()) > wanted)
        time.sleep(chance.uniform(0, 0.5))
        pid = group.workers()[wanted]
        return pid if kill(pid) else None

    def _stopping(self, group: Group, chance: random.Random) -> int | None:
        until(lambda: len(self._begun()) == 3)
        pid, number = self._begun()[chance.randrange(3)], chance.choice((signal.SIGTERM, signal.SIGINT))
        if chance.random() < 0.5:
            group.process.send_signal(number)
            time.sleep(chance.uniform(0, 0.02))
            killed = kill(pid)
        else:
            killed = kill(pid)
            time.sleep(chance.uniform(0, 0.02))
            group.process.send_signal(number)
        return pid if killed else None

    def _book(self, group: Group, killed: int | None, code: int | None, stayed: list[int]) -> None:
        """What became of a run with a worker killed: an end, the right words, and every other job saved or done."""
        log = group.log.read_text()
        if code is None:
            self.record["hung"].append(f"{len(stayed)} processes left; {log[-300:].strip()}")
            return
        if stayed:
            self.record["faults"].append(f"{len(stayed)} processes left after the end")
        output = [(polling.FAILED, f"{ENDED}this again")] if killed is not None else []
        output += [(polling.HALTED, "")] if self.kind == "stopping" else []
        if not any(code == each and log.strip().endswith(words) for each, words in output):
            self.record["faults"].append(f"exit code {code}: {log[-300:].strip()}")
        for job, pid in self._begun().items():
            if pid != killed and not self._is("done", job) and not self._is("saved", job):
                self.record["lost"].append(f"job {job} of a worker that was not killed")
        self.record["lost"] += [
            f"result {line}" for line in log.split() if line.isdigit() and not self._is("done", int(line))
        ]
        self._resumed()

    def _resumed(self) -> None:
        """The same jobs again, now short: those that were done are not repeated, and every other one gives its result."""
        left = [str(job) for job in range(3) if not self._is("done", job)]
        group = Group(self._command(2, "0", "0", "0"), self.folder / "log.txt")
        code, stayed = group.end()
        if code is None:
            self.record["hung"].append("a run that nobody touched")
        elif code or stayed or sorted(group.log.read_text().split()) != left:
            self.record["lost"].append(f"resumed with {code}: {group.log.read_text()[-300:].strip()}")


class RealKills:
    """A comparison with --jobs 2 whose workers are killed at random moments, resumed until it is done; as `Kills` otherwise."""

    ARMS = ("--arms", "majority,scratch", "--seeds", "3", "--loop.epochs", "4")

    def __init__(self, data: Path, work: Path, shape: list[str]) -> None:
        self.folder, self.shape, self.duration = work, shape, 0.0
        self.files = [str(data / "train.csv"), "--valid", str(data / "valid.csv"), "--test", str(data / "test.csv")]
        self.record: dict[str, Any] = {"runs": 0, "kills": 0, "hung": [], "lost": [], "faults": [], "different": []}
        work.mkdir(parents=True)

    def go(self, kills: int, seed: int = 0) -> dict[str, Any]:
        """Kill and resume, run after run, until there were so many kills; then let the last run end."""
        chance, started = random.Random(f"compare {seed}"), time.monotonic()
        code, log = self._attempt(self.folder / "whole", None)
        assert code == 0, log
        whole, self.duration = outcome(self.folder / "whole"), time.monotonic() - started
        out = self.folder / "run"
        while self.record["kills"] < kills and not self.record["hung"]:
            shutil.rmtree(out, ignore_errors=True)
            self.record["runs"] += 1
            while True:
                before = self.record["kills"]
                code, log = self._attempt(out, chance if before < kills else None)
                if code != 1 or self.record["kills"] == before or f"headstart: {ENDED}" not in log:
                    break
            if code is None:
                self.record["hung"].append(log[-300:])
            elif code:
                self.record["lost"].append(f"exit code {code}: {log[-300:].strip()}")
            elif outcome(out) != whole:
                self.record["different"].append("cells")
        return self.record

    def _attempt(self, out: Path, chance: random.Random | None) -> tuple[int | None, str]:
        arguments = ["--resume"] if (out / "run.json").is_file() else [*self.files, *self.ARMS, *self.shape]
        command = [sys.executable, "-m", "headstart", "compare", *arguments, "--out", str(out), "--jobs", "2"]
        group = Group(command, self.folder / "log.txt")
        try:
            if chance:
                until(lambda: group.workers() or group.process.poll() is not None)
                time.sleep(chance.uniform(0, 0.7 * self.duration))
                workers = group.workers()
                self.record["kills"] += bool(workers) and kill(chance.choice(workers))
        finally:
            code, stayed = group.end()
        if stayed and code is not None:
            self.record["faults"].append(f"{len(stayed)} processes left after the end")
        return code, group.log.read_text()
