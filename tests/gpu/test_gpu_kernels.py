"""Fused kernels on a GPU: as exact as plain torch, and the same gradients in a network that trains."""

import pytest
import torch

from fixtures.tiny import network_configs
from headstart.config.schema import GenericConfig, ModelConfig
from headstart.kernels import attention, dispatch, mlp, residual_norm
from headstart.kernels.embedding import embedding_lookup
from headstart.model.transformer import build_backbone

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

triton_mlp = pytest.importorskip("headstart.kernels.triton.mlp", reason="needs triton", exc_type=ImportError)
BF16 = torch.bfloat16
SHAPES = [(1000, 768), (37, 24), (1, 8), (4, 33, 512), (130, 1000), (70, 4096)]


def randn(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def relative_error(ours, expected):
    """The distance of a tensor from the expected one, as a fraction of its norm."""
    return ((ours.double().cpu() - expected.double()).norm() / expected.double().norm().clamp(min=1e-9)).item()


def on_cpu(values):
    return [value.cpu() if isinstance(value, torch.Tensor) else value for value in values]


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_fused_sum_and_norm_and_their_gradients_are_those_of_torch(shape, centered):
    width = shape[-1:]
    residual, weight, bias, hidden_bias, grad_total = randn(shape, width, width, width, shape)
    hidden, grad_normed = randn(shape, shape, dtype=BF16)
    inputs = [residual, hidden, hidden_bias, weight, bias, 1e-5, centered, BF16]
    total, normed, means, scales = residual_norm._add_norm(*inputs)
    expected = residual_norm._add_norm(*on_cpu(inputs))
    assert relative_error(total, expected[0]) < 1e-6
    assert relative_error(normed, expected[1]) < 1e-2
    assert relative_error(scales, expected[3]) < 1e-5
    for grad in (grad_total, None):
        inputs = [grad, grad_normed, total, means, scales, weight, centered, True, BF16]
        ours, theirs = residual_norm._add_norm_backward(*inputs), residual_norm._add_norm_backward(*on_cpu(inputs))
        errors = [relative_error(*pair) for pair in zip(ours, theirs, strict=True)]
        assert [error < bound for error, bound in zip(errors, (1e-5, 1e-2, 1e-5), strict=True)] == [True] * 3


def skip_unless_hopper():
    if not dispatch.supports_fused_mlp(torch.device("cuda"), 8, 8):
        pytest.skip("products with an activation inside are for Hopper")


@pytest.mark.parametrize("rows", [(1,), (37,), (4, 33), (5000,)])
@pytest.mark.parametrize(("width", "feedforward"), [(768, 3072), (24, 40), (8, 8), (136, 264)])
def test_products_with_an_activation_inside_are_those_of_torch(rows, width, feedforward):
    """Sizes that fill no tile, columns that fill no step, and tiles enough for each program to compute several."""
    skip_unless_hopper()
    x, grad = randn((*rows, width), (*rows, width), dtype=BF16)
    up, bias, down = randn((feedforward, width), (feedforward,), (width, feedforward), dtype=BF16)
    up, down = up * width**-0.5, down * width**-0.5
    for up_bias in (bias, None):
        ours, expected = mlp._linear_gelu(x, up, up_bias), mlp._linear_gelu(*on_cpu([x, up, up_bias]))
        assert [relative_error(*pair) < 6e-3 for pair in zip(ours, expected, strict=True)] == [True] * 2
    inputs = [grad, down, ours[1]]
    ours, expected = mlp._linear_gelu_backward(*inputs), mlp._linear_gelu_backward(*on_cpu(inputs))
    assert relative_error(ours[0], expected[0]) < 6e-3
    assert relative_error(ours[1], expected[1]) < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
def test_three_tensors_are_concatenated_and_summed(shape):
    tensors = randn(shape, shape, shape, dtype=BF16)
    out, sums = attention.concat_sum(*tensors)
    assert out.equal(torch.cat(tensors, dim=-1))
    assert relative_error(sums, out.cpu().double().flatten(0, -2).sum(dim=0)) < 1e-5


def test_sums_have_the_same_bits_every_time():
    skip_unless_hopper()
    inputs = randn((5000, 64), (64, 768), (5000, 768), dtype=BF16)
    first, second = (mlp._linear_gelu_backward(*inputs) for _ in range(2))
    assert first[0].equal(second[0])
    assert first[1].equal(second[1])


@pytest.mark.parametrize("positions", [torch.arange(30), torch.arange(3000).view(100, 30) % 41])
def test_a_fused_lookup_and_its_gradients_are_those_of_torch(positions):
    (grads,), ids = randn((100, 30, 96)), torch.arange(3000, device="cuda", dtype=torch.int32).view(100, 30) % 700
    results = []
    for fused in (True, False):
        table, position_table = (tensor.requires_grad_() for tensor in randn((1000, 96), (50, 96)))
        if fused:
            y = embedding_lookup(ids, table, positions.cuda(), position_table)
        else:
            y = torch.nn.functional.embedding(ids, table)
            y = y + torch.nn.functional.embedding(positions.cuda(), position_table)
        y.backward(grads)
        results.append((y.detach(), table.grad, position_table.grad))
    assert results[0][0].equal(results[1][0])
    for ours, plain in zip(*results, strict=True):
        assert relative_error(ours, plain.cpu()) < 1e-5


SIZES = {"width": 128, "depth": 2, "heads": 2, "feedforward": 192, "context": 64, "dropout": 0}
GPT2 = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=64, final_norm=True)
NETWORKS = network_configs(**SIZES) | {"gpt2": ModelConfig(block="generic", generic=GPT2, **SIZES)}
ROWS = {"full rows": None, "documents end to end": torch.tensor([0, 30, 64, 100, 128, 190, 192, 256])}


def hidden_and_grads(config, cu_seqlens, monkeypatch, *, fused):
    can_fuse = dispatch._can_fuse_training
    decisions = []

    def decide(*args, **kwargs):
        decisions.append(can_fuse(*args, **kwargs))
        return fused and decisions[-1]

    monkeypatch.setattr(dispatch, "_can_fuse_training", decide)
    torch._dynamo.reset()
    backbone = build_backbone(config, 50, 0).cuda().train()
    backbone.compile_layers()
    ids = (torch.arange(256, device="cuda") * 7 % 50).view(4, 64)
    with torch.autocast("cuda", dtype=BF16):
        hidden = backbone(ids, cu_seqlens=None if cu_seqlens is None else cu_seqlens.int().cuda())
    (hidden * torch.linspace(-1, 1, hidden.numel(), device="cuda").view_as(hidden)).sum().backward()
    monkeypatch.undo()
    assert decisions
    assert all(decisions)
    return [hidden.detach(), *(parameter.grad for parameter in backbone.parameters())]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["modern", "gpt2"])
def test_a_compiled_network_has_the_same_gradients_with_fused_kernels(name, rows, monkeypatch):
    fused, plain = (hidden_and_grads(NETWORKS[name], ROWS[rows], monkeypatch, fused=fused) for fused in (True, False))
    for ours, theirs in zip(fused, plain, strict=True):
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs.cpu()) < 0.03


def test_a_hopper_computes_the_activation_inside_the_products_of_every_layer(monkeypatch):
    skip_unless_hopper()
    assert not dispatch.supports_fused_mlp(torch.device("cuda"), 20, 64)
    calls = []
    for name in ("linear_gelu", "linear_gelu_backward"):
        real = getattr(triton_mlp, name)
        monkeypatch.setattr(triton_mlp, name, lambda *args, _real=real, _name=name: calls.append(_name) or _real(*args))
    torch._dynamo.reset()
    backbone = build_backbone(NETWORKS["gpt2"], 50, 0).cuda().train()
    backbone.compile_layers()
    ids = (torch.arange(256, device="cuda") * 7 % 50).view(4, 64)
    with torch.autocast("cuda", dtype=BF16):
        hidden = backbone(ids)
    hidden.sum().backward()
    assert calls == ["linear_gelu"] * 2 + ["linear_gelu_backward"] * 2
