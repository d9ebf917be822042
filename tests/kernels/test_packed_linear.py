"""Packed linear layers give the results of torch's, and a row of a result does not depend on the other rows."""

import pytest
import torch
from torch import nn

from headstart.kernels.packed_linear import PackedLinear, has_packed_products, pack_linears

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not has_packed_products(), reason="needs an x86 processor and torch with oneDNN")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@needs_packing
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_result_of_the_layer(dtype, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(48, 80, bias=bias), torch.randn(3, 7, 48)
    packed = PackedLinear(linear, dtype)
    with torch.inference_mode():
        result = packed(x)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, linear(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@needs_packing
def test_with_gradients_a_packed_layer_is_the_ordinary_one():
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 8), torch.randn(4, 16, requires_grad=True)
    packed = PackedLinear(linear, torch.bfloat16)
    assert torch.equal(packed(x), linear(x))
    packed(x).sum().backward()
    assert x.grad is not None
    assert list(packed.state_dict()) == ["weight", "bias"]


@needs_packing
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 768), (704, 256), (16, 48), (100, 300)])
def test_a_row_of_the_result_does_not_depend_on_the_others(dtype, inputs, outputs):
    torch.manual_seed(0)
    packed, x = PackedLinear(nn.Linear(inputs, outputs), dtype), torch.randn(1100, inputs)
    with torch.inference_mode():
        together = packed(x)
        for start, rows in ((0, 2), (3, 7), (10, 64), (40, 333), (75, 1025)):
            assert torch.equal(packed(x[start : start + rows].clone()), together[start : start + rows])


def test_layers_are_packed_on_a_cpu_only():
    network = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)))
    assert not pack_linears(network, torch.device("cuda"), bf16=False)
    assert not any(isinstance(module, PackedLinear) for module in network.modules())
    assert pack_linears(network, CPU, bf16=False) is has_packed_products()
    packed = [module for module in network.modules() if isinstance(module, PackedLinear)]
    assert len(packed) == (2 if has_packed_products() else 0)
