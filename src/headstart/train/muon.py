"""Muon for the matrices of the layers: momentum whose directions all get the same weight.

The rule is that of `torch.optim.Muon` with rates matched to AdamW's; here matrices of one shape go through it together,
because fifty small products one after the other leave a GPU waiting for its orders.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headstart.train.local import is_part, joined_like, like, local

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration that Muon's author tuned to reach all singular values near 1 in five rounds."""
_ROUNDS = 5
_AT_A_TIME = 8
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
        grads = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = _orthogonal_all(torch._foreach_lerp(grads, buffers, momentum), parameters)
        # so that an update is as large as AdamW's usually is, and one rate serves both
        size = 0.2 * math.sqrt(max(parameters[0].shape))
        rates: dict[tuple[float, float], tuple[list[Tensor], list[Tensor]]] = {}
        for (parameter, group), update in zip(members, updates, strict=True):
            moved, by = rates.setdefault((group["lr"], group["weight_decay"]), ([], []))
            moved.append(local(parameter))
            by.append(update)
        for (lr, decay), (moved, by) in rates.items():
            if decay:
                torch._foreach_mul_(moved, 1 - lr * decay)
            torch._foreach_add_(moved, by, alpha=-lr * size)


def _orthogonal_all(momenta: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """The updates of parameters of one shape. Where processes hold parts, a few matrices at a time are put together."""
    if not is_part(parameters[0]):
        return orthogonal(torch.stack(list(momenta))).unbind()
    updates: list[Tensor] = []
    for start in range(0, len(parameters), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        whole = [joined_like(part, parameter) for part, parameter in zip(momenta[some], parameters[some], strict=True)]
        parts = zip(orthogonal(torch.stack(whole)).unbind(), parameters[some], strict=True)
        updates += [local(like(update, parameter)) for update, parameter in parts]
    return updates


def orthogonal(stack: Tensor) -> Tensor:
    """Each matrix of a stack with its singular values moved near 1, by products alone; bf16 on a GPU, where it is enough."""
    x = stack.bfloat16() if stack.is_cuda else stack
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    first, second, third = _QUINTIC
    for _ in range(_ROUNDS):
        squares = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squares, squares, squares, beta=second, alpha=third), x, beta=first)
    return (x.mT if tall else x).to(stack.dtype)
