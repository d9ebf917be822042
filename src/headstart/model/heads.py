"""Heads (language model, classifier, next sentence), pooling, and the model they make with a backbone.

From one vector a token to one vector a text, reading real tokens only.

The part of a network that belongs to a task, and the model it makes with a backbone.

Swapping the head is building another `Model` around the same backbone. The modern heads are those of the stock shells
that hold the same block elsewhere, so that an export can be exact.

A second question beside the vocabulary, for pretraining only: do two pieces of text follow each other?

B batch, T tokens, D width.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config.schema import AttentionDirection, ModelConfig
from headstart.model.transformer import Backbone, Transform, init_normal


def last_token_pooling(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The vector of each text's last real token: under a causal mask the only one that has read it all."""
    return hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]


def mean_pooling(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The mean over each text's real tokens, summed in fp32."""
    real_BT = torch.arange(hidden_BTD.shape[1], device=lengths_B.device) < lengths_B[:, None]
    return (hidden_BTD.float() * real_BT[..., None]).sum(dim=1) / lengths_B[:, None]


class LanguageHead(nn.Module):
    """Scores for every entry of the vocabulary: a linear layer (classic: with bias), or the embedding again (tied).

    That of a stock model may transform the hidden states first (`ready`), and have a bias of its own.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        classic = config.block == "classic"
        self.linear = nn.Linear(config.width, vocab_size, bias=classic) if classic or not config.tied else None
        self.transform: nn.Module = Transform(config) if config.generic and config.generic.transform else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.generic and config.generic.head_bias else None

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
        self, config: ModelConfig, classes: int, attention: AttentionDirection = "causal", *, bias: bool = False
    ) -> None:
        super().__init__()
        self.attention: AttentionDirection = attention
        modern = config.block == "modern"
        self.dense = nn.Linear(config.width, config.width) if modern and attention == "bidirectional" else None
        self.linear = nn.Linear(
            config.width, classes, bias=bias or config.block == "classic" or attention == "bidirectional"
        )
        self.generic = config.generic if attention == "bidirectional" else None
        if self.generic:
            self.dense = nn.Linear(config.width, config.width) if self.generic.classifier != "transform" else None
            self.transform = Transform(config) if self.generic.classifier == "transform" else nn.Identity()

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """Scores over the labels, one row a text."""
        pool = last_token_pooling if self.attention == "causal" else mean_pooling
        pool_all = self.generic is None or self.generic.pooling == "mean"
        vector_BD = pool(hidden_BTD, lengths_B) if pool_all else hidden_BTD[:, 0]
        if self.generic:
            activate = F.relu if self.generic.classifier == "relu" else torch.tanh
            vector_BD = self.transform(vector_BD) if self.dense is None else activate(self.dense(vector_BD))
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


def lm_logits(model: Model[LanguageHead], hidden: Tensor) -> Tensor:
    """Scores over the vocabulary, one row a hidden state."""
    return F.linear(model.head.transform(hidden), *model.head.weights(model.backbone))


def build_language_head(config: ModelConfig, vocab_size: int, seed: int) -> LanguageHead:
    """A language head with fresh weights that follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_head_seed(seed))
        head = LanguageHead(config, vocab_size)
        _init_head(head, config)
    return head


def build_classifier_head(
    config: ModelConfig, classes: int, seed: int, attention: AttentionDirection = "causal", *, bias: bool = False
) -> ClassifierHead:
    """A classifier head with fresh weights that follow from the seed alone: the same in every arm of a comparison."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_head_seed(seed))
        head = ClassifierHead(config, classes, attention, bias=bias)
        _init_head(head, config)
    return head


def _init_head(head: nn.Module, config: ModelConfig) -> None:
    if config.generic:
        init_normal(head)
        return
    for linear in (part for part in head.children() if not isinstance(part, nn.Identity)):
        assert isinstance(linear, nn.Linear)
        if config.block == "classic":
            nn.init.uniform_(linear.weight, -0.1, 0.1)
        else:
            nn.init.normal_(linear.weight, std=0.02)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def _head_seed(seed: int) -> int:
    """Another stream than the backbone's: the same numbers in embedding and head would be a correlation nobody wants."""
    return seed + 1_000_003


class NextSentenceHead(LanguageHead):
    """A language head that answers it too, from what the start token has gathered.

    The layer of the language head inside stays the caller's own: a bundle is made from `plain`, and knows nothing of pairs.
    """

    def __init__(self, head: LanguageHead, width: int, seed: int) -> None:
        nn.Module.__init__(self)
        self.linear, self.transform, self.bias = head.linear, head.transform, head.bias
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 2_000_003)  # another stream than those of backbone and head
            self.pair = nn.Linear(width, 2)
            nn.init.normal_(self.pair.weight, std=0.02)
            nn.init.zeros_(self.pair.bias)

    def follows(self, hidden_BTD: Tensor) -> Tensor:
        """Scores for no and yes, one row a pair."""
        scores: Tensor = self.pair(hidden_BTD[:, 0])
        return scores

    def plain(self) -> LanguageHead:
        """The language head alone, with the layers it has here."""
        head = LanguageHead.__new__(LanguageHead)
        nn.Module.__init__(head)
        head.linear, head.transform, head.bias = self.linear, self.transform, self.bias
        return head
