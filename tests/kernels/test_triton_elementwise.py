"""The memory-bound kernels, run one program after the other by triton's interpreter, if triton is installed:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_elementwise.py
"""

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels import attention, residual_norm
from headstart.kernels.triton import elementwise
from headstart.kernels.triton import norm as triton_norm
from headstart.kernels.triton.elementwise import RowTile

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

SHAPES = [(37, 24), (1, 1), (16, 64), (5, 300), (130, 40), (3, 2500)]


def assert_all_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def randn(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_hidden_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_adds_and_normalizes_like_its_reference(shape, has_hidden_bias, has_bias, centered):
    residual, hidden, weight, bias, hidden_bias = randn(shape, shape, shape[1:], shape[1:], shape[1:])
    inputs = residual, hidden, hidden_bias if has_hidden_bias else None, weight, bias if has_bias else None, 1e-5
    ours = triton_norm.add_norm(*inputs, torch.float32, centered=centered)
    reference = residual_norm._add_norm(*inputs, centered, torch.float32)
    compared = [0, 1, 2, 3] if centered else [0, 1, 3]  # without centering the kernel stores no means
    assert_all_close([ours[i] for i in compared], [reference[i] for i in compared])


@pytest.mark.parametrize("tile", [RowTile(1, 3, 1, 2), RowTile(4, 2, 1, 1), RowTile(2, 32, 4, 2)])
@pytest.mark.parametrize("has_grad_total", [False, True])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_of_the_backward_pass_agrees_with_its_reference(shape, centered, has_grad_total, tile):
    residual, hidden, weight, grad_total, grad_normed = randn(shape, shape, shape[1:], shape, shape)
    total, _, means, scales = residual_norm._add_norm(
        residual, hidden, None, weight, None, 1e-5, centered, torch.float32
    )
    inputs = grad_total if has_grad_total else None, grad_normed, total, means, scales, weight
    ours = triton_norm.add_norm_backward(*inputs, torch.float32, centered=centered, has_hidden_bias=True, tile=tile)
    assert_all_close(ours, residual_norm._add_norm_backward(*inputs, centered, True, torch.float32))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 20)])
def test_three_tensors_are_concatenated_and_summed(shape):
    tensors = randn(shape, shape, shape)
    assert_all_close(elementwise.concat_sum(*tensors), attention.concat_sum(*tensors))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (64, 32), (200, 70)])
def test_rows_are_summed(rows, columns):
    (x,) = randn((rows, columns))
    assert_all_close([elementwise.sum_rows(x)], [x.sum(dim=0)])


def test_gradients_of_an_embedding_are_added_to_their_entries():
    (grads,), ids = randn((7, 20)), torch.tensor([3, 0, 3, 4, 3, 0, 1])
    assert_all_close([elementwise.embedding_backward(grads, ids, 6)], [torch.zeros(6, 20).index_add_(0, ids, grads)])


@pytest.mark.parametrize("has_positions", [True, False])
def test_an_embedding_adds_that_of_the_positions(has_positions):
    table, position_table = randn((9, 20), (5, 20))
    ids, positions = torch.tensor([[3, 0, 8], [3, 4, 1]]), torch.tensor([[4, 1, 0], [0, 0, 2]])
    embedded = elementwise.embedding(ids, table, *((positions, position_table) if has_positions else (None, None)))
    assert embedded.equal(table[ids] + position_table[positions] if has_positions else table[ids])


def test_an_id_outside_the_table_gives_nan_and_no_gradient():
    (table,) = randn((4, 6))
    ids = torch.tensor([1, 4, -1])
    embedded = elementwise.embedding(ids, table, None, None)
    assert embedded[0].equal(table[1])
    assert embedded[1:].isnan().all()  # which stops a run; a number from elsewhere in memory would not
    grad = elementwise.embedding_backward(torch.ones(3, 6), ids, 4)
    assert grad.sum(dim=1).tolist() == [0, 6, 0, 0]


def test_few_rows_are_divided_among_as_many_programs():
    tile = RowTile(block_m=4, steps=32, warps=4, stages=2, block_n=1024)
    assert [tile.within(rows).steps for rows in (1, 1024, 2047, 2048, 32768, 10**6)] == [1, 1, 1, 2, 32, 32]
