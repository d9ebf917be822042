"""How a network starts and where dropout falls: as in torch's own layer, and from the seed alone."""

import math

import torch
from torch import nn

from fixtures.tiny import SHAPE, VOCABULARY, language_model
from headstart.model.attention import AttentionContext, SelfAttention
from headstart.model.heads import build_classifier_head, build_language_head
from headstart.model.transformer import ClassicBlock, build_backbone

DROPPING = SHAPE.model_copy(update={"dropout": 0.3})


def test_dropout_falls_where_torchs_own_layer_has_it():
    """The same seed drops the same activations: a missing or an extra dropout would shift every draw after it."""
    ours = ClassicBlock(DROPPING)
    theirs = nn.TransformerEncoderLayer(SHAPE.width, SHAPE.heads, SHAPE.feedforward, dropout=0.3, batch_first=True)
    pairs = [
        (theirs.self_attn.in_proj_weight, ours.attention.qkv_proj.weight),
        (theirs.self_attn.in_proj_bias, ours.attention.qkv_proj.bias),
        (theirs.self_attn.out_proj.weight, ours.attention.out_proj.weight),
        (theirs.self_attn.out_proj.bias, ours.attention.out_proj.bias),
        (theirs.linear1.weight, ours.up.weight),
        (theirs.linear1.bias, ours.up.bias),
        (theirs.linear2.weight, ours.down.weight),
        (theirs.linear2.bias, ours.down.bias),
    ]
    for their, our in pairs:
        their.data.copy_(our.data)
    x = torch.randn(1, 7, SHAPE.width)  # one row: torch draws for several in another order of memory
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    torch.manual_seed(5)
    expected = theirs(x, src_mask=mask, is_causal=True)
    torch.manual_seed(5)
    found, _ = ours(x, AttentionContext(None))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, ours.eval()(x, AttentionContext(None))[0])  # control: something was dropped


def test_attention_drops_weights_in_training_only():
    attention, x = SelfAttention(16, 2, dropout=0.5, bias=True), torch.randn(1, 9, 16)
    assert not torch.equal(attention(x, AttentionContext(None))[0], attention(x, AttentionContext(None))[0])
    attention.eval()
    assert torch.equal(attention(x, AttentionContext(None))[0], attention(x, AttentionContext(None))[0])


def test_the_embedding_is_dropped_too():
    backbone = language_model(shape=DROPPING).backbone
    backbone.layers = nn.ModuleList()
    ids = torch.randint(VOCABULARY, (2, 11))
    assert (backbone(ids) == 0).any()
    assert not (backbone.eval()(ids) == 0).any()


def test_attention_starts_as_torchs_own():
    layer = build_backbone(SHAPE, VOCABULARY, 0).layers[0]
    bound = math.sqrt(6 / (3 * SHAPE.width + SHAPE.width))  # Glorot and Bengio, 2010, over the three matrices as one
    assert 0.9 * bound < layer.attention.qkv_proj.weight.abs().max() <= bound
    assert not layer.attention.qkv_proj.bias.any()
    assert not layer.attention.out_proj.bias.any()


def test_a_head_follows_from_its_seed():
    for build in (build_classifier_head, build_language_head):
        one, same, other = (build(SHAPE, VOCABULARY, seed).linear.weight for seed in (3, 3, 4))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_building_draws_nothing_from_the_process():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_backbone(SHAPE, VOCABULARY, 0)
    build_language_head(SHAPE, VOCABULARY, 0)
    build_classifier_head(SHAPE, 2, 0)
    assert torch.equal(torch.rand(3), expected)
