"""Residual addition and norm as one operation: the same as plain torch, alone and inside a network that trains."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fixtures.tiny import network_configs
from headstart.config.schema import GenericConfig, ModelConfig
from headstart.kernels import attention, dispatch
from headstart.kernels import mlp as mlp_kernels
from headstart.kernels.attention import AttentionContext
from headstart.kernels.dispatch import PLAIN, KernelPlan
from headstart.kernels.residual_norm import add_norm, start_residual
from headstart.model.transformer import Backbone, RMSNorm, build_backbone

FUSED = KernelPlan(fused_residual=True)
NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(24),
    "LayerNorm without bias": lambda: nn.LayerNorm(24, bias=False),
    "RMSNorm": lambda: RMSNorm(24, eps=1e-6),
}
IGNORE_COMPILER = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules


def test_a_cast_rms_norm_has_the_outputs_and_gradients_of_fp32():
    results = []
    for plan in (KernelPlan(cast_weights=True), PLAIN):
        torch.manual_seed(0)
        norm = randomize(RMSNorm(24, eps=1e-6))
        hidden, residual = torch.randn(3, 5, 24, requires_grad=True), torch.randn(3, 5, 24, requires_grad=True)
        normed, total = add_norm(hidden, residual, norm, plan, dtype=torch.float32)
        ((total * torch.randn_like(total)).sum() + (normed * torch.randn_like(normed)).sum()).backward()
        results.append([total, normed, hidden.grad, residual.grad, norm.weight.grad])
    assert_all_close(*results)
    assert add_norm(hidden, residual, norm, KernelPlan(cast_weights=True))[0].dtype == torch.bfloat16


def randomize(norm):
    """Weights that are not all ones, or a mistake with them would not show."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=1.0)
    return norm


def outputs_and_grads(build_norm, plan, *, compiled=False):
    torch.manual_seed(0)
    hidden, residual = (torch.randn(3, 5, 24, requires_grad=True) for _ in range(2))
    bias = torch.randn(24, requires_grad=True)
    norm = randomize(build_norm())

    def work(hidden, residual, bias):
        return add_norm(hidden, residual, norm, plan, bias=bias)

    normed, total = (torch.compile(work) if compiled else work)(hidden, residual, bias)
    ((total * torch.randn_like(total)).sum() + (normed * torch.randn_like(normed)).sum()).backward()
    return [total, normed, hidden.grad, residual.grad, bias.grad, *(parameter.grad for parameter in norm.parameters())]


def assert_all_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_the_fused_sum_and_norm_are_those_of_torch(name):
    plain = outputs_and_grads(NORMS[name], PLAIN)
    assert all(grad.abs().sum() > 0 for grad in plain[2:])
    assert_all_close(outputs_and_grads(NORMS[name], FUSED), plain)


@IGNORE_COMPILER
@pytest.mark.parametrize(
    "name", ["LayerNorm", *(pytest.param(name, marks=pytest.mark.slow) for name in NORMS if name != "LayerNorm")]
)
def test_the_compiled_fused_sum_and_norm_are_those_of_torch(name):
    compiled = outputs_and_grads(NORMS[name], FUSED, compiled=True)
    assert_all_close(compiled, outputs_and_grads(NORMS[name], PLAIN))


def test_gradients_are_those_of_torch_if_the_sum_is_not_used():
    results = []
    for plan in (FUSED, PLAIN):
        torch.manual_seed(0)
        hidden, residual = (torch.randn(2, 24, requires_grad=True) for _ in range(2))
        normed, _ = add_norm(hidden, residual, randomize(nn.LayerNorm(24)), plan)
        (normed * torch.randn_like(normed)).sum().backward()
        results.append([hidden.grad, residual.grad])
    assert_all_close(*results)


def test_without_a_residual_the_sum_is_the_hidden_states_themselves():
    hidden, norm = torch.randn(2, 3), nn.LayerNorm(3)
    normed, total = add_norm(hidden, None, norm, PLAIN)
    assert total is hidden
    assert normed.equal(norm(hidden))
    residual = torch.randn(2, 3)
    assert add_norm(hidden, residual, norm, PLAIN)[1].equal(residual + hidden)
    assert add_norm(hidden, residual, norm, PLAIN, bias=torch.ones(3))[1].equal(residual + hidden + 1)


def test_the_first_layer_gets_zeros_beside_the_embedding_where_layers_must_be_alike():
    embedded = torch.randn(2, 3, requires_grad=True)
    assert start_residual(embedded, PLAIN) == (embedded, None, None)
    hidden, residual, bias = start_residual(embedded, KernelPlan(uniform_layers=True, defer_bias=True))
    assert residual is embedded
    assert not hidden.any()
    assert not bias.any()
    assert hidden.requires_grad
    assert bias.requires_grad
    assert start_residual(embedded, KernelPlan(uniform_layers=True))[2] is None
    frozen = start_residual(embedded.detach(), KernelPlan(uniform_layers=True, defer_bias=True))
    assert not frozen[2].requires_grad  # or the backward pass would go through frozen layers


def plain_attention(query, key, value, *, causal, scale):
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)


def hidden_and_grads(config, monkeypatch, *, fused, cudnn, prepare=None):
    monkeypatch.setattr(attention, "cudnn_attention", plain_attention)
    monkeypatch.setattr(dispatch, "_can_fuse_training", lambda *_, **__: fused)
    monkeypatch.setattr(dispatch, "_can_use_cudnn", lambda *_, **__: cudnn)
    backbone = build_backbone(config, 50, 0).train()
    if prepare:
        prepare(backbone)
    ids = torch.arange(24).view(2, 12) % 50
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = backbone(ids)
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return [hidden, *(parameter.grad for parameter in backbone.parameters())]


def assert_near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * other.abs().max().item())


SIZES = {"width": 32, "depth": 2, "heads": 2, "feedforward": 48, "context": 16, "dropout": 0}
GPT2 = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=16, final_norm=True)
NETWORKS = network_configs(**SIZES) | {"gpt2": ModelConfig(block="generic", generic=GPT2, **SIZES)}


@pytest.mark.parametrize("cudnn", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_same_gradients_with_fused_kernels(name, cudnn, monkeypatch):
    fused, plain = (hidden_and_grads(NETWORKS[name], monkeypatch, fused=fused, cudnn=cudnn) for fused in (True, False))
    assert_near(fused, plain)


def test_the_activation_is_inside_the_products_where_a_gpu_supports_it(monkeypatch):
    queries, calls, config = [], [], NETWORKS["gpt2"]
    monkeypatch.setattr(dispatch, "supports_fused_mlp", lambda *query: bool(queries.append(query)) or True)
    for name in ("_linear_gelu", "_linear_gelu_backward"):
        real = getattr(mlp_kernels, name)
        monkeypatch.setattr(
            mlp_kernels, name, lambda *args, _real=real, _name=name: calls.append(_name) or _real(*args)
        )
    fused, plain = (hidden_and_grads(config, monkeypatch, fused=fused, cudnn=True) for fused in (True, False))
    assert queries == [(torch.device("cpu"), config.width, config.feedforward)]
    assert calls == ["_linear_gelu"] * config.depth + ["_linear_gelu_backward"] * config.depth
    assert_near(fused, plain)


def test_dropout_applies_to_deferred_biases_too(monkeypatch):
    """Where half of everything is dropped, half of the biases is; all else is zero here."""
    monkeypatch.setattr(attention, "cudnn_attention", plain_attention)
    monkeypatch.setattr(dispatch, "_can_fuse_training", lambda *_, **__: True)
    config = NETWORKS["gpt2"].model_copy(update={"dropout": 0.5})
    ids = torch.zeros(2, 12, dtype=torch.long)
    assert not dispatch.plan(config, ids).defer_bias
    assert dispatch.plan(NETWORKS["gpt2"], ids).defer_bias  # control
    layer = build_backbone(config, 50, 0).train().layers[0]
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(layer.attention.out_proj.bias)
    x = torch.zeros(2, 12, 32)
    hidden, residual = layer(x, x, AttentionContext(KernelPlan(attention="cudnn", fused_residual=True)))
    assert not hidden.any()
    assert sorted(residual.unique().tolist()) == [0.0, 2.0]


@IGNORE_COMPILER
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("gpt2", True),
        *(
            pytest.param(name, fused, marks=pytest.mark.slow)  # a compilation takes seconds
            for name, fused in (
                ("gpt2", False),
                ("modern", True),
                ("modern", False),
                ("classic", True),
                ("classic", False),
            )
        ),
    ],
)
def test_all_layers_use_one_compiled_graph(name, fused, monkeypatch):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = hidden_and_grads(NETWORKS[name], monkeypatch, fused=fused, cudnn=True, prepare=Backbone.compile_layers)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert_near(compiled, hidden_and_grads(NETWORKS[name], monkeypatch, fused=False, cudnn=True))
