"""A step: passes forward and back, one batch after the other, gradients scaled and clipped, weights moved, as torch does it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headstart.data.batch import Batch
from headstart.kernels.embedding import CachedGradEmbedding
from headstart.runtime import Runtime
from headstart.train.objectives import LossSum, Objective
from headstart.train.parallel import ParallelStrategy, local_tensor

Notify = Callable[[str], None]


class EagerStep:
    """What the loop asks for in turn. `train/cuda_graphs.py` has another way to do the same."""

    def __init__(self, model: nn.Module, objective: Objective, runtime: Runtime, way: ParallelStrategy) -> None:
        self.model, self.objective, self.runtime, self.way = model, objective, runtime, way
        self.parameters = list(model.parameters())
        self._tables: list[CachedGradEmbedding] = []

    def keep_rows(self) -> None:
        """On a CPU, by itself: gradients of tables are cleared where they were written, not made anew at every step."""
        if type(self.way) is ParallelStrategy and self.runtime.device.type == "cpu":
            self._tables = [part for part in self.model.modules() if isinstance(part, CachedGradEmbedding)]
        for table in self._tables:
            table.keep()

    def ready(self, batch: Batch) -> Batch:
        """A batch where `run` wants it; called in a thread of its own on a GPU."""
        return batch.to(self.runtime.device)

    def run(self, batch: Batch, *, last: bool) -> LossSum:
        """Put the question of a batch and add its gradients to those that are there; `last` says that a step has no more."""
        with self.runtime.autocast():
            part = self.way.compute_loss(self.model, self.objective, batch)
        self.way.backward(part.total, last=last)
        return part

    def length(self, scale: float, clip: float, optimizer: Optimizer) -> Tensor:  # noqa: ARG002
        """Turn summed gradients into means, then bound their norm; returns the norm before."""
        return self.scaled_and_clipped(scale, clip)

    def scaled_and_clipped(self, scale: float | Tensor, clip: float) -> Tensor:
        """The same, whoever the optimizer is."""
        grads = [local_tensor(grad) for grad in self.grads()]
        norm = self.way.norm(grads) * scale
        # as torch.nn.utils.clip_grads_with_norm_, on the parts that this process holds, and both factors at once
        factor = torch.clamp(clip / (norm + 1e-6), max=1.0) * scale if clip else scale
        torch._foreach_mul_(grads, factor)
        return norm

    def step(self, optimizer: Optimizer) -> None:
        """Move the weights."""
        optimizer.step()

    def clear(self, optimizer: Optimizer) -> None:
        """Begin anew: no gradient is left of the step before."""
        kept = [table.weight.grad for table in self._tables]
        optimizer.zero_grad()
        for table, grad in zip(self._tables, kept, strict=True):
            table.clear(grad)

    def expect(self, batches: list[Batch]) -> None:
        """What the next step reads, told while the device is busy with this one."""

    def grads(self) -> list[Tensor]:
        """The gradients that are there, in the order of the parameters."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


def zero_grads(grads: list[Tensor]) -> None:
    """Set gradients to zero where they are."""
    if grads:
        torch._foreach_zero_(grads)
