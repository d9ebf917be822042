"""Cumulative sequence lengths: the documents of all rows end to end, for attention without padding."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import SPECIAL, corpus
from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.datasets import LabelledDataset, PackedDataset

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def documents_between(batch):
    """The tokens between adjacent cumulative lengths."""
    ids = batch.ids_BT.flatten() if batch.unpadded_indices is None else batch.ids_BT.flatten()[batch.unpadded_indices]
    cuts = batch.cu_seqlens.tolist()
    return [ids[a:b].tolist() for a, b in itertools.pairwise(cuts) if b > a]


def documents_of(batch):
    """The (segment, tokens) of each document, from the segments."""
    documents = []
    for ids, segments in zip(batch.ids_BT.tolist(), batch.segments_BT.tolist(), strict=True):
        tokens = {}
        for token, segment in zip(ids, segments, strict=True):
            tokens.setdefault(segment, []).append(token)
        documents += list(tokens.items())
    return documents


@given(lengths, st.integers(2, 16), st.sampled_from(["packed", "documents"]))
def test_cu_seqlens_cut_where_segments_change(sizes, context, layout):
    rows = PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, layout=layout, seed=1)
    batch = rows.batch(0, rows.num_rows, segments_always=True).with_cu_seqlens()
    expected = documents_of(batch)
    if batch.unpadded_indices is not None:  # padding is excluded
        expected = [(segment, tokens) for segment, tokens in expected if segment != PADDING_SEGMENT]
    assert documents_between(batch) == [tokens for _, tokens in expected]
    assert batch.cu_seqlens.dtype == torch.int32
    assert len(batch.cu_seqlens) & (len(batch.cu_seqlens) - 1) == 0  # a power of two: few shapes to compile for
    assert batch.target_indices.tolist() == np.flatnonzero(batch.targets.numpy() != IGNORE_INDEX).tolist()


@given(lengths)
def test_cu_seqlens_of_texts_hold_each_text_once(sizes):
    texts = [np.full(size, 4 + index) for index, size in enumerate(sizes)]
    batch = LabelledDataset(texts, [0] * len(sizes), SPECIAL, context=20).batch(range(len(sizes))).with_cu_seqlens()
    expected = [[SPECIAL.sos, *[4 + index] * min(size, 19)] for index, size in enumerate(sizes)]
    assert documents_between(batch) == expected
