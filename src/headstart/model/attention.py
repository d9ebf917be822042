"""Multi-head self-attention, its mask and its rotary positions.

B batch, T tokens, D width, H heads, K width of one head.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from headstart.config.schema import AttentionDirection
from headstart.kernels.attention import (
    AttentionContext,
    attention,
    deferred_bias,
    project_and_attend_grouped,
    project_out,
    split_qkv,
)
from headstart.kernels.dispatch import KernelPlan

KeyValues = tuple[Tensor, Tensor]
"""The keys and values of one layer, for generation."""


def rotary_cos_sin(positions: Tensor, width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of rotary positions for heads of `width`, each half repeated, one row per position."""
    frequencies = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angles = positions.to(torch.float32)[..., None] * frequencies
    both_halves = torch.cat((angles, angles), dim=-1)
    return both_halves.cos(), both_halves.sin()


def build_attention_mask(segments_BT: Tensor, attention: AttentionDirection) -> Tensor:
    """Return a bool mask B1TT that is True where a token (row) sees another (column).

    Tokens see their own segment only, and under `causal` nothing to their right. Padding is a segment like any other
    here: padding sees padding, so that no row is empty and the softmax never divides zero by zero.
    """
    mask_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    if attention == "causal":
        mask_BTT = mask_BTT & torch.ones_like(mask_BTT[0]).tril()
    return mask_BTT[:, None]


class SelfAttention(nn.Module):
    """Multi-head self-attention as in `torch.nn.MultiheadAttention`, with rotary positions if the context has them."""

    def __init__(self, width: int, heads: int, dropout: float, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x_BTD: Tensor, context: AttentionContext) -> Tensor:
        """Return the projected attention output of every token, without the bias that `deferred_bias` returns."""
        plan = context.plan
        if plan.attention == "grouped":
            mixed_BTD = project_and_attend_grouped(x_BTD, self.qkv_proj, self.heads, context)
            return project_out(mixed_BTD, self.out_proj, self.heads, plan)
        query, key, value = split_qkv(x_BTD, self.qkv_proj, self.heads, plan, context.rotary)
        if context.cache is not None:
            key, value = context.cache.update(key, value)
            context = _after_past(context, query, key)
        mixed_BTD = attention(
            query,
            key,
            value,
            context,
            head_width=x_BTD.shape[-1] // self.heads,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return project_out(mixed_BTD, self.out_proj, self.heads, plan)

    def deferred_bias(self, plan: KernelPlan) -> Tensor | None:
        """Return the output bias if the plan leaves it to the `add_norm` behind this module."""
        return deferred_bias(self.out_proj, plan)


def _after_past(context: AttentionContext, query: Tensor, key: Tensor) -> AttentionContext:
    """Return a context in which every token of the query also sees the cached tokens before it."""
    tokens, keys = query.shape[2], key.shape[2]
    if keys == tokens:
        return context
    if tokens == 1:
        return replace(context, causal=False)
    # is_causal would align a short query with the start of the keys
    mask_TS = torch.ones(tokens, keys, dtype=torch.bool, device=query.device).tril(diagonal=keys - tokens)
    return replace(context, attn_mask=mask_TS)
