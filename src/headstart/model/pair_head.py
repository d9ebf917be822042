"""A second question beside the vocabulary, for pretraining only: do two pieces of text follow each other?

B batch, T tokens, D width.
"""

import torch
from torch import Tensor, nn

from headstart.model.heads import LanguageHead


class PairedHead(LanguageHead):
    """A language head that answers it too, from what the start token has gathered.

    The layer of the language head inside stays the caller's own: a bundle is made from `plain`, and knows nothing of pairs.
    """

    def __init__(self, head: LanguageHead, width: int, seed: int) -> None:
        nn.Module.__init__(self)
        self.linear, self.ready, self.bias = head.linear, head.ready, head.bias
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
        head.linear, head.ready, head.bias = self.linear, self.ready, self.bias
        return head
