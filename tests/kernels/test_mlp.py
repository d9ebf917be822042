"""Two products with a GELU between."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headstart.kernels.mlp import _linear_gelu, _linear_gelu_backward, gelu, mlp, supports_fused_mlp


def plain(x, up, down, *, tanh, owes):
    wide = F.gelu(up(x), approximate="tanh" if tanh else "none")
    return F.linear(wide, down.weight) if owes else down(wide)


@pytest.mark.parametrize("tanh", [True, False])
def test_the_activation_and_its_slope_are_those_of_torch(tanh):
    x = torch.linspace(-30, 30, 4001, requires_grad=True)
    expected = F.gelu(x, approximate="tanh" if tanh else "none")
    (slopes,) = torch.autograd.grad(expected.sum(), x)
    after, steep = gelu(x.detach(), tanh=tanh)
    torch.testing.assert_close(after, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(steep, slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tanh", [True, False])
def test_of_short_numbers_both_are_rounded_once(tanh):
    x = torch.linspace(-6, 6, 97).bfloat16()
    for ours, exact in zip(gelu(x, tanh=tanh), gelu(x.float(), tanh=tanh), strict=True):
        assert ours.equal(exact.bfloat16())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler about parts of torch that nobody asked for
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("bias", "owes"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("tanh", [True, False])
def test_two_layers_and_what_is_between_them_are_those_of_torch(tanh, bias, owes, inside, compiled):
    if compiled:
        torch._dynamo.reset()
    found = []
    for own in (True, False):
        torch.manual_seed(0)
        x, up, down = torch.randn(3, 5, 24, requires_grad=True), nn.Linear(24, 40, bias), nn.Linear(40, 24, bias)
        ours = torch.compile(mlp) if compiled else mlp
        y = ours(x, up, down, tanh=tanh, owes=owes, inside=inside) if own else plain(x, up, down, tanh=tanh, owes=owes)
        (y * torch.randn_like(y)).sum().backward()
        learnt = [parameter.grad for layer in (up, down) for parameter in layer.parameters()]
        found.append([y.detach(), x.grad, *learnt])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_compiler_is_told_what_the_operations_give(kind):
    x, up, bias = torch.randn(2, 3, 8).to(kind), torch.randn(16, 8).to(kind), torch.randn(16).to(kind)
    torch.library.opcheck(_linear_gelu, (x, up, bias))
    torch.library.opcheck(_linear_gelu_backward, (x, torch.randn(8, 16).to(kind), torch.randn(2, 3, 16).to(kind)))


@pytest.mark.parametrize("inside", [True, False])
def test_slopes_of_short_numbers_are_summed_up_in_long_ones(inside):
    """4,096 rows: summed up in bf16 they would be far off."""
    torch.manual_seed(0)
    x, up, down = torch.randn(4096, 8), nn.Linear(8, 16), nn.Linear(16, 8)
    found = []
    for kind in (torch.bfloat16, torch.float32):
        a, b = (nn.Linear(*size).to(kind) for size in ((8, 16), (16, 8)))
        for ours, drawn in ((a, up), (b, down)):
            ours.load_state_dict({name: value.bfloat16().to(kind) for name, value in drawn.state_dict().items()})
        y = mlp(x.bfloat16().to(kind), a, b, tanh=True, owes=False, inside=inside)
        (y * torch.linspace(0.5, 1, 8)).sum().backward()
        found.append((a.bias.grad.double(), b.bias.grad.double()))
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() / exact.norm() < 4e-3


def test_rows_that_are_no_multiple_of_sixteen_bytes_are_left_to_torch():
    assert not supports_fused_mlp(torch.device("cpu"), 20, 64)
    assert not supports_fused_mlp(torch.device("cpu"), 64, 20)
