"""One layer of the network, in two kinds.

B batch, T tokens, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.model.attention import KeyValues, SelfAttention, View
from headstart.model.stream import Hidden, normed


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

    def forward(self, x_BTD: Tensor, view: View, past: KeyValues | None = None) -> tuple[Tensor, KeyValues | None]:
        """Read the tokens that may be seen, then think about each alone."""
        attended, present = self.attention(x_BTD, view, past)
        x_BTD = self.norm1(x_BTD + self._drop(attended))
        widened = self._drop(F.relu(self.up(x_BTD)))
        return self.norm2(x_BTD + self._drop(self.down(widened))), present

    def start(self) -> None:
        """As torch.nn.MultiheadAttention starts; the other matrices start as torch.nn.Linear does."""
        nn.init.xavier_uniform_(self.attention.inward.weight)
        nn.init.zeros_(self.attention.inward.bias)
        nn.init.zeros_(self.attention.outward.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class RootMeanSquare(nn.RMSNorm):
    """RMSNorm in fp32, whatever its weights came in: sharded layers travel in bf16, and hidden states stay in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale each token to a mean square of 1."""
        return F.rms_norm(x, self.normalized_shape, self.weight.float(), self.eps)


class ModernBlock(nn.Module):
    """Llama's: norm, attention, add; norm, two gated matrices and one back, add. No bias anywhere."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = RootMeanSquare(config.width, eps=config.norm_epsilon)
        # nothing is dropped inside attention: Llama's shells do not, and the fast kernels cannot
        self.attention = SelfAttention(config.width, config.heads, 0.0, bias=False)
        self.norm2 = RootMeanSquare(config.width, eps=config.norm_epsilon)
        self.gate = nn.Linear(config.width, config.feedforward, bias=False)
        self.up = nn.Linear(config.width, config.feedforward, bias=False)
        self.down = nn.Linear(config.feedforward, config.width, bias=False)
        self.dropout = config.dropout

    def forward(self, x: Hidden, view: View, past: KeyValues | None = None) -> tuple[Hidden, KeyValues | None]:
        """Read the tokens that may be seen, then think about each alone. Returns summands if the view says `fused`."""
        x_BTD, before = normed(x, self.norm1, fused=view.fused)
        attended, present = self.attention(before, view, past)
        x_BTD, before = normed((x_BTD, self._drop(attended), None), self.norm2, fused=view.fused)
        thought = self._drop(self.down(F.silu(self.gate(before)) * self.up(before)))
        return (x_BTD, thought, None) if view.fused else x_BTD + thought, present

    def start(self) -> None:
        """Small normal numbers, as Llama's shells start."""
        for linear in (self.attention.inward, self.attention.outward, self.gate, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


BLOCKS: dict[str, type[ClassicBlock] | type[ModernBlock]] = {"classic": ClassicBlock, "modern": ModernBlock}
