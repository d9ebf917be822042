"""Small steps without waiting for orders: the passes of a batch are recorded once for each of a few widths, then replayed.

A pass through a small network is some hundreds of kernels, and telling a GPU to start one takes longer than most of them
run. A CUDA graph is told once. It knows its shapes and addresses for good, so rows are padded to a width that comes back, and
batches and gradients stay in the same memory.

What a step computes depends on its batch alone, never on what was recorded before it: a batch that is not recorded yet goes
the same way at the same width, and draws the same random numbers (a replay begins where the generator stands).

B rows of a batch, T tokens of a row.
"""

import threading
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from headstart.data.batches import Batch
from headstart.model.heads import ClassifierHead, Model
from headstart.runtime import Runtime
from headstart.train.objectives import LossSum
from headstart.train.parallel import ONE, Way
from headstart.train.passes import Passes, Say, zero
from headstart.train.tape import CudaTape, Tape, Work
from headstart.train.update import Update, is_recordable

MOST_TOKENS, MOST_WORK = 16_384, 10**11
"""Padded tokens of a batch, alone and times the weights of a layer, beyond which the GPU is busy enough without: there
padding costs more than orders do."""
_WIDTHS, _STEP = 16, 32
_MOST_GRAPHS = 32
_TENSORS = ("ids_BT", "targets", "lengths_B")
"""What a batch of texts consists of."""


def width_for(longest: int, context: int) -> int:
    """The width that rows of at most `longest` tokens are padded to: one of sixteen or fewer, and no more than the context.

    >>> width_for(1, 512), width_for(33, 512), width_for(505, 512), width_for(500, 505), width_for(129, 1024)
    (32, 64, 512, 505, 192)
    """
    step = _STEP * max(1, -(-context // (_STEP * _WIDTHS)))
    return max(longest, min(-(-longest // step) * step, context))


@dataclass(frozen=True)
class Padded(Batch):
    """A batch at a width that comes back, still in the memory of the CPU (pinned, where there is a GPU)."""


@dataclass
class _Slot:
    """The memory of all batches of one shape, and what replays their passes once they are recorded."""

    batch: Batch
    replay: Work | None = None
    used: bool = False

    def take(self, batch: Batch) -> None:
        """Copy a batch to where the recorded passes read it."""
        for name in _TENSORS:
            getattr(self.batch, name).copy_(getattr(batch, name), non_blocking=True)


class Graphs:
    """The recorded passes of one model; they outlive a call of `fit`."""

    def __init__(self, model: Model[ClassifierHead], tape: Tape, say: Say) -> None:
        self.model, self.tape, self.say = model, tape, say
        model.backbone.recorded = True
        self.slots: dict[tuple[int, ...], _Slot] = {}
        self.update: Update | None = None
        self.layer = sum(parameter.numel() for parameter in model.backbone.layers[0].parameters())
        """The weights of a layer."""
        self.failed = False
        """Once something could not be recorded, nothing is any more."""
        self.lock = threading.Lock()
        """While passes are recorded, the thread that lays batches out leaves the device alone."""
        self._seen: list[Any] = []

    @property
    def recorded(self) -> int:
        """How many shapes have been recorded."""
        return sum(slot.replay is not None for slot in self.slots.values())

    def around(self, plain: Passes, optimizer: Optimizer, clip: float) -> "CapturedPasses":
        """The passes of a call of `fit`. What was recorded holds as long as the same weights move, in the same memory."""
        if self._addresses() != self._seen:
            self.forget()
        if self.update and not self.update.holds(optimizer, clip):
            self.update = None
        zero(plain.grads())
        return CapturedPasses(self, plain)

    def forget(self) -> None:
        """Let go of everything recorded, and of the gradients: a weight that is frozen now must have none."""
        device = next(self.model.parameters()).device
        if self.slots and device.type == "cuda":
            torch.cuda.synchronize(device)  # the last replay may still be under way
        self.slots.clear()
        self.update = None
        for parameter in self.model.parameters():
            parameter.grad = None
        self._seen = []

    def remember(self) -> None:
        """What the recorded passes rely on."""
        self._seen = self._addresses()

    def give_up(self, error: RuntimeError) -> None:
        """Nothing is recorded from here on; what was is let be."""
        self.failed = True
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

    def ready(self, batch: Batch) -> Batch:
        """Pad what is small, and leave it in pinned memory; the rest goes to the device as it always does."""
        with self.graphs.lock:
            if self.graphs.failed or not fits(batch, self.graphs.layer):
                return super().ready(batch)
            return padded(batch, self.graphs.model.backbone.config.context, pinned=self.runtime.device.type == "cuda")

    def run(self, batch: Batch, *, last: bool) -> LossSum:
        """The same sums and gradients as the plain way. The loss is detached: of earlier passes nothing stays alive."""
        if isinstance(batch, Padded) and not self.graphs.failed:
            total = self._total(batch)
            if total is not None:
                return LossSum(total, batch.scored)
        part = super().run(super().ready(batch), last=last)
        return LossSum(part.total.detach(), part.count)

    def length(self, scale: float, clip: float, optimizer: Optimizer) -> Tensor:
        """The same, replayed once an optimizer has its moments."""
        graphs = self.graphs
        if graphs.slots and graphs.update is None and not graphs.failed and is_recordable(optimizer):
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
        else:
            self.graphs.update.move()

    def clear(self, optimizer: Optimizer) -> None:
        """Gradients become zero where they are: their memory is known to what is recorded, if anything is."""
        if self.graphs.slots:
            zero(self.grads())
        else:
            super().clear(optimizer)

    def _total(self, batch: Padded) -> Tensor | None:
        """The loss of a batch, its gradients added; None where it could not be recorded."""
        graphs, shape = self.graphs, (*batch.ids_BT.shape, *batch.targets.shape)
        if shape not in graphs.slots:
            graphs.slots[shape] = _Slot(_like(batch, self.runtime.device))
        slot = graphs.slots[shape]
        slot.take(batch)

        def work() -> Tensor:
            part = Passes.run(self, slot.batch, last=True)
            assert part.count == batch.scored
            return part.total.detach()

        # the first time warms up: libraries start, kernels are loaded, gradients get their memory
        if slot.used and slot.replay is None and graphs.recorded < _MOST_GRAPHS:
            try:
                with graphs.lock:
                    slot.replay = graphs.tape.record(work)
            except RuntimeError as error:
                graphs.give_up(error)
                return None
        total = slot.replay() if slot.replay else graphs.tape.once(work)
        if not slot.used:
            graphs.remember()
        slot.used = True
        return total


def fits(batch: Batch, layer: int) -> bool:
    """Whether a batch is one text a row, and small for layers of so many weights: every run decides alike."""
    tokens = batch.ids_BT.numel()
    alone = batch.lengths_B is not None and batch.owners_B is None and batch.segments_BT is None and not batch.idle
    return alone and tokens <= MOST_TOKENS and tokens * layer <= MOST_WORK


def padded(batch: Batch, context: int, *, pinned: bool = False) -> Padded:
    """The same batch at a width that comes back. What lies behind a text is read by nobody, so any id will do there."""
    assert batch.lengths_B is not None
    width = batch.ids_BT.shape[1]
    ids_BT = F.pad(batch.ids_BT, (0, width_for(width, context) - width))
    tensors = [tensor.pin_memory() if pinned else tensor for tensor in (ids_BT, batch.targets, batch.lengths_B)]
    return Padded(tensors[0], None, tensors[1], batch.scored, tensors[2], visibility=batch.visibility)


def _like(batch: Padded, device: torch.device) -> Batch:
    """Memory on the device for batches of this shape. Without bounds: attention goes by rows, whose shape stays."""
    tensors = {name: getattr(batch, name) for name in _TENSORS}
    there: dict[str, Any] = {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in tensors.items()}
    return replace(batch, **there)


def graphs_for(model: Model[ClassifierHead], runtime: Runtime, way: Way, say: Say) -> Graphs | None:
    """Where recording is worth it and possible: one process and a GPU, layers neither compiled nor worked out twice.

    In the deterministic mode nothing is recorded: a replay has the kernels of its capture, and they were not checked.
    """
    backbone = model.backbone
    if runtime.device.type != "cuda" or way is not ONE or backbone.compiled or backbone.recompute:
        return None
    if torch.are_deterministic_algorithms_enabled():
        return None
    return Graphs(model, CudaTape(runtime.device), say)
