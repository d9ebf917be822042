"""One temperature, fitted on validation: probabilities come to mean what they say, and no answer changes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import SHAPE, VOCABULARY
from headstart.metrics import log_loss, reliability, softmax, wilson
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train import calibration as room
from headstart.train.calibration import calibrate, fit_temperature, fold_temperature, thresholds


def drawn(rows, warmth, classes=2, seed=0):
    """Scores that are too sure by a factor, and answers drawn from what they should have been."""
    chance = np.random.default_rng(seed)
    scores = chance.normal(size=(rows, classes)) * 2
    gold = np.array([chance.choice(classes, p=row) for row in softmax(scores)])
    return scores * warmth, gold


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("warmth", [0.3, 1.0, 4.0])
def test_the_temperature_that_was_put_in_is_found(warmth, classes):
    temperature, reason = fit_temperature(*drawn(8000, warmth, classes))
    assert reason is None
    assert temperature == pytest.approx(warmth, rel=0.1)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.2, 5.0), st.integers(50, 200))
def test_no_other_temperature_has_a_lower_log_loss(seed, warmth, rows):
    scores, gold = drawn(rows, warmth, seed=seed)
    temperature, reason = fit_temperature(scores, gold)
    assert reason is None
    least = log_loss(scores / temperature, gold)
    for other in np.geomspace(0.06, 19, 40):
        assert least <= log_loss(scores / other, gold) + 1e-6


def test_what_cannot_be_fitted_stays_and_says_why():
    scores, gold = drawn(200, 3.0)
    assert fit_temperature(scores[:49], gold[:49]) == (
        1.0,
        "49 validation rows are too few to fit on (at least 50; a larger validation file or labelled.valid_fraction gives more)",
    )
    assert fit_temperature(scores, np.zeros(200, int)) == (1.0, "the validation rows have one label only")
    right = "every validation row is answered rightly: there is no mistake to learn doubt from"
    assert fit_temperature(scores, scores.argmax(axis=1)) == (1.0, right)
    same = np.tile([0.3, 0.7], (200, 1))
    assert fit_temperature(same, gold) == (1.0, "every validation row has the same scores")
    assert calibrate(scores[:49], gold[:49]).thresholds == ()


@pytest.mark.parametrize(
    ("block", "reading"), [("classic", "causal"), ("modern", "causal"), ("modern", "bidirectional")]
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.7])
def test_a_head_gives_its_scores_divided_and_the_same_answers(block, reading, temperature):
    shape = SHAPE.model_copy(update={"block": block})
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 3, 0, reading)).eval()
    assert (model.head.dense is not None) == (
        (block, reading) == ("modern", "bidirectional")
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
    assert len(set(before.argmax(dim=1).tolist())) > 1  # control: there are several answers


def test_calibration_error_is_the_distance_between_sure_and_right():
    shares = np.array([[0.9, 0.1]] * 8 + [[0.4, 0.6]] * 2)
    gold = np.array([0] * 4 + [1] * 4 + [1, 0])
    found = reliability(shares, gold)
    assert found.ece == pytest.approx(0.8 * abs(0.9 - 0.5) + 0.2 * abs(0.6 - 0.5))
    assert [(part.rows, part.confidence, part.accuracy) for part in found.bins] == [
        (2, pytest.approx(0.6), 0.5),
        (8, pytest.approx(0.9), 0.5),
    ]
    assert found.low <= found.ece <= found.high
    assert found.log_loss == pytest.approx(
        -(4 * math.log(0.9) + 4 * math.log(0.1) + math.log(0.6) + math.log(0.4)) / 10
    )


def test_the_interval_of_the_error_narrows_with_more_rows():
    widths = [found.high - found.low for found in (reliability(*drawn_shares(rows)) for rows in (100, 10_000))]
    assert widths[1] < widths[0] / 4


def test_the_interval_of_right_probabilities_begins_at_zero():
    found = [reliability(softmax(scores), gold) for scores, gold in (drawn(300, 1.0, seed=n) for n in range(60))]
    assert sum(one.low == 0 for one in found) >= 57 - 3 * (60 * 0.95 * 0.05) ** 0.5
    assert min(one.ece for one in found) > 0.005  # control: no error of 0 was measured
    assert reliability(*drawn_shares(300)).low > 0  # control: too sure by far


def drawn_shares(rows):
    scores, gold = drawn(rows, 2.5)
    return softmax(scores), gold


def test_a_row_is_measured_by_a_temperature_it_had_no_part_in():
    scores, gold = drawn(400, 3.0)
    found = calibrate(scores, gold)
    assert found.after.ece < found.before.ece / 2
    own = log_loss(scores / found.temperature, gold)
    assert own < found.after.log_loss < found.before.log_loss  # the fitted rows' own figure would flatter


def test_a_threshold_is_the_lowest_that_gives_the_precision():
    scores, gold = drawn(2000, 1.0)
    shares = softmax(scores)
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == gold
    table = thresholds(shares, gold)
    assert [row.wanted for row in table] == sorted({row.wanted for row in table})
    for row in table:
        answered = sure >= row.threshold
        assert right[answered].mean() == pytest.approx(row.precision)
        assert row.precision >= row.wanted
        assert row.coverage == pytest.approx(answered.mean())
        assert row.low < row.precision < row.high
        lower = np.unique(sure[sure < row.threshold])
        assert all(right[sure >= other].mean() < row.wanted for other in lower[-200:])
    assert table[0].threshold == 0.0  # half right without leaving any text out
    assert table[-1].coverage < 1  # control
    assert all(row.answered >= room.MIN_ANSWERED for row in table)


def test_equally_sure_answers_stand_or_fall_together():
    shares = np.array([[0.9, 0.1]] * 60 + [[0.6, 0.4]] * 60)
    gold = np.array([0] * 57 + [1] * 3 + [0] * 30 + [1] * 30)
    table = {row.wanted: row for row in thresholds(shares, gold)}
    assert (table[0.95].threshold, table[0.95].answered) == (pytest.approx(0.75), 60)
    assert 0.96 not in table


@given(st.integers(0, 500), st.integers(1, 500))
def test_an_interval_of_a_share_holds_the_share(hits, rows):
    hits = min(hits, rows)
    low, high = wilson(hits, rows)
    assert 0 <= low <= hits / rows + 1e-12
    assert hits / rows - 1e-12 <= high <= 1
