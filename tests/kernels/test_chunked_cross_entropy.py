"""The loss as a GPU computes it, a bite of rows at a time, has the numbers of the plain one; here on the CPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.linear_loss import errors, far_target, oracle, question
from headstart.config.schema import IGNORE_INDEX
from headstart.kernels import cross_entropy as bites
from headstart.kernels.cross_entropy import chunk_rows, chunked_loss_cuda


def powers_in_torch(hidden, table, vocabulary, bias, targets, out):
    """What the kernels of `power_kernel` do, one operation after the other."""
    scores = hidden.to(out.dtype).float() @ table.float().T
    if bias is not None:
        scores += bias
    scores[:, vocabulary:] = -torch.inf
    picked = scores.gather(1, targets[:, None])
    zero = picked + 40
    total = (scores - zero).exp().sum(dim=1, keepdim=True)
    again = total >= 1e30
    zero = torch.where(again, scores.amax(dim=1, keepdim=True), zero)
    powers = (scores - zero).exp()
    total = powers.sum(dim=1, keepdim=True)
    slope = (picked - zero).exp() - total
    kept = slope.to(out.dtype)
    out.copy_(powers).scatter_(1, targets[:, None], kept)
    share = torch.where(kept == 0, 1, slope / kept.float()) / total
    shared = hidden.float() * share
    if bias is not None:
        shared[:, -1:] = share - share.to(out.dtype).float()
    return (zero - picked + total.log())[:, 0], share[:, 0], shared.to(out.dtype)


WAYS = {"scores": None, "powers": powers_in_torch}


@given(
    st.integers(0, 40),
    st.integers(1, 17),
    st.integers(1, 140),
    st.integers(1, 16),
    st.booleans(),
    st.sampled_from(sorted(WAYS)),
)
def test_it_equals_plain_cross_entropy_and_its_gradients(rows, width, vocabulary, bite, biased, way):
    asked = question(rows, width, vocabulary, biased=biased)
    found = chunked_loss_cuda(*asked, torch.float32, rows=bite, way=WAYS[way])
    for ours, theirs in zip(found, oracle(*asked), strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("biased", [False, True])
def test_rows_without_a_target_have_no_loss_and_no_slopes(way, biased):
    hidden, weight, bias, targets = question(40, 7, 90, biased=biased)
    targets[[0, 5, 17, 39]] = IGNORE_INDEX
    asked = hidden, weight, bias, targets
    found = chunked_loss_cuda(*asked, torch.float32, rows=16, way=WAYS[way], gaps=True)
    for ours, theirs in zip(found, oracle(*asked), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    assert not found[1][[0, 5, 17, 39]].any()
    assert found[1][1].any()  # control


@pytest.mark.parametrize("way", WAYS)
def test_in_bf16_it_is_as_close_as_bf16_is(way):
    asked = question(200, 24, 333, biased=True)
    found = chunked_loss_cuda(*asked, torch.bfloat16, rows=64, way=WAYS[way])
    assert all(part.dtype == torch.float32 for part in found)
    for error in errors(found, oracle(*asked)):
        assert 0 < error < 0.02


@pytest.mark.parametrize(("scale", "vocabulary"), [(0.02, 2000), (0.25, 2000), (0.25, 65), (0.5, 333)])
def test_powers_are_no_less_exact_than_scores(scale, vocabulary):
    """In bf16, where scores are rounded before their powers are taken, and powers after it."""
    asked = question(300, 100, vocabulary, biased=True, scale=scale)
    expected = oracle(*asked)
    by_scores, by_powers = (
        errors(chunked_loss_cuda(*asked, torch.bfloat16, way=way), expected) for way in WAYS.values()
    )
    for ours, usual in zip(by_powers, by_scores, strict=True):
        assert ours < 1.1 * usual + 1e-4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.005)])
def test_a_target_far_from_the_best_costs_no_precision(way, kind, most):
    asked = far_target(40, 19, 130, biased=True)
    for error in errors(chunked_loss_cuda(*asked, kind, way=WAYS[way]), oracle(*asked)):
        assert error < most


@pytest.mark.parametrize("way", WAYS)
def test_what_fills_a_row_up_has_no_share(way):
    """All scores far below 0, which is what an entry made of zeros would score."""
    hidden, weight, bias = torch.randn(5, 3), -100 * torch.ones(65, 3), -50 * torch.ones(65)
    asked = hidden.abs(), weight, bias, torch.randint(65, (5,))
    for ours, theirs in zip(chunked_loss_cuda(*asked, torch.float32, way=WAYS[way]), oracle(*asked), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-3)


def test_the_gradient_of_a_round_table_is_handed_on_without_a_copy():
    *_, weight, _ = chunked_loss_cuda(*question(9, 16, 64, biased=False), torch.float32)
    assert weight.is_contiguous()


@pytest.mark.parametrize("places", [8192, 16384, 50048, 128256])
@pytest.mark.parametrize("count", [1, 127, 19660, 32768, 65536])
def test_bites_are_alike_and_stay_within_the_budget(count, places):
    rows = chunk_rows(count, places, 2)
    assert rows % 128 == 0
    assert rows * places * 2 <= bites._CHUNK_BYTES
    number = -(-count // rows)
    assert number * rows - count < 128 * number  # the last one is no crumb
