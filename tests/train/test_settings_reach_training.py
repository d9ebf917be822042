"""Every optimizer setting takes effect, and a saved optimizer that does not fit is refused."""

import numpy as np
import pytest
import torch
from torch.optim import Adam, AdamW

from fixtures.tiny import CPU, SHAPE, SPECIAL, classifier, corpus, language_model
from headstart.config.schema import OptimConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.errors import StoreError
from headstart.interrupts import StopRequested
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer, lr_factor, restore_optimizer
from headstart.train.scoring import score_language, score_texts

ROWS = PackedDataset(corpus([9, 7, 12, 5]), np.arange(4), SPECIAL, context=12, layout="packed", seed=1)


def train(config, hook=lambda state: None, model=None, same_rows=False):
    """Train for four steps; `hook` receives the state just before each update."""
    model = model or language_model()
    state = TrainState(model, build_optimizer(model, config), 0)
    state.optimizer.register_step_pre_hook(lambda *_: hook(state))
    return list(
        fit(
            state,
            lambda step: [ROWS.batch(0 if same_rows else step, 2)],
            lambda batch: language_model_loss(model, batch),
            config,
            4,
            CPU,
        )
    )


def test_the_reported_learning_rate_is_the_one_used():
    used = []
    config = OptimConfig(lr=1e-2, warmup=0.5, schedule="linear")
    reports = train(config, lambda state: used.append({group["lr"] for group in state.optimizer.param_groups}))
    assert used == [{report.lr} for report in reports]
    factors = [
        lr_factor(step, 4, OptimConfig(warmup=0.5, schedule="linear")) for step in range(4)
    ]  # steps count from 0
    assert [report.lr for report in reports] == [1e-2 * factor for factor in factors]
    assert len(set(factors)) > 1  # control: the rate does change


def test_no_clipping_leaves_the_gradient_as_it_is():
    norms = []

    def record_norm(state):
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in state.model.parameters()]).item())

    reports = train(OptimConfig(lr=1e-2, clip=0), record_norm)
    assert norms == pytest.approx([report.norm for report in reports], rel=1e-5)
    assert min(norms) > 0


@pytest.mark.parametrize(("optimizer", "optimizer_class"), [("adam", Adam), ("adamw", AdamW)])
def test_the_optimizer_and_its_betas_are_the_configured_ones(optimizer, optimizer_class):
    built = build_optimizer(classifier(), OptimConfig(optimizer=optimizer, beta2=0.95))
    assert type(built) is optimizer_class
    assert {group["betas"] for group in built.param_groups} == {(0.9, 0.95)}


def test_dropout_is_active_after_the_model_was_in_eval_mode():
    shape = SHAPE.model_copy(update={"dropout": 0.3})
    in_train_mode = [report.loss for report in train(OptimConfig(), model=language_model(shape=shape))]
    in_eval_mode = [report.loss for report in train(OptimConfig(), model=language_model(shape=shape).eval())]
    assert in_eval_mode == in_train_mode


def test_every_step_draws_another_dropout_mask():
    shape = SHAPE.model_copy(update={"dropout": 0.3})
    losses = [report.loss for report in train(OptimConfig(lr=1e-30), model=language_model(shape=shape), same_rows=True)]
    assert len(set(losses)) == 4
    without_dropout = [report.loss for report in train(OptimConfig(lr=1e-30), same_rows=True)]
    assert len(set(without_dropout)) == 1  # control: the rows and the weights are the same


def test_a_language_model_is_scored_without_dropout():
    model = language_model(shape=SHAPE.model_copy(update={"dropout": 0.3})).train()
    scores = [score_language(model.train(), ROWS, 100, CPU, lambda: None) for _ in range(2)]
    assert scores[0] == scores[1]


def test_a_saved_optimizer_of_another_model_is_refused():
    model = classifier()
    optimizer = build_optimizer(model, OptimConfig())
    with pytest.raises(StoreError) as caught:
        restore_optimizer(optimizer, model, {"backbone.layers.9.up.bias/exp_avg": torch.ones(24)})
    assert (
        str(caught.value)
        == "the saved optimizer has a parameter 'backbone.layers.9.up.bias' that this model does not have"
    )
    with pytest.raises(StoreError) as caught:
        restore_optimizer(optimizer, model, {"head.linear.bias/exp_avg": torch.ones(3)})
    assert str(caught.value) == "the saved optimizer's 'head.linear.bias/exp_avg' has shape (3,), not (2,)"


def test_a_stop_is_noticed_while_a_classifier_is_scored():
    rows = LabelledDataset([np.arange(4, 9)] * 3, [0, 1, 0], SPECIAL, context=12)

    def stop():
        raise StopRequested

    with pytest.raises(StopRequested):
        score_texts(classifier(), rows, CPU, stop)
