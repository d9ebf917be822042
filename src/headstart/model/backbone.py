"""The network without a task: ids in, hidden states out. What moves from the language model to the classifier.

B batch, T tokens, D width, V vocabulary.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig, Visibility
from headstart.model.attention import KeyValues, View, visible
from headstart.model.blocks import BLOCKS, NORM_EPSILON, ClassicBlock
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
        self.norm = nn.RMSNorm(config.width, eps=NORM_EPSILON) if self.modern else nn.Identity()

    def forward(self, ids_BT: Tensor, segments_BT: Tensor | None = None, visibility: Visibility = "causal") -> Tensor:
        """Hidden states of every position.

        Args:
            segments_BT: the document each token belongs to, documents lying end to end; padding is PADDING. None says
                that a row is one document, padded on the right if at all: under `causal` nothing real sees padding.
        """
        if segments_BT is None and visibility == "causal":
            positions, seen = torch.arange(ids_BT.shape[1], device=ids_BT.device), None
        else:
            segments_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            positions, seen = places(segments_BT), visible(segments_BT, visibility)
        view = View(seen, self._rotary(positions))
        hidden_BTD = self._embed(ids_BT, positions)
        for layer in self.layers:
            hidden_BTD, _ = layer(hidden_BTD, view)
        return cast(Tensor, self.norm(hidden_BTD))

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

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        if not self.modern:
            return None
        cos, sin = angles(positions, self.config.width // self.config.heads)
        # positions of a row (B, T) need a place for the heads; positions that all rows share (T) do not
        return (cos[:, None], sin[:, None]) if positions.ndim == 2 else (cos, sin)


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
