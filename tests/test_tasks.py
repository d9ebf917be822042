"""What follows from the kind of answer: scores to shares, shares to answers, answers to measures, and what is fitted."""

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
from headstart.predict.predictions import make_prediction
from headstart.tasks import MultiLabel, Regression, SingleLabel, task_from
from headstart.train.calibration import MIN_LABEL_ROWS, _choose_threshold, _f1, calibrate_task, reliability_of

TARGETS = [
    SingleLabel(("a", "b")),
    SingleLabel(("a", "b"), pair=True),
    MultiLabel(("a", "b", "c"), thresholds=(0.2, 0.5, 0.875)),
    MultiLabel(("a",), pair=True),
    Regression((), False, 1.0, 5.0, 3.25, 1.5),
]


def scores_and_gold(rows=80, labels=3, seed=0):
    chance = np.random.default_rng(seed)
    gold = (chance.random((rows, labels)) < 0.4).astype(np.float32)
    return 2 * (gold - 0.6) + 1.5 * chance.standard_normal((rows, labels)), gold


@pytest.mark.parametrize("task", TARGETS, ids=lambda task: task.kind)
def test_what_a_model_answers_is_written_down_and_read_again(task):
    again = task_from(task.facts(), task.labels)
    assert type(again) is type(task)
    assert again.facts() == task.facts()
    assert again.outputs == task.outputs


def test_a_bundle_from_before_there_were_kinds_gives_classes():
    assert task_from(None, ("a", "b")) == SingleLabel(("a", "b"))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "spans", "pair": False}, "an unknown kind of answer 'spans'"),
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
def test_a_damaged_record_is_told(facts, message):
    with pytest.raises(ValueError) as caught:
        task_from(facts, ("a", "b"))
    assert str(caught.value) == message


def test_each_label_has_a_probability_of_its_own():
    scores = np.array([[-800.0, 0.0, 3.0, 800.0]])
    shares = MultiLabel(tuple("abcd")).probabilities(scores)
    assert shares == pytest.approx(expit(scores), abs=1e-15)
    assert shares.sum() > 1  # control: not a softmax


def test_a_label_is_given_from_its_own_threshold_on():
    task = MultiLabel(("a", "b", "c"), thresholds=(0.2, 0.5, 0.9))
    assert make_prediction(task, np.array([0.2, 0.499, 0.95]), False).labels == ("a", "c")
    assert make_prediction(task, np.array([0.1, 0.1, 0.1]), False).labels == ()


def test_an_answer_stays_within_the_bounds():
    task = Regression((), False, 1.0, 5.0, 3.0, 1.0)
    assert [
        make_prediction(task, row, False).value for row in task.probabilities(np.array([[7.0], [-2.0], [3.3]]))
    ] == [
        5.0,
        1.0,
        3.3,
    ]


def test_several_labels_are_measured_as_elsewhere():
    scores, gold = scores_and_gold()
    found = MultiLabel(("a", "b", "c")).measure(scores, gold)
    given = scores >= 0
    assert found.micro_f1 == pytest.approx(f1_score(gold, given, average="micro"))
    assert found.macro_f1 == pytest.approx(f1_score(gold, given, average="macro"))
    assert [one.f1 for one in found.per_class] == pytest.approx(f1_score(gold, given, average=None))
    assert found.exact == pytest.approx(np.mean([(a == b).all() for a, b in zip(given, gold > 0, strict=True)]))
    shares = expit(scores)
    assert found.loss == pytest.approx(-np.mean(np.log(np.where(gold > 0, shares, 1 - shares))))


def test_ratings_are_measured_as_elsewhere():
    chance = np.random.default_rng(1)
    gold = chance.integers(1, 6, 60).astype(float)
    values = np.round(gold + chance.standard_normal(60), 1)  # rounded, so that there are ties
    found = evaluate_regression(values, gold, mean=3.0, spread=2.0)
    assert found.spearman == pytest.approx(spearmanr(values, gold).statistic)
    assert found.pearson == pytest.approx(pearsonr(values, gold).statistic)
    assert found.rmse == pytest.approx(np.sqrt(np.mean((values - gold) ** 2)))
    assert found.mae == pytest.approx(np.mean(np.abs(values - gold)))
    assert found.baseline_rmse == pytest.approx(np.sqrt(np.mean((3 - gold) ** 2)))
    assert found.loss == pytest.approx(found.rmse**2 / 4)
    assert evaluate_regression(np.ones(3), np.arange(3.0), 1.0, 1.0).spearman == 0.0


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=60, max_size=80))
def test_no_threshold_would_have_been_better_on_validation(rows):
    shares, has = np.array([share / 12 for share, _ in rows]), np.array([yes for _, yes in rows])
    chosen = _choose_threshold("a", shares, has)
    if min(has.sum(), (~has).sum()) < MIN_LABEL_ROWS:
        assert (chosen.threshold, chosen.reason is None) == (0.5, False)
        return
    best = max(_f1(shares >= place, has) for place in (*np.unique(shares), 0.5, 1.1))
    assert _f1(shares >= chosen.threshold, has) == pytest.approx(chosen.f1) == pytest.approx(best)
    assert chosen.f1 >= chosen.at_half


def test_few_validation_rows_keep_one_half_and_say_so():
    task = MultiLabel(("a", "b", "c"))
    scores, gold = scores_and_gold(rows=40)
    few = calibrate_task(task, scores, gold)
    assert few.task.least.tolist() == [0.5, 0.5, 0.5]
    assert few.thresholds[0].reason == "40 validation rows are too few to choose on (at least 50)"
    scores, gold = scores_and_gold(rows=80)
    gold[:, 1] = 0
    gold[:3, 1] = 1
    enough = calibrate_task(task, scores, gold)
    assert enough.thresholds[1].reason == "3 validation rows have it, at least 5 are needed"
    assert enough.thresholds[0].reason is None  # control


def test_a_temperature_for_several_labels_makes_the_yes_and_no_keep_their_word():
    scores, gold = scores_and_gold(rows=400)
    task = MultiLabel(("a", "b", "c"))
    found = calibrate_task(task, 5 * scores, gold)
    assert found.temperature > 2
    after = reliability_of(task, 5 * scores / found.temperature, gold)
    assert after.ece < reliability_of(task, 5 * scores, gold).ece
    assert (found.calibration.rows, found.calibration.thresholds) == (400, ())


def test_a_number_has_nothing_to_calibrate():
    task = Regression((), False, 1.0, 5.0, 3.0, 1.0)
    found = calibrate_task(task, np.zeros((60, 1)), np.zeros(60))
    assert (found.task, found.calibration, found.temperature) == (task, None, 1.0)
    assert reliability_of(task, np.zeros((60, 1)), np.zeros(60)) is None


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 30))
def test_pairs_are_cut_to_the_token_as_tokenizers_cuts_them(first, second, room):
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


def test_several_labels_are_measured_by_their_own_thresholds():
    gold = np.array([[1, 0], [0, 1]])
    scores = np.log(np.array([[0.3, 0.3], [0.1, 0.95]]) / (1 - np.array([[0.3, 0.3], [0.1, 0.95]])))
    own = MultiLabel(("a", "b"), thresholds=(0.2, 0.9)).measure(scores, gold)
    assert own.micro_f1 == 1.0
    assert MultiLabel(("a", "b")).measure(scores, gold).micro_f1 < 1.0  # control: at a half the first is missed
