"""Training objectives: causal and masked language modelling, next sentence, classification, regression and distillation.

What a model is asked, as a sum and a count: accumulation, padding and packing never change a gradient's meaning.

The question whether two pieces of text follow each other: its part in the loss, and how often it is answered right.

Learning from a larger model: beside the tokens of the text, what a teacher thinks of every place that is scored.

The loss is (1 - weight) · cross-entropy with the text + weight · cross-entropy with the teacher's probabilities. The
teacher has the same tokenizer, drops nothing, and never gets a gradient.

N rows scored, D width (the teacher's has its own), V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT
from headstart.data.batch import UNPAD_THRESHOLD, Batch
from headstart.data.next_sentence import NextSentenceBatch
from headstart.kernels.cross_entropy import CPU_CHUNK_ROWS, linear_cross_entropy
from headstart.model.heads import ClassifierHead, LanguageHead, Model, NextSentenceHead
from headstart.tasks import Regression, Task
from headstart.train.static_batch import StaticBatch


@dataclass(frozen=True)
class LossSum:
    """A loss summed over everything scored, and how much that was (the sum of the weights, if there are weights)."""

    total: Tensor
    count: float


Objective = Callable[[Batch], LossSum]


def language_model_loss(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """The tokens a batch asks for, next or hidden: they differ in the batch. Only scored positions reach the vocabulary."""
    hidden_BTD = model.backbone(
        batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices
    )
    return LossSum(token_loss(model, hidden_BTD, batch), batch.num_targets)


def token_loss(model: Model[LanguageHead], hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """The summed loss of the tokens that a batch asks for."""
    targets, hidden_ND = batch.targets.flatten(), hidden_BTD.flatten(0, 1)
    if batch.num_targets < len(targets):
        places = batch.target_indices if batch.target_indices is not None else (targets != IGNORE_INDEX).nonzero()[:, 0]
        # not [places]: the way back from that sorts them, in case one came twice
        targets, hidden_ND = targets[places], hidden_ND.index_select(0, places)
    weight, bias = model.head.weights(model.backbone)
    ready_ND = model.head.transform(hidden_ND)
    gaps = isinstance(batch, StaticBatch) and batch.has_padded_targets
    return linear_cross_entropy(ready_ND, weight, bias, targets, compiled=model.backbone.compiled, gaps=gaps)


LabelledObjective = Callable[[Model[ClassifierHead], Batch], LossSum]


def objective_for(task: Task, weights: Tensor | None = None) -> LabelledObjective:
    """What a model that answers `target` is asked."""
    if isinstance(task, Regression):
        return partial(regression_loss, task=task)
    return partial(multi_label_loss if task.kind == "labels" else classification_loss, weights=weights)


def class_logits(model: Model[ClassifierHead], batch: Batch, *, in_rows: bool = False) -> Tensor:
    """Scores of each text over the labels; of a text in several windows, their mean.

    Args:
        in_rows: compute padding too, for whoever looks into the network: every hidden state is (B, T, D) then.
    """
    assert batch.lengths_B is not None
    segments, lengths = batch.segments_BT, () if in_rows else _unpadded(batch, model)
    if model.head.attention == "bidirectional":  # what lies to the right is seen now: padding must say that it is none
        real_BT = torch.arange(batch.ids_BT.shape[1], device=batch.ids_BT.device) < batch.lengths_B[:, None]
        segments = torch.where(real_BT, 0, PADDING_SEGMENT)
    hidden_BTD = model.backbone(
        batch.ids_BT, segments, model.head.attention, batch.cu_seqlens, batch.unpadded_indices, lengths
    )
    scores: Tensor = model.head(hidden_BTD, batch.lengths_B).float()
    if batch.sample_index_B is None:
        return scores
    sums = scores.new_zeros(batch.num_targets, scores.shape[1]).index_add_(0, batch.sample_index_B, scores)
    windows = torch.bincount(batch.sample_index_B, minlength=batch.num_targets)
    return sums / windows[:, None]


def _unpadded(batch: Batch, model: Model[ClassifierHead]) -> tuple[int, ...]:
    """The lengths of texts that a CPU reads one by one, because their rows would be padding in good part."""
    if batch.ids_BT.device.type != "cpu" or batch.cu_seqlens is not None or model.backbone.compiled:
        return ()
    assert batch.lengths_B is not None
    lengths = tuple(batch.lengths_B.tolist())
    return lengths if sum(lengths) < UNPAD_THRESHOLD * batch.ids_BT.numel() else ()


def classification_loss(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """The label of each text, classes weighted if asked."""
    total = F.cross_entropy(class_logits(model, batch), batch.targets, weight=weights, reduction="sum")
    count = batch.num_targets if weights is None else float(weights[batch.targets].sum())
    return LossSum(total, count)


def multi_label_loss(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """Each label of each text by itself, yes or no; of a text the mean over the labels, the yes weighted if asked."""
    scores = class_logits(model, batch)
    total = F.binary_cross_entropy_with_logits(scores, batch.targets, pos_weight=weights, reduction="sum")
    return LossSum(total / scores.shape[1], batch.num_targets)


def regression_loss(model: Model[ClassifierHead], batch: Batch, task: Regression) -> LossSum:
    """The number of each text, in units of the training rows' spread around their mean: the squared error."""
    wanted = (batch.targets - task.mean) / task.spread
    return LossSum(F.mse_loss(class_logits(model, batch)[:, 0], wanted, reduction="sum"), batch.num_targets)


def next_sentence_loss(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """The tokens a batch asks for and, where its rows are pairs, whether each belongs together.

    The count is that of the tokens alone: the batch knows what its pairs must weigh for that (`data.pairs.weighted`).
    """
    if not isinstance(batch, NextSentenceBatch):
        return language_model_loss(model, batch)
    assert isinstance(model.head, NextSentenceHead)
    assert batch.pairs_B is not None
    hidden_BTD = model.backbone(
        batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices
    )
    tokens = token_loss(model, hidden_BTD, batch)
    pairs = F.cross_entropy(model.head.follows(hidden_BTD).float(), batch.pairs_B, reduction="sum")
    return LossSum(tokens + batch.pair_weight * pairs, batch.num_targets)


_GPU_ROWS = 4096


@dataclass(frozen=True)
class Teacher:
    """A trained language model and how much its opinion counts, from 0 (nothing) to 1 (the text itself does not)."""

    model: Model[LanguageHead]
    weight: float


def distillation_loss(model: Model[LanguageHead], teacher: Teacher, batch: Batch) -> LossSum:
    """The tokens a batch asks for, as the text has them and as the teacher would."""
    targets = batch.targets.flatten()
    places = batch.target_indices if batch.target_indices is not None else (targets != IGNORE_INDEX).nonzero()[:, 0]
    reads = (batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices)
    hidden_ND = model.backbone(*reads).flatten(0, 1)[places]
    with torch.no_grad():
        teacher.model.eval()
        taught_ND = teacher.model.backbone(*reads).flatten(0, 1)[places]
        weight_VD, bias_V = teacher.model.head.weights(teacher.model.backbone)
    weight, bias = model.head.weights(model.backbone)
    rows = CPU_CHUNK_ROWS if hidden_ND.device.type == "cpu" else _GPU_ROWS
    taught = (taught_ND.detach(), weight_VD.detach(), None if bias_V is None else bias_V.detach())
    total: Tensor = _SoftCrossEntropy.apply(hidden_ND, weight, bias, targets[places], taught, teacher.weight, rows)  # type: ignore[no-untyped-call]
    return LossSum(total, batch.num_targets)


class _SoftCrossEntropy(torch.autograd.Function):
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
                wanted = _logits(taught_hidden[part], taught_weight, taught_bias).softmax(dim=1).mul_(share)
                wanted.scatter_add_(1, targets[part, None], wanted.new_full((1, 1), 1 - share).expand(len(wanted), 1))
                told = _logits(low_hidden[part], low_weight, bias).log_softmax(dim=1)
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


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    scores = (hidden @ weight.T).float()
    return scores if bias is None else scores + bias
