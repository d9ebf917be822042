"""Sentence pairs are adjacent or of two documents, depend on (seed, epoch, index) only, and do not leak the label."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import SPECIAL, VOCABULARY, corpus
from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig, PretrainConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import is_causal_batch, make_batch, mask_tokens
from headstart.data.next_sentence import NextSentenceBatch, NextSentenceDataset, weight_pairs
from headstart.errors import DataError

lengths = st.lists(st.integers(1, 40), min_size=2, max_size=12).filter(lambda sizes: sum(n > 1 for n in sizes) > 1)
contexts = st.integers(8, 20)


def rows_of(sizes, *, context=12, seed=3):
    return NextSentenceDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, seed=seed)


def pairs_of(rows, epoch=0):
    return [rows.pair(epoch, index) for index in range(rows.num_rows)]


@given(lengths, contexts, st.integers(0, 5))
def test_true_pairs_are_adjacent_and_false_ones_are_of_two_documents(sizes, context, epoch):
    rows = rows_of(sizes, context=context)
    for pair in pairs_of(rows, epoch):
        (a, start, cut), (b, begin, end) = pair.a, pair.b
        length = [rows.corpus.lengths[rows.documents[document]] for document in (a, b)]
        assert 0 <= start < cut <= length[0]
        assert 0 < begin < end <= length[1]  # no B begins a document, true or not
        assert cut - start + end - begin + 2 <= context
        if pair.follows:
            assert (a, cut) == (b, begin)
        else:
            assert a != b


@given(lengths, contexts)
def test_a_row_is_its_two_pieces_and_then_padding(sizes, context):
    rows = rows_of(sizes, context=context)
    batch = rows.batch(0, rows.num_rows)
    for row, pair in enumerate(pairs_of(rows)):
        a, b = (rows.corpus.ids(rows.documents[d])[start:stop].tolist() for d, start, stop in (pair.a, pair.b))
        is_real = batch.segments_BT[row] != PADDING_SEGMENT
        assert batch.ids_BT[row][is_real].tolist() == [SPECIAL.sos, *a, SPECIAL.eos, *b]
        assert is_real.tolist() == sorted(is_real.tolist(), reverse=True)
        assert (batch.ids_BT[row][~is_real] == SPECIAL.pad).all()
        assert batch.pairs_B[row] == pair.follows


@given(lengths, contexts)
def test_no_target_is_a_token_of_the_other_piece(sizes, context):
    batch = rows_of(sizes, context=context).batch(0, 4)
    for ids, targets in zip(batch.ids_BT.tolist(), batch.targets.tolist(), strict=True):
        middle = ids.index(SPECIAL.eos)
        assert targets[middle - 1] == targets[middle] == targets[-1] == IGNORE_INDEX
        for position, target in enumerate(targets):
            assert target == IGNORE_INDEX or target == ids[position + 1]
        assert SPECIAL.eos not in targets
    assert batch.num_targets == int((batch.targets != IGNORE_INDEX).sum())


@given(lengths, contexts, st.integers(0, 9), st.booleans())
def test_special_tokens_of_a_pair_are_never_masked(sizes, context, seed, next_token):
    rows = rows_of(sizes, context=context)
    before = rows.batch(0, rows.num_rows)
    after = mask_tokens(before, 0, MaskingConfig(rate=0.9), SPECIAL, VOCABULARY, seed, next_token=next_token)
    changed = after.ids_BT != before.ids_BT
    special = (before.ids_BT == SPECIAL.sos) | (before.ids_BT == SPECIAL.eos) | (before.ids_BT == SPECIAL.pad)
    assert not (changed & special).any()
    targets = after.targets[after.targets != IGNORE_INDEX]
    assert not torch.isin(targets, torch.tensor([SPECIAL.sos, SPECIAL.eos, SPECIAL.pad])).any()
    assert isinstance(after, NextSentenceBatch)
    assert torch.equal(after.pairs_B, before.pairs_B)


def test_half_of_the_pairs_are_true():
    rows = rows_of([40] * 60, context=12)
    for epoch in range(3):
        labels = [pair.follows for pair in pairs_of(rows, epoch)]
        # four standard errors of a coin
        assert np.mean(labels) == pytest.approx(0.5, abs=2 / np.sqrt(rows.num_rows))
    evaluated = [pair.follows for pair in pairs_of(rows_of([40] * 60, seed=None))]
    assert sum(evaluated) == len(evaluated) / 2  # exactly, in an evaluation


@given(lengths, contexts)
def test_the_lengths_of_pieces_do_not_leak_the_label(sizes, context):
    """True and false pairs with the same A have a B of the same length that ends a document in both cases or in none."""

    class AlwaysTrue(NextSentenceDataset):
        label_bits = 0

        def _draw(self, key, stream):
            return self.label_bits if stream == 2_000_002 else super()._draw(key, stream)

    class AlwaysFalse(AlwaysTrue):
        label_bits = 1

    both = [
        dataset_class(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, seed=3)
        for dataset_class in (AlwaysTrue, AlwaysFalse)
    ]
    for true, false in zip(*map(pairs_of, both), strict=True):
        assert true.follows
        assert true.a == false.a
        assert true.b[2] - true.b[1] == false.b[2] - false.b[1]
        true_length, false_length = (both[0].corpus.lengths[both[0].documents[pair.b[0]]] for pair in (true, false))
        if true.b[2] == true_length:
            assert false.b[2] == false_length


@given(lengths, st.integers(0, 60), st.integers(1, 5))
def test_a_pair_does_not_depend_on_what_was_read_before(sizes, first, count):
    fresh, used = rows_of(sizes), rows_of(sizes)
    used.batch(first + 17, 2)
    a, b = fresh.batch(first, count), used.batch(first, count)
    assert torch.equal(a.ids_BT, b.ids_BT)
    assert torch.equal(a.pairs_B, b.pairs_B)


def test_every_epoch_and_seed_has_different_pairs():
    epochs = {
        tuple((pair.a, pair.b) for pair in pairs_of(rows_of([30] * 8, seed=seed), epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(epochs) == 9


@given(lengths, contexts)
def test_an_epoch_reads_every_document_of_two_tokens_or_more(sizes, context):
    rows = rows_of(sizes, context=context)
    read = {pair.a[0] for pair in pairs_of(rows)}
    assert sorted(rows.documents[list(read)].tolist()) == [index for index, size in enumerate(sizes) if size > 1]
    assert rows.num_short == sum(size < 2 for size in sizes)


def test_every_token_of_a_document_is_in_some_pair():
    rows = rows_of([31, 31, 17, 9], context=12)
    covered = [np.zeros(size, dtype=bool) for size in (31, 31, 17, 9)]
    for pair in pairs_of(rows):
        if pair.follows:
            covered[pair.a[0]][pair.a[1] : pair.b[2]] = True
        else:
            covered[pair.a[0]][pair.a[1] : pair.a[2]] = True
    starts = sorted(pair.a[:2] for pair in pairs_of(rows))
    assert [start for start in starts if start[1] == 0] == [(document, 0) for document in range(4)]
    assert all(tokens[0] for tokens in covered)
    assert rows.num_tokens == 31 + 31 + 17 + 9 + 2 * rows.num_rows


def test_a_duplicate_of_the_document_never_provides_b():
    text, different = np.arange(4, 12), np.arange(6, 14)
    documents = [text, text, text, different]
    duplicates = SimpleNamespace(lengths=np.full(4, 8), ids=lambda index: documents[index])
    rows = NextSentenceDataset(duplicates, np.arange(4), SPECIAL, context=12, seed=0)
    false_pairs = [pair for epoch in range(20) for pair in pairs_of(rows, epoch) if not pair.follows]
    assert len(false_pairs) > 20
    assert all((pair.a[0] == 3) != (pair.b[0] == 3) for pair in false_pairs)
    only_duplicates = SimpleNamespace(lengths=np.full(3, 8), ids=lambda _: text)
    rows = NextSentenceDataset(only_duplicates, np.arange(3), SPECIAL, context=12, seed=0)
    assert all(
        pair.follows for epoch in range(5) for pair in pairs_of(rows, epoch)
    )  # no document can provide a false B


def test_too_few_documents_or_too_short_rows_are_refused():
    with pytest.raises(DataError) as caught:
        rows_of([1, 1, 9])
    assert str(caught.value) == (
        "pairs need two documents of two tokens or more, got 1 of 3; add more text, or remove next_sentence.weight"
    )
    with pytest.raises(DataError) as caught:
        rows_of([9, 9], context=7)
    assert str(caught.value) == "pairs need rows of 8 tokens or more, got 7; increase model.context"


def test_causal_batches_of_a_hybrid_run_are_plain_text():
    sizes = [20] * 8
    plain = PackedDataset(corpus(sizes), np.arange(8), SPECIAL, context=12, layout="packed", seed=0)
    config = PretrainConfig(objective="hybrid")
    is_pair_batch = []
    for index in range(40):
        batch = make_batch(plain, 2 * index, 2, config, SPECIAL, VOCABULARY, 0, rows_of(sizes))
        is_pair_batch.append(isinstance(batch, NextSentenceBatch))
        if not is_pair_batch[-1]:
            assert torch.equal(batch.ids_BT, plain.batch(2 * index, 2).ids_BT)
    assert is_pair_batch == [not is_causal_batch(index, 0, config.masking.causal) for index in range(40)]
    assert {True, False} == set(is_pair_batch)


def test_pair_labels_are_moved_and_weighted_with_their_batch():
    batch = rows_of([9, 9, 9]).batch(0, 3)
    assert batch.to(torch.device("meta")).pairs_B.device.type == "meta"
    weighted = weight_pairs([batch, batch], 0.5)
    assert [part.pair_weight for part in weighted] == [0.5 * 2 * batch.num_targets / 6] * 2
