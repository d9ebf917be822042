"""The kernels of the loss, run one program after the other by triton's interpreter, if triton is installed:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_cross_entropy.py

The interpreter takes a loop's bounds from arrays of one number, which numpy refuses from 2.4 on: it wants an older one.
"""

import os
from functools import partial

import pytest
import torch

from fixtures.linear_loss import far_target_inputs, linear_loss_inputs, reference_loss, relative_errors
from headstart.kernels.cross_entropy import chunked_loss_cuda, from_logits

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels.triton.cross_entropy import from_exp_logits, logits_to_grad, scale_rows
from headstart.kernels.triton.mlp import MatmulTile

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

# the interpreter multiplies bf16 wrongly, so products are in fp32 here; tests/gpu/test_gpu_training.py has both
CHUNK_LOSSES = {
    "logits": from_logits(partial(logits_to_grad, max_block=64)),
    "exp_logits": partial(from_exp_logits, tile=MatmulTile(16, 32, 16)),
    "exp_logits, one tile": partial(from_exp_logits, tile=MatmulTile(128, 256, 64)),
}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "width", "vocabulary"), [(37, 19, 130), (1, 1, 1), (16, 16, 128), (5, 40, 65)])
@pytest.mark.parametrize("name", CHUNK_LOSSES)
def test_the_loss_kernels_give_plain_cross_entropy(name, rows, width, vocabulary, has_bias):
    inputs = linear_loss_inputs(rows, width, vocabulary, has_bias=has_bias)
    results = chunked_loss_cuda(*inputs, torch.float32, rows=20, chunk_loss=CHUNK_LOSSES[name])
    for ours, theirs in zip(results, reference_loss(*inputs), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("distance", [127, 300])
@pytest.mark.parametrize("name", CHUNK_LOSSES)
def test_a_row_whose_exponentials_overflow_is_computed_again(name, distance, has_bias):
    """The exponentials themselves overflow or, with the smaller distance, their products."""
    inputs = far_target_inputs(20, 19, 130, has_bias=has_bias, distance=distance)
    results = chunked_loss_cuda(*inputs, torch.float32, chunk_loss=CHUNK_LOSSES[name])
    for error in relative_errors(results, reference_loss(*inputs)):
        assert error < 1e-5


@pytest.mark.parametrize("group", [1, 2, 3])
def test_every_tile_is_computed_whatever_the_group_size(group):
    """Four tiles of rows: the last group is full, or smaller."""
    inputs = linear_loss_inputs(50, 19, 130, has_bias=True)
    chunk_loss = partial(from_exp_logits, tile=MatmulTile(16, 32, 16, group=group))
    results = chunked_loss_cuda(*inputs, torch.float32, chunk_loss=chunk_loss)
    for ours, theirs in zip(results, reference_loss(*inputs), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 40), (1, 1), (0, 8)])
def test_each_row_is_multiplied_by_its_factor(shape):
    rows, factors = torch.randn(shape), torch.randn(shape[0])
    assert scale_rows(rows, factors).equal(rows * factors[:, None])
