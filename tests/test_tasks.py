"""Tasks: logits to probabilities, probabilities to predictions, predictions to metrics, and what is calibrated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from headstart.data.datasets import fair_lengths, truncate_pair
from headstart.metrics import evaluate_regression
from headstart.predict.outputs import make_prediction
from headstart.tasks import MultiLabel, Regression, SingleLabel, is_number, task_from
from headstart.train.calibration import MIN_LABEL_ROWS, _choose_threshold, _f1, calibrate_task, reliability_of

TASKS = [
    SingleLabel(("a", "b")),
    SingleLabel(("a", "b"), pair=True),
    MultiLabel(("a", "b", "c"), thresholds=(0.2, 0.5, 0.875)),
    MultiLabel(("a",), pair=True),
    Regression((), False, 1.0, 5.0, 3.25, 1.5),
]


def random_logits_and_gold(rows=80, labels=3, seed=0):
    rng = np.random.default_rng(seed)
    gold = (rng.random((rows, labels)) < 0.4).astype(np.float32)
    return 2 * (gold - 0.6) + 1.5 * rng.standard_normal((rows, labels)), gold


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_a_task_is_equal_after_a_round_trip_through_its_record(task):
    again = task_from(task.facts(), task.labels)
    assert type(again) is type(task)
    assert again.facts() == task.facts()
    assert again.outputs == task.outputs


def test_a_bundle_without_a_task_record_is_single_label():
    assert task_from(None, ("a", "b")) == SingleLabel(("a", "b"))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "spans", "pair": False}, "unknown task 'spans'"),
        ({"kind": "classes", "pair": "no"}, "pair is 'no'"),
        ({"kind": "labels", "pair": False, "thresholds": {"a": 0.5}}, "the thresholds are not those of its labels"),
        (
            {"kind": "labels", "pair": False, "thresholds": {"a": 0.5, "b": float("nan")}},
            "the thresholds are not those of its labels",
        ),
        (
            {"kind": "rating", "pair": False, "lowest": 5, "highest": 1, "mean": 3, "spread": 1},
            "a rating between 5 and 1, with 2 labels",
        ),
    ],
)
def test_a_damaged_task_record_is_refused_with_its_fault(facts, message):
    with pytest.raises(ValueError) as caught:
        task_from(facts, ("a", "b"))
    assert str(caught.value) == message


@pytest.mark.parametrize("facts", [None, {"kind": "classes", "pair": False}])
def test_a_label_that_is_there_twice_is_refused(facts):
    with pytest.raises(ValueError, match=r"^it has a label twice$"):
        task_from(facts, ("a", "b", "a"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True, "1", None])
def test_what_no_float_can_be_is_no_number(value):
    assert not is_number(value)
    assert is_number(-1e308)
    assert is_number(10**300)


def test_multi_label_probabilities_are_independent():
    logits = np.array([[-800.0, 0.0, 3.0, 800.0]])
    probabilities = MultiLabel(tuple("abcd")).probabilities(logits)
    assert probabilities == pytest.approx(expit(logits), abs=1e-15)
    assert probabilities.sum() > 1  # control: not a softmax


def test_a_label_is_predicted_from_its_own_threshold_on():
    task = MultiLabel(("a", "b", "c"), thresholds=(0.2, 0.5, 0.9))
    assert make_prediction(task, np.array([0.2, 0.499, 0.95]), False).labels == ("a", "c")
    assert make_prediction(task, np.array([0.1, 0.1, 0.1]), False).labels == ()


def test_a_predicted_number_stays_within_the_bounds():
    task = Regression((), False, 1.0, 5.0, 3.0, 1.0)
    values = task.probabilities(np.array([[7.0], [-2.0], [3.3]]))
    assert [make_prediction(task, row, False).value for row in values] == [5.0, 1.0, 3.3]


def test_multi_label_metrics_equal_those_of_scikit_learn():
    logits, gold = random_logits_and_gold()
    evaluation = MultiLabel(("a", "b", "c")).measure(logits, gold)
    predictions = logits >= 0
    assert evaluation.micro_f1 == pytest.approx(f1_score(gold, predictions, average="micro"))
    assert evaluation.macro_f1 == pytest.approx(f1_score(gold, predictions, average="macro"))
    assert [label.f1 for label in evaluation.per_class] == pytest.approx(f1_score(gold, predictions, average=None))
    exact = np.mean([(a == b).all() for a, b in zip(predictions, gold > 0, strict=True)])
    assert evaluation.exact == pytest.approx(exact)
    probabilities = expit(logits)
    assert evaluation.loss == pytest.approx(-np.mean(np.log(np.where(gold > 0, probabilities, 1 - probabilities))))


def test_regression_metrics_equal_those_of_scipy():
    rng = np.random.default_rng(1)
    gold = rng.integers(1, 6, 60).astype(float)
    values = np.round(gold + rng.standard_normal(60), 1)  # rounded, so that there are ties
    evaluation = evaluate_regression(values, gold, mean=3.0, spread=2.0)
    assert evaluation.spearman == pytest.approx(spearmanr(values, gold).statistic)
    assert evaluation.pearson == pytest.approx(pearsonr(values, gold).statistic)
    assert evaluation.rmse == pytest.approx(np.sqrt(np.mean((values - gold) ** 2)))
    assert evaluation.mae == pytest.approx(np.mean(np.abs(values - gold)))
    assert evaluation.baseline_rmse == pytest.approx(np.sqrt(np.mean((3 - gold) ** 2)))
    assert evaluation.loss == pytest.approx(evaluation.rmse**2 / 4)
    assert evaluate_regression(np.ones(3), np.arange(3.0), 1.0, 1.0).spearman == 0.0


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=60, max_size=80))
def test_no_threshold_would_have_been_better_on_validation(rows):
    probabilities, has = np.array([twelfths / 12 for twelfths, _ in rows]), np.array([yes for _, yes in rows])
    chosen = _choose_threshold("a", probabilities, has)
    if min(has.sum(), (~has).sum()) < MIN_LABEL_ROWS:
        assert (chosen.threshold, chosen.reason is None) == (0.5, False)
        return
    best = max(_f1(probabilities >= threshold, has) for threshold in (*np.unique(probabilities), 0.5, 1.1))
    assert _f1(probabilities >= chosen.threshold, has) == pytest.approx(chosen.f1) == pytest.approx(best)
    assert chosen.f1 >= chosen.at_half


def test_few_validation_rows_keep_one_half_and_say_so():
    task = MultiLabel(("a", "b", "c"))
    logits, gold = random_logits_and_gold(rows=40)
    few = calibrate_task(task, logits, gold)
    assert few.task.threshold_array.tolist() == [0.5, 0.5, 0.5]
    assert few.thresholds[0].reason == "40 validation rows are too few to choose a threshold (at least 50)"
    logits, gold = random_logits_and_gold(rows=80)
    gold[:, 1] = 0
    gold[:3, 1] = 1
    many = calibrate_task(task, logits, gold)
    assert many.thresholds[1].reason == "3 validation rows have it, at least 5 are needed"
    assert many.thresholds[0].reason is None  # control


def test_a_temperature_improves_the_calibration_of_a_multi_label_task():
    logits, gold = random_logits_and_gold(rows=400)
    task = MultiLabel(("a", "b", "c"))
    result = calibrate_task(task, 5 * logits, gold)
    assert result.temperature > 2
    after = reliability_of(task, 5 * logits / result.temperature, gold)
    assert after.ece < reliability_of(task, 5 * logits, gold).ece
    assert (result.calibration.rows, result.calibration.thresholds) == (400, ())


def test_a_regression_has_nothing_to_calibrate():
    task = Regression((), False, 1.0, 5.0, 3.0, 1.0)
    result = calibrate_task(task, np.zeros((60, 1)), np.zeros(60))
    assert (result.task, result.calibration, result.temperature) == (task, None, 1.0)
    assert reliability_of(task, np.zeros((60, 1)), np.zeros(60)) is None


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 30))
def test_pairs_are_truncated_to_the_token_as_by_the_tokenizers_library(first, second, room):
    engine = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2}, unk_token="a"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.post_processor = processors.TemplateProcessing(
        single=["$A"], pair=["$A", "<eos>", "$B"], special_tokens=[("<eos>", 0)]
    )
    engine.enable_truncation(room + 1)
    theirs = engine.encode(" ".join("a" * first), " ".join("b" * second)).ids
    ours = truncate_pair(np.array([1] * first + [0] + [2] * second), room + 1, 0)
    assert ours.tolist() == theirs
    assert sum(fair_lengths(first, second, room)) == min(room, first + second)


def test_multi_label_metrics_use_the_threshold_of_each_label():
    gold = np.array([[1, 0], [0, 1]])
    logits = np.log(np.array([[0.3, 0.3], [0.1, 0.95]]) / (1 - np.array([[0.3, 0.3], [0.1, 0.95]])))
    evaluation = MultiLabel(("a", "b"), thresholds=(0.2, 0.9)).measure(logits, gold)
    assert evaluation.micro_f1 == 1.0
    assert MultiLabel(("a", "b")).measure(logits, gold).micro_f1 < 1.0  # control: at a half the first is missed
