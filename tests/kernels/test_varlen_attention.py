"""Without padding the network computes what it computes under a mask.

The kernel itself wants a GPU (tests/gpu/test_gpu_training.py); here a plain loop over documents replaces it, so that
everything around it is tested everywhere.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fixtures.tiny import SPECIAL, VOCABULARY, corpus, network_configs
from headstart.config.schema import PADDING_SEGMENT
from headstart.data.batch import Batch
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.kernels import dispatch
from headstart.model import transformer
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train.objectives import class_logits

SHAPES = network_configs(width=16, depth=3, heads=2, feedforward=24, context=20)


def varlen_attn_in_torch(query, key, value, cu_seqlens, _, max_seqlen, __, *, window_size):
    """What varlen_attn computes, a document at a time."""
    mixed = torch.zeros_like(query)
    for start, stop in itertools.pairwise(cu_seqlens.tolist()):
        assert stop - start <= max_seqlen
        if stop > start:
            parts = (part[start:stop].transpose(0, 1) for part in (query, key, value))
            distance = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
            left, right = (side if side >= 0 else max_seqlen for side in window_size)
            attended = F.scaled_dot_product_attention(*parts, attn_mask=(distance <= left) & (-distance <= right))
            mixed[start:stop] = attended.transpose(0, 1)
    return mixed


@pytest.fixture(autouse=True)
def _varlen_on_cpu(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn_in_torch)
    monkeypatch.setattr(dispatch, "_can_use_varlen", lambda *_, **__: True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_varlen_attention_gives_the_hidden_states_of_masked_attention(shape, attention, layout):
    sizes = [3, 17, 7, 2, 9, 5, 8, 33]
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0)
    rows = PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=20, layout=layout, seed=1)
    batch = rows.batch(0, rows.num_rows, segments_always=True).with_cu_seqlens()
    real = batch.segments_BT != -1
    varlen = backbone(batch.ids_BT, batch.segments_BT, attention, batch.cu_seqlens, batch.unpadded_indices)
    expected = backbone(batch.ids_BT, batch.segments_BT, attention)
    assert (varlen[real] - expected[real]).abs().max() < 1e-5
    if batch.unpadded_indices is not None:
        assert not varlen[~real].any()  # padding was never computed


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_classifier_gives_the_same_logits_without_padding(attention):
    shape = SHAPES["modern"]
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, attention))
    texts = [np.arange(size) % 13 + 4 for size in (3, 11, 7, 19, 40)]
    batch = LabelledDataset(texts, [0] * 5, SPECIAL, context=20).batch(range(5))
    assert (class_logits(model, batch.with_cu_seqlens()) - class_logits(model, batch, in_rows=True)).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_rows_that_are_one_document_need_no_mask(shape, attention, monkeypatch):
    monkeypatch.setattr(dispatch, "_can_use_varlen", lambda *_, **__: False)
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0)
    rows = PackedDataset(corpus([19, 19, 19]), np.arange(3), SPECIAL, context=20, layout="packed", seed=1)
    batch = rows.batch(0, 3)
    bare = batch.with_cu_seqlens().without_segments()
    assert bare.segments_BT is None
    assert bare.cu_seqlens is None
    assert torch.equal(bare.target_indices, batch.with_cu_seqlens().target_indices)
    expected = backbone(batch.ids_BT, batch.segments_BT, attention)
    masks = []
    build_mask = transformer.build_attention_mask
    monkeypatch.setattr(transformer, "build_attention_mask", lambda *args: masks.append(1) or build_mask(*args))
    all_global = not shape.endswith("windows")
    monkeypatch.setattr(dispatch, "_can_skip_mask", lambda *_: all_global)
    unmasked = backbone(bare.ids_BT, None, attention)
    assert (unmasked - expected).abs().max() < 1e-5
    assert bool(masks) == (attention == "bidirectional" and not all_global)
    opposite = backbone(bare.ids_BT, None, "bidirectional" if attention == "causal" else "causal")
    assert (opposite - expected).abs().max() > 1e-3  # control


def test_a_batch_with_several_documents_or_padding_in_a_row_keeps_its_segments():
    for sizes, context in (([19, 9, 9], 20), ([19, 9], 20)):
        rows = PackedDataset(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, layout="packed", seed=1)
        batch = rows.batch(0, rows.num_rows).with_cu_seqlens()
        assert batch.without_segments() is batch


def test_a_batch_with_a_row_of_padding_keeps_its_segments():
    """Without them the row would be processed as a document."""
    ids = torch.zeros(2, 3, dtype=torch.long)
    padded = torch.stack((torch.zeros(3), torch.full((3,), PADDING_SEGMENT))).long()
    assert Batch(ids, padded, ids, 3).without_segments().segments_BT is not None
    assert Batch(ids, torch.zeros_like(ids), ids, 6).without_segments().segments_BT is None  # control
