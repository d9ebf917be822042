"""The loss without scores in memory has the numbers of the plain one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fixtures.linear_loss import question
from headstart.kernels import cross_entropy as losses
from headstart.kernels.cross_entropy import linear_cross_entropy, unit_grad


def plain(hidden, weight, bias, targets):
    return F.cross_entropy(hidden @ weight.T + bias, targets, reduction="sum")


@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 30), st.integers(1, 16), st.integers(0, 99))
def test_it_equals_plain_cross_entropy_and_its_gradients(rows, width, vocabulary, chunk, seed):
    torch.manual_seed(seed)
    parts = [torch.randn(rows, width), torch.randn(vocabulary, width), torch.randn(vocabulary)]
    targets = torch.randint(vocabulary, (rows,))
    ours = [part.clone().requires_grad_() for part in parts]
    theirs = [part.double().requires_grad_() for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CPU_CHUNK_ROWS", chunk)
        total = linear_cross_entropy(*ours, targets)
    expected = plain(*theirs, targets)
    (3 * total).backward()
    (3 * expected).backward()
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.double(), their.grad, rtol=1e-4, atol=1e-4)


def test_it_is_the_same_when_nothing_is_learnt():
    torch.manual_seed(0)
    hidden, weight, bias, targets = torch.randn(600, 8), torch.randn(40, 8), torch.randn(40), torch.randint(40, (600,))
    with torch.no_grad():
        total = linear_cross_entropy(hidden, weight, bias, targets)
    torch.testing.assert_close(total, plain(hidden, weight, bias, targets), rtol=1e-5, atol=1e-3)


def test_large_scores_do_not_overflow():
    hidden = torch.full((2, 1), 1e4, requires_grad=True)
    total = linear_cross_entropy(hidden, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.tensor([0, 1]))
    total.backward()
    assert total.item() == pytest.approx(2e4)
    assert torch.isfinite(hidden.grad).all()


def test_a_target_without_any_chance_has_a_finite_loss_and_a_slope():
    hidden = torch.tensor([[300.0]], requires_grad=True)
    total = linear_cross_entropy(hidden, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.tensor([1]))
    total.backward()  # the share of the target is exp(-600), which is 0 in this precision
    assert total.item() == pytest.approx(600)
    assert hidden.grad.item() == pytest.approx(2)


def test_the_vocabulary_need_not_fill_its_rows():
    """Rows of scores are laid out longer than the vocabulary; what lies behind it must have no share."""
    torch.manual_seed(0)
    parts = [torch.randn(5, 3), -100 * torch.ones(65, 3), -50 * torch.ones(65)]
    targets = torch.randint(65, (5,))
    total = linear_cross_entropy(*(part.requires_grad_() for part in parts), targets)
    torch.testing.assert_close(total, plain(*parts, targets))


def test_accumulated_gradients_are_the_sum_of_both():
    torch.manual_seed(0)
    weight = torch.randn(7, 3, requires_grad=True)
    bias, targets = torch.randn(7, requires_grad=True), torch.randint(7, (4,))
    hidden = [torch.randn(4, 3), torch.randn(4, 3)]
    for part in hidden:
        linear_cross_entropy(part, weight, bias, targets).backward()
    found, expected = (
        weight.grad.clone(),
        torch.autograd.grad(plain(torch.cat(hidden), weight, bias, targets.repeat(2)), weight),
    )
    torch.testing.assert_close(found, *expected)


def test_nothing_scored_is_nothing_lost():
    empty = linear_cross_entropy(torch.randn(0, 4), torch.randn(5, 4), torch.zeros(5), torch.zeros(0, dtype=torch.long))
    assert empty.item() == 0


def test_slopes_are_multiplied_wherever_they_lie():
    """Those of a table that was filled up are part of something larger."""
    whole = torch.randn(6, 8)
    for slope in (whole.clone(), whole[:5, :7], whole.T):
        expected = 3 * slope
        assert torch.equal(losses._scale_grad(slope, torch.tensor(3.0)), expected)
    assert losses._scale_grad(None, torch.tensor(3.0)) is None


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_slopes_are_multiplied_only_where_they_must_be(factor):
    found = []
    for way in ("the number 1 as it is", "a number"):
        hidden, weight, bias, targets = question(20, 8, 30, biased=True)
        learnt = [tensor.detach().clone().requires_grad_() for tensor in (hidden, weight, bias)]
        total = linear_cross_entropy(*learnt, targets)
        if way == "a number":
            total.backward(torch.tensor(factor))
        else:
            (total * factor if factor != 1 else total).backward(unit_grad(total))
        found.append([tensor.grad for tensor in learnt])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().sum() > 0
    assert unit_grad(total).item() == 1
