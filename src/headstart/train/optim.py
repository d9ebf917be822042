"""Which weights move, how fast, and what an optimizer remembers of them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from headstart.config import OptimConfig, TransferConfig
from headstart.errors import StoreError
from headstart.model.heads import Model
from headstart.train.average import AVERAGE, Average
from headstart.train.local import like
from headstart.train.muon import Muon


def level(name: str, depth: int) -> int:
    """How far a parameter is from the output: the head 0, the last layer 1, the first layer `depth`, the embedding last.

    >>> [level(name, 4) for name in ("head.linear.bias", "backbone.layers.3.up.weight", "backbone.embedding.weight")]
    [0, 1, 5]
    >>> level("backbone.norm.weight", 4)  # the last norm goes with the last layer
    1
    """
    parts = name.split(".")
    if parts[0] == "head":
        return 0
    if parts[1] in ("embedding", "positions", "first_norm"):
        return depth + 1
    return depth - int(parts[2]) if parts[1] == "layers" else 1


class Together(Optimizer):
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
        peak, decays = config.lr * layer_decay ** level(name, depth), config.weight_decay > 0 and parameter.ndim > 1
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
    return Together(Muon(listed(muon), lr=config.lr), adam)


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


def optimizer_tensors(optimizer: Optimizer, model: nn.Module, average: Average | None = None) -> dict[str, Tensor]:
    """What the optimizer remembers, by parameter name: `backbone.embedding.weight/exp_avg` and so on; and the average."""
    moments = {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for part in _parts(optimizer)
        for key, value in part.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    return moments | (average.tensors() if average else {})


def restore_optimizer(
    optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor], average: Average | None = None
) -> None:
    """Put back what `optimizer_tensors` took out; names that fit no parameter are refused."""
    parameters = dict(model.named_parameters())
    owners = {id(p): part for part in _parts(optimizer) for group in part.param_groups for p in group["params"]}
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
        if item == AVERAGE:
            continue
        owners[id(parameter)].state[parameter][item] = like(tensor.to(parameter.device, torch.float32), parameter)
    if average and saved:
        average.take_back(saved)


def _parts(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.parts if isinstance(optimizer, Together) else (optimizer,)
