"""Linear layers in bf16 on a CPU, and dropout: weights are cast once per update, and backward passes are written by hand.

Autocast casts a weight at every use and keeps what autograd saves in the precision of the inputs. Here the bf16 copy of a
weight lives as long as the weight does, and is renewed when the weight has changed. Gradients of weights are fp32.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from headstart.kernels.dispatch import KernelPlan

_COPIES: Any = WeakTensorKeyDictionary()
"""For each weight its version, its address and its copy in bf16."""
_KEEP_BITS = 15
"""Dropout compares random numbers of this many bits, so that its probability is a multiple of 2^-15."""
_MAX_P_ERROR = 0.05
"""The relative error of a dropout probability from which the factor is not rounded to bf16."""


def cast_once(weight: Tensor) -> Tensor:
    """Return a copy of `weight` in bf16 that is made again only when the weight has changed; never change the copy."""
    if weight.dtype == torch.bfloat16:
        return weight.detach()
    key = weight._version, weight.data_ptr()
    cached = _COPIES.get(weight)
    if cached is not None and cached[0] == key:
        copy: Tensor = cached[1]
        return copy
    with torch.inference_mode(False), torch.no_grad():
        # in place: memory that was used before is written faster than new memory
        copy = weight.to(torch.bfloat16) if cached is None else cached[1].copy_(weight)
    _COPIES[weight] = key, copy
    return copy


def apply_linear(x: Tensor, layer: nn.Linear, plan: KernelPlan) -> Tensor:
    """Return `layer(x)`; where the plan casts weights, in bf16 from the cached copy of the weight."""
    output: Tensor = (
        _CastLinear.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
        if plan.cast_weights
        else layer(x)
    )
    return output


def dropout(x: Tensor, p: float, plan: KernelPlan, *, training: bool) -> Tensor:
    """Return `F.dropout`, where the plan says so with `dropout_mask`: then the same numbers are dropped in any precision."""
    if not (plan.short_dropout and training and p):
        return F.dropout(x, p, training)
    scale = _dropout_numbers(p).scale
    dropped = x * dropout_mask(x.shape, p, padding_tokens=plan.padding_tokens).to(x.dtype)
    return dropped if scale == 1 else dropped * scale


def dropout_mask(shape: torch.Size, p: float, *, padding_tokens: int = 0) -> Tensor:
    """Return a bf16 tensor of zeros, with a probability of about `p`, and one other number, from torch's generator.

    That number is 1 / (1 - p) rounded to bf16, and the probability of a zero follows from it, so that the mean is 1. Where
    this would change the probability by more than a twentieth, it is 1, and `dropout` multiplies by the factor.

    Args:
        padding_tokens: how many tokens at the end are padding, for which no numbers are drawn.
    """
    count = shape.numel()
    words = torch.zeros(-(-count // 4), dtype=torch.int64)
    words[: -(-(count - padding_tokens * shape[-1]) // 4)].random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    dropped, factor_bits, _ = _dropout_numbers(p)
    # negative where kept; the shift makes that -1 and the rest 0: then a mask for the bits of the factor
    kept = torch.rsub(bits.bitwise_and_(2**_KEEP_BITS - 1), dropped - 1).bitwise_right_shift_(_KEEP_BITS)
    return kept.bitwise_and_(factor_bits).view(torch.bfloat16)


class _DropoutNumbers(NamedTuple):
    dropped: int
    """How many of the 2^15 random numbers drop an activation."""
    factor_bits: int
    """The bits of the number in bf16 by which the others are multiplied."""
    scale: float
    """By what they are multiplied after that."""


@cache
def _dropout_numbers(p: float) -> _DropoutNumbers:
    factor = torch.tensor(1 / (1 - p), dtype=torch.bfloat16)
    rounded_p = 1 - 1 / float(factor)
    if abs(rounded_p - p) <= _MAX_P_ERROR * p:
        return _DropoutNumbers(round(rounded_p * 2**_KEEP_BITS), int(factor.view(torch.int16)), 1.0)
    dropped = min(round(p * 2**_KEEP_BITS), 2**_KEEP_BITS - 1)
    one = torch.ones((), dtype=torch.bfloat16)
    return _DropoutNumbers(dropped, int(one.view(torch.int16)), 1 / (1 - dropped / 2**_KEEP_BITS))


class _CastLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        low_x, low_weight = x.to(torch.bfloat16), cast_once(weight)
        ctx.save_for_backward(low_x, low_weight)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return F.linear(low_x, low_weight, None if bias is None else bias.to(torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        grad = grad.to(torch.bfloat16)
        flat = grad.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            (grad @ weight).to(x_dtype) if needs_x else None,
            (flat.T @ x.flatten(0, -2)).to(weight_dtype) if needs_weight else None,
            flat.sum(dim=0, dtype=torch.float32).to(bias_dtype) if needs_bias else None,
        )
