"""Attention with its projections: queries, keys and values, SDPA, cuDNN, varlen kernels, one text at a time, and the output.

For cuDNN's attention the projections are laid out for its kernels: heads of an odd width get columns of zeros in the weights,
where they cost nothing, and the three gradients are concatenated by an operation that is opaque to the compiler. The compiler
would fuse the copy with the operations before it, and such a kernel takes several times as long.

B batch, T tokens of the query, S tokens of the key, N tokens of all documents end to end, D width, H heads, K width of one
head (rounded up for cuDNN).
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.cast import apply_linear
from headstart.kernels.dispatch import HEAD_MULTIPLE, PAD_TO_MULTIPLE_OF, KernelPlan, autocast_dtype
from headstart.kernels.grouped_attention import DocumentGroups, grouped_attention, rotate

_MIN_PRODUCT_TOKENS = 96
"""The shortest text whose attention is faster by products in bf16 than by torch's kernel in fp32."""
_MAX_PRODUCT_TOKENS = 1024
"""From this length on, products are no faster, and their memory is quadratic."""
_MAX_PRODUCT_WEIGHTS = 2**24
"""The attention weights, over texts and heads, that are in memory at a time."""


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
    """True where a token (row) attends to another (column). None means that a row is one document; see `causal`."""
    causal: bool = True
    """True if a token attends only to those before it, where there is no mask."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine of the positions, in a shape that broadcasts over heads; None for absolute positions."""
    cu_seqlens: Tensor | None = None
    """Cumulative lengths of the documents, from 0 on, where all tokens lie in one row without padding."""
    max_seqlen: int = 0
    """An upper bound of the lengths in `cu_seqlens`."""
    lengths: tuple[int, ...] = ()
    """The lengths of documents that lie end to end and are attended one at a time."""
    groups: DocumentGroups | None = None
    """The same documents in groups of similar length, where the plan's attention is `grouped`."""
    window: int = -1
    """The attention window to each side in concatenated documents; -1 is unlimited. In other layouts it is part of
    `attn_mask`.
    """
    cache: KeyValueCache | None = None
    """The keys and values of earlier tokens; None in training, where a compiler would compute gradients for them."""


def split_qkv(
    x: Tensor, qkv_proj: nn.Linear, heads: int, plan: KernelPlan, rotary: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in the layout that the plan's attention takes: (B, H, T, K), or (N, H, K).

    Args:
        x: (B, T, D), or (1, N, D) for documents end to end.
        rotary: cosine and sine of the positions; queries and keys are rotated by them.
    """
    if plan.attention == "cudnn":  # rotary positions pair the halves of a head, which must not be padded then
        query, key, value = _split_qkv_padded(x, qkv_proj, heads, pad_heads=rotary is None, fused=plan.fused_residual)
    elif plan.packed and plan.attention == "by_text":
        qkv_N3HK = qkv_proj(x[0]).view(x.shape[1], 3, heads, -1)
        return _rotate_packed(qkv_N3HK, rotary)
    elif plan.attention in ("varlen", "by_text"):
        query, key, value = apply_linear(x[0], qkv_proj, plan).view(x.shape[1], 3, heads, -1).unbind(1)
    else:
        query, key, value = (_split_heads(part, heads) for part in apply_linear(x, qkv_proj, plan).chunk(3, dim=-1))
    if rotary is not None:
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
    return query, key, value


def project_and_attend_grouped(x: Tensor, qkv_proj: nn.Linear, heads: int, context: AttentionContext) -> Tensor:
    """Return what `split_qkv` and `attention` return together, for `grouped` attention: (1, N, D) to (1, N, H*K)."""
    assert context.groups is not None
    qkv_N3HK = apply_linear(x[0], qkv_proj, context.plan).view(x.shape[1], 3, heads, -1)
    mixed_ND = grouped_attention(qkv_N3HK, context.groups, context.rotary, causal=context.causal, window=context.window)
    return mixed_ND[None]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of each head against each other: products of two tokens then depend on their distance only."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


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


def project_out(x_BTD: Tensor, out_proj: nn.Linear, heads: int, plan: KernelPlan) -> Tensor:
    """Return the output projection (B, T, D) of merged heads. Its bias is left out where `deferred_bias` returns it."""
    if plan.attention != "cudnn":
        return apply_linear(x_BTD, out_proj, plan)
    dtype = x_BTD.dtype
    weight = out_proj.weight.to(dtype)
    missing = (x_BTD.shape[-1] - weight.shape[1]) // heads
    if missing:
        weight = F.pad(weight.view(len(weight), heads, -1), (0, missing)).flatten(1)
    has_bias = out_proj.bias is not None and deferred_bias(out_proj, plan) is None
    return F.linear(x_BTD, weight, out_proj.bias.to(dtype) if has_bias else None)


def deferred_bias(out_proj: nn.Linear, plan: KernelPlan) -> Tensor | None:
    """Return the bias that `project_out` leaves to the `add_norm` behind it, if any."""
    return out_proj.bias if plan.fused_residual and plan.attention == "cudnn" else None


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
    """Attend within each document separately: no mask, no padding. Neighbours of the same length share a call."""
    runs = [(length, len(list(texts))) for length, texts in groupby(context.lengths)]
    if dropout_p:  # the random numbers of a document are drawn for it alone
        runs = [(length, 1) for length in context.lengths]
    sizes, mixed = [length * count for length, count in runs], []
    splits = zip(*(torch.split(part, sizes) for part in (query, key, value)), strict=True)
    for (tokens, _), parts in zip(runs, splits, strict=True):
        text_query, text_key, text_value = (part.unflatten(0, (-1, tokens)).transpose(1, 2) for part in parts)
        attn_mask = None
        if 0 <= context.window < tokens - 1:
            attn_mask = sliding_window_mask(tokens, context.window, query.device, causal=context.causal)
        suits_products = _MIN_PRODUCT_TOKENS <= tokens < _MAX_PRODUCT_TOKENS and not context.causal
        if context.plan.packed and suits_products and attn_mask is None:
            count = max(1, _MAX_PRODUCT_WEIGHTS // (text_query.shape[1] * tokens**2))
            texts = zip(*(part.split(count) for part in (text_query, text_key, text_value)), strict=True)
            rows = torch.cat([_merge_heads(_attention_by_products(*some)) for some in texts])
        else:
            rows = _sdpa(text_query, text_key, text_value, attn_mask, causal=context.causal, dropout_p=dropout_p)
        mixed.append(rows.flatten(0, 1)[None])
    return torch.cat(mixed, dim=1)


def _attention_by_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention (B, H, T, K) of every token to every other by matrix products in bf16.

    A softmax does not change if the mean of the keys is subtracted from them, and smaller logits have smaller rounding errors.
    """
    tokens = query.shape[2]
    padding = (0, 0, 0, -tokens % PAD_TO_MULTIPLE_OF)
    parts = query * query.shape[-1] ** -0.5, key - key.mean(dim=2, keepdim=True), value
    low_query, low_key, low_value = (F.pad(x.to(torch.bfloat16), padding) for x in parts)
    logits = torch.matmul(low_query, low_key.mT)
    logits[..., tokens:] = -torch.inf
    return torch.matmul(torch.softmax(logits, dim=-1), low_value)[:, :, :tokens]


def _varlen(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
    """Attend within each document by a kernel that reads `cu_seqlens`: no mask, no padding."""
    from torch.nn.attention.varlen import varlen_attn  # this imports torch's compiler, which takes a second

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


def _rotate_packed(qkv_N3HK: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in fp32, queries and keys rotated together."""
    if rotary is not None:
        cos, sin = (part[:, None] for part in rotary)
        query, key = rotate(qkv_N3HK[:, :2], cos, sin).unbind(1)
        return query, key, qkv_N3HK[:, 2].float()
    query, key, value = qkv_N3HK.float().unbind(1)
    return query, key, value


def _split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    return x_BTD.view(*x_BTD.shape[:-1], heads, -1).transpose(1, 2)


def _merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(-2)


def _split_qkv_padded(
    x_BTD: Tensor, qkv_proj: nn.Linear, heads: int, *, pad_heads: bool, fused: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = autocast_dtype(x_BTD)
    weight, bias = qkv_proj.weight.to(dtype), None if qkv_proj.bias is None else qkv_proj.bias.to(dtype)
    missing = -(len(weight) // 3 // heads) % HEAD_MULTIPLE if pad_heads else 0
    if missing:
        weight = F.pad(weight.view(3 * heads, -1, weight.shape[1]), (0, 0, 0, missing)).flatten(0, 1)
        bias = None if bias is None else F.pad(bias.view(3 * heads, -1), (0, missing)).flatten()
    parts = _SplitQKV.apply(x_BTD.to(dtype), weight, bias, fused)  # type: ignore[no-untyped-call]
    query, key, value = (_split_heads(part, heads) for part in parts)
    return query, key, value


class _SplitQKV(torch.autograd.Function):
    """A linear layer with its output in three parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.fused = bias is not None, fused
        return F.linear(x, weight, bias).chunk(3, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        query, key, value = (grad.contiguous() for grad in grads)
        if ctx.fused and ctx.has_bias:
            grad, sums = concat_sum(query, key, value)
        else:
            grad = (_concat_op if torch.compiler.is_compiling() else _concat)(query, key, value)
            sums = grad.flatten(0, -2).sum(dim=0) if ctx.has_bias else None
        grad_weight = grad.flatten(0, -2).T @ x.flatten(0, -2)
        return grad @ weight, grad_weight, None if sums is None else sums.to(weight.dtype), None


# opaque to the compiler


@torch.library.custom_op("headstart::concat_sum", mutates_args=())
def concat_sum(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the concatenation of three tensors and the sum of each of its columns in fp32."""
    if query.is_cuda:
        from headstart.kernels.triton import elementwise as triton_elementwise

        return triton_elementwise.concat_sum(query, key, value)
    out = torch.cat((query, key, value), dim=-1)
    return out, out.float().flatten(0, -2).sum(dim=0)


@concat_sum.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    width = 3 * query.shape[-1]
    return query.new_empty(*query.shape[:-1], width), query.new_empty(width, dtype=torch.float32)


def _concat(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat((query, key, value), dim=-1)


_concat_op = torch.library.custom_op("headstart::concat", _concat, mutates_args=())
_concat_op.register_fake(_concat)
