"""The arms that any network has to beat: the majority class, naive Bayes, and TF-IDF with logistic regression.

They learn from train alone, validation chooses what there is to choose, and the chosen one answers test once.
Nothing in them is random: the seed is recorded because the rows may have been drawn by it.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import UsageError
from headstart.store.cells import Budget, Cell, Score

Ints = NDArray[np.int64]
Examples = tuple[Sequence[str], Sequence[int]]
"""Texts and the index of each one's label."""
Answer = Callable[[Sequence[str]], Ints]
"""A fitted arm: texts in, label indices out."""

STRENGTHS = (1, 10, 100)
"""The values of C that validation chooses from: larger follows train more closely."""


@dataclass(frozen=True)
class Candidate:
    """One fitted way of answering, and the settings that made it."""

    setting: dict[str, Any]
    answer: Answer


def run_baseline(
    arm: str,
    train: Examples,
    valid: Examples,
    test: Examples,
    labels: Sequence[str],
    seed: int,
    *,
    budget: Budget = "all",
) -> Cell:
    """Fit an arm on train, choose on validation, answer test, and return the finished run."""
    if arm not in BASELINES:
        raise UsageError(f"unknown baseline {arm}; known: {', '.join(BASELINES)}")
    started = time.perf_counter()
    best: tuple[Candidate, Score] | None = None
    for candidate in BASELINES[arm](train):
        score = score_of(valid[1], candidate.answer(valid[0]), len(labels))
        if best is None or score.accuracy > best[1].accuracy:  # a tie stays with the earlier: the simpler
            best = candidate, score
    assert best is not None
    chosen, score = best
    predictions = chosen.answer(test[0])
    return Cell(
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


def majority(train: Examples) -> Iterable[Candidate]:
    """Always train's most frequent label; of several, the first in the order of labels."""
    label = int(np.bincount(np.asarray(train[1], dtype=np.int64)).argmax())
    yield Candidate({}, _constant(label))


def tfidf(train: Examples) -> Iterable[Candidate]:
    """Words and pairs of words, weighted by TF-IDF with sublinear counts, under a logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    features, train_features = _fitted(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), train[0])
    for strength in STRENGTHS:
        if len(set(train[1])) == 1:  # nothing to separate, which the regression would refuse
            yield Candidate({"C": strength}, _constant(train[1][0]))
            continue
        regression = LogisticRegression(C=strength, max_iter=2000)
        with warnings.catch_warnings():
            # whatever the last digits of the weights, validation judges them; nobody could act on the warning
            warnings.simplefilter("ignore", ConvergenceWarning)
            regression.fit(train_features, np.asarray(train[1], dtype=np.int64))
        yield Candidate({"C": strength}, _answer(features, regression))


def naive_bayes(train: Examples) -> Iterable[Candidate]:
    """Multinomial naive Bayes on words: their counts, or only whether they occur."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    for binary in (False, True):
        features, train_features = _fitted(CountVectorizer(binary=binary), train[0])
        bayes = MultinomialNB().fit(train_features, np.asarray(train[1], dtype=np.int64))
        yield Candidate({"binary": binary}, _answer(features, bayes))


BASELINES: dict[str, Callable[[Examples], Iterable[Candidate]]] = {
    "majority": majority,
    "naive_bayes": naive_bayes,
    "tfidf": tfidf,
}


def _fitted(vectorizer: Any, texts: Sequence[str]) -> tuple[Callable[[Sequence[str]], Any], Any]:
    """The vectorizer as a function, and the features of the texts it learned its words from.

    Texts without a single word leave nothing to learn from: one empty column keeps the arm running on the labels alone.
    """
    analyze = vectorizer.build_analyzer()
    if not any(analyze(text) for text in texts):
        return (lambda others: np.zeros((len(others), 1))), np.zeros((len(texts), 1))
    features = vectorizer.fit_transform(texts)
    return vectorizer.transform, features


def _answer(features: Callable[[Sequence[str]], Any], classifier: Any) -> Answer:
    def answer(texts: Sequence[str]) -> Ints:
        if not texts:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(classifier.predict(features(texts)), dtype=np.int64)

    return answer


def _constant(label: int) -> Answer:
    return lambda texts: np.full(len(texts), label, dtype=np.int64)
