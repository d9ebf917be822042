"""Measures are those of the textbook."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss, precision_score, recall_score

from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus, language_model
from headstart.data.datasets import PackedDataset
from headstart.metrics import evaluate_single_label, softmax
from headstart.train.scoring import score_language


def test_the_figures_are_scikit_learns():
    chance = np.random.default_rng(0)
    scores, gold = chance.normal(size=(200, 4)), chance.integers(0, 4, 200)
    gold[gold == 3] = 0  # one label never occurs
    found = evaluate_single_label(scores, gold, ["a", "b", "c", "d"])
    predicted = scores.argmax(axis=1)
    names = [0, 1, 2, 3]
    assert found.accuracy == pytest.approx(accuracy_score(gold, predicted))
    assert found.macro_f1 == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))
    assert found.loss == pytest.approx(log_loss(gold, softmax(scores), labels=names))
    assert [list(row) for row in found.confusion] == confusion_matrix(gold, predicted, labels=names).tolist()
    precision = precision_score(gold, predicted, labels=names, average=None, zero_division=0)
    recall = recall_score(gold, predicted, labels=names, average=None, zero_division=0)
    assert [line.precision for line in found.per_class] == pytest.approx(list(precision))
    assert [line.recall for line in found.per_class] == pytest.approx(list(recall))
    assert [line.rows for line in found.per_class] == np.bincount(gold, minlength=4).tolist()


def test_an_untaught_language_model_is_as_good_as_a_guess():
    model = language_model()
    model.head.linear.weight.data.zero_()
    sizes = [3, 9, 14, 6]
    rows = PackedDataset(corpus(sizes), np.arange(4), SPECIAL, context=12, layout="packed", seed=None)
    score = score_language(model, rows, 100, CPU, lambda: None)
    assert score.loss == pytest.approx(math.log(VOCABULARY), rel=1e-5)
    assert score.perplexity == pytest.approx(VOCABULARY, rel=1e-5)
    assert score.tokens == sum(size + 1 for size in sizes)
    assert score.bits_per_byte == pytest.approx(score.tokens * math.log2(VOCABULARY) / 100, rel=1e-5)


def test_measuring_is_the_same_in_any_bite(monkeypatch):
    from headstart.train import scoring as evaluate

    model = language_model().eval()
    rows = PackedDataset(corpus([3, 9, 14, 6, 20]), np.arange(5), SPECIAL, context=12, layout="packed", seed=None)
    whole = score_language(model, rows, 100, CPU, lambda: None)
    monkeypatch.setattr(evaluate, "CPU_TOKENS", 1)
    assert score_language(model, rows, 100, CPU, lambda: None).loss == pytest.approx(whole.loss, rel=1e-6)


def test_measuring_teaches_nothing():
    model = language_model()
    before = [parameter.clone() for parameter in model.parameters()]
    rows = PackedDataset(corpus([9, 9]), np.arange(2), SPECIAL, context=12, layout="packed", seed=None)
    score_language(model, rows, 10, CPU, lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
