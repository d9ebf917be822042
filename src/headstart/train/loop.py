"""The loop: a generator that trains and yields. Logging, measuring and saving are its caller's business."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from headstart.config import OptimConfig
from headstart.data.batches import Batch
from headstart.errors import TrainingError
from headstart.runtime import Runtime, seed_step
from headstart.train.objectives import Objective
from headstart.train.schedule import lr_share


@dataclass
class TrainState:
    """All that training is at a moment. Data order and random numbers follow from (seed, step)."""

    model: nn.Module
    optimizer: Optimizer
    seed: int
    step: int = 0


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step said."""

    step: int
    loss: float
    lr: float
    norm: float
    scored: int
    seconds: float


Fetch = Callable[[int], list[Batch]]
"""The batches of a step: one, or several to accumulate."""


def fit(
    state: TrainState, fetch: Fetch, objective: Objective, config: OptimConfig, steps: int, runtime: Runtime
) -> Generator[StepReport, None, None]:
    """Train until `steps`, yielding after each optimizer step; close it to leave early.

    The loss of a step is a sum over all its batches, divided by all that they scored.
    """
    # on a GPU the next step's rows are laid out while this one's are computed
    started = time.perf_counter()  # before the rows are fetched: waiting for them is part of a step
    for batches in in_turn(fetch, state.step, steps, ahead=runtime.device.type == "cuda"):
        state.model.train()
        share = lr_share(state.step, steps, config)
        for group in state.optimizer.param_groups:
            group["lr"] = share * group["peak_lr"]
        seed_step(state.seed, state.step)
        total, count, scored = 0.0, 0.0, 0
        for batch in batches:
            with runtime.autocast():
                part = objective(batch.to(runtime.device))
            part.total.backward()  # type: ignore[no-untyped-call]
            total, count, scored = total + part.total.item(), count + part.count, scored + batch.scored
        norm = _scale_and_clip(state.model, 1 / max(count, 1e-12), config.clip)
        if not (math.isfinite(total) and math.isfinite(norm)):
            state.optimizer.zero_grad()
            raise TrainingError(
                f"loss {total / max(count, 1e-12)} with gradient norm {norm} at step {state.step + 1}; no update was made;"
                f" try a lower optim.lr than {config.lr:g}, a longer optim.warmup, or precision fp32"
            )
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        yield StepReport(state.step, total / count, share * config.lr, norm, scored, time.perf_counter() - started)
        started = time.perf_counter()


def in_turn(fetch: Fetch, first: int, steps: int, *, ahead: bool) -> Iterator[list[Batch]]:
    """The batches of each step in order; `ahead` fetches one step early in a thread of its own. Both give the same."""
    if not ahead:
        yield from map(fetch, range(first, steps))
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(fetch, first) if first < steps else None
        for step in range(first, steps):
            assert waiting is not None
            batches = waiting.result()
            waiting = pool.submit(fetch, step + 1) if step + 1 < steps else None
            yield batches


def _scale_and_clip(model: nn.Module, scale: float, clip: float) -> float:
    """Turn summed gradients into means, then bound their norm; returns the norm before."""
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch._foreach_mul_(grads, scale)
    norm = nn.utils.get_total_norm(grads)
    if clip:
        nn.utils.clip_grads_with_norm_([p for p in model.parameters() if p.grad is not None], clip, norm)
    return float(norm)
