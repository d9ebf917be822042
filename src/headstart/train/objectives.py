"""What a model is asked, as a sum and a count: accumulation, padding and packing never change a gradient's meaning."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config import PADDING, UNSCORED
from headstart.data.batches import WORTH_UNPADDING, Batch
from headstart.kinds import Rating, Target
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.train.losses import linear_cross_entropy
from headstart.train.steady import Steady


@dataclass(frozen=True)
class LossSum:
    """A loss summed over everything scored, and how much that was (the sum of the weights, if there are weights)."""

    total: Tensor
    count: float


Objective = Callable[[Batch], LossSum]


def predict_tokens(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """The tokens a batch asks for, next or hidden: they differ in the batch. Only scored positions reach the vocabulary."""
    hidden_BTD = model.backbone(batch.ids_BT, batch.segments_BT, batch.visibility, batch.bounds, batch.real)
    return LossSum(token_loss(model, hidden_BTD, batch), batch.scored)


def token_loss(model: Model[LanguageHead], hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """The summed loss of the tokens that a batch asks for."""
    targets, hidden_ND = batch.targets.flatten(), hidden_BTD.flatten(0, 1)
    if batch.scored < len(targets):
        places = batch.places if batch.places is not None else (targets != UNSCORED).nonzero()[:, 0]
        # not [places]: the way back from that sorts them, in case one came twice
        targets, hidden_ND = targets[places], hidden_ND.index_select(0, places)
    weight, bias = model.head.weights(model.backbone)
    ready_ND = model.head.ready(hidden_ND)
    gaps = isinstance(batch, Steady) and batch.filled
    return linear_cross_entropy(ready_ND, weight, bias, targets, compiled=model.backbone.compiled, gaps=gaps)


Answering = Callable[[Model[ClassifierHead], Batch], LossSum]


def answering(target: Target, weights: Tensor | None = None) -> Answering:
    """What a model that answers `target` is asked."""
    if isinstance(target, Rating):
        return partial(rate, target=target)
    return partial(label_each if target.kind == "labels" else classify, weights=weights)


def class_scores(model: Model[ClassifierHead], batch: Batch, *, in_rows: bool = False) -> Tensor:
    """Scores of each text over the labels; of a text in several windows, their mean.

    Args:
        in_rows: compute padding too, for whoever looks into the network: every hidden state is (B, T, D) then.
    """
    assert batch.lengths_B is not None
    segments, lengths = batch.segments_BT, () if in_rows else _unpadded(batch, model)
    if model.head.visibility == "both":  # what lies to the right is seen now: padding must say that it is none
        real_BT = torch.arange(batch.ids_BT.shape[1], device=batch.ids_BT.device) < batch.lengths_B[:, None]
        segments = torch.where(real_BT, 0, PADDING)
    hidden_BTD = model.backbone(batch.ids_BT, segments, model.head.visibility, batch.bounds, batch.real, lengths)
    scores: Tensor = model.head(hidden_BTD, batch.lengths_B).float()
    if batch.owners_B is None:
        return scores
    sums = scores.new_zeros(batch.scored, scores.shape[1]).index_add_(0, batch.owners_B, scores)
    windows = torch.bincount(batch.owners_B, minlength=batch.scored)
    return sums / windows[:, None]


def _unpadded(batch: Batch, model: Model[ClassifierHead]) -> tuple[int, ...]:
    """The lengths of texts that a CPU reads one by one, because their rows would be padding in good part."""
    if batch.ids_BT.device.type != "cpu" or batch.bounds is not None or model.backbone.compiled:
        return ()
    assert batch.lengths_B is not None
    lengths = tuple(batch.lengths_B.tolist())
    return lengths if sum(lengths) < WORTH_UNPADDING * batch.ids_BT.numel() else ()


def classify(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """The label of each text, classes weighted if asked."""
    total = F.cross_entropy(class_scores(model, batch), batch.targets, weight=weights, reduction="sum")
    count = batch.scored if weights is None else float(weights[batch.targets].sum())
    return LossSum(total, count)


def label_each(model: Model[ClassifierHead], batch: Batch, weights: Tensor | None = None) -> LossSum:
    """Each label of each text by itself, yes or no; of a text the mean over the labels, the yes weighted if asked."""
    scores = class_scores(model, batch)
    total = F.binary_cross_entropy_with_logits(scores, batch.targets, pos_weight=weights, reduction="sum")
    return LossSum(total / scores.shape[1], batch.scored)


def rate(model: Model[ClassifierHead], batch: Batch, target: Rating) -> LossSum:
    """The number of each text, in units of the training rows' spread around their mean: the squared error."""
    wanted = (batch.targets - target.mean) / target.spread
    return LossSum(F.mse_loss(class_scores(model, batch)[:, 0], wanted, reduction="sum"), batch.scored)
