"""A training step on CPU cores beside the course's code and transformers: time, memory, and both as sizes grow.

python benchmarks/cpu.py [--threads 1] [--rounds 5] [--batch 16] [--out docs/results/cpu.json]

All take turns in one process, so that whoever else uses the machine disturbs all alike; ratios of medians are what
counts. Peak memory is that of a process of its own for each.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from peers import PEERS, Shape

CURVES = {
    "length": [64, 128, 256, 512],
    "width": [100, 200, 400],
    "vocabulary": [2000, 16384, 50001],
    "batch": [1, 4, 8],
}
SMALL = Shape(batch=4, length=128)
"""Where the curves cross."""


def in_turn(shape: Shape, names: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of wall and of processor for each step, one warm-up before."""
    steps = {name: PEERS[name](shape) for name in names}
    for step in steps.values():
        step()
    found: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in names}
    for _ in range(rounds):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            found[name]["wall"].append(time.perf_counter() - wall)
            found[name]["cpu"].append(time.process_time() - cpu)
    return found


def ratios(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """By how much Headstart's median is below each other's, and the least and most of any round."""
    ours = found["headstart"]
    table = {}
    for name, theirs in found.items():
        if name != "headstart":
            each = sorted(b / a for a, b in zip(ours["cpu"], theirs["cpu"], strict=True))
            table[name] = {
                "wall": median(theirs["wall"]) / median(ours["wall"]),
                "cpu": median(theirs["cpu"]) / median(ours["cpu"]),
                "cpu_least": each[0],
                "cpu_most": each[-1],
            }
    return table


def peak(name: str, shape: Shape, threads: int) -> dict[str, float]:
    """MiB of a process that takes two steps, and of one that has only imported what it takes."""
    command = [sys.executable, __file__, "--alone", name, "--batch", str(shape.batch), "--length", str(shape.length)]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def alone(name: str, shape: Shape) -> None:
    def most() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    step = PEERS[name](replace(shape, batch=1, length=2, vocabulary=10))
    step()
    imported = most()
    step = PEERS[name](shape)
    step()
    step()
    print(json.dumps({"imported": round(imported), "peak": round(most())}))


def matmul_rate() -> float:
    """The best of a few square products, GFLOP/s of processor time."""
    size = 1024
    a = torch.randn(size, size)
    taken = []
    for _ in range(8):
        before = time.process_time()
        a @ a
        taken.append(time.process_time() - before)
    return 2e-9 * size**3 / min(taken)


def flops(shape: Shape) -> float:
    """Products of one step, forward and backward: 6 a parameter that multiplies and token, and attention's own."""
    tokens, d = shape.batch * shape.length, shape.width
    inner = shape.depth * 6 * d * d + shape.vocabulary * d
    return 6 * tokens * inner + 6 * shape.depth * tokens * shape.length * d  # causal: half of the square


def curves(rounds: int) -> list[dict[str, float | str]]:
    rows = []
    for what, values in CURVES.items():
        for value in values:
            shape = replace(SMALL, **{what: value})
            found = in_turn(shape, ["headstart", "course"], rounds)
            rate = ratios(found)["course"]
            tokens = shape.batch * shape.length
            rows.append(
                {
                    "what": what,
                    "value": value,
                    "tokens_a_cpu_second": round(tokens / median(found["headstart"]["cpu"])),
                    "course_tokens_a_cpu_second": round(tokens / median(found["course"]["cpu"])),
                    "wall": round(rate["wall"], 2),
                    "cpu": round(rate["cpu"], 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


def profile(shape: Shape) -> dict[str, object]:
    """Where the time of one step goes: each operation's own share, and that of the whole loss with its gradients."""
    step = PEERS["headstart"](shape)
    step()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step()
    found = recorded.key_averages()
    whole = sum(event.self_cpu_time_total for event in found)
    loss = sum(event.cpu_time_total for event in found if event.key == "_Chunked")
    rows = sorted(found, key=lambda event: -event.self_cpu_time_total)[:12]
    return {
        "shape": asdict(shape),
        "loss": round(loss / whole, 3),
        "rows": [
            {"name": event.key, "share": round(event.self_cpu_time_total / whole, 3), "calls": event.count}
            for event in rows
        ],
    }


def keep(path: Path, **parts: object) -> None:
    """Put figures into the record, beside what other scripts put there."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    record |= json.loads(json.dumps(parts), parse_float=lambda digits: round(float(digits), 4))
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def machine(threads: int) -> dict[str, object]:
    import transformers

    return {
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--only", choices=("steps", "memory", "curves", "profile"))
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "results" / "cpu.json")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shape = Shape(batch=given.batch, length=given.length)
    if given.alone:
        alone(given.alone, shape)
        return
    if given.only in (None, "steps"):
        rate = matmul_rate()
        found = in_turn(shape, list(PEERS), given.rounds)
        used = {name: flops(shape) * 1e-9 / median(seconds["cpu"]) / rate for name, seconds in found.items()}
        step = {
            "shape": asdict(shape),
            "rounds": given.rounds,
            "seconds": found,
            "ratios": ratios(found),
            "matmul_gflops": round(rate, 1),
            "mfu": used,
            "machine": machine(given.threads),
        }
        keep(given.out, **{f"step_{given.threads}": step})
        print(ratios(found), used, flush=True)
    if given.only in (None, "memory"):
        memory = {name: peak(name, shape, given.threads) for name in PEERS}
        keep(given.out, memory={"shape": asdict(shape), "mib": memory})
        print(memory, flush=True)
    if given.only in (None, "profile"):
        keep(given.out, profile=profile(replace(shape, batch=min(4, given.batch))))
    if given.only in (None, "curves"):
        keep(given.out, curves={"shape": asdict(SMALL), "rounds": 2, "rows": curves(2)})


if __name__ == "__main__":
    main()
