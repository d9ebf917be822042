"""The kernels of the loss, run one program after the other by triton's interpreter, where there is one:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_cross_entropy.py

The interpreter takes a loop's bounds from arrays of one number, which numpy refuses from 2.4 on: it wants an older one.
"""

import os
from functools import partial

import pytest
import torch

from fixtures.linear_loss import errors, far_target, oracle, question
from headstart.kernels.cross_entropy import chunked_loss_cuda, from_logits

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels.triton.cross_entropy import from_exp_logits, logits_to_grad, scale_rows
from headstart.kernels.triton.mlp import Tile

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

# the interpreter multiplies bf16 wrongly, so products are in fp32 here; tests/gpu/test_gpu_training.py has both
WAYS = {
    "rows": from_logits(partial(logits_to_grad, most=64)),
    "powers": partial(from_exp_logits, tile=Tile(16, 32, 16)),
    "powers, tiles larger than all": partial(from_exp_logits, tile=Tile(128, 256, 64)),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "width", "vocabulary"), [(37, 19, 130), (1, 1, 1), (16, 16, 128), (5, 40, 65)])
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_gives_plain_cross_entropy(way, rows, width, vocabulary, biased):
    asked = question(rows, width, vocabulary, biased=biased)
    found = chunked_loss_cuda(*asked, torch.float32, rows=20, way=WAYS[way])
    for ours, theirs in zip(found, oracle(*asked), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("distance", [127, 300])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_whose_powers_overflow_is_done_again(way, distance, biased):
    """Powers themselves, or with the smaller distance what they are multiplied to."""
    asked = far_target(20, 19, 130, biased=biased, distance=distance)
    for error in errors(chunked_loss_cuda(*asked, torch.float32, way=WAYS[way]), oracle(*asked)):
        assert error < 1e-5


@pytest.mark.parametrize("group", [1, 2, 3])
def test_every_tile_is_made_whatever_the_rows_that_take_turns(group):
    """Four stretches of rows: the last turn is a full one, or has fewer of them."""
    asked = question(50, 19, 130, biased=True)
    way = partial(from_exp_logits, tile=Tile(16, 32, 16, group=group))
    for ours, theirs in zip(chunked_loss_cuda(*asked, torch.float32, way=way), oracle(*asked), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 40), (1, 1), (0, 8)])
def test_each_row_is_multiplied_by_its_own_number(shape):
    rows, numbers = torch.randn(shape), torch.randn(shape[0])
    assert scale_rows(rows, numbers).equal(rows * numbers[:, None])
