"""The training loop: learning, resuming, accumulation, freezing, schedules and prefetching."""

import math
import threading
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch

from fixtures.tiny import CPU, SHAPE, SPECIAL, VOCABULARY, classifier, corpus, language_model
from fixtures.waiting import PATIENCE
from headstart.config.schema import MaskingConfig, OptimConfig, TransferConfig
from headstart.data.batch import Batch
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import mask_tokens
from headstart.errors import TrainingError
from headstart.train.loop import Prefetcher, TrainState, fit
from headstart.train.objectives import LossSum, class_logits, classification_loss, language_model_loss
from headstart.train.optimizers import (
    build_optimizer,
    layer_level,
    lr_factor,
    optimizer_tensors,
    restore_optimizer,
    set_trainable,
)
from headstart.train.step import EagerStep, to_device

SIZES = [3, 11, 7, 2, 9, 5, 8, 12, 4, 6, 10, 3]


def rows(layout="packed"):
    return PackedDataset(corpus(SIZES), np.arange(len(SIZES)), SPECIAL, context=12, layout=layout, seed=1)


def train(model, config, steps, fetch, seed=0, objective=language_model_loss):
    state = TrainState(model, build_optimizer(model, config), seed)
    return state, list(fit(state, fetch, lambda batch: objective(model, batch), config, steps, CPU))


def test_a_model_overfits_a_handful_of_rows():
    data = rows()
    model = language_model()
    _, reports = train(model, OptimConfig(lr=1e-2), 150, lambda step: [data.batch(0, data.num_rows)])
    assert reports[0].loss > 2.5
    assert reports[-1].loss < 0.35


def test_a_causal_model_cannot_predict_noise():
    """New random tokens hold nothing to learn: a loss below their entropy means that a target leaked."""

    def noise(step: int) -> list[Batch]:
        documents = corpus([11] * 16, seed=step)
        return [PackedDataset(documents, np.arange(16), SPECIAL, context=12, layout="packed", seed=None).batch(0, 16)]

    _, reports = train(language_model(), OptimConfig(lr=1e-2), 150, noise)
    # 11 of 12 targets are uniform over 13 tokens; only the end after the eleventh is certain
    entropy = 11 / 12 * math.log(VOCABULARY - 4)
    assert sum(report.loss for report in reports[-40:]) / 40 > entropy - 0.03


@pytest.mark.parametrize("next_token", [False, True], ids=["masked", "masked next token"])
def test_a_masked_model_cannot_predict_noise(next_token):
    def noise(step: int) -> list[Batch]:
        documents = corpus([11] * 32, seed=step)
        rows = PackedDataset(documents, np.arange(32), SPECIAL, context=12, layout="packed", seed=None)
        config = MaskingConfig(rate=0.3, masked=1.0, random=0.0)
        return [mask_tokens(rows.batch(0, 32), step * 32, config, SPECIAL, VOCABULARY, 0, next_token=next_token)]

    _, reports = train(language_model(), OptimConfig(lr=1e-2), 120, noise)
    assert sum(report.loss for report in reports[-40:]) / 40 > math.log(VOCABULARY - 4) - 0.03


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_cached_gradients_of_embeddings_train_the_same_bits(tied, accumulate, monkeypatch):
    data, trained = rows("documents"), []
    for cached in (True, False):
        if not cached:
            monkeypatch.setattr(EagerStep, "cache_embedding_grads", lambda self: None)
        shape = SHAPE.model_copy(update={"block": "modern", "tied": True} if tied else {})
        model = language_model(shape=shape)
        train(model, OptimConfig(lr=1e-2), 8, lambda step: [data.batch(step + row, 1) for row in range(accumulate)])
        assert model.backbone.embedding._keeps == cached
        assert (model.backbone.embedding._zeros is not None) == (cached and not tied and accumulate == 1)
        trained.append([parameter.detach() for parameter in model.parameters()])
    assert all(with_cache.equal(without) for with_cache, without in zip(*trained, strict=True))


@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_accumulation_equals_one_large_batch(layout):
    data = rows(layout)
    config = OptimConfig(lr=1e-2)

    def one_batch(step: int) -> list[Batch]:
        return [data.batch(step * 6, 6)]

    def micro_batches(step: int) -> list[Batch]:
        return [data.batch(step * 6 + row, 1) for row in range(6)]  # with unequal numbers of targets

    def gradients(fetch) -> list[torch.Tensor]:
        model, seen = language_model(), []
        state = TrainState(model, build_optimizer(model, config), 0)
        state.optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in model.parameters()))
        next(fit(state, fetch, lambda batch: language_model_loss(model, batch), config, 5, CPU))
        return seen

    for a, b in zip(gradients(one_batch), gradients(micro_batches), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
    _, first = train(language_model(), config, 5, one_batch)
    _, second = train(language_model(), config, 5, micro_batches)
    assert [a.loss for a in first] == pytest.approx([b.loss for b in second], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_step_depends_on_its_number_and_the_seed_alone(optimizer):
    """Dropout draws the same numbers at step 3 whether or not steps 1 and 2 ran in this process."""
    data = rows()
    shape = SHAPE.model_copy(update={"dropout": 0.3})

    def fetch(step: int) -> list[Batch]:
        return [data.batch(step * 2, 2)]

    config = OptimConfig(optimizer=optimizer, lr=1e-2, warmup=0.3, schedule="cosine")
    uninterrupted, all_reports = train(language_model(shape=shape), config, 8, fetch)

    model = language_model(shape=shape)
    state = TrainState(model, build_optimizer(model, config), 0)
    first = []
    for report in fit(state, fetch, lambda batch: language_model_loss(model, batch), config, 8, CPU):
        first.append(report)
        if report.step == 3:
            break
    optimizer_state = {name: tensor.clone() for name, tensor in optimizer_tensors(state.optimizer, model).items()}
    torch.manual_seed(999)  # whatever the new process does before
    torch.rand(5)
    again = language_model(seed=77, shape=shape)
    again.load_state_dict(model.state_dict())
    resumed = TrainState(again, build_optimizer(again, config), 0, step=3)
    restore_optimizer(resumed.optimizer, again, optimizer_state)
    last = list(fit(resumed, fetch, lambda batch: language_model_loss(again, batch), config, 8, CPU))

    assert [a.loss for a in all_reports] == [b.loss for b in first + last]  # equal, not close
    for a, b in zip(uninterrupted.model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    other_seed = train(language_model(shape=shape), config, 8, fetch, seed=1)[1]
    assert [a.loss for a in other_seed] != [b.loss for b in all_reports]  # control: the seed does matter


def test_a_loss_that_is_not_finite_stops_before_the_update():
    model = language_model()
    model.head.linear.bias.data[5] = float("nan")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(TrainingError) as caught:
        train(model, OptimConfig(lr=1e-2), 3, lambda step: [rows().batch(0, 2)])
    assert str(caught.value) == (
        "loss nan with gradient norm nan at step 1; no update was made; "
        "try a lower optim.lr than 0.01, a longer optim.warmup, or precision fp32"
    )
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("not_finite", ["loss", "norm"])
def test_a_loss_or_a_norm_that_is_not_finite_stops_training(not_finite):
    model, config = language_model(), OptimConfig(lr=1e-2)

    def objective(batch: Batch) -> LossSum:
        loss, weight = language_model_loss(model, batch), model.head.linear.weight
        term = math.inf if not_finite == "loss" else (weight - weight.detach()).abs().sum().sqrt()
        return LossSum(loss.total + term, loss.count)

    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = TrainState(model, build_optimizer(model, config), 0)
    message = r"^loss inf with gradient norm \d" if not_finite == "loss" else r"^loss \d\.\d+ with gradient norm nan"
    with pytest.raises(TrainingError, match=message):
        next(fit(state, lambda step: [rows().batch(0, 2)], objective, config, 3, CPU))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_in_eval_mode_is_set_to_training_mode_again():
    def losses(*, evaluated: bool) -> list[float]:
        model, config = language_model(shape=SHAPE.model_copy(update={"dropout": 0.3})), OptimConfig()
        state, step_losses = TrainState(model, build_optimizer(model, config), 0), []
        for report in fit(
            state, lambda step: [rows().batch(step, 2)], partial(language_model_loss, model), config, 3, CPU
        ):
            step_losses.append(report.loss)
            model.train(not evaluated)
        return step_losses

    assert losses(evaluated=True) == losses(evaluated=False)


def test_gradients_are_clipped_to_the_configured_norm():
    data = rows()
    model = language_model()
    model.head.linear.weight.data *= 50
    config = OptimConfig(lr=1e-2, clip=0.5)
    state = TrainState(model, build_optimizer(model, config), 0)
    seen = []
    state.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
    )
    report = next(
        fit(state, lambda step: [data.batch(0, 4)], lambda batch: language_model_loss(model, batch), config, 2, CPU)
    )
    assert report.norm > 1
    assert seen == [pytest.approx(0.5, rel=1e-4)]


def labelled(count=16):
    rng = np.random.default_rng(0)
    texts = [np.concatenate((rng.integers(6, VOCABULARY, 6), [4 + index % 2])) for index in range(count)]
    return LabelledDataset(texts, [index % 2 for index in range(count)], SPECIAL, context=12)


def test_a_frozen_backbone_does_not_move_by_a_bit_while_the_head_learns():
    model, data = classifier(), labelled()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    num_trainable = set_trainable(model, TransferConfig(freeze=True), epoch=3)
    assert num_trainable == SHAPE.width * 2 + 2
    train(model, OptimConfig(lr=1e-2), 5, lambda step: [data.batch(range(16))], objective=classification_loss)
    for name, tensor in model.backbone.state_dict().items():
        assert torch.equal(tensor, before[f"backbone.{name}"]), name
    assert not torch.equal(model.head.linear.weight, before["head.linear.weight"])  # control


@pytest.mark.parametrize(("epoch", "max_level"), [(0, 0), (1, 0), (2, 1), (4, 2), (6, 3), (9, 3)])
def test_gradual_unfreezing_works_down_from_the_head(epoch, max_level):
    model = classifier()
    set_trainable(model, TransferConfig(unfreeze_every=2), epoch)
    levels = {layer_level(name, SHAPE.depth) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert levels == set(range(max_level + 1))


def test_layer_decay_lowers_the_rate_of_layers_far_from_the_output():
    model = classifier()
    optimizer = build_optimizer(model, OptimConfig(lr=1.0), layer_decay=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    peaks = {names[id(p)]: group["max_lr"] for group in optimizer.param_groups for p in group["params"]}
    assert peaks["head.linear.weight"] == 1.0
    assert peaks["backbone.layers.1.up.weight"] == 0.5
    assert peaks["backbone.layers.0.up.weight"] == 0.25
    assert peaks["backbone.embedding.weight"] == 0.125
    assert len(peaks) == len(names)


def test_only_matrices_decay():
    model = classifier()
    optimizer = build_optimizer(model, OptimConfig(optimizer="adamw", weight_decay=0.1))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decays[id(p)] for p in model.parameters() if p.ndim > 1} == {0.1}
    assert {decays[id(p)] for p in model.parameters() if p.ndim == 1} == {0.0}


def test_class_weights_weigh_the_loss_and_its_count():
    model, data = classifier(), labelled()
    batch = data.batch(range(16))
    plain = torch.nn.functional.cross_entropy(
        class_logits(model, batch), batch.targets, weight=torch.tensor([1.0, 3.0])
    )
    ours = classification_loss(model, batch, torch.tensor([1.0, 3.0]))
    assert (ours.total / ours.count).item() == pytest.approx(plain.item(), rel=1e-6)
    assert ours.count == 8 * 1 + 8 * 3


def test_the_logits_of_a_text_are_the_mean_over_its_windows():
    model = classifier().eval()
    texts = [np.arange(4, 17), np.arange(4, 9)]
    windowed = LabelledDataset(texts, [0, 1], SPECIAL, context=8, windows=True)
    logits = class_logits(model, windowed.batch([0, 1]))
    windows = LabelledDataset([texts[0][:7], texts[0][7:], texts[1]], [0, 0, 1], SPECIAL, context=8)
    single = class_logits(model, windows.batch([0, 1, 2]))
    torch.testing.assert_close(logits[0], single[:2].mean(dim=0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits[1], single[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 2 / 3, 1 / 3]),
        ("cosine", [0.5, 1.0, 1.0, 0.75, 0.25]),
        ("wsd", [0.5, 1.0, 1.0, 2 / 3, 1 / 3]),
    ],
)
def test_the_learning_rate_warms_up_then_follows_its_schedule(schedule, factors):
    actual = [lr_factor(step, 5, OptimConfig(warmup=0.4, schedule=schedule, cooldown=0.6)) for step in range(5)]
    assert actual == pytest.approx(factors)


def test_softmax_before_cross_entropy_would_be_noticed():
    """The published mistake keeps the loss above about ln(V) - 1; ours approaches 0 on a text learnt by heart."""
    data = rows()
    model = language_model()
    _, reports = train(model, OptimConfig(lr=1e-2), 200, lambda step: [data.batch(0, data.num_rows)])
    twice = torch.nn.functional.cross_entropy(
        torch.eye(VOCABULARY), torch.arange(VOCABULARY)
    )  # a perfect softmax, again
    assert twice.item() == pytest.approx(math.log(math.e + VOCABULARY - 1) - 1, rel=1e-5)
    assert reports[-1].loss < 0.35 < twice.item()


@pytest.mark.parametrize(("first", "steps"), [(0, 5), (3, 5), (5, 5)])
def test_prefetching_in_a_thread_keeps_batches_and_order(first, steps):
    data = rows()

    def fetch(step: int) -> list[Batch]:
        return [data.batch(step * 2, 2)]

    def prefetched(*, threaded: bool) -> list[list[Batch]]:
        with Prefetcher(
            fetch, first, steps, lambda batch: to_device(batch, CPU.device), threaded=threaded
        ) as prefetcher:
            return list(prefetcher)

    plain, ahead = prefetched(threaded=False), prefetched(threaded=True)
    assert len(plain) == len(ahead) == steps - first
    for expected, batches in zip(plain, ahead, strict=True):
        assert torch.equal(expected[0].ids_BT, batches[0].ids_BT)


def test_an_error_in_the_prefetch_thread_is_raised_at_its_step():
    def fetch(step: int) -> list[Batch]:
        if step == 2:
            raise TrainingError("no such row")
        return []

    seen = []
    with (
        Prefetcher(fetch, 0, 5, lambda batch: to_device(batch, CPU.device), threaded=True) as prefetcher,
        pytest.raises(TrainingError, match="no such row"),
    ):
        for batches in prefetcher:
            assert prefetcher.peek() in ([], batches)  # the error of a later step is not raised here
            seen.append(batches)
    assert len(seen) == 2


def test_three_steps_are_prefetched_and_no_more():
    fetched = []
    data = rows()

    def fetch(step: int) -> list[Batch]:
        fetched.append(step)
        return [data.batch(step, 1)]

    with Prefetcher(fetch, 0, 9, lambda batch: batch, threaded=True) as prefetcher:
        batches = iter(prefetcher)
        first = next(batches)
        while not prefetcher.peek():
            time.sleep(0.001)
        peeked = prefetcher.peek()
        assert next(batches) is peeked
        assert peeked is not first
    assert fetched == [0, 1, 2, 3]  # the thread has finished what was submitted


def test_peeking_does_not_wait_for_batches_that_are_not_ready():
    begun, done, released = [], [], threading.Event()

    def fetch(step: int) -> list[Batch]:
        begun.append(step)
        if step:
            released.wait(PATIENCE)
        done.append(step)
        return [rows().batch(step, 1)]

    with Prefetcher(fetch, 0, 9, lambda batch: batch, threaded=True) as prefetcher:
        next(iter(prefetcher))
        assert prefetcher.peek() == []
        assert 1 not in done  # control
        released.set()
    assert begun == done == [0, 1, 2, 3]


@pytest.mark.parametrize("threaded", [False, True])
def test_a_prefetcher_of_endless_steps_takes_no_memory(threaded):
    """As `--minutes` times some steps of a run without end."""
    tracemalloc.start()
    try:
        with Prefetcher(lambda step: [], 7, 1 << 18, lambda batch: batch, threaded=threaded) as prefetcher:
            assert next(iter(prefetcher)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_time_of_a_step_includes_fetching_and_excludes_its_caller(monkeypatch):
    data, now = rows(), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def fetch(step: int) -> list[Batch]:
        now[0] += 3
        return [data.batch(step, 1)]

    model, config = language_model(), OptimConfig()
    state = TrainState(model, build_optimizer(model, config), 0)
    seconds = []
    for report in fit(state, fetch, lambda batch: language_model_loss(model, batch), config, 3, CPU):
        seconds.append(report.seconds)
        now[0] += 100  # evaluating, saving
    assert seconds == [3, 3, 3]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_step_moves_every_parameter(optimizer):
    model, data = language_model(), rows()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, OptimConfig(optimizer=optimizer, lr=1e-2), 2, lambda step: [data.batch(0, data.num_rows)])
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
