"""Attention: SDPA with or without a mask, cuDNN, varlen kernels, and one text at a time.

B batch, T tokens of the query, S tokens of the key, N tokens of all documents end to end, H heads, K width of one head.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from headstart.kernels.dispatch import HEAD_MULTIPLE, KernelPlan


class KeyValueCache:
    """The keys and values of one layer, extended by every call, for generation."""

    def __init__(self, past: tuple[Tensor, Tensor] | None = None) -> None:
        self.key_values = past

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens and return all of them."""
        if self.key_values is not None:
            key, value = torch.cat((self.key_values[0], key), dim=2), torch.cat((self.key_values[1], value), dim=2)
        self.key_values = key, value
        return key, value


@dataclass(frozen=True)
class AttentionContext:
    """Describes the rows of a forward pass to every layer."""

    plan: KernelPlan
    attn_mask: Tensor | None = None
    """True where a token (row) sees another (column). None means that a row is one document; see `causal`."""
    causal: bool = True
    """Whether a token sees only those before it, where there is no mask."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine of the positions, in a shape that broadcasts over heads; None for absolute positions."""
    cu_seqlens: Tensor | None = None
    """Cumulative lengths of the documents, from 0 on, where all tokens lie in one row without padding."""
    max_seqlen: int = 0
    """An upper bound of the lengths in `cu_seqlens`."""
    lengths: tuple[int, ...] = ()
    """The lengths of documents that lie end to end and are attended one at a time."""
    window: int = -1
    """How far a token sees to each side in documents end to end; -1 is unlimited. Elsewhere `attn_mask` says it."""
    cache: KeyValueCache | None = None
    """The keys and values of earlier tokens; None in training, where a compiler would compute gradients for them."""


def attention(
    query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, *, head_width: int, dropout_p: float = 0.0
) -> Tensor:
    """Return scaled dot-product attention with merged heads: (B, T, H*K), or (1, N, H*K) for documents end to end.

    Args:
        query: with `key` and `value` in the layout of `split_qkv`: (B, H, T, K), or (N, H, K) for documents end to end.
        head_width: K without the padding that cuDNN's heads may have.
        dropout_p: dropout of the attention weights; the kernels of `varlen` and `cudnn` have none.
    """
    kernel = context.plan.attention
    if kernel == "varlen":
        return _varlen(query, key, value, context)
    if kernel == "by_text":
        return _by_text(query, key, value, context, dropout_p)
    if kernel == "cudnn":
        return _merge_heads(cudnn_attention(query, key, value, causal=context.causal, scale=head_width**-0.5))
    return _sdpa(query, key, value, context.attn_mask, causal=context.causal, dropout_p=dropout_p)


def sliding_window_mask(tokens: int, window: int, device: torch.device, *, causal: bool) -> Tensor:
    """Return a bool mask (T, T) that is True where a token is at most `window` away; under `causal` not to the right."""
    index_T = torch.arange(tokens, device=device)
    distance_TT = index_T[:, None] - index_T
    return (distance_TT <= window) & (distance_TT >= (0 if causal else -window))


def cudnn_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None = None) -> Tensor:
    """Return attention over full rows in bf16 by cuDNN's kernel; heads of an odd width are padded with zeros.

    Args:
        scale: of the logits, if the heads are padded already.
    """
    width = query.shape[-1]
    missing = -width % HEAD_MULTIPLE
    if missing:
        query, key, value = (F.pad(part, (0, missing)) for part in (query, key, value))
    mixed: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale or width**-0.5
    )[0]
    return mixed[..., :width] if missing else mixed


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *, causal: bool, dropout_p: float
) -> Tensor:
    is_causal = causal and attn_mask is None
    return _merge_heads(
        F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal)
    )


def _by_text(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout_p: float) -> Tensor:
    """Attend within each document separately: no mask, no padding."""
    lengths, mixed = list(context.lengths), []
    for parts in zip(*(torch.split(part, lengths) for part in (query, key, value)), strict=True):
        text_query, text_key, text_value = (part.transpose(0, 1)[None] for part in parts)
        tokens, attn_mask = text_query.shape[2], None
        if 0 <= context.window < tokens - 1:
            attn_mask = sliding_window_mask(tokens, context.window, query.device, causal=context.causal)
        mixed.append(_sdpa(text_query, text_key, text_value, attn_mask, causal=context.causal, dropout_p=dropout_p))
    return torch.cat(mixed, dim=1)


def _varlen(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
    """Attend within each document by a kernel that reads `cu_seqlens`: no mask, no padding."""
    assert context.cu_seqlens is not None
    # fp32 operands come from scoring in TF32; fp16 has the same mantissa and holds numbers up to 65,504
    dtype = torch.float16 if query.dtype == torch.float32 and query.is_cuda else query.dtype
    mixed_NHK = cast(
        Tensor,
        varlen_attn(
            query.to(dtype),
            key.to(dtype),
            value.to(dtype),
            context.cu_seqlens,
            context.cu_seqlens,
            context.max_seqlen,
            context.max_seqlen,
            window_size=(context.window, 0) if context.causal else (context.window, context.window),
        ),
    )
    return mixed_NHK.to(query.dtype).flatten(-2)[None]


def _merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(-2)
