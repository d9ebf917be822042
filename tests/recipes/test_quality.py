"""A model that is no better than a constant prediction, or than a linear model, is called so."""

import random

import numpy as np
import pytest

from fixtures.tiny import review
from headstart.metrics import evaluate_multi_label, evaluate_regression, evaluate_single_label
from headstart.recipes.quality import (
    LinearPredictions,
    commonest_labels,
    constant_baseline,
    fit_linear_predictions,
    judge,
    linear_baseline,
    recorded_quality,
)

GOLD = np.array([0] * 60 + [1] * 40)


def evaluation(predictions, gold=GOLD, labels=("loan", "card")):
    return evaluate_single_label(np.eye(len(labels))[np.asarray(predictions)], gold, labels)


def with_errors(gold, errors):
    """The true labels, with the first rows of each label answered wrongly."""
    predictions = gold.copy()
    for label, count in enumerate(errors):
        predictions[np.flatnonzero(gold == label)[:count]] = 1 - label
    return predictions


@pytest.mark.parametrize(
    ("errors", "grade", "sentence"),
    [
        (
            (0, 40),
            "poor",
            "always predicting 'loan' gives 0.6000: poor result: the model predicts 'loan' for every row",
        ),
        (
            (20, 25),
            "poor",
            "always predicting 'loan' gives 0.6000: poor result: no better than a constant prediction",
        ),
        (
            (5, 32),
            "unclear",
            "always predicting 'loan' gives 0.6000: 100 rows are too few to tell whether the model is better "
            "than a constant prediction",
        ),
        ((5, 10), "better", "always predicting 'loan' gives 0.6000: the model is better"),
    ],
)
def test_an_evaluation_is_compared_with_the_commonest_label(errors, grade, sentence):
    result = evaluation(with_errors(GOLD, errors))
    quality = judge(result, constant_baseline(result))
    assert (quality.grade, quality.sentence) == (grade, sentence)


@pytest.mark.parametrize(
    ("errors", "linear_errors", "grade", "end"),
    [
        ((6, 20), (2, 2), "poor", "the linear model is better; `headstart auto` would use it"),
        (
            (6, 6),
            (5, 6),
            "unclear",
            "the model is not better than the linear model, which `headstart auto` would try",
        ),
        (
            (6, 6),
            (8, 6),
            "unclear",
            "the model is not clearly better than the linear model, which `headstart auto` would try",
        ),
        ((2, 2), (6, 20), "better", "the model is better than both"),
        (
            (0, 40),
            (5, 5),
            "poor",
            "poor result: the model predicts 'loan' for every row; the linear model is better, and `headstart auto` would "
            "use it",
        ),
        (
            (20, 25),
            (0, 40),
            "poor",
            "poor result: no better than a constant prediction; the linear model is no better: the texts may "
            "not contain information about the labels",
        ),
    ],
)
def test_a_trained_model_is_compared_with_the_linear_model_too(errors, linear_errors, grade, end):
    predictions, linear_predictions = with_errors(GOLD, errors), with_errors(GOLD, linear_errors)
    result, linear = evaluation(predictions), score(linear_predictions, predictions)
    quality = judge(result, constant_baseline(result, "loan"), linear, "validation")
    numbers = (
        f"validation accuracy {result.accuracy:.4f}; always predicting 'loan' gives 0.6000, a linear model trained on the "
        f"same rows gives {1 - sum(linear_errors) / 100:.4f}"
    )
    assert (quality.grade, quality.sentence) == (grade, f"{numbers}: {end}")


def score(linear_predictions, predictions, rows=100):
    """Compare predictions with those of a linear model that was trained on `rows` of 100 rows."""
    return linear_baseline(LinearPredictions(rows, 100, {"valid": linear_predictions}), "valid", predictions, GOLD, 2)


def test_a_linear_model_that_was_trained_on_a_part_of_the_rows_says_so():
    predictions = with_errors(GOLD, (2, 2))
    linear = score(with_errors(GOLD, (6, 20)), predictions, rows=30)
    result = evaluation(predictions)
    assert judge(result, constant_baseline(result), linear, "test").sentence == (
        "test accuracy 0.9600; always predicting 'loan' gives 0.6000, a linear model trained on 30 of the 100 rows "
        "gives 0.7400: the model is better than both"
    )


def test_the_constant_answer_may_be_the_commonest_of_train():
    baseline = constant_baseline(evaluation(GOLD), "card")
    assert (baseline.answer, baseline.figures["accuracy"]) == ("card", 0.4)


def test_several_labels_are_compared_with_the_commonest_ones():
    counts = {"late": 70, "broken": 60, "rude": 5}
    assert commonest_labels(counts, 100) == ["late", "broken"]
    gold = np.zeros((100, 3))
    gold[:70, 0] = gold[:60, 1] = gold[:5, 2] = 1
    for predictions, grade, end in (
        (gold > 0, "better", "the model is better"),
        (np.zeros((100, 3), bool), "poor", "poor result: no better than a constant prediction"),
    ):
        result = evaluate_multi_label(gold, predictions, gold, tuple(counts), np.full(3, 0.5))
        quality = judge(result, constant_baseline(result))
        f1 = 2 * 130 / (200 + 135)
        assert quality.sentence == f"always predicting 'late' and 'broken' gives {f1:.4f}: {end}"
        assert quality.grade == grade


def test_a_rating_is_compared_with_the_mean_of_train():
    rng = np.random.default_rng(0)
    gold = rng.normal(size=50)
    for values, grade in ((gold + 0.1, "better"), (np.full(50, 0.5), "poor")):
        result = evaluate_regression(values, gold, 0.0, 1.0)
        baseline = constant_baseline(result, 0.0)
        assert (baseline.name, baseline.answer, baseline.grade) == ("mean", 0.0, grade)
    assert judge(result, baseline, split="test").sentence == (
        f"test RMSE {result.rmse:.4f}; always predicting the training mean gives {result.baseline_rmse:.4f}: "
        "poor result: no better than a constant prediction; train longer, or with another learning rate"
    )
    few = evaluate_regression(gold[:3] * 0.9, gold[:3], 0.0, 1.0)
    assert constant_baseline(few).grade == "unclear"


def test_the_linear_model_reads_a_stratified_part_of_many_rows(monkeypatch):
    rng = random.Random(1)
    gold = np.array([0, 0, 1] * 20)
    texts = [review(rng, bool(label)) for label in gold]
    everything = fit_linear_predictions((texts, gold), {"valid": texts[:9]}, 2, 0)
    assert everything.rows == 60
    assert everything.predictions["valid"].tolist() == gold[:9].tolist()
    monkeypatch.setattr("headstart.recipes.quality._MAX_ROWS", 12)
    assert fit_linear_predictions((texts, gold), {"valid": texts[:9]}, 2, 0).rows == 12
    monkeypatch.setattr("headstart.recipes.quality._MAX_CHARACTERS", sum(map(len, texts)) // 10 + 1)
    assert fit_linear_predictions((texts, gold), {}, 2, 0).rows == 6


@pytest.mark.parametrize("about", [{}, {"quality": None}, {"quality": "fine"}, {"quality": {"grade": "superb"}}])
def test_a_bundle_without_a_recorded_quality_has_none(about):
    assert recorded_quality(about) is None
