"""Without a kernel for documents end to end, a CPU processes texts one at a time, and no padding."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fixtures.tiny import SPECIAL, VOCABULARY, network_configs
from headstart.config.schema import PADDING_SEGMENT
from headstart.data.datasets import LabelledDataset
from headstart.kernels.attention import AttentionContext, attention
from headstart.kernels.dispatch import KernelPlan
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train.objectives import class_logits, classification_loss

SHAPES = network_configs(width=16, depth=3, heads=2, feedforward=24, context=20)
LENGTHS = (3, 11, 7, 19, 2)


def texts(lengths=LENGTHS):
    return LabelledDataset(
        [np.arange(size) % 13 + 4 for size in lengths],
        [index % 2 for index in range(len(lengths))],
        SPECIAL,
        context=20,
    )


def classifier(shape, attention):
    model = Model(build_backbone(SHAPES[shape], VOCABULARY, 0), build_classifier_head(SHAPES[shape], 2, 0, attention))
    torch.nn.init.normal_(model.head.linear.weight)  # so that logits differ
    return model.eval()


def tokens_through_layers(model, batch):
    counts = []
    hook = model.backbone.layers[0].register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[:2].numel()))
    class_logits(model, batch)
    hook.remove()
    return counts[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_hidden_states_are_those_with_padding_and_zero_for_padding(shape, attention):
    backbone = build_backbone(SHAPES[shape], VOCABULARY, 0).eval()
    batch = texts().batch(range(5))
    real = torch.arange(batch.ids_BT.shape[1]) < batch.lengths_B[:, None]
    expected = backbone(batch.ids_BT, torch.where(real, 0, PADDING_SEGMENT), attention)
    by_text = backbone(batch.ids_BT, None, attention, lengths=tuple(batch.lengths_B.tolist()))
    assert (by_text[real] - expected[real]).abs().max() < 1e-5
    assert not by_text[~real].any()
    assert expected[~real].any()  # control: padding is computed otherwise


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_logits_and_gradients_are_those_of_single_texts(shape, attention):
    model, rows = classifier(shape, attention), texts()
    together = rows.batch(range(5))
    assert tokens_through_layers(model, together) == int(together.lengths_B.sum())
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(5)])
    assert (class_logits(model, together) - alone).abs().max() < 1e-5
    classification_loss(model, together).total.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    for index in range(5):
        classification_loss(model, rows.batch([index])).total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert (grads[name] - parameter.grad).abs().max() < 1e-4 * max(1, parameter.grad.abs().max()), name


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_texts_of_similar_length_stay_in_rows_and_have_the_logits_of_single_texts(attention):
    model, rows = classifier("modern", attention), texts((19, 19, 18, 19))
    batch = rows.batch(range(4))
    assert tokens_through_layers(model, batch) == batch.ids_BT.numel() > batch.lengths_B.sum()
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(4)])
    assert (class_logits(model, batch) - alone).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_compiled_network_processes_rows_and_in_rows_asks_for_them(shape, attention):
    model, rows = classifier(shape, attention), texts()
    batch = rows.batch(range(5))
    alone = torch.cat([class_logits(model, rows.batch([index])) for index in range(5)])
    assert (class_logits(model, batch, in_rows=True) - alone).abs().max() < 1e-5
    model.backbone.compiled = True
    assert tokens_through_layers(model, batch) == batch.ids_BT.numel()
    assert (class_logits(model, batch) - alone).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_windows_of_a_text_are_processed_one_at_a_time(attention):
    model = classifier("modern", attention)
    rows = LabelledDataset([np.arange(size) % 13 + 4 for size in (30, 5)], [0, 1], SPECIAL, context=20, windows=True)
    batch = rows.batch(range(2))
    assert batch.sample_index_B is not None
    assert tokens_through_layers(model, batch) == int(batch.lengths_B.sum())
    assert (class_logits(model, batch) - class_logits(model, batch, in_rows=True)).abs().max() < 1e-5


def test_attention_dropout_applies_to_texts_processed_one_at_a_time():
    shape = SHAPES["classic"].model_copy(update={"dropout": 0.5})
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, "bidirectional")).train()
    layer, batch = model.backbone.layers[0].attention, texts().batch(range(5))
    assert layer.dropout == 0.5
    hidden = torch.randn(1, 12, 16)
    context = AttentionContext(KernelPlan(attention="by_text"), lengths=(5, 7), causal=False)
    first, second = (layer(hidden, context) for _ in range(2))
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(hidden, context), layer(hidden, context))  # control
    model.backbone.recompute = True
    classification_loss(model, batch).total.backward()
    assert model.backbone.layers[0].attention.qkv_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("causal", [True, False])
def test_documents_of_the_same_length_share_a_call_and_attend_to_themselves(causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 22, 2, 8)
    plan = KernelPlan(attention="by_text")
    together = attention(query, key, value, AttentionContext(plan, lengths=(5, 5, 7, 5), causal=causal), head_width=8)
    ends = (0, 5, 10, 17, 22)
    alone = [
        attention(*(part[start:end] for part in (query, key, value)), context, head_width=8)
        for start, end in pairwise(ends)
        for context in [AttentionContext(plan, lengths=(end - start,), causal=causal)]
    ]
    assert torch.equal(together, torch.cat(alone, dim=1))
