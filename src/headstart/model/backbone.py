"""The network without a task: ids in, hidden states out. What moves from the language model to the classifier.

B batch, T tokens, D width, V vocabulary.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headstart.config import ModelConfig, Visibility
from headstart.model.attention import KeyValues, View, visible
from headstart.model.blocks import BLOCKS, ClassicBlock
from headstart.model.positions import angles, places, sinusoids


class Backbone(nn.Module):
    """Embedding, positions and layers; the modern kind has a norm at the end."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.modern = config.block == "modern"
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList(BLOCKS[config.block](config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon) if self.modern else nn.Identity()
        self.compiled = False
        self.recompute = False
        """Whether what is inside a layer is worked out again on the way back, which saves memory, instead of being kept."""

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        visibility: Visibility = "causal",
        bounds: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of every position.

        Args:
            segments_BT: the document each token belongs to, documents lying end to end; padding is PADDING. None says
                that a row is one document, padded on the right if at all: under `causal` nothing real sees padding.
            bounds: the same as cumulative lengths over all rows in turn: where a kernel for that is at hand, it is used.
            real: with bounds, the flat places of the tokens that are not padding; padding then costs nothing, and its
                hidden states are zero.
        """
        if bounds is not None and self._has_kernel(ids_BT):
            return self._between_bounds(ids_BT, visibility, bounds, real)
        if segments_BT is None and visibility == "causal":
            positions, seen = torch.arange(ids_BT.shape[1], device=ids_BT.device), None
        else:
            segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            positions, seen = places(segments_BT), visible(segments_BT, visibility)
        return self.through(ids_BT, positions, seen)

    def through(self, ids_BT: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor:
        """Hidden states of tokens at given places (T, or B, T) that see what `visible` says, or None: those before them."""
        view = View(seen, self._rotary(positions))
        hidden_BTD = self._embed(ids_BT, positions)
        for layer in self.layers:
            hidden_BTD = self._through_layer(layer, hidden_BTD, view)
        return cast(Tensor, self.norm(hidden_BTD))

    def _through_layer(self, layer: nn.Module, hidden: Tensor, view: View) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(layer, hidden, view, use_reentrant=False)[0])
        return cast(Tensor, layer(hidden, view)[0])

    def _has_kernel(self, ids_BT: Tensor) -> bool:
        """Whether attention between bounds can run here: its kernel wants CUDA, bf16 and round heads, and drops nothing."""
        config = self.config
        drops = not self.modern and self.training and config.dropout > 0
        return (
            ids_BT.is_cuda and torch.is_autocast_enabled("cuda") and not drops and config.width // config.heads % 8 == 0
        )

    def _between_bounds(self, ids_BT: Tensor, visibility: Visibility, bounds: Tensor, real: Tensor | None) -> Tensor:
        """All rows as one, without padding if `real` tells it, and back."""
        ids_N = ids_BT.flatten() if real is None else ids_BT.flatten()[real]
        index_N = torch.arange(len(ids_N), device=ids_N.device)
        # a place counts from the last bound at or before it
        starts_N = bounds[torch.searchsorted(bounds, index_N, right=True, out_int32=True) - 1]
        positions_N = index_N - starts_N
        rotary = self._angles(positions_N) if self.modern else None
        # the context, not the longest here: a bound that stays the same is compiled once
        view = View(None, rotary, bounds, max(self.config.context, ids_BT.shape[1]), visibility == "causal")
        hidden = self._embed(ids_N[None], positions_N)
        if self.compiled and real is not None:
            _say_dynamic(hidden, rotary)
        for layer in self.layers:
            hidden = self._through_layer(layer, hidden, view)
        hidden_ND = cast(Tensor, self.norm(hidden))[0]
        if real is not None:
            hidden_ND = hidden_ND.new_zeros(ids_BT.numel(), hidden_ND.shape[1]).index_copy(0, real, hidden_ND)
        return hidden_ND.view(*ids_BT.shape, -1)

    def compile_layers(self) -> None:
        """Let torch compile the layer, once for all of them: seconds where the whole network would take a minute."""
        self.compiled = True
        for layer in self.layers:
            layer.compile()

    def extend(self, ids_BT: Tensor, past: list[KeyValues] | None) -> tuple[Tensor, list[KeyValues]]:
        """Hidden states of new tokens that follow those already in `past`, causally; for generation."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        view = View(None, self._rotary(positions))
        hidden_BTD = self._embed(ids_BT, positions)
        present = []
        for index, layer in enumerate(self.layers):
            hidden_BTD, key_values = layer(hidden_BTD, view, past[index] if past else None)
            present.append(key_values)
        return cast(Tensor, self.norm(hidden_BTD)), present

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        hidden_BTD: Tensor = self.embedding(ids_BT)
        if not self.modern:
            hidden_BTD = hidden_BTD * math.sqrt(self.config.width) + sinusoids(positions, self.config.width)
        return F.dropout(hidden_BTD, self.config.dropout, self.training)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return angles(positions, self.config.width // self.config.heads, self.config.rotary_base)

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        if not self.modern:
            return None
        cos, sin = self._angles(positions)
        # positions of a row (B, T) need a place for the heads; positions that all rows share (T) do not
        return (cos[:, None], sin[:, None]) if positions.ndim == 2 else (cos, sin)


def _say_dynamic(hidden_1ND: Tensor, rotary: tuple[Tensor, Tensor] | None) -> None:
    """Tell the compiler that the number of tokens changes from call to call, before it finds out by compiling again."""
    torch._dynamo.mark_dynamic(hidden_1ND, 1)
    for table_NK in rotary or ():
        torch._dynamo.mark_dynamic(table_NK, 0)


def build_backbone(config: ModelConfig, vocab_size: int, seed: int) -> Backbone:
    """A backbone with fresh weights that follow from the seed alone, whatever else has drawn random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(config, vocab_size)
        if backbone.modern:
            nn.init.normal_(backbone.embedding.weight, std=0.02)
        else:
            nn.init.uniform_(backbone.embedding.weight, -0.1, 0.1)
        for layer in backbone.layers:
            cast(ClassicBlock, layer).start()
    return backbone
