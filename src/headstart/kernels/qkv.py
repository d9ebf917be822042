"""Query, key and value projections, and the output projection behind attention.

For cuDNN's attention the projections are laid out for its kernels: heads of an odd width get columns of zeros in the weights,
where they cost nothing, and the three gradients are concatenated by an operation that is opaque to the compiler. The compiler
would fuse the copy with the operations before it, and such a kernel takes several times as long.

B batch, T tokens, N tokens of all documents end to end, D width, H heads, K width of one head (rounded up for cuDNN).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.dispatch import HEAD_MULTIPLE, KernelPlan, autocast_dtype


def split_qkv(
    x: Tensor, qkv_proj: nn.Linear, heads: int, plan: KernelPlan, *, pad_heads: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in the layout that the plan's attention takes: (B, H, T, K), or (N, H, K).

    Args:
        x: (B, T, D), or (1, N, D) for documents end to end.
        pad_heads: heads may be padded for cuDNN; rotary positions pair the halves of a head and do not allow it.
    """
    if plan.attention == "cudnn":
        return _split_qkv_padded(x, qkv_proj, heads, pad_heads=pad_heads, fused=plan.fused_residual)
    if plan.attention in ("varlen", "by_text"):
        query, key, value = qkv_proj(x[0]).view(x.shape[1], 3, heads, -1).unbind(1)
    else:
        query, key, value = (_split_heads(part, heads) for part in qkv_proj(x).chunk(3, dim=-1))
    return query, key, value


def project_out(x_BTD: Tensor, out_proj: nn.Linear, heads: int, plan: KernelPlan) -> Tensor:
    """Return the output projection (B, T, D) of merged heads. Its bias is left out where `deferred_bias` returns it."""
    if plan.attention != "cudnn":
        projected: Tensor = out_proj(x_BTD)
        return projected
    dtype = x_BTD.dtype
    weight = out_proj.weight.to(dtype)
    missing = (x_BTD.shape[-1] - weight.shape[1]) // heads
    if missing:
        weight = F.pad(weight.view(len(weight), heads, -1), (0, missing)).flatten(1)
    has_bias = out_proj.bias is not None and deferred_bias(out_proj, plan) is None
    return F.linear(x_BTD, weight, out_proj.bias.to(dtype) if has_bias else None)


def deferred_bias(out_proj: nn.Linear, plan: KernelPlan) -> Tensor | None:
    """Return the bias that `project_out` leaves to the `add_norm` behind it, if any."""
    return out_proj.bias if plan.fused_residual and plan.attention == "cudnn" else None


def _split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    return x_BTD.view(*x_BTD.shape[:-1], heads, -1).transpose(1, 2)


def _split_qkv_padded(
    x_BTD: Tensor, qkv_proj: nn.Linear, heads: int, *, pad_heads: bool, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = autocast_dtype(x_BTD)
    weight, bias = qkv_proj.weight.to(dtype), None if qkv_proj.bias is None else qkv_proj.bias.to(dtype)
    missing = -(len(weight) // 3 // heads) % HEAD_MULTIPLE if pad_heads else 0
    if missing:
        weight = F.pad(weight.view(3 * heads, -1, weight.shape[1]), (0, 0, 0, missing)).flatten(0, 1)
        bias = None if bias is None else F.pad(bias.view(3 * heads, -1), (0, missing)).flatten()
    parts = _SplitQKV.apply(x_BTD.to(dtype), weight, bias, fused)  # type: ignore[no-untyped-call]
    query, key, value = (_split_heads(part, heads) for part in parts)
    return query, key, value


class _SplitQKV(torch.autograd.Function):
    """A linear layer with its output in three parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.fused = bias is not None, fused
        return F.linear(x, weight, bias).chunk(3, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        query, key, value = (grad.contiguous() for grad in grads)
        if ctx.fused and ctx.has_bias:
            grad, sums = concat_sum(query, key, value)
        else:
            grad = (_concat_op if torch.compiler.is_compiling() else _concat)(query, key, value)
            sums = grad.flatten(0, -2).sum(dim=0) if ctx.has_bias else None
        grad_weight = grad.flatten(0, -2).T @ x.flatten(0, -2)
        return grad @ weight, grad_weight, None if sums is None else sums.to(weight.dtype), None


# opaque to the compiler


@torch.library.custom_op("headstart::concat_sum", mutates_args=())
def concat_sum(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the concatenation of three tensors and the sum of each of its columns in fp32."""
    if query.is_cuda:
        from headstart.kernels.triton import elementwise as triton_elementwise

        return triton_elementwise.concat_sum(query, key, value)
    out = torch.cat((query, key, value), dim=-1)
    return out, out.float().flatten(0, -2).sum(dim=0)


@concat_sum.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    width = 3 * query.shape[-1]
    return query.new_empty(*query.shape[:-1], width), query.new_empty(width, dtype=torch.float32)


def _concat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat((query, key, value), dim=-1)


_concat_op = torch.library.custom_op("headstart::concat", _concat, mutates_args=())
_concat_op.register_fake(_concat)
