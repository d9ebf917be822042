"""The training loop: `fit` yields after every step; prefetching and step timing.

The loop: a generator that trains and yields. Logging, measuring and saving are its caller's business.

How many steps fit into a time: a few are taken, timed and forgotten.
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
from headstart.runtime import Runtime, seed_step
from headstart.train.cuda_graphs import GraphCache
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.ema import EMA
from headstart.train.objectives import LossSum, Objective
from headstart.train.optimizers import lr_factor
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.step import EagerStep


@dataclass
class TrainState:
    """All that training is at a moment. Data order and random numbers follow from (seed, step)."""

    model: nn.Module
    optimizer: Optimizer
    seed: int
    step: int = 0
    ema: EMA | None = None
    """The running mean of the weights, if one is kept."""
    way: ParallelStrategy = SINGLE
    """How several processes train it together, if they do."""


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step said."""

    step: int
    loss: float
    lr: float
    norm: float
    num_targets: int
    seconds: float


_PREFETCH = 3
"""Steps whose rows a GPU run has ready."""

Fetch = Callable[[int], list[Batch]]
"""The batches of a step: one, or several to accumulate."""


def fit(
    state: TrainState,
    fetch: Fetch,
    objective: Objective,
    config: OptimConfig,
    steps: int,
    runtime: Runtime,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    graphs: GraphCache | None = None,
) -> Generator[StepReport, None, None]:
    """Train until `steps`, yielding after each optimizer step; close it to leave early.

    The loss of a step is a sum over all its batches, divided by all that they scored.

    Args:
        cutting: entered around what may be left in the middle, since no weight moves in it: the passes of a step.
        graphs: where the passes of small batches are recorded, to be replayed; see `text_graphs`.
    """
    # on a GPU the next step's rows are laid out while this one's are computed
    started = time.perf_counter()  # before the rows are fetched: waiting for them is part of a step
    ahead, way = runtime.device.type == "cuda", state.way
    passes = EagerStep(state.model, objective, runtime, way)
    if graphs:
        passes = graphs.around(passes, state.optimizer, config.clip)
    else:
        passes.keep_rows()
    with Prefetcher(fetch, state.step, steps, passes.ready, ahead=ahead) as feed:
        for batches in feed:
            share = _prepare_training(state, steps, config)
            parts: list[LossSum] = []
            with way.reducing_grads(state.model):
                with interruptible():
                    for number, batch in enumerate(batches, start=1):
                        parts.append(passes.run(batch, last=number == len(batches)))
                own = sum(batch.num_targets for batch in batches if not batch.is_dummy)
                count, scored = way.all_reduce_counts(sum(part.count for part in parts), own)
            length = passes.length(1 / max(count, 1e-12), config.clip, state.optimizer)
            read = _read_back(way.losses_and_norm([part.total for part in parts], length))
            if ahead:
                # before the numbers are known: so the device has work while its answer travels
                passes.step(state.optimizer)
                passes.expect(feed.ahead())
            *totals, norm = read()  # the one moment of a step at which the device is waited for
            total = sum(totals)
            if not (math.isfinite(total) and math.isfinite(norm)):
                state.optimizer.zero_grad()
                raise _check_finite(total / max(count, 1e-12), norm, state.step + 1, config, moved=ahead)
            if not ahead:
                passes.step(state.optimizer)
            passes.clear(state.optimizer)
            state.step += 1
            if state.ema:
                state.ema.update(state.step, steps)
            yield StepReport(
                state.step, total / count, share * config.lr, norm, int(scored), time.perf_counter() - started
            )
            started = time.perf_counter()


def _prepare_training(state: TrainState, steps: int, config: OptimConfig) -> float:
    """Everything that a step depends on besides its rows; returns the share of the rate that it moves by."""
    if not state.model.training:  # asked first: telling every module takes a while
        state.model.train()
    share = lr_factor(state.step, steps, config)
    for group in state.optimizer.param_groups:
        group["lr"] = share * group["peak_lr"]
    seed_step(state.seed, state.step, state.way.ranks.rank)
    return share


def _check_finite(loss: float, norm: float, step: int, config: OptimConfig, *, moved: bool) -> TrainingError:
    return TrainingError(
        f"loss {loss} with gradient norm {norm} at step {step};"
        f" {'what was saved before is whole' if moved else 'no update was made'};"
        f" try a lower optim.lr than {config.lr:g}, a longer optim.warmup, or precision fp32"
    )


class Prefetcher:
    """The batches of each step in order, in their place; `ahead` puts them there some steps early in a thread of its own."""

    def __init__(self, fetch: Fetch, first: int, steps: int, place: Callable[[Batch], Batch], *, ahead: bool) -> None:
        self._fetch, self._place = fetch, place
        self._left = range(first, steps)  # not as a list: a run that is timed has steps without end
        self._waiting: deque[Future[list[Batch]]] = deque()
        self._pool = ThreadPoolExecutor(max_workers=1) if ahead else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown()

    def __iter__(self) -> Iterator[list[Batch]]:
        while self._left or self._waiting:
            if self._pool is None:
                yield self._batches(self._next())
                continue
            if not self._waiting:
                self.lay_out()
            yield self._waiting.popleft().result()

    def lay_out(self) -> None:
        """Begin with rows to come. Best asked for while the device is busy: the thread that does it holds others up."""
        while self._pool and self._left and len(self._waiting) < _PREFETCH:
            self._waiting.append(self._pool.submit(self._batches, self._next()))

    def ahead(self) -> list[Batch]:
        """Go on with rows to come; returns the batches of the next step, if they are there already."""
        self.lay_out()
        first = self._waiting[0] if self._waiting else None
        return first.result() if first and first.done() and not first.exception() else []

    def _next(self) -> int:
        step, self._left = self._left[0], self._left[1:]
        return step

    def _batches(self, step: int) -> list[Batch]:
        return [self._place(batch) for batch in self._fetch(step)]


def _read_back(numbers: Tensor) -> Callable[[], list[float]]:
    """The numbers, for whoever calls for them; a GPU sends them as soon as it has them, whatever it is told to do next."""
    if not numbers.is_cuda:
        return numbers.tolist
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return here.tolist()

    return read


TRAINING_FRACTION = 0.93
"""Of the minutes; measuring, saving and sampling take their part too."""
_WARM, _LEAST, _MOST, _SHARE = 2, 2, 40, 0.05
_OUTLIER = 5.0


def seconds_per_step(
    reports: Iterable[StepReport], budget: float, ranks: ProcessGroup = SINGLE_PROCESS, *, compiled: bool = False
) -> float:
    """The mean time of the first steps: some dozens, or what fits in a twentieth of `budget` seconds.

    Two are enough where they take a tenth of it and nothing is compiled: they are forgotten, and the time is not.
    Those that warm up do not count, nor do those that take many times as long as the one in the middle: a compiler that
    meets a new kind of row at the tenth step works for seconds, once. What it takes is no reason to stop early either,
    as long as it leaves most of the time.
    """
    started = time.monotonic()
    ends: list[float] = []
    for count, _ in enumerate(reports, start=1):
        ends.append(time.monotonic())
        taken = _after_warmup(ends)
        quick = [seconds for seconds in taken if seconds <= _OUTLIER * min(taken)]
        long = sum(quick) > _SHARE * budget or sum(taken) > 4 * _SHARE * budget
        enough = count >= _WARM + _MOST or (count >= _WARM + _LEAST and long)
        spent = (ends[-1] - started) / budget
        slow = not compiled and count > 1 and spent > 2 * _SHARE and ends[-1] - ends[-2] > 0.5 * (ends[0] - started)
        if ranks.any(enough or slow):  # clocks differ, and all must stop after the same step
            break
    taken = _after_warmup(ends) or [after - before for before, after in pairwise(ends)] or [ends[-1] - started]
    usual = [seconds for seconds in taken if seconds <= _OUTLIER * median(taken)]
    return sum(usual) / len(usual)


def _after_warmup(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)][_WARM - 1 :]
