"""Rows of a language model in a shape that comes back ask what they asked before, and recorded steps are the plain ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import CPU, SPECIAL, VOCABULARY, Again, corpus, language_model
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
SIZES = [3, 11, 7, 2, 9, 5, 8, 12, 4, 30, 6, 10]
CONFIG = OptimConfig(lr=1e-2, clip=1.0)


def rows(sizes=SIZES):
    return PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=CONTEXT, layout="packed", seed=1)


def causal(first, count=4):
    return rows().batch(first, count)


def masked(first, count=4):
    batch = rows().batch(first, count, segments_always=True)
    return mask_tokens(batch, first, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=False)


def by_turns(first):
    return masked(first) if first % 3 else causal(first)


def answer(batch):
    model = language_model()
    part = language_model_loss(model, batch)
    part.total.backward()
    return part.total.item(), part.count, [parameter.grad for parameter in model.parameters()]


@settings(max_examples=30)
@given(st.integers(0, 40), st.sampled_from([causal, masked]))
def test_filled_places_change_neither_loss_nor_gradients(first, kind):
    plain, steady = kind(first), static_tokens(kind(first))
    assert steady.num_targets == plain.num_targets
    if plain.num_targets < plain.targets.numel():
        assert len(steady.target_indices) % 512 == 0
        assert (steady.targets.flatten()[steady.target_indices] != IGNORE_INDEX).sum() == plain.num_targets
    (loss, count, grads), (found, counted, found_grads) = answer(plain), answer(steady)
    assert (found, counted) == (pytest.approx(loss, rel=1e-6), count)
    for ours, theirs in zip(found_grads, grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert max(grad.abs().max() for grad in grads) > 1e-3  # control


def test_rows_that_are_scored_throughout_need_no_places():
    full = rows([CONTEXT - 1] * 8).batch(0, 4)
    steady = static_tokens(full)
    assert not steady.has_padded_targets
    assert steady.segments_BT is None
    assert steady.cu_seqlens is None


def test_what_has_no_steady_shape_goes_the_plain_way():
    batch = causal(0)
    nothing = torch.full_like(batch.targets, IGNORE_INDEX)
    assert static_tokens(type(batch)(batch.ids_BT, batch.segments_BT, nothing, 0)) is None
    assert (
        static_tokens(NextSentenceBatch(**vars(batch), pairs_B=torch.zeros(4, dtype=torch.long), pair_weight=1.0))
        is None
    )
    alone = PackedDataset(corpus([3, 11]), np.arange(2), SPECIAL, context=CONTEXT, layout="documents", seed=1).batch(
        0, 2
    )
    padded = type(batch)(alone.ids_BT, torch.tensor([[0] * 4 + [-1] * 8, [0] * 12]), alone.targets, alone.num_targets)
    assert padded.with_cu_seqlens().unpadded_indices is not None
    assert static_tokens(padded) is None
    assert static_tokens(batch) is not None  # control


def test_two_batches_share_what_was_recorded_only_if_they_are_alike():
    first, second, other, longer = (
        static_tokens(batch).shape for batch in (masked(0), masked(4), causal(0), masked(0, count=5))
    )
    assert first == second
    assert len({first, other, longer}) == 3


def test_a_batch_whose_places_need_no_filling_shares_nothing_with_one_whose_do():
    """Passes that were recorded without gaps would score what fills up."""
    first, second = (torch.full((4, 200), IGNORE_INDEX) for _ in range(2))
    first.view(-1)[:512], second.view(-1)[:500] = 5, 5
    ids = torch.full_like(first, 5)
    one, two = (static_tokens(Batch(ids, None, targets, int((targets == 5).sum()))) for targets in (first, second))
    assert len(one.target_indices) == len(two.target_indices) == 512
    assert one.shape != two.shape


def test_a_batch_that_only_keeps_step_is_not_recorded():
    assert static_tokens(replace(causal(0), is_dummy=True)) is None


def trained(kind, graphs=None, steps=12):
    model = language_model()
    state = TrainState(model, build_optimizer(model, CONFIG), 0)
    graphs = graphs and GraphCache(model, graphs, print, static_tokens)
    reports = fit(
        state,
        lambda step: [kind(4 * step)],
        lambda batch: language_model_loss(model, batch),
        CONFIG,
        steps,
        CPU,
        graphs=graphs,
    )
    return list(reports), graphs


@pytest.mark.parametrize("kind", [causal, masked, by_turns])
def test_recorded_pretraining_follows_the_plain_one(kind):
    tape = Again()
    (plain, _), (recorded, graphs) = trained(kind), trained(kind, tape)
    assert [report.loss for report in recorded] == pytest.approx([report.loss for report in plain], rel=1e-4)
    assert [report.num_targets for report in recorded] == [report.num_targets for report in plain]
    assert graphs.num_graphs >= 1
    assert tape.replayed >= 12 - len(graphs.slots)
    assert plain[-1].loss < 0.95 * plain[0].loss  # control: it learns


def test_nothing_is_recorded_without_a_gpu():
    assert token_graphs(language_model(), CPU, SINGLE, print) is None
