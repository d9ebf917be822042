"""The baselines of a comparison: the majority class, naive Bayes, NB-SVM, and the linear classifier.

They learn from train alone, validation chooses among their settings, and the chosen one predicts test once. The linear
classifier is the one that `headstart auto` fits: it chooses its settings and its temperature by cross-validation inside
train, and validation only scores it. The seed draws its folds; nothing in the others is random.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import UsageError
from headstart.linear.classifier import fit_linear
from headstart.metrics import confusion_matrix, macro_f1, softmax
from headstart.store.records import Budget, RunRecord, Score, round_probabilities
from headstart.train.calibration import fit_temperature

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
TextsAndLabels = tuple[Sequence[str], Sequence[int]]
"""Texts and their label indices."""
PredictProba = Callable[[Sequence[str]], Floats]
"""Maps texts to a probability for each label."""

LINEAR = "linear"
REGULARIZATION = (1, 10, 100)
"""The values of C that validation chooses from for NB-SVM; a larger one fits train more closely."""
MAX_UNBOUNDED_CHARACTERS = 50_000_000
"""Characters of training text up to which every word and pair of words is a feature."""
MAX_TERMS = 1_000_000
"""Maximum number of features above that size: the most frequent terms. Twice as many are kept in memory."""
MAX_VALID_PROBABILITIES = 5_000
"""Maximum number of validation probabilities in a record, so that it remains a small file."""


@dataclass(frozen=True)
class FittedCandidate:
    """A fitted classifier and its settings."""

    setting: dict[str, Any]
    predict_proba: PredictProba
    temperature: float | None = None
    """The temperature that the probabilities already include; None if it is fitted on validation."""


def run_baseline(
    arm: str,
    train: TextsAndLabels,
    valid: TextsAndLabels,
    test: TextsAndLabels,
    labels: Sequence[str],
    seed: int,
    *,
    budget: Budget = "all",
    check: Callable[[], None] = lambda: None,
) -> RunRecord:
    """Fit a baseline on train, choose its settings on validation and predict test.

    Args:
        check: called between the fits of the linear classifier; it may raise to interrupt.
    """
    if arm not in (*BASELINES, LINEAR):
        raise UsageError(f"unknown baseline {arm}; available: {', '.join((*BASELINES, LINEAR))}")
    start = time.perf_counter()
    best: tuple[FittedCandidate, Score, Floats] | None = None
    tried = []
    candidates = linear(train, len(labels), seed, check) if arm == LINEAR else BASELINES[arm](train, len(labels))
    for candidate in candidates:
        probabilities = candidate.predict_proba(valid[0])
        score = score_predictions(valid[1], probabilities.argmax(axis=1), len(labels))
        tried.append(candidate.setting | {"valid_accuracy": score.accuracy})
        if best is None or score.accuracy > best[1].accuracy:  # a tie goes to the earlier, simpler candidate
            best = candidate, score, probabilities
    assert best is not None
    chosen, valid_score, uncalibrated = best
    test_probabilities, valid_probabilities = chosen.predict_proba(test[0]), uncalibrated
    temperature = chosen.temperature
    if temperature is None:
        # calibrated on validation like the networks; the order of labels, and so every prediction, stays the same
        temperature, _ = fit_temperature(np.log(np.maximum(uncalibrated, 1e-12)), np.asarray(valid[1], dtype=np.int64))
        test_probabilities = _with_temperature(test_probabilities, temperature)
        valid_probabilities = _with_temperature(uncalibrated, temperature)
    predictions = test_probabilities.argmax(axis=1)
    save_valid = valid_probabilities.size <= MAX_VALID_PROBABILITIES
    return RunRecord(
        arm=arm,
        labels=budget,
        rows=len(train[0]),
        seed=seed,
        setting=chosen.setting,
        epochs=(),
        best_epoch=None,
        valid=valid_score,
        test=score_predictions(test[1], predictions, len(labels)),
        predictions=tuple(int(prediction) for prediction in predictions),
        probabilities=round_probabilities(test_probabilities.tolist()),
        valid_probabilities=round_probabilities(valid_probabilities.tolist()) if save_valid else None,
        temperature=temperature,
        tried=tuple(tried) if len(tried) > 1 else (),
        seconds=time.perf_counter() - start,
    )


def score_predictions(gold: Sequence[int], predictions: Sequence[int] | Ints, num_labels: int) -> Score:
    """Compute accuracy, macro-F1 and the confusion matrix of predictions."""
    confusion = confusion_matrix(gold, predictions, num_labels)
    return Score(
        accuracy=float(np.trace(confusion)) / max(1, len(gold)),
        macro_f1=macro_f1(confusion),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def _with_temperature(probabilities: Floats, temperature: float) -> Floats:
    if temperature == 1.0:
        return probabilities
    with np.errstate(divide="ignore"):  # a probability of 0 stays 0
        return softmax(np.log(probabilities) / temperature)


def majority(train: TextsAndLabels, num_labels: int) -> Iterable[FittedCandidate]:
    """Predict the most frequent label of train; a tie goes to the first label."""
    counts = np.bincount(np.asarray(train[1], dtype=np.int64), minlength=num_labels)
    yield FittedCandidate({}, _constant_proba(counts / counts.sum()))


def linear(train: TextsAndLabels, num_labels: int, seed: int, check: Callable[[], None]) -> Iterable[FittedCandidate]:
    """Fit the linear classifier on n-grams of words and characters."""
    fit = fit_linear(train[0], train[1], num_labels, seed=seed, check=check)
    setting = dict(fit.setting)
    temperature = setting.pop("temperature")
    yield FittedCandidate(setting, lambda texts: softmax(fit.classifier.logits(texts)), temperature)


def nbsvm(train: TextsAndLabels, num_labels: int) -> Iterable[FittedCandidate]:
    """Fit a logistic regression on the presence of words and pairs of words, scaled by their log-count ratios.

    After Wang and Manning (Baselines and bigrams, 2012), with a logistic regression in place of the SVM: it gives
    probabilities. More than two labels are learnt one against the rest.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(ngram_range=(1, 2), binary=True, dtype=np.float64)
    transform, train_features = _fit_vectorizer(vectorizer, train[0])
    gold = np.asarray(train[1], dtype=np.int64)
    present = sorted(set(train[1]))
    # of two labels only the second is learnt: the first has the remaining probability
    positives = present[1:] if len(present) == 2 else present
    ratios = {label: _log_count_ratio(train_features, gold == label) for label in positives}
    for strength in REGULARIZATION:
        if len(present) == 1:
            yield FittedCandidate({"C": strength}, _constant_proba(np.eye(num_labels)[present[0]]))
            continue
        regressions = {
            label: _fit_regression(_scale(train_features, ratios[label]), (gold == label).astype(np.int64), strength)
            for label in positives
        }
        predict_proba = _one_against_rest(transform, ratios, regressions, present, num_labels)
        yield FittedCandidate({"C": strength}, predict_proba)


def naive_bayes(train: TextsAndLabels, num_labels: int) -> Iterable[FittedCandidate]:
    """Fit multinomial naive Bayes on the counts of words, or on their presence."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    for binary in (False, True):
        transform, train_features = _fit_vectorizer(CountVectorizer(binary=binary), train[0])
        classifier = MultinomialNB().fit(train_features, np.asarray(train[1], dtype=np.int64))
        yield FittedCandidate({"binary": binary}, _predict_proba_of(transform, classifier, num_labels))


BASELINES: dict[str, Callable[[TextsAndLabels, int], Iterable[FittedCandidate]]] = {
    "majority": majority,
    "naive_bayes": naive_bayes,
    "nbsvm": nbsvm,
}


def _fit_vectorizer(vectorizer: Any, texts: Sequence[str]) -> tuple[Callable[[Sequence[str]], Any], Any]:
    """Fit a vectorizer; return its transform and the features of the texts.

    Texts without a single word give one empty column, so that the baseline still learns the frequencies of labels.
    """
    analyze = vectorizer.build_analyzer()
    if not any(analyze(text) for text in texts):
        return (lambda new_texts: np.zeros((len(new_texts), 1))), np.zeros((len(texts), 1))
    if sum(map(len, texts)) > MAX_UNBOUNDED_CHARACTERS:
        vectorizer.set_params(vocabulary=_most_frequent(analyze, texts))
    features = vectorizer.fit_transform(texts)
    return vectorizer.transform, features


def _most_frequent(analyze: Callable[[str], list[str]], texts: Sequence[str]) -> list[str]:
    """Return the terms that most texts contain, counted in bounded memory.

    Whenever there are too many, the rarest so far are dropped, and counted again from zero if they recur: only the order
    among rare terms, far below those that are returned, can suffer.
    """
    counts: Counter[str] = Counter()
    floor = 1
    for text in texts:
        counts.update(set(analyze(text)))
        while len(counts) > 2 * MAX_TERMS:
            counts = Counter({term: count for term, count in counts.items() if count > floor})
            floor += 1
    return sorted(sorted(counts, key=lambda term: (-counts[term], term))[:MAX_TERMS])


def _fit_regression(features: Any, gold: Ints, strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # the warning is not actionable: the last digits of the weights do not affect the choice on validation
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=2000).fit(features, gold)


def _log_count_ratio(features: Any, positive: NDArray[np.bool_]) -> Floats:
    """Compute, for each term, the log of its frequency in positive texts over its frequency in negative ones."""
    positive_counts, negative_counts = (
        1.0 + np.asarray(features[rows].sum(axis=0)).ravel() for rows in (positive, ~positive)
    )
    ratio: Floats = np.log(positive_counts / positive_counts.sum()) - np.log(negative_counts / negative_counts.sum())
    return ratio


def _scale(features: Any, ratio: Floats) -> Any:
    from scipy.sparse import csr_matrix, diags

    return csr_matrix(features) @ diags(ratio)


def _one_against_rest(
    transform: Callable[[Sequence[str]], Any],
    ratios: dict[int, Floats],
    regressions: dict[int, Any],
    present: Sequence[int],
    num_labels: int,
) -> PredictProba:
    def predict_proba(texts: Sequence[str]) -> Floats:
        probabilities = np.zeros((len(texts), num_labels))
        if not texts:
            return probabilities
        features = transform(texts)
        for label, regression in regressions.items():
            positive = regression.predict_proba(_scale(features, ratios[label]))[:, 1]
            probabilities[:, label] = np.maximum(positive, 1e-12)  # all labels may be close to 0
        if len(present) == 2:
            probabilities[:, present[0]] = 1 - probabilities[:, present[1]]
        normalized: Floats = probabilities / probabilities.sum(axis=1, keepdims=True)
        return normalized

    return predict_proba


def _predict_proba_of(transform: Callable[[Sequence[str]], Any], classifier: Any, num_labels: int) -> PredictProba:
    def predict_proba(texts: Sequence[str]) -> Floats:
        probabilities = np.zeros((len(texts), num_labels))  # a label that is not in train has probability 0
        if texts:
            probabilities[:, classifier.classes_] = classifier.predict_proba(transform(texts))
        return probabilities

    return predict_proba


def _constant_proba(probabilities: Floats) -> PredictProba:
    return lambda texts: np.tile(probabilities, (len(texts), 1))
