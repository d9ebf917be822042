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
from types import SimpleNamespace

import numpy as np

VOCABULARY = 16384
# preset, rows a step, compiled, changes: the modern ones compiled, as they are meant to be run on a GPU
GPU = (
    ("classic", 16, False, {"runtime": {"precision": "fp32"}}),
    ("classic", 64, False, {"runtime": {"precision": "fp32"}}),
    ("modern-nano", 32, True, {}),
    ("modern-micro", 64, True, {}),
    ("modern-micro", 16, True, {}),
    ("modern", 64, True, {}),
    ("modern", 16, True, {}),
    ("modern", 64, True, {"optim": {"optimizer": "adamw"}, "objective": "causal"}),
    ("modern-base", 64, True, {}),
    ("modern-base", 16, True, {}),
)
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


def corpus(count: int, mean: float) -> SimpleNamespace:
    """Documents of random tokens with the lengths of reviews."""
    chance = np.random.default_rng(0)
    sizes = np.maximum(5, chance.lognormal(np.log(mean) - 0.32, 0.8, count)).astype(np.int64)
    flat = chance.integers(4, VOCABULARY, sizes.sum()).astype(np.uint16)
    ends = np.cumsum(sizes)
    return SimpleNamespace(
        lengths=sizes, ids=lambda i: flat[ends[i] - sizes[i] : ends[i]], flat=flat, offsets=ends - sizes
    )


def measure(preset: str, rows: int, compiled: bool, changes: dict, texts: SimpleNamespace, steps: int) -> dict:  # noqa: PLR0915
    """Return the median time of the later steps, and their peak memory."""
    import torch

    from headstart.config import presets
    from headstart.config.merge import merge_config
    from headstart.config.schema import PretrainConfig
    from headstart.data.datasets import PackedDataset
    from headstart.data.masking import make_batch
    from headstart.model.heads import Model, build_language_head
    from headstart.model.transformer import build_backbone
    from headstart.runtime import setup_runtime
    from headstart.tokenization.base import SpecialIds
    from headstart.train.loop import TrainState, fit
    from headstart.train.objectives import language_model_loss
    from headstart.train.optimizers import build_optimizer

    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
    own = {"loop": {"batch_size": rows}, "runtime": {"threads": 1}}
    config = merge_config(PretrainConfig, presets.preset_values(preset, "pretrain"), own, changes)
    runtime = setup_runtime(config.runtime)
    on_gpu = runtime.device.type == "cuda"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    backbone = build_backbone(config.model, VOCABULARY, 0)
    model = Model(backbone, build_language_head(config.model, VOCABULARY, 0)).to(runtime.device)
    if compiled:
        backbone.compile_layers()
    laid = PackedDataset(
        texts, np.arange(len(texts.lengths)), special, context=config.model.context, layout="packed", seed=0
    )
    state = TrainState(model, build_optimizer(model, config.optim), 0)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def fetch(step: int) -> list:
        return [make_batch(laid, step * rows, rows, config, special, VOCABULARY, 0)]

    # one thread's own time on a CPU, so that other work on the machine does not count
    clock = time.perf_counter if on_gpu else time.process_time
    seconds, scored, last = [], [], clock()
    for report in fit(state, fetch, lambda batch: language_model_loss(model, batch), config.optim, steps, runtime):
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - last)
        scored.append(report.num_targets)
        last = clock()
    warm = max(2, steps // 3)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated() if on_gpu else after - before
    settings = config.model_dump(include={"model", "optim", "objective", "masking"})
    return {
        "preset": preset,
        "rows": rows,
        "compile": compiled,
        "bf16": runtime.bf16,
        "tokens": rows * config.model.context,
        "scored": int(np.mean(scored)),
        "document": float(texts.lengths.mean()),
        "vocab_size": VOCABULARY,
        "config": settings,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": float(np.median(seconds[warm:])),
        "peak": peak,
    }


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
        preset, rows, compiled, changes = CPU[int(arguments.files[0])]
        print(json.dumps(measure(preset, rows, compiled, changes, corpus(20000, 180), arguments.steps)))
        return
    import torch

    on_gpu = torch.cuda.is_available()
    runs = []
    for index, (preset, rows, compiled, changes) in enumerate(GPU if on_gpu else CPU):
        if on_gpu:
            run = measure(preset, rows, compiled, changes, corpus(20000, 180), arguments.steps)
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
