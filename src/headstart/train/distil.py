"""Learning from a larger model: beside the tokens of the text, what a teacher thinks of every place that is scored.

The loss is (1 - weight) · cross-entropy with the text + weight · cross-entropy with the teacher's probabilities. The
teacher has the same tokenizer, drops nothing, and never gets a gradient.

N rows scored, D width (the teacher's has its own), V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headstart.config import UNSCORED
from headstart.data.batches import Batch
from headstart.model.heads import LanguageHead, Model
from headstart.train.losses import ROWS
from headstart.train.objectives import LossSum

_GPU_ROWS = 4096


@dataclass(frozen=True)
class Teacher:
    """A trained language model and how much its opinion counts, from 0 (nothing) to 1 (the text itself does not)."""

    model: Model[LanguageHead]
    weight: float


def predict_like(model: Model[LanguageHead], teacher: Teacher, batch: Batch) -> LossSum:
    """The tokens a batch asks for, as the text has them and as the teacher would."""
    targets = batch.targets.flatten()
    places = batch.places if batch.places is not None else (targets != UNSCORED).nonzero()[:, 0]
    reads = (batch.ids_BT, batch.segments_BT, batch.visibility, batch.bounds, batch.real)
    hidden_ND = model.backbone(*reads).flatten(0, 1)[places]
    with torch.no_grad():
        teacher.model.eval()
        taught_ND = teacher.model.backbone(*reads).flatten(0, 1)[places]
        weight_VD, bias_V = teacher.model.head.weights(teacher.model.backbone)
    weight, bias = model.head.weights(model.backbone)
    rows = ROWS if hidden_ND.device.type == "cpu" else _GPU_ROWS
    taught = (taught_ND.detach(), weight_VD.detach(), None if bias_V is None else bias_V.detach())
    total: Tensor = _Soft.apply(hidden_ND, weight, bias, targets[places], taught, teacher.weight, rows)  # type: ignore[no-untyped-call]
    return LossSum(total, batch.scored)


class _Soft(torch.autograd.Function):
    """Loss and gradients in one pass over the rows, so that the scores of both exist for a few rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        taught: tuple[Tensor, Tensor, Tensor | None],
        share: float,
        rows: int,
    ) -> Tensor:
        device = hidden.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        low_weight, low_hidden = weight.to(kind), hidden.to(kind)
        taught_hidden, taught_weight, taught_bias = taught[0].to(kind), taught[1].to(kind), taught[2]
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden, grad_weight = torch.empty_like(low_hidden), torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                wanted = _scores(taught_hidden[part], taught_weight, taught_bias).softmax(dim=1).mul_(share)
                wanted.scatter_add_(1, targets[part, None], wanted.new_full((1, 1), 1 - share).expand(len(wanted), 1))
                told = _scores(low_hidden[part], low_weight, bias).log_softmax(dim=1)
                total -= (wanted * told).sum()
                slopes = told.exp_().sub_(wanted)
                if grad_bias is not None:
                    grad_bias += slopes.sum(dim=0)
                low_slopes = slopes.to(kind)
                grad_hidden[part] = low_slopes @ low_weight
                grad_weight += low_slopes.T @ low_hidden[part]
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        scaled = None if bias is None else bias * grads[0]
        return hidden * grads[0], weight * grads[0], scaled, None, None, None, None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    scores = (hidden @ weight.T).float()
    return scores if bias is None else scores + bias
