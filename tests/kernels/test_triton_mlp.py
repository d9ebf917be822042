"""Products with an activation inside, run one program after the other by triton's interpreter, if triton is installed:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_mlp.py

The interpreter takes a loop's bounds from arrays of one number, which numpy refuses from 2.4 on: it wants an older one.
"""

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels import mlp
from headstart.kernels.triton import mlp as triton_mlp
from headstart.kernels.triton.mlp import MatmulTile

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

# the interpreter multiplies bf16 wrongly, so products are in fp32 here; tests/gpu/test_gpu_kernels.py has both
SIZES = [(37, 24, 40), (1, 8, 8), (16, 16, 32), (50, 40, 136)]
TILES = [MatmulTile(16, 32, 16, group=1), MatmulTile(16, 32, 16, group=3), MatmulTile(64, 64, 64)]


def randn(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def assert_all_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("rows", "width", "feedforward"), SIZES)
def test_the_kernel_computes_activation_and_derivative_like_its_reference(rows, width, feedforward, has_bias, tile):
    x, weight, bias = randn((rows, width), (feedforward, width), (feedforward,))
    inputs = x, weight, bias if has_bias else None
    assert_all_close(triton_mlp.linear_gelu(*inputs, tile=tile), mlp._linear_gelu(*inputs))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("rows", "width", "feedforward"), SIZES)
def test_the_kernel_of_the_backward_pass_agrees_with_its_reference(rows, width, feedforward, tile):
    inputs = randn((rows, width), (width, feedforward), (rows, feedforward))
    assert_all_close(triton_mlp.linear_gelu_backward(*inputs, tile=tile), mlp._linear_gelu_backward(*inputs))
