"""Heads (language model, classifier, next sentence), pooling, and the model that a head makes with a backbone.

Swapping the head is building another `Model` around the same backbone. The modern heads are those of the Llama architecture, so
that an export can be exact.

B batch, T tokens, D width, V vocabulary, C classes.
"""

from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config.schema import PADDING_SEGMENT, AttentionDirection, ModelConfig
from headstart.model.transformer import Backbone, Transform, init_normal


def last_token_pooling(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the vector of each text's last real token, the only one that sees the full text under a causal mask."""
    return hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]


def mean_pooling(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the mean over each text's real tokens, summed in fp32."""
    return (hidden_BTD.float() * _is_real(hidden_BTD.shape[1], lengths_B)[..., None]).sum(dim=1) / lengths_B[:, None]


def _is_real(tokens: int, lengths_B: Tensor) -> Tensor:
    """Return a bool mask (B, T) that is False for padding."""
    return torch.arange(tokens, device=lengths_B.device) < lengths_B[:, None]


class LanguageHead(nn.Module):
    """Logits over the vocabulary: a linear layer (classic: with bias), or the embedding again (tied).

    The head of an imported architecture may transform the hidden states first, and have a bias of its own.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        classic = config.block == "classic"
        self.linear = nn.Linear(config.width, vocab_size, bias=classic) if classic or not config.tied else None
        self.transform: nn.Module = Transform(config) if config.generic and config.generic.transform else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.generic and config.generic.head_bias else None

    def weights(self, backbone: Backbone) -> tuple[Tensor, Tensor | None]:
        """Return the weight (V, D) and the bias, if any. A tied weight belongs to the backbone and is saved there only."""
        if self.linear is None:
            return backbone.embedding.weight, self.bias
        return self.linear.weight, self.linear.bias if self.bias is None else self.bias


class ClassifierHead(nn.Module):
    """Logits over the classes, or one number.

    Causal attention: the last real token and one linear layer. Bidirectional attention: the mean over real tokens, for the
    modern block followed by dense, GELU, linear; an imported architecture has its own head. A number always needs the bias,
    since it is not 0 on average.
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
        """Return logits (B, C), one row per text."""
        pool = last_token_pooling if self.attention == "causal" else mean_pooling
        pool_all = self.generic is None or self.generic.pooling == "mean"
        vector_BD = pool(hidden_BTD, lengths_B) if pool_all else hidden_BTD[:, 0]
        if self.generic:
            activate = F.relu if self.generic.classifier == "relu" else torch.tanh
            vector_BD = self.transform(vector_BD) if self.dense is None else activate(self.dense(vector_BD))
        elif self.dense is not None:
            vector_BD = F.gelu(self.dense(vector_BD))
        logits: Tensor = self.linear(vector_BD)
        return logits


H = TypeVar("H", LanguageHead, ClassifierHead)


class Model(nn.Module, Generic[H]):
    """A backbone and the head of one task."""

    def __init__(self, backbone: Backbone, head: H) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: H = head

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        attention: AttentionDirection | None = None,
        cu_seqlens: Tensor | None = None,
        unpadded_indices: Tensor | None = None,
        *,
        lengths_B: Tensor | None = None,
        text_lengths: tuple[int, ...] = (),
    ) -> Tensor:
        """Return logits: (B, T, V) over the vocabulary, or (B, C) over the classes.

        Args:
            segments_BT: this and the next arguments are those of `Backbone.forward`. A classifier has one text per row.
            attention: causal unless given; a classifier has its own and takes no other.
            lengths_B: for a classifier, the number of real tokens of each row; None says that there is no padding.
            text_lengths: the same as numbers, to process texts one at a time: `lengths` of `Backbone.forward`.
        """
        if isinstance(self.head, LanguageHead):
            hidden = self.backbone(
                ids_BT, segments_BT, attention or "causal", cu_seqlens, unpadded_indices, text_lengths
            )
            return lm_logits(self, hidden)
        assert attention in (None, self.head.attention)
        if lengths_B is None:
            lengths_B = torch.full((len(ids_BT),), ids_BT.shape[1], device=ids_BT.device)
        if self.head.attention == "bidirectional":  # tokens see to their right, where padding must be masked
            segments_BT = torch.where(_is_real(ids_BT.shape[1], lengths_B), 0, PADDING_SEGMENT)
        hidden = self.backbone(ids_BT, segments_BT, self.head.attention, cu_seqlens, unpadded_indices, text_lengths)
        logits: Tensor = self.head(hidden, lengths_B)
        return logits


def lm_logits(model: Model[LanguageHead], hidden: Tensor) -> Tensor:
    """Return logits over the vocabulary, one row per hidden state."""
    return F.linear(model.head.transform(hidden), *model.head.weights(model.backbone))


def build_language_head(config: ModelConfig, vocab_size: int, seed: int) -> LanguageHead:
    """Build a language head whose weights depend on the seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_head_seed(seed))
        head = LanguageHead(config, vocab_size)
        _init_head(head, config)
    return head


def build_classifier_head(
    config: ModelConfig, classes: int, seed: int, attention: AttentionDirection = "causal", *, bias: bool = False
) -> ClassifierHead:
    """Build a classifier head whose weights depend on the seed only: the same in every arm of a comparison."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_head_seed(seed))
        head = ClassifierHead(config, classes, attention, bias=bias)
        _init_head(head, config)
    return head


def _init_head(head: nn.Module, config: ModelConfig) -> None:
    if config.generic:
        init_normal(head)
        return
    for linear in (module for module in head.children() if not isinstance(module, nn.Identity)):
        assert isinstance(linear, nn.Linear)
        if config.block == "classic":
            nn.init.uniform_(linear.weight, -0.1, 0.1)
        else:
            nn.init.normal_(linear.weight, std=0.02)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def _head_seed(seed: int) -> int:
    """Return a seed that differs from the backbone's: equal weights in embedding and head would be correlated."""
    return seed + 1_000_003


class NextSentenceHead(LanguageHead):
    """A language head that also tells, from the start token, whether two pieces of text follow each other.

    The modules of the language head stay the caller's: a bundle is made from `plain` and knows nothing of pairs.
    """

    def __init__(self, head: LanguageHead, width: int, seed: int) -> None:
        nn.Module.__init__(self)
        self.linear, self.transform, self.bias = head.linear, head.transform, head.bias
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 2_000_003)  # differs from the seeds of backbone and head
            self.pair = nn.Linear(width, 2)
            nn.init.normal_(self.pair.weight, std=0.02)
            nn.init.zeros_(self.pair.bias)

    def follows(self, hidden_BTD: Tensor) -> Tensor:
        """Return logits (B, 2) for no and yes, one row per pair."""
        logits: Tensor = self.pair(hidden_BTD[:, 0])
        return logits

    def plain(self) -> LanguageHead:
        """Return the language head alone, with the same modules."""
        head = LanguageHead.__new__(LanguageHead)
        nn.Module.__init__(head)
        head.linear, head.transform, head.bias = self.linear, self.transform, self.bias
        return head
