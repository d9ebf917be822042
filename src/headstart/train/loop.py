"""The training loop: `fit` is a generator that yields after every step; logging, measuring and saving are its caller's job.

Also here: the `Prefetcher` that prepares batches in a thread, and `seconds_per_step`, which times a few steps to plan a
run by its minutes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headstart.config.schema import OptimConfig
from headstart.data.batch import Batch
from headstart.errors import TrainingError
from headstart.kernels.dispatch import is_asynchronous
from headstart.runtime import Runtime, seed_step
from headstart.train.cuda_graphs import GraphCache
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.ema import EMA
from headstart.train.objectives import LossSum, Objective
from headstart.train.optimizers import lr_factor
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.plan import Plan
from headstart.train.step import EagerStep, StepRunner


@dataclass
class TrainState:
    """The full state of training. Data order and random numbers follow from (seed, step)."""

    model: nn.Module
    optimizer: Optimizer
    seed: int
    step: int = 0
    ema: EMA | None = None
    """The average of the weights, if `optim.ema_decay` is set."""
    strategy: ParallelStrategy = SINGLE
    """The strategy of several processes."""


@dataclass(frozen=True)
class StepReport:
    """The measurements of one optimizer step."""

    step: int
    loss: float
    lr: float
    norm: float
    num_targets: int
    seconds: float


Fetch = Callable[[int], list[Batch]]
"""Returns the batches of a step: one, or several to accumulate."""


def fit(
    state: TrainState,
    fetch: Fetch,
    objective: Objective,
    config: OptimConfig,
    steps: int | Plan,
    runtime: Runtime,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    graphs: GraphCache | None = None,
) -> Generator[StepReport, None, None]:
    """Train until `steps`, yielding after each optimizer step; close the generator to stop early.

    The loss of a step is the sum over all its batches divided by the number of their targets.

    Args:
        steps: the end of the run; a plan whose steps were changed also says how the learning rate goes on.
        interruptible: a context entered around the forward and backward passes, which change no weight and may be
            left in the middle.
        graphs: the CUDA graphs of the model; see `text_graphs` and `token_graphs`.
    """
    started = time.perf_counter()  # before the batches are fetched: waiting for them is part of a step
    asynchronous, strategy = is_asynchronous(runtime.device), state.strategy
    runner = _build_runner(state, objective, config, runtime, graphs)
    plan = steps if isinstance(steps, Plan) else Plan(steps)
    with Prefetcher(fetch, state.step, plan.steps, runner.to_device, threaded=asynchronous) as prefetcher:
        for batches in prefetcher:
            factor = _prepare_step(state, plan, config)
            losses: list[LossSum] = []
            with strategy.sync_grads(state.model):
                with interruptible():
                    for number, batch in enumerate(batches, start=1):
                        losses.append(runner.forward_backward(batch, last=number == len(batches)))
                local_targets = sum(batch.num_targets for batch in batches if not batch.is_dummy)
                count, num_targets = strategy.reduce_counts(sum(loss.count for loss in losses), local_targets)
            norm_tensor = runner.clip_grad_norm(1 / max(count, 1e-12), config.clip, state.optimizer)
            read = _read_async(strategy.loss_and_norm([loss.total for loss in losses], norm_tensor))
            if asynchronous:
                # before the loss is known: the device has work while the numbers travel
                runner.step(state.optimizer)
                runner.prefetch(prefetcher.peek())
            *totals, norm = read()  # the only point of a step that waits for the device
            total = sum(totals)
            if not (math.isfinite(total) and math.isfinite(norm)):
                state.optimizer.zero_grad()
                raise _not_finite(total / max(count, 1e-12), norm, state.step + 1, config, updated=asynchronous)
            if not asynchronous:
                runner.step(state.optimizer)
            runner.zero_grad(state.optimizer)
            state.step += 1
            if state.ema:
                state.ema.update(state.step, plan.steps_at(state.step - 1))
            seconds = time.perf_counter() - started
            loss = total / max(count, 1e-12)  # few tokens may all be left unmasked
            yield StepReport(state.step, loss, factor * config.lr, norm, int(num_targets), seconds)
            started = time.perf_counter()


def _build_runner(
    state: TrainState, objective: Objective, config: OptimConfig, runtime: Runtime, graphs: GraphCache | None
) -> StepRunner:
    eager = EagerStep(state.model, objective, runtime, state.strategy)
    if graphs:
        return graphs.wrap(eager, state.optimizer, config.clip)
    eager.cache_embedding_grads()
    return eager


def _prepare_step(state: TrainState, plan: Plan, config: OptimConfig) -> float:
    """Set training mode, learning rates and random seed for the next step; returns the factor of the learning rate."""
    if not state.model.training:  # checked first: setting the mode of every module takes time
        state.model.train()
    factor = lr_factor(plan.position(state.step), plan.first, config)
    for group in state.optimizer.param_groups:
        group["lr"] = factor * group["max_lr"]
    seed_step(state.seed, state.step, state.strategy.ranks.rank)
    return factor


def _not_finite(loss: float, norm: float, step: int, config: OptimConfig, *, updated: bool) -> TrainingError:
    return TrainingError(
        f"loss {loss} with gradient norm {norm} at step {step};"
        f" {'earlier checkpoints are complete' if updated else 'no update was made'};"
        f" try a lower optim.lr than {config.lr:g}, a longer optim.warmup, or precision fp32"
    )


_PREFETCHED_STEPS = 3


class Prefetcher:
    """Iterates over the batches of each step, in order.

    Args:
        fetch: returns the batches of a step.
        first_step: the first step to fetch.
        steps: the end of the run.
        to_device: applied to every batch.
        threaded: fetch a few steps ahead in a thread.
    """

    def __init__(
        self, fetch: Fetch, first_step: int, steps: int, to_device: Callable[[Batch], Batch], *, threaded: bool
    ) -> None:
        self._fetch, self._to_device = fetch, to_device
        self._remaining = range(first_step, steps)  # not a list: a run that is timed has no end
        self._pending: deque[Future[list[Batch]]] = deque()
        self._pool = ThreadPoolExecutor(max_workers=1) if threaded else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown()

    def __iter__(self) -> Iterator[list[Batch]]:
        while self._remaining or self._pending:
            if self._pool is None:
                yield self._batches(self._next_step())
                continue
            if not self._pending:
                self._submit()
            yield self._pending.popleft().result()

    def peek(self) -> list[Batch]:
        """Submit more steps, and return the batches of the next one if they are ready, else an empty list.

        Best called while the device is busy: the thread holds the interpreter lock.
        """
        self._submit()
        first = self._pending[0] if self._pending else None
        return first.result() if first and first.done() and not first.exception() else []

    def _submit(self) -> None:
        while self._pool and self._remaining and len(self._pending) < _PREFETCHED_STEPS:
            self._pending.append(self._pool.submit(self._batches, self._next_step()))

    def _next_step(self) -> int:
        step, self._remaining = self._remaining[0], self._remaining[1:]
        return step

    def _batches(self, step: int) -> list[Batch]:
        return [self._to_device(batch) for batch in self._fetch(step)]


def _read_async(values: Tensor) -> Callable[[], list[float]]:
    """Start copying values to the host, and return a function that waits for this copy alone, not for later work."""
    if not is_asynchronous(values.device):
        return values.tolist
    host_values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host_values.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        return host_values.tolist()

    return read


_WARMUP_STEPS, _MIN_STEPS, _MAX_STEPS = 2, 2, 40
_BUDGET_FRACTION = 0.05
_OUTLIER = 5.0


def seconds_per_step(
    reports: Iterable[StepReport], budget: float, ranks: ProcessGroup = SINGLE_PROCESS, *, compiled: bool = False
) -> float:
    """Return the mean time of the first steps: of some dozens, or of those that fit in a twentieth of `budget` seconds.

    Two steps suffice where they take a tenth of the budget and nothing is compiled: their updates are discarded, but
    their time is spent. Neither the warm-up counts nor outliers: a compiler that meets a new shape at the tenth step
    works for seconds, once. An outlier does not end the timing either, as long as most of the budget is left.
    """
    started = time.monotonic()
    ends: list[float] = []
    for count, _ in enumerate(reports, start=1):
        ends.append(time.monotonic())
        durations = _after_warmup(ends)
        usual = [seconds for seconds in durations if seconds <= _OUTLIER * min(durations)]
        limit = _BUDGET_FRACTION * budget
        over_budget = sum(usual) > limit or sum(durations) > 4 * limit
        finished = count >= _WARMUP_STEPS + _MAX_STEPS or (count >= _WARMUP_STEPS + _MIN_STEPS and over_budget)
        spent = (ends[-1] - started) / budget
        # steps so slow that two are enough, unless the first one was much slower than the second
        slow = (
            not compiled
            and count > 1
            and spent > 2 * _BUDGET_FRACTION
            and ends[-1] - ends[-2] > 0.5 * (ends[0] - started)
        )
        if ranks.any(finished or slow):  # clocks differ, and all processes must stop after the same step
            break
    durations = _after_warmup(ends) or [end - begin for begin, end in pairwise(ends)] or [ends[-1] - started]
    usual = [seconds for seconds in durations if seconds <= _OUTLIER * median(durations)]
    return sum(usual) / len(usual)


def _after_warmup(ends: list[float]) -> list[float]:
    return [end - begin for begin, end in pairwise(ends)][_WARMUP_STEPS - 1 :]
