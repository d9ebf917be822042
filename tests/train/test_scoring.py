"""Scores equal scikit-learn's metrics and the entropy of a guess."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss, precision_score, recall_score

from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus, language_model
from headstart.data.datasets import PackedDataset
from headstart.metrics import evaluate_single_label, softmax
from headstart.train.scoring import score_language


def test_single_label_metrics_equal_scikit_learns():
    rng = np.random.default_rng(0)
    logits, gold = rng.normal(size=(200, 4)), rng.integers(0, 4, 200)
    gold[gold == 3] = 0  # one label never occurs
    evaluation = evaluate_single_label(logits, gold, ["a", "b", "c", "d"])
    predicted = logits.argmax(axis=1)
    names = [0, 1, 2, 3]
    assert evaluation.accuracy == pytest.approx(accuracy_score(gold, predicted))
    assert evaluation.macro_f1 == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))
    assert evaluation.loss == pytest.approx(log_loss(gold, softmax(logits), labels=names))
    assert [list(row) for row in evaluation.confusion] == confusion_matrix(gold, predicted, labels=names).tolist()
    precision = precision_score(gold, predicted, labels=names, average=None, zero_division=0)
    recall = recall_score(gold, predicted, labels=names, average=None, zero_division=0)
    assert [line.precision for line in evaluation.per_class] == pytest.approx(list(precision))
    assert [line.recall for line in evaluation.per_class] == pytest.approx(list(recall))
    assert [line.rows for line in evaluation.per_class] == np.bincount(gold, minlength=4).tolist()


def test_an_untrained_language_model_scores_as_a_guess():
    model = language_model()
    model.head.linear.weight.data.zero_()
    sizes = [3, 9, 14, 6]
    rows = PackedDataset(corpus(sizes), np.arange(4), SPECIAL, context=12, layout="packed", seed=None)
    score = score_language(model, rows, 100, CPU, lambda: None)
    assert score.loss == pytest.approx(math.log(VOCABULARY), rel=1e-5)
    assert score.perplexity == pytest.approx(VOCABULARY, rel=1e-5)
    assert score.tokens == sum(size + 1 for size in sizes)
    assert score.bits_per_byte == pytest.approx(score.tokens * math.log2(VOCABULARY) / 100, rel=1e-5)


def test_the_score_does_not_depend_on_the_batch_size(monkeypatch):
    model = language_model().eval()
    rows = PackedDataset(corpus([3, 9, 14, 6, 20]), np.arange(5), SPECIAL, context=12, layout="packed", seed=None)
    in_one_batch = score_language(model, rows, 100, CPU, lambda: None)
    monkeypatch.setattr("headstart.kernels.dispatch.CPU_SCORING_TOKENS", 1)
    assert score_language(model, rows, 100, CPU, lambda: None).loss == pytest.approx(in_one_batch.loss, rel=1e-6)


def test_scoring_changes_no_weight():
    model = language_model()
    before = [parameter.clone() for parameter in model.parameters()]
    rows = PackedDataset(corpus([9, 9]), np.arange(2), SPECIAL, context=12, layout="packed", seed=None)
    score_language(model, rows, 10, CPU, lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
