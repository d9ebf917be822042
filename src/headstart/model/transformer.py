"""The Transformer: positions, the three kinds of blocks, and the backbone.

Where a token stands in its document: as a vector to add, or as an angle to turn by. Both hold at any length.

One layer of a model from elsewhere, made of what its settings say; and what its heads begin with.

B batch, T tokens, D width.

One layer of the network, in two kinds.

B batch, T tokens, D width.

The network without a task: ids in, hidden states out. What moves from the language model to the classifier.

B batch, T tokens, D width, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headstart.config.schema import AttentionDirection, GenericConfig, ModelConfig
from headstart.kernels.dispatch import MAX_COLUMNS, has_kernels
from headstart.kernels.embedding import CachedGradEmbedding, embedding_lookup
from headstart.kernels.mlp import mlp, supports_fused_mlp
from headstart.kernels.residual_norm import Hidden, joined, normed, split
from headstart.model.attention import (
    AttentionContext,
    KeyValues,
    SelfAttention,
    build_attention_mask,
    rotary_cos_sin,
    sliding_window_mask,
    wants_cudnn,
)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos of the same; one row a position.

    A formula, not a table: a position that training never reached has its vector all the same.

    >>> sinusoids(torch.tensor([0]), 4)
    tensor([[0., 1., 0., 1.]])
    """
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10000.0) / width))
    angles = positions.to(torch.float32)[..., None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def positions_in_segments(segments_BT: Tensor) -> Tensor:
    """The place of each token within its own segment, counted from 0, when segments lie end to end in a row.

    >>> positions_in_segments(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    tensor([[0, 1, 0, 1, 2, 0]])
    """
    index_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    return index_T - (index_T * starts_BT).cummax(dim=1).values


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def generic_config(config: ModelConfig) -> GenericConfig:
    """The settings that a stock model has, and no other."""
    assert config.generic is not None
    return config.generic


def generic_norm(config: ModelConfig) -> nn.LayerNorm:
    """A norm as this model has them."""
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=generic_config(config).norm_bias)


class GenericBlock(nn.Module):
    """Attention and two matrices, normed before or after, gated or not."""

    def __init__(self, config: ModelConfig, place: int = 0) -> None:
        super().__init__()
        generic = generic_config(config)
        normed = place == 0 and generic.norm_first and generic.embedding_norm
        self.norm1 = nn.Identity() if normed else generic_norm(config)
        # nothing is dropped inside attention: the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=generic.bias)
        self.norm2 = generic_norm(config)
        self.gate = nn.Linear(config.width, config.feedforward, bias=generic.bias) if generic.gated else None
        self.up = nn.Linear(config.width, config.feedforward, bias=generic.bias)
        self.down = nn.Linear(config.feedforward, config.width, bias=generic.bias)
        self.norm_first, self.dropout = generic.norm_first, config.dropout
        self.activation, self.activate = generic.activation, _ACTIVATIONS[generic.activation]
        self.widens = self.gate is None and self.activation in ("gelu", "gelu_tanh")
        """Whether the two matrices and what is between them are what `thought` does."""
        self.owes = self.widens and generic.bias and not config.dropout
        """Whether a bias of the last matrix may be added later; dropout is for it too."""

    def forward(
        self, x: Hidden, view: AttentionContext, past: KeyValues | None = None
    ) -> tuple[Hidden, KeyValues | None]:
        """Read the tokens that may be seen, then think about each alone. Returns summands if the view says `fused`."""
        if self.norm_first:
            x_BTD, before = normed(x, self.norm1, fused=view.fused)
            attended, present = self.attention(before, view, past)
            owed = self.attention.owed(view)
            if owed is not None and self.dropout:
                attended, owed = attended + owed, None
            x_BTD, before = normed((x_BTD, self._drop(attended), owed), self.norm2, fused=view.fused)
            narrow = self._drop(self._think(before, view))
            summands = x_BTD, narrow, self.down.bias if self.owes else None
            return summands if view.fused else x_BTD + narrow, present
        x_BTD = joined(x)
        attended, present = self.attention(x_BTD, view, past)
        x_BTD = self.norm1(x_BTD + self._drop(attended))
        return self.norm2(x_BTD + self._drop(self._think(x_BTD, view))), present

    def _think(self, x_BTD: Tensor, view: AttentionContext) -> Tensor:
        if view.fused and self.widens:
            tanh = self.activation == "gelu_tanh"
            return mlp(x_BTD, self.up, self.down, tanh=tanh, owes=self.owes, inside=view.inside)
        up = self.up(x_BTD)
        narrow: Tensor = self.down(self.activate(up) if self.gate is None else self.activate(self.gate(x_BTD)) * up)
        return narrow

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transform(nn.Module):
    """A matrix, an activation and a norm: what the heads of some models begin with."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        generic = generic_config(config)
        self.dense = nn.Linear(config.width, config.width, bias=generic.transform_bias)
        self.norm = generic_norm(config)
        self.activate = _ACTIVATIONS[generic.transform_activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """The same number of vectors, of the same width."""
        ready: Tensor = self.norm(self.activate(self.dense(hidden)))
        return ready


def init_normal(module: nn.Module) -> None:
    """Give every matrix small normal numbers and every bias zeros; norms are as they were born."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class ClassicBlock(nn.Module):
    """Post-norm: attention, add, norm; two matrices with a ReLU between, add, norm. Biases everywhere."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.dropout, bias=True)
        self.norm1 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.feedforward)
        self.down = nn.Linear(config.feedforward, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.dropout = config.dropout

    def forward(
        self, x_BTD: Tensor, view: AttentionContext, past: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues | None]:
        """Read the tokens that may be seen, then think about each alone."""
        attended, present = self.attention(x_BTD, view, past)
        x_BTD = self.norm1(x_BTD + self._drop(attended))
        widened = self._drop(F.relu(self.up(x_BTD)))
        return self.norm2(x_BTD + self._drop(self.down(widened))), present

    def start(self) -> None:
        """As torch.nn.MultiheadAttention starts; the other matrices start as torch.nn.Linear does."""
        nn.init.xavier_uniform_(self.attention.qkv_proj.weight)
        nn.init.zeros_(self.attention.qkv_proj.bias)
        nn.init.zeros_(self.attention.out_proj.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class RMSNorm(nn.RMSNorm):
    """RMSNorm in fp32, whatever its weights came in: sharded layers travel in bf16, and hidden states stay in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale each token to a mean square of 1."""
        return F.rms_norm(x, self.normalized_shape, self.weight.float(), self.eps)


class ModernBlock(nn.Module):
    """Llama's: norm, attention, add; norm, two gated matrices and one back, add. No bias anywhere."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width, eps=config.norm_epsilon)
        # nothing is dropped inside attention: Llama's shells do not, and the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=False)
        self.norm2 = RMSNorm(config.width, eps=config.norm_epsilon)
        self.gate = nn.Linear(config.width, config.feedforward, bias=False)
        self.up = nn.Linear(config.width, config.feedforward, bias=False)
        self.down = nn.Linear(config.feedforward, config.width, bias=False)
        self.dropout = config.dropout

    def forward(
        self, x: Hidden, view: AttentionContext, past: KeyValues | None = None
    ) -> tuple[Hidden, KeyValues | None]:
        """Read the tokens that may be seen, then think about each alone. Returns summands if the view says `fused`."""
        x_BTD, before = normed(x, self.norm1, fused=view.fused)
        attended, present = self.attention(before, view, past)
        x_BTD, before = normed((x_BTD, self._drop(attended), None), self.norm2, fused=view.fused)
        thought = self._drop(self.down(F.silu(self.gate(before)) * self.up(before)))
        return (x_BTD, thought, None) if view.fused else x_BTD + thought, present

    def start(self) -> None:
        """Small normal numbers, as Llama's shells start."""
        for linear in (self.attention.qkv_proj, self.attention.out_proj, self.gate, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


BLOCKS: dict[str, type[ClassicBlock] | type[ModernBlock]] = {"classic": ClassicBlock, "modern": ModernBlock}


_RECOMPILE_LIMIT = 32
"""Of a layer that is compiled: for learning and not, for whole rows and documents between bounds, and so on."""


class Backbone(nn.Module):
    """Embedding, positions and layers; the modern kind has a norm at the end, a stock model what its settings say."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.modern = config.block == "modern"
        self.embedding = CachedGradEmbedding(vocab_size, config.width)
        self.norm: nn.Module = nn.RMSNorm(config.width, eps=config.norm_epsilon) if self.modern else nn.Identity()
        if config.generic is None:
            self.layers = nn.ModuleList(BLOCKS[config.block](config) for _ in range(config.depth))
        else:
            self.positions = nn.Embedding(config.generic.positions, config.width) if config.generic.positions else None
            self.embedding_norm = generic_norm(config) if config.generic.embedding_norm else nn.Identity()
            self.layers = nn.ModuleList(GenericBlock(config, place) for place in range(config.depth))
            self.norm = generic_norm(config) if config.generic.final_norm else self.norm
        self.compiled = False
        self.recompute = False
        """Whether what is inside a layer is worked out again on the way back, which saves memory, instead of being kept."""
        self.recorded = False
        """Whether steps are recorded as CUDA graphs: attention is torch's own choice then, whatever the rows are like."""

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        attention: AttentionDirection = "causal",
        cu_seqlens: Tensor | None = None,
        unpadded_indices: Tensor | None = None,
        lengths: tuple[int, ...] = (),
    ) -> Tensor:
        """Hidden states of every position.

        Args:
            segments_BT: the document each token belongs to, documents lying end to end; padding is PADDING. None says
                that a row is one document, padded on the right if at all: under `causal` nothing real sees padding.
            bounds: the same as cumulative lengths over all rows in turn: where a kernel for that is at hand, it is used.
            real: with bounds, the flat places of the tokens that are not padding; padding then costs nothing, and its
                hidden states are zero.
            lengths: each row is one document of so many tokens; documents are read one by one, and padding costs
                nothing either.
        """
        if cu_seqlens is not None and self._has_kernel(ids_BT):
            return self._between_bounds(ids_BT, attention, cu_seqlens, unpadded_indices)
        if lengths:
            return self._one_by_one(ids_BT, attention, lengths)
        causal = attention == "causal"
        if segments_BT is None and (causal or self._unmasked(ids_BT)):
            positions, view = torch.arange(ids_BT.shape[1], device=ids_BT.device), AttentionContext(None, causal=causal)
        else:
            segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            positions, view = (
                positions_in_segments(segments_BT),
                AttentionContext(build_attention_mask(segments_BT, attention)),
            )
        steady = view.attn_mask is None and self._steady(ids_BT)
        return self._through(ids_BT, positions, replace(view, steady=steady, fused=self._streams(ids_BT)))

    def through(self, ids_BT: Tensor, positions: Tensor, attn_mask: Tensor | None) -> Tensor:
        """Hidden states of tokens at given places (T, or B, T) that see what `visible` says, or None: those before them."""
        return self._through(ids_BT, positions, AttentionContext(attn_mask))

    def _through(self, ids_BT: Tensor, positions: Tensor, view: AttentionContext) -> Tensor:
        return self._through_layers(self._embed(ids_BT, positions), self._views(view, positions))

    def _one_by_one(self, ids_BT: Tensor, attention: AttentionDirection, lengths: tuple[int, ...]) -> Tensor:
        """Documents end to end, without padding, and back in rows."""
        width = ids_BT.shape[1]
        spans = (torch.arange(row * width, row * width + size) for row, size in enumerate(lengths))
        unpadded_indices = torch.cat(tuple(spans)).to(ids_BT.device)
        positions_N = unpadded_indices % width
        hidden = self._embed(ids_BT.flatten()[unpadded_indices][None], positions_N)
        views = self._views(AttentionContext(None, causal=attention == "causal", lengths=lengths), positions_N)
        return _pad_rows(self._through_layers(hidden, views)[0], unpadded_indices, ids_BT)

    def _views(self, view: AttentionContext, positions: Tensor) -> list[AttentionContext]:
        """What each layer is told: the same, unless some of them see what is near only."""
        generic, flat = self.config.generic, view.cu_seqlens is not None or bool(view.lengths)
        base = self.config.rotary_base
        if view.fused:
            view = replace(
                view, inside=supports_fused_mlp(positions.device, self.config.width, self.config.feedforward)
            )
        whole = replace(view, rotary=self._rotary(positions, base, flat=flat))
        if generic is None or not generic.local_layers:
            return [whole] * len(self.layers)
        attn_mask = None
        if not flat:
            near_TT = sliding_window_mask(
                positions.shape[-1], generic.window, positions.device, causal=view.attn_mask is None
            )
            attn_mask = near_TT if view.attn_mask is None else view.attn_mask & near_TT
        rotary = self._rotary(positions, generic.local_base, flat=flat)
        local = replace(view, attn_mask=attn_mask, rotary=rotary, window=generic.window)
        return [local if place in generic.local_layers else whole for place in range(len(self.layers))]

    def _through_layers(self, embedded: Tensor, views: list[AttentionContext], *, changing: bool = False) -> Tensor:
        again = self.recompute and torch.is_grad_enabled()
        fused = any(view.fused for view in views)
        hidden: Hidden = split(embedded, owed=getattr(self.layers[0], "owes", False)) if fused else embedded
        if changing:
            _mark_dynamic(hidden, [view.rotary for view in views])
        for layer, view in zip(self.layers, views, strict=True):
            hidden = checkpoint(layer, hidden, view, use_reentrant=False)[0] if again else layer(hidden, view)[0]
        return normed(hidden, self.norm, fused=fused, kind=embedded.dtype)[1]

    def _streams(self, ids_BT: Tensor) -> bool:
        """Whether layers are normed first, and have own kernels for what is between their products."""
        first = self.modern or (self.config.generic is not None and self.config.generic.norm_first)
        return first and self._fused(ids_BT)

    def _fused(self, ids_BT: Tensor) -> bool:
        """Whether own kernels take part in learning: layers are compiled, on a GPU, and products are of short numbers."""
        learns = self.training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
        fits = self.compiled and ids_BT.is_cuda and self.config.width <= MAX_COLUMNS
        return fits and learns and has_kernels(ids_BT.device)

    def _unmasked(self, ids_BT: Tensor) -> bool:
        """Whether rows that are one document each can be read both ways without a mask: a GPU's kernels are faster so."""
        return ids_BT.is_cuda and not (self.config.generic and self.config.generic.local_layers)

    def _steady(self, ids_BT: Tensor) -> bool:
        """Whether cuDNN may read these rows: trained on in bf16, and as long as most rows of the run will be."""
        config = self.config
        drops = config.block == "classic" and config.dropout > 0
        local = config.generic is not None and bool(config.generic.local_layers)
        trains = self.training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
        if self.recorded or drops or local or not trains or ids_BT.shape[1] != config.context:
            return False
        same_bits = torch.are_deterministic_algorithms_enabled()
        return not same_bits and wants_cudnn(ids_BT.device, config.width // config.heads)

    def _has_kernel(self, ids_BT: Tensor) -> bool:
        """Whether attention between bounds can run here: it wants CUDA, short numbers and round heads, and drops nothing.

        Numbers are short under autocast, and where nothing is learnt and products may be of TF32 (`Runtime.scoring`).
        Its gradients are added in whatever order they are ready: where the same bits are asked for, a mask does instead.
        """
        config = self.config
        drops = config.block == "classic" and self.training and config.dropout > 0
        scoring = not torch.is_grad_enabled() and torch.backends.cuda.matmul.allow_tf32
        short = torch.is_autocast_enabled("cuda") or scoring
        fits = ids_BT.is_cuda and short and config.width // config.heads % 8 == 0
        return fits and not drops and not torch.are_deterministic_algorithms_enabled()

    def _between_bounds(
        self, ids_BT: Tensor, attention: AttentionDirection, cu_seqlens: Tensor, unpadded_indices: Tensor | None
    ) -> Tensor:
        """All rows as one, without padding if `real` tells it, and back."""
        ids_N = ids_BT.flatten() if unpadded_indices is None else ids_BT.flatten()[unpadded_indices]
        index_N = torch.arange(len(ids_N), device=ids_N.device)
        # a place counts from the last bound at or before it
        starts_N = cu_seqlens[torch.searchsorted(cu_seqlens, index_N, right=True, out_int32=True) - 1]
        positions_N = index_N - starts_N
        # the context, not the longest here: a bound that stays the same is compiled once
        max_seqlen = max(self.config.context, ids_BT.shape[1])
        view = AttentionContext(None, None, cu_seqlens, max_seqlen, attention == "causal", fused=self._streams(ids_BT))
        views = self._views(view, positions_N)
        changing = self.compiled and unpadded_indices is not None
        hidden_ND = self._through_layers(self._embed(ids_N[None], positions_N), views, changing=changing)[0]
        return (
            hidden_ND.view(*ids_BT.shape, -1)
            if unpadded_indices is None
            else _pad_rows(hidden_ND, unpadded_indices, ids_BT)
        )

    def compile_layers(self) -> None:
        """Let torch compile the layer, once for all of them: seconds where the whole network would take a minute."""
        self.compiled = True
        # a teacher's layers, and rows of another kind, are further versions of the same code: one too many stays as it was
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _RECOMPILE_LIMIT)
        for layer in self.layers:
            layer.compile()

    def extend(self, ids_BT: Tensor, past: list[KeyValues] | None) -> tuple[Tensor, list[KeyValues]]:
        """Hidden states of new tokens that follow those already in `past`, causally; for generation."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        views = self._views(AttentionContext(None, remember=True), positions)
        hidden: Hidden = self._embed(ids_BT, positions)
        present = []
        for index, layer in enumerate(self.layers):
            hidden, key_values = layer(hidden, views[index], past[index] if past else None)
            present.append(key_values)
        return normed(hidden, self.norm, fused=False)[1], present

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        # short numbers are sorted twice as fast, which is how a GPU adds up the gradients of a table
        short = ids_BT.int() if ids_BT.is_cuda else ids_BT
        loose = self._fused(ids_BT) and not torch.are_deterministic_algorithms_enabled()
        learned = self.positions if self.config.generic is not None else None
        if loose:
            at = (None, None) if learned is None else (positions, learned.weight)
            hidden_BTD = embedding_lookup(short, self.embedding.weight, *at)
        else:
            hidden_BTD = self.embedding(short) if learned is None else self.embedding(short) + learned(positions)
        if self.config.generic is not None:
            hidden_BTD = self.embedding_norm(hidden_BTD)
        elif not self.modern:
            hidden_BTD = hidden_BTD * math.sqrt(self.config.width) + sinusoids(positions, self.config.width)
        return F.dropout(hidden_BTD, self.config.dropout, self.training)

    def _rotary(self, positions: Tensor, base: float, *, flat: bool) -> tuple[Tensor, Tensor] | None:
        config = self.config
        if config.block == "classic" or (config.generic is not None and config.generic.positions):
            return None
        cos, sin = rotary_cos_sin(positions, config.width // config.heads, base)
        # positions of a row (B, T) need a place for the heads; positions that all rows share (T) do not
        return (cos[:, None], sin[:, None]) if positions.ndim == 2 and not flat else (cos, sin)


def _pad_rows(hidden_ND: Tensor, unpadded_indices: Tensor, ids_BT: Tensor) -> Tensor:
    """Hidden states of real tokens where they stand, those of padding zero."""
    rows = hidden_ND.new_zeros(ids_BT.numel(), hidden_ND.shape[1]).index_copy(0, unpadded_indices, hidden_ND)
    return rows.view(*ids_BT.shape, -1)


def _mark_dynamic(hidden: Hidden, rotaries: list[tuple[Tensor, Tensor] | None]) -> None:
    """Tell the compiler that the number of tokens changes from call to call, before it finds out by compiling again."""
    for part_1ND in hidden[:2] if isinstance(hidden, tuple) else (hidden,):
        torch._dynamo.mark_dynamic(part_1ND, 1)
    for table_NK in {id(table): table for rotary in rotaries for table in rotary or ()}.values():
        torch._dynamo.mark_dynamic(table_NK, 0)


def build_backbone(config: ModelConfig, vocab_size: int, seed: int) -> Backbone:
    """A backbone with fresh weights that follow from the seed alone, whatever else has drawn random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(config, vocab_size)
        if config.generic is not None:
            init_normal(backbone)
            return backbone
        if backbone.modern:
            nn.init.normal_(backbone.embedding.weight, std=0.02)
        else:
            nn.init.uniform_(backbone.embedding.weight, -0.1, 0.1)
        for layer in backbone.layers:
            cast(ClassicBlock, layer).start()
    return backbone
