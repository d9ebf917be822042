"""The network without a task: ids in, hidden states out. What moves from the language model to the classifier.

B batch, T tokens, D width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.model.attention import KeyValues, SelfAttention, Visibility, visible
from headstart.model.positions import places, sinusoids


class Block(nn.Module):
    """One post-norm layer: attention, add, norm; two matrices with a ReLU between, add, norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.dropout)
        self.norm1 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.feedforward)
        self.down = nn.Linear(config.feedforward, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.dropout = config.dropout

    def forward(self, x_BTD: Tensor, seen: Tensor | None, past: KeyValues | None = None) -> tuple[Tensor, KeyValues]:
        """Read the tokens that may be seen, then think about each alone."""
        attended, present = self.attention(x_BTD, seen, past)
        x_BTD = self.norm1(x_BTD + self._drop(attended))
        widened = self._drop(F.relu(self.up(x_BTD)))
        return self.norm2(x_BTD + self._drop(self.down(widened))), present

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Backbone(nn.Module):
    """Embedding, positions and layers."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.depth))

    def forward(self, ids_BT: Tensor, segments_BT: Tensor | None = None, visibility: Visibility = "causal") -> Tensor:
        """Hidden states of every position.

        Args:
            segments_BT: the document each token belongs to, documents lying end to end; padding is PADDING. None says
                that a row is one document, padded on the right if at all: under `causal` nothing real sees padding then.
        """
        if segments_BT is None:
            if visibility != "causal":
                segments_BT = torch.zeros_like(ids_BT)
            positions = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        if segments_BT is None:
            seen = None
        else:
            positions = places(segments_BT)
            seen = visible(segments_BT, visibility)
        hidden_BTD = self._embed(ids_BT, positions)
        for layer in self.layers:
            hidden_BTD, _ = layer(hidden_BTD, seen)
        return hidden_BTD

    def extend(self, ids_BT: Tensor, past: list[KeyValues] | None) -> tuple[Tensor, list[KeyValues]]:
        """Hidden states of new tokens that follow those already in `past`, causally; for generation."""
        start = past[0][0].shape[2] if past else 0
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        hidden_BTD = self._embed(ids_BT, positions)
        present = []
        for index, layer in enumerate(self.layers):
            hidden_BTD, key_values = layer(hidden_BTD, None, past[index] if past else None)
            present.append(key_values)
        return hidden_BTD, present

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        width = self.config.width
        summed = self.embedding(ids_BT) * math.sqrt(width) + sinusoids(positions, width)
        return F.dropout(summed, self.config.dropout, self.training)


def build_backbone(config: ModelConfig, vocab_size: int, seed: int) -> Backbone:
    """A backbone with fresh weights that follow from the seed alone, whatever else has drawn random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(config, vocab_size)
        nn.init.uniform_(backbone.embedding.weight, -0.1, 0.1)
        for layer in backbone.layers:
            assert isinstance(layer, Block)
            # as torch.nn.MultiheadAttention starts; the other matrices start as torch.nn.Linear does
            nn.init.xavier_uniform_(layer.attention.inward.weight)
            nn.init.zeros_(layer.attention.inward.bias)
            nn.init.zeros_(layer.attention.outward.bias)
    return backbone
