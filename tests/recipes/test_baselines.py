"""The arms that any network has to beat."""

import json

import pytest

from headstart.errors import UsageError
from headstart.recipes.baselines import BASELINES, run_baseline, score_of, tfidf

GOOD, BAD = ["a great book", "great fun", "truly great"], ["a dull book", "dull and long", "truly dull"]
TRAIN = (GOOD + BAD, [1, 1, 1, 0, 0, 0])
VALID = (["great story", "dull story"], [1, 0])
TEST = (["so great", "so dull", "great"], [1, 0, 0])
LABELS = ("negative", "positive")


def run(arm, train=TRAIN, valid=VALID, test=TEST, labels=LABELS, seed=0):
    return run_baseline(arm, train, valid, test, labels, seed)


def facts(cell):
    return cell.model_dump(exclude={"seconds"})


@pytest.mark.parametrize("arm", ["naive_bayes", "tfidf"])
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
    rights = [list(candidate.answer(valid[0])) == valid[1] for candidate in tfidf(train)]
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


def test_macro_f1_leaves_out_a_label_that_never_occurs():
    score = score_of([0, 0, 1], run("majority", train=(["x"], [0])).predictions, 3)
    # label 0: 2 of 2 found with 3 answers, F1 = 4/5; label 1: 0; label 2: neither right nor answered
    assert (score.accuracy, score.macro_f1) == (pytest.approx(2 / 3), pytest.approx(0.4))


def test_an_unknown_arm_is_named():
    with pytest.raises(UsageError) as error:
        run("svm")
    assert str(error.value) == "unknown baseline svm; known: majority, naive_bayes, tfidf"


@pytest.mark.data
def test_tfidf_on_the_french_books_reaches_what_is_known_of_it_on_validation(real_data):
    train, valid = (_read(real_data / "cls-books" / f"{name}.jsonl") for name in ("train", "valid"))
    cell = run("tfidf", train=train, valid=valid, test=([], []))
    assert cell.setting == {"C": 100}
    assert cell.valid.accuracy == pytest.approx(0.8375, abs=0.005)


def _read(path):
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["text"] for row in rows], [LABELS.index(row["label"]) for row in rows]
