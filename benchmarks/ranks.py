"""Speed of several processes that train one model on the cores of this machine, and the communication fraction of a step.

python benchmarks/ranks.py                 starts torchrun for each number of processes, writes docs/results/ranks.json
python benchmarks/ranks.py --worlds 1,2    for some numbers of processes

Every process reads its part of the same steps of random tokens. Three strategies take turns in the same processes:
`unsynchronized`, which does not sum gradients, `ddp` and `fsdp`. The communication fraction of a strategy is the additional
time of a step compared with `unsynchronized`: in processor time, which other load on the machine hardly changes, and in wall
time.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from headstart.config.schema import ModelConfig, OptimConfig, RuntimeConfig
from headstart.data.batch import RankSlice, dummy_batch
from headstart.data.datasets import PackedDataset
from headstart.model.heads import Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.runtime import setup_runtime
from headstart.tokenization.base import SpecialIds
from headstart.train.distributed import init_distributed
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer, optimizer_tensors
from headstart.train.parallel import SINGLE, DataParallel, FullyShardedParallel, local_tensor

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "results" / "ranks.json"
SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
VOCABULARY, BATCH, CONTEXT = 8192, 16, 64
SHAPE = ModelConfig(context=CONTEXT)
WARM, STEPS, ROUNDS = 2, 5, 4


class Corpus:
    """Random tokens in documents of 200."""

    def __init__(self) -> None:
        self.flat = np.random.default_rng(0).integers(4, VOCABULARY, 200 * 2000)
        self.offsets = np.arange(0, len(self.flat), 200)
        self.lengths = np.full(2000, 200)

    def ids(self, index: int) -> np.ndarray:
        return self.flat[200 * index : 200 * (index + 1)]


def timed(way, portion: RankSlice, runtime) -> tuple[list[float], float, float, float]:
    """Return the seconds of each step after the first, processor seconds per step, megabytes of weights and moments, and
    the last loss.
    """
    model = Model(build_backbone(SHAPE, VOCABULARY, 0), build_language_head(SHAPE, VOCABULARY, 0))
    way.shard(model, runtime)
    config = OptimConfig()
    state = TrainState(model, build_optimizer(model, config), 0, strategy=way)
    rows = PackedDataset(Corpus(), np.arange(2000), SPECIAL, context=CONTEXT, layout="packed", seed=0)

    def fetch(step: int):
        pieces = portion.micro_batches(BATCH, BATCH)
        begin = step * BATCH
        return [
            rows.batch(begin + first, last - first) if first < last else dummy_batch(rows.batch(begin, 1))
            for first, last in pieces
        ]

    reports = []
    for report in fit(state, fetch, lambda batch: language_model_loss(model, batch), config, WARM + STEPS, runtime):
        reports.append(report)
        if len(reports) == WARM:
            before = time.process_time()
    processor = (time.process_time() - before) / STEPS
    kept = [*model.parameters(), *optimizer_tensors(state.optimizer, model).values()]
    megabytes = sum(local_tensor(tensor).numel() * tensor.element_size() for tensor in kept) / 1e6
    return [report.seconds for report in reports[WARM:]], processor, megabytes, reports[-1].loss


def measure() -> None:
    """Run one of the processes; the first one prints the measurements."""
    runtime = setup_runtime(RuntimeConfig(device="cpu", threads=1))
    with init_distributed() as ranks:
        portion = RankSlice(ranks.rank, ranks.world_size)
        ways = {"unsynchronized": lambda: SINGLE}
        if ranks.world_size > 1:
            ways |= {"ddp": lambda: DataParallel(ranks), "fsdp": lambda: FullyShardedParallel(ranks)}
        clock, processor, result = {}, {}, {}
        for _ in range(ROUNDS):
            for name, make in ways.items():
                ranks.barrier()
                seconds, spent, megabytes, loss = timed(make(), portion, runtime)
                clock.setdefault(name, []).extend(seconds)
                processor.setdefault(name, []).append(spent)
                result[name] = {"megabytes": round(megabytes, 1), "loss": loss}
        for name, way in result.items():
            # what all processes spent together; and a step is as slow as the slowest of them
            (way["processor_ms"],) = (
                round(1000 * value, 1) for value in ranks.sum([statistics.median(processor[name])])
            )
            each = np.zeros(ranks.world_size)
            each[ranks.rank] = statistics.median(clock[name])
            way["step_ms"] = round(1000 * float(ranks.all_reduce(each).max()), 1)
        if ranks.is_main:
            print("MEASURED " + json.dumps({"processes": ranks.world_size, "strategies": result}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--one", action="store_true", help="be one of the processes")
    arguments = parser.parse_args()
    if arguments.one:
        measure()
        return
    rows = []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for world in arguments.worlds.split(","):
        launch = [
            "-m",
            "torch.distributed.run",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            f"--nproc-per-node={world}",
        ]
        done = subprocess.run(
            [sys.executable, *launch, __file__, "--one"], env=environment, capture_output=True, text=True, check=True
        )
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
        rows.append(json.loads(line.removeprefix("MEASURED ")))
        print(line)
    parameters = sum(p.numel() for p in build_backbone(SHAPE, VOCABULARY, 0).parameters()) + VOCABULARY * (
        SHAPE.width + 1
    )
    record = {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "tokens_per_step": BATCH * CONTEXT,
        "parameters": parameters,
        "steps": STEPS * ROUNDS,
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }
    TARGET.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


main()
