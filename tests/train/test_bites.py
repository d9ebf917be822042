"""The loss as a GPU computes it, a bite of rows at a time, has the numbers of the plain one; here on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.train import bites
from headstart.train.bites import bite_rows, loss_in_bites


def oracle(hidden, weight, bias, targets):
    """Loss and gradients in double precision."""
    parts = [None if part is None else part.double().requires_grad_() for part in (hidden, weight, bias)]
    total = F.cross_entropy(F.linear(*parts), targets, reduction="sum")
    total.backward()
    return total.detach(), *(None if part is None else part.grad for part in parts)


def question(rows, width, vocabulary, *, biased, seed=0):
    torch.manual_seed(seed)
    bias = torch.randn(vocabulary) if biased else None
    return torch.randn(rows, width), torch.randn(vocabulary, width), bias, torch.randint(vocabulary, (rows,))


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 17),
    st.integers(1, 140),
    st.integers(1, 16),
    st.one_of(st.none(), st.integers(1, 9)),
    st.booleans(),
)
def test_it_equals_plain_cross_entropy_and_its_gradients(rows, width, vocabulary, bite, near, biased):
    asked = question(rows, width, vocabulary, biased=biased)
    found = loss_in_bites(*asked, torch.float32, rows=bite, near=near)
    for ours, theirs in zip(found, oracle(*asked), strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_in_bf16_it_is_as_close_as_bf16_is():
    asked = question(200, 24, 333, biased=True)
    expected = oracle(*asked)
    for ours, theirs in zip(loss_in_bites(*asked, torch.bfloat16, rows=64), expected, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours.double() - theirs).norm() / theirs.norm() < 0.02


def test_what_fills_a_row_up_has_no_share():
    """All scores far below 0, which is what an entry made of zeros would score."""
    hidden, weight, bias = torch.randn(5, 3), -100 * torch.ones(65, 3), -50 * torch.ones(65)
    asked = hidden.abs(), weight, bias, torch.randint(65, (5,))
    for ours, theirs in zip(loss_in_bites(*asked, torch.float32), oracle(*asked), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-3)


def test_the_gradient_of_a_round_table_is_handed_on_without_a_copy():
    *_, weight, _ = loss_in_bites(*question(9, 16, 64, biased=False), torch.float32)
    assert weight.is_contiguous()


@pytest.mark.parametrize("places", [8192, 16384, 50048, 128256])
@pytest.mark.parametrize("count", [1, 127, 19660, 32768, 65536])
def test_bites_are_alike_and_stay_within_the_budget(count, places):
    rows = bite_rows(count, places, 2)
    assert rows % 128 == 0
    assert rows * places * 2 <= bites._BITE_BYTES
    number = -(-count // rows)
    assert number * rows - count < 128 * number  # the last one is no crumb
