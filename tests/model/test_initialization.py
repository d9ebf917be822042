"""Initialization and dropout are those of torch's own layer, and depend on the seed only."""

import math

import torch
from torch import nn

from fixtures.tiny import SHAPE, VOCABULARY, language_model
from headstart.kernels.attention import AttentionContext
from headstart.kernels.dispatch import PLAIN
from headstart.model.attention import SelfAttention
from headstart.model.heads import build_classifier_head, build_language_head
from headstart.model.transformer import ClassicBlock, build_backbone

WITH_DROPOUT = SHAPE.model_copy(update={"dropout": 0.3})


def test_dropout_is_where_torchs_own_layer_has_it():
    """The same seed drops the same activations: a missing or an extra dropout would shift every draw after it."""
    ours = ClassicBlock(WITH_DROPOUT)
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
    hidden, residual = ours(x, None, AttentionContext(PLAIN))
    assert residual is None
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(
        hidden, ours.eval()(x, None, AttentionContext(PLAIN))[0]
    )  # control: something was dropped


def test_attention_drops_weights_in_training_only():
    attention, x = SelfAttention(16, 2, dropout=0.5, bias=True), torch.randn(1, 9, 16)
    assert not torch.equal(attention(x, AttentionContext(PLAIN)), attention(x, AttentionContext(PLAIN)))
    attention.eval()
    assert torch.equal(attention(x, AttentionContext(PLAIN)), attention(x, AttentionContext(PLAIN)))


def test_dropout_applies_to_the_embedding():
    backbone = language_model(shape=WITH_DROPOUT).backbone
    backbone.layers = nn.ModuleList()
    ids = torch.randint(VOCABULARY, (2, 11))
    assert (backbone(ids) == 0).any()
    assert not (backbone.eval()(ids) == 0).any()


def test_attention_is_initialized_like_torchs_own():
    layer = build_backbone(SHAPE, VOCABULARY, 0).layers[0]
    bound = math.sqrt(6 / (3 * SHAPE.width + SHAPE.width))  # Glorot and Bengio, 2010, over the three matrices as one
    assert 0.9 * bound < layer.attention.qkv_proj.weight.abs().max() <= bound
    assert not layer.attention.qkv_proj.bias.any()
    assert not layer.attention.out_proj.bias.any()


def test_a_head_depends_on_its_seed_only():
    for build in (build_classifier_head, build_language_head):
        one, same, other = (build(SHAPE, VOCABULARY, seed).linear.weight for seed in (3, 3, 4))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_building_leaves_the_random_state_of_the_process_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_backbone(SHAPE, VOCABULARY, 0)
    build_language_head(SHAPE, VOCABULARY, 0)
    build_classifier_head(SHAPE, 2, 0)
    assert torch.equal(torch.rand(3), expected)
