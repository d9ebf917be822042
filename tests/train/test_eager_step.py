"""Gradients are scaled and clipped as torch does it, in one go."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fixtures.tiny import CPU
from headstart.train.parallel import SINGLE
from headstart.train.step import EagerStep


def network(size):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for parameter in model.parameters():
        parameter.grad = size * torch.randn_like(parameter)
    model[0].bias.grad = None  # a weight that nothing was asked of
    return model


@given(
    st.floats(1e-8, 1e12),
    st.floats(1e-6, 10),
    st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    st.booleans(),
)
def test_gradients_are_those_of_torchs_own_clipping(size, scale, clip, as_tensor):
    ours = network(size)
    theirs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.grad = None if own.grad is None else own.grad * scale
    norm = EagerStep(ours, None, CPU, SINGLE).scale_and_clip(torch.tensor(scale) if as_tensor else scale, clip)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), clip or float("inf"))
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
    assert ours[0].bias.grad is None
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if own.grad is not None:
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(broken, clip):
    model = network(1.0)
    model[1].weight.grad[0, 0] = broken
    assert not EagerStep(model, None, CPU, SINGLE).scale_and_clip(0.1, clip).isfinite()
