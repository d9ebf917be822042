"""Packed layers, MLPs and attention give the results of torch's, and a row or text does not depend on the others."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from headstart.config.schema import ModelConfig
from headstart.kernels import attention as attention_module
from headstart.kernels import dispatch
from headstart.kernels.attention import AttentionContext, attention
from headstart.kernels.dispatch import PLAIN, KernelPlan
from headstart.kernels.mlp import ACTIVATIONS, mlp
from headstart.kernels.packed_linear import PackedLinear, has_packed_products, pack_linears

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not has_packed_products(), reason="needs an x86 processor and torch with oneDNN")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@needs_packing
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_result_of_the_layer(dtype, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(48, 80, bias=bias), torch.randn(3, 7, 48)
    packed = PackedLinear(linear, dtype)
    with torch.inference_mode():
        result = packed(x)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, linear(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@needs_packing
def test_with_gradients_a_packed_layer_is_the_ordinary_one():
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 8), torch.randn(4, 16, requires_grad=True)
    packed = PackedLinear(linear, torch.bfloat16)
    assert torch.equal(packed(x), linear(x))
    packed(x).sum().backward()
    assert x.grad is not None
    assert list(packed.state_dict()) == ["weight", "bias"]


@needs_packing
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 768), (704, 256), (16, 48), (100, 300)])
def test_a_row_of_the_result_does_not_depend_on_the_others(dtype, inputs, outputs):
    torch.manual_seed(0)
    packed, x = PackedLinear(nn.Linear(inputs, outputs), dtype), torch.randn(1100, inputs)
    with torch.inference_mode():
        together = packed(x)
        for start, rows in ((0, 2), (3, 7), (10, 64), (40, 333), (75, 1025)):
            assert torch.equal(packed(x[start : start + rows].clone()), together[start : start + rows])


def test_layers_are_packed_on_a_cpu_only():
    network = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)))
    assert not pack_linears(network, torch.device("cuda"), bf16=False)
    assert not any(isinstance(module, PackedLinear) for module in network.modules())
    assert pack_linears(network, CPU, bf16=False) is has_packed_products()
    packed = [module for module in network.modules() if isinstance(module, PackedLinear)]
    assert len(packed) == (2 if has_packed_products() else 0)


@needs_packing
def test_layers_that_are_packed_in_another_precision_are_packed_again():
    network = nn.Sequential(nn.Linear(16, 16))
    assert pack_linears(network, CPU, bf16=False)
    first = network[0]
    pack_linears(network, CPU, bf16=False)
    assert network[0] is first
    first.dtype = torch.bfloat16
    pack_linears(network, CPU, bf16=False)
    assert network[0] is not first
    assert network[0].dtype == torch.float32
    assert network[0].weight is first.weight


PACKED = KernelPlan(attention="by_text", packed=True)


@needs_packing
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_packed_mlp_computes_its_activation_as_torch_does(activation, gated):
    torch.manual_seed(0)
    up, gate, down = nn.Linear(64, 96), nn.Linear(64, 96) if gated else None, nn.Linear(96, 64)
    x = torch.randn(2, 9, 64)
    layers = [PackedLinear(layer, torch.bfloat16) if layer else None for layer in (up, down, gate)]
    with torch.inference_mode():
        expected = mlp(x, up, down, PLAIN, activation=activation, gate=gate)
        result = mlp(x, layers[0], layers[1], PACKED, activation=activation, gate=layers[2])
        error = (result.float() - expected).abs().max()
        assert 0 < error < 3e-2 * expected.abs().max()
        rows = mlp(x[:, 3:5], layers[0], layers[1], PACKED, activation=activation, gate=layers[2])
        assert torch.equal(rows, result[:, 3:5])  # a row does not depend on the others


def texts_of(lengths, heads=4, width=64):
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(sum(lengths), heads, width, generator=generator) for _ in range(3)]


@needs_packing
@pytest.mark.parametrize("lengths", [(120,), (97, 97, 97), (20, 96, 300)])
def test_packed_attention_is_that_of_torch_within_rounding(lengths):
    parts = texts_of(lengths)
    outputs = [
        attention(*parts, AttentionContext(plan, causal=False, lengths=lengths), head_width=64)
        for plan in (PACKED, replace(PACKED, packed=False))
    ]
    error = (outputs[0] - outputs[1]).abs().max()
    assert 0 < error < 2e-2 * outputs[1].abs().max()


@needs_packing
def test_packed_attention_of_a_text_does_not_depend_on_the_texts_beside_it():
    lengths = (130, 130, 40, 257)
    parts = texts_of(lengths)
    context = AttentionContext(PACKED, causal=False, lengths=lengths)
    together, start = attention(*parts, context, head_width=64)[0], 0
    for length in lengths:
        text = [part[start : start + length].clone() for part in parts]
        alone = attention(*text, replace(context, lengths=(length,)), head_width=64)[0]
        assert torch.equal(alone, together[start : start + length])
        start += length


@needs_packing
def test_packed_attention_over_many_texts_is_computed_in_parts_with_the_same_result(monkeypatch):
    lengths = (130,) * 7
    parts = texts_of(lengths)
    context = AttentionContext(PACKED, causal=False, lengths=lengths)
    whole = attention(*parts, context, head_width=64)
    calls = []
    products = attention_module._attention_by_products
    monkeypatch.setattr(
        attention_module, "_attention_by_products", lambda *some: calls.append(len(some[0])) or products(*some)
    )
    monkeypatch.setattr(attention_module, "_MAX_PRODUCT_WEIGHTS", 2 * 4 * 130**2)
    assert torch.equal(attention(*parts, context, head_width=64), whole)
    assert calls == [2, 2, 2, 1]


@needs_packing
def test_products_of_packed_attention_have_few_shapes(monkeypatch):
    lengths, shapes, matmul = (130, 145, 160, 257), set(), torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: shapes.add(a.shape[-2]) or matmul(a, b))
    attention(*texts_of(lengths), AttentionContext(PACKED, causal=False, lengths=lengths), head_width=64)
    assert shapes == {160, 288}  # multiples of 32


@needs_packing
def test_packed_attention_that_is_causal_short_or_long_is_exact():
    for lengths, causal in (((120, 50), True), ((50, 95), False), ((1024,), False)):
        parts = texts_of(lengths)
        packed, plain = (
            attention(*parts, AttentionContext(plan, causal=causal, lengths=lengths), head_width=64)
            for plan in (PACKED, replace(PACKED, packed=False))
        )
        assert torch.equal(packed, plain)


def test_layers_are_packed_in_passes_without_gradients_only():
    config, ids = (
        ModelConfig(width=16, depth=1, heads=2, feedforward=24, context=12),
        torch.zeros(1, 5, dtype=torch.long),
    )
    assert not dispatch.plan(config, ids, packed=True).packed
    with torch.inference_mode():
        assert dispatch.plan(config, ids, packed=True).packed
        assert not dispatch.plan(config, ids).packed
