"""Recorded passes are the plain ones, at a width that comes back. What needs a GPU stands in tests/gpu/test_gpu_training.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import CPU, SPECIAL, VOCABULARY, Again, corpus
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
    MOST_TOKENS,
    MOST_WORK,
    StaticBatch,
    bucket_length,
    can_be_static,
    pad_texts,
    static_texts,
)
from headstart.train.step import EagerStep

CONTEXT = 96
SIZES = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21]
KINDS = {
    "classic": (ModelConfig(width=16, depth=2, heads=2, feedforward=24, context=CONTEXT), "causal"),
    "modern": (ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT), "causal"),
    "bidirectional": (
        ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT),
        "bidirectional",
    ),
}


def model_of(kind="classic", **changes):
    shape, attention = KINDS[kind]
    shape = shape.model_copy(update=changes)
    return Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, attention))


def recorder(model, tape, say, weights=None):
    """As `text_graphs` makes it for a GPU."""
    model.backbone.recorded = True
    layer = model.backbone.layers[0] if weights is None else torch.nn.Linear(weights, 1, bias=False, device="meta")
    return GraphCache(model, tape, say, static_texts(layer, CONTEXT))


def rows(windows=False):
    texts = [(np.arange(size) * 7 + size) % 13 + 4 for size in SIZES]
    return LabelledDataset(texts, [size % 2 for size in SIZES], SPECIAL, context=CONTEXT, windows=windows)


def fetch(step):
    """Batches of three, and every fourth step the odd one that ends an epoch."""
    first = 3 * (step % 4)
    return [rows().batch(range(first, min(first + 3, len(SIZES))))]


CONFIG = OptimConfig(lr=3e-3, clip=0.5)


def trained(model, steps=24, graphs=None, given=fetch, state=None, until=None):
    state = state or TrainState(model, build_optimizer(model, CONFIG), 0)
    reports = []
    for report in fit(state, given, lambda batch: classification_loss(model, batch), CONFIG, steps, CPU, graphs=graphs):
        reports.append(report)
        if report.step == until:
            break
    return reports


def test_full_rows_of_recorded_steps_are_left_to_torchs_own_attention(monkeypatch):
    """Also in the steps that are not recorded yet: what a step computes must not depend on that."""
    monkeypatch.setattr("headstart.kernels.dispatch.supports_cudnn_attention", lambda *_: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    model, full = model_of(), torch.zeros(2, CONTEXT, dtype=torch.long)

    def attention_kernel(ids):
        return plan(model.backbone.config, ids, training=True, recorded=model.backbone.recorded).attention

    assert attention_kernel(full) == "cudnn"
    assert attention_kernel(full[:, 1:]) == "sdpa"
    recorder(model, Again(), print)
    assert attention_kernel(full) == "sdpa"


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_width_holds_the_row_and_there_are_few_of_them(longest, context):
    width = bucket_length(longest, context)
    assert width >= longest
    assert width <= max(longest, context)
    if longest <= context:
        assert width - longest < 32 * -(-context // 512)
        assert bucket_length(width, context) == width
        assert len({bucket_length(size, context) for size in range(1, context + 1)}) <= 16


@pytest.mark.parametrize("kind", KINDS)
def test_padding_to_a_width_changes_neither_loss_nor_gradients(kind):
    batch = rows().batch([0, 2, 6])
    wide = pad_texts(batch, CONTEXT)
    assert (batch.ids_BT.shape, wide.ids_BT.shape) == ((3, 34), (3, 64))
    found = []
    for asked in (batch, wide):
        model = model_of(kind)
        part = classification_loss(model, asked)
        part.total.backward()
        found.append((part.total.item(), [parameter.grad for parameter in model.parameters()]))
    (plain, plain_grads), (padded_loss, padded_grads) = found
    assert padded_loss == pytest.approx(plain, abs=1e-6)
    for a, b in zip(plain_grads, padded_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert max(grad.abs().max() for grad in plain_grads) > 1e-2  # control


def test_what_cannot_be_recorded_is_known_by_its_shape():
    data = rows()
    assert can_be_static(data.batch([0, 1]), 100)
    assert can_be_static(rows(windows=True).batch([0, 1]), 100)  # all in one row each
    short = LabelledDataset([np.full(30, 5)], [0], SPECIAL, context=12, windows=True)
    assert not can_be_static(data.batch([0, 1]), MOST_WORK)  # layers that keep a GPU busy
    assert not can_be_static(short.batch([0]), 100)  # a text in several rows
    wide = LabelledDataset([np.full(MOST_TOKENS, 5)], [0], SPECIAL, context=MOST_TOKENS + 1)
    assert not can_be_static(wide.batch([0]), 100)
    pieces = PackedDataset(corpus([3, 11]), np.arange(2), SPECIAL, context=12, layout="packed", seed=1)
    assert not can_be_static(pieces.batch(0, 1), 100)


def test_nothing_is_recorded_without_a_gpu():
    assert text_graphs(model_of(), CPU, SINGLE, print) is None


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_follow_plain_ones(kind):
    plain_model, model, tape = model_of(kind), model_of(kind), Again()
    graphs = recorder(model, tape, print)
    plain, recorded = trained(plain_model), trained(model, graphs=graphs)
    assert [report.loss for report in recorded] == pytest.approx([report.loss for report in plain], rel=1e-4)
    assert [report.norm for report in recorded] == pytest.approx([report.norm for report in plain], rel=1e-3)
    after = dict(plain_model.named_parameters())
    for name, parameter in model.named_parameters():
        if not name.endswith(
            "qkv_proj.bias"
        ):  # that of the keys has no gradient but rounding, and Adam makes steps of it
            torch.testing.assert_close(parameter, after[name], rtol=1e-3, atol=1e-4)
    assert graphs.recorded == len(graphs.slots) == 3  # two widths of three rows, and the odd one
    assert tape.replayed == (24 - 3) + 2 * (24 - 1)  # the passes; scaling and moving from the second step on
    assert min(report.loss for report in plain[8:]) < 0.7 * plain[0].loss  # control: it learns


def test_gradients_keep_their_memory():
    model = model_of()
    graphs = recorder(model, Again(), print)
    trained(model, steps=3, graphs=graphs)
    before = [parameter.grad.data_ptr() for parameter in model.parameters()]
    trained(model, steps=5, graphs=graphs)
    assert [parameter.grad.data_ptr() for parameter in model.parameters()] == before


@pytest.mark.parametrize("unsteady", [(), (0,), (1,), (0, 1)])
def test_several_batches_a_step_add_up_and_nothing_is_left_of_the_step_before(unsteady):
    """All of one shape: a loss that the next replay wrote over would show. Some go the plain way in every third step."""

    def twice(step):
        return [rows().batch([0, 2, 4]), rows().batch([5, 7, 9])]

    def now_and_then(step):
        lone = [replace(batch, sample_index_B=torch.arange(3)) for batch in twice(step)]
        return [lone[i] if step % 3 == 2 and i in unsteady else batch for i, batch in enumerate(twice(step))]

    plain = trained(model_of(), given=twice, steps=9)
    model, tape = model_of(), Again()
    graphs = recorder(model, tape, print)
    recorded = trained(model, given=now_and_then, steps=9, graphs=graphs)
    assert [report.loss for report in recorded] == pytest.approx([report.loss for report in plain], rel=1e-4)
    assert [report.norm for report in recorded] == pytest.approx([report.norm for report in plain], rel=1e-3)
    assert graphs.recorded == 2  # as the first of a step, and as one that is added


def test_what_a_step_will_read_is_copied_before_and_once():
    model = model_of()
    graphs = recorder(model, Again(), print)
    passes = graphs.around(
        EagerStep(model, lambda batch: classification_loss(model, batch), CPU, SINGLE),
        build_optimizer(model, CONFIG),
        1.0,
    )
    first, second = (passes.ready(rows().batch(chosen)) for chosen in ([0, 2, 4], [5, 7, 9]))
    plain = passes.run(first, last=True).total.item()
    passes.clear(build_optimizer(model, CONFIG))
    passes.expect([second])
    slot = graphs.slots[second.shape]
    assert slot.holds is second
    assert torch.equal(slot.batch.ids_BT, second.ids_BT)
    assert passes.run(first, last=True).total.item() == pytest.approx(plain)  # another one than was expected
    assert slot.holds is None


def test_a_frozen_weight_is_let_go_and_does_not_move():
    model = model_of()
    graphs = recorder(model, Again(), print)
    state = TrainState(model, build_optimizer(model, CONFIG), 0)
    trained(model, graphs=graphs, state=state, steps=24, until=9)
    assert graphs.recorded == 3
    set_trainable(model, TransferConfig(freeze=True), 0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trained(model, graphs=graphs, state=state, steps=24, until=18)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"head.linear.weight", "head.linear.bias"}
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == moved
    assert graphs.recorded == 3
    set_trainable(model, TransferConfig(), 0)
    trained(model, graphs=graphs, state=state, steps=24)
    assert not any(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_step_is_the_same_whether_it_was_recorded_before_or_not():
    """Dropout too: a run that is resumed meets its widths anew."""
    model = model_of(dropout=0.3)
    graphs = recorder(model, Again(), print)
    whole = trained(model, graphs=graphs, steps=14)
    cut = model_of(dropout=0.3)
    state = TrainState(cut, build_optimizer(cut, CONFIG), 0)
    first = trained(cut, graphs=recorder(cut, Again(), print), state=state, steps=14, until=9)
    rest = trained(cut, graphs=recorder(cut, Again(), print), state=state, steps=14)
    assert [report.loss for report in first + rest] == [report.loss for report in whole]
    other = TrainState(again := model_of(dropout=0.3), build_optimizer(again, CONFIG), 1)
    assert [report.loss for report in trained(again, state=other, steps=14)] != [report.loss for report in whole]


def test_what_cannot_be_recorded_goes_the_plain_way_and_is_said_once():
    said, model = [], model_of()
    graphs = recorder(model, Again(refuse=True), said.append)
    reports = trained(model, graphs=graphs)
    assert [report.loss for report in reports] == pytest.approx(
        [report.loss for report in trained(model_of())], rel=1e-4
    )
    assert graphs.recorded == 0
    assert said == [
        "steps are not recorded as CUDA graphs here, and take longer: operation not permitted when stream is capturing"
    ]


def test_a_network_that_keeps_a_gpu_busy_goes_the_plain_way_to_the_bit():
    model = model_of()
    graphs = recorder(model, Again(), print, weights=MOST_WORK)
    assert [report.loss for report in trained(model, graphs=graphs)] == [report.loss for report in trained(model_of())]
    assert not graphs.slots
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_padded_batch_knows_itself():
    batch = pad_texts(rows().batch([0, 2]), CONTEXT)
    assert isinstance(batch, StaticBatch)
    assert batch.lengths_B.tolist() == [4, 8]
    assert not batch.ids_BT[:, 8:].any()
