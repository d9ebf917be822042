"""The kernels between products, run one program after the other by triton's interpreter, where there is one:

TRITON_INTERPRET=1 python -m pytest tests/kernels/test_triton_elementwise.py
"""

import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run without a GPU under TRITON_INTERPRET=1 only", allow_module_level=True)

from headstart.kernels import dispatch as stream
from headstart.kernels.triton import elementwise as stream_kernel
from headstart.kernels.triton import norm as norm_kernel
from headstart.kernels.triton.elementwise import Tile

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

SHAPES = [(37, 24), (1, 1), (16, 64), (5, 300), (130, 40), (3, 2500)]


def same(ours, plain):
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def drawn(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("owed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_and_its_norm(shape, owed, biased, centred):
    x, more, weight, bias, debt = drawn(shape, shape, shape[1:], shape[1:], shape[1:])
    given = x, more, debt if owed else None, weight, bias if biased else None, 1e-5
    ours = norm_kernel.add_norm(*given, torch.float32, centred=centred)
    plain = stream._add_norm(*given, centred, torch.float32)
    kept = [0, 1, 2, 3] if centred else [0, 1, 3]
    same([ours[i] for i in kept], [plain[i] for i in kept])


@pytest.mark.parametrize("tile", [Tile(1, 3, 1, 2), Tile(4, 2, 1, 1), Tile(2, 32, 4, 2)])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_back_through_it(shape, centred, alone, tile):
    x, more, weight, by_total, by_normed = drawn(shape, shape, shape[1:], shape, shape)
    total, _, means, scales = stream._add_norm(x, more, None, weight, None, 1e-5, centred, torch.float32)
    given = None if alone else by_total, by_normed, total, means, scales, weight
    ours = norm_kernel.add_norm_backward(*given, torch.float32, centred=centred, owed=True, tile=tile)
    same(ours, stream._add_norm_back(*given, centred, True, torch.float32))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 20)])
def test_three_side_by_side(shape):
    parts = drawn(shape, shape, shape)
    same(stream_kernel.concat_sum(*parts), stream.concat_sum(*parts))


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (64, 32), (200, 70)])
def test_parts_are_added_up(count, columns):
    (parts,) = drawn((count, columns))
    same([stream_kernel.sum_parts(parts)], [parts.sum(dim=0)])


def test_slopes_of_rows_that_were_looked_up():
    (slopes,), ids = drawn((7, 20)), torch.tensor([3, 0, 3, 4, 3, 0, 1])
    same([stream_kernel.embedding_backward(slopes, ids, 6)], [torch.zeros(6, 20).index_add_(0, ids, slopes)])


@pytest.mark.parametrize("placed", [True, False])
def test_rows_of_a_table_and_of_places(placed):
    table, places = drawn((9, 20), (5, 20))
    ids, at = torch.tensor([[3, 0, 8], [3, 4, 1]]), torch.tensor([[4, 1, 0], [0, 0, 2]])
    found = stream_kernel.embedding(ids, table, *((at, places) if placed else (None, None)))
    assert found.equal(table[ids] + places[at] if placed else table[ids])


def test_an_id_that_is_none_reads_and_writes_nothing():
    (table,) = drawn((4, 6))
    ids = torch.tensor([1, 4, -1])
    found = stream_kernel.embedding(ids, table, None, None)
    assert found[0].equal(table[1])
    assert found[1:].isnan().all()  # which stops a run; a number from elsewhere would not
    back = stream_kernel.embedding_backward(torch.ones(3, 6), ids, 4)
    assert back.sum(dim=1).tolist() == [0, 6, 0, 0]


def test_few_rows_are_shared_out_among_as_many_programs():
    whole = Tile(tall=4, steps=32, warps=4, stages=2, wide=1024)
    assert [whole.within(rows).steps for rows in (1, 1024, 2047, 2048, 32768, 10**6)] == [1, 1, 1, 2, 32, 32]
