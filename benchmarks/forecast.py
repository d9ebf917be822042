"""Measures the time and memory of pretraining steps of several sizes, and fits the constants of `headstart params --forecast`.

python benchmarks/forecast.py measure --machine h200 --out docs/results/steps-h200.json
python benchmarks/forecast.py fit docs/results/steps-h200.json docs/results/steps-cpu.json

On a CPU a step is timed by the processor time of one thread, which other load on the machine affects least.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 16384
# preset, rows a step, compiled, changes: as a run of some minutes makes its steps, with CUDA graphs, and compiled if it is modern
GPU = (
    ("classic", 16, False, {}),
    ("classic", 64, False, {}),
    ("modern-nano", 32, True, {}),
    ("modern-micro", 64, True, {}),
    ("modern", 64, True, {}),
    ("modern", 64, True, {"optim": {"optimizer": "adamw"}, "objective": "causal"}),
    ("modern-base", 64, True, {}),
)
# in fp32, which every CPU computes
CPU = (
    ("classic", 8, False, {}),
    ("classic", 2, False, {}),
    ("modern-nano", 8, False, {}),
    ("modern-nano", 2, False, {}),
    ("modern-micro", 4, False, {}),
    ("modern-micro", 1, False, {}),
    ("modern", 1, False, {"model": {"context": 512}}),
    ("modern", 2, False, {"model": {"context": 512}, "optim": {"optimizer": "adamw"}, "objective": "causal"}),
)


def measure(preset: str, rows: int, compiled: bool, changes: dict, steps: int) -> dict:
    """Return the median time of the later steps, and their peak memory."""
    import torch

    from headstart.config import presets
    from headstart.config.merge import merge_config
    from headstart.config.schema import PretrainConfig
    from headstart.model.heads import Model, build_language_head
    from headstart.model.transformer import build_backbone
    from headstart.recipes.bench import REVIEW, random_batches
    from headstart.runtime import setup_runtime

    own = {"loop": {"batch_size": rows}, "runtime": {"threads": 1}}
    config = merge_config(PretrainConfig, presets.preset_values(preset, "pretrain"), own, changes)
    runtime = setup_runtime(config.runtime)
    on_gpu = runtime.device.type == "cuda"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    backbone = build_backbone(config.model, VOCABULARY, 0)
    model = Model(backbone, build_language_head(config.model, VOCABULARY, 0)).to(runtime.device)
    if compiled:
        backbone.compile_layers()
    batches = random_batches(config, VOCABULARY, rows)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # each batch is compiled and captured first, twice where the first time is an eager step
    seconds = timed_steps(model, batches, config, runtime, steps)[max(2, 2 * len(batches) if on_gpu else steps // 3) :]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "preset": preset,
        "rows": rows,
        "compile": compiled,
        "bf16": runtime.bf16,
        "tokens": rows * config.model.context,
        "scored": int(np.mean([batch.num_targets for batch in batches])),
        "document": float(REVIEW),
        "vocab_size": VOCABULARY,
        "config": config.model_dump(include={"model", "optim", "objective", "masking"}),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": float(np.median(seconds)),
        "peak": torch.cuda.max_memory_allocated() if on_gpu else after - before,
    }


def timed_steps(model: Any, batches: list, config: Any, runtime: Any, steps: int) -> list[float]:
    """Seconds of each step, as the training loop makes them; on a CPU those of the processor."""
    import torch

    from headstart.train.cuda_graphs import token_graphs
    from headstart.train.loop import TrainState, fit
    from headstart.train.objectives import language_model_loss
    from headstart.train.optimizers import build_optimizer
    from headstart.train.parallel import SINGLE

    on_gpu = runtime.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    state = TrainState(model, build_optimizer(model, config.optim, bf16=runtime.bf16), 0)
    graphs = token_graphs(model, runtime, SINGLE, print)
    reports = fit(
        state,
        lambda step: [batches[step % len(batches)]],
        lambda batch: language_model_loss(model, batch),
        config.optim,
        steps,
        runtime,
        graphs=graphs,
    )
    seconds, last = [], clock()
    for _ in reports:
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - last)
        last = clock()
    if graphs:
        graphs.reset()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "one", "fit"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--machine", default="cpu")
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "fit":
        fit_all([Path(file) for file in arguments.files])
        return
    if arguments.what == "one":
        print(json.dumps(measure(*CPU[int(arguments.files[0])], arguments.steps)))
        return
    import torch

    on_gpu = torch.cuda.is_available()
    runs = []
    for index, (preset, rows, compiled, changes) in enumerate(GPU if on_gpu else CPU):
        if on_gpu:
            run = measure(preset, rows, compiled, changes, arguments.steps)
        else:  # a process each: the most memory that a process ever had cannot be set back
            words = [sys.executable, __file__, "one", str(index), "--steps", str(arguments.steps)]
            run = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(preset, rows, f"{1000 * run['seconds']:.1f} ms", f"{run['peak'] / 2**30:.2f} GiB", flush=True)
        runs.append(run)
        result = {
            "machine": arguments.machine,
            "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "runs": runs,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def fit_all(files: list[Path]) -> None:
    """Fit the constants of each machine, and print them with the errors of every run, in the fit and left out of it."""
    from headstart.recipes.forecast import MACHINES, fit_factors, forecast_errors

    for file in files:
        content = json.loads(file.read_text())
        machine = MACHINES[content["machine"]]
        print(fit_factors(content["runs"], machine))
        for run, off in zip(content["runs"], forecast_errors(content["runs"], machine), strict=True):
            name = f"{run['preset']} x {run['rows']}{' compiled' if run['compile'] else ''}"
            memory = "" if off["memory"] is None else f"{run['peak'] / 2**30:7.2f} GiB {off['memory']:+6.1%}"
            print(
                f"  {name:28} {1000 * run['seconds']:9.1f} ms  {off['within']:+6.1%} as fitted  {off['held_out']:+6.1%} left out {memory}"
            )


if __name__ == "__main__":
    main()
