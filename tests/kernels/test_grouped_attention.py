"""Attention in groups of documents is attention within each document, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from headstart.kernels import grouped_attention as module
from headstart.kernels.attention import apply_rotary, sliding_window_mask, split_qkv
from headstart.kernels.dispatch import KernelPlan
from headstart.kernels.grouped_attention import group_documents, grouped_attention
from headstart.model.attention import rotary_cos_sin

LENGTHS = {"one": (9,), "equal": (6, 6, 6), "mixed": (3, 70, 1, 30, 31, 200, 5)}
HEADS, WIDTH = 2, 16


def by_document(query, key, value, lengths, *, causal, window):
    outputs = []
    for parts in zip(*(part.split(list(lengths)) for part in (query, key, value)), strict=True):
        text = [part.transpose(0, 1)[None] for part in parts]
        mask = sliding_window_mask(text[0].shape[2], window, query.device, causal=causal) if window >= 0 else None
        mixed = F.scaled_dot_product_attention(*text, attn_mask=mask, is_causal=causal and mask is None)
        outputs.append(mixed[0].transpose(0, 1).flatten(-2))
    return torch.cat(outputs)


def outputs_and_grads(attend, lengths, dtype):
    torch.manual_seed(0)
    parts = [torch.randn(sum(lengths), HEADS, WIDTH).to(dtype).requires_grad_() for _ in range(3)]
    out = attend(*parts)
    out.backward(torch.randn(out.shape).to(dtype))
    return [out.float(), *(part.grad.float() for part in parts)]


@pytest.mark.parametrize("kept_widths", [module._KEPT_WIDTHS, 0], ids=["kept weights", "weights computed again"])
@pytest.mark.parametrize("window", [-1, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LENGTHS)
def test_grouped_attention_is_attention_within_each_document(name, causal, window, kept_widths, monkeypatch):
    monkeypatch.setattr(module, "_KEPT_WIDTHS", kept_widths)
    lengths = LENGTHS[name]
    groups = group_documents(lengths, HEADS)
    exact = outputs_and_grads(
        lambda *parts: by_document(*parts, lengths, causal=causal, window=window), lengths, torch.float32
    )
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 4e-2)):
        ours = outputs_and_grads(
            lambda *parts: grouped_attention(*parts, groups, causal=causal, window=window), lengths, dtype
        )
        for mine, theirs in zip(ours, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_groups_hold_every_token_once():
    for lengths in LENGTHS.values():
        tokens = torch.cat([group.tokens for group in group_documents(lengths, HEADS)])
        assert sorted(tokens.tolist()) == list(range(sum(lengths)))


def test_short_documents_share_a_group_and_long_ones_do_not_pad_them():
    assert len(group_documents((20, 31, 40, 25) * 4, 4)) == 1
    assert [group.indices_BL.shape for group in group_documents((500, 20, 25, 490), 1)] == [(2, 25), (2, 500)]


def test_a_group_is_divided_where_its_weights_would_leave_the_cache():
    groups = group_documents((512,) * 4, 4)
    assert [group.indices_BL.shape for group in groups] == [(1, 512)] * 4


@pytest.mark.parametrize("rotary", [True, False])
def test_projections_are_split_and_rotated_as_plain_torch_does(rotary):
    plan = KernelPlan(attention="grouped", cast_weights=True)
    tables = tuple(table[:, None] for table in rotary_cos_sin(torch.arange(7), WIDTH)) if rotary else None
    results = []
    for grouped in (True, False):
        torch.manual_seed(0)
        proj = torch.nn.Linear(32, 96)
        x = torch.randn(1, 7, 32, requires_grad=True)
        if grouped:
            parts = split_qkv(x, proj, HEADS, plan, tables)
        else:
            parts = proj(x[0]).view(7, 3, HEADS, WIDTH).unbind(1)
            parts = [apply_rotary(part, *tables) for part in parts[:2]] + [parts[2]] if rotary else parts
        sum((part.float() * torch.randn(part.shape)).sum() for part in parts).backward()
        results.append([*(part.float() for part in parts), x.grad, proj.weight.grad, proj.bias.grad])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=2e-2, atol=5e-2)
