"""Cross-entropy of a linear layer without its scores in memory.

At a vocabulary of 50,000 the scores of a batch weigh far more than the model. Here they exist for a few hundred rows
at a time, and their gradient is taken on the spot: the same numbers in a fraction of the memory.

N rows scored, D width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 256
"""Rows a chunk on the CPU, so that a chunk's scores stay near the cache; a GPU takes larger bites."""
_GPU_ROWS = 8192


def linear_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor) -> Tensor:
    """The sum over rows of -log softmax(hidden · weightᵀ + bias)[target]."""
    rows = ROWS if hidden_ND.device.type == "cpu" else _GPU_ROWS
    if torch.is_grad_enabled():
        total: Tensor = _Chunked.apply(hidden_ND, weight_VD, bias_V, targets_N, rows)  # type: ignore[no-untyped-call]
        return total
    parts = [
        F.cross_entropy(F.linear(hidden, weight_VD, bias_V).float(), targets, reduction="sum")
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True)
    ]
    return torch.stack(parts).sum() if parts else hidden_ND.new_zeros(())


class _Chunked(torch.autograd.Function):
    """Loss and gradients in one pass over the rows."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int) -> Tensor:
        kind = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else hidden.dtype
        )
        low_weight, low_hidden = weight.to(kind), hidden.to(kind)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(low_hidden)
        grad_weight = torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                scores = (low_hidden[part] @ low_weight.T).float()
                if bias is not None:
                    scores += bias
                picked = scores.gather(1, targets[part, None])
                peak = scores.amax(dim=1, keepdim=True)
                scores.sub_(peak).exp_()
                mass = scores.sum(dim=1, keepdim=True)
                total += (mass.log() + peak - picked).sum()
                scores.div_(mass)  # now the probabilities
                scores.scatter_add_(1, targets[part, None], scores.new_full((1, 1), -1.0).expand(len(scores), 1))
                if grad_bias is not None:
                    grad_bias += scores.sum(dim=0)
                low_scores = scores.to(kind)
                grad_hidden[part] = low_scores @ low_weight
                grad_weight += low_scores.T @ low_hidden[part]
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden, weight, bias = ctx.saved_tensors
        return hidden * grads[0], weight * grads[0], None if bias is None else bias * grads[0], None, None
