"""From one vector a token to one vector a text, reading real tokens only."""

import torch
from torch import Tensor


def last_real(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The vector of each text's last real token: under a causal mask the only one that has read it all."""
    return hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]
