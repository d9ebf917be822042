"""Which weights move, how fast, and what an optimizer remembers of them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from headstart.config import OptimConfig, TransferConfig
from headstart.errors import StoreError
from headstart.model.heads import Model


def level(name: str, depth: int) -> int:
    """How far a parameter is from the output: the head 0, the last layer 1, the first layer `depth`, the embedding last.

    >>> [level(name, 4) for name in ("head.linear.bias", "backbone.layers.3.up.weight", "backbone.embedding.weight")]
    [0, 1, 5]
    """
    parts = name.split(".")
    if parts[0] == "head":
        return 0
    return depth - int(parts[2]) if parts[1] == "layers" else depth + 1


def build_optimizer(model: Model, config: OptimConfig, layer_decay: float = 1.0) -> Optimizer:  # type: ignore[type-arg]
    """Adam over groups of like rate and decay. Each group keeps its own `peak_lr`, which the schedule scales."""
    depth = model.backbone.config.depth
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = config.weight_decay > 0 and parameter.ndim > 1
        groups.setdefault((level(name, depth), decays), []).append(parameter)
    listed = [
        {
            "params": parameters,
            "peak_lr": config.lr * layer_decay**height,
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (height, decays), parameters in groups.items()
    ]
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(
        listed, lr=config.lr, betas=(0.9, config.beta2), fused=model.backbone.embedding.weight.device.type != "mps"
    )


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
        parameter.requires_grad_(level(name, depth) <= highest)
        moving += parameter.numel() if parameter.requires_grad else 0
    return moving


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """What the optimizer remembers, by parameter name: `backbone.embedding.weight/exp_avg` and so on."""
    return {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out; names that fit no parameter are refused."""
    parameters = dict(model.named_parameters())
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
        optimizer.state[parameter][item] = tensor.to(parameter.device, torch.float32)
