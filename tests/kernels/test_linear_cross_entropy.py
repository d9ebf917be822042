"""The cross-entropy without logits in memory has the numbers of the plain one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fixtures.linear_loss import linear_loss_inputs
from headstart.config.schema import IGNORE_INDEX
from headstart.kernels import cross_entropy
from headstart.kernels.cross_entropy import linear_cross_entropy, unit_grad


def plain_loss(hidden, weight, bias, targets):
    return F.cross_entropy(hidden @ weight.T + bias, targets, reduction="sum")


@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 30), st.integers(1, 16), st.integers(0, 99))
def test_the_loss_equals_plain_cross_entropy_and_its_gradients(rows, width, vocabulary, chunk, seed):
    torch.manual_seed(seed)
    parameters = [torch.randn(rows, width), torch.randn(vocabulary, width), torch.randn(vocabulary)]
    targets = torch.randint(vocabulary, (rows,))
    ours = [parameter.clone().requires_grad_() for parameter in parameters]
    theirs = [parameter.double().requires_grad_() for parameter in parameters]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CPU_CHUNK_ROWS", chunk)
        total = linear_cross_entropy(*ours, targets)
    expected = plain_loss(*theirs, targets)
    (3 * total).backward()
    (3 * expected).backward()
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.double(), their.grad, rtol=1e-4, atol=1e-4)


def test_the_loss_is_the_same_without_gradients():
    torch.manual_seed(0)
    hidden, weight, bias, targets = torch.randn(600, 8), torch.randn(40, 8), torch.randn(40), torch.randint(40, (600,))
    with torch.no_grad():
        total = linear_cross_entropy(hidden, weight, bias, targets)
    torch.testing.assert_close(total, plain_loss(hidden, weight, bias, targets), rtol=1e-5, atol=1e-3)


def test_large_logits_do_not_overflow():
    hidden = torch.full((2, 1), 1e4, requires_grad=True)
    total = linear_cross_entropy(hidden, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.tensor([0, 1]))
    total.backward()
    assert total.item() == pytest.approx(2e4)
    assert torch.isfinite(hidden.grad).all()


def test_a_target_of_probability_zero_has_a_finite_loss_and_a_gradient():
    hidden = torch.tensor([[300.0]], requires_grad=True)
    total = linear_cross_entropy(hidden, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.tensor([1]))
    total.backward()  # the probability of the target is exp(-600), which is 0 in this precision
    assert total.item() == pytest.approx(600)
    assert hidden.grad.item() == pytest.approx(2)


def test_padding_of_the_logits_has_no_probability():
    """Rows of logits are longer than the vocabulary."""
    torch.manual_seed(0)
    parameters = [torch.randn(5, 3), -100 * torch.ones(65, 3), -50 * torch.ones(65)]
    targets = torch.randint(65, (5,))
    total = linear_cross_entropy(*(parameter.requires_grad_() for parameter in parameters), targets)
    torch.testing.assert_close(total, plain_loss(*parameters, targets))


def test_accumulated_gradients_are_the_sum_of_both():
    torch.manual_seed(0)
    weight = torch.randn(7, 3, requires_grad=True)
    bias, targets = torch.randn(7, requires_grad=True), torch.randint(7, (4,))
    hidden = [torch.randn(4, 3), torch.randn(4, 3)]
    for rows in hidden:
        linear_cross_entropy(rows, weight, bias, targets).backward()
    accumulated = weight.grad.clone()
    expected = torch.autograd.grad(plain_loss(torch.cat(hidden), weight, bias, targets.repeat(2)), weight)
    torch.testing.assert_close(accumulated, *expected)


def test_the_loss_of_no_rows_is_zero():
    empty = linear_cross_entropy(torch.randn(0, 4), torch.randn(5, 4), torch.zeros(5), torch.zeros(0, dtype=torch.long))
    assert empty.item() == 0


def test_gradients_are_scaled_in_any_memory_layout():
    """The gradient of a padded weight is a view of a larger one."""
    padded = torch.randn(6, 8)
    for grad in (padded.clone(), padded[:5, :7], padded.T):
        expected = 3 * grad
        assert torch.equal(cross_entropy._scale_grad(grad, torch.tensor(3.0)), expected)
    assert cross_entropy._scale_grad(None, torch.tensor(3.0)) is None


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_unit_gradient_gives_the_gradients_of_any_other_one(factor):
    results = []
    for unit in (True, False):
        hidden, weight, bias, targets = linear_loss_inputs(20, 8, 30, has_bias=True)
        parameters = [tensor.detach().clone().requires_grad_() for tensor in (hidden, weight, bias)]
        total = linear_cross_entropy(*parameters, targets)
        if unit:
            (total * factor if factor != 1 else total).backward(unit_grad(total))
        else:
            total.backward(torch.tensor(factor))
        results.append([parameter.grad for parameter in parameters])
    for with_unit, without in zip(*results, strict=True):
        torch.testing.assert_close(with_unit, without)
        assert with_unit.abs().sum() > 0
    assert unit_grad(total).item() == 1


def test_ignored_rows_count_for_nothing():
    hidden, weight, bias, targets = linear_loss_inputs(20, 8, 30, has_bias=True)
    partly = targets.clone()
    partly[::3] = IGNORE_INDEX
    ignoring = linear_cross_entropy(hidden, weight, bias, partly, ignore_index=IGNORE_INDEX)
    expected = F.cross_entropy(F.linear(hidden, weight, bias), partly, ignore_index=IGNORE_INDEX, reduction="sum")
    torch.testing.assert_close(ignoring, expected)
