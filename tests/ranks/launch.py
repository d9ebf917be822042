"""Starts torchrun for a test, and reads what came of it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from headstart.store.rundir import RunFolder
from headstart.store.tensors import load_tensors

ROOT = Path(__file__).parent.parent.parent
BOUND = 1e-5
"""Of a loss, relative: sums in another order, and nothing else."""


def environment() -> dict[str, str]:
    """One thread a process, this checkout's sources, and none of the variables of a launcher around us."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "SLURM"))}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def torchrun(world: int, *arguments: str, restarts: int = 0, **options) -> subprocess.Popen:
    """Several processes of a script or a module; text of both streams together."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--max-restarts={restarts}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--nproc-per-node={world}", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment(), **streams, **options)


def crew(world: int, data: Path, jobs: list[dict], folder: Path) -> None:
    """Jobs done by several processes, in one start of them."""
    listed = folder / f"jobs-{world}.json"
    listed.write_text(json.dumps(jobs))
    process = torchrun(world, str(Path(__file__).parent / "crew.py"), str(data), str(listed))
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said[-4000:]


def losses(out: Path) -> list[float]:
    """The loss of every step, or of every epoch."""
    lines = RunFolder(out).metrics.read()
    return [line["loss"] for line in lines if line["kind"] == "step"] or [
        value for line in lines if line["kind"] == "epoch" for value in (line["train_loss"], line["valid_loss"])
    ]


def apart(one: Path, other: Path) -> float:
    """The largest relative distance between the losses of two runs of as many steps."""
    pairs = list(zip(losses(one), losses(other), strict=True))
    assert len(pairs) >= 6
    return max(abs(a - b) / a for a, b in pairs)


def weights(out: Path) -> dict:
    """The weights that a run ended with, by name."""
    parts = {name: load_tensors(out / "bundle" / f"{name}.safetensors") for name in ("backbone", "head")}
    return {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.items()}


def pid_of(agent: subprocess.Popen, rank: int) -> int:
    """The process of a rank: the one of torchrun's children whose environment says so."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for child in children:
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no process has rank {rank} among {children}")


def until(there: Path, process: subprocess.Popen, seconds: float = 120.0) -> None:
    """Wait for something to appear on the disk."""
    deadline = time.monotonic() + seconds
    while not there.exists():
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < deadline, f"{there} did not appear"
        time.sleep(0.02)
