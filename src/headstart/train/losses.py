"""Cross-entropy of a linear layer without its scores in memory.

At a vocabulary of 50,000 the scores of a batch weigh far more than the model. Here they exist for a few hundred rows
at a time, and their gradient is taken on the spot: the same numbers in a fraction of the memory.

N rows scored, D width, V vocabulary.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config import UNSCORED
from headstart.train.bites import loss_in_bites

ROWS = 256
"""Rows a chunk on the CPU, so that a chunk's scores stay near the cache; a GPU takes larger bites (`bites`)."""
_GPU_ROWS = 8192
"""The same on a GPU where nothing is learnt."""
_LINE = 64
"""Scores of a row are laid out in multiples of this: a product that writes rows of 50,001 numbers takes 1.7 times as long."""


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    compiled: bool = False,
    gaps: bool = False,
) -> Tensor:
    """The sum over rows of -log softmax(hidden · weightᵀ + bias)[target].

    Args:
        compiled: let torch fuse what happens between the matrix products.
        gaps: some targets may be UNSCORED; those rows count for nothing.
    """
    if gaps and hidden_ND.device.type != "cuda":  # a GPU would have to be asked how many are left; `bites` skips them
        known = targets_N != UNSCORED
        hidden_ND, targets_N = hidden_ND[known], targets_N[known]
    rows = ROWS if hidden_ND.device.type == "cpu" else _GPU_ROWS
    if torch.is_grad_enabled():
        total: Tensor = _Chunked.apply(hidden_ND, weight_VD, bias_V, targets_N, rows, compiled, gaps)  # type: ignore[no-untyped-call]
        return total
    parts = [
        F.cross_entropy(F.linear(hidden, weight_VD, bias_V).float(), targets, reduction="sum")
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True)
    ]
    return torch.stack(parts).sum() if parts else hidden_ND.new_zeros(())


class _Chunked(torch.autograd.Function):
    """Loss and gradients in one pass over the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        compiled: bool,
        gaps: bool,
    ) -> Tensor:
        kind = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else hidden.dtype
        )
        if hidden.device.type == "cpu" and kind == torch.float32 and not compiled:
            total, *slopes = _in_one_buffer(hidden, weight, bias, targets, rows)
            ctx.slopes = slopes
            return total
        if hidden.device.type == "cuda":
            with torch.autocast("cuda", enabled=False):
                total, *slopes = loss_in_bites(hidden, weight, bias, targets, kind, gaps=gaps)
            ctx.slopes = slopes
            return total
        low_weight, low_hidden = weight.to(kind), hidden.to(kind)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(low_hidden)
        grad_weight = torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                scores = low_hidden[part] @ low_weight.T
                loss, slope = (_fused() if compiled else _in_place)(scores, bias, targets[part])
                total += loss
                if grad_bias is not None:
                    grad_bias += slope.sum(dim=0)
                low_scores = slope.to(kind)
                grad_hidden[part] = low_scores @ low_weight
                grad_weight += low_scores.T @ low_hidden[part]
        ctx.slopes = [grad_hidden.to(hidden.dtype), grad_weight, grad_bias]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # handed on, not kept: the last who holds a gradient may change it in place, and a table's is large
        slopes, ctx.slopes = ctx.slopes, None
        whole = grads[0].data_ptr() == unit(grads[0]).data_ptr()
        scaled = slopes if whole else [_times(slope, grads[0]) for slope in slopes]
        return *scaled, None, None, None, None


def unit(like: Tensor) -> Tensor:
    """The number 1, always the same tensor: a loss that is asked for its slopes with it need not multiply them."""
    return _unit(like.device, like.dtype)


@cache
def _unit(device: torch.device, kind: torch.dtype) -> Tensor:
    return torch.ones((), device=device, dtype=kind)


def _times(slope: Tensor | None, factor: Tensor) -> Tensor | None:
    """In place where rows lie end to end; where they do not, whoever keeps the gradient would copy it anyway."""
    return slope if slope is None else slope.mul_(factor) if slope.is_contiguous() else slope * factor


def _in_one_buffer(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The loss and its slopes by hidden, weight and bias; chunks share one memory, which is slow to get."""
    vocabulary = len(weight)
    buffer = hidden.new_empty(min(rows, len(hidden)), -(-vocabulary // _LINE) * _LINE)
    total = hidden.new_zeros(())
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.empty_like(weight) if len(hidden) else torch.zeros_like(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias)
    for start in range(0, len(hidden), rows):
        here, asked = hidden[start : start + rows], targets[start : start + rows, None]
        whole = buffer[: len(here)]
        scores = whole[:, :vocabulary]
        torch.mm(here, weight.T, out=scores)
        if bias is not None:
            scores += bias
        whole[:, vocabulary:] = -torch.inf  # what fills a row up has no share in it
        picked = scores.gather(1, asked)
        peak = whole.amax(dim=1, keepdim=True)
        torch.softmax(whole, dim=1, out=whole)
        # what all powers add up to follows from the highest score and its share, which no vocabulary makes vanish
        total += (peak - whole.amax(dim=1, keepdim=True).log() - picked).sum()
        whole.scatter_add_(1, asked, whole.new_full((1, 1), -1.0).expand(len(whole), 1))
        if grad_bias is not None:
            grad_bias += scores.sum(dim=0)
        torch.mm(scores, weight, out=grad_hidden[start : start + rows])
        grad_weight.addmm_(scores.T, here, beta=float(start > 0))  # the first chunk fills it
    return total, grad_hidden, grad_weight, grad_bias


def _in_place(scores: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of a chunk and its slope at every score, in as little memory as can be."""
    scores = scores.float()
    if bias is not None:
        scores += bias
    picked = scores.gather(1, targets[:, None])
    peak = scores.amax(dim=1, keepdim=True)
    scores.sub_(peak).exp_()
    mass = scores.sum(dim=1, keepdim=True)
    loss = (mass.log() + peak - picked).sum()
    scores.div_(mass)  # now the probabilities
    scores.scatter_add_(1, targets[:, None], scores.new_full((1, 1), -1.0).expand(len(scores), 1))
    return loss, scores


def _in_one_pass(scores: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same as a formula, which a compiler turns into two readings of the scores; slopes as exact as the scores were."""
    exact = scores.float() if bias is None else scores.float() + bias
    mass = exact.logsumexp(dim=1, keepdim=True)
    hit = torch.arange(exact.shape[1], device=exact.device) == targets[:, None]
    loss = (mass[:, 0] - torch.where(hit, exact, 0.0).sum(dim=1)).sum()
    return loss, ((exact - mass).exp() - hit.float()).to(scores.dtype)


@cache
def _fused() -> Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]:
    fused: Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]] = torch.compile(_in_one_pass, dynamic=True)
    return fused
