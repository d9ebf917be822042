"""Where no kernel reads documents end to end, a CPU reads them one by one, and no padding."""

import numpy as np
import pytest
import torch

from fixtures.tiny import SPECIAL, VOCABULARY, network_configs
from headstart.config.schema import PADDING_SEGMENT
from headstart.data.datasets import LabelledDataset
from headstart.model.attention import AttentionContext
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train.objectives import class_logits, classification_loss

SHAPES = network_configs(width=16, depth=3, heads=2, feedforward=24, context=20)
LENGTHS = (3, 11, 7, 19, 2)


def texts(lengths=LENGTHS):
    return LabelledDataset(
        [np.arange(size) % 13 + 4 for size in lengths],
        [place % 2 for place in range(len(lengths))],
        SPECIAL,
        context=20,
    )


def classifier(shape, reading):
    model = Model(build_backbone(SHAPES[shape], VOCABULARY, 0), build_classifier_head(SHAPES[shape], 2, 0, reading))
    torch.nn.init.normal_(model.head.linear.weight)  # scores worth comparing
    return model.eval()


def tokens_through_layers(model, batch):
    seen = []
    hook = model.backbone.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:2].numel()))
    class_logits(model, batch)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_hidden_states_are_those_under_padding_and_padding_has_none(shape, attention):
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0).eval()
    batch = texts().batch(range(5))
    real = torch.arange(batch.ids_BT.shape[1]) < batch.lengths_B[:, None]
    expected = backbone(batch.ids_BT, torch.where(real, 0, PADDING_SEGMENT), attention)
    found = backbone(batch.ids_BT, None, attention, lengths=tuple(batch.lengths_B.tolist()))
    assert (found[real] - expected[real]).abs().max() < 1e-5
    assert not found[~real].any()
    assert expected[~real].any()  # control: padding is computed otherwise


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reading", ["causal", "bidirectional"])
def test_scores_and_gradients_are_those_of_texts_read_alone(shape, reading):
    model, rows = classifier(shape, reading), texts()
    together = rows.batch(range(5))
    assert tokens_through_layers(model, together) == int(together.lengths_B.sum())
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(5)])
    assert (class_logits(model, together) - alone).abs().max() < 1e-5
    classification_loss(model, together).total.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    for index in range(5):
        classification_loss(model, rows.batch([index])).total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert (found[name] - parameter.grad).abs().max() < 1e-4 * max(1, parameter.grad.abs().max()), name


@pytest.mark.parametrize("reading", ["causal", "bidirectional"])
def test_texts_of_like_length_stay_in_rows_and_score_as_alone(reading):
    model, rows = classifier("modern", reading), texts((19, 19, 18, 19))
    batch = rows.batch(range(4))
    assert tokens_through_layers(model, batch) == batch.ids_BT.numel() > batch.lengths_B.sum()
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(4)])
    assert (class_logits(model, batch) - alone).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reading", ["causal", "bidirectional"])
def test_a_compiled_network_and_whoever_asks_for_rows_are_given_rows(shape, reading):
    model, rows = classifier(shape, reading), texts()
    batch = rows.batch(range(5))
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(5)])
    assert (class_logits(model, batch, in_rows=True) - alone).abs().max() < 1e-5
    model.backbone.compiled = True
    assert tokens_through_layers(model, batch) == batch.ids_BT.numel()
    assert (class_logits(model, batch) - alone).abs().max() < 1e-5


@pytest.mark.parametrize("reading", ["causal", "bidirectional"])
def test_windows_of_a_text_are_read_one_by_one_too(reading):
    model = classifier("modern", reading)
    rows = LabelledDataset([np.arange(size) % 13 + 4 for size in (30, 5)], [0, 1], SPECIAL, context=20, windows=True)
    batch = rows.batch(range(2))
    assert batch.sample_index_B is not None
    assert tokens_through_layers(model, batch) == int(batch.lengths_B.sum())
    assert (class_logits(model, batch) - class_logits(model, batch, in_rows=True)).abs().max() < 1e-5


def test_attention_drops_one_by_one_what_it_would_drop_in_rows():
    shape = SHAPES["classic"].model_copy(update={"dropout": 0.5})
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, "bidirectional")).train()
    attention, batch = model.backbone.layers[0].attention, texts().batch(range(5))
    assert attention.dropout == 0.5
    hidden = torch.randn(1, 12, 16)
    view = AttentionContext(None, lengths=(5, 7), causal=False)
    first, again = (attention(hidden, view)[0] for _ in range(2))
    assert not torch.equal(first, again)
    attention.eval()
    assert torch.equal(attention(hidden, view)[0], attention(hidden, view)[0])  # control
    model.backbone.recompute = True
    classification_loss(model, batch).total.backward()
    assert model.backbone.layers[0].attention.qkv_proj.weight.grad.abs().sum() > 0
