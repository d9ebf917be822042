"""The training step captured as CUDA graphs and replayed.

What records work for a GPU and replays it: CUDA graphs.

What follows the passes of a step, recorded: gradients scaled and clipped, weights moved. It is the same for every batch.

Steps without waiting for orders: the passes of a batch are recorded once for each of a few shapes, then replayed.

A pass through a small network is some hundreds of kernels, and telling a GPU to start one takes longer than most of them
run. A CUDA graph is told once. It knows its shapes and addresses for good, so batches get a shape that comes back
(`steady`), and batches and gradients stay in the same memory.

What a step computes depends on its batch alone, never on what was recorded before it: a batch that is not recorded yet goes
the same way in the same shape, and draws the same random numbers (a replay begins where the generator stands).
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from headstart.data.batch import Batch
from headstart.model.heads import ClassifierHead, LanguageHead, Model, NextSentenceHead
from headstart.runtime import Runtime
from headstart.train.objectives import LossSum
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.static_batch import StaticBatch, StaticLayout, static_texts, static_tokens
from headstart.train.step import EagerStep, Notify, zero_grads

GraphWork = Callable[[], Tensor]
"""Work on tensors that stay where they are, and one number that comes of it."""


class GraphCapture(Protocol):
    """What records and replays."""

    def once(self, work: GraphWork) -> Tensor:
        """Do it, unrecorded."""

    def record(self, work: GraphWork) -> GraphWork:
        """What does it again from here on; nothing is done yet. RuntimeError where it cannot be recorded."""


class CudaGraphCapture:
    """CUDA graphs that share their memory: one is replayed after the other. Of each its number is read, and tensors that
    somebody has kept since it was recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def once(self, work: GraphWork) -> Tensor:
        """On the stream that records, so that all it needs has been set up there."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            number = work()
        here.wait_stream(self._stream)
        return number

    def record(self, work: GraphWork) -> GraphWork:
        """Capture; the number that a replay gives is a copy, since the next one writes over it."""
        graph = torch.cuda.CUDAGraph()
        # threads of their own may use the device meanwhile, as long as they keep off the stream that records
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            # the outer one puts the stream back also where the end of a capture raises
            with torch.cuda.stream(torch.cuda.current_stream(self._device)), recording:
                number = work()
        except RuntimeError:
            self._tidy_up()
            raise

        def replay() -> Tensor:
            graph.replay()
            return number.clone()

        return replay

    def _tidy_up(self) -> None:
        """A capture that failed may leave the allocator and the generator waiting for its end: both are told of it."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # some versions of torch have done so themselves
            torch._C._cuda_endAllocateToPool(index, self._pool)
        fresh = torch.Generator(torch.device("cuda", index))
        fresh.manual_seed(torch.default_generator.initial_seed())  # `seed_step` gives both the same
        torch.cuda.default_generators[index].graphsafe_set_state(fresh)


class GraphedUpdate:
    """Recorded for one optimizer, whose moments and gradients stay where they are."""

    def __init__(self, passes: EagerStep, optimizer: Optimizer, clip: float, tape: GraphCapture) -> None:
        self._groups = optimizer.param_groups
        self._relied_on = optimizer, clip, _addresses(optimizer)
        device = passes.runtime.device
        # the scale, then the rate of each group: what changes from step to step
        self._knobs = torch.empty(1 + len(self._groups), device=device)
        self._set_to = torch.empty(1 + len(self._groups), pin_memory=device.type == "cuda")
        scale, *rates = self._knobs.unbind()
        torch._foreach_mul_([self._knobs.clone()], torch.ones((), device=device))  # loads the one kernel that is new

        def move() -> Tensor:
            own = [group["lr"] for group in self._groups]
            try:
                for group, rate in zip(self._groups, rates, strict=True):
                    group["lr"], group["capturable"] = rate, True
                optimizer.step()
            finally:
                for group, rate in zip(self._groups, own, strict=True):
                    group["lr"], group["capturable"] = rate, False
            return scale

        self._measure: GraphWork = tape.record(lambda: passes.scaled_and_clipped(scale, clip))
        self.move: GraphWork = tape.record(move)

    def measure(self, scale: float) -> Tensor:
        """Turn sums into means and bound their norm; returns the norm before."""
        # read by the device before the figures of a step are, for which the loop waits: one place in memory is enough
        self._set_to.copy_(torch.tensor([scale, *(group["lr"] for group in self._groups)]))
        self._knobs.copy_(self._set_to, non_blocking=True)
        return self._measure()

    def holds(self, optimizer: Optimizer, clip: float) -> bool:
        """Whether what was recorded is what is asked for now."""
        return (optimizer, clip, _addresses(optimizer)) == self._relied_on


def is_capturable(optimizer: Optimizer) -> bool:
    """Whether an optimizer's step reads its rates from the device, and has its moments already."""
    alike = type(optimizer) in (Adam, AdamW) and all(group["fused"] for group in optimizer.param_groups)
    moving = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return alike and all(optimizer.state.get(parameter) for parameter in moving)


def _addresses(optimizer: Optimizer) -> list[Any]:
    tensors = (value for state in optimizer.state.values() for value in state.values())
    return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, Tensor)]


_MOST_GRAPHS, _MOST_SHAPES = 32, 128
"""Shapes that are recorded, and those whose memory is kept: where every batch has another one, they are many."""


@dataclass
class _GraphSlot:
    """The memory of all batches of one shape, and what replays their passes once they are recorded."""

    batch: StaticBatch
    replays: dict[bool, GraphWork] = field(default_factory=dict)
    """By whether a step begins with them: what the gradients were before counts for nothing then."""
    used: bool = False
    holds: StaticBatch | None = None
    """What was copied there and has not been read yet."""

    def take(self, batch: StaticBatch) -> None:
        """Copy a batch to where the recorded passes read it, once they have read the one before."""
        if self.holds is not batch:
            there = self.batch.tensors()
            for name, tensor in batch.tensors().items():
                there[name].copy_(tensor, non_blocking=True)
        self.holds = batch


class GraphCache:
    """The recorded passes of one model; they outlive a call of `fit`."""

    def __init__(self, model: Model[Any], tape: GraphCapture, say: Notify, lay_out: StaticLayout) -> None:
        self.model, self.tape, self.say, self.lay_out = model, tape, say, lay_out
        self.slots: dict[tuple[Any, ...], _GraphSlot] = {}
        self.update: GraphedUpdate | None = None
        self.warm = False
        """Whether weights were moved the plain way once, which loads the kernels; a run that goes on has its moments before."""
        self.failed = False
        """Once something could not be recorded, nothing is any more."""
        self.lock = threading.Lock()
        """While passes are recorded, the thread that lays batches out leaves the device alone."""
        self._seen: list[Any] = []

    @property
    def recorded(self) -> int:
        """How many passes have been recorded."""
        return sum(len(slot.replays) for slot in self.slots.values())

    def around(self, plain: EagerStep, optimizer: Optimizer, clip: float) -> "GraphedStep":
        """The passes of a call of `fit`. What was recorded holds as long as the same weights move, in the same memory."""
        if self._addresses() != self._seen:
            self.forget()
        if self.update and not self.update.holds(optimizer, clip):
            self.update = None
        return GraphedStep(self, plain)

    def forget(self) -> None:
        """Let go of everything recorded, and of the gradients: a weight that is frozen now must have none."""
        self._let_go()
        for parameter in self.model.parameters():
            parameter.grad = None
        self._seen = []

    def _let_go(self) -> None:
        self._wait()
        self.slots.clear()
        self.update = None

    def _wait(self) -> None:
        """The last replay may still be under way."""
        device = next(self.model.parameters()).device
        if self.slots and device.type == "cuda":
            torch.cuda.synchronize(device)

    def remember(self) -> None:
        """What the recorded passes rely on. They know nothing of a gradient that is new, and would leave it there for good."""
        if self._seen and self._addresses() != self._seen:
            self._wait()
            for slot in self.slots.values():
                slot.replays.clear()
            self.update = None
            for parameter in self.model.parameters():
                if parameter.grad is not None:  # in the memory of recordings, which nobody may hold any more
                    parameter.grad = parameter.grad.clone()
        self._seen = self._addresses()

    def rely(self) -> None:
        """Gradients have moved, and what was recorded last knows where to."""
        self._seen = self._addresses()

    def give_up(self, error: RuntimeError) -> None:
        """Nothing is recorded from here on; what was is let go, since the plain way may need its memory."""
        self.failed = True
        self._let_go()
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        self.say(f"steps are not recorded as CUDA graphs here, and take longer: {reason}")

    def _addresses(self) -> list[Any]:
        return [
            (
                parameter.data_ptr(),
                parameter.requires_grad,
                None if (grad := parameter.grad) is None else grad.data_ptr(),
            )
            for parameter in self.model.parameters()
        ]


class GraphedStep(EagerStep):
    """Passes that are replayed where they can be; the others go the plain way."""

    def __init__(self, graphs: GraphCache, plain: EagerStep) -> None:
        super().__init__(plain.model, plain.objective, plain.runtime, plain.way)
        self.graphs = graphs
        self._begun, self._replayed = False, True
        """Of the step in hand: whether a batch has been read, and whether all of them were replayed."""

    def ready(self, batch: Batch) -> Batch:
        """Give it a steady shape, and leave it in pinned memory; what has none goes to the device as it always does."""
        with self.graphs.lock:
            steady = None if self.graphs.failed else self.graphs.lay_out(batch)
            if steady is None:
                return super().ready(batch)
            return steady.pinned() if self.runtime.device.type == "cuda" else steady

    def run(self, batch: Batch, *, last: bool) -> LossSum:
        """The same sums and gradients as the plain way. The loss is detached: of earlier passes nothing stays alive."""
        total = self._total(batch) if isinstance(batch, StaticBatch) and not self.graphs.failed else None
        if total is None:
            self._replayed = False
            if not self._begun:
                zero_grads(self.grads())  # where recorded passes have left theirs
            part = super().run(super().ready(batch), last=last)
            total, count = part.total.detach(), part.count
        else:
            count = batch.num_targets
        self._begun = True
        return LossSum(total, count)

    def length(self, scale: float, clip: float, optimizer: Optimizer) -> Tensor:
        """The same, replayed once an optimizer has its moments."""
        graphs = self.graphs
        if graphs.slots and not self._replayed:
            graphs.remember()
        ready = graphs.slots and graphs.warm and not graphs.failed
        if ready and graphs.update is None and is_capturable(optimizer):
            try:
                with graphs.lock:
                    graphs.update = GraphedUpdate(self, optimizer, clip, graphs.tape)
            except RuntimeError as error:
                graphs.give_up(error)
        return super().length(scale, clip, optimizer) if graphs.update is None else graphs.update.measure(scale)

    def step(self, optimizer: Optimizer) -> None:
        """The same, replayed."""
        if self.graphs.update is None:
            super().step(optimizer)
            self.graphs.warm = True
        else:
            self.graphs.update.move()

    def clear(self, optimizer: Optimizer) -> None:
        """Gradients stay where they are if anything is recorded: it knows their memory, and writes over what is there."""
        self._begun, self._replayed = False, True
        if not self.graphs.slots:
            super().clear(optimizer)

    def expect(self, batches: list[Batch]) -> None:
        """Copy the first of them already, behind all that the device has been told to do."""
        for batch in batches[:1]:
            if isinstance(batch, StaticBatch) and not self.graphs.failed and batch.shape in self.graphs.slots:
                self.graphs.slots[batch.shape].take(batch)

    def _total(self, batch: StaticBatch) -> Tensor | None:
        """The loss of a batch, its gradients added to those of the step; None where it could not be recorded."""
        graphs, shape, anew = self.graphs, batch.shape, not self._begun
        slot = graphs.slots.get(shape) or _GraphSlot(_like(batch, self.runtime.device))
        if len(graphs.slots) < _MOST_SHAPES:
            graphs.slots[shape] = slot
        slot.take(batch)
        slot.holds = None

        # as long as nothing relies on the gradients that are there, those of the first recording may take their place
        moves = False

        def work() -> Tensor:
            part = self._anew(slot.batch, moves=moves) if anew else EagerStep.run(self, slot.batch, last=True)
            return part.total.detach()  # how many it scored, each batch knows itself

        # the first time warms up: libraries start, kernels are loaded, gradients get their memory
        if slot.used and anew not in slot.replays and graphs.recorded < _MOST_GRAPHS:
            moves = anew and not graphs.recorded and graphs.update is None
            try:
                with graphs.lock:
                    slot.replays[anew] = graphs.tape.record(work)
            except RuntimeError as error:
                self._give_up(error)
                return None
            if moves:
                moves = False
                graphs.rely()
        if anew in slot.replays:
            return slot.replays[anew]()
        self._replayed = False
        try:
            total = graphs.tape.once(work)
        except torch.OutOfMemoryError as error:
            if self._begun:
                raise  # what the batches before it have added cannot be had again
            self._give_up(error)
            return None
        slot.used = True
        return total

    def _anew(self, batch: StaticBatch, *, moves: bool) -> LossSum:
        """Passes whose gradients take the place of those that are there: no zeros to write, and none to add to.

        Args:
            moves: also in memory; else they are copied to where those are.
        """
        kept = [(parameter, parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        for parameter, _ in kept:
            parameter.grad = None
        part = EagerStep.run(self, batch, last=True)
        zero_grads([grad for parameter, grad in kept if parameter.grad is None])
        fresh = [(grad, parameter.grad) for parameter, grad in kept if parameter.grad is not None]
        if fresh and not moves:
            torch._foreach_copy_([grad for grad, _ in fresh], [new for _, new in fresh])
        for parameter, grad in kept:
            if not moves or parameter.grad is None:
                parameter.grad = grad
        return part

    def _give_up(self, error: RuntimeError) -> None:
        """Leave memory to the plain way, which needs less: its gradients are made as activations go."""
        self.graphs.give_up(error)
        if not self._begun:
            for parameter in self.parameters:
                parameter.grad = None


def _like(batch: StaticBatch, device: torch.device) -> StaticBatch:
    """Memory on the device for batches of this shape."""
    there: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in batch.tensors().items()
    }
    return replace(batch, **there)


def text_graphs(
    model: Model[ClassifierHead], runtime: Runtime, way: ParallelStrategy, say: Notify
) -> GraphCache | None:
    """For fine-tuning, where recording is worth it and possible: layers are not compiled, since widths are many."""
    backbone = model.backbone
    if backbone.compiled or not _can_capture(model, runtime, way):
        return None
    backbone.recorded = True
    return GraphCache(
        model, CudaGraphCapture(runtime.device), say, static_texts(backbone.layers[0], backbone.config.context)
    )


def token_graphs(model: Model[LanguageHead], runtime: Runtime, way: ParallelStrategy, say: Notify) -> GraphCache | None:
    """For pretraining, whose rows are all as long; compiled layers are recorded like others.

    Not with a head for pairs: a step without pairs has no gradient for it, and must not move it.
    """
    if isinstance(model.head, NextSentenceHead) or not _can_capture(model, runtime, way):
        return None
    return GraphCache(model, CudaGraphCapture(runtime.device), say, static_tokens)


def _can_capture(model: Model[Any], runtime: Runtime, way: ParallelStrategy) -> bool:
    """Whether there is one process and a GPU, and layers are not worked out twice.

    In the deterministic mode nothing is recorded: a replay has the kernels of its capture, and they were not checked.
    """
    alone = runtime.device.type == "cuda" and way is SINGLE and not model.backbone.recompute
    return alone and not torch.are_deterministic_algorithms_enabled()
