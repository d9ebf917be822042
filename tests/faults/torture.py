"""Tortures everything that writes or reads, and writes down what became of it.

    python tests/faults/torture.py --size usual --out build/torture.json
    python tests/faults/torture.py --size full --out docs/results/torture.json --part kills --part bytes

Sizes: sample (seconds, part of the suite), usual (minutes, `make torture`), full (`make torture-full`). A part that is not
asked for keeps the figures that the file has. Ends with 1 if anything gave.
"""

# ruff: noqa: E402  (threads are set before torch is imported)
import os
import sys

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}.items():
    os.environ.setdefault(name, value)  # before torch is imported: children are forked

import argparse
import json
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

torch.set_num_threads(1)

from faults import damage, edges, fuzzing, hostile, hostile_patterns, slow_heads, tables, worker_kills, writing
from faults.ends import SMALL
from faults.killing import Torture, attempt
from faults.readers import readers
from faults.runs import KINDS, go, tune, write_data
from faults.unreached import unreached

SIZES: dict[str, dict[str, Any]] = {
    "sample": {"kills": 2, "kinds": ("pairs", "finetune"), "operations": {"finetune": 89}, "cuts": 4, "flips": 10, "cases": 20,
               "connections": 500, "floats": 11, "memory": 3, "tables": 5,
               "workers": {"busy": 2, "idle": 2, "starting": 1, "stopping": 2}},
    "usual": {"kills": 20, "kinds": KINDS, "operations": {"finetune": 7}, "cuts": 50, "flips": 200, "cases": 5_000,
              "connections": 1100, "floats": 1, "memory": 99, "tables": 99,
              "workers": {"busy": 10, "idle": 10, "starting": 5, "stopping": 5, "compare": 2}},
    "full": {
        "kills": 60,
        "kinds": KINDS,
        "operations": {"causal": 1, "stages": 3, "finetune": 3, "compare": 20},
        "cuts": 50,
        "flips": 200,
        "cases": 50_000,
        "connections": 1100,
        "floats": 1,
        "memory": 99,
        "tables": 99,
        "workers": {"busy": 110, "idle": 80, "starting": 50, "stopping": 50, "compare": 10},
    },
}  # fmt: skip
Rows = Iterator[dict[str, Any]]


class Session:
    """One session of torture in a folder of its own."""

    def __init__(self, size: str, work: Path, only: Sequence[str] = ()) -> None:
        self.size, self.work, self.only = SIZES[size], work, only
        self.data = work / "data"
        self._in_a_child(lambda: write_data(self.data))

    def kills(self) -> Rows:
        """SIGKILL at random moments, until every run is done."""
        for kind in self.size["kinds"]:
            torture = Torture(kind, self.data, self.work / "kills" / kind, steps=30)
            torture.at_random(self.size["kills"], seed=0)
            yield {"name": kind, **torture.record}

    def operations(self) -> Rows:
        """SIGKILL at the operations on the disk."""
        for kind, every in self.size["operations"].items():
            torture = Torture(kind, self.data, self.work / "operations" / kind, steps=7)
            torture.at_every_operation(every)
            yield {"name": kind, "every": every, **torture.record}

    def workers(self) -> Rows:
        """SIGKILL to worker processes of a grid, with four busy loops beside it."""
        with worker_kills.load():
            for kind, kills in self.size["workers"].items():
                work = self.work / "workers" / kind
                real = kind == "compare"
                torture = worker_kills.RealKills(self.data, work, SMALL) if real else worker_kills.Kills(kind, work)
                yield {"name": kind, **torture.go(kills)}

    def floats(self) -> Rows:
        """Numbers at the edge of floating point in every option that takes one."""
        numbers = edges.NUMBERS if self.size["floats"] == 1 else ("inf", "1e308", "5e-324")
        yield from edges.torture_floats(self.data, self.work / "floats", every=self.size["floats"], numbers=numbers)

    def memory(self) -> Rows:
        """Settings and models that no memory holds."""
        work = self.work / "memory"
        work.mkdir()
        self._in_a_child(lambda: edges.write_models(work))
        yield from edges.torture_memory(self.data, work, self.size["memory"])

    def tables(self) -> Rows:
        """Odd tables through `inspect` and `auto`."""
        yield from tables.torture(self.work / "tables", self.size["tables"])

    def writes(self) -> Rows:
        """Every operation of every kind of save fails in turn."""
        for save in writing.saves(self.data):
            yield {"name": save.name, **writing.torture(save, self.work / "writes")}

    def damage(self) -> Rows:
        """Every file cut short and with bits flipped."""
        work = self.work / "damage"
        work.mkdir()
        for subject in damage.subjects(self.data, work):
            yield {"name": subject.name, **damage.torture(subject, self.size["cuts"], self.size["flips"])}

    def bytes(self) -> Rows:
        """Mutations of valid files for every reader."""
        compared, tuned = self.work / "compared", self.work / "tuned"
        self._in_a_child(lambda: go("compare", self.data, compared, resume=False))
        self._in_a_child(lambda: tune(self.data, tuned))
        for reader in readers(self.data, compared, tuned, self.work / "readers"):
            if self.only and reader.name not in self.only:
                continue
            target_folder = self.work / "cases" / reader.name.replace("/", "")
            started = time.monotonic()
            result = fuzzing.torture(reader, self.size["cases"], target_folder)
            yield {"name": reader.name, **result, "seconds": round(time.monotonic() - started)}

    def text(self) -> Rows:
        """Hostile text through both tokenizers."""
        yield from hostile.torture(self.data, 100_000 if self.size["cases"] < 100 else 1_000_000)

    def slow_heads(self) -> Rows:
        """Connections that send less than the head of a request."""
        yield from slow_heads.torture(self.data / "base", self.size["connections"])

    def hostile_patterns(self) -> Rows:
        """Regular expressions that explode, in tokenizers of models from elsewhere."""
        folder = self.work / "patterns"
        folder.mkdir()
        yield from hostile_patterns.torture(folder, 2 if self.size["cases"] < 100 else 99)

    def ends(self) -> Rows:
        """Signals, full disks and lost folders at every phase of the commands."""
        folder = self.work / "ends"
        folder.mkdir()
        command = [sys.executable, str(Path(__file__).with_name("ends.py")), str(folder)]
        command += ["few"] if self.size["cases"] < 100 else []
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, scene in result.items():
            faults = [f"left behind: {scene['drafts']}"] if scene["drafts"] else []
            if (
                scene.get("same") is False
                or "unexpected" in scene["said"]
                or scene["code"] not in (0, 1, 2, 75, 130, 143)
            ):
                faults.append(f"resumed with {scene.get('resumed')}, same: {scene.get('same')}")
            yield {
                "name": name.replace("_", " "),
                **{key: scene[key] for key in ("code", "said", "left")},
                "faults": faults,
            }

    def _in_a_child(self, work: Callable[[], object]) -> None:
        log = self.work / "log.txt"
        code = attempt(lambda: (work(), None)[1], log)
        assert code == 0, log.read_text()[-2000:]


PARTS = (
    "kills",
    "operations",
    "workers",
    "floats",
    "memory",
    "tables",
    "bytes",
    "damage",
    "writes",
    "text",
    "slow_heads",
    "hostile_patterns",
    "ends",
)
"""In this order: what forks comes before what runs torch in this process."""
FAULTS = ("lost", "torn", "different", "faults", "accepted", "hung")


def _write(path: Path, table: dict[str, Any], work: Path) -> None:
    """After every row: a session that is cut short has shown what it has shown."""
    table["machine"] = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    path.write_text(text.replace(str(work), "FOLDER"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="usual")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument(
        "--reader", action="append", default=[], help="of the bytes, this reader alone; others stay as they are"
    )
    parser.add_argument("--cases", type=int, help="mutations a reader, in place of the size's own")
    requested = parser.parse_args()
    SIZES[requested.size] |= {"cases": requested.cases} if requested.cases else {}
    table = json.loads(requested.out.read_text()) if requested.out.exists() else {}
    gave = 0
    work = Path(tempfile.mkdtemp(prefix="torture-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        session = Session(requested.size, work, requested.reader)
        for part in PARTS:
            if requested.part and part not in requested.part:
                continue
            started = time.monotonic()
            before = {row["name"]: row for row in table.get(part, {}).get("rows", ())} if requested.reader else {}
            for row in getattr(session, part)():
                before[row["name"]] = row
                gave += sum(len(row.get(name, ())) for name in FAULTS)
                sys.stdout.write(f"{part}: {json.dumps(row, ensure_ascii=False)[:600]}\n")
                sys.stdout.flush()
                seconds = round(time.monotonic() - started)
                table[part] = {"size": requested.size, "seconds": seconds, "rows": list(before.values())}
                if part == "bytes":
                    table[part]["unreached"] = unreached(before.values())
                _write(requested.out, table, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.stdout.write(f"{gave} faults\n")
    return 1 if gave else 0


if __name__ == "__main__":
    sys.exit(main())
