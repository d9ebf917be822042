"""The part of a network that belongs to a task, and the model it makes with a backbone.

Swapping the head is building another `Model` around the same backbone. The modern heads are those of the stock shells
that hold the same block elsewhere, so that an export can be exact.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig, Visibility
from headstart.model.backbone import Backbone
from headstart.model.pooling import last_real, mean_real
from headstart.model.stock import Transform, start_small


class LanguageHead(nn.Module):
    """Scores for every entry of the vocabulary: a linear layer (classic: with bias), or the embedding again (tied).

    That of a stock model may transform the hidden states first (`ready`), and have a bias of its own.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        classic = config.block == "classic"
        self.linear = nn.Linear(config.width, vocab_size, bias=classic) if classic or not config.tied else None
        self.ready: nn.Module = Transform(config) if config.stock and config.stock.transform else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.stock and config.stock.head_bias else None

    def weights(self, backbone: Backbone) -> tuple[Tensor, Tensor | None]:
        """The matrix and the bias, if there is one. A tied table lives in the backbone, and is saved once, there."""
        if self.linear is None:
            return backbone.embedding.weight, self.bias
        return self.linear.weight, self.linear.bias if self.bias is None else self.bias


class ClassifierHead(nn.Module):
    """Scores for every label, or one number.

    Read causally, the last real token and one linear layer; read both ways, the mean over real tokens, for the modern kind
    followed by dense, GELU, linear. A stock model read both ways has what its architecture has. A number always needs the
    bias: it is not 0 on average.
    """

    def __init__(
        self, config: ModelConfig, classes: int, visibility: Visibility = "causal", *, bias: bool = False
    ) -> None:
        super().__init__()
        self.visibility: Visibility = visibility
        modern = config.block == "modern"
        self.dense = nn.Linear(config.width, config.width) if modern and visibility == "both" else None
        self.linear = nn.Linear(config.width, classes, bias=bias or config.block == "classic" or visibility == "both")
        self.stock = config.stock if visibility == "both" else None
        if self.stock:
            self.dense = nn.Linear(config.width, config.width) if self.stock.classifier != "transform" else None
            self.ready = Transform(config) if self.stock.classifier == "transform" else nn.Identity()

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """Scores over the labels, one row a text."""
        pool = last_real if self.visibility == "causal" else mean_real
        pool_all = self.stock is None or self.stock.pooling == "mean"
        vector_BD = pool(hidden_BTD, lengths_B) if pool_all else hidden_BTD[:, 0]
        if self.stock:
            activate = F.relu if self.stock.classifier == "relu" else torch.tanh
            vector_BD = self.ready(vector_BD) if self.dense is None else activate(self.dense(vector_BD))
        elif self.dense is not None:
            vector_BD = F.gelu(self.dense(vector_BD))
        scores: Tensor = self.linear(vector_BD)
        return scores


H = TypeVar("H", LanguageHead, ClassifierHead)
R = TypeVar("R")


class Model(nn.Module, Generic[H]):
    """A backbone and the head of one task."""

    def __init__(self, backbone: Backbone, head: H) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: H = head

    def forward(self, question: Callable[[], R]) -> R:
        """A question about the network, asked through it: what gathers sharded weights listens here."""
        return question()


def vocabulary_scores(model: Model[LanguageHead], hidden: Tensor) -> Tensor:
    """Scores over the vocabulary, one row a hidden state."""
    return F.linear(model.head.ready(hidden), *model.head.weights(model.backbone))


def build_language_head(config: ModelConfig, vocab_size: int, seed: int) -> LanguageHead:
    """A language head with fresh weights that follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_apart(seed))
        head = LanguageHead(config, vocab_size)
        _start(head, config)
    return head


def build_classifier_head(
    config: ModelConfig, classes: int, seed: int, visibility: Visibility = "causal", *, bias: bool = False
) -> ClassifierHead:
    """A classifier head with fresh weights that follow from the seed alone: the same in every arm of a comparison."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_apart(seed))
        head = ClassifierHead(config, classes, visibility, bias=bias)
        _start(head, config)
    return head


def _start(head: nn.Module, config: ModelConfig) -> None:
    if config.stock:
        start_small(head)
        return
    for linear in (part for part in head.children() if not isinstance(part, nn.Identity)):
        assert isinstance(linear, nn.Linear)
        if config.block == "classic":
            nn.init.uniform_(linear.weight, -0.1, 0.1)
        else:
            nn.init.normal_(linear.weight, std=0.02)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def _apart(seed: int) -> int:
    """Another stream than the backbone's: the same numbers in embedding and head would be a correlation nobody wants."""
    return seed + 1_000_003
