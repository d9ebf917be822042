"""The fused MLP computes what torch's operations compute, forward and backward."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headstart.kernels.dispatch import PLAIN, KernelPlan, supports_fused_mlp
from headstart.kernels.mlp import _linear_gelu, _linear_gelu_backward, gelu, mlp

IGNORE_COMPILER = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules


def reference_mlp(x, up, down, *, tanh, defer_bias):
    activated = F.gelu(up(x), approximate="tanh" if tanh else "none")
    return F.linear(activated, down.weight) if defer_bias else down(activated)


@pytest.mark.parametrize("tanh", [True, False])
def test_the_activation_and_its_derivative_are_those_of_torch(tanh):
    x = torch.linspace(-30, 30, 4001, requires_grad=True)
    expected = F.gelu(x, approximate="tanh" if tanh else "none")
    (grad,) = torch.autograd.grad(expected.sum(), x)
    activated, derivative = gelu(x.detach(), tanh=tanh)
    torch.testing.assert_close(activated, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(derivative, grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tanh", [True, False])
def test_in_bf16_activation_and_derivative_are_rounded_once(tanh):
    x = torch.linspace(-6, 6, 97).bfloat16()
    for ours, exact in zip(gelu(x, tanh=tanh), gelu(x.float(), tanh=tanh), strict=True):
        assert ours.equal(exact.bfloat16())


CASES = list(product([True, False], [(True, True), (True, False), (False, False)], [True, False]))


@pytest.mark.parametrize(("tanh", "biases", "fused_mlp"), CASES)
def test_the_fused_mlp_and_its_gradients_are_those_of_torch(tanh, biases, fused_mlp):
    check_mlp(tanh, *biases, fused_mlp=fused_mlp, compiled=False)


@IGNORE_COMPILER
@pytest.mark.slow  # a compilation takes seconds; test_residual_norm.py compiles layers with this MLP in every run
@pytest.mark.parametrize(("tanh", "biases", "fused_mlp"), CASES)
def test_the_compiled_mlp_and_its_gradients_are_those_of_torch(tanh, biases, fused_mlp):
    torch._dynamo.reset()
    check_mlp(tanh, *biases, fused_mlp=fused_mlp, compiled=True)


def check_mlp(tanh, bias, defer_bias, *, fused_mlp, compiled):
    plan = KernelPlan(fused_residual=True, fused_mlp=fused_mlp, defer_bias=defer_bias)
    activation = "gelu_tanh" if tanh else "gelu"
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        x, up, down = torch.randn(3, 5, 24, requires_grad=True), nn.Linear(24, 40, bias), nn.Linear(40, 24, bias)
        if fused:
            y = (torch.compile(mlp) if compiled else mlp)(x, up, down, plan, activation=activation)
        else:
            y = reference_mlp(x, up, down, tanh=tanh, defer_bias=defer_bias)
        (y * torch.randn_like(y)).sum().backward()
        grads = [parameter.grad for layer in (up, down) for parameter in layer.parameters()]
        results.append([y.detach(), x.grad, *grads])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plan", [PLAIN, KernelPlan(fused_residual=True, fused_mlp=True)])
def test_a_gated_mlp_multiplies_the_activated_gate(plan):
    torch.manual_seed(0)
    x, up, gate, down = torch.randn(3, 8), nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
    gated = mlp(x, up, down, plan, activation="silu", gate=gate)
    assert gated.equal(down(F.silu(gate(x)) * up(x)))


@IGNORE_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiler_knows_the_outputs_of_the_custom_operations(dtype):
    x, up, bias = torch.randn(2, 3, 8).to(dtype), torch.randn(16, 8).to(dtype), torch.randn(16).to(dtype)
    torch.library.opcheck(_linear_gelu, (x, up, bias))
    torch.library.opcheck(_linear_gelu_backward, (x, torch.randn(8, 16).to(dtype), torch.randn(2, 3, 16).to(dtype)))


@pytest.mark.parametrize("fused_mlp", [True, False])
def test_bias_gradients_of_bf16_are_summed_in_fp32(fused_mlp):
    """4,096 rows: their sum in bf16 would be far off."""
    torch.manual_seed(0)
    x, up, down = torch.randn(4096, 8), nn.Linear(8, 16), nn.Linear(16, 8)
    plan = KernelPlan(fused_residual=True, fused_mlp=fused_mlp)
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        layers = [nn.Linear(*size).to(dtype) for size in ((8, 16), (16, 8))]
        for layer, drawn in zip(layers, (up, down), strict=True):
            layer.load_state_dict({name: value.bfloat16().to(dtype) for name, value in drawn.state_dict().items()})
        y = mlp(x.bfloat16().to(dtype), *layers, plan, activation="gelu_tanh")
        (y * torch.linspace(0.5, 1, 8)).sum().backward()
        results.append([layer.bias.grad.double() for layer in layers])
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() / exact.norm() < 4e-3


def test_rows_that_are_no_multiple_of_sixteen_bytes_are_left_to_torch():
    assert not supports_fused_mlp(torch.device("cpu"), 20, 64)
    assert not supports_fused_mlp(torch.device("cpu"), 64, 20)
