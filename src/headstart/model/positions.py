"""Where a token stands in its document: as a vector to add, or as an angle to turn by. Both hold at any length."""

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos of the same; one row a position.

    A formula, not a table: a position that training never reached has its vector all the same.

    >>> sinusoids(torch.tensor([0]), 4)
    tensor([[0., 1., 0., 1.]])
    """
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * (-math.log(10000.0) / width))
    angles = positions.to(torch.float32)[..., None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def places(segments_BT: Tensor) -> Tensor:
    """The place of each token within its own segment, counted from 0, when segments lie end to end in a row.

    >>> places(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    tensor([[0, 1, 0, 1, 2, 0]])
    """
    index_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    return index_T - (index_T * starts_BT).cummax(dim=1).values


def angles(positions: Tensor, width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of rotary positions for heads of `width`, each half repeated, one row a position."""
    rates = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    turns = positions.to(torch.float32)[..., None] * rates
    both = torch.cat((turns, turns), dim=-1)
    return both.cos(), both.sin()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the halves of each head's vector against each other: then a product of two depends on their distance alone."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)
