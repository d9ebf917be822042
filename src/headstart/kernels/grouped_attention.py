"""Attention in bf16 on a CPU over documents end to end, in groups of similar length.

torch's fused attention computes in fp32 inside on a CPU, and its backward pass in bf16 is slow for short texts. Matrix
products in bf16 are several times as fast, so that documents are padded to the longest of their group and multiplied as one
batch. Groups are chosen so that padding costs less than the calls it saves. A softmax is computed in fp32.

N tokens of all documents end to end, B documents of a group, L the length of the longest, H heads, K width of one head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LENGTH_MULTIPLE = 16
"""Lengths are compared in steps of this many tokens."""
_GROUP_COST = 1 << 14
"""The fixed cost of a group, in attention weights of one head."""
_MAX_WEIGHTS = 1 << 20
"""Maximum number of attention weights per call, so that they stay in the cache."""
_KEPT_WIDTHS = 8
"""Rows of attention weights as long as this many head widths are kept for the backward pass; longer ones are computed again."""

_MASKED = -1e30
"""Added to the logits of masked tokens. It is finite, because the softmax of a padding row without any visible token must
not be NaN.
"""


@dataclass(frozen=True)
class DocumentGroup:
    """Documents of similar length, padded on the right."""

    indices_BL: Tensor
    """The flat index of each token; padding repeats the last token."""
    is_token_BL: Tensor | None
    """False for padding; None if there is none."""

    @property
    def tokens(self) -> Tensor:
        """The flat indices of the tokens without padding."""
        return self.indices_BL.flatten() if self.is_token_BL is None else self.indices_BL[self.is_token_BL]


def group_documents(lengths: Sequence[int], heads: int) -> tuple[DocumentGroup, ...]:
    """Divide documents that lie end to end into groups, each at most `_MAX_WEIGHTS` attention weights large."""
    lengths_N = torch.tensor(lengths)
    starts_N = lengths_N.cumsum(0) - lengths_N
    steps = [-(-length // _LENGTH_MULTIPLE) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    groups: list[DocumentGroup] = []
    first = 0
    for end in _group_ends(sorted(steps)):
        members = order[first:end]
        first = end
        size = max(1, _MAX_WEIGHTS // (heads * lengths[members[-1]] ** 2))
        for part in torch.split(torch.tensor(members), size):
            groups.append(_pad_group(starts_N[part], lengths_N[part]))
    return tuple(groups)


def _group_ends(steps: list[int]) -> list[int]:
    """Return where the groups of sorted lengths end, at the lowest cost of padding and groups."""
    distinct = sorted(set(steps))
    counts = [0]
    for length in distinct:
        counts.append(counts[-1] + steps.count(length))
    best: list[tuple[float, int]] = [
        (0.0, 0)
    ]  # cost of the first i distinct lengths, and where their last group begins
    for end in range(1, len(distinct) + 1):
        weights = (distinct[end - 1] * _LENGTH_MULTIPLE) ** 2
        best.append(
            min((best[begin][0] + _GROUP_COST + weights * (counts[end] - counts[begin]), begin) for begin in range(end))
        )
    ends, end = [], len(distinct)
    while end:
        ends.append(counts[end])
        end = best[end][1]
    return ends[::-1]


def _pad_group(starts_B: Tensor, lengths_B: Tensor) -> DocumentGroup:
    index_L = torch.arange(int(lengths_B.max()))
    is_token_BL = index_L < lengths_B[:, None]
    indices_BL = starts_B[:, None] + torch.minimum(index_L, lengths_B[:, None] - 1)
    return DocumentGroup(indices_BL, None if bool(is_token_BL.all()) else is_token_BL)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, groups: tuple[DocumentGroup, ...], *, causal: bool, window: int = -1
) -> Tensor:
    """Return attention (N, H*K) within each document, for `query`, `key` and `value` (N, H, K) in bf16.

    Args:
        groups: contain every token once.
        causal: a token sees only those before it.
        window: how far a token sees to each side; -1 is unlimited.
    """
    mixed: Tensor = _GroupedAttention.apply(query, key, value, groups, causal, window)  # type: ignore[no-untyped-call]
    return mixed


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        groups: tuple[DocumentGroup, ...],
        causal: bool,
        window: int,
    ) -> Tensor:
        ctx.groups, ctx.causal, ctx.window, ctx.kept = groups, causal, window, []
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in groups:
            query_BHLK, key_BHLK, value_BHLK = (_gather(part, group) for part in (query, key, value))
            weights = _attention_weights(query_BHLK, key_BHLK, group, causal=causal, window=window)
            _scatter(out, torch.matmul(weights, value_BHLK), group)
            keep = any(ctx.needs_input_grad) and weights.shape[-1] <= _KEPT_WIDTHS * query.shape[-1]
            ctx.kept.append(weights if keep else None)
        ctx.save_for_backward(query, key, value)
        return out.flatten(-2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        grad = grads[0].view_as(query)
        scale = query.shape[-1] ** -0.5
        grad_query, grad_key, grad_value = (torch.empty_like(part) for part in (query, key, value))
        for index, group in enumerate(ctx.groups):
            query_BHLK, key_BHLK, value_BHLK, grad_BHLK = (_gather(part, group) for part in (query, key, value, grad))
            if group.is_token_BL is not None:  # the output of padding is not used
                grad_BHLK = grad_BHLK * group.is_token_BL[:, None, :, None].to(grad.dtype)
            weights, ctx.kept[index] = ctx.kept[index], None
            if weights is None:
                weights = _attention_weights(query_BHLK, key_BHLK, group, causal=ctx.causal, window=ctx.window)
            _scatter(grad_value, torch.matmul(weights.mT, grad_BHLK), group)
            grad_logits = torch._softmax_backward_data(
                torch.matmul(grad_BHLK, value_BHLK.mT), weights, -1, weights.dtype
            )
            _scatter(grad_query, torch.matmul(grad_logits, key_BHLK).mul_(scale), group)
            _scatter(grad_key, torch.matmul(grad_logits.mT, query_BHLK).mul_(scale), group)
        return grad_query, grad_key, grad_value, None, None, None


def _attention_weights(query: Tensor, key: Tensor, group: DocumentGroup, *, causal: bool, window: int) -> Tensor:
    """Return the softmax of the scaled logits (B, H, L, L), computed in fp32, in the dtype of the query."""
    logits = torch.matmul(query, key.mT).float().mul_(query.shape[-1] ** -0.5)
    length = logits.shape[-1]
    if causal or 0 <= window < length - 1:
        logits += _position_bias(length, window, causal=causal)
    if not causal and group.is_token_BL is not None:  # under causal attention, padding is to the right of every token
        logits += torch.where(group.is_token_BL, 0.0, _MASKED)[:, None, None, :]
    return torch.softmax(logits, dim=-1, out=logits).to(query.dtype)


def _position_bias(length: int, window: int, *, causal: bool) -> Tensor:
    """Return 0 where a token (row) may see another (column), and `_MASKED` elsewhere (L, L)."""
    index_L = torch.arange(length)
    distance_LL = index_L[:, None] - index_L
    visible = distance_LL >= 0 if causal else torch.ones_like(distance_LL, dtype=torch.bool)
    if window >= 0:
        visible &= distance_LL.abs() <= window
    return torch.where(visible, 0.0, _MASKED)


def _gather(x_NHK: Tensor, group: DocumentGroup) -> Tensor:
    """Return the tokens of a group as (B, H, L, K), contiguous."""
    rows = x_NHK.index_select(0, group.indices_BL.flatten())
    return rows.view(*group.indices_BL.shape, *x_NHK.shape[1:]).transpose(1, 2).contiguous()


def _scatter(out_NHK: Tensor, x_BHLK: Tensor, group: DocumentGroup) -> None:
    """Write the tokens of a group to their positions; padding is dropped."""
    rows = x_BHLK.transpose(1, 2)
    rows = rows.flatten(0, 1) if group.is_token_BL is None else rows[group.is_token_BL]
    out_NHK.index_copy_(0, group.tokens, rows)
