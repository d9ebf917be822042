"""However many processes share a step, they read its rows once, and what is hidden in them is the same."""

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


@given(rows=st.integers(1, 200), size=st.integers(1, 40), world=st.integers(1, 9))
def test_every_row_is_read_once_in_order_and_no_piece_crosses_a_batch(rows, size, world):
    shares = [RankSlice(rank, world).micro_batches(rows, size) for rank in range(world)]
    read = [row for pieces in shares for first, last in pieces for row in range(first, last)]
    assert read == list(range(rows))
    for first, last in (piece for pieces in shares for piece in pieces):
        assert first == last or first // size == (last - 1) // size
    assert len({len(pieces) for pieces in shares}) == 1  # they wait for each other at every piece
    counts = [sum(last - first for first, last in pieces) for pieces in shares]
    assert max(counts) - min(counts) <= 1


def test_one_process_reads_batch_by_batch():
    assert FULL_BATCH.micro_batches(10, 4) == [(0, 4), (4, 8), (8, 10)]


def stage(objective, layout, pairs, portion):
    config = pretrain_config(
        objective=objective, corpus__layout=layout, next_sentence__weight=1.0 if pairs else 0.0, loop__accumulate=3
    )
    documents = corpus([3, 30, 7, 12, 9, 25, 14, 5, 40, 2])
    everything = np.arange(10)
    rows = PackedDataset(documents, everything, SPECIAL, context=12, layout=layout, seed=5)
    found = NextSentenceDataset(documents, everything, SPECIAL, context=12, seed=5) if pairs else None
    shards = SimpleNamespace(vocab_size=VOCABULARY)
    return Stage(1, 1.0, config, shards, everything, rows, SPECIAL, 4, 5, found, portion=portion)


def rows_of(batches):
    """Each row as it is read: its tokens, its targets, who sees whom, and what its pair weighs."""
    for batch in batches:
        for index in range(0 if batch.is_dummy else len(batch.ids_BT)):
            targets = batch.targets[index].tolist()
            width = max([place for place, target in enumerate(targets) if target != IGNORE_INDEX], default=0) + 1
            pair = (int(batch.pairs_B[index]), batch.pair_weight) if hasattr(batch, "pairs_B") else ()
            yield batch.ids_BT[index, :width].tolist(), targets[:width], batch.attention, *pair


CASES = [
    ("causal", "packed", False),
    ("masked", "documents", False),
    ("hybrid", "packed", False),
    ("masked", "packed", True),
    ("hybrid", "packed", True),
]


@pytest.mark.parametrize(("objective", "layout", "pairs"), CASES)
@given(step=st.integers(0, 60), world=st.integers(2, 6))
@settings(max_examples=12)
def test_a_step_holds_the_same_rows_for_any_number_of_processes(objective, layout, pairs, step, world):
    whole = stage(objective, layout, pairs, FULL_BATCH).fetch(step)
    shared = [stage(objective, layout, pairs, RankSlice(rank, world)).fetch(step) for rank in range(world)]
    assert list(rows_of(whole)) == [row for batches in shared for row in rows_of(batches)]
    assert sum(batch.num_targets for batch in whole) == sum(
        batch.num_targets for batches in shared for batch in batches if not batch.is_dummy
    )


def test_another_step_holds_others():
    read = stage("masked", "packed", False, RankSlice(1, 2))
    assert list(rows_of(read.fetch(3))) != list(rows_of(read.fetch(4)))


def test_a_batch_of_the_whole_step_is_not_copied():
    batches = stage("causal", "packed", False, FULL_BATCH).fetch(0)
    assert [tuple(batch.ids_BT.shape) for batch in batches] == [(4, 12)] * 3
    assert not any(batch.is_dummy for batch in batches)
    assert torch.equal(batches[0].ids_BT, stage("causal", "packed", False, FULL_BATCH).fetch(0)[0].ids_BT)
