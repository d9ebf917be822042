"""A training step on CPU cores, compared with the course's code, a transformers loop and its Trainer: time, memory, scaling.

python benchmarks/cpu.py [--threads 1] [--rounds 5] [--batch 16] [--out docs/results/cpu.json]

All sides take turns in one process, so that other load on the machine affects all of them equally; the results are ratios of
medians. Peak memory is measured in a separate process per side.
"""

import argparse
import json
import os
import platform
import shutil
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
"""The common point of the curves."""


def in_turn(shape: Shape, names: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return wall time and processor time of each step in seconds, after one warm-up step."""
    steps = {name: PEERS[name](shape) for name in names}
    for step in steps.values():
        step()
    result: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in names}
    for _ in range(rounds):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            result[name]["wall"].append(time.perf_counter() - wall)
            result[name]["cpu"].append(time.process_time() - cpu)
    return result


def ratios(result: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return the ratio of the median of each other side to Headstart's, and the minimum and maximum over rounds."""
    ours = result["headstart"]
    table = {}
    for name, theirs in result.items():
        if name != "headstart":
            each = sorted(b / a for a, b in zip(ours["cpu"], theirs["cpu"], strict=True))
            table[name] = {
                "wall": median(theirs["wall"]) / median(ours["wall"]),
                "cpu": median(theirs["cpu"]) / median(ours["cpu"]),
                "cpu_min": each[0],
                "cpu_max": each[-1],
            }
    return table


def peak(name: str, shape: Shape, threads: int) -> dict[str, float]:
    """Return the peak memory in MiB of a process that takes two steps, and of one that only imports the packages."""
    command = [sys.executable, __file__, "--alone", name, "--shape", json.dumps(asdict(shape))]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def alone(name: str, shape: Shape) -> None:
    def most() -> float:
        """Return the peak memory of this program; `ru_maxrss` starts with the memory of the parent process."""
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    step = PEERS[name](replace(shape, batch=1, length=2, vocabulary=10))
    step()
    imported = most()
    step = PEERS[name](shape)
    step()
    step()
    print(json.dumps({"imported": round(imported), "peak": round(most())}))


def matmul_rate() -> float:
    """Return the best rate of a few square products in GFLOP/s of processor time."""
    size = 1024
    a = torch.randn(size, size)
    taken = []
    for _ in range(8):
        before = time.process_time()
        a @ a
        taken.append(time.process_time() - before)
    return 2e-9 * size**3 / min(taken)


def flops(shape: Shape) -> float:
    """Count the operations of one step, forward and backward: 6 per weight and token, and those of attention."""
    tokens, d = shape.batch * shape.length, shape.width
    inner = shape.depth * 6 * d * d + shape.vocabulary * d
    return 6 * tokens * inner + 6 * shape.depth * tokens * shape.length * d  # causal: half of the square


def used(shape: Shape, seconds: dict[str, list[float]], rate: float) -> float:
    """Return the MFU: the rate of products with weights per second of processor time, relative to one large product."""
    return flops(shape) * 1e-9 / median(seconds["cpu"]) / rate


def curves(rounds: int, threads: int) -> list[dict[str, float | str]]:
    """Vary one size at a time: Headstart and the course's code in turn, then the memory of each in a separate process."""
    rows, rate = [], matmul_rate()
    weighed: dict[Shape, dict[str, float]] = {}
    for what, values in CURVES.items():
        for value in values:
            shape = replace(SMALL, **{what: value})
            result = in_turn(shape, ["headstart", "course"], rounds)
            ratio = ratios(result)["course"]
            tokens = shape.batch * shape.length
            if shape not in weighed:
                weighed[shape] = {name: peak(name, shape, threads)["peak"] for name in result}
            rows.append(
                {
                    "what": what,
                    "value": value,
                    "tokens_per_cpu_second": round(tokens / median(result["headstart"]["cpu"])),
                    "course_tokens_per_cpu_second": round(tokens / median(result["course"]["cpu"])),
                    "wall": round(ratio["wall"], 2),
                    "cpu": round(ratio["cpu"], 2),
                    "mfu": {name: used(shape, seconds, rate) for name, seconds in result.items()},
                    "mib": weighed[shape],
                }
            )
            print(rows[-1], flush=True)
    return rows


def profile(shape: Shape) -> dict[str, object]:
    """Profile one step: the fraction of each operation (self time), and that of the loss with its gradients."""
    step = PEERS["headstart"](shape)
    step()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step()
    result = recorded.key_averages()
    whole = sum(event.self_cpu_time_total for event in result)
    loss = sum(event.cpu_time_total for event in result if event.key == "_Chunked")
    rows = sorted(result, key=lambda event: -event.self_cpu_time_total)[:12]
    return {
        "shape": asdict(shape),
        "loss": round(loss / whole, 3),
        "rows": [
            {"name": event.key, "fraction": round(event.self_cpu_time_total / whole, 3), "calls": event.count}
            for event in rows
        ],
    }


def keep(path: Path, **parts: object) -> None:
    """Add figures to the record, next to those of other scripts."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    record |= json.loads(json.dumps(parts), parse_float=lambda digits: round(float(digits), 4))
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def version(name: str) -> str:
    try:
        return __import__(name).__version__
    except ImportError:
        return "none"


def made_by(arguments: argparse.Namespace, command: str) -> dict[str, object]:
    """Return the command that reproduces a part, and its environment."""
    command += f" --threads {arguments.threads} --rounds {arguments.rounds}"
    commit = arguments.commit
    if not commit and shutil.which("git"):
        git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": command + (f" --only {arguments.only}" if arguments.only else ""),
        "commit": commit or "",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": arguments.threads,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "onnxruntime")},
    }


def options() -> argparse.ArgumentParser:
    """The sides of this script and of benchmarks/answers.py."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", help="the measured commit, if it is not that of git")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "results" / "cpu.json")
    return parser


def main() -> None:
    parser, classic = options(), Shape()
    parser.add_argument("--batch", type=int, default=classic.batch)
    parser.add_argument("--length", type=int, default=classic.length)
    parser.add_argument("--only", choices=("steps", "memory", "curves", "profile"))
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = Shape(batch=arguments.batch, length=arguments.length)
    if arguments.alone:
        alone(arguments.alone, Shape(**arguments.shape))
        return
    sizes = "".join(f" --{name} {getattr(shape, name)}" for name in ("batch", "length") if shape != classic)
    about = made_by(arguments, f"python benchmarks/cpu.py{sizes}")
    if arguments.only in (None, "steps"):
        rate = matmul_rate()
        result = in_turn(shape, list(PEERS), arguments.rounds)
        step = {
            "shape": asdict(shape),
            "rounds": arguments.rounds,
            "seconds": result,
            "ratios": ratios(result),
            "matmul_gflops": round(rate, 1),
            "mfu": {name: used(shape, seconds, rate) for name, seconds in result.items()},
            "machine": about,
        }
        keep(arguments.out, **{f"step_{arguments.threads}": step})
        print(step["ratios"], step["mfu"], flush=True)
    if arguments.only in (None, "memory"):
        memory = {name: peak(name, shape, arguments.threads) for name in PEERS}
        keep(arguments.out, memory={"shape": asdict(shape), "mib": memory, "machine": about})
        print(memory, flush=True)
    if arguments.only in (None, "profile"):
        keep(arguments.out, profile=profile(replace(shape, batch=min(4, arguments.batch))) | {"machine": about})
    if arguments.only in (None, "curves"):
        rows = curves(arguments.rounds, arguments.threads)
        keep(arguments.out, curves={"shape": asdict(SMALL), "rounds": arguments.rounds, "rows": rows, "machine": about})


if __name__ == "__main__":
    main()
