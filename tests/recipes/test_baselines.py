"""The baselines that any network has to beat."""

import json
import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from headstart.errors import UsageError
from headstart.linear.classifier import fit_linear
from headstart.metrics import softmax
from headstart.recipes.compare import baselines
from headstart.recipes.compare.baselines import BASELINES, LINEAR, nbsvm, run_baseline, score_predictions
from headstart.store.records import round_probabilities

GOOD, BAD = ["a great book", "great fun", "truly great"], ["a dull book", "dull and long", "truly dull"]
TRAIN = (GOOD + BAD, [1, 1, 1, 0, 0, 0])
VALID = (["great story", "dull story"], [1, 0])
TEST = (["so great", "so dull", "great"], [1, 0, 0])
LABELS = ("negative", "positive")


def run(arm, train=TRAIN, valid=VALID, test=TEST, labels=LABELS, seed=0):
    return run_baseline(arm, train, valid, test, labels, seed)


def without_seconds(record):
    return record.model_dump(exclude={"seconds"})


@pytest.mark.parametrize("arm", ["naive_bayes", "nbsvm", "linear"])
def test_a_baseline_learns_words(arm):
    record = run(arm)
    assert record.predictions == (1, 0, 1)
    assert record.valid.accuracy == 1.0
    assert record.test.accuracy == pytest.approx(2 / 3)
    assert record.test.confusion == ((1, 1), (0, 1))
    assert (record.epochs, record.best_epoch, record.rows) == ((), None, 6)


def test_the_majority_class_is_that_of_train_and_a_tie_goes_to_the_first_label():
    assert run("majority", train=(["x"] * 3, [1, 1, 0])).predictions == (1, 1, 1)
    assert run("majority", train=(["x"] * 2, [1, 0])).predictions == (0, 0, 0)


def test_validation_chooses_c_and_a_tie_goes_to_the_smaller():
    assert run("nbsvm").setting == {"C": 1}  # all three are right on both validation texts

    # one "great" among rows of the other label outweighs them only where C is large
    train = (["great", "plain", "plain", "plain", "plain", "plain"], [1, 0, 0, 0, 0, 0])
    valid = (["great", "plain"], [1, 0])
    is_correct = [list(candidate.predict_proba(valid[0]).argmax(axis=1)) == valid[1] for candidate in nbsvm(train, 2)]
    assert is_correct == [False, True, True]
    assert run("nbsvm", train=train, valid=valid).setting == {"C": 10}


def test_the_linear_arm_is_the_linear_classifier_with_its_own_temperature():
    fit = fit_linear(*TRAIN, 2, seed=3)
    record = run("linear", seed=3)
    assert record.setting | {"temperature": record.temperature} == fit.setting
    assert record.probabilities == round_probabilities(softmax(fit.classifier.logits(TEST[0])).tolist())
    assert record.tried == ()


def test_the_linear_arm_is_interrupted_between_fits():
    def check():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_baseline("linear", TRAIN, VALID, TEST, LABELS, 0, check=check)


def test_the_fit_does_not_depend_on_test_texts():
    record = run("linear")
    other = run("linear", test=(["so great", "dull dull dull unseen", "zzz"], [0, 0, 0]))
    assert (record.valid, record.setting) == (other.valid, other.setting)
    assert record.predictions[0] == other.predictions[0]


@pytest.mark.parametrize("arm", [*BASELINES, LINEAR])
def test_a_baseline_is_deterministic(arm):
    assert without_seconds(run(arm, seed=3)) == without_seconds(run(arm, seed=3))


@pytest.mark.parametrize("arm", [*BASELINES, LINEAR])
def test_a_baseline_takes_labels_that_are_not_in_train(arm):
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    train = ([f"{word} {word}" for word in words[:10]], list(range(10)))
    record = run(arm, train=train, valid=(words, list(range(12))), test=(words, list(range(12))), labels=words)
    expected = {"majority": (0,) * 10}.get(arm, tuple(range(10)))
    assert record.predictions[:10] == expected
    assert len(record.test.confusion) == 12


@pytest.mark.parametrize("arm", BASELINES)
@pytest.mark.parametrize("texts", [["?", "!"], ["", " "], ["a", "b"]])
def test_texts_without_words_predict_the_most_frequent_label(arm, texts):
    record = run(arm, train=([*texts, "."], [1, 1, 0]), test=([*texts, "word"], [1, 1, 0]))
    assert record.predictions == (1, 1, 1)


@pytest.mark.parametrize("arm", [*BASELINES, LINEAR])
def test_a_train_set_of_one_label_predicts_that_label(arm):
    assert run(arm, train=(["some words", "more words"], [1, 1])).predictions == (1, 1, 1)


@pytest.mark.parametrize("arm", [*BASELINES, LINEAR])
def test_predictions_are_the_most_probable_labels(arm):
    record = run(arm, train=(["great fun", "dull", "so dull", "odd"], [1, 0, 0, 2]), labels=(*LABELS, "other"))
    probabilities = np.array(record.probabilities)
    assert probabilities.shape == (3, 3)
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=3e-4)
    assert probabilities.argmax(axis=1).tolist() == list(record.predictions)
    assert np.array(record.valid_probabilities).shape == (2, 3)


def test_of_two_labels_the_probability_of_the_second_is_recorded():
    record = run("linear")
    assert [probability > 0.5 for probability in record.probabilities] == [bool(label) for label in record.predictions]
    assert run("majority", train=(["x"] * 4, [1, 0, 0, 0])).probabilities == (0.25, 0.25, 0.25)


def test_many_validation_probabilities_are_not_recorded(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_VALID_PROBABILITIES", 3)
    assert run("linear").valid_probabilities is None
    assert run("linear").probabilities is not None


def test_candidates_are_recorded_where_there_are_several():
    assert run("nbsvm").tried == tuple({"C": strength, "valid_accuracy": 1.0} for strength in (1, 10, 100))
    assert run("majority").tried == ()


def test_nbsvm_scales_a_word_by_its_log_count_ratio():
    words = csr_matrix(np.array([[1.0, 0, 1], [1, 0, 0], [0, 1, 0]]))  # the first two rows are positive
    is_positive = np.array([True, True, False])
    positive, negative = np.array([3, 1, 2]) / 6, np.array([1, 2, 1]) / 4  # each count with one added
    assert baselines._log_count_ratio(words, is_positive) == pytest.approx(np.log(positive / negative))


def test_nbsvm_separates_long_texts_by_one_word():
    """In a count of words it is one of many; scaled by its ratio, it decides."""
    filler = [f"w{number}" for number in range(60)]
    rng = random.Random(3)
    train = ([" ".join([*rng.sample(filler, 30), word]) for word in ["good", "bad"] * 5], [1, 0] * 5)
    record = run("nbsvm", train=train, valid=(["good", "bad"], [1, 0]), test=(["good", "bad"], [1, 0]))
    assert record.test.accuracy == 1.0


def test_the_vocabulary_is_bounded_only_for_large_texts(monkeypatch):
    expected = without_seconds(run("nbsvm"))
    monkeypatch.setattr(baselines, "MAX_TERMS", 2)
    assert without_seconds(run("nbsvm")) == expected  # little text: nothing changes
    monkeypatch.setattr(baselines, "MAX_UNBOUNDED_CHARACTERS", 10)
    bounded = run("nbsvm")
    assert without_seconds(bounded) != expected  # control
    assert bounded.predictions == (1, 0, 1)  # the two terms are great and dull, the most frequent


def test_the_most_frequent_words_are_counted_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_TERMS", 20)
    rng = random.Random(0)
    common = [f"common{number}" for number in range(20)]
    texts = [" ".join([*rng.sample(common, 15), f"rare{number}"]) for number in range(500)]
    assert baselines._most_frequent(str.split, texts) == sorted(common)


@pytest.mark.parametrize("arm", BASELINES)
def test_calibration_on_validation_does_not_change_predictions(arm, monkeypatch):
    rng = random.Random(5)
    # one text in four contradicts its label, so that confident probabilities are wrong
    rows = [(rng.choice(GOOD if label != (rng.random() < 0.25) else BAD), label) for label in [1, 0] * 60]
    texts, gold = [text for text, _ in rows], [label for _, label in rows]
    valid, labels = (texts, gold), (*LABELS, "never in train")
    calibrated = run(arm, valid=valid, labels=labels)
    monkeypatch.setattr(baselines, "fit_temperature", lambda *_: (1.0, "not here"))
    raw = run(arm, valid=valid, labels=labels)
    assert (calibrated.predictions, calibrated.setting, calibrated.valid) == (raw.predictions, raw.setting, raw.valid)
    if arm == "majority":  # every row has the same probabilities
        assert (calibrated.temperature, calibrated.probabilities) == (1.0, raw.probabilities)
        return
    assert calibrated.temperature != 1
    gold_probabilities = [np.array(record.valid_probabilities)[np.arange(120), gold] for record in (calibrated, raw)]
    losses = [-np.log(np.maximum(probabilities, 1e-4)).mean() for probabilities in gold_probabilities]
    assert losses[0] < losses[1]
    assert {row[2] for row in calibrated.probabilities} == {0.0}  # a probability of 0 stays 0


def test_macro_f1_excludes_a_label_that_never_occurs():
    score = score_predictions([0, 0, 1], run("majority", train=(["x"], [0])).predictions, 3)
    # label 0: 2 of 2 recalled with 3 predictions, F1 = 4/5; label 1: 0; label 2: neither occurs nor is predicted
    assert (score.accuracy, score.macro_f1) == (pytest.approx(2 / 3), pytest.approx(0.4))


def test_an_unknown_baseline_is_refused_by_name():
    with pytest.raises(UsageError) as error:
        run("svm")
    assert str(error.value) == "unknown baseline svm; available: majority, naive_bayes, nbsvm, linear"


@pytest.mark.data
def test_linear_on_the_french_books_has_its_known_validation_accuracy(real_data):
    train, valid = (_read(real_data / "cls-books" / f"{name}.jsonl") for name in ("train", "valid"))
    record = run("linear", train=train, valid=valid, test=([], []))
    assert record.valid.accuracy == pytest.approx(0.86, abs=0.02)


def _read(path):
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["text"] for row in rows], [LABELS.index(row["label"]) for row in rows]
