"""Parity with torch, causal masks, and independence of padding and neighbours; `model(ids)` gives logits."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fixtures.tiny import SHAPE, SPECIAL, VOCABULARY, classifier, language_model, network_configs
from headstart.config.schema import PADDING_SEGMENT, ModelConfig
from headstart.data.datasets import LabelledDataset
from headstart.kernels.attention import apply_rotary
from headstart.model.attention import build_attention_mask, rotary_cos_sin
from headstart.model.heads import Model, build_classifier_head, lm_logits
from headstart.model.transformer import build_backbone, positions_in_segments, sinusoids
from headstart.train.objectives import class_logits

MODERN = ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=12)
BLOCKS = pytest.mark.parametrize("shape", [SHAPE, MODERN], ids=["classic", "modern"])


def torch_twin(model) -> tuple[nn.Embedding, nn.TransformerEncoder]:
    """The same network made of torch's own modules, with the same weights."""
    shape = model.backbone.config
    layer = nn.TransformerEncoderLayer(shape.width, shape.heads, shape.feedforward, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, shape.depth, enable_nested_tensor=False)
    for theirs, ours in zip(encoder.layers, model.backbone.layers, strict=True):
        pairs = [
            (theirs.self_attn.in_proj_weight, ours.attention.qkv_proj.weight),
            (theirs.self_attn.in_proj_bias, ours.attention.qkv_proj.bias),
            (theirs.self_attn.out_proj.weight, ours.attention.out_proj.weight),
            (theirs.self_attn.out_proj.bias, ours.attention.out_proj.bias),
            (theirs.linear1.weight, ours.up.weight),
            (theirs.linear1.bias, ours.up.bias),
            (theirs.linear2.weight, ours.down.weight),
            (theirs.linear2.bias, ours.down.bias),
            (theirs.norm1.weight, ours.norm1.weight),
            (theirs.norm1.bias, ours.norm1.bias),
            (theirs.norm2.weight, ours.norm2.weight),
            (theirs.norm2.bias, ours.norm2.bias),
        ]
        for their, our in pairs:
            their.data.copy_(our.data)
    embedding = nn.Embedding(model.backbone.vocab_size, shape.width)
    embedding.weight.data.copy_(model.backbone.embedding.weight.data)
    return embedding, encoder


def published_positions(length: int, width: int) -> torch.Tensor:
    table = torch.zeros(length, width)
    for pos in range(length):
        for i in range(width // 2):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / width))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / width))
    return table


@pytest.mark.parametrize("seed", [0, 1])
def test_the_classic_network_equals_torchs_encoder_forward_and_backward(seed):
    torch.manual_seed(seed)
    model = language_model(seed)
    for parameter in model.parameters():  # norms and biases away from one and zero, or half the test is blind
        parameter.data += 0.05 * torch.randn_like(parameter)
    embedding, encoder = torch_twin(model)
    ids = torch.randint(VOCABULARY, (3, 11))
    mask = nn.Transformer.generate_square_subsequent_mask(11)
    their_input = embedding(ids) * math.sqrt(SHAPE.width) + published_positions(11, SHAPE.width)
    theirs = encoder(their_input, mask=mask, is_causal=True)
    ours = model.backbone(ids)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(model.backbone.embedding.weight.grad, embedding.weight.grad, rtol=1e-4, atol=1e-5)
    for their, our in zip(encoder.layers, model.backbone.layers, strict=True):
        torch.testing.assert_close(
            our.attention.qkv_proj.weight.grad, their.self_attn.in_proj_weight.grad, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(our.up.weight.grad, their.linear1.weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(our.norm2.bias.grad, their.norm2.bias.grad, rtol=1e-4, atol=1e-5)


@BLOCKS
@pytest.mark.parametrize("position", [0, 4, 10])
def test_under_causal_attention_a_token_does_not_affect_earlier_positions(position, shape):
    model = language_model(shape=shape).eval()
    torch.manual_seed(position)
    ids = torch.randint(VOCABULARY, (2, 11))
    changed = ids.clone()
    changed[:, position] = (ids[:, position] + 1) % VOCABULARY
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :position], after[:, :position], rtol=0, atol=0)
    for later in range(position, 11):  # control: the change did reach every later position
        assert not torch.allclose(before[:, later], after[:, later])


@BLOCKS
def test_under_bidirectional_attention_a_token_affects_earlier_positions(shape):
    backbone = language_model(shape=shape).backbone.eval()
    ids = torch.randint(VOCABULARY, (2, 11))
    changed = ids.clone()
    changed[:, 7] = (ids[:, 7] + 1) % VOCABULARY
    assert not torch.allclose(
        backbone(ids, attention="bidirectional")[:, 0], backbone(changed, attention="bidirectional")[:, 0]
    )


@BLOCKS
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_document_has_the_same_hidden_states_alone_and_packed(attention, shape):
    backbone = language_model(shape=shape).backbone.eval()
    a, b = torch.randint(VOCABULARY, (1, 5)), torch.randint(VOCABULARY, (1, 6))
    segments = torch.tensor([[0] * 5 + [1] * 6 + [PADDING_SEGMENT]])
    packed = backbone(torch.cat([a, b, torch.ones(1, 1, dtype=torch.long)], 1), segments, attention)
    torch.testing.assert_close(packed[:, :5], backbone(a, attention=attention), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed[:, 5:11], backbone(b, attention=attention), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [1, 3, 9])
def test_class_logits_do_not_depend_on_the_padding_of_the_batch(padding):
    model = classifier().eval()
    ids = torch.randint(4, VOCABULARY, (1, 6))
    padded = torch.cat([ids, torch.full((1, padding), 1)], dim=1)
    longer = torch.randint(4, VOCABULARY, (1, 6 + padding))
    lengths = torch.tensor([6, 6 + padding])
    batch = model(torch.cat([padded, longer]), lengths_B=lengths)
    alone = model(ids)
    torch.testing.assert_close(batch[:1], alone, rtol=0, atol=1e-6)
    last_position = model.head.linear(model.backbone(padded)[:, -1])  # a mistake that was published
    assert not torch.allclose(last_position, alone, atol=1e-3)


def test_positions_are_defined_at_any_length():
    torch.testing.assert_close(sinusoids(torch.arange(40), 16), published_positions(40, 16), rtol=0, atol=1e-5)
    far = sinusoids(torch.tensor([100_000]), 16)
    expected = torch.tensor([[math.sin(100_000), math.cos(100_000)]], dtype=torch.float64)
    torch.testing.assert_close(far[:, :2].double(), expected, rtol=0, atol=1e-2)
    ids = torch.randint(VOCABULARY, (1, 3 * SHAPE.context))
    for shape in (SHAPE, MODERN):
        assert torch.isfinite(language_model(shape=shape).backbone(ids)).all()


def test_positions_start_again_with_every_segment():
    assert positions_in_segments(torch.tensor([[5, 5, 5, 2, 2, PADDING_SEGMENT, PADDING_SEGMENT]])).tolist() == [
        [0, 1, 2, 0, 1, 0, 1]
    ]


def test_no_row_of_the_mask_is_empty():
    mask = build_attention_mask(torch.tensor([[0, 0, 1, PADDING_SEGMENT]]), "causal")
    assert mask[0, 0].tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]


@BLOCKS
def test_extending_token_by_token_equals_one_forward_pass(shape):
    backbone = language_model(shape=shape).backbone.eval()
    ids = torch.randint(VOCABULARY, (1, 9))
    full = backbone(ids)
    first, past = backbone.extend(ids[:, :4], None)
    second, past = backbone.extend(ids[:, 4:7], past)  # several tokens at once
    third, past = backbone.extend(ids[:, 7:8], past)
    fourth, _ = backbone.extend(ids[:, 8:], past)
    torch.testing.assert_close(torch.cat([first, second, third, fourth], dim=1), full, rtol=1e-5, atol=1e-5)


def test_weights_depend_on_the_seed_only():
    torch.manual_seed(1)
    one = build_backbone(SHAPE, VOCABULARY, 5).state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    two = build_backbone(SHAPE, VOCABULARY, 5).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())  # building leaves the random state alone
    other = build_backbone(SHAPE, VOCABULARY, 6).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_the_initialization_is_the_published_one():
    model = language_model(shape=ModelConfig(width=64, depth=1, heads=2, feedforward=8))
    table = model.backbone.embedding.weight.detach()
    assert 0.09 < float(table.abs().max()) <= 0.1
    assert 0.09 < float(model.head.linear.weight.detach().abs().max()) <= 0.1
    assert not model.head.linear.bias.any()
    assert not torch.equal(table, model.head.linear.weight)


@BLOCKS
def test_every_parameter_gets_a_gradient(shape):
    model = language_model(shape=shape)
    ids = torch.arange(VOCABULARY)[None]
    (model(ids) * torch.randn(1, VOCABULARY, VOCABULARY)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_rotary_products_depend_on_the_distance_only():
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(i: int, j: int) -> float:
        tables = [rotary_cos_sin(torch.tensor([position]), 8) for position in (i, j)]
        return (apply_rotary(query, *tables[0]) * apply_rotary(key, *tables[1])).sum().item()

    assert product(3, 1) == pytest.approx(product(40, 38), abs=1e-4)
    assert abs(product(3, 1) - product(3, 2)) > 1e-4  # control
    assert product(0, 0) == pytest.approx((query * key).sum().item(), abs=1e-6)


def llama_by_hand(model, ids: torch.Tensor) -> torch.Tensor:
    """The block in plain formulas: one head at a time, one position at a time."""

    def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        half = len(x) // 2
        out = x.clone()
        for i in range(half):
            angle = position / 10000 ** (2 * i / len(x))
            out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
        return out

    shape, size = model.backbone.config, len(ids)
    head_width = shape.width // shape.heads
    x = model.backbone.embedding.weight[ids]
    for layer in model.backbone.layers:
        q, k, v = (rms(x, layer.norm1.weight) @ layer.attention.qkv_proj.weight.T).chunk(3, dim=-1)
        mixed = torch.zeros_like(x)
        for head in range(shape.heads):
            columns = slice(head * head_width, (head + 1) * head_width)
            for i in range(size):
                logits = torch.stack([rotate(q[i, columns], i) @ rotate(k[j, columns], j) for j in range(i + 1)])
                weights = (logits / math.sqrt(head_width)).softmax(0)
                mixed[i, columns] = weights @ v[: i + 1, columns]
        x = x + mixed @ layer.attention.out_proj.weight.T
        normed = rms(x, layer.norm2.weight)
        gate = normed @ layer.gate.weight.T
        x = x + (gate * torch.sigmoid(gate) * (normed @ layer.up.weight.T)) @ layer.down.weight.T
    return rms(x, model.backbone.norm.weight)


def test_the_modern_block_is_llamas():
    model = language_model(shape=MODERN)
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    ids = torch.randint(VOCABULARY, (7,))
    with torch.no_grad():
        torch.testing.assert_close(model.backbone(ids[None])[0], llama_by_hand(model, ids), rtol=1e-4, atol=1e-5)


def test_a_tied_weight_is_one_parameter_and_saved_once():
    model = language_model(shape=MODERN)
    assert list(model.head.state_dict()) == []
    weight, bias = model.head.weights(model.backbone)
    assert weight is model.backbone.embedding.weight
    assert bias is None
    assert not any("bias" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("padding", [1, 5])
@BLOCKS
def test_bidirectional_class_logits_do_not_depend_on_padding(shape, padding):
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, "bidirectional")).eval()
    rows = LabelledDataset([np.arange(4, 10), np.arange(4, 10 + padding)], [0, 1], SPECIAL, context=32)
    together, alone = class_logits(model, rows.batch([0, 1])), class_logits(model, rows.batch([0]))
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-6)
    changed = LabelledDataset([np.array([4, 5, 6, 7, 8, 16])], [0], SPECIAL, context=32)
    assert not torch.allclose(class_logits(model, changed.batch([0])), alone)  # control: the text does matter


def test_a_bidirectional_head_pools_the_mean_of_the_real_tokens_and_a_causal_one_the_last():
    hidden, lengths = torch.randn(2, 5, SHAPE.width), torch.tensor([3, 5])
    bidirectional, causal = (build_classifier_head(SHAPE, 3, 0, attention) for attention in ("bidirectional", "causal"))
    means = torch.stack([hidden[0, :3].mean(0), hidden[1].mean(0)])
    torch.testing.assert_close(bidirectional(hidden, lengths), bidirectional.linear(means), rtol=1e-5, atol=1e-6)
    last = torch.stack([hidden[0, 2], hidden[1, 4]])
    torch.testing.assert_close(causal(hidden, lengths), causal.linear(last), rtol=1e-5, atol=1e-6)


NETWORKS = network_configs(width=16, depth=2, heads=2, feedforward=24, context=12)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("name", NETWORKS)
def test_calling_a_language_model_returns_logits_over_the_vocabulary(name, attention):
    model = language_model(shape=NETWORKS[name]).eval()
    ids, segments = torch.randint(VOCABULARY, (2, 9)), torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    assert model(ids).shape == (2, 9, VOCABULARY)
    assert torch.equal(model(ids), lm_logits(model, model.backbone(ids)))
    assert torch.equal(model(ids, segments, attention), lm_logits(model, model.backbone(ids, segments, attention)))
    assert not torch.allclose(model(ids, segments, attention)[0], model(ids, attention=attention)[0])  # control


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("name", NETWORKS)
def test_calling_a_classifier_returns_logits_over_the_classes(name, attention):
    shape = NETWORKS[name]
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, attention)).eval()
    ids, lengths = torch.randint(4, VOCABULARY, (2, 9)), torch.tensor([9, 5])
    logits = model(ids, lengths_B=lengths)
    assert logits.shape == (2, 3)
    single = torch.cat([model(ids[:1]), model(ids[1:, :5])])
    torch.testing.assert_close(logits, single, rtol=0, atol=1e-5)
    assert not torch.allclose(model(ids)[1], logits[1])  # control: without lengths there is no padding
