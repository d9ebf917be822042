"""The MLP of a layer: torch's operations, or a fused version with a hand-written backward pass.

N rows, D width, F width of the hidden layer.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.cast import apply_linear, dropout
from headstart.kernels.dispatch import KernelPlan, autocast_dtype
from headstart.kernels.packed_linear import packed_mlp

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def mlp(
    x: Tensor,
    up: nn.Linear,
    down: nn.Linear,
    plan: KernelPlan,
    *,
    activation: str,
    gate: nn.Linear | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Return down(activation(up(x))), or down(activation(gate(x)) * up(x)) with a gate.

    The bias of `down` is left out where the plan defers it to the next `add_norm`.

    Args:
        dropout_p: dropout of what `down` reads; the fused implementations have none.
    """
    if plan.fused_residual and gate is None and activation in ("gelu", "gelu_tanh"):
        return _fused_mlp(x, up, down, plan, tanh=activation == "gelu_tanh")
    if plan.packed:
        return packed_mlp(x, up, down, gate, activation)
    activate, up_x = ACTIVATIONS[activation], apply_linear(x, up, plan)
    activated = activate(up_x) if gate is None else activate(apply_linear(x, gate, plan)) * up_x
    return apply_linear(dropout(activated, dropout_p, plan, training=True), down, plan)


def _fused_mlp(x: Tensor, up: nn.Linear, down: nn.Linear, plan: KernelPlan, *, tanh: bool) -> Tensor:
    dtype = autocast_dtype(x)
    biases = (None if bias is None else bias.to(dtype) for bias in (up.bias, None if plan.defer_bias else down.bias))
    weights = up.weight.to(dtype), down.weight.to(dtype)
    output: Tensor = _MLP.apply(x.to(dtype), *weights, *biases, tanh, plan.fused_mlp)  # type: ignore[no-untyped-call]
    return output


def gelu(x: Tensor, *, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return the activation and its derivative, computed in fp32; the tanh is written as the sigmoid it equals."""
    a = x.float()
    square = a * a
    if tanh:
        cdf = torch.sigmoid(a * (1.5957691216057308 + 0.07135481282553356 * square))
        activated = a * cdf
        derivative = cdf + (activated - activated * cdf) * (1.5957691216057308 + 0.21406443847660068 * square)
    else:
        cdf = 0.5 + 0.5 * torch.erf(a * 0.7071067811865476)
        activated, derivative = a * cdf, cdf + a * 0.3989422804014327 * torch.exp(-0.5 * square)
    return activated.to(x.dtype), derivative.to(x.dtype)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        down: Tensor,
        up_bias: Tensor | None,
        down_bias: Tensor | None,
        tanh: bool,
        fused: bool,
    ) -> Tensor:
        # erf takes so many instructions that a separate pass is faster
        activated, derivative = (
            _linear_gelu(x.contiguous(), up, up_bias) if fused and tanh else gelu(F.linear(x, up, up_bias), tanh=tanh)
        )
        ctx.save_for_backward(x, up, down, activated, derivative)
        ctx.has_bias, ctx.fused = (up_bias is not None, down_bias is not None), fused
        return F.linear(activated, down, down_bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, up, down, activated, derivative), (grad,) = ctx.saved_tensors, grads
        if ctx.fused:
            grad_preactivation, sums = _linear_gelu_backward(grad.contiguous(), down, derivative)
        else:
            exact = (grad @ down).float() * derivative
            grad_preactivation, sums = exact.to(up.dtype), exact.flatten(0, -2).sum(dim=0)
        flat = grad.flatten(0, -2)
        grad_up, grad_down = grad_preactivation.flatten(0, -2).T @ x.flatten(0, -2), flat.T @ activated.flatten(0, -2)
        grad_up_bias = sums.to(up.dtype) if ctx.has_bias[0] else None
        grad_down_bias = flat.float().sum(dim=0).to(up.dtype) if ctx.has_bias[1] else None
        return grad_preactivation @ up, grad_up, grad_down, grad_up_bias, grad_down_bias, None, None


# opaque to the compiler


@torch.library.custom_op("headstart::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    if not x.is_cuda:
        return gelu(F.linear(x, weight, bias), tanh=True)
    from headstart.kernels.triton import mlp as triton_mlp

    activated, derivative = triton_mlp.linear_gelu(x.flatten(0, -2), weight, bias)
    shape = *x.shape[:-1], len(weight)
    return activated.view(shape), derivative.view(shape)


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    activated = x.new_empty(*x.shape[:-1], len(weight))
    return activated, torch.empty_like(activated)


@torch.library.custom_op("headstart::linear_gelu_backward", mutates_args=())
def _linear_gelu_backward(grad: Tensor, weight: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:
    if not grad.is_cuda:
        exact = (grad.float() @ weight.float()) * derivative.float()
        return exact.to(derivative.dtype), exact.flatten(0, -2).sum(dim=0)
    from headstart.kernels.triton import mlp as triton_mlp

    grad_preactivation, sums = triton_mlp.linear_gelu_backward(grad.flatten(0, -2), weight, derivative.flatten(0, -2))
    return grad_preactivation.view_as(derivative), sums


@_linear_gelu_backward.register_fake
def _(grad: Tensor, weight: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(derivative), derivative.new_empty(derivative.shape[-1], dtype=torch.float32)
