"""Residual addition and normalization: one kernel forward and one backward on a GPU, torch's operations elsewhere.

The residual stream of a pre-norm network runs through its layers as `(hidden, residual)`: their sum is what a plain network
calls the hidden state, and it is computed where the next norm reads it.

N rows, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headstart.kernels.dispatch import KernelPlan, autocast_dtype


def start_residual(embedded: Tensor, plan: KernelPlan) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return `(hidden, residual, bias)` for the first layer of a network.

    Where layers are compiled, the embedding is the residual, and the other two are zeros: the first layer then looks like
    all others to the compiler.
    """
    if not plan.uniform_layers:
        return embedded, None, None
    zeros = torch.zeros_like(embedded, dtype=autocast_dtype(embedded)).requires_grad_(embedded.requires_grad)
    if not plan.defer_bias:
        return zeros, embedded, None
    bias = nn.Parameter(embedded.new_zeros(embedded.shape[-1]), requires_grad=embedded.requires_grad)
    return zeros, embedded, bias


def add_norm(
    hidden: Tensor,
    residual: Tensor | None,
    norm: nn.Module,
    plan: KernelPlan,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the norm of `residual + hidden + bias`, and the sum itself.

    Args:
        residual: None stands for zeros.
        bias: a bias of the layer that made `hidden`, if that layer left it out.
        dtype: of the fused kernel's norm, if not the precision of products.
    """
    if plan.fused_residual and residual is not None and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        centered = isinstance(norm, nn.LayerNorm)
        norm_bias = norm.bias.float() if centered and norm.bias is not None else None
        dtype = dtype or autocast_dtype(residual)
        total, normed = _AddNorm.apply(  # type: ignore[no-untyped-call]
            residual, hidden, bias, norm.weight.float(), norm_bias, norm.eps, centered, dtype
        )
        return normed, total
    if (plan.cast_weights or plan.packed) and isinstance(norm, nn.RMSNorm):
        epsilon, dtype = norm.eps or torch.finfo(torch.float32).eps, dtype or torch.bfloat16
        total, normed = _AddRMSNorm.apply(  # type: ignore[no-untyped-call]
            hidden if residual is None else residual + hidden, norm.weight, epsilon, dtype
        )
        return normed, total
    total = _add(hidden, residual, bias)
    return norm(total), total


def _add(hidden: Tensor, residual: Tensor | None, bias: Tensor | None) -> Tensor:
    total = hidden if residual is None else residual + hidden
    return total if bias is None else total + bias


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        hidden: Tensor,
        hidden_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        centered: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        total, normed, means, scales = _add_norm(residual, hidden, hidden_bias, weight, bias, epsilon, centered, dtype)
        ctx.save_for_backward(total, means, scales, weight)
        ctx.dtype, ctx.centered = hidden.dtype, centered
        ctx.has_bias, ctx.has_hidden_bias = bias is not None, hidden_bias is not None
        if not torch.compiler.is_compiling():  # inside compiled layers both outputs have gradients
            ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_total, grad_normed = grads
        grad_residual, grad_hidden, grad_parameters = _add_norm_backward(
            grad_total, grad_normed, *ctx.saved_tensors, ctx.centered, ctx.has_hidden_bias, ctx.dtype
        )
        grad_weight, grad_bias, grad_hidden_bias = grad_parameters.unbind()
        return (
            grad_residual,
            grad_hidden,
            grad_hidden_bias if ctx.has_hidden_bias else None,
            grad_weight,
            grad_bias if ctx.has_bias else None,
            None,
            None,
            None,
        )


class _AddRMSNorm(torch.autograd.Function):
    """RMSNorm of fp32 numbers, rounded to `dtype`, and the numbers themselves, so that both gradients are added at once."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        norms = torch.linalg.vector_norm(total, dim=-1, keepdim=True)
        scales = torch.rsqrt(norms.square_().div_(total.shape[-1]).add_(epsilon))
        ctx.save_for_backward(total, scales, weight)
        ctx.set_materialize_grads(False)
        return total.view_as(total), (total * scales).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (total, scales, weight), (grad_total, grad_normed) = ctx.saved_tensors, grads
        if grad_normed is None:
            return grad_total, None, None, None
        width = total.shape[-1]
        grad_ND, total_ND, scales_N = grad_normed.float().view(-1, width), total.view(-1, width), scales.flatten()
        products = grad_ND * total_ND
        grad_weight = scales_N @ products if ctx.needs_input_grad[1] else None
        factors = (products @ weight.float()).mul_(scales_N**3).div_(-width)
        grad = (grad_ND * weight).mul_(scales_N[:, None]).addcmul_(total_ND, factors[:, None]).view_as(total)
        return grad if grad_total is None else grad.add_(grad_total), grad_weight, None, None


# opaque to the compiler


@torch.library.custom_op("headstart::add_norm", mutates_args=())
def _add_norm(
    residual: Tensor,
    hidden: Tensor,
    hidden_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if residual.is_cuda:
        from headstart.kernels.triton import norm as triton_norm

        return triton_norm.add_norm(
            residual.contiguous(), hidden.contiguous(), hidden_bias, weight, bias, epsilon, dtype, centered=centered
        )
    total = _add(hidden, residual, hidden_bias)
    means = total.mean(dim=-1, keepdim=True) if centered else total.new_zeros(*total.shape[:-1], 1)
    scales = (total - means).square().mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    normed = (total - means) * scales * weight
    return total, (normed if bias is None else normed + bias).to(dtype), means.flatten(), scales.flatten()


@_add_norm.register_fake
def _(
    residual: Tensor,
    hidden: Tensor,  # noqa: ARG001
    hidden_bias: Tensor | None,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    epsilon: float,  # noqa: ARG001
    centered: bool,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = residual.contiguous()
    means = residual.new_empty(residual.numel() // residual.shape[-1], dtype=torch.float32)
    return torch.empty_like(total), torch.empty_like(total, dtype=dtype), means, torch.empty_like(means)


@torch.library.custom_op("headstart::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_total: Tensor | None,
    grad_normed: Tensor,
    total: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    centered: bool,
    has_hidden_bias: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    if total.is_cuda:
        from headstart.kernels.triton import norm as triton_norm

        grad_total = None if grad_total is None else grad_total.contiguous()
        return triton_norm.add_norm_backward(
            grad_total,
            grad_normed.contiguous(),
            total,
            means,
            scales,
            weight,
            dtype,
            centered=centered,
            has_hidden_bias=has_hidden_bias,
        )
    width = total.shape[-1]
    total_ND, grad_ND = total.view(-1, width), grad_normed.reshape(-1, width).float()
    x_ND = (total_ND - means[:, None] if centered else total_ND) * scales[:, None]
    grad_weight, grad_bias = (grad_ND * x_ND).sum(dim=0), grad_ND.sum(dim=0)
    grad_ND = grad_ND * weight
    inner = grad_ND - x_ND * (grad_ND * x_ND).mean(dim=1, keepdim=True)
    inner = (inner - grad_ND.mean(dim=1, keepdim=True) if centered else inner) * scales[:, None]
    grad = inner.view_as(total) if grad_total is None else inner.view_as(total) + grad_total
    grad_parameters = torch.stack([grad_weight, grad_bias, grad.reshape(-1, width).sum(dim=0)])
    return grad, grad.to(dtype, copy=True), grad_parameters


@_add_norm_backward.register_fake
def _(
    grad_total: Tensor | None,  # noqa: ARG001
    grad_normed: Tensor,  # noqa: ARG001
    total: Tensor,
    means: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    weight: Tensor,
    centered: bool,  # noqa: ARG001
    has_hidden_bias: bool,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(total), torch.empty_like(total, dtype=dtype), weight.new_empty(3, len(weight))
