"""Captured steps equal the eager ones at padded lengths. Tests that need a GPU are in tests/gpu/test_gpu_training.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.recorded_capture import RerunCapture
from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus
from headstart.config.schema import ModelConfig, OptimConfig, TransferConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.kernels.dispatch import plan
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train.cuda_graphs import GraphCache, text_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import classification_loss
from headstart.train.optimizers import build_optimizer, set_trainable
from headstart.train.parallel import SINGLE
from headstart.train.static_batch import (
    MAX_TOKENS,
    MAX_WORK,
    StaticBatch,
    bucket_length,
    can_be_static,
    pad_texts,
    static_texts,
)
from headstart.train.step import EagerStep

CONTEXT = 96
LENGTHS = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21]
MODELS = {
    "classic": (ModelConfig(width=16, depth=2, heads=2, feedforward=24, context=CONTEXT), "causal"),
    "modern": (ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT), "causal"),
    "bidirectional": (
        ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT),
        "bidirectional",
    ),
}
CONFIG = OptimConfig(lr=3e-3, clip=0.5)


def build_model(name="classic", **changes):
    shape, attention = MODELS[name]
    shape = shape.model_copy(update=changes)
    return Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, attention))


def graph_cache(model, backend, notify, weights=None):
    """Build the cache as `text_graphs` does for a GPU; `weights` overrides the size of a layer."""
    model.backbone.recorded = True
    layer = model.backbone.layers[0] if weights is None else torch.nn.Linear(weights, 1, bias=False, device="meta")
    return GraphCache(model, backend, notify, static_texts(layer, CONTEXT))


def dataset(windows=False):
    texts = [(np.arange(size) * 7 + size) % 13 + 4 for size in LENGTHS]
    return LabelledDataset(texts, [size % 2 for size in LENGTHS], SPECIAL, context=CONTEXT, windows=windows)


def three_texts(step):
    """A batch of three texts, and at every fourth step the smaller one that ends an epoch."""
    first = 3 * (step % 4)
    return [dataset().batch(range(first, min(first + 3, len(LENGTHS))))]


def train(model, steps=24, graphs=None, fetch=three_texts, state=None, last_step=None):
    state = state or TrainState(model, build_optimizer(model, CONFIG), 0)
    reports = []
    for report in fit(state, fetch, lambda batch: classification_loss(model, batch), CONFIG, steps, CPU, graphs=graphs):
        reports.append(report)
        if report.step == last_step:
            break
    return reports


def losses(reports):
    return [report.loss for report in reports]


def test_captured_models_never_use_cudnn_attention(monkeypatch):
    """Not in eager steps either: the result of a step must not depend on whether it is captured yet."""
    monkeypatch.setattr("headstart.kernels.dispatch.supports_cudnn_attention", lambda *_: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    model, full_rows = build_model(), torch.zeros(2, CONTEXT, dtype=torch.long)

    def attention_kernel(ids):
        return plan(model.backbone.config, ids, training=True, recorded=model.backbone.recorded).attention

    assert attention_kernel(full_rows) == "cudnn"
    assert attention_kernel(full_rows[:, 1:]) == "sdpa"
    graph_cache(model, RerunCapture(), print)
    assert attention_kernel(full_rows) == "sdpa"


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_bucket_holds_the_row_and_there_are_sixteen_or_fewer(longest, context):
    length = bucket_length(longest, context)
    assert length >= longest
    assert length <= max(longest, context)
    if longest <= context:
        assert length - longest < 32 * -(-context // 512)
        assert bucket_length(length, context) == length
        assert len({bucket_length(size, context) for size in range(1, context + 1)}) <= 16


@pytest.mark.parametrize("name", MODELS)
def test_padding_texts_to_a_bucket_changes_neither_loss_nor_gradients(name):
    batch = dataset().batch([0, 2, 6])
    padded = pad_texts(batch, CONTEXT)
    assert (batch.ids_BT.shape, padded.ids_BT.shape) == ((3, 34), (3, 64))
    results = []
    for inputs in (batch, padded):
        model = build_model(name)
        loss = classification_loss(model, inputs)
        loss.total.backward()
        results.append((loss.total.item(), [parameter.grad for parameter in model.parameters()]))
    (loss, grads), (padded_loss, padded_grads) = results
    assert padded_loss == pytest.approx(loss, abs=1e-6)
    for grad, padded_grad in zip(grads, padded_grads, strict=True):
        torch.testing.assert_close(grad, padded_grad, rtol=0, atol=1e-6)
    assert max(grad.abs().max() for grad in grads) > 1e-2  # control


def test_only_small_batches_of_one_text_per_row_get_a_static_shape():
    assert can_be_static(dataset().batch([0, 1]), 100)
    assert can_be_static(dataset(windows=True).batch([0, 1]), 100)  # every text fits in one row
    assert not can_be_static(dataset().batch([0, 1]), MAX_WORK)  # layers that keep a GPU busy
    in_windows = LabelledDataset([np.full(30, 5)], [0], SPECIAL, context=12, windows=True)
    assert not can_be_static(in_windows.batch([0]), 100)  # a text in several rows
    long = LabelledDataset([np.full(MAX_TOKENS, 5)], [0], SPECIAL, context=MAX_TOKENS + 1)
    assert not can_be_static(long.batch([0]), 100)
    packed = PackedDataset(corpus([3, 11]), np.arange(2), SPECIAL, context=12, layout="packed", seed=1)
    assert not can_be_static(packed.batch(0, 1), 100)


def test_fine_tuning_is_not_captured_without_a_gpu():
    assert text_graphs(build_model(), CPU, SINGLE, print) is None


@pytest.mark.parametrize("name", MODELS)
def test_captured_fine_tuning_follows_the_eager_one(name):
    eager_model, model, backend = build_model(name), build_model(name), RerunCapture()
    graphs = graph_cache(model, backend, print)
    eager, captured = train(eager_model), train(model, graphs=graphs)
    assert losses(captured) == pytest.approx(losses(eager), rel=1e-4)
    assert [report.norm for report in captured] == pytest.approx([report.norm for report in eager], rel=1e-3)
    expected = dict(eager_model.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        # the bias of keys has no gradient but rounding, and Adam makes steps of it
        if not parameter_name.endswith("qkv_proj.bias"):
            torch.testing.assert_close(parameter, expected[parameter_name], rtol=1e-3, atol=1e-4)
    assert graphs.num_graphs == len(graphs.slots) == 3  # two lengths of three rows, and the smaller batch
    assert backend.num_replays == (24 - 3) + 2 * (24 - 1)  # the passes; clipping and update from the second step on
    assert min(losses(eager)[8:]) < 0.7 * eager[0].loss  # control: it learns


def test_gradients_keep_their_memory_between_calls_of_fit():
    model = build_model()
    graphs = graph_cache(model, RerunCapture(), print)
    train(model, steps=3, graphs=graphs)
    before = [parameter.grad.data_ptr() for parameter in model.parameters()]
    train(model, steps=5, graphs=graphs)
    assert [parameter.grad.data_ptr() for parameter in model.parameters()] == before


@pytest.mark.parametrize("eager_batches", [(), (0,), (1,), (0, 1)])
def test_micro_batches_are_accumulated_and_gradients_of_the_previous_step_are_not(eager_batches):
    """All have one shape: a loss that the next replay overwrote would show. Some run eagerly in every third step."""

    def two_batches(step):
        return [dataset().batch([0, 2, 4]), dataset().batch([5, 7, 9])]

    def sometimes_eager(step):
        not_static = [replace(batch, sample_index_B=torch.arange(3)) for batch in two_batches(step)]
        return [
            not_static[i] if step % 3 == 2 and i in eager_batches else batch
            for i, batch in enumerate(two_batches(step))
        ]

    eager = train(build_model(), fetch=two_batches, steps=9)
    model = build_model()
    graphs = graph_cache(model, RerunCapture(), print)
    captured = train(model, fetch=sometimes_eager, steps=9, graphs=graphs)
    assert losses(captured) == pytest.approx(losses(eager), rel=1e-4)
    assert [report.norm for report in captured] == pytest.approx([report.norm for report in eager], rel=1e-3)
    assert graphs.num_graphs == 2  # for the first micro-batch, and for one that is added


def test_a_prefetched_batch_is_copied_once_before_its_step():
    model = build_model()
    graphs = graph_cache(model, RerunCapture(), print)
    eager = EagerStep(model, lambda batch: classification_loss(model, batch), CPU, SINGLE)
    runner = graphs.wrap(eager, build_optimizer(model, CONFIG), 1.0)
    first, second = (runner.to_device(dataset().batch(indices)) for indices in ([0, 2, 4], [5, 7, 9]))
    loss = runner.forward_backward(first, last=True).total.item()
    runner.zero_grad(build_optimizer(model, CONFIG))
    runner.prefetch([second])
    slot = graphs.slots[second.shape]
    assert slot.loaded is second
    assert torch.equal(slot.inputs.ids_BT, second.ids_BT)
    assert runner.forward_backward(first, last=True).total.item() == pytest.approx(loss)  # not the one prefetched
    assert slot.loaded is None


def test_a_frozen_weight_has_no_gradient_and_does_not_move():
    model = build_model()
    graphs = graph_cache(model, RerunCapture(), print)
    state = TrainState(model, build_optimizer(model, CONFIG), 0)
    train(model, graphs=graphs, state=state, steps=24, last_step=9)
    assert graphs.num_graphs == 3
    set_trainable(model, TransferConfig(freeze=True), 0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, graphs=graphs, state=state, steps=24, last_step=18)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"head.linear.weight", "head.linear.bias"}
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == moved
    assert graphs.num_graphs == 3
    set_trainable(model, TransferConfig(), 0)
    train(model, graphs=graphs, state=state, steps=24)
    assert not any(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_step_is_the_same_whether_its_shape_was_captured_before_or_not():
    """Dropout too: a resumed run captures its shapes again."""
    model = build_model(dropout=0.3)
    uninterrupted = losses(train(model, graphs=graph_cache(model, RerunCapture(), print), steps=14))
    resumed = build_model(dropout=0.3)
    state = TrainState(resumed, build_optimizer(resumed, CONFIG), 0)
    before = train(resumed, graphs=graph_cache(resumed, RerunCapture(), print), state=state, steps=14, last_step=9)
    after = train(resumed, graphs=graph_cache(resumed, RerunCapture(), print), state=state, steps=14)
    assert losses(before + after) == uninterrupted
    reseeded = build_model(dropout=0.3)
    other_seed = TrainState(reseeded, build_optimizer(reseeded, CONFIG), 1)
    assert losses(train(reseeded, state=other_seed, steps=14)) != uninterrupted  # control


def test_a_failed_capture_is_reported_once_and_the_run_continues_eagerly():
    messages, model = [], build_model()
    graphs = graph_cache(model, RerunCapture(refuse=True), messages.append)
    reports = train(model, graphs=graphs)
    assert losses(reports) == pytest.approx(losses(train(build_model())), rel=1e-4)
    assert graphs.num_graphs == 0
    assert messages == [
        "CUDA graphs are not used, so steps take longer: operation not permitted when stream is capturing"
    ]


def test_a_network_that_keeps_a_gpu_busy_runs_eagerly_to_the_bit():
    model = build_model()
    graphs = graph_cache(model, RerunCapture(), print, weights=MAX_WORK)
    assert losses(train(model, graphs=graphs)) == losses(train(build_model()))
    assert not graphs.slots
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_padded_batch_keeps_its_lengths():
    batch = pad_texts(dataset().batch([0, 2]), CONTEXT)
    assert isinstance(batch, StaticBatch)
    assert batch.lengths_B.tolist() == [4, 8]
    assert not batch.ids_BT[:, 8:].any()
