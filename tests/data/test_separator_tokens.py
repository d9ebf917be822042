"""Rows that end with a separator token, which some imported models were trained with."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import SPECIAL, VOCABULARY, corpus
from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import mask_tokens

WITH_SEP = replace(SPECIAL, sep=SPECIAL.eos)
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@settings(max_examples=40)
@given(SIZES, st.integers(4, 16))
def test_packed_documents_end_with_a_separator_that_has_no_target(sizes, context):
    documents = corpus(sizes)
    rows = PackedDataset(documents, np.arange(len(sizes)), WITH_SEP, context=context, layout="packed", seed=None)
    batch = rows.batch(0, rows.num_rows)
    is_real = (batch.segments_BT != PADDING_SEGMENT).numpy()
    ids, targets = batch.ids_BT.numpy()[is_real], batch.targets.numpy()[is_real]
    expected = [[SPECIAL.sos, *documents.ids(index), SPECIAL.eos] for index in range(len(sizes))]
    assert ids.tolist() == [id for document in expected for id in document]
    assert targets.tolist() == [id for document in expected for id in [*document[1:], IGNORE_INDEX]]
    assert batch.num_targets == sum(sizes) + len(sizes)


@settings(max_examples=40)
@given(SIZES, st.integers(4, 16))
def test_truncation_in_the_documents_layout_keeps_the_separator(sizes, context):
    documents = corpus(sizes)
    rows = PackedDataset(documents, np.arange(len(sizes)), WITH_SEP, context=context, layout="documents", seed=None)
    batch = rows.batch(0, rows.num_rows, segments_always=True)
    for index, size in enumerate(sizes):
        is_real = (batch.segments_BT[index] != PADDING_SEGMENT).numpy()
        row = [SPECIAL.sos, *documents.ids(index)[: context - 2], SPECIAL.eos]
        assert batch.ids_BT[index].numpy()[is_real].tolist() == row
        assert batch.targets[index].numpy()[is_real].tolist() == [*row[1:], IGNORE_INDEX]
        assert len(row) == min(size + 2, context)
    assert rows.num_truncated == sum(size + 2 > context for size in sizes)


def test_a_separator_is_never_masked():
    rows = PackedDataset(corpus([9] * 40), np.arange(40), WITH_SEP, context=22, layout="packed", seed=None)
    plain = rows.batch(0, rows.num_rows)
    masked = mask_tokens(plain, 0, MaskingConfig(rate=0.9), WITH_SEP, VOCABULARY, 0, next_token=False)
    ends = plain.ids_BT == SPECIAL.eos
    assert bool(ends.any())
    assert bool((masked.ids_BT == plain.ids_BT)[ends].all())
    assert bool((masked.targets[ends] == IGNORE_INDEX).all())
    assert masked.num_targets > 200  # control: many other tokens are


@pytest.mark.parametrize("windows", [False, True])
def test_every_window_of_a_labelled_text_ends_with_a_separator_within_the_context(windows):
    texts = [np.arange(size) % 13 + 4 for size in (1, 6, 7, 8, 20)]
    rows = LabelledDataset(texts, [0] * 5, WITH_SEP, context=8, windows=windows)
    batch = rows.batch(range(5))
    read = [[] for _ in texts]
    samples = batch.sample_index_B.tolist() if windows else range(5)
    for sample, ids, length in zip(samples, batch.ids_BT.tolist(), batch.lengths_B.tolist(), strict=True):
        assert length <= 8
        assert (ids[0], ids[length - 1]) == (SPECIAL.sos, SPECIAL.eos)
        read[sample] += ids[1 : length - 1]
    assert read == [text.tolist() if windows else text[:6].tolist() for text in texts]
    assert rows.num_long == 3
    assert sum(len(bucket) for bucket in rows.buckets(16)) == 5
