"""Attention in groups of documents is attention within each document, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from headstart.kernels import grouped_attention as module
from headstart.kernels.attention import (
    AttentionContext,
    apply_rotary,
    attention,
    project_and_attend_grouped,
    sliding_window_mask,
    split_qkv,
)
from headstart.kernels.dispatch import KernelPlan
from headstart.kernels.grouped_attention import group_documents, grouped_attention
from headstart.model.attention import rotary_cos_sin

LENGTHS = {"one": (9,), "equal": (6, 6, 6), "not padded": (16, 16), "mixed": (3, 70, 1, 30, 31, 200, 5)}
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
    monkeypatch.setattr(module, "_GROUP_COST", 1 << 12)
    lengths = LENGTHS[name]
    groups = group_documents(lengths, HEADS)
    assert len(groups.groups) == (3 if name == "mixed" else 1)
    exact = outputs_and_grads(
        lambda *parts: by_document(*parts, lengths, causal=causal, window=window), lengths, torch.float32
    )
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 4e-2)):
        ours = outputs_and_grads(
            lambda *parts: grouped_attention(torch.stack(parts, dim=1), groups, causal=causal, window=window),
            lengths,
            dtype,
        )
        for mine, theirs in zip(ours, exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_groups_hold_every_token_once(lengths):
    groups, tokens_N = group_documents(lengths, HEADS), torch.arange(sum(lengths))
    torch.testing.assert_close(groups.scatter(groups.gather(tokens_N)), tokens_N)
    torch.testing.assert_close(groups.scatter(groups.gather_padded(tokens_N + 1)), tokens_N + 1)
    padded_P = groups.gather_padded(tokens_N + 1)
    assert int((padded_P > 0).sum()) == sum(lengths)
    is_token_P = torch.cat([module._is_token(group) for group in groups.groups])
    assert torch.equal(padded_P > 0, is_token_P)


def test_documents_of_one_length_are_not_moved():
    assert group_documents((32, 32, 32), HEADS).gather_indices_P is None
    assert group_documents(LENGTHS["mixed"], HEADS).gather_indices_P is not None  # control


def shapes(lengths, heads):
    return [(group.size, group.length) for group in group_documents(lengths, heads).groups]


def test_short_documents_share_a_group_and_long_ones_do_not_pad_them():
    assert shapes((20, 31, 40, 25) * 4, 4) == [(16, 48)]
    assert shapes((500, 20, 25, 490), 1) == [(2, 32), (2, 512)]


def test_a_group_is_divided_where_its_weights_would_leave_the_cache():
    assert shapes((512,) * 4, 4) == [(1, 512)] * 4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_projections_are_split_rotated_and_attended_as_plain_torch_does(rotary, causal):
    plan, lengths = KernelPlan(attention="grouped", cast_weights=True), (3, 4)
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    tables = tuple(table[:, None] for table in rotary_cos_sin(positions, WIDTH)) if rotary else None
    results = []
    for grouped in (True, False):
        torch.manual_seed(0)
        proj = torch.nn.Linear(32, 96)
        x = torch.randn(1, 7, 32, requires_grad=True)
        if grouped:
            groups = group_documents(lengths, HEADS)
            context = AttentionContext(plan, causal=causal, rotary=tables, groups=groups)
            mixed = project_and_attend_grouped(x, proj, HEADS, context)
        else:
            context = AttentionContext(KernelPlan(attention="by_text"), causal=causal, rotary=tables, lengths=lengths)
            parts = split_qkv(x, proj, HEADS, context.plan, tables)
            mixed = attention(*parts, context, head_width=WIDTH)
        (mixed.float() * torch.randn(mixed.shape)).sum().backward()
        results.append([mixed.float(), x.grad, proj.weight.grad, proj.bias.grad])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=2e-2, atol=5e-2)


def test_rotating_is_apply_rotary_and_the_negative_sine_rotates_back():
    x = torch.randn(7, 2, HEADS, WIDTH)
    cos, sin = (table[:, None, None] for table in rotary_cos_sin(torch.arange(7), WIDTH))
    rotated = module.rotate(x, cos, sin)
    torch.testing.assert_close(rotated, apply_rotary(x, cos, sin))
    torch.testing.assert_close(module.rotate(rotated, cos, -sin), x)
