"""Without padding the network computes what it computes under a mask. The kernel itself wants a GPU (tests/test_gpu.py);
here a plain loop over documents stands in its place, so that all around it is tested everywhere."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from headstart.config import PADDING
from headstart.data.batches import Batch, CausalRows, LabelledRows
from headstart.model import attention
from headstart.model.backbone import Backbone, build_backbone
from headstart.model.heads import Model, build_classifier_head
from headstart.train.objectives import class_scores
from tiny import SPECIAL, VOCABULARY, corpus, kinds_of_network

SHAPES = kinds_of_network(width=16, depth=3, heads=2, feedforward=24, context=20)


def one_by_one(query, key, value, bounds, _, longest, __, *, window_size):
    """What varlen_attn computes, a document at a time."""
    mixed = torch.zeros_like(query)
    cuts = bounds.tolist()
    for start, stop in itertools.pairwise(cuts):
        assert stop - start <= longest
        if stop > start:
            parts = (part[start:stop].transpose(0, 1) for part in (query, key, value))
            apart = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
            left, right = (side if side >= 0 else longest for side in window_size)
            seen = F.scaled_dot_product_attention(*parts, attn_mask=(apart <= left) & (-apart <= right))
            mixed[start:stop] = seen.transpose(0, 1)
    return mixed


@pytest.fixture(autouse=True)
def _kernel_here(monkeypatch):
    monkeypatch.setattr(attention, "varlen_attn", one_by_one)
    monkeypatch.setattr(Backbone, "_has_kernel", lambda *_: True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("visibility", ["causal", "both"])
@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_documents_read_between_bounds_are_read_as_under_a_mask(shape, visibility, layout):
    sizes = [3, 17, 7, 2, 9, 5, 8, 33]
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0)
    rows = CausalRows(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=20, layout=layout, seed=1)
    batch = rows.batch(0, rows.rows, segments_always=True).bounded()
    real = batch.segments_BT != -1
    found = backbone(batch.ids_BT, batch.segments_BT, visibility, batch.bounds, batch.real)
    expected = backbone(batch.ids_BT, batch.segments_BT, visibility)
    assert (found[real] - expected[real]).abs().max() < 1e-5
    if batch.real is not None:
        assert not found[~real].any()  # padding was never computed


@pytest.mark.parametrize("reading", ["causal", "both"])
def test_a_classifier_gives_the_same_scores_without_padding(reading):
    shape = SHAPES["modern"]
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, reading))
    texts = [np.arange(size) % 13 + 4 for size in (3, 11, 7, 19, 40)]
    batch = LabelledRows(texts, [0] * 5, SPECIAL, context=20).batch(range(5))
    assert (class_scores(model, batch.bounded()) - class_scores(model, batch, in_rows=True)).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("visibility", ["causal", "both"])
def test_rows_that_are_one_document_need_no_mask(shape, visibility, monkeypatch):
    monkeypatch.setattr(Backbone, "_has_kernel", lambda *_: False)
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0)
    rows = CausalRows(corpus([19, 19, 19]), np.arange(3), SPECIAL, context=20, layout="packed", seed=1)
    batch = rows.batch(0, 3)
    bare = batch.bounded().unsegmented()
    assert bare.segments_BT is None
    assert bare.bounds is None
    assert torch.equal(bare.places, batch.bounded().places)
    expected = backbone(batch.ids_BT, batch.segments_BT, visibility)
    masks = []
    real = attention.visible
    monkeypatch.setattr("headstart.model.backbone.visible", lambda *given: masks.append(1) or real(*given))
    whole = not shape.endswith("windows")
    monkeypatch.setattr(Backbone, "_unmasked", lambda *_: whole)
    found = backbone(bare.ids_BT, None, visibility)
    assert (found - expected).abs().max() < 1e-5
    assert bool(masks) == (visibility == "both" and not whole)
    other = backbone(bare.ids_BT, None, "both" if visibility == "causal" else "causal")
    assert (other - expected).abs().max() > 1e-3  # control


def test_a_batch_with_a_seam_or_padding_keeps_its_segments():
    for sizes, context in (([19, 9, 9], 20), ([19, 9], 20)):
        rows = CausalRows(corpus(sizes), np.arange(len(sizes)), SPECIAL, context=context, layout="packed", seed=1)
        batch = rows.batch(0, rows.rows).bounded()
        assert batch.unsegmented() is batch


def test_a_row_of_padding_alone_keeps_its_segments():
    """Without them it would be read as a document."""
    ids = torch.zeros(2, 3, dtype=torch.long)
    padded = torch.stack((torch.zeros(3), torch.full((3,), PADDING))).long()
    assert Batch(ids, padded, ids, 3).unsegmented().segments_BT is not None
    assert Batch(ids, torch.zeros_like(ids), ids, 6).unsegmented().segments_BT is None  # control
