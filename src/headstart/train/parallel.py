"""Parallel strategies: one process, copies of the model that add up their gradients (ddp), or a sharded model (fsdp).

A strategy computes the loss of a batch, runs its backward pass, reduces counts and gradients over the processes, and gives the
norm of all gradients. Whatever evaluates or saves asks it for the full model.

Sharded tensors (`torch.distributed.tensor`) and plain ones are treated alike: a plain tensor is returned as it is, and nothing
of torch.distributed is imported for it.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from headstart.config.schema import RuntimeConfig
from headstart.data.batch import Batch, RankSlice
from headstart.kernels.cross_entropy import unit_grad
from headstart.model.heads import Model
from headstart.runtime import Runtime
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.objectives import LossSum, Objective


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the shard of this process as a plain tensor that shares its memory."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return True if other processes have further shards of a tensor."""
    return hasattr(tensor, "to_local")


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor gathered from all its shards; all processes call this."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Shard a full tensor that every process has in the same way as a parameter."""
    if not is_sharded(parameter) or not tensor.ndim:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    sharded = cast(Any, parameter)
    return distribute_tensor(tensor, sharded.device_mesh, sharded.placements, src_data_rank=None)


def reshard_like(shard: Tensor, parameter: Tensor) -> Tensor:
    """Return the full tensor of which `shard` is this process's part, sharded like a parameter; all processes call this."""
    if not is_sharded(parameter):
        return shard
    from torch.distributed.tensor import DTensor

    sharded = cast(Any, parameter)
    mesh, placements = sharded.device_mesh, sharded.placements
    return DTensor.from_local(shard, mesh, placements, shape=sharded.shape, stride=sharded.stride()).full_tensor()


_BUCKET_BYTES = 25 * 2**20
"""The size of a full bucket."""


class GradBuckets:
    """Gradients in buckets that are all-reduced as they fill up, always in the same order.

    As in torch's DistributedDataParallel, but the buckets never change. DDP rebuilds its own after the first step, so that a
    resumed run would add in another order than the run it continues, and end with other bits. Frozen layers and heads that
    a step does not use need no special mode here.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # gradients are computed from the output down
        self._parameters = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
        self._buckets: list[list[nn.Parameter]] = []
        size = _BUCKET_BYTES
        for parameter in self._parameters:
            if size >= _BUCKET_BYTES:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        self._bucket_of = {parameter: index for index, bucket in enumerate(self._buckets) for parameter in bucket}
        self._hooks = [
            cast(Any, parameter).register_post_accumulate_grad_hook(self._on_grad) for parameter in self._parameters
        ]
        self.send = False
        """True if the gradients that are computed now are the last of the step."""
        self._reset()

    def _reset(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._in_flight: list[tuple[Tensor, Any]] = []

    def _on_grad(self, parameter: Tensor) -> None:
        if not self.send:
            return
        self._missing[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        # never a later bucket before an earlier one: all processes must send in one order
        while len(self._in_flight) < len(self._buckets) and self._missing[len(self._in_flight)] == 0:
            self._launch()

    def _launch(self) -> None:
        import torch.distributed as dist

        bucket = self._buckets[len(self._in_flight)]
        grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket]
        flat = torch.cat([grad.detach().flatten() for grad in grads])
        self._in_flight.append((flat, dist.all_reduce(flat, async_op=True)))

    def present(self) -> list[float]:
        """Launch the remaining buckets and return which parameters have a gradient in this process."""
        while len(self._in_flight) < len(self._buckets):
            self._launch()
        return [float(parameter.grad is not None) for parameter in self._parameters]

    def collect(self, present: Sequence[float]) -> None:
        """Set each gradient to the sum over all processes, or to None where no process has one."""
        has_grad = dict(zip(self._parameters, present, strict=True))
        for bucket, (flat, work) in zip(self._buckets, self._in_flight, strict=True):
            work.wait()
            grads = torch.split(flat, [parameter.numel() for parameter in bucket])
            for parameter, grad in zip(bucket, grads, strict=True):
                parameter.grad = grad.view_as(parameter) if has_grad[parameter] else None
        self.send = False
        self._reset()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


class ParallelStrategy:
    """One process: nothing is sharded, and nothing has to be reduced."""

    sharded = False

    def __init__(self, ranks: ProcessGroup = SINGLE_PROCESS) -> None:
        self.ranks = ranks

    @property
    def portion(self) -> RankSlice:
        """The rows of every step that this process trains on."""
        return RankSlice(self.ranks.rank, self.ranks.world_size)

    def shard(self, model: nn.Module, runtime: Runtime) -> None:
        """Distribute a model over the processes, before its optimizer is built."""

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """Reduce gradients over the processes while they are computed inside this context."""
        yield

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:  # noqa: ARG002
        """Return the loss of a batch."""
        return objective(batch)

    def backward(self, total: Tensor, *, last: bool) -> None:  # noqa: ARG002
        """Accumulate the gradients of a loss; `last` is True for the last one of a step."""
        total.backward(unit_grad(total))  # type: ignore[no-untyped-call]

    def reduce_counts(self, *counts: float) -> list[float]:
        """Return the sums of the counts over all processes; afterwards gradients are the sums over all processes."""
        return self.ranks.sum(counts)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Return the norm of all gradients as one vector."""
        return nn.utils.get_total_norm(grads)

    def loss_and_norm(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """Return losses that add up to that of all batches, followed by the norm, on the device."""
        return torch.stack([*(total.detach().float() for total in totals), norm.float()])

    @contextmanager
    def full_model(self, model: nn.Module) -> Iterator[Any]:
        """Yield the model as a plain network that every process can call alone, for evaluation and saving."""
        yield model

    def load_full(self, model: nn.Module, full: nn.Module) -> None:
        """Copy the weights of the network from `full_model` back into the model."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return tensors, such as those of an optimizer, in full in the first process; the value in other processes is not
        used.
        """
        return tensors


class DataParallel(ParallelStrategy):
    """Every process has a copy of the model and its own rows; gradients are added up."""

    _buckets: GradBuckets | None = None

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:
        """Reduce gradients while others are still being computed."""
        self._buckets = GradBuckets(model.parameters())
        try:
            yield
        finally:
            self._buckets.close()
            self._buckets = None

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Return the loss of a batch; the loss of a dummy batch is not counted."""
        loss = super().forward_loss(model, objective, batch)
        return LossSum(loss.total * 0.0, 0.0) if batch.is_dummy else loss

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Accumulate gradients; those of the last batch of a step are sent off bucket by bucket."""
        if self._buckets:
            self._buckets.send = last
        super().backward(total, last=last)

    def reduce_counts(self, *counts: float) -> list[float]:
        """Also reduce which parameters have a gradient: one that has none anywhere is not updated, as in one process."""
        assert self._buckets is not None
        sums = self.ranks.sum([*counts, *self._buckets.present()])
        self._buckets.collect(sums[len(counts) :])
        return sums[: len(counts)]

    def loss_and_norm(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """Return the loss of all batches of all processes, and the norm."""
        import torch.distributed as dist

        total = torch.stack([total.detach().float() for total in totals]).sum()
        dist.all_reduce(total)
        return torch.stack([total, norm.float()])


class _ForwardHooks(nn.Module):
    """Runs a function in the forward pass of a module, where FSDP gathers the weights that are not in layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], tuple[Tensor, float]]) -> tuple[Tensor, float]:
        """Return the result of the function."""
        return function()


class FullyShardedParallel(DataParallel):
    """Every process has a shard of every weight (torch's `fully_shard`); layers are gathered one at a time."""

    sharded = True

    def shard(self, model: nn.Module, runtime: Runtime) -> None:
        """Shard the weights: one group per layer, one for embedding and head. Under bf16, layers are gathered in bf16."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")  # never changed
        backbone = cast(Model[Any], model).backbone
        self._device = runtime.device
        self._skeleton = copy.deepcopy(model).to("meta")
        cast(Model[Any], self._skeleton).backbone.compiled = False
        mesh = init_device_mesh(runtime.device.type, (self.ranks.world_size,))
        # sums stay in fp32, and so do hidden states between layers, as in one process
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if runtime.bf16 else None, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for layer in backbone.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        backbone.defer_bias = (
            False  # the weights of a layer are freed when it is done, before the next could add a bias
        )
        self._hooks = _ForwardHooks(model)
        fully_shard(self._hooks, mesh=mesh)

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """FSDP reduces gradients by itself."""
        yield

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Return the loss of a batch, computed where the weights are gathered."""

        def function() -> tuple[Tensor, float]:
            loss = super(FullyShardedParallel, self).forward_loss(model, objective, batch)
            return loss.total, loss.count

        return LossSum(*self._hooks(function))

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Turn FSDP's mean over processes into a sum."""
        ParallelStrategy.backward(self, total * self.ranks.world_size, last=last)

    def reduce_counts(self, *counts: float) -> list[float]:
        """Return the sums of the counts; gradients are reduced already."""
        return self.ranks.sum(counts)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Return the norm over the shards of all processes."""
        import torch.distributed as dist

        squared = nn.utils.get_total_norm(grads).square()
        dist.all_reduce(squared)
        return squared.sqrt()

    @contextmanager
    def full_model(self, model: nn.Module) -> Iterator[Any]:
        """Yield a plain network with gathered weights."""
        full = copy.deepcopy(self._skeleton).to_empty(device=self._device)
        with torch.no_grad():
            for parameter, sharded in zip(full.parameters(), model.parameters(), strict=True):
                parameter.copy_(full_tensor(sharded))
                parameter.requires_grad_(sharded.requires_grad)
        yield full

    @torch.no_grad()
    def load_full(self, model: nn.Module, full: nn.Module) -> None:
        """Copy its shard of each weight in every process."""
        for sharded, parameter in zip(model.parameters(), full.parameters(), strict=True):
            local_tensor(sharded).copy_(local_tensor(shard_like(parameter, sharded)))

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gather one tensor after the other, so that no more than one is complete on a device."""
        gathered = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor)
            if self.ranks.is_main:
                gathered[name] = full.cpu()
        return gathered


SINGLE = ParallelStrategy()
"""One process."""


def strategy_for(config: RuntimeConfig, ranks: ProcessGroup) -> ParallelStrategy:
    """Return the strategy of the settings."""
    if ranks.world_size == 1:
        return SINGLE
    return FullyShardedParallel(ranks) if config.parallel == "fsdp" else DataParallel(ranks)
