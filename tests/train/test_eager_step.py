"""Scaling and clipping in one multiplication equals torch's own clipping; batches are transferred to a device."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fixtures.tiny import CPU, SPECIAL
from headstart.data.datasets import LabelledDataset
from headstart.train.parallel import SINGLE
from headstart.train.step import EagerStep, to_device


def network(size):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for parameter in model.parameters():
        parameter.grad = size * torch.randn_like(parameter)
    model[0].bias.grad = None  # a weight without a gradient
    return model


@given(
    st.floats(1e-8, 1e12),
    st.floats(1e-6, 10),
    st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    st.booleans(),
)
def test_scale_and_clip_equals_torchs_clip_grad_norm(size, scale, clip, as_tensor):
    ours = network(size)
    theirs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for parameter, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        reference.grad = None if parameter.grad is None else parameter.grad * scale
    norm = EagerStep(ours, None, CPU, SINGLE).scale_and_clip(torch.tensor(scale) if as_tensor else scale, clip)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), clip or float("inf"))
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
    assert ours[0].bias.grad is None
    for parameter, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(broken, clip):
    model = network(1.0)
    model[1].weight.grad[0, 0] = broken
    assert not EagerStep(model, None, CPU, SINGLE).scale_and_clip(0.1, clip).isfinite()


def test_a_batch_that_stays_on_the_cpu_is_returned_unchanged():
    batch = LabelledDataset([np.array([4, 5])], [0], SPECIAL, context=8).batch([0])
    assert to_device(batch, torch.device("cpu")) is batch
    assert batch.cu_seqlens is None


def test_all_tensors_of_a_batch_are_transferred():
    batch = LabelledDataset([np.array([4, 5])], [0], SPECIAL, context=8).batch([0])
    moved = to_device(batch, torch.device("meta"))
    assert moved.tensors().keys() == batch.tensors().keys() == {"ids_BT", "targets", "lengths_B"}
    assert {tensor.device.type for tensor in moved.tensors().values()} == {"meta"}
