"""Self-attention, its masks, and rotary positions.

Where a token stands in its document: as a vector to add, or as an angle to turn by. Both hold at any length.

Who sees whom, and attention over those who are seen.

B batch, T tokens of the query, S tokens that may be seen, D width, H heads, K width of one head.
"""

from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from headstart.config.schema import AttentionDirection
from headstart.kernels.qkv import HEAD_MULTIPLE, project_out, split_qkv


def rotary_cos_sin(positions: Tensor, width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of rotary positions for heads of `width`, each half repeated, one row a position."""
    rates = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    turns = positions.to(torch.float32)[..., None] * rates
    both = torch.cat((turns, turns), dim=-1)
    return both.cos(), both.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the halves of each head's vector against each other: then a product of two depends on their distance alone."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


KeyValues = tuple[Tensor, Tensor]


def sliding_window_mask(tokens: int, window: int, device: torch.device, *, causal: bool) -> Tensor:
    """Which token of a row may look at which when none sees further than `window` to a side, as bool TT."""
    index_T = torch.arange(tokens, device=device)
    apart_TT = index_T[:, None] - index_T
    return (apart_TT <= window) & (apart_TT >= (0 if causal else -window))


def build_attention_mask(segments_BT: Tensor, attention: AttentionDirection) -> Tensor:
    """Which token (row) may look at which (column), as bool B1TT.

    Tokens see their own segment only, and under `causal` nothing to their right. Padding is a segment like any other
    here: padding sees padding, so that no row is empty and the softmax never divides nothing by nothing.
    """
    seen_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    if attention == "causal":
        seen_BTT = seen_BTT & torch.ones_like(seen_BTT[0]).tril()
    return seen_BTT[:, None]


@dataclass(frozen=True)
class AttentionContext:
    """What every layer is told about the rows in hand."""

    attn_mask: Tensor | None
    """From `visible`; None means one document a row, and `causal` says which of its tokens are seen."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine of the tokens' places, for networks that turn instead of adding."""
    cu_seqlens: Tensor | None = None
    """Where each document begins when all tokens lie in one row without padding, and where the last one ends."""
    max_seqlen: int = 0
    """No document between bounds is longer."""
    causal: bool = True
    """What `seen` would say of documents between bounds, or of rows that are one document."""
    window: int = -1
    """Of documents end to end, how far a token sees to each side; -1 is all the way. Elsewhere `seen` says it."""
    lengths: tuple[int, ...] = ()
    """Of documents end to end that are looked at one by one, where no kernel reads between bounds."""
    steady: bool = False
    """Whether cuDNN's attention is wanted, for which every new shape of rows is planned anew; see `attend`."""
    fused: bool = False
    """Whether a GPU learns with compiled layers, and `stream.py` has kernels for what is between its products."""
    inside: bool = False
    """Whether it is one that makes products with an activation inside, for which `thought.py` has kernels."""
    remember: bool = False
    """Whether keys and values are handed back, for tokens to come. While learning they are not: they would be results too,
    and a compiler would add gradients to them that are all zero."""


CUDNN = True
"""Whether rows of one steady shape are read by cuDNN's attention where it is the fastest."""
_WIDEST_HEAD, _HOPPER = 128, 9


def wants_cudnn(device: torch.device, head: int) -> bool:
    """Whether cuDNN's attention is there and worth taking: on Hopper; elsewhere torch chooses well by itself."""
    return CUDNN and device.type == "cuda" and _cudnn_supports(device, head)


@cache
def _cudnn_supports(device: torch.device, head: int) -> bool:
    """Whether cuDNN takes heads of this width, there and back; tried once, on zeros."""
    if head > _WIDEST_HEAD or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return False
    parts = [
        torch.zeros(1, 2, 64, head, device=device, dtype=torch.bfloat16).requires_grad_()
        for _ in ("query", "key", "value")
    ]
    try:
        with torch.enable_grad():
            mixed = attend(*parts, causal=True)
            mixed.backward(torch.zeros_like(mixed))  # type: ignore[no-untyped-call]
    except RuntimeError:  # an older cuDNN, or none
        return False
    return True


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None = None) -> Tensor:
    """Attention of whole rows in bf16, by cuDNN's kernel; heads of an odd width are filled up with zeros for it.

    Args:
        scale: of the products, if heads are not as wide as they seem.
    """
    width = query.shape[-1]
    missing = -width % HEAD_MULTIPLE
    if missing:
        query, key, value = (F.pad(part, (0, missing)) for part in (query, key, value))
    mixed: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale or width**-0.5
    )[0]
    return mixed[..., :width] if missing else mixed


class SelfAttention(nn.Module):
    """Multi-head self-attention, as `torch.nn.MultiheadAttention` computes it; rotary if the view says so."""

    def __init__(self, width: int, heads: int, dropout: float, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(
        self, x_BTD: Tensor, view: AttentionContext, past: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues | None]:
        """Attend. Returns keys and values for the next call too, if the view asks for them."""
        if view.cu_seqlens is not None:
            return self._between_bounds(x_BTD, view, view.cu_seqlens), None
        if view.lengths:
            return self._one_by_one(x_BTD, view), None
        if view.steady:
            return self._steadily(x_BTD, view), None
        query, key, value = (self._split(part) for part in self.qkv_proj(x_BTD).chunk(3, dim=-1))
        if view.rotary is not None:
            query, key = apply_rotary(query, *view.rotary), apply_rotary(key, *view.rotary)
        attn_mask = view.attn_mask
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
            if query.shape[2] > 1:  # is_causal would align a short query with the start of the keys
                ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
                attn_mask = ones.tril(diagonal=key.shape[2] - query.shape[2])
        causal = attn_mask is None and past is None and view.causal
        mixed_BTD = self._mixed(query, key, value, attn_mask, causal=causal)
        return self.out_proj(mixed_BTD), (key, value) if view.remember else None

    def _steadily(self, x_BTD: Tensor, view: AttentionContext) -> Tensor:
        """The same by cuDNN, for whole rows."""
        query, key, value = split_qkv(x_BTD, self.qkv_proj, self.heads, fill=view.rotary is None, fused=view.fused)
        if view.rotary is not None:
            query, key = apply_rotary(query, *view.rotary), apply_rotary(key, *view.rotary)
        scale = (x_BTD.shape[-1] // self.heads) ** -0.5
        mixed = attend(query, key, value, causal=view.causal, scale=scale)
        return project_out(mixed, self.out_proj, biased=self.owed(view) is None)

    def owed(self, view: AttentionContext) -> Tensor | None:
        """A bias that is not in the result yet: `stream.py` adds it where it reads the result anyway."""
        return self.out_proj.bias if view.fused and view.steady else None

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        mixed_BHTK = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal
        )
        return _merge_heads(mixed_BHTK)

    def _one_by_one(self, x_1ND: Tensor, view: AttentionContext) -> Tensor:
        """The same over documents end to end, each by itself: no mask, no padding."""
        every = self._apart(x_1ND, view)
        lengths, mixed = list(view.lengths), []
        for parts in zip(*(torch.split(part, lengths) for part in every), strict=True):
            query, key, value = (part.transpose(0, 1)[None] for part in parts)
            tokens, attn_mask = query.shape[2], None
            if 0 <= view.window < tokens - 1:
                attn_mask = sliding_window_mask(tokens, view.window, query.device, causal=view.causal)
            mixed.append(self._mixed(query, key, value, attn_mask, causal=view.causal and attn_mask is None))
        projected: Tensor = self.out_proj(torch.cat(mixed, dim=1))
        return projected

    def _apart(self, x_1ND: Tensor, view: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of documents end to end (N, H, K)."""
        query, key, value = self.qkv_proj(x_1ND[0]).view(x_1ND.shape[1], 3, self.heads, -1).unbind(1)
        if view.rotary is not None:
            cos_N1K, sin_N1K = (part[:, None] for part in view.rotary)
            query, key = apply_rotary(query, cos_N1K, sin_N1K), apply_rotary(key, cos_N1K, sin_N1K)
        return query, key, value

    def _between_bounds(self, x_1ND: Tensor, view: AttentionContext, cu_seqlens: Tensor) -> Tensor:
        """The same over documents end to end, by a kernel that never looks across a bound: no mask, no padding."""
        query, key, value = self._apart(x_1ND, view)
        # fp32 comes from scoring in TF32, whose products are as exact as those of fp16 (numbers up to 65,504)
        given = query.dtype
        low = torch.float16 if given == torch.float32 and query.is_cuda else given
        mixed_NHK = cast(
            Tensor,
            varlen_attn(
                query.to(low),
                key.to(low),
                value.to(low),
                cu_seqlens,
                cu_seqlens,
                view.max_seqlen,
                view.max_seqlen,
                window_size=(view.window, 0) if view.causal else (view.window, view.window),
            ),
        )
        projected: Tensor = self.out_proj(mixed_NHK.to(given).flatten(-2))[None]
        return projected

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*x_BTD.shape[:-1], self.heads, -1).transpose(1, 2)


def _merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(-2)
