"""Steps without waiting for orders: the passes of a batch are recorded once for each of a few shapes, then replayed.

A pass through a small network is some hundreds of kernels, and telling a GPU to start one takes longer than most of them
run. A CUDA graph is told once. It knows its shapes and addresses for good, so batches get a shape that comes back
(`steady`), and batches and gradients stay in the same memory.

What a step computes depends on its batch alone, never on what was recorded before it: a batch that is not recorded yet goes
the same way in the same shape, and draws the same random numbers (a replay begins where the generator stands).
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headstart.data.batches import Batch
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.pair_head import PairedHead
from headstart.runtime import Runtime
from headstart.train.objectives import LossSum
from headstart.train.parallel import ONE, Way
from headstart.train.passes import Passes, Say, zero
from headstart.train.steady import LayOut, Steady, steady_texts, steady_tokens
from headstart.train.tape import CudaTape, Tape, Work
from headstart.train.update import Update, is_recordable

_MOST_GRAPHS, _MOST_SHAPES = 32, 128
"""Shapes that are recorded, and those whose memory is kept: where every batch has another one, they are many."""


@dataclass
class _Slot:
    """The memory of all batches of one shape, and what replays their passes once they are recorded."""

    batch: Steady
    replays: dict[bool, Work] = field(default_factory=dict)
    """By whether a step begins with them: what the gradients were before counts for nothing then."""
    used: bool = False
    holds: Steady | None = None
    """What was copied there and has not been read yet."""

    def take(self, batch: Steady) -> None:
        """Copy a batch to where the recorded passes read it, once they have read the one before."""
        if self.holds is not batch:
            there = self.batch.tensors()
            for name, tensor in batch.tensors().items():
                there[name].copy_(tensor, non_blocking=True)
        self.holds = batch


class Graphs:
    """The recorded passes of one model; they outlive a call of `fit`."""

    def __init__(self, model: Model[Any], tape: Tape, say: Say, lay_out: LayOut) -> None:
        self.model, self.tape, self.say, self.lay_out = model, tape, say, lay_out
        self.slots: dict[tuple[Any, ...], _Slot] = {}
        self.update: Update | None = None
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

    def around(self, plain: Passes, optimizer: Optimizer, clip: float) -> "CapturedPasses":
        """The passes of a call of `fit`. What was recorded holds as long as the same weights move, in the same memory."""
        if self._addresses() != self._seen:
            self.forget()
        if self.update and not self.update.holds(optimizer, clip):
            self.update = None
        return CapturedPasses(self, plain)

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


class CapturedPasses(Passes):
    """Passes that are replayed where they can be; the others go the plain way."""

    def __init__(self, graphs: Graphs, plain: Passes) -> None:
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
        total = self._total(batch) if isinstance(batch, Steady) and not self.graphs.failed else None
        if total is None:
            self._replayed = False
            if not self._begun:
                zero(self.grads())  # where recorded passes have left theirs
            part = super().run(super().ready(batch), last=last)
            total, count = part.total.detach(), part.count
        else:
            count = batch.scored
        self._begun = True
        return LossSum(total, count)

    def length(self, scale: float, clip: float, optimizer: Optimizer) -> Tensor:
        """The same, replayed once an optimizer has its moments."""
        graphs = self.graphs
        if graphs.slots and not self._replayed:
            graphs.remember()
        ready = graphs.slots and graphs.warm and not graphs.failed
        if ready and graphs.update is None and is_recordable(optimizer):
            try:
                with graphs.lock:
                    graphs.update = Update(self, optimizer, clip, graphs.tape)
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
            if isinstance(batch, Steady) and not self.graphs.failed and batch.shape in self.graphs.slots:
                self.graphs.slots[batch.shape].take(batch)

    def _total(self, batch: Steady) -> Tensor | None:
        """The loss of a batch, its gradients added to those of the step; None where it could not be recorded."""
        graphs, shape, anew = self.graphs, batch.shape, not self._begun
        slot = graphs.slots.get(shape) or _Slot(_like(batch, self.runtime.device))
        if len(graphs.slots) < _MOST_SHAPES:
            graphs.slots[shape] = slot
        slot.take(batch)
        slot.holds = None

        # as long as nothing relies on the gradients that are there, those of the first recording may take their place
        moves = False

        def work() -> Tensor:
            part = self._anew(slot.batch, moves=moves) if anew else Passes.run(self, slot.batch, last=True)
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

    def _anew(self, batch: Steady, *, moves: bool) -> LossSum:
        """Passes whose gradients take the place of those that are there: no zeros to write, and none to add to.

        Args:
            moves: also in memory; else they are copied to where those are.
        """
        kept = [(parameter, parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        for parameter, _ in kept:
            parameter.grad = None
        part = Passes.run(self, batch, last=True)
        zero([grad for parameter, grad in kept if parameter.grad is None])
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


def _like(batch: Steady, device: torch.device) -> Steady:
    """Memory on the device for batches of this shape."""
    there: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in batch.tensors().items()
    }
    return replace(batch, **there)


def graphs_for(model: Model[ClassifierHead], runtime: Runtime, way: Way, say: Say) -> Graphs | None:
    """For fine-tuning, where recording is worth it and possible: layers are not compiled, since widths are many."""
    backbone = model.backbone
    if backbone.compiled or not _can_record(model, runtime, way):
        return None
    backbone.recorded = True
    return Graphs(model, CudaTape(runtime.device), say, steady_texts(backbone.layers[0], backbone.config.context))


def token_graphs_for(model: Model[LanguageHead], runtime: Runtime, way: Way, say: Say) -> Graphs | None:
    """For pretraining, whose rows are all as long; compiled layers are recorded like others.

    Not with a head for pairs: a step without pairs has no gradient for it, and must not move it.
    """
    if isinstance(model.head, PairedHead) or not _can_record(model, runtime, way):
        return None
    return Graphs(model, CudaTape(runtime.device), say, steady_tokens)


def _can_record(model: Model[Any], runtime: Runtime, way: Way) -> bool:
    """Whether there is one process and a GPU, and layers are not worked out twice.

    In the deterministic mode nothing is recorded: a replay has the kernels of its capture, and they were not checked.
    """
    alone = runtime.device.type == "cuda" and way is ONE and not model.backbone.recompute
    return alone and not torch.are_deterministic_algorithms_enabled()
