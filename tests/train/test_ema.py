"""The EMA of the weights: its window, the block that uses it, and its checkpoint."""

import pytest
import torch
from torch import nn

from fixtures.tiny import classifier
from headstart.config.schema import OptimConfig
from headstart.train.ema import EMA, ema_weights
from headstart.train.optimizers import build_optimizer, optimizer_tensors, restore_optimizer


def update_with(model, ema, values, steps=10_000):
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            model.weight.fill_(value)
        ema.update(step, steps)


def test_the_ema_of_few_steps_is_their_mean():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    update_with(model, ema, [2.0, 4.0, 9.0])
    assert ema.means["weight"].item() == pytest.approx(5.0)


def test_the_ema_of_many_steps_decays_at_its_rate():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.5)
    update_with(model, ema, [8.0, 8.0, 0.0, 0.0])
    assert ema.means["weight"].item() == pytest.approx(2.0)


@pytest.mark.parametrize(("steps", "weight"), [(30, 0.1), (210, 0.1), (250, 0.02), (300, 0.01), (9000, 0.01)])
def test_the_ema_of_a_short_run_has_a_shorter_window(steps, weight):
    """From 300 steps on, the window is that of the decay."""
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    update_with(model, ema, [8.0] * 150 + [0.0], steps=steps)
    assert ema.means["weight"].item() == pytest.approx(8 * (1 - weight))


def test_the_ema_of_one_step_is_its_weights():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    update_with(model, ema, [5.0], steps=1)
    assert ema.means["weight"].item() == 5.0


def test_ema_weights_are_in_the_model_inside_the_block_only_even_after_an_error():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.9)
    update_with(model, ema, [1.0, 3.0])

    def fail_inside():
        with ema_weights(model, ema):
            assert model.weight.item() == pytest.approx(2.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert model.weight.item() == 3.0
    with ema_weights(model, None):
        assert model.weight.item() == 3.0


def test_a_checkpoint_restores_the_ema():
    model, resumed = classifier(seed=0), classifier(seed=1)
    config = OptimConfig()
    before, after = EMA(model, 0.9), EMA(resumed, 0.9)
    saved = optimizer_tensors(build_optimizer(model, config), model, before)
    assert not torch.equal(after.means["head.linear.weight"], before.means["head.linear.weight"])
    restore_optimizer(build_optimizer(resumed, config), resumed, saved, after)
    assert all(torch.equal(after.means[name], mean) for name, mean in before.means.items())
