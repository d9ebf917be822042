"""Any number of processes reads every row of a step once, with the same masked tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import SPECIAL, VOCABULARY, corpus, pretrain_config
from headstart.config.schema import IGNORE_INDEX
from headstart.data.batch import FULL_BATCH, RankSlice
from headstart.data.datasets import PackedDataset
from headstart.data.next_sentence import NextSentenceDataset
from headstart.recipes.pretrain.stages import Stage


@given(rows=st.integers(1, 200), size=st.integers(1, 40), world_size=st.integers(1, 9))
def test_ranks_read_every_row_once_in_order_within_micro_batches(rows, size, world_size):
    slices = [RankSlice(rank, world_size).micro_batches(rows, size) for rank in range(world_size)]
    read = [row for pieces in slices for first, last in pieces for row in range(first, last)]
    assert read == list(range(rows))
    for first, last in (piece for pieces in slices for piece in pieces):
        assert first == last or first // size == (last - 1) // size
    assert len({len(pieces) for pieces in slices}) == 1  # ranks wait for each other at every piece
    counts = [sum(last - first for first, last in pieces) for pieces in slices]
    assert max(counts) - min(counts) <= 1


def test_a_single_process_reads_batch_by_batch():
    assert FULL_BATCH.micro_batches(10, 4) == [(0, 4), (4, 8), (8, 10)]


def stage(objective, layout, pairs, portion):
    config = pretrain_config(
        objective=objective, corpus__layout=layout, next_sentence__weight=1.0 if pairs else 0.0, loop__accumulate=3
    )
    documents = corpus([3, 30, 7, 12, 9, 25, 14, 5, 40, 2])
    everything = np.arange(10)
    rows = PackedDataset(documents, everything, SPECIAL, context=12, layout=layout, seed=5)
    pair_rows = NextSentenceDataset(documents, everything, SPECIAL, context=12, seed=5) if pairs else None
    shards = SimpleNamespace(vocab_size=VOCABULARY)
    return Stage(1, 1.0, config, shards, everything, rows, SPECIAL, 4, 5, pair_rows, rank_slice=portion)


def rows_of(batches):
    """Yield the tokens, targets, attention and pair weight of each row."""
    for batch in batches:
        for row in range(0 if batch.is_dummy else len(batch.ids_BT)):
            targets = batch.targets[row].tolist()
            length = max([index for index, target in enumerate(targets) if target != IGNORE_INDEX], default=0) + 1
            pair = (int(batch.pairs_B[row]), batch.pair_weight) if hasattr(batch, "pairs_B") else ()
            yield batch.ids_BT[row, :length].tolist(), targets[:length], batch.attention, *pair


CASES = [
    ("causal", "packed", False),
    ("masked", "documents", False),
    ("hybrid", "packed", False),
    ("masked", "packed", True),
    ("hybrid", "packed", True),
]


@pytest.mark.parametrize(("objective", "layout", "pairs"), CASES)
@given(step=st.integers(0, 60), world_size=st.integers(2, 6))
@settings(max_examples=12)
def test_a_step_holds_the_same_rows_for_any_number_of_processes(objective, layout, pairs, step, world_size):
    single = stage(objective, layout, pairs, FULL_BATCH).fetch(step)
    split = [stage(objective, layout, pairs, RankSlice(rank, world_size)).fetch(step) for rank in range(world_size)]
    assert list(rows_of(single)) == [row for batches in split for row in rows_of(batches)]
    assert sum(batch.num_targets for batch in single) == sum(
        batch.num_targets for batches in split for batch in batches if not batch.is_dummy
    )


def test_two_steps_hold_different_rows():
    second_rank = stage("masked", "packed", False, RankSlice(1, 2))
    assert list(rows_of(second_rank.fetch(3))) != list(rows_of(second_rank.fetch(4)))


def test_a_single_process_has_no_dummy_batches():
    batches = stage("causal", "packed", False, FULL_BATCH).fetch(0)
    assert [tuple(batch.ids_BT.shape) for batch in batches] == [(4, 12)] * 3
    assert not any(batch.is_dummy for batch in batches)
    assert torch.equal(batches[0].ids_BT, stage("causal", "packed", False, FULL_BATCH).fetch(0)[0].ids_BT)
