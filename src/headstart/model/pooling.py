"""From one vector a token to one vector a text, reading real tokens only."""

import torch
from torch import Tensor


def last_real(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The vector of each text's last real token: under a causal mask the only one that has read it all."""
    return hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]


def mean_real(hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    """The mean over each text's real tokens, summed in fp32."""
    real_BT = torch.arange(hidden_BTD.shape[1], device=lengths_B.device) < lengths_B[:, None]
    return (hidden_BTD.float() * real_BT[..., None]).sum(dim=1) / lengths_B[:, None]
