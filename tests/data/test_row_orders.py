"""Training rows have an order that depends on seed and epoch; evaluation preserves the order of the files."""

import numpy as np

from fixtures.tiny import SPECIAL, corpus
from headstart.data.datasets import PackedDataset

SIZES = [5, 9, 3, 7, 6, 8]


def order(seed, epoch):
    rows = PackedDataset(corpus(SIZES), np.arange(len(SIZES)), SPECIAL, context=8, layout="documents", seed=seed)
    return tuple(map(tuple, rows.batch(epoch * rows.num_rows, rows.num_rows).ids_BT.tolist()))


def test_every_seed_and_epoch_has_a_different_row_order():
    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(None, 0) == order(None, 1)
