"""Masking has the configured rates, is reproducible, masks no special token, and makes only masked tokens targets."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import SPECIAL, VOCABULARY, corpus
from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import is_causal_batch, mask_token, mask_tokens
from headstart.errors import UsageError
from headstart.tokenization.base import SpecialIds

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def rows_of(sizes, layout="packed", context=12):
    return PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, layout=layout, seed=1)


def masked_batch(rows, first, count, config=None, seed=0, next_token=False):
    batch = rows.batch(first, count, segments_always=True)
    return batch, mask_tokens(batch, first, config or MaskingConfig(), SPECIAL, VOCABULARY, seed, next_token=next_token)


@given(lengths, st.integers(0, 9), st.sampled_from(["packed", "documents"]))
def test_targets_are_the_original_tokens(sizes, seed, layout):
    rows = rows_of(sizes, layout)
    before, after = masked_batch(rows, 0, rows.num_rows, seed=seed)
    has_target = after.targets != IGNORE_INDEX
    assert torch.equal(after.targets[has_target], before.ids_BT[has_target])
    assert torch.equal(after.ids_BT[~has_target], before.ids_BT[~has_target])  # only tokens with a target may change
    assert not (has_target & (before.segments_BT == PADDING_SEGMENT)).any()
    assert not (has_target & (before.ids_BT == SPECIAL.sos)).any()
    assert after.num_targets == int(has_target.sum())
    assert after.attention == "bidirectional"


@given(lengths, st.integers(0, 9))
def test_a_target_at_the_position_before_is_the_same_token_of_the_same_document(sizes, seed):
    rows = rows_of(sizes)
    before, same_position = masked_batch(rows, 0, rows.num_rows, seed=seed)
    _, position_before = masked_batch(rows, 0, rows.num_rows, seed=seed, next_token=True)
    assert torch.equal(same_position.ids_BT, position_before.ids_BT)
    for row in range(rows.num_rows):
        for position in range(11):
            target = position_before.targets[row, position]
            if target != IGNORE_INDEX:
                assert target == same_position.targets[row, position + 1]
                assert before.segments_BT[row, position] == before.segments_BT[row, position + 1]
        assert position_before.targets[row, 11] == IGNORE_INDEX


def test_the_rates_are_the_configured_ones():
    rows = rows_of([400] * 100, context=100)
    config = MaskingConfig(rate=0.15, masked=0.8, random=0.1)
    before, after = masked_batch(rows, 0, rows.num_rows, config)
    maskable = (before.segments_BT != PADDING_SEGMENT) & (before.ids_BT != SPECIAL.sos)
    has_target = after.targets != IGNORE_INDEX
    assert has_target.sum().item() / maskable.sum().item() == pytest.approx(0.15, abs=0.01)
    inputs = after.ids_BT[has_target]
    masked = (inputs == SPECIAL.mask).float().mean().item()
    unchanged = (inputs == before.ids_BT[has_target]).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.015)
    # of the random tenth, one in 13 happens to be the token itself
    assert unchanged == pytest.approx(0.1 + 0.1 / 13, abs=0.015)
    others = inputs[(inputs != SPECIAL.mask) & (inputs != before.ids_BT[has_target])]
    assert set(others.tolist()) == set(range(4, VOCABULARY))


@given(st.integers(0, 40), st.integers(1, 5), st.sampled_from(["packed", "documents"]))
def test_a_row_masks_the_same_tokens_in_any_batch(first, count, layout):
    rows = rows_of([3, 9, 14, 6, 20, 2, 8], layout)
    _, together = masked_batch(rows, first, count)
    for offset in range(count):
        _, alone = masked_batch(rows, first + offset, 1)
        width = alone.ids_BT.shape[1]
        assert torch.equal(alone.ids_BT[0], together.ids_BT[offset, :width])
        assert torch.equal(alone.targets[0], together.targets[offset, :width])


def test_epochs_and_seeds_mask_different_tokens():
    rows = rows_of([50] * 4)
    first = masked_batch(rows, 0, rows.num_rows)[1].targets
    again = masked_batch(rows, 0, rows.num_rows)[1].targets
    later = masked_batch(rows, rows.num_rows, rows.num_rows)[1].targets
    other = masked_batch(rows, 0, rows.num_rows, seed=1)[1].targets
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


def test_causal_batches_have_their_probability_and_depend_on_the_seed():
    is_causal = [is_causal_batch(index, 0, 0.25) for index in range(4000)]
    assert sum(is_causal) / 4000 == pytest.approx(0.25, abs=0.02)
    assert is_causal == [is_causal_batch(index, 0, 0.25) for index in range(4000)]
    assert is_causal != [is_causal_batch(index, 1, 0.25) for index in range(4000)]
    assert not any(is_causal_batch(index, 0, 0.0) for index in range(50))
    assert all(is_causal_batch(index, 0, 1.0) for index in range(50))


def test_a_tokenizer_without_a_mask_token_is_refused():
    with pytest.raises(UsageError) as caught:
        mask_token(SpecialIds(sos=0, pad=1, eos=2, mask=None, unknown=3))
    assert str(caught.value) == (
        "this tokenizer has no mask token, which masked objectives need; train a tokenizer with headstart tokenizer"
    )
