"""The network without a task: ids in, hidden states out. What moves from the language model to the classifier.

B batch, T tokens, D width, V vocabulary.
"""

import math
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headstart.config import ModelConfig, Visibility
from headstart.model.attention import KeyValues, View, nearby, visible, wants_cudnn
from headstart.model.blocks import BLOCKS, ClassicBlock
from headstart.model.positions import angles, places, sinusoids
from headstart.model.stock import StockBlock, start_small, stock_norm
from headstart.model.stream import MOST_COLUMNS, Hidden, has_kernels, looked_up, normed, split
from headstart.model.table import Table
from headstart.model.thought import has_tiles

_MOST_VERSIONS = 32
"""Of a layer that is compiled: for learning and not, for whole rows and documents between bounds, and so on."""


class Backbone(nn.Module):
    """Embedding, positions and layers; the modern kind has a norm at the end, a stock model what its settings say."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.modern = config.block == "modern"
        self.embedding = Table(vocab_size, config.width)
        self.norm: nn.Module = nn.RMSNorm(config.width, eps=config.norm_epsilon) if self.modern else nn.Identity()
        if config.stock is None:
            self.layers = nn.ModuleList(BLOCKS[config.block](config) for _ in range(config.depth))
        else:
            self.positions = nn.Embedding(config.stock.positions, config.width) if config.stock.positions else None
            self.first_norm = stock_norm(config) if config.stock.embedding_norm else nn.Identity()
            self.layers = nn.ModuleList(StockBlock(config, place) for place in range(config.depth))
            self.norm = stock_norm(config) if config.stock.final_norm else self.norm
        self.compiled = False
        self.recompute = False
        """Whether what is inside a layer is worked out again on the way back, which saves memory, instead of being kept."""
        self.recorded = False
        """Whether steps are recorded as CUDA graphs: attention is torch's own choice then, whatever the rows are like."""

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        visibility: Visibility = "causal",
        bounds: Tensor | None = None,
        real: Tensor | None = None,
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
        if bounds is not None and self._has_kernel(ids_BT):
            return self._between_bounds(ids_BT, visibility, bounds, real)
        if lengths:
            return self._one_by_one(ids_BT, visibility, lengths)
        causal = visibility == "causal"
        if segments_BT is None and (causal or self._unmasked(ids_BT)):
            positions, view = torch.arange(ids_BT.shape[1], device=ids_BT.device), View(None, causal=causal)
        else:
            segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            positions, view = places(segments_BT), View(visible(segments_BT, visibility))
        steady = view.seen is None and self._steady(ids_BT)
        return self._through(ids_BT, positions, replace(view, steady=steady, fused=self._streams(ids_BT)))

    def through(self, ids_BT: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor:
        """Hidden states of tokens at given places (T, or B, T) that see what `visible` says, or None: those before them."""
        return self._through(ids_BT, positions, View(seen))

    def _through(self, ids_BT: Tensor, positions: Tensor, view: View) -> Tensor:
        return self._through_layers(self._embed(ids_BT, positions), self._views(view, positions))

    def _one_by_one(self, ids_BT: Tensor, visibility: Visibility, lengths: tuple[int, ...]) -> Tensor:
        """Documents end to end, without padding, and back in rows."""
        width = ids_BT.shape[1]
        spans = (torch.arange(row * width, row * width + size) for row, size in enumerate(lengths))
        real = torch.cat(tuple(spans)).to(ids_BT.device)
        positions_N = real % width
        hidden = self._embed(ids_BT.flatten()[real][None], positions_N)
        views = self._views(View(None, causal=visibility == "causal", lengths=lengths), positions_N)
        return _back_in_rows(self._through_layers(hidden, views)[0], real, ids_BT)

    def _views(self, view: View, positions: Tensor) -> list[View]:
        """What each layer is told: the same, unless some of them see what is near only."""
        stock, flat = self.config.stock, view.bounds is not None or bool(view.lengths)
        base = self.config.rotary_base
        if view.fused:
            view = replace(view, inside=has_tiles(positions.device, self.config.width, self.config.feedforward))
        whole = replace(view, rotary=self._rotary(positions, base, flat=flat))
        if stock is None or not stock.local_layers:
            return [whole] * len(self.layers)
        seen = None
        if not flat:
            near_TT = nearby(positions.shape[-1], stock.window, positions.device, causal=view.seen is None)
            seen = near_TT if view.seen is None else view.seen & near_TT
        rotary = self._rotary(positions, stock.local_base, flat=flat)
        local = replace(view, seen=seen, rotary=rotary, window=stock.window)
        return [local if place in stock.local_layers else whole for place in range(len(self.layers))]

    def _through_layers(self, embedded: Tensor, views: list[View], *, changing: bool = False) -> Tensor:
        again = self.recompute and torch.is_grad_enabled()
        fused = any(view.fused for view in views)
        hidden: Hidden = split(embedded, owed=getattr(self.layers[0], "owes", False)) if fused else embedded
        if changing:
            _say_dynamic(hidden, [view.rotary for view in views])
        for layer, view in zip(self.layers, views, strict=True):
            hidden = checkpoint(layer, hidden, view, use_reentrant=False)[0] if again else layer(hidden, view)[0]
        return normed(hidden, self.norm, fused=fused, kind=embedded.dtype)[1]

    def _streams(self, ids_BT: Tensor) -> bool:
        """Whether layers are normed first, and have own kernels for what is between their products."""
        first = self.modern or (self.config.stock is not None and self.config.stock.norm_first)
        return first and self._fused(ids_BT)

    def _fused(self, ids_BT: Tensor) -> bool:
        """Whether own kernels take part in learning: layers are compiled, on a GPU, and products are of short numbers."""
        learns = self.training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
        fits = self.compiled and ids_BT.is_cuda and self.config.width <= MOST_COLUMNS
        return fits and learns and has_kernels(ids_BT.device)

    def _unmasked(self, ids_BT: Tensor) -> bool:
        """Whether rows that are one document each can be read both ways without a mask: a GPU's kernels are faster so."""
        return ids_BT.is_cuda and not (self.config.stock and self.config.stock.local_layers)

    def _steady(self, ids_BT: Tensor) -> bool:
        """Whether cuDNN may read these rows: trained on in bf16, and as long as most rows of the run will be."""
        config = self.config
        drops = config.block == "classic" and config.dropout > 0
        local = config.stock is not None and bool(config.stock.local_layers)
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

    def _between_bounds(self, ids_BT: Tensor, visibility: Visibility, bounds: Tensor, real: Tensor | None) -> Tensor:
        """All rows as one, without padding if `real` tells it, and back."""
        ids_N = ids_BT.flatten() if real is None else ids_BT.flatten()[real]
        index_N = torch.arange(len(ids_N), device=ids_N.device)
        # a place counts from the last bound at or before it
        starts_N = bounds[torch.searchsorted(bounds, index_N, right=True, out_int32=True) - 1]
        positions_N = index_N - starts_N
        # the context, not the longest here: a bound that stays the same is compiled once
        longest = max(self.config.context, ids_BT.shape[1])
        view = View(None, None, bounds, longest, visibility == "causal", fused=self._streams(ids_BT))
        views = self._views(view, positions_N)
        changing = self.compiled and real is not None
        hidden_ND = self._through_layers(self._embed(ids_N[None], positions_N), views, changing=changing)[0]
        return hidden_ND.view(*ids_BT.shape, -1) if real is None else _back_in_rows(hidden_ND, real, ids_BT)

    def compile_layers(self) -> None:
        """Let torch compile the layer, once for all of them: seconds where the whole network would take a minute."""
        self.compiled = True
        # a teacher's layers, and rows of another kind, are further versions of the same code: one too many stays as it was
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_VERSIONS)
        for layer in self.layers:
            layer.compile()

    def extend(self, ids_BT: Tensor, past: list[KeyValues] | None) -> tuple[Tensor, list[KeyValues]]:
        """Hidden states of new tokens that follow those already in `past`, causally; for generation."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        views = self._views(View(None, remember=True), positions)
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
        learned = self.positions if self.config.stock is not None else None
        if loose:
            at = (None, None) if learned is None else (positions, learned.weight)
            hidden_BTD = looked_up(short, self.embedding.weight, *at)
        else:
            hidden_BTD = self.embedding(short) if learned is None else self.embedding(short) + learned(positions)
        if self.config.stock is not None:
            hidden_BTD = self.first_norm(hidden_BTD)
        elif not self.modern:
            hidden_BTD = hidden_BTD * math.sqrt(self.config.width) + sinusoids(positions, self.config.width)
        return F.dropout(hidden_BTD, self.config.dropout, self.training)

    def _rotary(self, positions: Tensor, base: float, *, flat: bool) -> tuple[Tensor, Tensor] | None:
        config = self.config
        if config.block == "classic" or (config.stock is not None and config.stock.positions):
            return None
        cos, sin = angles(positions, config.width // config.heads, base)
        # positions of a row (B, T) need a place for the heads; positions that all rows share (T) do not
        return (cos[:, None], sin[:, None]) if positions.ndim == 2 and not flat else (cos, sin)


def _back_in_rows(hidden_ND: Tensor, real: Tensor, ids_BT: Tensor) -> Tensor:
    """Hidden states of real tokens where they stand, those of padding zero."""
    rows = hidden_ND.new_zeros(ids_BT.numel(), hidden_ND.shape[1]).index_copy(0, real, hidden_ND)
    return rows.view(*ids_BT.shape, -1)


def _say_dynamic(hidden: Hidden, rotaries: list[tuple[Tensor, Tensor] | None]) -> None:
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
        if config.stock is not None:
            start_small(backbone)
            return backbone
        if backbone.modern:
            nn.init.normal_(backbone.embedding.weight, std=0.02)
        else:
            nn.init.uniform_(backbone.embedding.weight, -0.1, 0.1)
        for layer in backbone.layers:
            cast(ClassicBlock, layer).start()
    return backbone
