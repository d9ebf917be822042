"""Queries, keys and values for steady rows are those of the plain way, to and fro."""

import pytest
import torch
from torch import nn

from headstart.kernels.qkv import project_out, split_qkv

HEADS = {"round": (2, 32), "odd": (2, 40), "odd, many": (6, 30)}


def mix(query, key, value, width):
    scores = query.float() @ key.float().transpose(-1, -2) * width**-0.5
    return scores.softmax(dim=-1).to(value.dtype) @ value


def steadily(x, qkv_proj, out_proj, heads):
    query, key, value = split_qkv(x, qkv_proj, heads, fill=True)
    assert query.shape[-1] % 8 == 0
    return project_out(mix(query, key, value, x.shape[-1] // heads), out_proj)


def plainly(x, qkv_proj, out_proj, heads):
    parts = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv_proj(x).chunk(3, dim=-1))
    return out_proj(mix(*parts, x.shape[-1] // heads).transpose(1, 2).flatten(-2))


def found(way, heads, width, *, bias, kind):
    torch.manual_seed(0)
    qkv_proj, out_proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
    x = torch.randn(3, 7, width, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
        y = way(x, qkv_proj, out_proj, heads)
    assert y.dtype == kind
    y.float().square().sum().backward()
    learnt = (*qkv_proj.parameters(), *out_proj.parameters())
    return [y, x.grad, *(parameter.grad for parameter in learnt)]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_steady_rows_are_projected_as_others_are(name, bias, kind):
    rough = {"rtol": 1e-5, "atol": 1e-5} if kind == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    ours, plain = (found(way, *HEADS[name], bias=bias, kind=kind) for way in (steadily, plainly))
    assert len(ours) == (6 if bias else 4)
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **rough)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler about parts of torch that nobody asked for
def test_they_are_when_compiled_too():
    compiled = torch.compile(steadily)
    ours = found(compiled, *HEADS["odd"], bias=True, kind=torch.float32)
    for one, other in zip(ours, found(plainly, *HEADS["odd"], bias=True, kind=torch.float32), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_heads_that_are_turned_keep_their_width():
    query, key, value = split_qkv(torch.randn(1, 4, 40), nn.Linear(40, 120), 2, fill=False)
    assert query.shape == key.shape == value.shape == (1, 2, 4, 20)
