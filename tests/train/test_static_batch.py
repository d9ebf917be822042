"""Language-model batches padded to a static shape have the same loss and gradients, and can be captured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.recorded_capture import RerunCapture
from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus, language_model
from headstart.config.schema import IGNORE_INDEX, MaskingConfig, OptimConfig
from headstart.data.batch import Batch
from headstart.data.datasets import PackedDataset
from headstart.data.masking import mask_tokens
from headstart.data.next_sentence import NextSentenceBatch
from headstart.train.cuda_graphs import GraphCache, token_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE
from headstart.train.static_batch import static_tokens

CONTEXT = 12
LENGTHS = [3, 11, 7, 2, 9, 5, 8, 12, 4, 30, 6, 10]
CONFIG = OptimConfig(lr=1e-2, clip=1.0)


def dataset(lengths=LENGTHS, layout="packed"):
    return PackedDataset(corpus(lengths), np.arange(len(lengths)), SPECIAL, context=CONTEXT, layout=layout, seed=1)


def causal(first, count=4):
    return dataset().batch(first, count)


def masked(first, count=4):
    batch = dataset().batch(first, count, segments_always=True)
    return mask_tokens(batch, first, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=False)


def hybrid(first):
    return masked(first) if first % 3 else causal(first)


def loss_and_grads(batch):
    model = language_model()
    loss = language_model_loss(model, batch)
    loss.total.backward()
    return loss.total.item(), loss.count, [parameter.grad for parameter in model.parameters()]


@settings(max_examples=30)
@given(st.integers(0, 40), st.sampled_from([causal, masked]))
def test_padded_targets_change_neither_loss_nor_gradients(first, fetch):
    batch, static_batch = fetch(first), static_tokens(fetch(first))
    assert static_batch.num_targets == batch.num_targets
    if batch.num_targets < batch.targets.numel():
        assert len(static_batch.target_indices) % 512 == 0
        targets = static_batch.targets.flatten()[static_batch.target_indices]
        assert (targets != IGNORE_INDEX).sum() == batch.num_targets
    (loss, count, grads), (static_loss, static_count, static_grads) = (
        loss_and_grads(batch),
        loss_and_grads(static_batch),
    )
    assert (static_loss, static_count) == (pytest.approx(loss, rel=1e-6), count)
    for static_grad, grad in zip(static_grads, grads, strict=True):
        torch.testing.assert_close(static_grad, grad, rtol=1e-4, atol=1e-5)
    assert max(grad.abs().max() for grad in grads) > 1e-3  # control


def test_rows_whose_every_token_is_a_target_need_no_padding():
    static_batch = static_tokens(dataset([CONTEXT - 1] * 8).batch(0, 4))
    assert not static_batch.has_padded_targets
    assert static_batch.segments_BT is None
    assert static_batch.cu_seqlens is None


def test_pairs_padded_rows_and_batches_without_targets_get_no_static_shape():
    batch = causal(0)
    nothing = torch.full_like(batch.targets, IGNORE_INDEX)
    assert static_tokens(type(batch)(batch.ids_BT, batch.segments_BT, nothing, 0)) is None
    pairs = NextSentenceBatch(**vars(batch), pairs_B=torch.zeros(4, dtype=torch.long), pair_weight=1.0)
    assert static_tokens(pairs) is None
    documents = dataset([3, 11], layout="documents").batch(0, 2)
    segments = torch.tensor([[0] * 4 + [-1] * 8, [0] * 12])
    padded = type(batch)(documents.ids_BT, segments, documents.targets, documents.num_targets)
    assert padded.with_cu_seqlens().unpadded_indices is not None
    assert static_tokens(padded) is None
    assert static_tokens(batch) is not None  # control


def test_two_batches_have_one_shape_only_if_they_are_alike():
    first, second, other_attention, more_rows = (
        static_tokens(batch).shape for batch in (masked(0), masked(4), causal(0), masked(0, count=5))
    )
    assert first == second
    assert len({first, other_attention, more_rows}) == 3


def test_batches_with_and_without_padded_targets_have_different_shapes():
    """A graph captured without ignored targets would count the padding."""
    exact, padded = (torch.full((4, 200), IGNORE_INDEX) for _ in range(2))
    exact.view(-1)[:512], padded.view(-1)[:500] = 5, 5
    ids = torch.full_like(exact, 5)
    one, two = (static_tokens(Batch(ids, None, targets, int((targets == 5).sum()))) for targets in (exact, padded))
    assert len(one.target_indices) == len(two.target_indices) == 512
    assert one.shape != two.shape


def test_a_dummy_batch_gets_no_static_shape():
    assert static_tokens(replace(causal(0), is_dummy=True)) is None


def train(fetch, backend=None, steps=12):
    model = language_model()
    state = TrainState(model, build_optimizer(model, CONFIG), 0)
    graphs = backend and GraphCache(model, backend, print, static_tokens)
    reports = fit(
        state,
        lambda step: [fetch(4 * step)],
        lambda batch: language_model_loss(model, batch),
        CONFIG,
        steps,
        CPU,
        graphs=graphs,
    )
    return list(reports), graphs


@pytest.mark.parametrize("fetch", [causal, masked, hybrid])
def test_captured_pretraining_follows_the_eager_one(fetch):
    backend = RerunCapture()
    (eager, _), (captured, graphs) = train(fetch), train(fetch, backend)
    assert [report.loss for report in captured] == pytest.approx([report.loss for report in eager], rel=1e-4)
    assert [report.num_targets for report in captured] == [report.num_targets for report in eager]
    assert graphs.num_graphs >= 1
    assert backend.num_replays >= 12 - len(graphs.slots)
    assert eager[-1].loss < 0.95 * eager[0].loss  # control: it learns


def test_pretraining_is_not_captured_without_a_gpu():
    assert token_graphs(language_model(), CPU, SINGLE, print) is None
