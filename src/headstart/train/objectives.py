"""Training objectives: causal and masked language modelling, next sentence, classification, regression and distillation.

An objective returns a sum and a count, so that accumulation, padding and packing never change the meaning of a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX
from headstart.data.batch import UNPAD_THRESHOLD, Batch
from headstart.data.next_sentence import NextSentenceBatch
from headstart.kernels.cross_entropy import distillation_cross_entropy, linear_cross_entropy
from headstart.kernels.dispatch import prefers_by_text
from headstart.model.heads import ClassifierHead, LanguageHead, Model, NextSentenceHead
from headstart.tasks import MultiLabel, Regression, Task


@dataclass(frozen=True)
class LossSum:
    """A loss summed over all targets, and the number of targets (the sum of their weights, if they have any)."""

    total: Tensor
    count: float


Objective = Callable[[Batch], LossSum]
LabelledObjective = Callable[[Model[ClassifierHead], Batch], LossSum]


def language_model_loss(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """Return the loss of next or masked tokens, which differ in the batch only."""
    return LossSum(token_loss(model, hidden_states(model, batch), batch), batch.num_targets)


def hidden_states(model: Model[LanguageHead], batch: Batch) -> Tensor:
    """Return the hidden states (B, T, D) of a batch of a language model."""
    hidden: Tensor = model.backbone(
        batch.ids_BT, batch.segments_BT, batch.attention, batch.cu_seqlens, batch.unpadded_indices
    )
    return hidden


def token_loss(model: Model[LanguageHead], hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """Return the summed loss of the batch's targets. Only scored positions reach the vocabulary."""
    targets, hidden_ND = batch.targets.flatten(), hidden_BTD.flatten(0, 1)
    ignore_index = None
    if batch.num_targets < len(targets):
        indices = _target_indices(batch)
        # not [indices]: the backward pass of indexing sorts them, in case one appears twice
        targets, hidden_ND = targets[indices], hidden_ND.index_select(0, indices)
        if len(indices) > batch.num_targets:  # a static batch pads its indices with positions that are not scored
            ignore_index = IGNORE_INDEX
    weight, bias = model.head.weights(model.backbone)
    transformed_ND = model.head.transform(hidden_ND)
    return linear_cross_entropy(
        transformed_ND,
        weight,
        bias,
        targets,
        compiled=model.backbone.compiled,
        sharded=not model.backbone.defer_bias,
        ignore_index=ignore_index,
    )


def _target_indices(batch: Batch) -> Tensor:
    """Return the flat indices of the scored positions."""
    if batch.target_indices is not None:
        return batch.target_indices
    return (batch.targets.flatten() != IGNORE_INDEX).nonzero()[:, 0]


def objective_for(task: Task, weights: Tensor | None = None) -> LabelledObjective:
    """Return the objective of a task, its classes weighted if there are weights."""
    if isinstance(task, Regression):
        return partial(regression_loss, task=task)
    return partial(multi_label_loss if isinstance(task, MultiLabel) else classification_loss, weights=weights)


def class_logits(
    model: Model[ClassifierHead], batch: Batch, *, in_rows: bool = False, unpadded: bool = False
) -> Tensor:
    """Return the logits of each text over the classes in fp32; for a text in several windows, their mean.

    Args:
        in_rows: compute padding too, so that every hidden state is (B, T, D), for callers that inspect the network.
        unpadded: compute texts end to end where the device prefers that, even if there is little padding: the hidden
            states of a text then depend on no other row.
    """
    logits: Tensor = model(
        batch.ids_BT,
        batch.segments_BT,
        cu_seqlens=batch.cu_seqlens,
        unpadded_indices=batch.unpadded_indices,
        lengths_B=batch.lengths_B,
        text_lengths=() if in_rows else _text_lengths(model, batch, unpadded=unpadded),
    ).float()
    if batch.sample_index_B is None:
        return logits
    sums = logits.new_zeros(batch.num_targets, logits.shape[1]).index_add_(0, batch.sample_index_B, logits)
    windows = torch.bincount(batch.sample_index_B, minlength=batch.num_targets)
    return sums / windows[:, None]


def _text_lengths(model: Model[ClassifierHead], batch: Batch, *, unpadded: bool) -> tuple[int, ...]:
    """Return the lengths of texts that are processed one at a time: on request, or if their rows would hold much padding."""
    assert batch.lengths_B is not None
    if batch.cu_seqlens is not None or not prefers_by_text(batch.ids_BT, compiled=model.backbone.compiled):
        return ()
    lengths = tuple(batch.lengths_B.tolist())
    return lengths if unpadded or sum(lengths) < UNPAD_THRESHOLD * batch.ids_BT.numel() else ()


def classification_loss(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """Return the cross-entropy of each text's class, the classes weighted if there are weights."""
    total = F.cross_entropy(class_logits(model, batch), batch.targets, weight=weights, reduction="sum")
    count = batch.num_targets if weights is None else float(weights[batch.targets].sum())
    return LossSum(total, count)


def multi_label_loss(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """Return the binary cross-entropy of each text, a mean over its labels; positives are weighted if there are weights."""
    logits = class_logits(model, batch)
    total = F.binary_cross_entropy_with_logits(logits, batch.targets, pos_weight=weights, reduction="sum")
    return LossSum(total / logits.shape[1], batch.num_targets)


def regression_loss(model: Model[ClassifierHead], batch: Batch, task: Regression) -> LossSum:
    """Return the squared error of each text's number, in standard deviations of the training numbers."""
    targets = (batch.targets - task.mean) / task.spread
    return LossSum(F.mse_loss(class_logits(model, batch)[:, 0], targets, reduction="sum"), batch.num_targets)


def next_sentence_loss(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """Return the loss of the tokens and, where rows are pairs, of whether the two pieces follow each other.

    The count is that of the tokens alone: `pair_weight` of the batch takes the number of pairs into account.
    """
    if not isinstance(batch, NextSentenceBatch):
        return language_model_loss(model, batch)
    assert isinstance(model.head, NextSentenceHead)
    assert batch.pairs_B is not None
    hidden_BTD = hidden_states(model, batch)
    tokens = token_loss(model, hidden_BTD, batch)
    pairs = F.cross_entropy(model.head.follows(hidden_BTD).float(), batch.pairs_B, reduction="sum")
    return LossSum(tokens + batch.pair_weight * pairs, batch.num_targets)


@dataclass(frozen=True)
class Teacher:
    """A trained language model with the same tokenizer, and the weight of its probabilities in the loss, from 0 to 1."""

    model: Model[LanguageHead]
    weight: float


def distillation_loss(model: Model[LanguageHead], teacher: Teacher, batch: Batch) -> LossSum:
    """Return (1 - weight) · cross-entropy with the text + weight · cross-entropy with the teacher's probabilities.

    The teacher has no dropout and never gets a gradient.
    """
    indices = _target_indices(batch)
    hidden_ND = hidden_states(model, batch).flatten(0, 1)[indices]
    with torch.no_grad():
        teacher.model.eval()
        teacher_ND = hidden_states(teacher.model, batch).flatten(0, 1)[indices]
        teacher_weight, teacher_bias = teacher.model.head.weights(teacher.model.backbone)
    weight, bias = model.head.weights(model.backbone)
    detached = teacher_ND.detach(), teacher_weight.detach(), None if teacher_bias is None else teacher_bias.detach()
    targets = batch.targets.flatten()[indices]
    total = distillation_cross_entropy(hidden_ND, weight, bias, targets, detached, teacher.weight)
    return LossSum(total, batch.num_targets)
