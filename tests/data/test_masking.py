"""Hiding: the shares asked for, the same ones again, nothing special hidden, nothing asked that was not hidden."""

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


def hidden_batch(rows, first, count, config=None, seed=0, next_token=False):
    batch = rows.batch(first, count, segments_always=True)
    return batch, mask_tokens(batch, first, config or MaskingConfig(), SPECIAL, VOCABULARY, seed, next_token=next_token)


@given(lengths, st.integers(0, 9), st.sampled_from(["packed", "documents"]))
def test_what_is_asked_for_is_what_stood_there(sizes, seed, layout):
    rows = rows_of(sizes, layout)
    before, after = hidden_batch(rows, 0, rows.num_rows, seed=seed)
    asked = after.targets != IGNORE_INDEX
    assert torch.equal(after.targets[asked], before.ids_BT[asked])
    assert torch.equal(after.ids_BT[~asked], before.ids_BT[~asked])  # only what is asked for may change
    assert not (asked & (before.segments_BT == PADDING_SEGMENT)).any()
    assert not (asked & (before.ids_BT == SPECIAL.sos)).any()
    assert after.num_targets == int(asked.sum())
    assert after.attention == "bidirectional"


@given(lengths, st.integers(0, 9))
def test_asked_at_the_place_before_it_is_the_same_token_of_the_same_document(sizes, seed):
    rows = rows_of(sizes)
    before, same_place = hidden_batch(rows, 0, rows.num_rows, seed=seed)
    _, place_before = hidden_batch(rows, 0, rows.num_rows, seed=seed, next_token=True)
    assert torch.equal(same_place.ids_BT, place_before.ids_BT)
    for row in range(rows.num_rows):
        for place in range(11):
            target = place_before.targets[row, place]
            if target != IGNORE_INDEX:
                assert target == same_place.targets[row, place + 1]
                assert before.segments_BT[row, place] == before.segments_BT[row, place + 1]
        assert place_before.targets[row, 11] == IGNORE_INDEX


def test_the_shares_are_those_asked_for():
    rows = rows_of([400] * 100, context=100)
    config = MaskingConfig(rate=0.15, masked=0.8, random=0.1)
    before, after = hidden_batch(rows, 0, rows.num_rows, config)
    real = (before.segments_BT != PADDING_SEGMENT) & (before.ids_BT != SPECIAL.sos)
    asked = after.targets != IGNORE_INDEX
    assert asked.sum().item() / real.sum().item() == pytest.approx(0.15, abs=0.01)
    shown = after.ids_BT[asked]
    masked = (shown == SPECIAL.mask).float().mean().item()
    kept = (shown == before.ids_BT[asked]).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.015)
    # of the random tenth, one in 13 happens to be the token itself
    assert kept == pytest.approx(0.1 + 0.1 / 13, abs=0.015)
    others = shown[(shown != SPECIAL.mask) & (shown != before.ids_BT[asked])]
    assert set(others.tolist()) == set(range(4, VOCABULARY))


@given(st.integers(0, 40), st.integers(1, 5), st.sampled_from(["packed", "documents"]))
def test_a_row_hides_the_same_tokens_in_any_batch(first, count, layout):
    rows = rows_of([3, 9, 14, 6, 20, 2, 8], layout)
    _, together = hidden_batch(rows, first, count)
    for place in range(count):
        _, alone = hidden_batch(rows, first + place, 1)
        width = alone.ids_BT.shape[1]
        assert torch.equal(alone.ids_BT[0], together.ids_BT[place, :width])
        assert torch.equal(alone.targets[0], together.targets[place, :width])


def test_epochs_and_seeds_hide_other_tokens():
    rows = rows_of([50] * 4)
    first = hidden_batch(rows, 0, rows.num_rows)[1].targets
    again = hidden_batch(rows, 0, rows.num_rows)[1].targets
    later = hidden_batch(rows, rows.num_rows, rows.num_rows)[1].targets
    other = hidden_batch(rows, 0, rows.num_rows, seed=1)[1].targets
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


def test_turns_are_causal_in_their_share_and_follow_from_the_seed():
    turns = [is_causal_batch(index, 0, 0.25) for index in range(4000)]
    assert sum(turns) / 4000 == pytest.approx(0.25, abs=0.02)
    assert turns == [is_causal_batch(index, 0, 0.25) for index in range(4000)]
    assert turns != [is_causal_batch(index, 1, 0.25) for index in range(4000)]
    assert not any(is_causal_batch(index, 0, 0.0) for index in range(50))
    assert all(is_causal_batch(index, 0, 1.0) for index in range(50))


def test_a_vocabulary_without_a_mask_is_refused():
    with pytest.raises(UsageError) as caught:
        mask_token(SpecialIds(sos=0, pad=1, eos=2, mask=None, unknown=3))
    assert str(caught.value) == (
        "this tokenizer has no mask token, which masked objectives need; train one with headstart tokenizer"
    )
