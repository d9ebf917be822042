"""A running mean of the weights: the same network with the noise of its last steps taken out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headstart.train.parallel import local_tensor, shard_like

_BEGINNING, _SHORT = 200, 10
"""No mean reaches back into the first so many steps, in which weights still move far; of a shorter run the last few make it."""
EMA_PREFIX = "average"
"""The name under which a checkpoint keeps a parameter's mean, beside what the optimizer remembers of it."""


class EMA:
    """The mean of a model's weights over about the last 1 / (1 - decay) steps, fewer in a short run.

    While fewer steps were made than that, it is the mean of all of them.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters, self._decay = list(model.parameters()), decay
        self.means = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int, steps: int) -> None:
        """Take in the weights after a step of so many, counted from 1."""
        share = max(1 - self._decay, 1 / step, 1 / max(_SHORT, steps - _BEGINNING))
        weights = [local_tensor(parameter.detach()) for parameter in self._parameters]
        torch._foreach_lerp_([local_tensor(mean) for mean in self.means.values()], weights, share)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {f"{name}/{EMA_PREFIX}": mean for name, mean in self.means.items()}

    def take_back(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` gave."""
        for name, mean in self.means.items():
            local_tensor(mean).copy_(local_tensor(shard_like(saved[f"{name}/{EMA_PREFIX}"], mean)))


@contextmanager
def ema_weights(model: nn.Module, ema: EMA | None) -> Iterator[None]:
    """The model with its mean weights inside the block, and with its own again afterwards; unchanged without an average."""
    if ema is None:
        yield
        return
    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _copy_weights(model, ema.means)
    try:
        yield
    finally:
        _copy_weights(model, own)


@torch.no_grad()
def _copy_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        local_tensor(parameter).copy_(local_tensor(weights[name]))
