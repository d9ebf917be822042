"""A pretraining step on one GPU, compared with other code; its parts, and its scaling with each size.

python benchmarks/gpu.py [classic] [gpt2] [modern] [attention] [loss] [curves] [--out docs/results/gpu.json]

All sides of a row take turns in one process; the results are ratios of medians. The peak memory of a side is what it adds to
the sides that are already loaded. Rows are printed and written as they are measured; a row that fails reports the reason, and
the others continue.
"""

import argparse
import gc
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_sides import Headstart, Task, course, plain_script, transformers_gpt2
from gpu_sweeps import attention_rows, loss_rows, matmul_peak

PARTS = ("classic", "gpt2", "modern", "attention", "loss", "curves")
GENERIC = {"family": "gpt2", "norm_first": True, "activation": "gelu_tanh", "positions": 1024, "final_norm": True}
CLASSIC = Task(
    "classic", {"block": "classic", "width": 200, "depth": 4, "heads": 2, "feedforward": 200}, 50001, 128, 256
)
GPT2 = Task(
    "gpt2",
    {"block": "generic", "width": 768, "depth": 12, "heads": 12, "feedforward": 3072, "generic": GENERIC},
    50257,
    32,
    1024,
    optim="adamw",
)
MODERN = Task(
    "modern",
    {"block": "modern", "width": 512, "depth": 10, "heads": 8, "feedforward": 1408},
    16384,
    128,
    512,
    objective="masked",
    optim="modern",
)
CURVE = replace(MODERN, name="curves", objective="causal", batch=64)
"""The common point of the curves."""
CURVES = {
    "vocabulary": [8192, 16384, 50257, 128256],
    "width": [256, 512, 768, 1024],
    "length": [128, 512, 1024, 2048, 4096],
    "batch": [8, 32, 64, 128, 256],
}
TINY_CURVES = {"vocabulary": [101, 130], "batch": [2, 3]}
Side = Callable[[], Any]


class Bench:
    """The machine, the requested parts, and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.tiny = arguments, arguments.tiny
        self.device = "cuda" if torch.cuda.is_available() and not arguments.tiny else "cpu"
        self.compiled = self.device == "cuda" and not arguments.eager
        self.began = time.perf_counter()
        self.summary: list[str] = []
        self.machine: dict[str, object] = {}
        self.peak = matmul_peak(self.device, 64 if self.tiny else 8192)
        print(f"matmul peak {self.peak:.0f} TFLOP/s", flush=True)

    def left(self) -> float:
        return self.arguments.seconds - (time.perf_counter() - self.began)

    def wait_until_idle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def peak_gib(self, work: Callable[[], object], base: int) -> float:
        """Return the peak memory in GiB of some steps, apart from `base` bytes of other sides."""
        if self.device != "cuda":
            work()
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - base) / 2**30

    def clear(self) -> None:
        """Release models and compiled code: a second shape would be compiled with dynamic sizes."""
        gc.collect()
        torch._dynamo.reset()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def kept(self, part: str) -> dict:
        """Return a part of the record."""
        path: Path | None = self.arguments.out
        return json.loads(path.read_text(encoding="utf-8")).get(part, {}) if path and path.exists() else {}

    def keep(self, **parts: object) -> None:
        """Add figures to the record, next to those of other parts."""
        path: Path | None = self.arguments.out
        if path is None:
            return
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        record |= json.loads(json.dumps(parts), parse_float=lambda digits: round(float(digits), 4))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def machine(bench: Bench) -> dict[str, object]:
    def version(name: str) -> str:
        try:
            return __import__(name).__version__
        except ImportError:
            return "none"

    commit = bench.arguments.commit
    if not commit and shutil.which("git"):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": torch.cuda.get_device_name() if bench.device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit or "",
        "matmul_tflops": round(bench.peak, 1),
    }


def in_turn(bench: Bench, makers: dict[str, Callable[[], Side]]) -> tuple[dict[str, Side], dict[str, dict]]:
    """Build each side, warm it up and measure its memory; then all take turns. A side that fails is omitted and reports
    the reason.
    """
    sides: dict[str, Side] = {}
    result: dict[str, dict] = {}
    for name, make in makers.items():
        if sides and bench.left() < 5:
            result[name] = {"error": "left out: the time is up"}
            continue
        base, began = bench.allocated(), time.perf_counter()
        try:
            made: list[Side] = []

            def ready_side(make: Callable[[], Side] = make, made: list[Side] = made) -> None:
                made.append(make())
                for _ in range(bench.arguments.warm):
                    made[0]()

            # from the first step on: memory of what is recorded is taken once, and no longer counted afterwards
            gib = bench.peak_gib(ready_side, base)
            ready, side = time.perf_counter() - began, made[0]
        except Exception as error:
            traceback.print_exc(limit=-4)
            result[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            print(f"  {name}: {result[name]['error']}", flush=True)
            continue
        sides[name] = side
        result[name] = {"ready_s": ready, "gib": gib, "ms": []}
        print(f"  {name}: ready in {ready:.1f} s, {gib:.2f} GiB", flush=True)
    for _ in range(bench.arguments.rounds):
        for name, side in sides.items():
            bench.wait_until_idle()
            before = time.perf_counter()
            for _ in range(bench.arguments.steps):
                side()
            bench.wait_until_idle()
            result[name]["ms"].append(1000 * (time.perf_counter() - before) / bench.arguments.steps)
    return sides, result


def profile(bench: Bench, name: str, side: Side, steps: int = 3) -> list[dict]:
    """Return the time of each kernel per step, and the fraction of time that the device is busy."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    on_gpu = bench.device == "cuda"
    if on_gpu:
        activities = [torch.profiler.ProfilerActivity.CUDA]
    bench.wait_until_idle()
    with torch.profiler.profile(activities=activities) as recorded:
        before = time.perf_counter()
        for _ in range(steps):
            side()
        bench.wait_until_idle()
        wall = 1000 * (time.perf_counter() - before) / steps

    def taken(event: Any) -> float:
        return (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000 / steps

    every = sorted(recorded.key_averages(), key=lambda event: -taken(event))
    busy = sum(map(taken, every))
    print(f"  {name}: {wall:.2f} ms a step here, device busy {busy:.2f} ms ({100 * busy / wall:.0f} %)")
    rows = [{"kernel": event.key[:90], "ms": taken(event), "calls": event.count / steps} for event in every[:15]]
    for row in rows:
        print(f"    {row['ms']:8.3f} ms {100 * row['ms'] / busy:5.1f} % {row['calls']:6.1f} x  {row['kernel']}")
    sys.stdout.flush()
    return rows


def row(bench: Bench, task: Task, makers: dict[str, Callable[[], Side]], key: str | None = None) -> None:
    """Measure one table row: the sides in turn, tokens per second, memory, and fractions of the peak of a product."""
    key = key or task.name
    print(f"{key}: {task.batch} x {task.length}, vocabulary {task.vocabulary}", flush=True)
    sides, result = in_turn(bench, makers)
    ours = next((side for side in sides.values() if isinstance(side, Headstart)), None)
    usual, strict = ours.operations() if ours else (0.0, 0.0)
    for name, figures in result.items():
        if not figures.get("ms"):
            continue
        ms = statistics.median(figures["ms"])
        figures |= {"tokens_per_second": 1000 * task.tokens / ms, "mfu": 1e-9 * usual / ms / bench.peak}
        if isinstance(sides[name], Headstart):
            figures["strict_mfu"] = 1e-9 * strict / ms / bench.peak
        line = f"{key:15} {name:28} {ms:8.2f} ms {figures['tokens_per_second'] / 1e6:7.3f} M tokens/s {figures['gib']:6.2f} GiB"
        line += f"  {100 * figures['mfu']:5.1f} % of peak"
        if "strict_mfu" in figures:
            line += f" (strict {100 * figures['strict_mfu']:.1f} %)"
        first = statistics.median(next(iter(result.values())).get("ms") or [ms])
        line += f"  {ms / first:5.2f} x"
        bench.summary.append(line)
        print(line, flush=True)
    record: dict[str, Any] = {
        "shape": {"batch": task.batch, "length": task.length, "vocabulary": task.vocabulary, "mean": task.mean}
        | {name: value for name, value in task.model.items() if name not in ("generic", "block")},
        "rounds": bench.arguments.rounds,
        "steps": bench.arguments.steps,
        "warm": bench.arguments.warm,
        "machine": bench.machine,
        "sides": result,
    }
    bench.keep(**{key: record})  # now already: a profile may be cut short
    if bench.arguments.profile:
        record["profile"] = {}
        for name, side in sides.items():
            try:
                record["profile"][name] = profile(bench, name, side)
            except Exception as error:
                print(f"  {name}: no profile: {error}", flush=True)
    bench.keep(**{key: record})
    for side in sides.values():
        if isinstance(side, Headstart):
            side.close()


def ours(bench: Bench, task: Task) -> dict[str, Callable[[], Side]]:
    options = {"device": bench.device, "compiled": bench.compiled}
    makers: dict[str, Callable[[], Side]] = {"headstart": lambda: Headstart(task, **options)}
    if bench.arguments.variants:
        makers["headstart, torch's attention"] = lambda: Headstart(task, **options, cudnn=False)
    return makers


def theirs(bench: Bench, task: Task, *, tied: bool) -> dict[str, Callable[[], Side]]:
    """The default compilation, and the best variant."""
    options = {"device": bench.device, "compiled": bench.compiled, "tied": tied}
    return {
        "transformers": lambda: transformers_gpt2(task, **options),
        "transformers, filled up": lambda: transformers_gpt2(task, **options, filled=True),
        "transformers, not filled up": lambda: transformers_gpt2(task, **options, filled=False),
    }


def small(bench: Bench, task: Task) -> Task:
    """The same task, or a small one for a CPU."""
    if not bench.tiny:
        return task
    model = task.model | {"width": 32, "depth": 2, "heads": 2, "feedforward": 32}
    return replace(task, model=model, vocabulary=101, batch=4, length=16, mean=task.mean and 6.0)


def classic(bench: Bench) -> None:
    task, on = small(bench, CLASSIC), {"device": bench.device}
    makers = ours(bench, task)
    makers |= theirs(bench, task, tied=False)
    makers["course, bf16"] = lambda: course(task, **on, bf16=True)
    makers["course, fp32"] = lambda: course(task, **on, bf16=False)
    row(bench, task, makers)


def gpt2(bench: Bench) -> None:
    task = small(bench, GPT2)
    makers = ours(bench, task)
    makers |= theirs(bench, task, tied=True)
    row(bench, task, makers)


def modern(bench: Bench) -> None:
    task = small(bench, MODERN)
    makers = ours(bench, task)
    makers["plain script"] = lambda: plain_script(task, device=bench.device, compiled=bench.compiled)
    row(bench, task, makers)
    bench.clear()
    packed = small(bench, replace(MODERN, mean=180.0))
    row(bench, packed, {"headstart": lambda: Headstart(packed, device=bench.device, compiled=bench.compiled)}, "packed")


def sweep(bench: Bench, key: str, rows: Any) -> None:
    result = []
    for each in rows:
        result.append(each)
        shape, way = each["shape"], each["way"]
        figures = each.get("error") or "  ".join(
            f"{value:9.3f} {name}" for name, value in each.items() if isinstance(value, float)
        )
        print(f"{key:10} {shape:8} {way:44} {figures}", flush=True)
        bench.keep(**{key: {"machine": bench.machine, "rows": result}})
        if bench.left() < 0:
            print(f"{key}: the time is up", flush=True)
            return


def attention(bench: Bench) -> None:
    sweep(bench, "attention", attention_rows(bench.device, tiny=bench.tiny))


def loss(bench: Bench) -> None:
    sweep(bench, "loss", loss_rows(bench.device, tiny=bench.tiny))


def curve_task(bench: Bench, what: str, value: int) -> Task:
    task = small(bench, CURVE)
    if what == "width":
        feedforward = -(-value * 11 // 4 // 64) * 64
        return replace(task, model=task.model | {"width": value, "heads": value // 64, "feedforward": feedforward})
    if what == "length":
        return replace(task, length=value, batch=task.tokens // value)
    return replace(task, **{what: value})


def curves(bench: Bench) -> None:
    """Measure Headstart alone, varying one size at a time; the common point of the curves is measured once."""
    base = small(bench, CURVE)
    shape = {"batch": base.batch, "length": base.length, "vocabulary": base.vocabulary} | base.model
    known: dict[str, dict[str, Any]] = {}
    chosen = bench.arguments.curve or list(CURVES)
    result = [each for each in bench.kept("curves").get("rows", []) if each["what"] not in chosen]
    for what, values in (TINY_CURVES if bench.tiny else CURVES).items():
        for value in values if what in chosen else ():
            if bench.left() < 3:
                print("curves: the time is up", flush=True)
                return
            task = curve_task(bench, what, value)
            if str(task) not in known:
                if what != "vocabulary":  # what is compiled for one vocabulary serves for another
                    bench.clear()
                known[str(task)] = curve_point(bench, task)
            each: dict[str, Any] = {"what": what, "value": value} | known[str(task)]
            result.append(each)
            print(" ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in each.items()), flush=True)
            bench.keep(curves={"shape": shape, "machine": bench.machine, "rows": result})


def curve_point(bench: Bench, task: Task) -> dict[str, Any]:
    """Return tokens per second, memory and the fraction of the peak of a few steps."""
    gc.collect()
    start, side, taken = bench.allocated(), None, []

    def steps() -> None:
        for _ in range(9):
            before = time.perf_counter()
            side()
            bench.wait_until_idle()
            taken.append(time.perf_counter() - before)

    try:
        side = Headstart(task, device=bench.device, compiled=bench.compiled)
        gib = bench.peak_gib(steps, start)  # from the first step on, as in `in_turn`
        seconds, (usual, _) = statistics.median(taken[3:]), side.operations()
        return {
            "gib": gib,
            "tokens_per_second": task.tokens / seconds,
            "mfu": 1e-12 * usual / seconds / bench.peak,
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        if side is not None:
            side.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all unless named")
    parser.add_argument("--out", type=Path, help="the record, docs/results/gpu.json for RESULTS.md")
    parser.add_argument("--seconds", type=float, default=900, help="begin nothing new after so long")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side a round")
    parser.add_argument("--warm", type=int, default=8, help="steps before the first round: compiling, recording")
    parser.add_argument("--variants", action="store_true", help="Headstart also without cuDNN's attention")
    parser.add_argument("--curve", action="append", choices=list(CURVES), help="of the curves, these alone")
    parser.add_argument("--profile", action="store_true", help="the kernels of a step, for each side")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU: whether it runs, and no more")
    parser.add_argument("--commit", help="the measured commit, if it is not that of git")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.machine = machine(bench)
    print(bench.machine, flush=True)
    ways = {"classic": classic, "gpt2": gpt2, "modern": modern, "attention": attention, "loss": loss, "curves": curves}
    for part in arguments.parts or PARTS:
        if bench.left() < 0:
            print(f"{part}: left out, the time is up", flush=True)
            continue
        try:
            ways[part](bench)
        except Exception:
            print(f"{part} broke off", flush=True)
            traceback.print_exc()
        bench.clear()
        print(f"[{part} done, {time.perf_counter() - bench.began:.0f} s so far]", flush=True)
    print("\n" + "\n".join(bench.summary))


if __name__ == "__main__":
    main()
