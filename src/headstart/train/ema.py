"""Exponential moving average (EMA) of the weights, which removes the noise of the last steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headstart.train.parallel import local_tensor, shard_like

_SKIPPED_STEPS, _MIN_WINDOW = 200, 10
"""The average does not reach back into the first 200 steps, in which weights still move far; a shorter run averages 10."""
EMA_PREFIX = "average"
"""The key under which a checkpoint stores the average of a parameter, beside the optimizer's state."""


class EMA:
    """The mean of a model's weights over about the last 1 / (1 - decay) steps, or fewer in a short run.

    As long as fewer steps than that were made, it is the mean of all of them.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters, self._decay = list(model.parameters()), decay
        self.means = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int, steps: int) -> None:
        """Add the weights after step `step`, counted from 1, of a run of `steps`."""
        weight = max(1 - self._decay, 1 / step, 1 / max(_MIN_WINDOW, steps - _SKIPPED_STEPS))
        parameters = [local_tensor(parameter.detach()) for parameter in self._parameters]
        torch._foreach_lerp_([local_tensor(mean) for mean in self.means.values()], parameters, weight)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages under their checkpoint keys."""
        return {f"{name}/{EMA_PREFIX}": mean for name, mean in self.means.items()}

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        """Restore the averages that `tensors` returned."""
        for name, mean in self.means.items():
            local_tensor(mean).copy_(local_tensor(shard_like(saved[f"{name}/{EMA_PREFIX}"], mean)))


@contextmanager
def ema_weights(model: nn.Module, ema: EMA | None) -> Iterator[None]:
    """Use the averaged weights inside the block and restore the trained ones afterwards; without an EMA, do nothing."""
    if ema is None:
        yield
        return
    trained = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _copy_weights(model, ema.means)
    try:
        yield
    finally:
        _copy_weights(model, trained)


@torch.no_grad()
def _copy_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        local_tensor(parameter).copy_(local_tensor(weights[name]))
