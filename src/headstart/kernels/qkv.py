"""Fused query, key and value projection.

What runs through a pre-norm network: hidden states as two summands, which are added where the next norm reads them.

Torch adds, then norms; on a GPU that learns with compiled layers one kernel does both, and one more all of the way back.
The same holds for what else is bounded by reading and writing: rows that are looked up, and queries, keys and values whose
slopes are laid side by side. The mathematics is that of plain torch, which does it wherever there is no triton.

N rows, D width.

Queries, keys and values out of one product and back again, for rows that a GPU learns from in one steady shape.

The same mathematics as `SelfAttention` has elsewhere, laid out for the kernels: heads of an odd width get columns of zeros in
the weights, where they cost nothing, and gradients lie side by side again by a copy of their own. A compiler would fuse that
copy with what comes before it, and such a kernel takes several times as long.

B batch, T tokens, D width, H heads, K width of one head (made round).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.dispatch import autocast_dtype


@torch.library.custom_op("headstart::concat_sum", mutates_args=())
def concat_sum(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Three tensors side by side, and what they add up to in each column."""
    if query.is_cuda:
        from headstart.kernels.triton import elementwise as stream_kernel

        return stream_kernel.concat_sum(query, key, value)
    out = torch.cat((query, key, value), dim=-1)
    return out, out.float().flatten(0, -2).sum(dim=0)


@concat_sum.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    width = 3 * query.shape[-1]
    return query.new_empty(*query.shape[:-1], width), query.new_empty(width, dtype=torch.float32)


HEAD_MULTIPLE = 8
"""Heads are a multiple of this wide where cuDNN reads them."""


def _concat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat((query, key, value), dim=-1)


_concat_op = torch.library.custom_op("headstart::concat", _concat, mutates_args=())
"""The same as something a compiler does not look into."""
_concat_op.register_fake(_concat)


class _SplitQKV(torch.autograd.Function):
    """A linear layer whose output comes in three parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.biased, ctx.fused = bias is not None, fused
        return F.linear(x, weight, bias).chunk(3, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        query, key, value = (grad.contiguous() for grad in grads)
        if ctx.fused and ctx.biased:
            slopes, sums = concat_sum(query, key, value)
        else:
            slopes = (_concat_op if torch.compiler.is_compiling() else _concat)(query, key, value)
            sums = slopes.flatten(0, -2).sum(dim=0) if ctx.biased else None
        by_weight = slopes.flatten(0, -2).T @ x.flatten(0, -2)
        return slopes @ weight, by_weight, None if sums is None else sums.to(weight.dtype), None


def split_qkv(
    x_BTD: Tensor, qkv_proj: nn.Linear, heads: int, *, fill: bool, fused: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, K) in the precision of the products.

    Args:
        fill: make heads round; what turns them by halves cannot have that.
        fused: on the way back lay them side by side and sum them up at once.
    """
    kind = autocast_dtype(x_BTD)
    weight, bias = qkv_proj.weight.to(kind), None if qkv_proj.bias is None else qkv_proj.bias.to(kind)
    missing = _missing_columns(len(weight) // 3, heads) if fill else 0
    if missing:
        weight = F.pad(weight.view(3 * heads, -1, weight.shape[1]), (0, 0, 0, missing)).flatten(0, 1)
        bias = None if bias is None else F.pad(bias.view(3 * heads, -1), (0, missing)).flatten()
    parts = _SplitQKV.apply(x_BTD.to(kind), weight, bias, fused)  # type: ignore[no-untyped-call]
    query, key, value = (part.view(*part.shape[:-1], heads, -1).transpose(1, 2) for part in parts)
    return query, key, value


def project_out(mixed_BHTK: Tensor, out_proj: nn.Linear, *, biased: bool = True) -> Tensor:
    """What the heads found, through the layer behind them (B, T, D); columns that `apart` has filled up are nothing to it."""
    heads, kind = mixed_BHTK.shape[1], mixed_BHTK.dtype
    weight = out_proj.weight.to(kind)
    missing = mixed_BHTK.shape[-1] - weight.shape[1] // heads
    if missing:
        weight = F.pad(weight.view(len(weight), heads, -1), (0, missing)).flatten(1)
    bias = out_proj.bias.to(kind) if biased and out_proj.bias is not None else None
    return F.linear(mixed_BHTK.transpose(1, 2).flatten(-2), weight, bias)


def _missing_columns(width: int, heads: int) -> int:
    return -(width // heads) % HEAD_MULTIPLE
