"""Parameter groups, Adam(W), Muon, learning-rate schedules, freezing, and the optimizer state of a checkpoint."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from headstart.config.schema import FinetuneLoop, OptimConfig, TransferConfig
from headstart.errors import StoreError
from headstart.kernels.dispatch import newton_schulz_dtype, supports_fused_adam
from headstart.model.heads import Model
from headstart.train.ema import EMA, EMA_PREFIX
from headstart.train.parallel import is_sharded, local_tensor, reshard_like, shard_like


def lr_factor(step: float, steps: int, config: OptimConfig) -> float:
    """Return the learning rate of a step, counted from 0, as a fraction of its peak: linear warm-up, then the schedule.

    A step between two others (`Plan.position`) has a rate between theirs.

    >>> config = OptimConfig(warmup=1 / 3, schedule="linear")
    >>> [round(lr_factor(step, 6, config), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup_steps = round(steps * config.warmup)
    if step < warmup_steps:
        return min(1.0, (step + 1) / warmup_steps)
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    if config.schedule == "linear":
        return 1 - done
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "wsd":
        return min(1.0, (steps - step) / max(1, round(steps * config.cooldown)))
    return 1.0


def epoch_and_total_steps(rows: int, loop: FinetuneLoop, labels: int = 0) -> tuple[int, int]:
    """Return the steps of an epoch and of the full run over `rows` labelled rows with so many labels.

    >>> epoch_and_total_steps(1600, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))
    (100, 600)
    >>> epoch_and_total_steps(50, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))  # 13 passes per epoch
    (52, 312)
    >>> epoch_and_total_steps(25000, FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000))  # 3 epochs
    (1563, 4689)
    >>> epoch_and_total_steps(750, FinetuneLoop(batch_size=16, epochs=10, min_steps_per_label=8), labels=150)
    (141, 1410)
    """
    min_steps = max(loop.min_steps, loop.min_steps_per_label * labels)
    one_pass = -(-rows // (loop.batch_size * loop.accumulate))
    epoch = one_pass * max(1, -(-min_steps // (one_pass * loop.epochs)))
    epochs = loop.epochs if loop.max_steps is None else max(1, min(loop.epochs, loop.max_steps // epoch))
    return epoch, epoch * epochs


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration, tuned by Muon's author to move singular values near 1 in five rounds."""
_NEWTON_SCHULZ_STEPS = 5
_GATHER_BATCH = 8
"""Maximum number of matrices that are gathered together from shards, which bounds memory."""


class Muon(Optimizer):
    """Muon for the matrices of the layers: decoupled weight decay, Nesterov momentum, orthogonalized updates.

    The rule is that of `torch.optim.Muon` with learning rates matched to AdamW's. Matrices of one shape are updated
    together, because fifty small products in sequence leave a GPU waiting for kernel launches.
    """

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95, *, bf16: bool = False
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "momentum": momentum})
        self._bf16 = bf16

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every matrix that has a gradient."""
        by_shape: dict[torch.Size, list[tuple[Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append((parameter, group))
        for members in by_shape.values():
            self._update(members)

    def _update(self, members: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Update parameters of one shape, given with their groups."""
        parameters = [parameter for parameter, _ in members]
        momentum = members[0][1]["momentum"]
        grads = [local_tensor(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [local_tensor(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = _orthogonalize_sharded(torch._foreach_lerp(grads, buffers, momentum), parameters, bf16=self._bf16)
        # makes an update as large as AdamW's usually is, so that one learning rate serves both
        scale = 0.2 * math.sqrt(max(parameters[0].shape))
        by_rate: dict[tuple[float, float], tuple[list[Tensor], list[Tensor]]] = {}
        for (parameter, group), update in zip(members, updates, strict=True):
            weights, deltas = by_rate.setdefault((group["lr"], group["weight_decay"]), ([], []))
            weights.append(local_tensor(parameter))
            deltas.append(update)
        for (lr, weight_decay), (weights, deltas) in by_rate.items():
            if weight_decay:
                torch._foreach_mul_(weights, 1 - lr * weight_decay)
            torch._foreach_add_(weights, deltas, alpha=-lr * scale)


def _orthogonalize_sharded(momenta: Sequence[Tensor], parameters: Sequence[Tensor], *, bf16: bool) -> Sequence[Tensor]:
    """Return the updates of parameters of one shape; sharded matrices are gathered a few at a time."""
    if not is_sharded(parameters[0]):
        return orthogonalize(torch.stack(list(momenta)), bf16=bf16).unbind()
    updates: list[Tensor] = []
    for start in range(0, len(parameters), _GATHER_BATCH):
        chunk = slice(start, start + _GATHER_BATCH)
        shards = zip(momenta[chunk], parameters[chunk], strict=True)
        full = torch.stack([reshard_like(shard, parameter) for shard, parameter in shards])
        full_updates = zip(orthogonalize(full, bf16=bf16).unbind(), parameters[chunk], strict=True)
        updates += [local_tensor(shard_like(update, parameter)) for update, parameter in full_updates]
    return updates


def orthogonalize(stack: Tensor, *, bf16: bool = False) -> Tensor:
    """Move the singular values of each matrix near 1 by matrix products alone.

    Args:
        bf16: the run trains in bf16; products are then in bf16 on a CPU too. On CUDA they always are, since that suffices.
    """
    x = stack.to(newton_schulz_dtype(stack, bf16=bf16))
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if transposed else x).to(stack.dtype)


def layer_level(name: str, depth: int) -> int:
    """Return the depth of a parameter from the output: head 0, last layer 1, first layer `depth`, embedding `depth + 1`.

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
    """Several optimizers that share a model's parameters and step as one."""

    def __init__(self, *optimizers: Optimizer) -> None:  # they hold all state: the base class is only for its type
        self.optimizers = optimizers
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Step every optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset every gradient."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def build_optimizer(
    model: Model,  # type: ignore[type-arg]
    config: OptimConfig,
    layer_decay: float = 1.0,
    head_lr_multiplier: float = 1.0,
    *,
    bf16: bool = False,
) -> Optimizer:
    """Build an optimizer with one group per learning rate and decay; a group has its own `max_lr` for the schedule.

    Args:
        bf16: the run trains in bf16, and so do Muon's matrix products.
    """
    muon: dict[tuple[float, bool], list[nn.Parameter]] = {}
    adam: dict[tuple[float, bool], list[nn.Parameter]] = {}
    depth = model.backbone.config.depth
    for name, parameter in model.named_parameters():
        level = layer_level(name, depth)
        max_lr = config.lr * (layer_decay**level if level else head_lr_multiplier)
        decays = config.weight_decay > 0 and parameter.ndim > 1
        is_layer_matrix = parameter.ndim == 2 and name.startswith("backbone.layers.")
        groups = muon if config.optimizer == "muon" and is_layer_matrix else adam
        groups.setdefault((max_lr, decays), []).append(parameter)

    def param_groups(groups: dict[tuple[float, bool], list[nn.Parameter]]) -> list[dict[str, object]]:
        return [
            {
                "params": parameters,
                "max_lr": max_lr,
                "weight_decay": config.weight_decay if decays else 0.0,
            }
            for (max_lr, decays), parameters in groups.items()
        ]

    adam_class = Adam if config.optimizer == "adam" else AdamW
    fused = supports_fused_adam(model.backbone.embedding.weight.device)
    adam_optimizer = adam_class(param_groups(adam), lr=config.lr, betas=(0.9, config.beta2), fused=fused)
    optimizers = [Muon(param_groups(muon), lr=config.lr, bf16=bf16)] if muon else []
    for optimizer in (*optimizers, adam_optimizer):
        optimizer.register_step_post_hook(_note_update)
    return ChainedOptimizer(*optimizers, adam_optimizer) if optimizers else adam_optimizer


def _note_update(optimizer: Optimizer, *_: object) -> None:
    """Increment the version of each parameter, which fused optimizers do not do; cached copies of the weights depend on
    it.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    torch.autograd.graph.increment_version([local_tensor(p) for p in parameters if p.grad is not None])


def set_trainable(model: Model, transfer: TransferConfig, epoch: int) -> int:  # type: ignore[type-arg]
    """Set `requires_grad` for an epoch, counted from 0; returns the number of trainable parameters."""
    depth = model.backbone.config.depth
    max_level = depth + 1
    if transfer.freeze:
        max_level = 0
    elif transfer.unfreeze_every:
        max_level = epoch // transfer.unfreeze_every
    num_trainable = 0
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layer_level(name, depth) <= max_level)
        num_trainable += parameter.numel() if parameter.requires_grad else 0
    return num_trainable


def optimizer_tensors(optimizer: Optimizer, model: nn.Module, ema: EMA | None = None) -> dict[str, Tensor]:
    """Return the optimizer's state by parameter name, such as `backbone.embedding.weight/exp_avg`, and the EMA."""
    state = {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for single in _optimizers(optimizer)
        for key, value in single.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    return state | (ema.tensors() if ema else {})


def restore_optimizer(
    optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor], ema: EMA | None = None
) -> None:
    """Restore the state that `optimizer_tensors` returned; raises StoreError for a name or shape that does not match the
    model.
    """
    parameters = dict(model.named_parameters())
    owners = {
        id(parameter): single
        for single in _optimizers(optimizer)
        for group in single.param_groups
        for parameter in group["params"]
    }
    for key, tensor in saved.items():
        name, _, state_key = key.rpartition("/")
        if name not in parameters:
            raise StoreError(f"the saved optimizer has a parameter {name!r} that this model does not have")
        parameter = parameters[name]
        # a fused optimizer's step count is a scalar; moments have the shape of their parameter
        if tensor.ndim and tensor.shape != parameter.shape:
            raise StoreError(
                f"the saved optimizer's {key!r} has shape {tuple(tensor.shape)}, not {tuple(parameter.shape)}"
            )
        if state_key == EMA_PREFIX:
            continue
        on_device = tensor.to(parameter.device, torch.float32)
        owners[id(parameter)].state[parameter][state_key] = shard_like(on_device, parameter)
    if ema and saved:
        ema.load_tensors(saved)


def _optimizers(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.optimizers if isinstance(optimizer, ChainedOptimizer) else (optimizer,)
