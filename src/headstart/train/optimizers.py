"""Parameter groups, Adam(W), Muon, learning-rate schedules and freezing.

The learning rate over the life of a run.

Muon for the matrices of the layers: momentum whose directions all get the same weight.

The rule is that of `torch.optim.Muon` with rates matched to AdamW's; here matrices of one shape go through it together,
because fifty small products one after the other leave a GPU waiting for its orders.

Which weights move, how fast, and what an optimizer remembers of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from headstart.config.schema import FinetuneLoop, OptimConfig, TransferConfig
from headstart.errors import StoreError
from headstart.model.heads import Model
from headstart.train.ema import EMA, EMA_PREFIX
from headstart.train.parallel import is_sharded, local_tensor, reshard_like, shard_like


def lr_factor(step: int, steps: int, config: OptimConfig) -> float:
    """The share of the peak rate at a step, counted from 0: a linear rise over the warm-up, then the schedule.

    >>> config = OptimConfig(warmup=1 / 3, schedule="linear")
    >>> [round(lr_factor(step, 6, config), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rise = round(steps * config.warmup)
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    if config.schedule == "linear":
        return 1 - done
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "wsd":
        return min(1.0, (steps - step) / max(1, round(steps * config.cooldown)))
    return 1.0


def epoch_and_total_steps(rows: int, loop: FinetuneLoop) -> tuple[int, int]:
    """The steps of an epoch and of the whole run over `rows` labelled rows.

    >>> epoch_and_total_steps(1600, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))
    (100, 600)
    >>> epoch_and_total_steps(50, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))  # 13 passes an epoch
    (52, 312)
    >>> epoch_and_total_steps(25000, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))  # 3 epochs
    (1563, 4689)
    """
    one_pass = -(-rows // (loop.batch_size * loop.accumulate))
    epoch = one_pass * max(1, -(-loop.min_steps // (one_pass * loop.epochs)))
    epochs = loop.epochs if loop.max_steps is None else max(1, min(loop.epochs, loop.max_steps // epoch))
    return epoch, epoch * epochs


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration that Muon's author tuned to reach all singular values near 1 in five rounds."""
_NEWTON_SCHULZ_STEPS = 5
_GATHER_BATCH = 8
"""Matrices put together at once where processes hold parts of them: whole ones take memory that the parts were to save."""


class Muon(Optimizer):
    """Decoupled weight decay, Nesterov momentum, orthogonalised updates; one matrix a parameter."""

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Move every matrix that has a gradient."""
        alike: dict[torch.Size, list[tuple[Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append((parameter, group))
        for members in alike.values():
            self._move(members)

    def _move(self, members: list[tuple[Tensor, dict[str, Any]]]) -> None:
        parameters = [parameter for parameter, _ in members]
        momentum = members[0][1]["momentum"]
        grads = [local_tensor(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [local_tensor(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = _orthogonalize_sharded(torch._foreach_lerp(grads, buffers, momentum), parameters)
        # so that an update is as large as AdamW's usually is, and one rate serves both
        size = 0.2 * math.sqrt(max(parameters[0].shape))
        rates: dict[tuple[float, float], tuple[list[Tensor], list[Tensor]]] = {}
        for (parameter, group), update in zip(members, updates, strict=True):
            moved, by = rates.setdefault((group["lr"], group["weight_decay"]), ([], []))
            moved.append(local_tensor(parameter))
            by.append(update)
        for (lr, decay), (moved, by) in rates.items():
            if decay:
                torch._foreach_mul_(moved, 1 - lr * decay)
            torch._foreach_add_(moved, by, alpha=-lr * size)


def _orthogonalize_sharded(momenta: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """The updates of parameters of one shape. Where processes hold parts, a few matrices at a time are put together."""
    if not is_sharded(parameters[0]):
        return orthogonalize(torch.stack(list(momenta))).unbind()
    updates: list[Tensor] = []
    for start in range(0, len(parameters), _GATHER_BATCH):
        some = slice(start, start + _GATHER_BATCH)
        whole = [reshard_like(part, parameter) for part, parameter in zip(momenta[some], parameters[some], strict=True)]
        parts = zip(orthogonalize(torch.stack(whole)).unbind(), parameters[some], strict=True)
        updates += [local_tensor(shard_like(update, parameter)) for update, parameter in parts]
    return updates


def orthogonalize(stack: Tensor) -> Tensor:
    """Each matrix of a stack with its singular values moved near 1, by products alone; bf16 on a GPU, where it is enough."""
    x = stack.bfloat16() if stack.is_cuda else stack
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    first, second, third = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        squares = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squares, squares, squares, beta=second, alpha=third), x, beta=first)
    return (x.mT if tall else x).to(stack.dtype)


def layer_level(name: str, depth: int) -> int:
    """How far a parameter is from the output: the head 0, the last layer 1, the first layer `depth`, the embedding last.

    >>> [layer_level(name, 4) for name in ("head.linear.bias", "backbone.layers.3.up.weight", "backbone.embedding.weight")]
    [0, 1, 5]
    >>> layer_level("backbone.norm.weight", 4)  # the last norm goes with the last layer
    1
    """
    parts = name.split(".")
    if parts[0] == "head":
        return 0
    if parts[1] in ("embedding", "positions", "embedding_norm"):
        return depth + 1
    return depth - int(parts[2]) if parts[1] == "layers" else 1


class ChainedOptimizer(Optimizer):
    """Two optimizers that share a model's parameters and step as one."""

    def __init__(self, *parts: Optimizer) -> None:  # the parts hold everything: the base class is for its type alone
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step of each."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of every gradient."""
        for part in self.parts:
            part.zero_grad(set_to_none)


def build_optimizer(model: Model, config: OptimConfig, layer_decay: float = 1.0) -> Optimizer:  # type: ignore[type-arg]
    """An optimizer over groups of like rate and decay. Each group keeps its own `peak_lr`, which the schedule scales."""
    muon: dict[tuple[float, bool], list[nn.Parameter]] = {}
    rest: dict[tuple[float, bool], list[nn.Parameter]] = {}
    depth = model.backbone.config.depth
    for name, parameter in model.named_parameters():
        peak, decays = (
            config.lr * layer_decay ** layer_level(name, depth),
            config.weight_decay > 0 and parameter.ndim > 1,
        )
        inner = parameter.ndim == 2 and name.startswith("backbone.layers.")
        groups = muon if config.optimizer == "muon" and inner else rest
        groups.setdefault((peak, decays), []).append(parameter)

    def listed(groups: dict[tuple[float, bool], list[nn.Parameter]]) -> list[dict[str, object]]:
        return [
            {
                "params": parameters,
                "peak_lr": peak,
                "weight_decay": config.weight_decay if decays else 0.0,
            }
            for (peak, decays), parameters in groups.items()
        ]

    kind = Adam if config.optimizer == "adam" else AdamW
    fused = model.backbone.embedding.weight.device.type != "mps"
    adam = kind(listed(rest), lr=config.lr, betas=(0.9, config.beta2), fused=fused)
    if not muon:
        return adam
    return ChainedOptimizer(Muon(listed(muon), lr=config.lr), adam)


def set_trainable(model: Model, transfer: TransferConfig, epoch: int) -> int:  # type: ignore[type-arg]
    """Freeze what should not move in this epoch (counted from 0); returns how many parameters move."""
    depth = model.backbone.config.depth
    highest = depth + 1
    if transfer.freeze:
        highest = 0
    elif transfer.unfreeze_every:
        highest = epoch // transfer.unfreeze_every
    moving = 0
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layer_level(name, depth) <= highest)
        moving += parameter.numel() if parameter.requires_grad else 0
    return moving


def optimizer_tensors(optimizer: Optimizer, model: nn.Module, ema: EMA | None = None) -> dict[str, Tensor]:
    """What the optimizer remembers, by parameter name: `backbone.embedding.weight/exp_avg` and so on; and the average."""
    moments = {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for part in _optimizers(optimizer)
        for key, value in part.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    return moments | (ema.tensors() if ema else {})


def restore_optimizer(
    optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor], ema: EMA | None = None
) -> None:
    """Put back what `optimizer_tensors` took out; names that fit no parameter are refused."""
    parameters = dict(model.named_parameters())
    owners = {id(p): part for part in _optimizers(optimizer) for group in part.param_groups for p in group["params"]}
    for key, tensor in saved.items():
        name, _, item = key.rpartition("/")
        if name not in parameters:
            raise StoreError(f"the saved optimizer knows a parameter {name!r} that this model has not")
        parameter = parameters[name]
        # the step count of a fused optimizer is a scalar beside its parameter; moments have its shape
        if tensor.ndim and tensor.shape != parameter.shape:
            raise StoreError(
                f"the saved optimizer's {key!r} has shape {tuple(tensor.shape)}, not {tuple(parameter.shape)}"
            )
        if item == EMA_PREFIX:
            continue
        owners[id(parameter)].state[parameter][item] = shard_like(tensor.to(parameter.device, torch.float32), parameter)
    if ema and saved:
        ema.take_back(saved)


def _optimizers(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.parts if isinstance(optimizer, ChainedOptimizer) else (optimizer,)
