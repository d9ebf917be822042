"""Hidden states as two summands, and what own kernels do between products: the same as plain torch, to and fro."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fixtures.tiny import network_configs
from headstart.config.schema import GenericConfig, ModelConfig
from headstart.kernels import mlp as thought
from headstart.kernels.embedding import embedding_lookup
from headstart.kernels.qkv import split_qkv
from headstart.kernels.residual_norm import joined, normed, split
from headstart.model import attention
from headstart.model.transformer import Backbone, RMSNorm, build_backbone

NORMS = {
    "centred": lambda: nn.LayerNorm(24),
    "centred, no bias": lambda: nn.LayerNorm(24, bias=False),
    "scaled": lambda: RMSNorm(24, eps=1e-6),
}


def learnt(norm):
    """Weights that are not all ones, or a mistake with them could not be seen."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=1.0)
    return norm


def run(norm, *, fused, compiled=False):
    torch.manual_seed(0)
    x, more = (torch.randn(3, 5, 24, requires_grad=True) for _ in range(2))
    owed = torch.randn(24, requires_grad=True)
    norm = learnt(norm())

    def work(x, more, owed):
        return normed((x, more, owed), norm, fused=fused)

    total, after = (torch.compile(work) if compiled else work)(x, more, owed)
    ((total * torch.randn_like(total)).sum() + (after * torch.randn_like(after)).sum()).backward()
    return [total, after, x.grad, more.grad, owed.grad, *(parameter.grad for parameter in norm.parameters())]


def same(ours, plain, **near):
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **(near or {"rtol": 1e-5, "atol": 1e-5}))


@pytest.mark.parametrize("name", NORMS)
def test_a_sum_and_its_norm_are_those_of_torch(name):
    plain = run(NORMS[name], fused=False)
    assert all(grad.abs().sum() > 0 for grad in plain[2:])
    same(run(NORMS[name], fused=True), plain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler about parts of torch that nobody asked for
@pytest.mark.parametrize("name", NORMS)
def test_they_are_when_compiled_too(name):
    same(run(NORMS[name], fused=True, compiled=True), run(NORMS[name], fused=False))


def test_the_sum_need_not_be_read():
    found = []
    for fused in (True, False):
        torch.manual_seed(0)
        x, more = (torch.randn(2, 24, requires_grad=True) for _ in range(2))
        after = normed((x, more, None), learnt(nn.LayerNorm(24)), fused=fused)[1]
        (after * torch.randn_like(after)).sum().backward()
        found.append([x.grad, more.grad])
    same(*found)


def test_one_summand_is_split_into_itself_and_nothing():
    x = torch.randn(2, 3, requires_grad=True)
    same, nothing, owed = split(x, owed=True)
    assert same is x
    assert not nothing.any()
    assert not owed.any()
    assert nothing.requires_grad
    assert owed.requires_grad
    assert split(x, owed=False)[2] is None
    assert joined(split(x, owed=False)).equal(x)
    assert joined(x) is x
    assert not split(x.detach(), owed=True)[2].requires_grad  # or layers that are frozen would be gone back through
    assert joined((x, x, torch.ones(3))).equal(x + x + 1)


@pytest.mark.parametrize("bias", [True, False])
def test_slopes_of_queries_keys_and_values_are_summed_up_as_they_are_joined(bias):
    found = []
    for fused in (True, False):
        torch.manual_seed(0)
        x, qkv_proj = torch.randn(3, 5, 32, requires_grad=True), nn.Linear(32, 96, bias=bias)
        parts = split_qkv(x, qkv_proj, 4, fill=True, fused=fused)
        sum((part * torch.randn_like(part)).sum() for part in parts).backward()
        found.append([*parts, x.grad, *(parameter.grad for parameter in qkv_proj.parameters())])
    same(*found)


@pytest.mark.parametrize(
    "at", [None, torch.tensor([2, 0, 1]), torch.tensor([[0, 1, 2], [2, 2, 4]]), torch.tensor([[3, 1, 2]])]
)
def test_rows_of_tables_and_their_slopes_are_those_of_torch(at):
    found = []
    ids = torch.tensor([[5, 0, 5], [7, 5, 1]])
    for own in (True, False):
        torch.manual_seed(0)
        table, places = torch.randn(9, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
        if own:
            y = embedding_lookup(ids, table, at, None if at is None else places)
        else:
            y = F.embedding(ids, table) + (0 if at is None else F.embedding(at, places))
        (y * torch.randn_like(y)).sum().backward()
        found.append([y, table.grad, *([] if at is None else [places.grad])])
    same(*found)


def plainly(query, key, value, *, causal, scale):
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)


def through(config, monkeypatch, *, fused, steady, prepare=None):
    monkeypatch.setattr(Backbone, "_fused", lambda self, ids: fused)
    monkeypatch.setattr(Backbone, "_steady", lambda self, ids: steady)
    backbone = build_backbone(config, 50, 0).train()
    if prepare:
        prepare(backbone)
    ids = torch.arange(24).view(2, 12) % 50
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = backbone(ids)
    (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return [hidden, *(parameter.grad for parameter in backbone.parameters())]


SIZES = {"width": 32, "depth": 2, "heads": 2, "feedforward": 48, "context": 16, "dropout": 0}
GPT2 = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=16, final_norm=True)
NETWORKS = network_configs(**SIZES) | {"gpt2": ModelConfig(block="generic", generic=GPT2, **SIZES)}


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_learns_the_same_either_way(name, steady, monkeypatch):
    monkeypatch.setattr(attention, "attend", plainly)
    ours, plain = (through(NETWORKS[name], monkeypatch, fused=fused, steady=steady) for fused in (True, False))
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        scale = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * scale)


def test_an_activation_is_inside_products_where_a_gpu_can_do_so(monkeypatch):
    monkeypatch.setattr(attention, "attend", plainly)
    asked, made, config = [], [], NETWORKS["gpt2"]
    monkeypatch.setattr(
        "headstart.model.transformer.supports_fused_mlp", lambda *given: bool(asked.append(given)) or True
    )
    for name in ("_widen", "_narrow_back"):
        real = getattr(thought, name)
        monkeypatch.setattr(thought, name, lambda *given, _real=real, _name=name: made.append(_name) or _real(*given))
    ours, plain = (through(config, monkeypatch, fused=fused, steady=True) for fused in (True, False))
    assert asked == [(torch.device("cpu"), config.width, config.feedforward)]
    assert made == ["_widen"] * config.depth + ["_narrow_back"] * config.depth
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * other.abs().max().item())


def test_dropout_is_for_what_is_owed_too(monkeypatch):
    """Where half of everything is dropped, half of the biases is; all else is zero here."""
    backbone = build_backbone(NETWORKS["gpt2"].model_copy(update={"dropout": 0.5}), 50, 0).train()
    layer = backbone.layers[0]
    assert not layer.owes
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(layer.attention.out_proj.bias)
    monkeypatch.setattr(attention, "attend", plainly)
    x = torch.zeros(2, 12, 32)
    (total, narrow, owed), _ = layer(x, attention.AttentionContext(None, steady=True, fused=True))
    assert owed is None
    assert not narrow.any()
    assert sorted(total.unique().tolist()) == [0.0, 2.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler about parts of torch that nobody asked for
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "modern", "classic"])
def test_a_layer_is_compiled_once_for_all(name, fused, monkeypatch):
    monkeypatch.setattr(attention, "attend", plainly)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ours = through(NETWORKS[name], monkeypatch, fused=fused, steady=True, prepare=Backbone.compile_layers)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for one, other in zip(ours, through(NETWORKS[name], monkeypatch, fused=False, steady=True), strict=True):
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * other.abs().max().item())
