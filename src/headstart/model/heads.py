"""The part of a network that belongs to a task, and the model it makes with a backbone.

Swapping the head is building another `Model` around the same backbone.
"""

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from headstart.model.backbone import Backbone
from headstart.model.pooling import last_real


class LanguageHead(nn.Module):
    """Scores for every entry of the vocabulary: one linear layer with bias, not tied to the embedding."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, one row a hidden state."""
        scores: Tensor = self.linear(hidden)
        return scores


class ClassifierHead(nn.Module):
    """Scores for every label: one linear layer with bias on the last real token."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """Scores over the labels, one row a text."""
        scores: Tensor = self.linear(last_real(hidden_BTD, lengths_B))
        return scores


H = TypeVar("H", LanguageHead, ClassifierHead)


class Model(nn.Module, Generic[H]):
    """A backbone and the head of one task."""

    def __init__(self, backbone: Backbone, head: H) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: H = head


def build_language_head(width: int, vocab_size: int, seed: int) -> LanguageHead:
    """A language head with fresh weights that follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_apart(seed))
        head = LanguageHead(width, vocab_size)
        _start(head.linear)
    return head


def build_classifier_head(width: int, classes: int, seed: int) -> ClassifierHead:
    """A classifier head with fresh weights that follow from the seed alone: the same in every arm of a comparison."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_apart(seed))
        head = ClassifierHead(width, classes)
        _start(head.linear)
    return head


def _start(linear: nn.Linear) -> None:
    nn.init.uniform_(linear.weight, -0.1, 0.1)
    nn.init.zeros_(linear.bias)


def _apart(seed: int) -> int:
    """Another stream than the backbone's: the same numbers in embedding and head would be a correlation nobody wants."""
    return seed + 1_000_003
