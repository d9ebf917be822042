"""Speed of a pretraining step and a fine-tuning step on this machine, on random tokens in documents of real lengths.

python benchmarks/steps.py [--preset modern] [--batch 128] [--compile] [--profile]
"""

import argparse
import json
import time
from types import SimpleNamespace

import numpy as np
import torch

from headstart.config import presets
from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import make_batch
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.model.transformer import build_backbone
from headstart.runtime import setup_runtime
from headstart.tokenization.base import SpecialIds
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classification_loss, language_model_loss
from headstart.train.optimizers import build_optimizer

SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
VOCABULARY = 16384


def lengths(count: int, mean: float) -> np.ndarray:
    """Draw log-normal lengths, like those of film and book reviews."""
    chance = np.random.default_rng(0)
    return np.maximum(5, chance.lognormal(np.log(mean) - 0.32, 0.8, count)).astype(np.int64)


def corpus(count: int, mean: float) -> SimpleNamespace:
    sizes = lengths(count, mean)
    flat = np.random.default_rng(1).integers(4, VOCABULARY, sizes.sum()).astype(np.uint16)
    ends = np.cumsum(sizes)
    return SimpleNamespace(
        lengths=sizes, ids=lambda i: flat[ends[i] - sizes[i] : ends[i]], flat=flat, offsets=ends - sizes
    )


def timed(reports, warm: int, device) -> list[float]:
    seconds = []
    last = time.perf_counter()
    for report in reports:
        if device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        del report
    return seconds[warm:]


def main() -> None:  # noqa: PLR0915
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="modern")
    parser.add_argument("--objective", default="masked")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--finetune", action="store_true")
    arguments = parser.parse_args()
    command = "finetune" if arguments.finetune else "pretrain"
    kind = FinetuneConfig if arguments.finetune else PretrainConfig
    changes = {"model": {"context": arguments.context, "dropout": arguments.dropout}}
    if not arguments.finetune:
        changes |= {"objective": arguments.objective, "optim": {"optimizer": arguments.optimizer}}
    values = {k: v for k, v in presets.preset_values(arguments.preset, command).items() if k in kind.model_fields}
    config = merge_config(kind, values, changes)
    runtime = setup_runtime(config.runtime)
    backbone = build_backbone(config.model, VOCABULARY, 0)
    if arguments.finetune:
        model = Model(backbone, build_classifier_head(config.model, 2, 0, "bidirectional")).to(runtime.device)
        texts = corpus(4000, 180)
        rows = LabelledDataset(
            [texts.ids(i) for i in range(4000)], np.arange(4000) % 2, SPECIAL, context=arguments.context
        )

        def fetch(step):
            return [rows.batch((np.arange(arguments.batch) + step * arguments.batch) % 4000)]

        def objective(batch):
            return classification_loss(model, batch)
    else:
        model = Model(backbone, build_language_head(config.model, VOCABULARY, 0)).to(runtime.device)
        rows = PackedDataset(
            corpus(20000, 180), np.arange(20000), SPECIAL, context=arguments.context, layout="packed", seed=0
        )

        def fetch(step):
            return [make_batch(rows, step * arguments.batch, arguments.batch, config, SPECIAL, VOCABULARY, 0)]

        def objective(batch):
            return language_model_loss(model, batch)

    if arguments.compile:
        backbone.compile_layers()
    state = TrainState(model, build_optimizer(model, config.optim), 0)
    started = time.perf_counter()
    warm = min(10, arguments.steps // 2)
    if arguments.profile:
        list(fit(state, fetch, objective, config.optim, warm, runtime))
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            list(fit(state, fetch, objective, config.optim, warm + 10, runtime))
        print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=90))
        return
    seconds = timed(fit(state, fetch, objective, config.optim, arguments.steps, runtime), warm, runtime.device)
    first = time.perf_counter()
    for step in range(20):
        fetch(step)
    laying = (time.perf_counter() - first) / 20
    middle = float(np.median(seconds))
    tokens = sum(
        int(batch.segments_BT.numel()) if batch.segments_BT is not None else int(batch.lengths_B.sum())
        for batch in fetch(0)
    )
    memory = torch.cuda.max_memory_allocated() / 2**30 if runtime.device.type == "cuda" else 0
    print(
        json.dumps(
            {
                "what": command,
                "preset": arguments.preset,
                "batch": arguments.batch,
                "compile": arguments.compile,
                "objective": arguments.objective,
                "ms": round(1000 * middle, 2),
                "tokens_per_second": round(tokens / middle),
                "texts_per_second": round(arguments.batch / middle),
                "laying_rows_ms": round(1000 * laying, 2),
                "gib": round(memory, 1),
                "all_s": round(time.perf_counter() - started, 1),
            }
        )
    )


main()
