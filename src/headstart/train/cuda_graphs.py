"""CUDA-graph capture and replay of the training step: one graph per batch shape, and two for clipping and the update.

A step of a small network launches some hundreds of kernels, and launching one takes longer than most of them run. A CUDA
graph is launched once. Its shapes and addresses are fixed, so batches are padded to recurring shapes (`static_batch`),
and inputs, gradients and Adam's moments stay at their addresses.

The result of a step depends on its batch alone, never on what was captured before: a batch whose shape has no graph yet
runs eagerly in the same padded shape and draws the same random numbers (a replay starts from the generator's state).

States of a `_GraphSlot` (one per batch shape; one graph for the first micro-batch of a step, which overwrites the
gradients, and one for the others, which add to them):

    new shape
        |  slot and static inputs allocated; runs eagerly once on the capture stream:
        |  libraries initialise, kernels are loaded, gradients are allocated
        v
    warmed up ---- same shape again: capture ----> captured ---- every later batch ----> replayed
        |    ^                                         |
        |    +-- a gradient has moved: graphs dropped -+
        |
        +-- capture fails, or the warm-up runs out of memory --> failed: all graphs dropped, eager for good

    Beyond _MAX_SHAPES a shape gets a temporary slot, beyond _MAX_GRAPHS it gets no graph: both run eagerly.

States of the `GraphedUpdate` (clipping and the optimizer step):

    eager ---- one eager step in this process (kernels loaded, Adam's state allocated): capture ----> replayed

What invalidates graphs:

    start of `fit`   weights or gradients at other addresses, or another `requires_grad`   everything, and the gradients
    start of `fit`   another optimizer, clipping norm or address of a moment               the update
    within a step    an eager micro-batch has created or moved a gradient                  all graphs and the update
    any time         a capture fails or memory runs out                                    everything, eager for good

Who owns which memory:

    static inputs    the slot: allocated outside the graphs' pool, filled by asynchronous copies from pinned batches
    gradients        `.grad` of the parameters. The first graph that is captured may adopt its own gradients, which lie in
                     the pool; all others copy or add to these. They are cloned before the graphs that own them are dropped
    activations      the pool of `CudaGraphCapture`, shared by all graphs, since only one is replayed at a time
    losses           a replay returns a clone, because the next replay overwrites the original
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

_MAX_GRAPHS, _MAX_SHAPES = 32, 128
"""Limits for graphs and for slots: where every batch has another shape, both would grow without bound."""

GraphWork = Callable[[], Tensor]
"""Operations on tensors at fixed addresses, returning a scalar."""


class GraphCapture(Protocol):
    """Captures and replays work. Tests have implementations that need no GPU."""

    def run_eager(self, work: GraphWork) -> Tensor:
        """Run `work` without capturing it."""

    def capture(self, work: GraphWork) -> GraphWork:
        """Capture `work` without running it, and return its replay; raises RuntimeError if it cannot be captured."""


class CudaGraphCapture:
    """Captures CUDA graphs that share one memory pool, since they are replayed one after another.

    Only the scalar of a replay may be read, and tensors that have been referenced since the capture.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def run_eager(self, work: GraphWork) -> Tensor:
        """Run `work` on the capture stream, so that libraries are initialised for it."""
        current_stream = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current_stream)
        with torch.cuda.stream(self._stream):
            scalar = work()
        current_stream.wait_stream(self._stream)
        return scalar

    def capture(self, work: GraphWork) -> GraphWork:
        """Capture `work`; a replay returns a clone of the scalar, because the next replay overwrites it."""
        graph = torch.cuda.CUDAGraph()
        # thread_local: the prefetch thread may use the device meanwhile, as long as it avoids the capture stream
        capturing = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            # the outer context restores the stream even if the end of the capture raises
            with torch.cuda.stream(torch.cuda.current_stream(self._device)), capturing:
                scalar = work()
        except RuntimeError:
            self._recover()
            raise

        def replay() -> Tensor:
            graph.replay()
            return scalar.clone()

        return replay

    def _recover(self) -> None:
        """Reset the allocator and the generator, which a failed capture may leave in capture mode."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # some versions of torch have ended the allocation themselves
            torch._C._cuda_endAllocateToPool(index, self._pool)
        generator = torch.Generator(torch.device("cuda", index))
        generator.manual_seed(torch.default_generator.initial_seed())  # `seed_step` gives both the same seed
        torch.cuda.default_generators[index].graphsafe_set_state(generator)


class GraphedUpdate:
    """The captured update: one graph scales and clips the gradients, a second one runs the optimizer.

    It is valid for one optimizer, whose moments and gradients stay at their addresses.
    """

    def __init__(self, eager: EagerStep, optimizer: Optimizer, max_norm: float, backend: GraphCapture) -> None:
        self._groups = optimizer.param_groups
        self._captured_for = optimizer, max_norm, _state_addresses(optimizer)
        device = eager.runtime.device
        # what changes from step to step: the scale of the gradients, then the learning rate of each group
        self._scalars = torch.empty(1 + len(self._groups), device=device)
        self._host_scalars = torch.empty(1 + len(self._groups), pin_memory=device.type == "cuda")
        scale, *rates = self._scalars.unbind()
        # loads the only kernel that the eager step has not loaded
        torch._foreach_mul_([self._scalars.clone()], torch.ones((), device=device))

        def optimizer_step() -> Tensor:
            float_rates = [group["lr"] for group in self._groups]
            try:
                for group, rate in zip(self._groups, rates, strict=True):
                    group["lr"], group["capturable"] = rate, True
                optimizer.step()
            finally:
                for group, float_rate in zip(self._groups, float_rates, strict=True):
                    group["lr"], group["capturable"] = float_rate, False
            return scale

        self._scale_and_clip: GraphWork = backend.capture(lambda: eager.scale_and_clip(scale, max_norm))
        self.step: GraphWork = backend.capture(optimizer_step)

    def clip_grad_norm(self, scale: float) -> Tensor:
        """Scale and clip the gradients; returns the norm before clipping."""
        # one host buffer is enough: the device has read it before the loop reads the loss of the step
        self._host_scalars.copy_(torch.tensor([scale, *(group["lr"] for group in self._groups)]))
        self._scalars.copy_(self._host_scalars, non_blocking=True)
        return self._scale_and_clip()

    def is_valid_for(self, optimizer: Optimizer, max_norm: float) -> bool:
        """Return True if the graphs were captured for this optimizer, clipping norm and memory."""
        return (optimizer, max_norm, _state_addresses(optimizer)) == self._captured_for


def is_capturable(optimizer: Optimizer) -> bool:
    """Return True for a fused Adam or AdamW whose state exists already."""
    fused_adam = type(optimizer) in (Adam, AdamW) and all(group["fused"] for group in optimizer.param_groups)
    with_grad = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return fused_adam and all(optimizer.state.get(parameter) for parameter in with_grad)


def _state_addresses(optimizer: Optimizer) -> list[Any]:
    tensors = (value for state in optimizer.state.values() for value in state.values())
    return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, Tensor)]


@dataclass
class _GraphSlot:
    """The static inputs of one batch shape, and the graphs that read them."""

    inputs: StaticBatch
    replays: dict[bool, GraphWork] = field(default_factory=dict)
    """Graphs by `first_micro_batch`: the first one of a step overwrites the gradients, the others add to them."""
    warmed_up: bool = False
    loaded: StaticBatch | None = None
    """The batch that was copied to `inputs` and has not been run yet."""

    def load(self, batch: StaticBatch) -> None:
        """Copy a batch to the static inputs, on the stream behind the graph that reads the batch before."""
        if self.loaded is not batch:
            inputs = self.inputs.tensors()
            for name, tensor in batch.tensors().items():
                inputs[name].copy_(tensor, non_blocking=True)
        self.loaded = batch


class GraphCache:
    """The graphs of one model; they outlive a call of `fit`."""

    def __init__(self, model: Model[Any], backend: GraphCapture, notify: Notify, layout: StaticLayout) -> None:
        self.model, self.backend, self.notify, self.layout = model, backend, notify, layout
        self.slots: dict[tuple[Any, ...], _GraphSlot] = {}
        self.update: GraphedUpdate | None = None
        self.update_warmed_up = False
        """True after one eager optimizer step: its kernels are loaded. A resumed run has Adam's state before that."""
        self.failed = False
        """True once a capture has failed; nothing is captured from then on."""
        self.lock = threading.Lock()
        """Held during a capture, in which the prefetch thread must not use the device, and by `to_device`."""
        self._tracked: list[Any] = []

    @property
    def num_graphs(self) -> int:
        """The number of captured forward and backward passes."""
        return sum(len(slot.replays) for slot in self.slots.values())

    def wrap(self, eager: EagerStep, optimizer: Optimizer, max_norm: float) -> "GraphedStep":
        """Return the step runner for a call of `fit`, after dropping the graphs that are no longer valid."""
        if self._addresses() != self._tracked:
            self.reset()
        if self.update and not self.update.is_valid_for(optimizer, max_norm):
            self.update = None
        return GraphedStep(self, eager)

    def reset(self) -> None:
        """Drop all graphs and all gradients: a weight that is frozen now must not keep one."""
        self._drop_graphs()
        for parameter in self.model.parameters():
            parameter.grad = None
        self._tracked = []

    def _drop_graphs(self) -> None:
        self._synchronize()
        self.slots.clear()
        self.update = None

    def _synchronize(self) -> None:
        """Wait for the last replay, which may still be running."""
        device = next(self.model.parameters()).device
        if self.slots and device.type == "cuda":
            torch.cuda.synchronize(device)

    def track_addresses(self) -> None:
        """Note the addresses of weights and gradients that the graphs rely on."""
        self._tracked = self._addresses()

    def drop_outdated(self) -> None:
        """Drop the graphs if a gradient was created or moved since: they would never reset or update it."""
        if self._tracked and self._addresses() != self._tracked:
            self._synchronize()
            for slot in self.slots.values():
                slot.replays.clear()
            self.update = None
            for parameter in self.model.parameters():
                if parameter.grad is not None:  # it may lie in the pool of the graphs dropped
                    parameter.grad = parameter.grad.clone()
        self.track_addresses()

    def give_up(self, error: RuntimeError) -> None:
        """Drop all graphs and capture nothing any more; the eager step may need their memory."""
        self.failed = True
        self._drop_graphs()
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        self.notify(f"CUDA graphs are not used, so steps take longer: {reason}")

    def _addresses(self) -> list[Any]:
        return [
            (
                parameter.data_ptr(),
                parameter.requires_grad,
                None if (grad := parameter.grad) is None else grad.data_ptr(),
            )
            for parameter in self.model.parameters()
        ]


class GraphedStep:
    """A `StepRunner` that replays graphs where it can, and otherwise runs the `EagerStep` that it wraps."""

    def __init__(self, graphs: GraphCache, eager: EagerStep) -> None:
        self.graphs, self._eager = graphs, eager
        self._step_begun = False
        """True once a micro-batch of the current step has been run."""
        self._all_replayed = True
        """True while every micro-batch of the current step was a replay."""

    def to_device(self, batch: Batch) -> Batch:
        """Pad a batch to its static shape in pinned memory; one that has none is copied to the device."""
        with self.graphs.lock:
            static_batch = None if self.graphs.failed else self.graphs.layout(batch)
            if static_batch is None:
                return self._eager.to_device(batch)
            return static_batch.pin_memory() if self._eager.runtime.device.type == "cuda" else static_batch

    def forward_backward(self, batch: Batch, *, last: bool) -> LossSum:
        """Compute the same sums and gradients as the eager step. The loss is detached, so that no autograd graph stays."""
        total = self._run_static(batch) if isinstance(batch, StaticBatch) and not self.graphs.failed else None
        if total is None:
            self._all_replayed = False
            if not self._step_begun:
                zero_grads(self._eager.grads())  # replays leave theirs in place
            loss = self._eager.forward_backward(self._eager.to_device(batch), last=last)
            total, count = loss.total.detach(), loss.count
        else:
            count = batch.num_targets
        self._step_begun = True
        return LossSum(total, count)

    def clip_grad_norm(self, scale: float, max_norm: float, optimizer: Optimizer) -> Tensor:
        """Scale and clip by a replay, captured as soon as the optimizer has its state."""
        graphs = self.graphs
        if graphs.slots and not self._all_replayed:
            graphs.drop_outdated()
        may_capture = graphs.slots and graphs.update_warmed_up and not graphs.failed
        if may_capture and graphs.update is None and is_capturable(optimizer):
            try:
                with graphs.lock:
                    graphs.update = GraphedUpdate(self._eager, optimizer, max_norm, graphs.backend)
            except RuntimeError as error:
                graphs.give_up(error)
        if graphs.update is None:
            return self._eager.clip_grad_norm(scale, max_norm, optimizer)
        return graphs.update.clip_grad_norm(scale)

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights, by a replay if one was captured."""
        if self.graphs.update is None:
            self._eager.step(optimizer)
            self.graphs.update_warmed_up = True
        else:
            self.graphs.update.step()

    def prefetch(self, batches: list[Batch]) -> None:
        """Copy the first batch to its static inputs, behind the work that is queued on the device."""
        for batch in batches[:1]:
            if isinstance(batch, StaticBatch) and not self.graphs.failed and batch.shape in self.graphs.slots:
                self.graphs.slots[batch.shape].load(batch)

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Leave the gradients in place where there are graphs: the first graph of a step overwrites them."""
        self._step_begun, self._all_replayed = False, True
        if not self.graphs.slots:
            self._eager.zero_grad(optimizer)

    def _run_static(self, batch: StaticBatch) -> Tensor | None:
        """Return the loss of a batch after its gradients were added; None if it must be run eagerly instead."""
        graphs, first_micro_batch = self.graphs, not self._step_begun
        slot = self._slot_for(batch)
        slot.load(batch)
        slot.loaded = None
        # nothing relies on the present gradients before the first capture, so its own may replace them
        adopt_grads = False

        def work() -> Tensor:
            if first_micro_batch:
                loss = self._overwrite_grads(slot.inputs, adopt_grads=adopt_grads)
            else:
                loss = self._eager.forward_backward(slot.inputs, last=True)
            return loss.total.detach()  # the count is that of the batch

        if slot.warmed_up and first_micro_batch not in slot.replays and graphs.num_graphs < _MAX_GRAPHS:
            adopt_grads = first_micro_batch and not graphs.num_graphs and graphs.update is None
            try:
                with graphs.lock:
                    slot.replays[first_micro_batch] = graphs.backend.capture(work)
            except RuntimeError as error:
                self._give_up(error)
                return None
            if adopt_grads:
                adopt_grads = False
                graphs.track_addresses()
        if first_micro_batch in slot.replays:
            return slot.replays[first_micro_batch]()
        self._all_replayed = False
        try:
            total = graphs.backend.run_eager(work)
        except torch.OutOfMemoryError as error:
            if self._step_begun:
                raise  # the gradients of the earlier micro-batches cannot be computed again
            self._give_up(error)
            return None
        slot.warmed_up = True
        return total

    def _slot_for(self, batch: StaticBatch) -> _GraphSlot:
        slots = self.graphs.slots
        slot = slots.get(batch.shape) or _GraphSlot(_empty_like(batch, self._eager.runtime.device))
        if len(slots) < _MAX_SHAPES:
            slots[batch.shape] = slot
        return slot

    def _overwrite_grads(self, batch: StaticBatch, *, adopt_grads: bool) -> LossSum:
        """Run a micro-batch whose gradients replace the present ones: none has to be set to zero or added to.

        Args:
            adopt_grads: keep the new gradient tensors; otherwise copy their values to the addresses of the old ones.
        """
        old_grads = [(parameter, parameter.grad) for parameter in self._eager.parameters if parameter.grad is not None]
        for parameter, _ in old_grads:
            parameter.grad = None
        loss = self._eager.forward_backward(batch, last=True)
        zero_grads([old for parameter, old in old_grads if parameter.grad is None])
        replaced = [(old, parameter.grad) for parameter, old in old_grads if parameter.grad is not None]
        if replaced and not adopt_grads:
            torch._foreach_copy_([old for old, _ in replaced], [new for _, new in replaced])
        for parameter, old in old_grads:
            if not adopt_grads or parameter.grad is None:
                parameter.grad = old
        return loss

    def _give_up(self, error: RuntimeError) -> None:
        """Drop the graphs, and the gradients unless the step needs them, to leave memory for the eager step."""
        self.graphs.give_up(error)
        if not self._step_begun:
            for parameter in self._eager.parameters:
                parameter.grad = None


def _empty_like(batch: StaticBatch, device: torch.device) -> StaticBatch:
    """Allocate the static inputs for batches of this shape."""
    tensors: dict[str, Any] = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in batch.tensors().items()
    }
    return replace(batch, **tensors)


def text_graphs(
    model: Model[ClassifierHead], runtime: Runtime, strategy: ParallelStrategy, notify: Notify
) -> GraphCache | None:
    """Return the graph cache for fine-tuning, or None. Compiled layers are excluded: there are too many lengths to compile."""
    backbone = model.backbone
    if backbone.compiled or not _can_capture(model, runtime, strategy):
        return None
    backbone.recorded = True
    layout = static_texts(backbone.layers[0], backbone.config.context)
    return GraphCache(model, CudaGraphCapture(runtime.device), notify, layout)


def token_graphs(
    model: Model[LanguageHead], runtime: Runtime, strategy: ParallelStrategy, notify: Notify
) -> GraphCache | None:
    """Return the graph cache for pretraining, or None. Rows have one length, so compiled layers are captured too.

    A next-sentence head is excluded: in a step without pairs it has no gradient, and must not be updated.
    """
    if isinstance(model.head, NextSentenceHead) or not _can_capture(model, runtime, strategy):
        return None
    return GraphCache(model, CudaGraphCapture(runtime.device), notify, static_tokens)


def _can_capture(model: Model[Any], runtime: Runtime, strategy: ParallelStrategy) -> bool:
    """Return True for one process with a GPU and without activation recomputation.

    Nothing is captured in deterministic mode: a replay runs the kernels of its capture, which were not checked.
    """
    eligible = runtime.device.type == "cuda" and strategy is SINGLE and not model.backbone.recompute
    return eligible and not torch.are_deterministic_algorithms_enabled()
