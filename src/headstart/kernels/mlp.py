"""Fused MLP: linear, GELU, linear, with a hand-written backward."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.dispatch import autocast_dtype, has_kernels

_ALIGNMENT = 8
"""Numbers that a row must be a multiple of, for the unit that loads tiles: 16 bytes."""


def supports_fused_mlp(device: torch.device, width: int, feedforward: int) -> bool:
    """Whether a GPU makes such products, of rows of these lengths."""
    if width % _ALIGNMENT or feedforward % _ALIGNMENT or not has_kernels(device):
        return False
    from headstart.kernels.triton.mlp import fits

    return fits(device)


def mlp(x: Tensor, up: nn.Linear, down: nn.Linear, *, tanh: bool, owes: bool, inside: bool) -> Tensor:
    """Up, GELU, down.

    Args:
        owes: the last bias is left out, for whoever reads the result to add.
        inside: `supports_fused_mlp` says so.
    """
    kind = autocast_dtype(x)
    biases = (None if bias is None else bias.to(kind) for bias in (up.bias, None if owes else down.bias))
    weights = up.weight.to(kind), down.weight.to(kind)
    found: Tensor = _MLP.apply(x.to(kind), *weights, *biases, tanh, inside)  # type: ignore[no-untyped-call]
    return found


def gelu(x: Tensor, *, tanh: bool) -> tuple[Tensor, Tensor]:
    """The activation and its slope, worked out in fp32; by a sigmoid, which is what the tanh comes to."""
    a = x.float()
    square = a * a
    if tanh:
        share = torch.sigmoid(a * (1.5957691216057308 + 0.07135481282553356 * square))
        after = a * share
        steep = share + (after - after * share) * (1.5957691216057308 + 0.21406443847660068 * square)
    else:
        share = 0.5 + 0.5 * torch.erf(a * 0.7071067811865476)
        after, steep = a * share, share + a * 0.3989422804014327 * torch.exp(-0.5 * square)
    return after.to(x.dtype), steep.to(x.dtype)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        down: Tensor,
        first: Tensor | None,
        last: Tensor | None,
        tanh: bool,
        inside: bool,
    ) -> Tensor:
        # erf takes so many instructions that a pass of its own is the quicker way
        wide, steep = (
            _linear_gelu(x.contiguous(), up, first) if inside and tanh else gelu(F.linear(x, up, first), tanh=tanh)
        )
        ctx.save_for_backward(x, up, down, wide, steep)
        ctx.biased, ctx.inside = (first is not None, last is not None), inside
        return F.linear(wide, down, last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, up, down, wide, steep), (by_y,) = ctx.saved_tensors, grads
        if ctx.inside:
            slopes, sums = _linear_gelu_backward(by_y.contiguous(), down, steep)
        else:
            exact = (by_y @ down).float() * steep
            slopes, sums = exact.to(up.dtype), exact.flatten(0, -2).sum(dim=0)
        flat = by_y.flatten(0, -2)
        by_up, by_down = slopes.flatten(0, -2).T @ x.flatten(0, -2), flat.T @ wide.flatten(0, -2)
        by_first = sums.to(up.dtype) if ctx.biased[0] else None
        by_last = flat.float().sum(dim=0).to(up.dtype) if ctx.biased[1] else None
        return slopes @ up, by_up, by_down, by_first, by_last, None, None


# operations that a compiler does not look into


@torch.library.custom_op("headstart::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    if not x.is_cuda:
        return gelu(F.linear(x, weight, bias), tanh=True)
    from headstart.kernels.triton import mlp as product_kernel

    wide, steep = product_kernel.linear_gelu(x.flatten(0, -2), weight, bias)
    shape = *x.shape[:-1], len(weight)
    return wide.view(shape), steep.view(shape)


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    wide = x.new_empty(*x.shape[:-1], len(weight))
    return wide, torch.empty_like(wide)


@torch.library.custom_op("headstart::linear_gelu_backward", mutates_args=())
def _linear_gelu_backward(slopes: Tensor, weight: Tensor, steep: Tensor) -> tuple[Tensor, Tensor]:
    if not slopes.is_cuda:
        exact = (slopes.float() @ weight.float()) * steep.float()
        return exact.to(steep.dtype), exact.flatten(0, -2).sum(dim=0)
    from headstart.kernels.triton import mlp as product_kernel

    flat = slopes.flatten(0, -2), weight, steep.flatten(0, -2)
    out, sums = product_kernel.linear_gelu_backward(*flat)
    return out.view_as(steep), sums


@_linear_gelu_backward.register_fake
def _(slopes: Tensor, weight: Tensor, steep: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(steep), steep.new_empty(steep.shape[-1], dtype=torch.float32)
