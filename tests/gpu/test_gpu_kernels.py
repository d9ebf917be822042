"""Own kernels between products, on a GPU: as exact as plain torch, and the same for a network that learns."""

import pytest
import torch

from fixtures.tiny import network_configs
from headstart.config.schema import GenericConfig, ModelConfig
from headstart.kernels import dispatch as stream
from headstart.kernels import mlp as thought
from headstart.model.transformer import Backbone, build_backbone

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

product_kernel = pytest.importorskip("headstart.kernels.triton.mlp", reason="needs triton", exc_type=ImportError)
LOW = torch.bfloat16
SHAPES = [(1000, 768), (37, 24), (1, 8), (4, 33, 512), (130, 1000), (70, 4096)]


def drawn(*shapes, kind=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(kind) for shape in shapes]


def far(ours, plain):
    """How far tensors are apart, in relation to how long they are."""
    return ((ours.double().cpu() - plain.double()).norm() / plain.double().norm().clamp(min=1e-9)).item()


def on_cpu(values):
    return [value.cpu() if isinstance(value, torch.Tensor) else value for value in values]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_and_its_norm_to_and_fro(shape, centred):
    width = shape[-1:]
    x, weight, bias, owed, by_total = drawn(shape, width, width, width, shape)
    more, by_normed = drawn(shape, shape, kind=LOW)
    given = [x, more, owed, weight, bias, 1e-5, centred, LOW]
    total, after, means, scales = stream._add_norm(*given)
    plain = stream._add_norm(*on_cpu(given))
    assert far(total, plain[0]) < 1e-6
    assert far(after, plain[1]) < 1e-2
    assert far(scales, plain[3]) < 1e-5
    for summed in (by_total, None):
        back = [summed, by_normed, total, means, scales, weight, centred, True, LOW]
        ours, expected = stream._add_norm_back(*back), stream._add_norm_back(*on_cpu(back))
        assert [far(*both) < bound for both, bound in zip(zip(ours, expected), (1e-5, 1e-2, 1e-5))] == [True] * 3  # noqa: B905


def tiles_wanted():
    if not thought.supports_fused_mlp(torch.device("cuda"), 8, 8):
        pytest.skip("products with an activation inside are for Hopper")


@pytest.mark.parametrize("tall", [(1,), (37,), (4, 33), (5000,)])
@pytest.mark.parametrize(("width", "places"), [(768, 3072), (24, 40), (8, 8), (136, 264)])
def test_products_with_an_activation_inside(tall, width, places):
    """Rows and places that fill no tile, columns that fill no step, and tiles enough for each program to go on to another."""
    tiles_wanted()
    x, slopes = drawn((*tall, width), (*tall, width), kind=LOW)
    up, bias, down = drawn((places, width), (places,), (width, places), kind=LOW)
    up, down = up * width**-0.5, down * width**-0.5
    for first in (bias, None):
        ours, expected = thought._linear_gelu(x, up, first), thought._linear_gelu(*on_cpu([x, up, first]))
        assert [far(*both) < 6e-3 for both in zip(ours, expected, strict=True)] == [True] * 2
    back = [slopes, down, ours[1]]
    ours, expected = thought._linear_gelu_backward(*back), thought._linear_gelu_backward(*on_cpu(back))
    assert far(ours[0], expected[0]) < 6e-3
    assert far(ours[1], expected[1]) < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
def test_three_side_by_side_and_what_they_add_up_to(shape):
    parts = drawn(shape, shape, shape, kind=LOW)
    out, sums = stream.concat_sum(*parts)
    assert out.equal(torch.cat(parts, dim=-1))
    assert far(sums, out.cpu().double().flatten(0, -2).sum(dim=0)) < 1e-5


def test_sums_come_out_the_same_every_time():
    tiles_wanted()
    given = drawn((5000, 64), (64, 768), (5000, 768), kind=LOW)
    first, again = (thought._linear_gelu_backward(*given) for _ in range(2))
    assert first[0].equal(again[0])
    assert first[1].equal(again[1])


@pytest.mark.parametrize("at", [torch.arange(30), torch.arange(3000).view(100, 30) % 41])
def test_rows_that_are_looked_up_and_their_slopes(at):
    (slopes,), ids = drawn((100, 30, 96)), torch.arange(3000, device="cuda", dtype=torch.int32).view(100, 30) % 700
    found = []
    for own in (True, False):
        table, places = (tensor.requires_grad_() for tensor in drawn((1000, 96), (50, 96)))
        if own:
            y = stream.embedding_lookup(ids, table, at.cuda(), places)
        else:
            y = torch.nn.functional.embedding(ids, table) + torch.nn.functional.embedding(at.cuda(), places)
        y.backward(slopes)
        found.append((y.detach(), table.grad, places.grad))
    assert found[0][0].equal(found[1][0])
    for ours, plain in zip(*found, strict=True):
        assert far(ours, plain.cpu()) < 1e-5


SIZES = {"width": 128, "depth": 2, "heads": 2, "feedforward": 192, "context": 64, "dropout": 0}
GPT2 = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=64, final_norm=True)
NETWORKS = network_configs(**SIZES) | {"gpt2": ModelConfig(block="generic", generic=GPT2, **SIZES)}
ROWS = {"whole rows": None, "documents between bounds": torch.tensor([0, 30, 64, 100, 128, 190, 192, 256])}


def learn(config, cu_seqlens, monkeypatch, *, fused):
    fits = Backbone._fused
    seen = []
    monkeypatch.setattr(Backbone, "_fused", lambda self, ids: seen.append(fits(self, ids)) or (fused and seen[-1]))
    torch._dynamo.reset()
    backbone = build_backbone(config, 50, 0).cuda().train()
    backbone.compile_layers()
    ids = (torch.arange(256, device="cuda") * 7 % 50).view(4, 64)
    with torch.autocast("cuda", dtype=LOW):
        hidden = backbone(ids, cu_seqlens=None if cu_seqlens is None else cu_seqlens.int().cuda())
    (hidden * torch.linspace(-1, 1, hidden.numel(), device="cuda").view_as(hidden)).sum().backward()
    monkeypatch.undo()
    assert all(seen)
    return [hidden.detach(), *(parameter.grad for parameter in backbone.parameters())]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["modern", "gpt2"])
def test_a_compiled_network_learns_the_same_either_way(name, rows, monkeypatch):
    ours, plain = (learn(NETWORKS[name], ROWS[rows], monkeypatch, fused=fused) for fused in (True, False))
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        assert far(one, other.cpu()) < 0.03


def test_a_hopper_makes_the_activation_inside_the_products_of_every_layer(monkeypatch):
    tiles_wanted()
    assert not thought.supports_fused_mlp(torch.device("cuda"), 20, 64)
    made = []
    for name in ("widen", "narrow_back"):
        real = getattr(product_kernel, name)
        monkeypatch.setattr(
            product_kernel, name, lambda *given, _real=real, _name=name: made.append(_name) or _real(*given)
        )
    torch._dynamo.reset()
    backbone = build_backbone(NETWORKS["gpt2"], 50, 0).cuda().train()
    backbone.compile_layers()
    ids = (torch.arange(256, device="cuda") * 7 % 50).view(4, 64)
    with torch.autocast("cuda", dtype=LOW):
        hidden = backbone(ids)
    hidden.sum().backward()
    assert made == ["widen"] * 2 + ["narrow_back"] * 2
