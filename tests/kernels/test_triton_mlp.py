"""Products with an activation inside, run one program after the other by triton's interpreter, where there is one:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_mlp.py

The interpreter takes a loop's bounds from arrays of one number, which numpy refuses from 2.4 on: it wants an older one.
"""

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels import mlp as thought
from headstart.kernels.triton import mlp as product_kernel
from headstart.kernels.triton.mlp import Tile

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

# the interpreter multiplies bf16 wrongly, so products are in fp32 here; tests/gpu/test_gpu_kernels.py has the others
SIZES = [(37, 24, 40), (1, 8, 8), (16, 16, 32), (50, 40, 136)]
TILES = [Tile(16, 32, 16, group=1), Tile(16, 32, 16, group=3), Tile(64, 64, 64)]


def drawn(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def same(ours, plain):
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("rows", "width", "places"), SIZES)
def test_an_activation_and_its_slopes(rows, width, places, biased, tile):
    x, weight, bias = drawn((rows, width), (places, width), (places,))
    given = x, weight, bias if biased else None
    same(product_kernel.linear_gelu(*given, tile=tile), thought._linear_gelu(*given))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("rows", "width", "places"), SIZES)
def test_the_way_back_through_a_product_and_an_activation(rows, width, places, tile):
    given = drawn((rows, width), (width, places), (rows, places))
    same(product_kernel.linear_gelu_backward(*given, tile=tile), thought._linear_gelu_backward(*given))
