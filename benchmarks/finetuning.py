"""Fine-tuning on a GPU: the course's code, Headstart without CUDA graphs, and Headstart with them, on the same texts in turn.

python benchmarks/finetuning.py [classic] [modern] [long] [--rounds 3] [--out finetuning.json]

All sides take turns in one process; the rate of an arm is the median over rounds of texts per second of wall time, everything
included. `ready_s` is the duration of its first steps, in which kernels are loaded and graphs are captured. `long` is `modern`
on longer texts. Without a GPU the shapes are tiny and no graphs are captured, which is a test of the script only.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from peers import CourseModel, Shape
from torch import Tensor, nn

from headstart.config import presets
from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig, RuntimeConfig
from headstart.data.datasets import LabelledDataset
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.runtime import Runtime, setup_runtime
from headstart.tokenization.base import SpecialIds
from headstart.train.cuda_graphs import GraphCache, text_graphs
from headstart.train.ema import EMA
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classification_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE

SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
TEXTS = 4000
ROWS = {"classic": ("classic", 135), "modern": ("modern", 135), "long": ("modern", 350)}
"""The preset and the mean number of tokens per text of each row."""
Step = Callable[[], float]
"""Takes one optimizer step on the next texts and returns its loss."""


def texts(vocabulary: int, mean: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Generate random tokens in texts of log-normal lengths, like reviews, and labels."""
    chance = np.random.default_rng(0)
    lengths = np.maximum(5, chance.lognormal(np.log(mean) - 0.32, 0.8, TEXTS)).astype(np.int64)
    return [chance.integers(4, vocabulary, length) for length in lengths], chance.integers(0, 2, TEXTS)


def which(step: int, batch: int) -> np.ndarray:
    """Return the texts of a step, which are the same for all sides."""
    return (np.arange(batch) + step * batch) % TEXTS


class CourseClassifier(CourseModel):
    """The course's network after the head swap: the last column of the padded batch, one linear layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.head = nn.Linear(shape.width, 2)

    def forward(self, ids_TB: Tensor, mask_TT: Tensor) -> Tensor:
        """Return the logits of each text, from the last column, which may be padding."""
        x = self.embedding(ids_TB) * self.width**0.5 + self.table[: len(ids_TB)]
        return self.head(self.encoder(x, mask_TT)[-1])


def course(shape: Shape, mean: float, device: torch.device) -> Step:
    """Adam 1e-4, fp32, padded to the longest of the batch, gradient norm clipped at 0.5."""
    torch.manual_seed(0)
    model = CourseClassifier(shape).to(device).train()
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=1e-4), nn.CrossEntropyLoss()
    every, labels = texts(shape.vocabulary, mean)
    rows = [torch.from_numpy(np.concatenate(([0], text[: shape.length - 1]))) for text in every]
    steps = count()

    def step() -> float:
        chosen = which(next(steps), shape.batch)
        ids = nn.utils.rnn.pad_sequence([rows[index] for index in chosen], padding_value=1).to(device)
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids)).to(device)
        optimizer.zero_grad()
        loss = criterion(model(ids, mask), torch.from_numpy(labels[chosen]).to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    return step


def ours(
    config: FinetuneConfig, vocabulary: int, mean: float, runtime: Runtime, *, recorded: bool
) -> tuple[Step, GraphCache | None]:
    """Headstart's own loop with the settings of a preset."""
    attention = "causal" if config.model.block == "classic" else "bidirectional"
    backbone = build_backbone(config.model, vocabulary, 0)
    model = Model(backbone, build_classifier_head(config.model, 2, 0, attention)).to(runtime.device)
    every, labels = texts(vocabulary, mean)
    rows = LabelledDataset(every, labels, SPECIAL, context=config.model.context)
    ema = EMA(model, config.optim.ema_decay) if config.optim.ema_decay else None
    optimizer = build_optimizer(model, config.optim, config.transfer.layer_decay)
    state = TrainState(model, optimizer, 0, ema=ema)
    graphs = text_graphs(model, runtime, SINGLE, print) if recorded else None
    reports = fit(
        state,
        lambda step: [rows.batch(which(step, config.loop.batch_size))],
        lambda batch: classification_loss(model, batch),
        config.optim,
        1 << 30,
        runtime,
        graphs=graphs,
    )
    return lambda: next(reports).loss, graphs


def settings(preset: str, **model: Any) -> FinetuneConfig:
    """Return the fine-tuning settings of a preset, with some changes to the network."""
    values = {k: v for k, v in presets.preset_values(preset, "finetune").items() if k in FinetuneConfig.model_fields}
    return merge_config(FinetuneConfig, values, {"model": model})


def rates(
    arms: dict[str, Step], batch: int, rounds: int, steps: dict[str, int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the texts per second of each side, the median over rounds in turn, and the seconds of the warm-up."""
    ready: dict[str, float] = {}
    for name, step in arms.items():
        ready[name] = round(_seconds(step, steps[name] // 2), 2)
    result: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, step in arms.items():
            result[name].append(batch * steps[name] / _seconds(step, steps[name]))
    return {name: round(median(taken), 1) for name, taken in result.items()}, ready


def _seconds(step: Step, times: int) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(times):
        step()
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def row(name: str, runtime: Runtime, rounds: int) -> dict[str, Any]:
    """Measure all arms of a row in turn."""
    preset, mean = ROWS[name]
    gpu, classic = runtime.device.type == "cuda", preset == "classic"
    small = {} if gpu else {"width": 32, "depth": 2, "heads": 2, "feedforward": 32}
    shape = Shape(batch=8, length=256) if gpu else Shape(batch=8, length=256, width=32, depth=2, vocabulary=500)
    config = settings(preset, **({"context": 256} if classic else {}), **small)
    vocabulary = shape.vocabulary if classic else 16384 if gpu else 500
    arms: dict[str, Step] = {"course": course(shape, mean, runtime.device)} if classic else {}
    arms["plain"], _ = ours(config, vocabulary, mean, runtime, recorded=False)
    arms["recorded"], graphs = ours(config, vocabulary, mean, runtime, recorded=True)
    many = {"course": 120, "plain": 120, "recorded": 400} if gpu else dict.fromkeys(("course", "plain", "recorded"), 2)
    steps = {arm: max(2, many[arm] // (1 if classic else 3)) for arm in arms}
    batch = config.loop.batch_size
    result, ready = rates(arms, batch, rounds, steps)
    faster = {f"recorded / {arm}": round(result["recorded"] / result[arm], 2) for arm in arms if arm != "recorded"}
    how_many = {"graphs": graphs.num_graphs, "failed": graphs.failed} if graphs else {}
    return {
        "batch": batch,
        "tokens_per_text": mean,
        "texts_per_second": result,
        "ms_per_step": {arm: round(1000 * batch / rate, 3) for arm, rate in result.items()},
        "ready_s": ready,
        "ratios": faster,
        **how_many,
    }


def main() -> None:
    """Measure all rows and print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all unless named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="", help="what is measured, for the record")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runtime = setup_runtime(RuntimeConfig())
    gpu, began = runtime.device.type == "cuda", time.perf_counter()
    tables: dict[str, Any] = {}
    for name in arguments.rows or ROWS:
        tables[name] = row(name, runtime, arguments.rounds)
        print(name, json.dumps(tables[name]), flush=True)
    about = {
        "device": torch.cuda.get_device_name() if gpu else platform.machine(),
        "torch": torch.__version__,
        "rounds": arguments.rounds,
        "commit": arguments.commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(about))
    if arguments.out:
        arguments.out.write_text(json.dumps(tables | about, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
