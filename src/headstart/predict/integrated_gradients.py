"""Explain the prediction of a network by integrated gradients with respect to the token embeddings: one weight per word.

The path leads from a baseline (the start token followed by padding, in the same positions) to the text's embeddings.
The gradient of the margin along the path, times the difference of the embeddings, is summed for each token. The margin
is the logit of the label minus the mean of the other logits; in multi-label and regression tasks it is the logit alone.
The weights sum to the change of the margin from baseline to text (completeness).
M. Sundararajan, A. Taly, Q. Yan: Axiomatic attribution for deep networks, 2017.

The margin may jump within a thousandth of the path because of a norm, so the path is split into smaller segments until
the sum is right.

B windows of one text, T tokens, D width, C labels, S points of the path.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.data.batch import Batch
from headstart.model.heads import ClassifierHead, Model
from headstart.predict.explain import RATING, SEPARATOR, Explanation, WordWeight
from headstart.predict.predictor import Predictor
from headstart.tasks import TextInput
from headstart.tokenization.base import Tokenizer
from headstart.train.objectives import class_logits
from headstart.train.step import to_device

TOLERANCE = 0.01
"""The error of the sum, as a fraction of the change of the margin, above which the path is split further."""
MAX_SEGMENTS = 100
"""The maximum number of segments to integrate."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # numpy's are for the interval from -1 to 1, ours for 0 to 1
_BLANK = re.compile(r"(▁|<0x0[9AD]>)*")


@dataclass(frozen=True)
class Attribution:
    """A weight for each token of each window."""

    weights_BT: NDArray[np.float64]
    margin: float
    baseline: float
    error: float


def explain_network(predictor: Predictor, text: TextInput, label: str) -> Explanation:
    """Explain a label, or the rating, of a text by integrated gradients."""
    labels = predictor.labels or (RATING,)
    tokenizer = predictor.bundle.tokenizer
    batch = to_device(predictor.dataset([text]).batch([0]), predictor.runtime.device)
    attribution = attribute(
        predictor.bundle.model,
        batch,
        labels.index(label),
        tokenizer.special.pad,
        tokenizer.special.sep,
        logit_only=predictor.task.kind != "classes",
    )
    num_closing = tokenizer.special.num_special_tokens - 1
    assert batch.lengths_B is not None
    ids: list[int] = []
    weights: list[float] = []
    for row, length in enumerate(batch.lengths_B.tolist()):
        ids += batch.ids_BT[row, 1 : length - num_closing].tolist()
        weights += attribution.weights_BT[row, 1 : length - num_closing].tolist()
    words: list[WordWeight] = []
    if predictor.task.pair:  # the token between the two texts is a word of its own
        middle = ids.index(tokenizer.special.eos)
        words = [*merge_pieces(ids[:middle], weights[:middle], tokenizer), WordWeight(SEPARATOR, weights[middle])]
        ids, weights = ids[middle + 1 :], weights[middle + 1 :]
    words += merge_pieces(ids, weights, tokenizer)
    return Explanation(label, tuple(words), attribution.margin, attribution.baseline, attribution.error)


def merge_pieces(ids: Sequence[int], weights: Sequence[float], tokenizer: Tokenizer) -> list[WordWeight]:
    """Merge tokens into words and sum their weights; white space belongs to the word before it."""
    groups: list[tuple[list[int], list[float]]] = [([], [])]
    has_letters = after_blank = False  # of the current word
    for id, weight in zip(ids, weights, strict=True):
        piece = tokenizer.piece(id)
        is_blank = _BLANK.fullmatch(piece) is not None
        if has_letters and not is_blank and (after_blank or piece.startswith("▁")):
            groups.append(([], []))
            has_letters = False
        groups[-1][0].append(id)
        groups[-1][1].append(weight)
        has_letters, after_blank = has_letters or not is_blank, is_blank
    return [
        WordWeight(" ".join(tokenizer.decode(word_ids).split()), float(sum(word_weights)))
        for word_ids, word_weights in groups
        if word_ids
    ]


def attribute(
    model: Model[ClassifierHead],
    batch: Batch,
    target: int,
    pad: int,
    sep: int | None = None,
    *,
    logit_only: bool = False,
) -> Attribution:
    """Compute integrated gradients of the margin of a label, for one text in one or more windows.

    Args:
        target: the index of the label.
        pad: the id of the padding token, which the baseline consists of.
        sep: the id of the token that closes every row, if there is one; the baseline keeps it.
        logit_only: attribute the logit of the label instead of its margin.
    """
    model.eval()
    path = _Path(model, batch, target, *baseline_and_input(model, batch, pad, sep), logit_only=logit_only)
    segments = [path.integrate(0.0, 1.0)]
    change = path.margin(1.0) - path.margin(0.0)
    max_error = TOLERANCE * max(abs(change), 0.1)
    num_integrated = 1
    while sum(abs(segment.error) for segment in segments) > max_error and num_integrated < MAX_SEGMENTS:
        segments.sort(key=lambda segment: abs(segment.error))
        worst = segments.pop()
        middle = (worst.start + worst.end) / 2
        segments += [path.integrate(worst.start, middle), path.integrate(middle, worst.end)]
        num_integrated += 2
    weights = np.sum([segment.weights_BT for segment in segments], axis=0)
    return Attribution(weights, path.margin(1.0), path.margin(0.0), float(weights.sum()) - change)


def baseline_and_input(
    model: Model[ClassifierHead], batch: Batch, pad: int, sep: int | None = None
) -> tuple[Tensor, Tensor]:
    """The embeddings of the baseline (start token, padding, closing token) and of the text."""
    baseline_BT = torch.full_like(batch.ids_BT, pad)
    if sep is not None:
        baseline_BT[batch.ids_BT == sep] = sep
    baseline_BT[:, 0] = batch.ids_BT[:, 0]
    with torch.no_grad():
        return model.backbone.embedding(baseline_BT), model.backbone.embedding(batch.ids_BT)


def margins(
    model: Model[ClassifierHead], batch: Batch, target: int, embeddings_SBTD: Tensor, *, logit_only: bool = False
) -> Tensor:
    """Compute the margin of one text for each of S replacements of its embeddings."""
    count, windows = embeddings_SBTD.shape[:2]
    assert batch.lengths_B is not None
    copies = replace(
        batch,
        ids_BT=batch.ids_BT.repeat(count, 1),
        lengths_B=batch.lengths_B.repeat(count),
        sample_index_B=torch.arange(count, device=embeddings_SBTD.device).repeat_interleave(windows),
        num_targets=count,
        cu_seqlens=None,  # those of the batch are for one copy
        unpadded_indices=None,
    )
    hook = model.backbone.embedding.register_forward_hook(lambda *_: embeddings_SBTD.flatten(0, 1))
    try:
        logits_SC = class_logits(model, copies, in_rows=True)
    finally:
        hook.remove()
    if logit_only:
        return logits_SC[:, target]
    is_other_C = torch.arange(logits_SC.shape[1], device=logits_SC.device) != target
    return logits_SC[:, target] - logits_SC[:, is_other_C].mean(dim=1)


@dataclass(frozen=True)
class _Segment:
    start: float
    end: float
    weights_BT: NDArray[np.float64]
    error: float
    """The sum of the weights minus the change of the margin on this segment."""


class _Path:
    """The straight line from the baseline's embeddings (0) to those of the text (1)."""

    def __init__(
        self, model: Model[ClassifierHead], batch: Batch, target: int, start: Tensor, end: Tensor, *, logit_only: bool
    ) -> None:
        self.model, self.batch, self.target, self.logit_only = model, batch, target, logit_only
        self.start_BTD, self.difference_BTD = start, end - start
        self._margins: dict[float, float] = {}

    def margin(self, position: float) -> float:
        """The margin at a position between 0 and 1."""
        if position not in self._margins:
            with torch.no_grad():
                embeddings = (self.start_BTD + position * self.difference_BTD)[None]
                self._margins[position] = float(self._margins_at(embeddings)[0])
        return self._margins[position]

    def _margins_at(self, embeddings_SBTD: Tensor) -> Tensor:
        return margins(self.model, self.batch, self.target, embeddings_SBTD, logit_only=self.logit_only)

    def integrate(self, start: float, end: float) -> _Segment:
        """Integrate the gradient over a segment by Gauss-Legendre quadrature with eight nodes."""
        positions_S, weights_S = (
            torch.tensor(values, dtype=torch.float32, device=self.difference_BTD.device)[:, None, None, None]
            for values in (start + (end - start) * _NODES, (end - start) * _WEIGHTS)
        )
        embeddings = (self.start_BTD + positions_S * self.difference_BTD).requires_grad_()
        margins_S = self._margins_at(embeddings)
        (grad,) = torch.autograd.grad(margins_S.sum(), embeddings)
        weights_BT = ((grad * weights_S).sum(dim=0) * self.difference_BTD).sum(dim=-1).cpu().double().numpy()
        error = float(weights_BT.sum()) - (self.margin(end) - self.margin(start))
        return _Segment(start, end, weights_BT, error)
