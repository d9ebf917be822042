"""A blend averages log-probabilities; its weight and temperature are chosen on rows that neither model has seen."""

import numpy as np
import pytest

from headstart.linear.blend import PRIOR, blend_logits, fit_blend
from headstart.metrics import log_loss, softmax


def rows(n, network_noise, linear_noise, seed=0, classes=3):
    """The logits of two classifiers that see the gold labels through independent noise, equally confident, and the labels.

    The best weights are in the ratio of the inverse variances of the noise.
    """
    rng = np.random.default_rng(seed)
    gold = rng.integers(classes, size=n)
    truth = np.eye(classes)[gold]
    network, linear = (truth + noise * rng.normal(size=truth.shape) for noise in (network_noise, linear_noise))
    return network, linear, gold


def test_a_blend_is_the_weighted_mean_of_log_probabilities():
    network, linear, _ = rows(7, 0.5, 1.0)
    expected = (0.3 * np.log(softmax(network)) + 0.7 * np.log(softmax(linear))) / 2
    assert np.allclose(blend_logits(network, linear, 0.3, 2.0), expected)
    assert np.allclose(softmax(blend_logits(network + 5, linear - 100, 0.3, 2.0)), softmax(expected))  # shifts cancel


def test_the_ends_of_the_grid_are_either_model_alone():
    network, linear, _ = rows(7, 0.5, 1.0)
    assert np.allclose(softmax(blend_logits(network, linear, 1.0)), softmax(network))
    assert np.allclose(softmax(blend_logits(network, linear, 0.0)), softmax(linear))


@pytest.mark.parametrize(("network_noise", "linear_noise", "low", "high"), [(0.4, 2.0, 0.7, 1), (2.0, 0.4, 0, 0.3)])
def test_many_rows_give_most_of_the_weight_to_the_better_model(network_noise, linear_noise, low, high):
    network, linear, gold = rows(4000, network_noise, linear_noise)
    fit = fit_blend(network, linear, gold)
    assert low <= fit.weight <= high
    assert (fit.rows, fit.loss <= fit.network_loss + 1e-3, fit.loss <= fit.linear_loss + 1e-3) == (4000, True, True)


def test_the_temperature_is_that_of_the_blended_rows():
    network, linear, gold = rows(4000, 0.8, 0.8)
    fit = fit_blend(network, linear, gold)
    # the posterior of two independent observations is the sum of both, divided by the variance; the mean is half the sum
    assert fit.weight == pytest.approx(0.5, abs=0.06)
    assert fit.temperature == pytest.approx(0.8**2 / 2, abs=0.05)
    blended = blend_logits(network, linear, fit.weight, fit.temperature)
    assert log_loss(blended, gold) == pytest.approx(fit.loss)
    assert fit.loss < min(log_loss(network, gold), log_loss(linear, gold))


def test_few_rows_leave_the_weight_near_the_prior_mean_whichever_model_is_better():
    mean = PRIOR[0] / sum(PRIOR)
    for network_noise, linear_noise, better in ((0.6, 1.8, 1), (1.8, 0.6, -1)):
        few, many = (
            np.mean([fit_blend(*rows(n, network_noise, linear_noise, seed)).weight for seed in range(8)]) - mean
            for n in (12, 4000)
        )
        assert better * many > 0.15
        assert abs(few) < 0.5 * abs(many)
    assert fit_blend(*rows(12, 0.6, 1.8)).temperature == 1.0


def test_without_rows_the_weight_is_the_prior_mean():
    fit = fit_blend(np.empty((0, 2)), np.empty((0, 2)), np.empty(0, dtype=np.int64))
    assert (fit.weight, fit.temperature, fit.rows) == (0.625, 1.0, 0)


def test_rows_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"^3 and 2 rows of logits for 3 rows$"):
        fit_blend(np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(3, dtype=np.int64))


def test_a_handful_of_rows_that_agree_do_not_silence_one_model():
    gold = np.array([0, 1, 0, 1])
    right = np.where(np.eye(2)[gold] > 0, 9.0, -9.0)
    assert fit_blend(right, -right, gold).weight == 0.655  # four of fifty rows: 0.08 of the way from 0.625 to 1
    assert fit_blend(-right, right, gold).weight == 0.575
    many = fit_blend(np.tile(right, (25, 1)), np.tile(-right, (25, 1)), np.tile(gold, 25))
    assert many.weight > 0.7  # a hundred rows move it further


def test_a_weight_that_makes_no_mistake_is_not_worse_than_one_that_makes_some():
    """Only the rows with mistakes have a temperature of lowest log-loss, which may be far below 1."""
    gold = np.arange(120) % 2
    right, wrong = (np.where(np.eye(2)[gold] > 0, sign, -sign) for sign in (0.5, -0.5))
    fit = fit_blend(right, wrong, gold)
    assert fit.weight > PRIOR[0] / sum(PRIOR)
    assert fit.temperature == 1.0


def test_a_worthless_model_gets_almost_no_weight_from_many_rows():
    network, linear, gold = rows(2000, 0.4, 1.0)
    noise = np.random.default_rng(1).normal(size=linear.shape)
    assert fit_blend(network, noise, gold).weight > 0.9
    assert fit_blend(noise, linear, gold).weight < 0.1
