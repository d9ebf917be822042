"""Muon is torch's own rule; that matrices of one shape go through it together changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.train.optimizers import Muon, orthogonalize

SHAPES = [(12, 8), (8, 12), (10, 10), (12, 8), (8, 12), (12, 8)]


def moved(build, steps=4):
    """Parameters after some steps on the same gradients."""
    chance = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in SHAPES]
    optimizers = build(parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=chance)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


def ours(parameters):
    return [Muon([{"params": parameters, "weight_decay": 0.1}], lr=0.02)]


def torchs(parameters):
    return [torch.optim.Muon(parameters, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")]


def test_it_moves_matrices_as_torch_does():
    start = moved(ours, steps=0)
    for found, expected, before in zip(moved(ours), moved(torchs), start, strict=True):
        # torch iterates in bf16, which is exact to about one part in 250
        assert (found - expected).norm() < 0.02 * (expected - before).norm()


def test_one_by_one_or_together_is_the_same():
    alone = moved(lambda parameters: [Muon([{"params": [p], "weight_decay": 0.1}], lr=0.02) for p in parameters])
    for found, expected in zip(moved(ours), alone, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)


def test_groups_of_one_shape_keep_their_own_rate_and_decay():
    def build(parameters):
        quick = {"params": parameters[:3], "lr": 0.02, "weight_decay": 0.1}
        return [Muon([quick, {"params": parameters[3:], "lr": 0.0}], lr=0.02)]

    start, found, usual = moved(build, steps=0), moved(build), moved(ours)
    assert all(torch.equal(a, b) for a, b in zip(found[3:], start[3:], strict=True))
    assert all(a == pytest.approx(b, abs=1e-6) for a, b in zip(found[:3], usual[:3], strict=True))


def test_a_matrix_without_a_gradient_stays():
    still, moving = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    moving.grad = torch.eye(4)
    Muon([{"params": [still, moving]}], lr=0.1).step()
    assert torch.equal(still, torch.ones(4, 4))
    assert not torch.equal(moving, torch.ones(4, 4))


@given(st.integers(1, 3), st.integers(2, 20), st.integers(2, 20), st.integers(0, 99))
def test_updates_have_singular_values_near_one(count, rows, columns, seed):
    stack = torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(seed))
    found = torch.linalg.svdvals(orthogonalize(stack))
    expected = torch.linalg.svdvals(stack)
    # directions that hardly move are hardly raised: five rounds multiply by at most 3.4445 each
    lively = expected > 0.01 * expected.norm(dim=-1, keepdim=True)
    assert ((found > 0.4) & (found < 1.3))[lively].all()
