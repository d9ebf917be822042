"""Attention in bf16 on a CPU over documents end to end, in groups of similar length.

torch's fused attention computes in fp32 inside on a CPU, and its backward pass in bf16 is slow for short texts. Matrix
products in bf16 are several times as fast, so that documents are padded to the longest of their group and multiplied as one
batch. Groups are chosen so that padding costs less than the calls it saves. With short texts, the number of operations
determines the time, so queries, keys and values stay in one tensor. The softmax is computed in fp32 and then rounded.

N tokens of all documents end to end, P tokens of all groups with their padding, D documents, B documents of a group, L its
padded length, H heads, K width of one head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LENGTH_MULTIPLE = 16
"""Groups are padded to a multiple of this many tokens, for the reason given at `dispatch.PAD_TO_MULTIPLE_OF`."""
_GROUP_COST = 1 << 15
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

    size: int
    """The number of documents."""
    length: int
    """The padded length."""
    is_token_BL: Tensor | None
    """False for padding; None if there is none."""


@dataclass(frozen=True)
class DocumentGroups:
    """The documents of one forward pass in groups, and the order of the tokens in them."""

    groups: tuple[DocumentGroup, ...]
    gather_indices_P: Tensor | None
    """The index of the token at each place of the groups; padding repeats the last token of its document. None if there is
    no padding and the order is the same.
    """
    scatter_indices_N: Tensor | None
    """The place of each token in the groups; None if `gather_indices_P` is None."""

    def gather(self, x_N: Tensor) -> Tensor:
        """Return the rows of the groups (P, ...), where padding repeats a token."""
        return x_N if self.gather_indices_P is None else x_N.index_select(0, self.gather_indices_P)

    def gather_padded(self, x_N: Tensor) -> Tensor:
        """Return the rows of the groups (P, ...), where padding is zero."""
        if self.gather_indices_P is None or self.scatter_indices_N is None:
            return x_N
        return x_N.new_zeros(len(self.gather_indices_P), *x_N.shape[1:]).index_copy_(0, self.scatter_indices_N, x_N)

    def scatter(self, x_P: Tensor) -> Tensor:
        """Return the rows of the tokens (N, ...) without padding."""
        return x_P if self.scatter_indices_N is None else x_P.index_select(0, self.scatter_indices_N)

    def split(self, x_P: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of each group (B, L, ...)."""
        parts = torch.split(x_P, [group.size * group.length for group in self.groups])
        return tuple(
            part.view(group.size, group.length, *x_P.shape[1:]) for part, group in zip(parts, self.groups, strict=True)
        )


def group_documents(lengths: Sequence[int], heads: int) -> DocumentGroups:
    """Divide documents that lie end to end into groups, each at most `_MAX_WEIGHTS` attention weights large."""
    lengths_D = torch.tensor(lengths)
    starts_D = lengths_D.cumsum(0) - lengths_D
    steps = [-(-length // _LENGTH_MULTIPLE) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    groups: list[DocumentGroup] = []
    indices: list[Tensor] = []
    first = 0
    for end in _group_ends(sorted(steps)):
        members = order[first:end]
        first = end
        size = max(1, _MAX_WEIGHTS // (heads * lengths[members[-1]] ** 2))
        for part in torch.split(torch.tensor(members), size):
            group, indices_BL = _pad_group(starts_D[part], lengths_D[part])
            groups.append(group)
            indices.append(indices_BL.flatten())
    gather_indices_P = torch.cat(indices)
    num_tokens = sum(lengths)
    if len(gather_indices_P) == num_tokens and bool((gather_indices_P.diff() == 1).all()):
        return DocumentGroups(tuple(groups), None, None)
    is_token_P = torch.cat([_is_token(group) for group in groups])
    scatter_indices_N = torch.empty(num_tokens, dtype=torch.long)
    scatter_indices_N[gather_indices_P[is_token_P]] = is_token_P.nonzero()[:, 0]
    return DocumentGroups(tuple(groups), gather_indices_P, scatter_indices_N)


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


def _pad_group(starts_B: Tensor, lengths_B: Tensor) -> tuple[DocumentGroup, Tensor]:
    """Return a group and the indices (B, L) of its tokens."""
    length = -(-int(lengths_B.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    index_L = torch.arange(length)
    is_token_BL = index_L < lengths_B[:, None]
    group = DocumentGroup(len(lengths_B), length, None if bool(is_token_BL.all()) else is_token_BL)
    return group, starts_B[:, None] + torch.minimum(index_L, lengths_B[:, None] - 1)


def _is_token(group: DocumentGroup) -> Tensor:
    if group.is_token_BL is None:
        return torch.ones(group.size * group.length, dtype=torch.bool)
    return group.is_token_BL.flatten()


def grouped_attention(
    qkv: Tensor,
    groups: DocumentGroups,
    rotary: tuple[Tensor, Tensor] | None = None,
    *,
    causal: bool,
    window: int = -1,
) -> Tensor:
    """Return attention (N, H*K) within each document, for queries, keys and values (N, 3, H, K) in bf16.

    Args:
        groups: contain every token once.
        rotary: cosine and sine (N, 1, K) of the positions; queries and keys are rotated by them in fp32.
        causal: a token sees only those before it.
        window: how far a token sees to each side; -1 is unlimited.
    """
    cos, sin = (None, None) if rotary is None else (table[:, None] for table in rotary)
    mixed: Tensor = _GroupedAttention.apply(qkv, cos, sin, groups, causal, window)  # type: ignore[no-untyped-call]
    return mixed


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        groups: DocumentGroups,
        causal: bool,
        window: int,
    ) -> Tensor:
        if cos is not None and sin is not None:
            rotated = torch.empty_like(qkv)
            rotated[:, :2] = rotate(qkv[:, :2], cos, sin)
            rotated[:, 2] = qkv[:, 2]
            qkv = rotated
        mixed, saved = [], []
        for group, part in zip(groups.groups, groups.split(groups.gather(qkv)), strict=True):
            query, key, value = heads = part.permute(2, 0, 3, 1, 4).flatten(1, 2)  # (3, B*H, L, K), contiguous
            weights = _attention_weights(query, key, group, causal=causal, window=window)
            mixed.append(_merge_heads(torch.bmm(weights, value), group))
            keep = any(ctx.needs_input_grad) and group.length <= _KEPT_WIDTHS * qkv.shape[-1]
            saved += [heads, weights if keep else None]
        ctx.save_for_backward(cos, sin, *saved)
        ctx.groups, ctx.causal, ctx.window = groups, causal, window
        return groups.scatter(_concat(mixed))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *saved = ctx.saved_tensors
        groups, grad_qkv = ctx.groups, []
        parts = groups.split(groups.gather_padded(grads[0]))
        for group, part, heads, kept in zip(groups.groups, parts, saved[::2], saved[1::2], strict=True):
            query, key, value = heads
            width = query.shape[-1]
            grad = part.view(*part.shape[:2], -1, width).transpose(1, 2).flatten(0, 1)
            weights = kept
            if kept is None:
                weights = _attention_weights(query, key, group, causal=ctx.causal, window=ctx.window)
            grads_3 = torch.empty_like(heads)
            torch.bmm(weights.mT, grad, out=grads_3[2])
            grad_logits = torch._softmax_backward_data(torch.bmm(grad, value.mT), weights, -1, weights.dtype)
            torch.bmm(grad_logits, key, out=grads_3[0])
            torch.bmm(grad_logits.mT, query, out=grads_3[1])
            grads_3[:2].mul_(width**-0.5)
            grad_qkv.append(grads_3.view(3, group.size, -1, *heads.shape[2:]).permute(1, 3, 0, 2, 4).flatten(0, 1))
        grad_N3HK = groups.scatter(_concat(grad_qkv))
        if cos is not None:
            grad_N3HK[:, :2] = rotate(grad_N3HK[:, :2], cos, -sin)
        return grad_N3HK, None, None, None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return rotary positions of (..., K) in fp32: the two halves of each head rotated against each other.

    The negative sine rotates back.
    """
    x = x.float()
    low, high = x.chunk(2, dim=-1)
    half = low.shape[-1]
    out = x * cos
    out[..., :half].addcmul_(high, sin[..., :half], value=-1)
    out[..., half:].addcmul_(low, sin[..., half:])
    return out


def _attention_weights(query: Tensor, key: Tensor, group: DocumentGroup, *, causal: bool, window: int) -> Tensor:
    """Return the softmax of the scaled logits (B*H, L, L), computed in fp32, in the dtype of the query."""
    scale, length = query.shape[-1] ** -0.5, group.length
    logits = torch.bmm(query, key.mT).float()
    bias = None
    if causal or 0 <= window < length - 1:
        bias = _position_bias(length, window, causal=causal)
    if not causal and group.is_token_BL is not None:  # under causal attention, padding is to the right of every token
        padding_B11L = torch.where(group.is_token_BL, 0.0, _MASKED)[:, None, None]
        bias = padding_B11L if bias is None else bias + padding_B11L
    if bias is None:
        logits.mul_(scale)
    else:
        logits_BHLL = logits.view(group.size, -1, length, length)
        torch.add(bias, logits_BHLL, alpha=scale, out=logits_BHLL)
    return torch.softmax(logits, dim=-1, out=logits).to(query.dtype)


def _position_bias(length: int, window: int, *, causal: bool) -> Tensor:
    """Return 0 where a token (row) may see another (column), and `_MASKED` elsewhere (L, L)."""
    index_L = torch.arange(length)
    distance_LL = index_L[:, None] - index_L
    visible = distance_LL >= 0 if causal else torch.ones_like(distance_LL, dtype=torch.bool)
    if window >= 0:
        visible &= distance_LL.abs() <= window
    return torch.where(visible, 0.0, _MASKED)


def _merge_heads(x: Tensor, group: DocumentGroup) -> Tensor:
    """Return the rows (B*L, H*K) of heads (B*H, L, K)."""
    return x.view(group.size, -1, *x.shape[1:]).transpose(1, 2).flatten(2).flatten(0, 1)


def _concat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
