"""What is said of a comparison, in whole sentences."""

import pytest

from headstart.report.collect import collect
from headstart.report.verdict import verdict
from report.make_comparison import make_comparison, write_answers

TEXTS = 200


def marks(right, *, of=TEXTS, shift=0):
    """Right on the first `right` texts, the whole turned by `shift`."""
    row = "1" * right + "0" * (of - right)
    return row[-shift:] + row[:-shift] if shift else row


def said(folder, answers, **more):
    return verdict(collect(write_answers(folder, answers, **more)))


def seeds(*rights):
    return {seed: marks(right) for seed, right in enumerate(rights)}


MAJORITY = {0: "10" * (TEXTS // 2)}


def test_the_linear_arm_wins_and_the_first_sentence_says_so(tmp_path):
    sentences = said(
        tmp_path,
        {
            "majority": MAJORITY,
            "tfidf": seeds(180),
            "scratch": seeds(140, 142, 138),
            "pretrained": seeds(160, 161, 159),
        },
        curves={"scratch": (0.5, 0.6, 0.7), "pretrained": (0.65, 0.75, 0.8)},
    )
    assert sentences == [
        "TF-IDF + logistic regression won: 90.0 % on test, 10.0 points above the pretrained network (80.0 %).",
        "Pretraining was worth +10.0 points over random weights (95 % interval +5.9 to +14.1, 3 paired seeds).",
        "The pretrained network reached the from-scratch network's best validation accuracy "
        "after 2 epochs instead of 3.",
    ]


def test_the_pretrained_network_wins(tmp_path):
    sentences = said(
        tmp_path,
        {
            "majority": MAJORITY,
            "tfidf": seeds(160),
            "scratch": seeds(140, 142, 138),
            "pretrained": seeds(180, 181, 179),
        },
        curves={"scratch": (0.5, 0.6, 0.7), "pretrained": (0.75, 0.75, 0.8)},
    )
    assert sentences == [
        "The pretrained network won: 90.0 % on test, 10.0 points above TF-IDF + logistic regression (80.0 %).",
        "Pretraining was worth +20.0 points over random weights (95 % interval +14.4 to +25.6, 3 paired seeds).",
        "The pretrained network reached the from-scratch network's best validation accuracy "
        "after 1 epoch instead of 3.",
    ]


def test_a_lead_within_the_interval_is_not_called_a_win(tmp_path):
    answers = {
        "majority": MAJORITY,
        "tfidf": {0: marks(160, shift=20)},
        "scratch": {0: marks(158, shift=60), 1: marks(159, shift=60)},
        "pretrained": {0: marks(161), 1: marks(163)},
    }
    assert said(tmp_path, answers) == [
        "The pretrained network is ahead, but not measurably: 81.0 % on test, 1.0 points above "
        "TF-IDF + logistic regression (80.0 %; 95 % interval −7.7 to +9.7).",
        "No measurable gain from pretraining: +1.8 points (95 % interval −7.5 to +11.0, 2 paired seeds).",
        "The pretrained network reached the from-scratch network's best validation accuracy no sooner: "
        "after 2 epochs, like the other.",
    ]


def test_pretraining_that_hurts_is_told(tmp_path):
    answers = {"scratch": seeds(180, 181, 179), "pretrained": seeds(150, 151, 149)}
    assert said(tmp_path, answers | {"majority": MAJORITY, "tfidf": seeds(120)})[:3] == [
        "The from-scratch network won: 90.0 % on test, 15.0 points above the pretrained network (75.0 %).",
        "TF-IDF + logistic regression came to 60.0 %, 30.0 points below the from-scratch network.",
        "Pretraining hurt: −15.0 points against random weights (95 % interval −19.9 to −10.1, 3 paired seeds).",
    ]


def test_one_seed_says_what_it_cannot_show(tmp_path):
    answers = {"majority": MAJORITY, "tfidf": seeds(110), "scratch": seeds(140), "pretrained": seeds(160)}
    assert said(tmp_path, answers)[2] == (
        "Pretraining was worth +10.0 points over random weights (95 % interval +5.8 to +14.2 "
        "over the test texts alone: one seed cannot show the luck of training)."
    )


def test_a_tie_is_called_a_tie(tmp_path):
    answers = {"majority": MAJORITY, "tfidf": seeds(160), "scratch": seeds(120), "pretrained": seeds(160)}
    expected = "A tie: TF-IDF + logistic regression and the pretrained network both have 80.0 % on test."
    assert said(tmp_path, answers)[0] == expected


def test_a_difference_that_rounds_to_nothing_is_level(tmp_path):
    answers = {
        "majority": {0: marks(1500, of=3000)},
        "tfidf": {0: marks(2400, of=3000)},
        "scratch": {0: marks(2000, of=3000)},
        "pretrained": {0: marks(2401, shift=30, of=3000)},
    }
    assert said(tmp_path, answers)[0] == (
        "The pretrained network is level with TF-IDF + logistic regression: 80.0 % and 80.0 % on test."
    )


def test_an_arm_that_is_named_later_may_be_level_too(tmp_path):
    answers = {
        "majority": {0: marks(1500, of=3000)},
        "tfidf": {0: marks(2400, of=3000)},
        "scratch": {0: marks(2401, of=3000)},
        "pretrained": {0: marks(2401, of=3000)},
    }
    assert said(tmp_path, answers)[1] == (
        "TF-IDF + logistic regression came to 80.0 %, level with the from-scratch network."
    )


def test_equal_networks_show_no_gain(tmp_path):
    answers = {"majority": MAJORITY, "tfidf": seeds(120), "scratch": seeds(150, 151), "pretrained": seeds(150, 151)}
    expected = "No measurable gain from pretraining: 0.0 points (95 % interval 0.0 to 0.0, 2 paired seeds)."
    assert expected in said(tmp_path, answers)


def test_networks_below_the_majority_class_are_told(tmp_path):
    answers = {"majority": seeds(120), "tfidf": seeds(150), "scratch": seeds(110), "pretrained": seeds(119)}
    assert said(tmp_path, answers)[:2] == [
        "TF-IDF + logistic regression won: 75.0 % on test, 15.5 points above the pretrained network (59.5 %).",
        "Neither network beat the majority class (60.0 %): from scratch 55.0 %, pretrained 59.5 %.",
    ]


def test_a_leading_linear_arm_is_held_against_the_best_network_not_against_another_linear_arm(tmp_path):
    answers = {"naive_bayes": seeds(148), "tfidf": seeds(150), "scratch": seeds(110), "pretrained": seeds(125)}
    first = "TF-IDF + logistic regression won: 75.0 % on test, 12.5 points above the pretrained network (62.5 %)."
    assert said(tmp_path, answers)[0] == first


def test_one_network_at_the_majority_class_is_told(tmp_path):
    answers = {"majority": seeds(120), "tfidf": seeds(150), "scratch": seeds(120), "pretrained": seeds(140)}
    expected = "The from-scratch network (60.0 %) did not beat the majority class (60.0 %)."
    assert said(tmp_path, answers)[1] == expected


def test_a_network_that_never_gets_there_is_told(tmp_path):
    sentences = said(
        tmp_path,
        {"scratch": seeds(150), "pretrained": seeds(140), "majority": MAJORITY, "tfidf": seeds(145)},
        curves={"scratch": (0.5, 0.763), "pretrained": (0.6, 0.6)},
    )
    assert sentences[-1] == (
        "The pretrained network never reached the from-scratch network's best validation accuracy (76.3 %, epoch 2)."
    )


def test_a_network_that_gets_there_later_is_told(tmp_path):
    sentences = said(
        tmp_path,
        {"scratch": seeds(150), "pretrained": seeds(140), "majority": MAJORITY, "tfidf": seeds(145)},
        curves={"scratch": (0.7, 0.6, 0.6), "pretrained": (0.6, 0.6, 0.8)},
    )
    assert sentences[-1] == (
        "The pretrained network reached the from-scratch network's best validation accuracy later: "
        "after 3 epochs instead of 1."
    )


def test_fewer_labels_get_a_sentence_each(tmp_path):
    base = {"majority": MAJORITY, "tfidf": seeds(170), "scratch": seeds(140, 142), "pretrained": seeds(160, 161)}
    write_answers(tmp_path, base)
    few = {"majority": MAJORITY, "tfidf": seeds(130), "scratch": seeds(105, 104), "pretrained": seeds(140, 139)}
    write_answers(tmp_path, few, budget=50)
    some = {"majority": MAJORITY, "tfidf": seeds(150), "scratch": seeds(130, 104), "pretrained": seeds(130, 104)}
    write_answers(tmp_path, some, budget=400)
    assert verdict(collect(tmp_path))[-2:] == [
        "With 50 labels, pretraining was worth +17.5 points (95 % interval +12.3 to +22.7, 2 paired seeds).",
        "With 400 labels, no measurable gain: 0.0 points (95 % interval 0.0 to 0.0, 2 paired seeds); "
        "TF-IDF + logistic regression was ahead with 75.0 %.",
    ]


def test_a_missing_arm_is_told_and_nothing_is_claimed_for_it(tmp_path):
    assert said(tmp_path, {"pretrained": seeds(160, 150)}) == [
        "Only the pretrained network has finished, with 77.5 % on test: there is nothing to compare it with.",
        "What pretraining was worth is not known: the from-scratch network has no finished run.",
        "Not finished: majority (no run at all); tfidf (no run at all); scratch (no run at all).",
    ]


def test_networks_without_a_shared_seed_are_not_compared(tmp_path):
    answers = {"majority": MAJORITY, "tfidf": seeds(90), "scratch": {0: marks(140)}, "pretrained": {1: marks(160)}}
    sentences = said(tmp_path, answers)
    assert sentences[0] == (
        "The pretrained network is ahead, but shares no seed with the next: 80.0 % on test, 10.0 points above "
        "the from-scratch network (70.0 %)."
    )
    assert "What pretraining was worth is not known: the two networks share no seed." in sentences
    assert sentences[-1] == "Not finished: scratch with all labels, seed 1; pretrained with all labels, seed 0."


def test_more_missing_runs_than_one_wants_to_read_are_counted(tmp_path):
    answers = {"majority": MAJORITY, "tfidf": seeds(90), "scratch": seeds(140), "pretrained": seeds(*[160] * 6)}
    assert said(tmp_path, answers)[-1] == (
        "Not finished: scratch with all labels, seed 1; scratch with all labels, seed 2; "
        "scratch with all labels, seed 3; and 2 more."
    )


def test_an_arm_of_another_name_is_called_by_it(tmp_path):
    sentences = said(tmp_path, {"majority": MAJORITY, "tfidf": seeds(120), "distilled": seeds(180)})
    assert sentences[0].startswith("Distilled won: 90.0 % on test, 30.0 points above TF-IDF")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_sentence_ends_and_has_one_line(tmp_path, count):
    arms = {"majority": 0.5, "naive_bayes": 0.7, "tfidf": 0.8, "scratch": 0.6, "pretrained": 0.7}
    sentences = verdict(collect(make_comparison(tmp_path, arms=arms, seeds=count, budgets=(50, "all"))))
    assert len(sentences) >= 4
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
