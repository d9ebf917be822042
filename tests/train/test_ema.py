"""The running mean of the weights: what it is, where it is used, and that it comes back from a checkpoint."""

import pytest
import torch
from torch import nn

from fixtures.tiny import classifier
from headstart.config.schema import OptimConfig
from headstart.train.ema import EMA, ema_weights
from headstart.train.optimizers import build_optimizer, optimizer_tensors, restore_optimizer


def walk(model, ema, values, steps=10_000):
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            model.weight.fill_(value)
        ema.update(step, steps)


def test_it_is_the_mean_of_all_steps_while_they_are_few():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    walk(model, ema, [2.0, 4.0, 9.0])
    assert ema.means["weight"].item() == pytest.approx(5.0)


def test_later_it_forgets_at_its_rate():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.5)
    walk(model, ema, [8.0, 8.0, 0.0, 0.0])
    assert ema.means["weight"].item() == pytest.approx(2.0)


@pytest.mark.parametrize(("steps", "share"), [(30, 0.1), (210, 0.1), (250, 0.02), (300, 0.01), (9000, 0.01)])
def test_of_a_short_run_it_holds_the_last_steps(steps, share):
    """A run that is 300 steps long or longer has the mean it was asked for."""
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    walk(model, ema, [8.0] * 150 + [0.0], steps=steps)
    assert ema.means["weight"].item() == pytest.approx(8 * (1 - share))


def test_a_run_of_one_step_has_the_weights_of_that_step():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.99)
    walk(model, ema, [5.0], steps=1)
    assert ema.means["weight"].item() == 5.0


def test_the_model_has_its_mean_inside_the_block_and_its_own_weights_after_it_even_after_an_error():
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.9)
    walk(model, ema, [1.0, 3.0])

    def look():
        with ema_weights(model, ema):
            assert model.weight.item() == pytest.approx(2.0)
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert model.weight.item() == 3.0
    with ema_weights(model, None):
        assert model.weight.item() == 3.0


def test_a_checkpoint_holds_it_and_gives_it_back():
    model, other = classifier(seed=0), classifier(seed=1)
    config = OptimConfig()
    before, after = EMA(model, 0.9), EMA(other, 0.9)
    saved = optimizer_tensors(build_optimizer(model, config), model, before)
    assert not torch.equal(after.means["head.linear.weight"], before.means["head.linear.weight"])
    restore_optimizer(build_optimizer(other, config), other, saved, after)
    assert all(torch.equal(after.means[name], mean) for name, mean in before.means.items())
