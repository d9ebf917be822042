"""Muon equals `torch.optim.Muon`; updating matrices of one shape together changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.train.optimizers import Muon, orthogonalize

SHAPES = [(12, 8), (8, 12), (10, 10), (12, 8), (8, 12), (12, 8)]


def trained(build, steps=4):
    """Return the parameters after some steps on the same gradients."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizers = build(parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


def ours(parameters):
    return [Muon([{"params": parameters, "weight_decay": 0.1}], lr=0.02)]


def torchs(parameters):
    return [torch.optim.Muon(parameters, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")]


def test_muon_updates_matrices_as_torch_does():
    start = trained(ours, steps=0)
    for actual, expected, before in zip(trained(ours), trained(torchs), start, strict=True):
        # torch iterates in bf16, which is exact to about one part in 250
        assert (actual - expected).norm() < 0.02 * (expected - before).norm()


def test_matrices_updated_together_equal_those_updated_one_by_one():
    one_by_one = trained(lambda parameters: [Muon([{"params": [p], "weight_decay": 0.1}], lr=0.02) for p in parameters])
    for actual, expected in zip(trained(ours), one_by_one, strict=True):
        assert actual == pytest.approx(expected, abs=1e-6)


def test_parameter_groups_of_one_shape_keep_their_rate_and_decay():
    def build(parameters):
        fast = {"params": parameters[:3], "lr": 0.02, "weight_decay": 0.1}
        return [Muon([fast, {"params": parameters[3:], "lr": 0.0}], lr=0.02)]

    start, actual, usual = trained(build, steps=0), trained(build), trained(ours)
    assert all(torch.equal(a, b) for a, b in zip(actual[3:], start[3:], strict=True))
    assert all(a == pytest.approx(b, abs=1e-6) for a, b in zip(actual[:3], usual[:3], strict=True))


def test_a_matrix_without_a_gradient_is_not_updated():
    without_grad, with_grad = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    with_grad.grad = torch.eye(4)
    Muon([{"params": [without_grad, with_grad]}], lr=0.1).step()
    assert torch.equal(without_grad, torch.ones(4, 4))
    assert not torch.equal(with_grad, torch.ones(4, 4))


@given(st.integers(1, 3), st.integers(2, 20), st.integers(2, 20), st.integers(0, 99))
def test_updates_have_singular_values_near_one(count, rows, columns, seed):
    stack = torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(seed))
    updated = torch.linalg.svdvals(orthogonalize(stack))
    original = torch.linalg.svdvals(stack)
    # small singular values stay small: five rounds multiply by at most 3.4445 each
    not_small = original > 0.01 * original.norm(dim=-1, keepdim=True)
    assert ((updated > 0.4) & (updated < 1.3))[not_small].all()
