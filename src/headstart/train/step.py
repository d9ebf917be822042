"""One optimizer step: the `StepRunner` protocol, `EagerStep`, which runs it with ordinary torch calls, and `to_device`."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headstart.data.batch import Batch
from headstart.kernels.dispatch import caches_embedding_grads, is_asynchronous, is_on_device
from headstart.kernels.embedding import CachedGradEmbedding
from headstart.runtime import Runtime
from headstart.train.objectives import LossSum, Objective
from headstart.train.parallel import ParallelStrategy, local_tensor

Notify = Callable[[str], None]
BatchT = TypeVar("BatchT", bound=Batch)


class StepRunner(Protocol):
    """The operations that `fit` calls, in this order, for every optimizer step.

    `EagerStep` is the reference. `train.cuda_graphs.GraphedStep` replays the same operations from CUDA graphs.
    """

    def to_device(self, batch: Batch) -> Batch:
        """Prepare a batch for `forward_backward`; on a GPU the prefetch thread calls this."""

    def forward_backward(self, batch: Batch, *, last: bool) -> LossSum:
        """Compute the loss of a micro-batch and add its gradients to `.grad`; `last` marks the last one of the step."""

    def clip_grad_norm(self, scale: float, max_norm: float, optimizer: Optimizer) -> Tensor:
        """Multiply the gradients by `scale`, clip them to `max_norm` (0: no clipping), and return the norm before clipping."""

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights."""

    def prefetch(self, batches: list[Batch]) -> None:
        """Receive the batches of the next step while the device still works on this one."""

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Reset the gradients for the next step."""


class EagerStep:
    """The step as plain torch operations, for any device and any `ParallelStrategy`."""

    def __init__(self, model: nn.Module, objective: Objective, runtime: Runtime, strategy: ParallelStrategy) -> None:
        self.model, self.objective, self.runtime, self.strategy = model, objective, runtime, strategy
        self.parameters = list(model.parameters())
        self._embeddings: list[CachedGradEmbedding] = []

    def cache_embedding_grads(self) -> None:
        """In a single process on a CPU, reuse the gradient tensors of embeddings: only the rows written are cleared."""
        if type(self.strategy) is ParallelStrategy and caches_embedding_grads(self.runtime.device):
            self._embeddings = [module for module in self.model.modules() if isinstance(module, CachedGradEmbedding)]
        for embedding in self._embeddings:
            embedding.keep()

    def to_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device."""
        return to_device(batch, self.runtime.device)

    def forward_backward(self, batch: Batch, *, last: bool) -> LossSum:
        """Run the objective under autocast, then the backward pass of its sum."""
        with self.runtime.autocast():
            loss = self.strategy.forward_loss(self.model, self.objective, batch)
        self.strategy.backward(loss.total, last=last)
        return loss

    def clip_grad_norm(self, scale: float, max_norm: float, optimizer: Optimizer) -> Tensor:  # noqa: ARG002
        """Scale and clip; the optimizer does not matter here."""
        return self.scale_and_clip(scale, max_norm)

    def scale_and_clip(self, scale: float | Tensor, max_norm: float) -> Tensor:
        """Multiply the gradients by `scale` and clip their norm, in one pass over them; returns the norm before clipping."""
        grads = [local_tensor(grad) for grad in self.grads()]
        norm = self.strategy.norm(grads) * scale
        # as torch.nn.utils.clip_grads_with_norm_, on the local shards, with both factors in one multiplication
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0) * scale if max_norm else scale
        torch._foreach_mul_(grads, factor)
        return norm

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights."""
        optimizer.step()

    def prefetch(self, batches: list[Batch]) -> None:
        """Do nothing: `to_device` has copied the batches already."""

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Drop all gradients, except the cached ones of embeddings, which are cleared in place."""
        cached_grads = [embedding.weight.grad for embedding in self._embeddings]
        optimizer.zero_grad()
        for embedding, grad in zip(self._embeddings, cached_grads, strict=True):
            embedding.clear(grad)

    def grads(self) -> list[Tensor]:
        """Return the gradients that exist, in the order of the parameters."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


def to_device(batch: BatchT, device: torch.device) -> BatchT:
    """Copy a batch to a device; a batch that is there already is returned as it is.

    For a GPU, everything that determines a shape is computed on the CPU first, and the copy is asynchronous, which
    requires page-locked memory.
    """
    if is_on_device(batch.ids_BT, device):
        return batch
    if is_asynchronous(device):
        batch = batch.with_cu_seqlens().without_segments().pin_memory()
    return batch.to(device, non_blocking=True)


def zero_grads(grads: list[Tensor]) -> None:
    """Set gradients to zero in place."""
    if grads:
        torch._foreach_zero_(grads)
