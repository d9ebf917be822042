"""One layer of a model from elsewhere, made of what its settings say; and what its heads begin with.

B batch, T tokens, D width.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.model.attention import KeyValues, SelfAttention, View
from headstart.model.stream import Hidden, joined, normed
from headstart.model.thought import thought
from headstart.shape import StockConfig

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def stock_of(config: ModelConfig) -> StockConfig:
    """The settings that a stock model has, and no other."""
    assert config.stock is not None
    return config.stock


def stock_norm(config: ModelConfig) -> nn.LayerNorm:
    """A norm as this model has them."""
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=stock_of(config).norm_bias)


class StockBlock(nn.Module):
    """Attention and two matrices, normed before or after, gated or not."""

    def __init__(self, config: ModelConfig, place: int = 0) -> None:
        super().__init__()
        stock = stock_of(config)
        normed = place == 0 and stock.norm_first and stock.embedding_norm
        self.norm1 = nn.Identity() if normed else stock_norm(config)
        # nothing is dropped inside attention: the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=stock.bias)
        self.norm2 = stock_norm(config)
        self.gate = nn.Linear(config.width, config.feedforward, bias=stock.bias) if stock.gated else None
        self.up = nn.Linear(config.width, config.feedforward, bias=stock.bias)
        self.down = nn.Linear(config.feedforward, config.width, bias=stock.bias)
        self.norm_first, self.dropout = stock.norm_first, config.dropout
        self.activation, self.activate = stock.activation, _ACTIVATIONS[stock.activation]
        self.widens = self.gate is None and self.activation in ("gelu", "gelu_tanh")
        """Whether the two matrices and what is between them are what `thought` does."""
        self.owes = self.widens and stock.bias and not config.dropout
        """Whether a bias of the last matrix may be added later; dropout is for it too."""

    def forward(self, x: Hidden, view: View, past: KeyValues | None = None) -> tuple[Hidden, KeyValues | None]:
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

    def _think(self, x_BTD: Tensor, view: View) -> Tensor:
        if view.fused and self.widens:
            tanh = self.activation == "gelu_tanh"
            return thought(x_BTD, self.up, self.down, tanh=tanh, owes=self.owes, inside=view.inside)
        up = self.up(x_BTD)
        narrow: Tensor = self.down(self.activate(up) if self.gate is None else self.activate(self.gate(x_BTD)) * up)
        return narrow

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transform(nn.Module):
    """A matrix, an activation and a norm: what the heads of some models begin with."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        stock = stock_of(config)
        self.dense = nn.Linear(config.width, config.width, bias=stock.transform_bias)
        self.norm = stock_norm(config)
        self.activate = _ACTIVATIONS[stock.transform_activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """The same number of vectors, of the same width."""
        ready: Tensor = self.norm(self.activate(self.dense(hidden)))
        return ready


def start_small(module: nn.Module) -> None:
    """Give every matrix small normal numbers and every bias zeros; norms are as they were born."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
