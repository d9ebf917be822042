"""The projections for cuDNN's attention are the plain ones, forward and backward."""

import pytest
import torch
from torch import nn

from headstart.kernels.attention import deferred_bias, project_out, split_qkv
from headstart.kernels.dispatch import PLAIN, KernelPlan
from headstart.model.attention import rotary_cos_sin

CUDNN = KernelPlan(attention="cudnn")
HEADS = {"round": (2, 32), "odd": (2, 40), "odd, many": (6, 30)}


def attend(query, key, value, width):
    logits = query.float() @ key.float().transpose(-1, -2) * width**-0.5
    mixed = logits.softmax(dim=-1).to(value.dtype) @ value
    return mixed.transpose(1, 2).flatten(-2)


def project_padded(x, qkv_proj, out_proj, heads):
    query, key, value = split_qkv(x, qkv_proj, heads, CUDNN)
    assert query.shape[-1] % 8 == 0
    return project_out(attend(query, key, value, x.shape[-1] // heads), out_proj, heads, CUDNN)


def project_plain(x, qkv_proj, out_proj, heads):
    parts = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv_proj(x).chunk(3, dim=-1))
    return out_proj(attend(*parts, x.shape[-1] // heads))


def outputs_and_grads(project, heads, width, *, bias, dtype):
    torch.manual_seed(0)
    qkv_proj, out_proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
    x = torch.randn(3, 7, width, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = project(x, qkv_proj, out_proj, heads)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    parameters = (*qkv_proj.parameters(), *out_proj.parameters())
    return [y, x.grad, *(parameter.grad for parameter in parameters)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_padded_heads_give_the_same_outputs_and_gradients(name, bias, dtype):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    padded, plain = (
        outputs_and_grads(project, *HEADS[name], bias=bias, dtype=dtype) for project in (project_padded, project_plain)
    )
    assert len(padded) == (6 if bias else 4)
    for ours, theirs in zip(padded, plain, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules
@pytest.mark.slow  # a compilation takes seconds; test_residual_norm.py compiles layers with these projections
def test_compiled_projections_of_padded_heads_give_the_same_outputs_and_gradients():
    compiled = outputs_and_grads(torch.compile(project_padded), *HEADS["odd"], bias=True, dtype=torch.float32)
    plain = outputs_and_grads(project_plain, *HEADS["odd"], bias=True, dtype=torch.float32)
    for ours, theirs in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_rotary_heads_keep_their_width():
    rotary = rotary_cos_sin(torch.arange(4), 20)
    query, key, value = split_qkv(torch.randn(1, 4, 40), nn.Linear(40, 120), 2, CUDNN, rotary)
    assert query.shape == key.shape == value.shape == (1, 2, 4, 20)


@pytest.mark.parametrize("bias", [True, False])
def test_concatenated_gradients_of_query_key_and_value_are_summed_up(bias):
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        x, qkv_proj = torch.randn(3, 5, 32, requires_grad=True), nn.Linear(32, 96, bias=bias)
        plan = KernelPlan(attention="cudnn", fused_residual=fused)
        parts = split_qkv(x, qkv_proj, 4, plan)
        sum((part * torch.randn_like(part)).sum() for part in parts).backward()
        results.append([*parts, x.grad, *(parameter.grad for parameter in qkv_proj.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_output_bias_is_deferred_between_fused_kernels_only():
    x, out_proj = torch.randn(1, 4, 16), nn.Linear(16, 16)
    fused = KernelPlan(attention="cudnn", fused_residual=True)
    assert deferred_bias(out_proj, fused) is out_proj.bias
    torch.testing.assert_close(project_out(x, out_proj, 2, fused) + out_proj.bias, out_proj(x))
    for plan in (PLAIN, CUDNN, KernelPlan(fused_residual=True)):
        assert deferred_bias(out_proj, plan) is None
        torch.testing.assert_close(project_out(x, out_proj, 2, plan), out_proj(x))
