"""Temperature scaling, reliability and precision thresholds."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import SHAPE, VOCABULARY
from headstart.metrics import evaluate_single_label, log_loss, reliability, softmax, wilson
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.recipes.finetune.run import summary_lines
from headstart.tasks import SingleLabel
from headstart.train.calibration import (
    MIN_ANSWERED,
    CalibrationResult,
    calibrate,
    fit_temperature,
    fold_temperature,
    precision_thresholds,
)


def sample(rows, temperature, classes=2, seed=0):
    """Draw labels from the softmax of logits, and return the logits multiplied by a temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    gold = np.array([rng.choice(classes, p=row) for row in softmax(logits)])
    return logits * temperature, gold


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("true_temperature", [0.3, 1.0, 4.0])
def test_the_true_temperature_is_recovered(true_temperature, classes):
    temperature, reason = fit_temperature(*sample(8000, true_temperature, classes))
    assert reason is None
    assert temperature == pytest.approx(true_temperature, rel=0.1)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.2, 5.0), st.integers(50, 200))
def test_no_other_temperature_has_a_lower_log_loss(seed, true_temperature, rows):
    logits, gold = sample(rows, true_temperature, seed=seed)
    temperature, reason = fit_temperature(logits, gold)
    assert reason is None
    lowest = log_loss(logits / temperature, gold)
    for other in np.geomspace(0.06, 19, 40):
        assert lowest <= log_loss(logits / other, gold) + 1e-6


def test_a_temperature_that_cannot_be_fitted_stays_one_and_says_why():
    logits, gold = sample(200, 3.0)
    assert fit_temperature(logits[:49], gold[:49]) == (
        1.0,
        "49 validation rows are too few to fit a temperature (at least 50; a larger validation file or labelled.valid_fraction "
        "gives more)",
    )
    assert fit_temperature(logits, np.zeros(200, int)) == (1.0, "the validation rows have one label only")
    right = "every validation row is classified correctly: there are no errors to fit a temperature on"
    assert fit_temperature(logits, logits.argmax(axis=1)) == (1.0, right)
    same = np.tile([0.3, 0.7], (200, 1))
    assert fit_temperature(same, gold) == (1.0, "every validation row has the same scores")
    assert calibrate(logits[:49], gold[:49]).thresholds == ()


@pytest.mark.parametrize(
    ("block", "attention"), [("classic", "causal"), ("modern", "causal"), ("modern", "bidirectional")]
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.7])
def test_folding_a_temperature_divides_the_logits_and_keeps_the_predictions(block, attention, temperature):
    shape = SHAPE.model_copy(update={"block": block})
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, attention)).eval()
    assert (model.head.dense is not None) == (
        (block, attention) == ("modern", "bidirectional")
    )  # a head with a layer between
    torch.manual_seed(0)
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter)
    hidden, lengths = torch.randn(40, 6, shape.width), torch.full((40,), 6)
    with torch.no_grad():
        before = model.head(hidden, lengths)
        fold_temperature(model.head, temperature)
        after = model.head(hidden, lengths)
    torch.testing.assert_close(after, before / temperature)
    assert torch.equal(after.argmax(dim=1), before.argmax(dim=1))
    assert len(set(before.argmax(dim=1).tolist())) > 1  # control: there are several predictions


def test_the_calibration_error_is_the_distance_between_confidence_and_accuracy():
    probabilities = np.array([[0.9, 0.1]] * 8 + [[0.4, 0.6]] * 2)
    gold = np.array([0] * 4 + [1] * 4 + [1, 0])
    result = reliability(probabilities, gold)
    assert result.ece == pytest.approx(0.8 * abs(0.9 - 0.5) + 0.2 * abs(0.6 - 0.5))
    assert [(bin_.rows, bin_.confidence, bin_.accuracy) for bin_ in result.bins] == [
        (2, pytest.approx(0.6), 0.5),
        (8, pytest.approx(0.9), 0.5),
    ]
    assert result.low <= result.ece <= result.high
    assert result.log_loss == pytest.approx(
        -(4 * math.log(0.9) + 4 * math.log(0.1) + math.log(0.6) + math.log(0.4)) / 10
    )


def test_the_interval_of_the_error_narrows_with_more_rows():
    widths = [
        result.high - result.low for result in (reliability(*sample_probabilities(rows)) for rows in (100, 10_000))
    ]
    assert widths[1] < widths[0] / 4


def test_the_error_interval_of_calibrated_probabilities_begins_at_zero():
    results = [reliability(softmax(logits), gold) for logits, gold in (sample(300, 1.0, seed=n) for n in range(60))]
    assert sum(result.low == 0 for result in results) >= 57 - 3 * (60 * 0.95 * 0.05) ** 0.5
    assert min(result.ece for result in results) > 0.005  # control: no error of 0 was measured
    assert reliability(*sample_probabilities(300)).low > 0  # control: far too confident


def sample_probabilities(rows):
    logits, gold = sample(rows, 2.5)
    return softmax(logits), gold


def test_a_row_is_measured_with_a_temperature_fitted_on_others():
    logits, gold = sample(400, 3.0)
    calibration = calibrate(logits, gold)
    assert calibration.after.ece < calibration.before.ece / 2
    in_sample = log_loss(logits / calibration.temperature, gold)
    assert in_sample < calibration.after.log_loss < calibration.before.log_loss  # in-sample would be optimistic


def test_a_temperature_that_does_not_lower_the_log_loss_of_other_rows_stays_one():
    kept = [calibrate(*sample(60, 1.0, seed=seed)) for seed in range(20)]
    unhelpful = [one for one in kept if one.reason is not None]
    assert unhelpful
    for one in unhelpful:
        assert (one.temperature, one.before) == (1.0, one.after)
        assert re.fullmatch(
            r"a temperature does not reduce the log-loss on validation \(0\.\d{4}, 0\.\d{4} with one\)", one.reason
        )
    assert all(one.after.log_loss < one.before.log_loss for one in kept if one.reason is None)
    assert calibrate(*sample(400, 3.0)).reason is None  # control


@pytest.mark.parametrize(
    ("factor", "bound"),
    [
        (
            1000.0,
            "the highest value that is tried: the scores of the model hardly depend on whether a prediction is correct",
        ),
        (0.0001, "the lowest value that is tried: the scores of the model hardly differ between the labels"),
        (1.0, None),
    ],
)
def test_a_temperature_at_its_bound_is_described(factor, bound):
    logits, gold = sample(400, 3.0)
    assert calibrate(logits * factor, gold).bound == bound


def test_the_line_about_a_calibration_says_where_it_made_the_error_worse():
    logits, gold = sample(400, 3.0)
    calibration = calibrate(logits * 1000, gold)
    better, worse = calibration.after, replace(calibration.after, ece=calibration.before.ece + 0.01)
    result = evaluate_single_label(logits, gold, ("a", "b"))
    lines = [
        next(summary_lines(CalibrationResult(SingleLabel(("a", "b")), replace(calibration, after=after)), result))
        for after in (better, worse)
    ]
    start = (
        "probabilities calibrated on 400 validation rows: temperature 20.00 (the highest value that is tried: the scores of "
        "the model hardly depend on whether a prediction is correct), "
        f"calibration error {100 * calibration.before.ece:.1f} -> "
    )
    rose = f": it increased, although the log-loss decreased from {calibration.before.log_loss:.4f} to {worse.log_loss:.4f}"
    assert lines == [f"{start}{100 * better.ece:.1f} points", f"{start}{100 * worse.ece:.1f} points{rose}"]


def test_a_threshold_is_the_lowest_that_gives_the_precision():
    logits, gold = sample(2000, 1.0)
    probabilities = softmax(logits)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == gold
    table = precision_thresholds(probabilities, gold)
    assert [row.wanted for row in table] == sorted({row.wanted for row in table})
    for row in table:
        answered = confidence >= row.threshold
        assert correct[answered].mean() == pytest.approx(row.precision)
        assert row.precision >= row.wanted
        assert row.coverage == pytest.approx(answered.mean())
        assert row.low < row.precision < row.high
        lower = np.unique(confidence[confidence < row.threshold])
        assert all(correct[confidence >= other].mean() < row.wanted for other in lower[-200:])
    assert table[0].threshold == 0.0  # half of them are correct without abstaining
    assert table[-1].coverage < 1  # control
    assert all(row.answered >= MIN_ANSWERED for row in table)


def test_equally_confident_predictions_are_accepted_together():
    probabilities = np.array([[0.9, 0.1]] * 60 + [[0.6, 0.4]] * 60)
    gold = np.array([0] * 57 + [1] * 3 + [0] * 30 + [1] * 30)
    table = {row.wanted: row for row in precision_thresholds(probabilities, gold)}
    assert (table[0.95].threshold, table[0.95].answered) == (pytest.approx(0.75), 60)
    assert 0.96 not in table


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_contains_the_fraction(hits, rows):
    hits = min(hits, rows)
    low, high = wilson(hits, rows)
    assert 0 <= low <= hits / rows + 1e-12
    assert hits / rows - 1e-12 <= high <= 1
