"""Ways to train one model: alone, as copies that add up their gradients (ddp), or in shards (fsdp).

The loop asks its way five things: to read a batch, to go back through it, to add up what was counted, for the norm of all
gradients, and for the figures of a step. Whatever measures or saves asks for the whole model.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headstart.config import RuntimeConfig
from headstart.data.batches import Batch
from headstart.data.portions import Portion
from headstart.runtime import Runtime
from headstart.train.buckets import Buckets
from headstart.train.local import full, like, local
from headstart.train.losses import unit
from headstart.train.objectives import LossSum, Objective
from headstart.train.ranks import ALONE, Ranks


class Way:
    """One process: the model is where it is, and nothing has to be added up."""

    sharded = False

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks

    @property
    def portion(self) -> Portion:
        """The rows of every step that this process reads."""
        return Portion(self.ranks.rank, self.ranks.world)

    def spread(self, model: nn.Module, runtime: Runtime) -> None:
        """Lay a model out over the processes, before its optimizer is built."""

    @contextmanager
    def adding(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """Whatever must stand by while gradients are made."""
        yield

    def ask(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:  # noqa: ARG002
        """Put the question of a batch."""
        return objective(batch)

    def backward(self, total: Tensor, *, last: bool) -> None:  # noqa: ARG002
        """Add the gradients of a loss to those that are there; `last` says that a step has no more."""
        total.backward(unit(total))  # type: ignore[no-untyped-call]

    def settle(self, *counted: float) -> list[float]:
        """What all processes counted; gradients are the sums of all from here on."""
        return self.ranks.add(counted)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients as one vector."""
        return nn.utils.get_total_norm(grads)

    def figures(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """Losses that add up to that of all batches, and the norm behind them, still on the device."""
        return torch.stack([*(total.detach().float() for total in totals), norm.float()])

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[Any]:
        """The model as one plain network that every process can call by itself, for measuring and saving."""
        yield model

    def put(self, model: nn.Module, plain: nn.Module) -> None:
        """Take the weights of what `whole` gave back into the model."""

    def gathered(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors beside the weights, such as an optimizer's, whole, in the first process; any in the others."""
        return tensors


class Copies(Way):
    """Every process has the whole model and reads its own rows; the gradients of all are added up."""

    _buckets: Buckets | None = None

    @contextmanager
    def adding(self, model: nn.Module) -> Iterator[None]:
        """Gradients are added up while the rest of them are still being made."""
        self._buckets = Buckets(model.parameters())
        try:
            yield
        finally:
            self._buckets.close()
            self._buckets = None

    def ask(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Put the question of a batch; one that is idle counts for nothing."""
        part = super().ask(model, objective, batch)
        return LossSum(part.total * 0.0, 0.0) if batch.idle else part

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Add gradients; in the last round, send each bucket off as soon as it is full."""
        if self._buckets:
            self._buckets.send = last
        super().backward(total, last=last)

    def settle(self, *counted: float) -> list[float]:
        """Also which parameters have a gradient anywhere: one that has none is not moved, as in one process."""
        assert self._buckets is not None
        sums = self.ranks.add([*counted, *self._buckets.present()])
        self._buckets.collect(sums[len(counted) :])
        return sums[: len(counted)]

    def figures(self, totals: Sequence[Tensor], norm: Tensor) -> Tensor:
        """The loss of all batches of all processes, and the norm."""
        import torch.distributed as dist

        total = torch.stack([total.detach().float() for total in totals]).sum()
        dist.all_reduce(total)
        return torch.stack([total, norm.float()])


class Shards(Copies):
    """Every process has a part of every weight (torch's `fully_shard`), gathers a layer when it comes to it, and lets go."""

    sharded = True

    def spread(self, model: nn.Module, runtime: Runtime) -> None:
        """Cut the weights: a group a layer, and one for embedding and head. Layers travel in bf16 where products are bf16."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # about keys and values, which are views, and which nobody changes
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self._device = runtime.device
        self._skeleton = copy.deepcopy(model).to("meta")
        self._skeleton.backbone.compiled = False  # type: ignore[union-attr]
        mesh = init_device_mesh(runtime.device.type, (self.ranks.world,))
        # sums stay in fp32, and so do hidden states between layers, as in one process
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if runtime.bf16 else None, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for layer in model.backbone.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            layer.owes = False  # weights are gone when a layer is done, also a bias that the next one would add
        fully_shard(model, mesh=mesh)

    @contextmanager
    def adding(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002
        """torch adds up, in its own time."""
        yield

    def ask(self, model: nn.Module, objective: Objective, batch: Batch) -> LossSum:
        """Put the question through the model itself, which gathers what the question needs."""

        def answer() -> tuple[Tensor, float]:
            part = super(Shards, self).ask(model, objective, batch)
            return part.total, part.count

        return LossSum(*model(answer))

    def backward(self, total: Tensor, *, last: bool) -> None:
        """Where torch makes a mean over processes, a sum is wanted."""
        Way.backward(self, total * self.ranks.world, last=last)

    def settle(self, *counted: float) -> list[float]:
        """The gradients are sums already."""
        return self.ranks.add(counted)

    def norm(self, grads: Sequence[Tensor]) -> Tensor:
        """The norm over the parts of all processes."""
        import torch.distributed as dist

        squared = nn.utils.get_total_norm(grads).square()
        dist.all_reduce(squared)
        return squared.sqrt()

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[Any]:
        """A plain network with the weights gathered, for the length of a block."""
        plain = copy.deepcopy(self._skeleton).to_empty(device=self._device)
        with torch.no_grad():
            for own, part in zip(plain.parameters(), model.parameters(), strict=True):
                own.copy_(full(part))
                own.requires_grad_(part.requires_grad)
        yield plain

    @torch.no_grad()
    def put(self, model: nn.Module, plain: nn.Module) -> None:
        """Every process keeps its part of each weight."""
        for part, own in zip(model.parameters(), plain.parameters(), strict=True):
            local(part).copy_(local(like(own, part)))

    def gathered(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """One after the other, so that no more than one is whole on a device."""
        kept = {}
        for name, tensor in tensors.items():
            whole = full(tensor)
            if self.ranks.first:
                kept[name] = whole.cpu()
        return kept


ONE = Way()
"""One process."""


def way_of(config: RuntimeConfig, ranks: Ranks) -> Way:
    """How the processes at hand train, by the settings."""
    if ranks.world == 1:
        return ONE
    return Shards(ranks) if config.parallel == "fsdp" else Copies(ranks)
