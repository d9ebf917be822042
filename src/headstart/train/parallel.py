"""Parallel strategies: one process, data parallel, fully sharded.

Tensors of which each process holds a part (`torch.distributed.tensor`), and plain ones, treated alike.

A plain tensor goes through these functions as it is, and nothing of torch.distributed is imported for it.

Gradients added up over processes while the backward pass goes on.

What torch's DistributedDataParallel does, with buckets that stay as they are: it lays its own out anew after the first
step, so a resumed run would add in another order than the one it continues, and end with other bits. Layers that are
frozen, and heads that a step does not ask, need no mode of their own here.

Ways to train one model: alone, as copies that add up their gradients (ddp), or in shards (fsdp).

The loop asks its way five things: to read a batch, to go back through it, to add up what was counted, for the norm of all
gradients, and for the figures of a step. Whatever measures or saves asks for the whole model.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from headstart.config.schema import RuntimeConfig
from headstart.data.batch import Batch, RankSlice
from headstart.kernels.cross_entropy import unit_grad
from headstart.runtime import Runtime
from headstart.train.distributed import SINGLE_PROCESS, ProcessGroup
from headstart.train.objectives import LossSum, Objective


def local_tensor(tensor: Tensor) -> Tensor:
    """The part that this process holds, as a plain tensor that shares its memory; a plain tensor itself."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of a tensor."""
    return hasattr(tensor, "to_local")


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from the processes that hold its parts; all of them call this."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor that every process has, cut as a parameter is cut."""
    if not is_sharded(parameter) or not tensor.ndim:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    whole = cast(Any, parameter)
    return distribute_tensor(tensor, whole.device_mesh, whole.placements, src_data_rank=None)


def reshard_like(part: Tensor, parameter: Tensor) -> Tensor:
    """All of a tensor of which `part` is what this process holds, cut as a parameter is cut; all processes call this."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    whole = cast(Any, parameter)
    mesh, placements = whole.device_mesh, whole.placements
    return DTensor.from_local(part, mesh, placements, shape=whole.shape, stride=whole.stride()).full_tensor()


_BUCKET_BYTES = 25 * 2**20
"""Bytes after which a bucket is full."""


class GradBuckets:
    """The gradients of some parameters, in buckets that are sent off as they fill up, always in the same order."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # gradients come from the output down
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
        self._hooks = [cast(Any, each).register_post_accumulate_grad_hook(self._made) for each in self._parameters]
        self.send = False
        """Whether gradients that are made now are the last of the step."""
        self._begin()

    def _begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._under_way: list[tuple[Tensor, Any]] = []

    def _made(self, parameter: Tensor) -> None:
        if not self.send:
            return
        self._missing[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        # never a later one before an earlier one: all processes must send in one order
        while len(self._under_way) < len(self._buckets) and self._missing[len(self._under_way)] == 0:
            self._launch()

    def _launch(self) -> None:
        import torch.distributed as dist

        bucket = self._buckets[len(self._under_way)]
        flat = torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).detach().flatten() for each in bucket]
        )
        self._under_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def present(self) -> list[float]:
        """Which parameters have a gradient here; every bucket is on its way after this."""
        while len(self._under_way) < len(self._buckets):
            self._launch()
        return [float(parameter.grad is not None) for parameter in self._parameters]

    def collect(self, present: Sequence[float]) -> None:
        """Give each parameter the sum of all processes' gradients, or none where no process has any."""
        anywhere = dict(zip(self._parameters, present, strict=True))
        for bucket, (flat, work) in zip(self._buckets, self._under_way, strict=True):
            work.wait()
            for parameter, part in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                parameter.grad = part.view_as(parameter) if anywhere[parameter] else None
        self.send = False
        self._begin()

    def close(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()


class ParallelStrategy:
    """One process: the model is where it is, and nothing has to be added up."""

    sharded = False

    def __init__(self, ranks: ProcessGroup = SINGLE_PROCESS) -> None:
        self.ranks = ranks

    @property
    def portion(self) -> RankSlice:
        """The rows of every step that this process reads."""
        return RankSlice(self.ranks.rank, self.ranks.world_size)

    def shard(self, model: nn.Module, runtime: Runtime) -> None:
        """Lay a model out over the processes, before its optimizer is built."""

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """Whatever must stand by while gradients are made."""
        yield

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:  # noqa: ARG002
        """Put the question of a batch."""
        return objective(batch)

    def backward(self, total: Tensor, *, last: bool) -> None:  # noqa: ARG002
        """Add the gradients of a loss to those that are there; `last` says that a step has no more."""
        total.backward(unit_grad(total))  # type: ignore[no-untyped-call]

    def reduce_counts(self, *counted: float) -> list[float]:
        """What all processes counted; gradients are the sums of all from here on."""
        return self.ranks.sum(counted)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients as one vector."""
        return nn.utils.get_total_norm(grads)

    def loss_and_norm(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """Losses that add up to that of all batches, and the norm behind them, still on the device."""
        return torch.stack([*(total.detach().float() for total in totals), norm.float()])

    @contextmanager
    def full_model(self, model: nn.Module) -> Iterator[Any]:
        """The model as one plain network that every process can call by itself, for measuring and saving."""
        yield model

    def load_full(self, model: nn.Module, plain: nn.Module) -> None:
        """Take the weights of what `full_model` gave back into the model."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors beside the weights, such as an optimizer's, whole, in the first process; any in the others."""
        return tensors


class DataParallel(ParallelStrategy):
    """Every process has the whole model and reads its own rows; the gradients of all are added up."""

    _buckets: GradBuckets | None = None

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:
        """Gradients are added up while the rest of them are still being made."""
        self._buckets = GradBuckets(model.parameters())
        try:
            yield
        finally:
            self._buckets.close()
            self._buckets = None

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Put the question of a batch; one that is idle counts for nothing."""
        part = super().forward_loss(model, objective, batch)
        return LossSum(part.total * 0.0, 0.0) if batch.is_dummy else part

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Add gradients; in the last round, send each bucket off as soon as it is full."""
        if self._buckets:
            self._buckets.send = last
        super().backward(total, last=last)

    def reduce_counts(self, *counted: float) -> list[float]:
        """Also which parameters have a gradient anywhere: one that has none is not moved, as in one process."""
        assert self._buckets is not None
        sums = self.ranks.sum([*counted, *self._buckets.present()])
        self._buckets.collect(sums[len(counted) :])
        return sums[: len(counted)]

    def loss_and_norm(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """The loss of all batches of all processes, and the norm."""
        import torch.distributed as dist

        total = torch.stack([total.detach().float() for total in totals]).sum()
        dist.all_reduce(total)
        return torch.stack([total, norm.float()])


class FullyShardedParallel(DataParallel):
    """Every process has a part of every weight (torch's `fully_shard`), gathers a layer when it comes to it, and lets go."""

    sharded = True

    def shard(self, model: nn.Module, runtime: Runtime) -> None:
        """Cut the weights: a group a layer, and one for embedding and head. Layers travel in bf16 where products are bf16."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # about keys and values, which are views, and which nobody changes
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self._device = runtime.device
        self._skeleton = copy.deepcopy(model).to("meta")
        self._skeleton.backbone.compiled = False  # type: ignore[union-attr]
        mesh = init_device_mesh(runtime.device.type, (self.ranks.world_size,))
        # sums stay in fp32, and so do hidden states between layers, as in one process
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if runtime.bf16 else None, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for layer in model.backbone.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            layer.owes = False  # weights are gone when a layer is done, also a bias that the next one would add
        fully_shard(model, mesh=mesh)

    @contextmanager
    def sync_grads(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """torch adds up, in its own time."""
        yield

    def forward_loss(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Put the question through the model itself, which gathers what the question needs."""

        def answer() -> tuple[Tensor, float]:
            part = super(FullyShardedParallel, self).forward_loss(model, objective, batch)
            return part.total, part.count

        return LossSum(*model(answer))

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Where torch makes a mean over processes, a sum is wanted."""
        ParallelStrategy.backward(self, total * self.ranks.world_size, last=last)

    def reduce_counts(self, *counted: float) -> list[float]:
        """The gradients are sums already."""
        return self.ranks.sum(counted)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """The norm over the parts of all processes."""
        import torch.distributed as dist

        squared = nn.utils.get_total_norm(grads).square()
        dist.all_reduce(squared)
        return squared.sqrt()

    @contextmanager
    def full_model(self, model: nn.Module) -> Iterator[Any]:
        """A plain network with the weights gathered, for the length of a block."""
        plain = copy.deepcopy(self._skeleton).to_empty(device=self._device)
        with torch.no_grad():
            for own, part in zip(plain.parameters(), model.parameters(), strict=True):
                own.copy_(full_tensor(part))
                own.requires_grad_(part.requires_grad)
        yield plain

    @torch.no_grad()
    def load_full(self, model: nn.Module, plain: nn.Module) -> None:
        """Every process keeps its part of each weight."""
        for part, own in zip(model.parameters(), plain.parameters(), strict=True):
            local_tensor(part).copy_(local_tensor(shard_like(own, part)))

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """One after the other, so that no more than one is whole on a device."""
        kept = {}
        for name, tensor in tensors.items():
            whole = full_tensor(tensor)
            if self.ranks.is_main:
                kept[name] = whole.cpu()
        return kept


SINGLE = ParallelStrategy()
"""One process."""


def strategy_for(config: RuntimeConfig, ranks: ProcessGroup) -> ParallelStrategy:
    """How the processes at hand train, by the settings."""
    if ranks.world_size == 1:
        return SINGLE
    return FullyShardedParallel(ranks) if config.parallel == "fsdp" else DataParallel(ranks)
