"""Which words pushed a decision: integrated gradients over what the embedding gives, one weight a token.

The text is turned up from nothing (every token as padding, at its own place, behind the start token) to what it is; how
the margin of the label moves with each token's vector is added up on the way. The margin is the label's score less the
mean of the others'; where labels do not exclude each other, or the answer is a number, the score alone. What the tokens
get adds up to what the text moved the margin by: nothing is invented and nothing lost (completeness). After
Sundararajan, Taly and Yan (Axiomatic attribution, 2017). A norm may let the margin jump within a thousandth of the way,
so the way is cut finer where the sum is not right yet.

B windows of one text, T tokens, D width, C labels, S places on the way.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.data.batch import Batch
from headstart.data.labelled import TextInput
from headstart.errors import DataError, UsageError
from headstart.model.heads import ClassifierHead, Model
from headstart.predict.predictions import AnyPrediction, MultiLabelPrediction, Prediction
from headstart.predict.predictor import Predictor
from headstart.tokenization.base import Tokenizer
from headstart.train.objectives import class_logits
from headstart.train.transfer_batch import to_device

TOLERANCE = 0.01
"""The share of the margin's move that the weights may miss or invent before the way is cut finer."""
PIECES = 100
"""At most so many pieces of the way are looked at."""
_PLACES, _SHARES = np.polynomial.legendre.leggauss(8)
_PLACES, _SHARES = (_PLACES + 1) / 2, _SHARES / 2  # from -1 to 1, as numpy has them, to 0 to 1
_BLANK = re.compile(r"(▁|<0x0[9AD]>)*")


@dataclass(frozen=True)
class WordWeight:
    """A word, and how much it spoke for the label: below 0, against it."""

    text: str
    weight: float


@dataclass(frozen=True)
class Explanation:
    """Why a label: the words that were read, in order."""

    label: str
    words: tuple[WordWeight, ...]
    margin: float
    """By how much the label's score is above the mean of the others'; of several labels or a number, the score itself."""
    baseline: float
    """The same for a text of nothing, of the same length."""
    error: float
    """By how much the words' weights miss margin - baseline."""

    def strongest(self, count: int) -> list[WordWeight]:
        """The words that pushed most, either way."""
        return sorted(self.words, key=lambda word: -abs(word.weight))[:count]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Attribution:
    """A weight for each token of each window."""

    weights_BT: NDArray[np.float64]
    margin: float
    baseline: float
    error: float


RATING = "rating"
"""What stands for the label where the answer is a number."""


def explain_prediction(predictor: Predictor, text: TextInput, label: str | None = None) -> Explanation:
    """Why the classifier gives a text this label (its own answer, if none is named; of several labels the likeliest)."""
    if not all(isinstance(part, str) and part.strip() for part in ((text,) if isinstance(text, str) else text)):
        raise DataError("the text is empty; there is nothing to explain")
    labels = predictor.labels or (RATING,)
    if label is not None and label not in labels:
        raise UsageError(f"there is no label {label!r}; the labels are {', '.join(labels)}")
    chosen = label or _predicted_label(predictor.predict([text])[0])
    tokenizer = predictor.bundle.tokenizer
    batch = to_device(predictor.rows([text]).batch([0]), predictor.runtime.device)
    pad, close = tokenizer.special.pad, tokenizer.special.sep
    alone = predictor.task.kind != "classes"
    found = attribute(predictor.bundle.model, batch, labels.index(chosen), pad, close, alone=alone)
    closed = tokenizer.special.num_special_tokens - 1
    assert batch.lengths_B is not None
    ids: list[int] = []
    weights: list[float] = []
    for row, length in enumerate(batch.lengths_B.tolist()):
        ids += batch.ids_BT[row, 1 : length - closed].tolist()
        weights += found.weights_BT[row, 1 : length - closed].tolist()
    words: list[WordWeight] = []
    if predictor.task.pair:  # what lies between the two texts is no word of either
        middle = ids.index(tokenizer.special.eos)
        words = [*merge_pieces(ids[:middle], weights[:middle], tokenizer), WordWeight(BETWEEN, weights[middle])]
        ids, weights = ids[middle + 1 :], weights[middle + 1 :]
    words += merge_pieces(ids, weights, tokenizer)
    return Explanation(chosen, tuple(words), found.margin, found.baseline, found.error)


BETWEEN = "|"
"""The word that stands between two texts."""


def _predicted_label(answer: AnyPrediction) -> str:
    if isinstance(answer, Prediction):
        return answer.label
    if isinstance(answer, MultiLabelPrediction):
        return max(answer.probabilities, key=lambda label: answer.probabilities[label])
    return RATING


def attribute(
    model: Model[ClassifierHead], batch: Batch, target: int, pad: int, close: int | None = None, *, alone: bool = False
) -> Attribution:
    """Integrated gradients of the margin of `target` (or of its score alone), for one text in one or more windows."""
    model.eval()
    way = _Path(model, batch, target, *vectors_of(model, batch, pad, close), alone=alone)
    pieces = [way.piece(0.0, 1.0)]
    move = way.margin(1.0) - way.margin(0.0)
    allowed = TOLERANCE * max(abs(move), 0.1)
    looked = 1
    while sum(abs(piece.error) for piece in pieces) > allowed and looked < PIECES:
        pieces.sort(key=lambda piece: abs(piece.error))
        worst = pieces.pop()
        middle = (worst.start + worst.end) / 2
        pieces += [way.piece(worst.start, middle), way.piece(middle, worst.end)]
        looked += 2
    weights = np.sum([piece.weights_BT for piece in pieces], axis=0)
    return Attribution(weights, way.margin(1.0), way.margin(0.0), float(weights.sum()) - move)


def vectors_of(model: Model[ClassifierHead], batch: Batch, pad: int, close: int | None = None) -> tuple[Tensor, Tensor]:
    """What the embedding gives for nothing (the start token, padding, and what closes a row), and for the text."""
    nothing_BT = torch.full_like(batch.ids_BT, pad)
    if close is not None:
        nothing_BT[batch.ids_BT == close] = close
    nothing_BT[:, 0] = batch.ids_BT[:, 0]
    with torch.no_grad():
        return model.backbone.embedding(nothing_BT), model.backbone.embedding(batch.ids_BT)


def margins_of(
    model: Model[ClassifierHead], batch: Batch, target: int, vectors_SBTD: Tensor, *, alone: bool = False
) -> Tensor:
    """The margin of one text for each of S sets of vectors in the place of the embedding's."""
    count, windows = vectors_SBTD.shape[:2]
    assert batch.lengths_B is not None
    copies = replace(
        batch,
        ids_BT=batch.ids_BT.repeat(count, 1),
        lengths_B=batch.lengths_B.repeat(count),
        sample_index_B=torch.arange(count, device=vectors_SBTD.device).repeat_interleave(windows),
        num_targets=count,
        cu_seqlens=None,  # those of the one text
        unpadded_indices=None,
    )
    hook = model.backbone.embedding.register_forward_hook(lambda *_: vectors_SBTD.flatten(0, 1))
    try:
        scores_SC = class_logits(model, copies, in_rows=True)
    finally:
        hook.remove()
    if alone:
        return scores_SC[:, target]
    others_C = torch.arange(scores_SC.shape[1], device=scores_SC.device) != target
    return scores_SC[:, target] - scores_SC[:, others_C].mean(dim=1)


@dataclass(frozen=True)
class _Segment:
    start: float
    end: float
    weights_BT: NDArray[np.float64]
    error: float
    """What the weights miss of how far the margin moves on this piece."""


class _Path:
    """The straight way from one set of vectors to another."""

    def __init__(
        self, model: Model[ClassifierHead], batch: Batch, target: int, start: Tensor, end: Tensor, *, alone: bool
    ) -> None:
        self.model, self.batch, self.target, self.alone = model, batch, target, alone
        self.start_BTD, self.way_BTD = start, end - start
        self._margins: dict[float, float] = {}

    def margin(self, place: float) -> float:
        """The margin at a place between 0 and 1."""
        if place not in self._margins:
            with torch.no_grad():
                vectors = (self.start_BTD + place * self.way_BTD)[None]
                self._margins[place] = float(self._margins_at(vectors)[0])
        return self._margins[place]

    def _margins_at(self, vectors: Tensor) -> Tensor:
        return margins_of(self.model, self.batch, self.target, vectors, alone=self.alone)

    def piece(self, start: float, end: float) -> _Segment:
        """The gradient over one piece by eight of Gauss and Legendre's places, times the way."""
        places_S, shares_S = (
            torch.tensor(values, dtype=torch.float32, device=self.way_BTD.device)[:, None, None, None]
            for values in (start + (end - start) * _PLACES, (end - start) * _SHARES)
        )
        vectors = (self.start_BTD + places_S * self.way_BTD).requires_grad_()
        margins_S = self._margins_at(vectors)
        (gradient,) = torch.autograd.grad(margins_S.sum(), vectors)
        weights_BT = ((gradient * shares_S).sum(dim=0) * self.way_BTD).sum(dim=-1).cpu().double().numpy()
        error = float(weights_BT.sum()) - (self.margin(end) - self.margin(start))
        return _Segment(start, end, weights_BT, error)


def merge_pieces(ids: Sequence[int], weights: Sequence[float], tokenizer: Tokenizer) -> list[WordWeight]:
    """Tokens put together into words, their weights added; white space belongs to the word before it."""
    groups: list[tuple[list[int], list[float]]] = [([], [])]
    spoken = blank_before = False  # whether the word at hand has letters, and whether white space came last
    for id, weight in zip(ids, weights, strict=True):
        piece = tokenizer.piece(id)
        is_blank = _BLANK.fullmatch(piece) is not None
        if spoken and not is_blank and (blank_before or piece.startswith("▁")):
            groups.append(([], []))
            spoken = False
        groups[-1][0].append(id)
        groups[-1][1].append(weight)
        spoken, blank_before = spoken or not is_blank, is_blank
    return [WordWeight(" ".join(tokenizer.decode(own).split()), float(sum(parts))) for own, parts in groups if own]
