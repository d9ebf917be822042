"""The arms that any network has to beat: the majority class, naive Bayes, NB-SVM, and TF-IDF with logistic regression.

They learn from train alone, validation chooses what there is to choose, and the chosen one answers test once.
Nothing in them is random: the seed is recorded because the rows may have been drawn by it.
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
from headstart.metrics import softmax
from headstart.store.records import Budget, RunRecord, Score, round_probabilities
from headstart.train.calibration import fit_temperature

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
TextsAndLabels = tuple[Sequence[str], Sequence[int]]
"""Texts and the index of each one's label."""
PredictProba = Callable[[Sequence[str]], Floats]
"""A fitted arm: texts in, a probability for each label out."""

REGULARIZATION = (1, 10, 100)
"""The values of C that validation chooses from: larger follows train more closely."""
UNBOUNDED = 50_000_000
"""Characters of training text up to which every word and pair of words counts."""
VOCABULARY = 1_000_000
"""Beyond that, only so many of the most frequent do, and twice as many are in memory at a time."""
VALID_PROBABILITIES = 5_000
"""Validation probabilities beyond so many numbers are left out of a cell: it is to stay a small file."""


@dataclass(frozen=True)
class FittedCandidate:
    """One fitted way of answering, and the settings that made it."""

    setting: dict[str, Any]
    answer: PredictProba


def run_baseline(
    arm: str,
    train: TextsAndLabels,
    valid: TextsAndLabels,
    test: TextsAndLabels,
    labels: Sequence[str],
    seed: int,
    *,
    budget: Budget = "all",
) -> RunRecord:
    """Fit an arm on train, choose on validation, answer test, and return the finished run."""
    if arm not in BASELINES:
        raise UsageError(f"unknown baseline {arm}; known: {', '.join(BASELINES)}")
    started = time.perf_counter()
    best: tuple[FittedCandidate, Score, Floats] | None = None
    tried = []
    for candidate in BASELINES[arm](train, len(labels)):
        shares = candidate.answer(valid[0])
        score = score_of(valid[1], shares.argmax(axis=1), len(labels))
        tried.append(candidate.setting | {"valid_accuracy": score.accuracy})
        if best is None or score.accuracy > best[1].accuracy:  # a tie stays with the earlier: the simpler
            best = candidate, score, shares
    assert best is not None
    chosen, score, shares = best
    # calibrated on validation like the networks; the order of labels, and so every answer, stays
    temperature, _ = fit_temperature(np.log(np.maximum(shares, 1e-12)), np.asarray(valid[1], dtype=np.int64))
    answers, shares = (_with_temperature(part, temperature) for part in (chosen.answer(test[0]), shares))
    predictions = answers.argmax(axis=1)
    return RunRecord(
        arm=arm,
        labels=budget,
        rows=len(train[0]),
        seed=seed,
        setting=chosen.setting,
        epochs=(),
        best_epoch=None,
        valid=score,
        test=score_of(test[1], predictions, len(labels)),
        predictions=tuple(int(prediction) for prediction in predictions),
        probabilities=round_probabilities(answers.tolist()),
        valid_probabilities=round_probabilities(shares.tolist()) if shares.size <= VALID_PROBABILITIES else None,
        temperature=temperature,
        tried=tuple(tried) if len(tried) > 1 else (),
        seconds=time.perf_counter() - started,
    )


def score_of(gold: Sequence[int], predictions: Ints, labels: int) -> Score:
    """Accuracy, macro-F1 and confusion; a label that is neither right nor answered anywhere is left out of the mean."""
    confusion = np.zeros((labels, labels), dtype=np.int64)
    np.add.at(confusion, (np.asarray(gold, dtype=np.int64), predictions), 1)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = 2 * np.diag(confusion)[both > 0] / both[both > 0]
    return Score(
        accuracy=float(np.trace(confusion)) / max(1, len(gold)),
        macro_f1=float(f1.mean()) if len(f1) else 0.0,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def _with_temperature(shares: Floats, temperature: float) -> Floats:
    if temperature == 1.0:
        return shares
    with np.errstate(divide="ignore"):  # no chance stays none
        return softmax(np.log(shares) / temperature)


def majority(train: TextsAndLabels, labels: int) -> Iterable[FittedCandidate]:
    """Always train's most frequent label; of several, the first in the order of labels."""
    counts = np.bincount(np.asarray(train[1], dtype=np.int64), minlength=labels)
    yield FittedCandidate({}, _constant_proba(counts / counts.sum()))


def tfidf(train: TextsAndLabels, labels: int) -> Iterable[FittedCandidate]:
    """Words and pairs of words, weighted by TF-IDF with sublinear counts, under a logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    features, train_features = _fitted(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), train[0])
    gold = np.asarray(train[1], dtype=np.int64)
    for strength in REGULARIZATION:
        if len(set(train[1])) == 1:  # nothing to separate, which the regression would refuse
            yield FittedCandidate({"C": strength}, _constant_proba(np.eye(labels)[train[1][0]]))
            continue
        regression = _regression(train_features, gold, strength)
        yield FittedCandidate({"C": strength}, _predict_proba_of(features, regression, labels))


def nbsvm(train: TextsAndLabels, labels: int) -> Iterable[FittedCandidate]:
    """Which words and pairs of words occur, each scaled by how much more it says of one label than of the rest.

    After Wang and Manning (Baselines and bigrams, 2012), with a logistic regression in place of the SVM: it gives
    probabilities. More than two labels are learnt each against the rest.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    features, train_features = _fitted(CountVectorizer(ngram_range=(1, 2), binary=True, dtype=np.float64), train[0])
    gold = np.asarray(train[1], dtype=np.int64)
    present = sorted(set(train[1]))
    # one against the rest; of two labels the second is learnt, and the first is what remains
    learnt = present[1:] if len(present) == 2 else present
    ratios = {label: _log_count_ratio(train_features, gold == label) for label in learnt}
    for strength in REGULARIZATION:
        if len(present) == 1:
            yield FittedCandidate({"C": strength}, _constant_proba(np.eye(labels)[present[0]]))
            continue
        fitted = {
            label: _regression(_scaled(train_features, ratios[label]), (gold == label).astype(np.int64), strength)
            for label in learnt
        }
        yield FittedCandidate({"C": strength}, _one_against_rest(features, ratios, fitted, present, labels))


def naive_bayes(train: TextsAndLabels, labels: int) -> Iterable[FittedCandidate]:
    """Multinomial naive Bayes on words: their counts, or only whether they occur."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    for binary in (False, True):
        features, train_features = _fitted(CountVectorizer(binary=binary), train[0])
        bayes = MultinomialNB().fit(train_features, np.asarray(train[1], dtype=np.int64))
        yield FittedCandidate({"binary": binary}, _predict_proba_of(features, bayes, labels))


BASELINES: dict[str, Callable[[TextsAndLabels, int], Iterable[FittedCandidate]]] = {
    "majority": majority,
    "naive_bayes": naive_bayes,
    "nbsvm": nbsvm,
    "tfidf": tfidf,
}


def _fitted(vectorizer: Any, texts: Sequence[str]) -> tuple[Callable[[Sequence[str]], Any], Any]:
    """The vectorizer as a function, and the features of the texts it learned its words from.

    Texts without a single word leave nothing to learn from: one empty column keeps the arm running on the labels alone.
    """
    analyze = vectorizer.build_analyzer()
    if not any(analyze(text) for text in texts):
        return (lambda others: np.zeros((len(others), 1))), np.zeros((len(texts), 1))
    if sum(map(len, texts)) > UNBOUNDED:
        vectorizer.set_params(vocabulary=_most_frequent(analyze, texts))
    features = vectorizer.fit_transform(texts)
    return vectorizer.transform, features


def _most_frequent(analyze: Callable[[str], list[str]], texts: Sequence[str]) -> list[str]:
    """The words and pairs that most texts hold, counted in bounded memory.

    Whenever there are too many, the rarest so far are let go: what comes again later is counted from there, so only
    the order among the rare ones, far below those that are kept, can suffer.
    """
    counts: Counter[str] = Counter()
    floor = 1
    for text in texts:
        counts.update(set(analyze(text)))
        while len(counts) > 2 * VOCABULARY:
            counts = Counter({term: count for term, count in counts.items() if count > floor})
            floor += 1
    kept = sorted(counts, key=lambda term: (-counts[term], term))[:VOCABULARY]
    return sorted(kept)


def _regression(features: Any, gold: Ints, strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # whatever the last digits of the weights, validation judges them; nobody could act on the warning
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=2000).fit(features, gold)


def _log_count_ratio(features: Any, own: NDArray[np.bool_]) -> Floats:
    """For each word: how much larger a share it has of this label's texts than of the others', as a logarithm."""
    mine, others = (1.0 + np.asarray(features[rows].sum(axis=0)).ravel() for rows in (own, ~own))
    ratio: Floats = np.log(mine / mine.sum()) - np.log(others / others.sum())
    return ratio


def _scaled(features: Any, ratio: Floats) -> Any:
    from scipy.sparse import csr_matrix, diags

    return csr_matrix(features) @ diags(ratio)


def _one_against_rest(
    features: Callable[[Sequence[str]], Any],
    ratios: dict[int, Floats],
    fitted: dict[int, Any],
    present: Sequence[int],
    labels: int,
) -> PredictProba:
    def answer(texts: Sequence[str]) -> Floats:
        shares = np.zeros((len(texts), labels))
        if not texts:
            return shares
        words = features(texts)
        for label, regression in fitted.items():
            chances = regression.predict_proba(_scaled(words, ratios[label]))[:, 1]
            shares[:, label] = np.maximum(chances, 1e-12)  # all of them may be as good as none
        if len(present) == 2:
            shares[:, present[0]] = 1 - shares[:, present[1]]
        normalised: Floats = shares / shares.sum(axis=1, keepdims=True)
        return normalised

    return answer


def _predict_proba_of(features: Callable[[Sequence[str]], Any], classifier: Any, labels: int) -> PredictProba:
    def answer(texts: Sequence[str]) -> Floats:
        shares = np.zeros((len(texts), labels))  # a label that is not in train has no chance
        if texts:
            shares[:, classifier.classes_] = classifier.predict_proba(features(texts))
        return shares

    return answer


def _constant_proba(shares: Floats) -> PredictProba:
    return lambda texts: np.tile(shares, (len(texts), 1))
