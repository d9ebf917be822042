"""Explain a prediction: one weight per word, for a network, a linear classifier or a blend. No torch.

The margin of a label is its logit minus the mean of the other logits; in multi-label and regression tasks it is the
logit alone. The weights of the words sum to the margin of the text minus that of a baseline:

network  integrated gradients (`integrated_gradients.py`); the baseline is a row of padding; within 1 %
linear   the contributions of the words' n-grams, exactly; the baseline is a text without any known n-gram
blend    both, weighted like the logits: (w * network + (1 - w) * linear) / temperature
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.errors import DataError, UsageError
from headstart.linear.classifier import LinearClassifier
from headstart.predict.bundle_predictor import AnyPredictor
from headstart.predict.linear_predictor import LinearPredictor
from headstart.predict.outputs import MultiLabelPrediction, Prediction
from headstart.tasks import TextInput

RATING = "rating"
"""Stands for the label in a regression task."""
SEPARATOR = "|"
"""The word between the two texts of a pair."""


@dataclass(frozen=True)
class WordWeight:
    """A word and its weight for the label; a negative weight speaks against it."""

    text: str
    weight: float


@dataclass(frozen=True)
class Explanation:
    """The words of a text, in order, with their weights for a label."""

    label: str
    words: tuple[WordWeight, ...]
    margin: float
    """The label's logit minus the mean of the others; in multi-label and regression tasks the logit itself."""
    baseline: float
    """The margin of the baseline: a row of padding for a network, a text of unknown words for a linear classifier."""
    error: float
    """The sum of the weights minus (margin - baseline)."""

    def strongest(self, count: int) -> list[WordWeight]:
        """The words with the largest absolute weights."""
        return sorted(self.words, key=lambda word: -abs(word.weight))[:count]

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        return asdict(self)


def explain_prediction(predictor: AnyPredictor, text: TextInput, label: str | None = None) -> Explanation:
    """Explain the prediction of a text.

    Args:
        label: the label to explain; the predicted one by default, in a multi-label task the most probable one.
    """
    if not all(isinstance(part, str) and part.strip() for part in ((text,) if isinstance(text, str) else text)):
        raise DataError("the text is empty")
    labels = predictor.labels or (RATING,)
    if label is not None and label not in labels:
        raise UsageError(f"there is no label {label!r}; the labels are {', '.join(labels)}")
    explained = label or _predicted_label(predictor, text)
    if isinstance(predictor, LinearPredictor):
        assert isinstance(text, str)
        return explain_linear(predictor.bundle.classifier, text, explained, labels)
    from headstart.predict.blend_predictor import BlendPredictor
    from headstart.predict.integrated_gradients import explain_network
    from headstart.predict.predictor import Predictor

    if isinstance(predictor, BlendPredictor):
        assert isinstance(text, str)
        return _blended(
            explain_network(predictor.network, text, explained),
            explain_linear(predictor.bundle.linear, text, explained, labels),
            predictor.bundle.weight,
            predictor.bundle.temperature,
        )
    assert isinstance(predictor, Predictor)
    return explain_network(predictor, text, explained)


def _predicted_label(predictor: AnyPredictor, text: TextInput) -> str:
    prediction = predictor.predict([text])[0]
    if isinstance(prediction, Prediction):
        return prediction.label
    if isinstance(prediction, MultiLabelPrediction):
        return max(prediction.probabilities, key=lambda label: prediction.probabilities[label])
    return RATING


def explain_linear(classifier: LinearClassifier, text: str, label: str, labels: Sequence[str]) -> Explanation:
    """Explain a label of a text by the contributions of its words' n-grams."""
    index = labels.index(label)
    margin, baseline = (_margin(row, index) for row in classifier.logits([text, ""]))
    words = _words(text)
    weights = _share(words, classifier.contributions(text, index))
    error = sum(weights) - (margin - baseline)
    named = tuple(WordWeight(text[start:end], weight) for (start, end), weight in zip(words, weights, strict=True))
    return Explanation(label, named, margin, baseline, error)


def _margin(logits: "np.ndarray[Any, np.dtype[np.float64]]", index: int) -> float:
    return float(logits[index] - np.delete(logits, index).mean()) if len(logits) > 1 else float(logits[index])


def _words(text: str) -> list[tuple[int, int]]:
    """The start and the end of each word of a text that is not blank; blanks separate words."""
    words, position = [], 0
    for word in text.split():
        start = text.index(word, position)
        position = start + len(word)
        words.append((start, position))
    return words


def _share(words: Sequence[tuple[int, int]], spans: Iterable[tuple[float, float, float]]) -> list[float]:
    """Give the weight of every span to the words that it overlaps, in proportion; between words, to the next one."""
    ends = np.array([end for _, end in words], dtype=float)
    weights = [0.0] * len(words)
    for start, end, weight in spans:
        first = min(int(np.searchsorted(ends, start, side="right")), len(words) - 1)
        overlaps: dict[int, float] = {}
        for index in range(first, len(words)):
            if words[index][0] >= end:
                break
            overlaps[index] = max(0.0, min(end, words[index][1]) - max(start, words[index][0]))
        total = sum(overlaps.values())
        if not total:
            weights[first] += weight
            continue
        for index, overlap in overlaps.items():
            weights[index] += weight * overlap / total
    return weights


def _blended(network: Explanation, linear: Explanation, weight: float, temperature: float) -> Explanation:
    """Add the weights of both explanations, word by word, in the proportion in which the logits are blended."""
    ours, theirs = weight / temperature, (1 - weight) / temperature
    from_network = _aligned([word.text for word in linear.words], network.words)
    words = tuple(
        WordWeight(word.text, ours * by_network + theirs * word.weight)
        for word, by_network in zip(linear.words, from_network, strict=True)
    )
    margin = ours * network.margin + theirs * linear.margin
    baseline = ours * network.baseline + theirs * linear.baseline
    return Explanation(linear.label, words, margin, baseline, ours * network.error + theirs * linear.error)


def _aligned(words: Sequence[str], others: Sequence[WordWeight]) -> list[float]:
    """The weights of the network's words, for the words of the text.

    They are the same words unless the text was truncated or the tokenizer changes texts; then they are matched by their
    positions, counted in characters that are not blank.
    """
    if [word.text for word in others] == list(words[: len(others)]):
        return [word.weight for word in others] + [0.0] * (len(words) - len(others))
    spans = _positions(["".join(word.text.split()) or "?" for word in others])
    return _share(
        _positions(words), [(start, end, word.weight) for (start, end), word in zip(spans, others, strict=True)]
    )


def _positions(words: Sequence[str]) -> list[tuple[int, int]]:
    ends = np.cumsum([len(word) for word in words]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))
