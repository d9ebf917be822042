"""The arms that any network has to beat."""

import json
import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from headstart.errors import UsageError
from headstart.recipes.compare import baselines
from headstart.recipes.compare.baselines import BASELINES, run_baseline, score_of, tfidf

GOOD, BAD = ["a great book", "great fun", "truly great"], ["a dull book", "dull and long", "truly dull"]
TRAIN = (GOOD + BAD, [1, 1, 1, 0, 0, 0])
VALID = (["great story", "dull story"], [1, 0])
TEST = (["so great", "so dull", "great"], [1, 0, 0])
LABELS = ("negative", "positive")


def run(arm, train=TRAIN, valid=VALID, test=TEST, labels=LABELS, seed=0):
    return run_baseline(arm, train, valid, test, labels, seed)


def facts(cell):
    return cell.model_dump(exclude={"seconds"})


@pytest.mark.parametrize("arm", ["naive_bayes", "nbsvm", "tfidf"])
def test_an_arm_that_reads_words_learns_them(arm):
    cell = run(arm)
    assert cell.predictions == (1, 0, 1)
    assert cell.valid.accuracy == 1.0
    assert cell.test.accuracy == pytest.approx(2 / 3)
    assert cell.test.confusion == ((1, 1), (0, 1))
    assert (cell.epochs, cell.best_epoch, cell.rows) == ((), None, 6)


def test_the_majority_class_is_that_of_train_and_a_tie_goes_to_the_first_label():
    assert run("majority", train=(["x"] * 3, [1, 1, 0])).predictions == (1, 1, 1)
    assert run("majority", train=(["x"] * 2, [1, 0])).predictions == (0, 0, 0)


def test_validation_chooses_the_strength_and_a_tie_goes_to_the_smaller():
    assert run("tfidf").setting == {"C": 1}  # all three are right on both validation texts

    # one "great" among rows of the other label outweighs them only where train is followed closely
    train = (["great", "plain", "plain", "plain", "plain", "plain"], [1, 0, 0, 0, 0, 0])
    valid = (["great", "plain"], [1, 0])
    rights = [list(candidate.answer(valid[0]).argmax(axis=1)) == valid[1] for candidate in tfidf(train, 2)]
    assert rights == [False, True, True]
    assert run("tfidf", train=train, valid=valid).setting == {"C": 10}


def test_test_texts_do_not_reach_the_fit():
    cell = run("tfidf")
    other = run("tfidf", test=(["so great", "dull dull dull unseen", "zzz"], [0, 0, 0]))
    assert (cell.valid, cell.setting) == (other.valid, other.setting)
    assert cell.predictions[0] == other.predictions[0]


@pytest.mark.parametrize("arm", BASELINES)
def test_an_arm_gives_the_same_answers_every_time(arm):
    assert facts(run(arm, seed=3)) == facts(run(arm, seed=3))


@pytest.mark.parametrize("arm", BASELINES)
def test_an_arm_takes_many_labels_of_which_some_are_not_in_train(arm):
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    train = ([f"{word} {word}" for word in words[:10]], list(range(10)))
    cell = run(arm, train=train, valid=(words, list(range(12))), test=(words, list(range(12))), labels=words)
    expected = {"majority": (0,) * 10}.get(arm, tuple(range(10)))
    assert cell.predictions[:10] == expected
    assert len(cell.test.confusion) == 12


@pytest.mark.parametrize("arm", BASELINES)
@pytest.mark.parametrize("texts", [["?", "!"], ["", " "], ["a", "b"]])
def test_texts_without_words_leave_the_labels_to_learn_from(arm, texts):
    cell = run(arm, train=([*texts, "."], [1, 1, 0]), test=([*texts, "word"], [1, 1, 0]))
    assert cell.predictions == (1, 1, 1)


@pytest.mark.parametrize("arm", BASELINES)
def test_a_train_set_of_one_label_gives_that_label(arm):
    assert run(arm, train=(["some words", "more words"], [1, 1])).predictions == (1, 1, 1)


@pytest.mark.parametrize("arm", BASELINES)
def test_probabilities_stand_behind_the_answers(arm):
    cell = run(arm, train=(["great fun", "dull", "so dull", "odd"], [1, 0, 0, 2]), labels=(*LABELS, "other"))
    shares = np.array(cell.probabilities)
    assert shares.shape == (3, 3)
    assert shares.sum(axis=1) == pytest.approx(1, abs=3e-4)
    assert shares.argmax(axis=1).tolist() == list(cell.predictions)
    assert np.array(cell.valid_probabilities).shape == (2, 3)


def test_of_two_labels_the_second_ones_probability_is_kept():
    cell = run("tfidf")
    assert [share > 0.5 for share in cell.probabilities] == [bool(answer) for answer in cell.predictions]
    assert run("majority", train=(["x"] * 4, [1, 0, 0, 0])).probabilities == (0.25, 0.25, 0.25)


def test_many_validation_probabilities_are_left_out_of_a_cell(monkeypatch):
    monkeypatch.setattr(baselines, "VALID_PROBABILITIES", 3)
    assert run("tfidf").valid_probabilities is None
    assert run("tfidf").probabilities is not None


def test_what_was_tried_is_on_record_where_there_was_a_choice():
    assert run("tfidf").tried == tuple({"C": strength, "valid_accuracy": 1.0} for strength in (1, 10, 100))
    assert run("majority").tried == ()


def test_nbsvm_weighs_a_word_by_how_much_more_it_says_of_one_label():
    words = csr_matrix(np.array([[1.0, 0, 1], [1, 0, 0], [0, 1, 0]]))  # the first two rows are of the label
    own = np.array([True, True, False])
    mine, others = np.array([3, 1, 2]) / 6, np.array([1, 2, 1]) / 4  # each count with one added
    assert baselines._log_count_ratio(words, own) == pytest.approx(np.log(mine / others))


def test_nbsvm_says_more_than_a_plain_regression_where_labels_are_few():
    """A word of one label in a long row: counted, it is one of many; by its ratio, it decides."""
    filling = [f"w{number}" for number in range(60)]
    chance = random.Random(3)
    train = ([" ".join([*chance.sample(filling, 30), word]) for word in ["good", "bad"] * 5], [1, 0] * 5)
    cell = run("nbsvm", train=train, valid=(["good", "bad"], [1, 0]), test=(["good", "bad"], [1, 0]))
    assert cell.test.accuracy == 1.0


def test_a_vocabulary_is_bounded_only_where_there_is_much_text(monkeypatch):
    whole = facts(run("tfidf"))
    monkeypatch.setattr(baselines, "VOCABULARY", 2)
    assert facts(run("tfidf")) == whole  # little text: nothing changes
    monkeypatch.setattr(baselines, "UNBOUNDED", 10)
    bounded = run("tfidf")
    assert facts(bounded) != whole  # control
    assert bounded.predictions == (1, 0, 1)  # great and dull, the most frequent, are the two that are kept


def test_the_most_frequent_words_are_counted_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(baselines, "VOCABULARY", 20)
    chance = random.Random(0)
    common = [f"common{number}" for number in range(20)]
    texts = [" ".join([*chance.sample(common, 15), f"rare{number}"]) for number in range(500)]
    assert baselines._most_frequent(str.split, texts) == sorted(common)


@pytest.mark.parametrize("arm", BASELINES)
def test_probabilities_are_calibrated_on_validation_and_answers_stay(arm, monkeypatch):
    chance = random.Random(5)
    # one text in four says the opposite of its label, so that being sure is a mistake
    rows = [(chance.choice(GOOD if label != (chance.random() < 0.25) else BAD), label) for label in [1, 0] * 60]
    texts, gold = [text for text, _ in rows], [label for _, label in rows]
    valid, asked = (texts, gold), (*LABELS, "never in train")
    warm = run(arm, valid=valid, labels=asked)
    monkeypatch.setattr(baselines, "fit_temperature", lambda *_: (1.0, "not here"))
    raw = run(arm, valid=valid, labels=asked)
    assert (warm.predictions, warm.setting, warm.valid) == (raw.predictions, raw.setting, raw.valid)
    if arm == "majority":  # the same scores for every row
        assert (warm.temperature, warm.probabilities) == (1.0, raw.probabilities)
        return
    assert warm.temperature != 1
    given = [np.array(cell.valid_probabilities)[np.arange(120), gold] for cell in (warm, raw)]
    losses = [-np.log(np.maximum(shares, 1e-4)).mean() for shares in given]
    assert losses[0] < losses[1]
    assert {row[2] for row in warm.probabilities} == {0.0}  # no chance stays none


def test_macro_f1_leaves_out_a_label_that_never_occurs():
    score = score_of([0, 0, 1], run("majority", train=(["x"], [0])).predictions, 3)
    # label 0: 2 of 2 found with 3 answers, F1 = 4/5; label 1: 0; label 2: neither right nor answered
    assert (score.accuracy, score.macro_f1) == (pytest.approx(2 / 3), pytest.approx(0.4))


def test_an_unknown_arm_is_named():
    with pytest.raises(UsageError) as error:
        run("svm")
    assert str(error.value) == "unknown baseline svm; known: majority, naive_bayes, nbsvm, tfidf"


@pytest.mark.data
def test_tfidf_on_the_french_books_reaches_what_is_known_of_it_on_validation(real_data):
    train, valid = (_read(real_data / "cls-books" / f"{name}.jsonl") for name in ("train", "valid"))
    cell = run("tfidf", train=train, valid=valid, test=([], []))
    assert cell.setting == {"C": 100}
    assert cell.valid.accuracy == pytest.approx(0.8375, abs=0.005)


def _read(path):
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["text"] for row in rows], [LABELS.index(row["label"]) for row in rows]
