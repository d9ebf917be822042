"""The loop: a generator that trains and yields. Logging, measuring and saving are its caller's business."""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headstart.config import OptimConfig
from headstart.data.batches import Batch
from headstart.errors import TrainingError
from headstart.runtime import Runtime, seed_step
from headstart.train.average import Average
from headstart.train.graphs import Graphs
from headstart.train.objectives import LossSum, Objective
from headstart.train.parallel import ONE, Way
from headstart.train.passes import Passes
from headstart.train.schedule import lr_share


@dataclass
class TrainState:
    """All that training is at a moment. Data order and random numbers follow from (seed, step)."""

    model: nn.Module
    optimizer: Optimizer
    seed: int
    step: int = 0
    average: Average | None = None
    """The running mean of the weights, if one is kept."""
    way: Way = ONE
    """How several processes train it together, if they do."""


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step said."""

    step: int
    loss: float
    lr: float
    norm: float
    scored: int
    seconds: float


_AHEAD = 3
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
    cutting: Callable[[], AbstractContextManager[None]] = nullcontext,
    graphs: Graphs | None = None,
) -> Generator[StepReport, None, None]:
    """Train until `steps`, yielding after each optimizer step; close it to leave early.

    The loss of a step is a sum over all its batches, divided by all that they scored.

    Args:
        cutting: entered around what may be left in the middle, since no weight moves in it: the passes of a step.
        graphs: where the passes of small batches are recorded, to be replayed; see `graphs_for`.
    """
    # on a GPU the next step's rows are laid out while this one's are computed
    started = time.perf_counter()  # before the rows are fetched: waiting for them is part of a step
    ahead, way = runtime.device.type == "cuda", state.way
    passes = Passes(state.model, objective, runtime, way)
    if graphs:
        passes = graphs.around(passes, state.optimizer, config.clip)
    else:
        passes.keep_rows()
    with Feed(fetch, state.step, steps, passes.ready, ahead=ahead) as feed:
        for batches in feed:
            share = _set_out(state, steps, config)
            parts: list[LossSum] = []
            with way.adding(state.model):
                with cutting():
                    for number, batch in enumerate(batches, start=1):
                        parts.append(passes.run(batch, last=number == len(batches)))
                own = sum(batch.scored for batch in batches if not batch.idle)
                count, scored = way.settle(sum(part.count for part in parts), own)
            length = passes.length(1 / max(count, 1e-12), config.clip, state.optimizer)
            read = _asked(way.figures([part.total for part in parts], length))
            if ahead:
                # before the numbers are known: so the device has work while its answer travels
                passes.step(state.optimizer)
                passes.expect(feed.ahead())
            *totals, norm = read()  # the one moment of a step at which the device is waited for
            total = sum(totals)
            if not (math.isfinite(total) and math.isfinite(norm)):
                state.optimizer.zero_grad()
                raise _lost(total / max(count, 1e-12), norm, state.step + 1, config, moved=ahead)
            if not ahead:
                passes.step(state.optimizer)
            passes.clear(state.optimizer)
            state.step += 1
            if state.average:
                state.average.update(state.step, steps)
            yield StepReport(
                state.step, total / count, share * config.lr, norm, int(scored), time.perf_counter() - started
            )
            started = time.perf_counter()


def _set_out(state: TrainState, steps: int, config: OptimConfig) -> float:
    """Everything that a step depends on besides its rows; returns the share of the rate that it moves by."""
    if not state.model.training:  # asked first: telling every module takes a while
        state.model.train()
    share = lr_share(state.step, steps, config)
    for group in state.optimizer.param_groups:
        group["lr"] = share * group["peak_lr"]
    seed_step(state.seed, state.step, state.way.ranks.rank)
    return share


def _lost(loss: float, norm: float, step: int, config: OptimConfig, *, moved: bool) -> TrainingError:
    return TrainingError(
        f"loss {loss} with gradient norm {norm} at step {step};"
        f" {'what was saved before is whole' if moved else 'no update was made'};"
        f" try a lower optim.lr than {config.lr:g}, a longer optim.warmup, or precision fp32"
    )


class Feed:
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
        while self._pool and self._left and len(self._waiting) < _AHEAD:
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


def _asked(numbers: Tensor) -> Callable[[], list[float]]:
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
