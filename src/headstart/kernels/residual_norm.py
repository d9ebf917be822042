"""Fused residual addition and normalization, with a torch reference.

What runs through a pre-norm network: hidden states as two summands, which are added where the next norm reads them.

Torch adds, then norms; on a GPU that learns with compiled layers one kernel does both, and one more all of the way back.
The same holds for what else is bounded by reading and writing: rows that are looked up, and queries, keys and values whose
slopes are laid side by side. The mathematics is that of plain torch, which does it wherever there is no triton.

N rows, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headstart.kernels.dispatch import autocast_dtype

Summands = tuple[Tensor, Tensor, Tensor | None]
"""Two tensors whose sum hidden states are, and what is owed to every token besides: a bias that was not added yet."""


Hidden = Tensor | Summands


def split(hidden: Tensor, *, owed: bool) -> Summands:
    """Hidden states as summands, of which all but the first are nothing: all layers then look alike to a compiler."""
    nothing = torch.zeros_like(hidden, dtype=autocast_dtype(hidden)).requires_grad_(hidden.requires_grad)
    debt = nn.Parameter(hidden.new_zeros(hidden.shape[-1]), requires_grad=hidden.requires_grad) if owed else None
    return hidden, nothing, debt


def joined(hidden: Hidden) -> Tensor:
    """Hidden states as one tensor."""
    if isinstance(hidden, Tensor):
        return hidden
    x, more, owed = hidden
    return x + more if owed is None else x + more + owed


def normed(hidden: Hidden, norm: nn.Module, *, fused: bool, kind: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Hidden states as one tensor, and their norm.

    Args:
        fused: by one kernel.
        kind: of the norm then, if not what products take.
    """
    if fused and isinstance(hidden, tuple) and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        x, more, owed = hidden
        centred = isinstance(norm, nn.LayerNorm)
        bias = norm.bias.float() if centred and norm.bias is not None else None
        given = x, more, owed, norm.weight.float(), bias, norm.eps, centred, kind or autocast_dtype(x)
        total, after = _AddNorm.apply(*given)  # type: ignore[no-untyped-call]
        return total, after
    total = joined(hidden)
    return total, norm(total)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        more: Tensor,
        owed: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        centred: bool,
        kind: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        total, after, means, scales = _add_norm(x, more, owed, weight, bias, epsilon, centred, kind)
        ctx.save_for_backward(total, means, scales, weight)
        ctx.kind, ctx.centred, ctx.biased, ctx.owed = more.dtype, centred, bias is not None, owed is not None
        if not torch.compiler.is_compiling():  # inside compiled layers both have slopes
            ctx.set_materialize_grads(False)
        return total, after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_total, by_normed = grads
        given = by_total, by_normed, *ctx.saved_tensors, ctx.centred, ctx.owed, ctx.kind
        by_x, by_more, learnt = _add_norm_back(*given)
        by_weight, by_bias, by_owed = learnt.unbind()
        learnt_too = by_owed if ctx.owed else None, by_weight, by_bias if ctx.biased else None
        return by_x, by_more, *learnt_too, None, None, None


# operations that a compiler does not look into


@torch.library.custom_op("headstart::add_norm", mutates_args=())
def _add_norm(
    x: Tensor,
    more: Tensor,
    owed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    centred: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.is_cuda:
        from headstart.kernels.triton import norm as norm_kernel

        given = x.contiguous(), more.contiguous(), owed, weight, bias, epsilon, kind
        return norm_kernel.add_norm(*given, centred=centred)
    total = joined((x, more, owed))
    means = total.mean(dim=-1, keepdim=True) if centred else total.new_zeros(*total.shape[:-1], 1)
    scales = (total - means).square().mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    after = (total - means) * scales * weight
    return total, (after if bias is None else after + bias).to(kind), means.flatten(), scales.flatten()


@_add_norm.register_fake
def _(
    x: Tensor,
    more: Tensor,  # noqa: ARG001
    owed: Tensor | None,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    centred: bool,  # noqa: ARG001
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    whole, each = x.contiguous(), x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)
    return torch.empty_like(whole), torch.empty_like(whole, dtype=kind), each, torch.empty_like(each)


@torch.library.custom_op("headstart::add_norm_backward", mutates_args=())
def _add_norm_back(
    by_total: Tensor | None,
    by_normed: Tensor,
    total: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    centred: bool,
    owed: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    if total.is_cuda:
        from headstart.kernels.triton import norm as norm_kernel

        by_total = None if by_total is None else by_total.contiguous()
        given = by_total, by_normed.contiguous(), total, means, scales, weight, kind
        return norm_kernel.add_norm_backward(*given, centred=centred, owed=owed)
    width = total.shape[-1]
    flat, slopes = total.view(-1, width), by_normed.reshape(-1, width).float()
    a = (flat - means[:, None] if centred else flat) * scales[:, None]
    learnt = [(slopes * a).sum(dim=0), slopes.sum(dim=0)]
    slopes = slopes * weight
    inner = slopes - a * (slopes * a).mean(dim=1, keepdim=True)
    inner = (inner - slopes.mean(dim=1, keepdim=True) if centred else inner) * scales[:, None]
    by_x = inner.view_as(total) if by_total is None else inner.view_as(total) + by_total
    return by_x, by_x.to(kind, copy=True), torch.stack([*learnt, by_x.reshape(-1, width).sum(dim=0)])


@_add_norm_back.register_fake
def _(
    by_total: Tensor | None,  # noqa: ARG001
    by_normed: Tensor,  # noqa: ARG001
    total: Tensor,
    means: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    weight: Tensor,
    centred: bool,  # noqa: ARG001
    owed: bool,  # noqa: ARG001
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(total), torch.empty_like(total, dtype=kind), weight.new_empty(3, len(weight))
