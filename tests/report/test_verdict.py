"""The verdict of a comparison, sentence by sentence."""

from dataclasses import replace

import pytest

from fixtures.comparison_folder import make_comparison, write_answers
from headstart.report.figures import confusion_figures
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.summary import verdict

TEXTS = 200


def marks(correct, *, of=TEXTS, shift=0):
    """Return marks that are correct on the first `correct` texts, rotated by `shift`."""
    row = "1" * correct + "0" * (of - correct)
    return row[-shift:] + row[:-shift] if shift else row


def verdict_of(folder, answers, **options):
    return verdict(load_comparison(write_answers(folder, answers, **options)))


def seeds(*num_correct):
    return {seed: marks(correct) for seed, correct in enumerate(num_correct)}


MAJORITY = {0: "10" * (TEXTS // 2)}


def test_the_verdict_names_a_linear_arm_as_the_winner(tmp_path):
    sentences = verdict_of(
        tmp_path,
        {
            "majority": MAJORITY,
            "linear": seeds(180),
            "scratch": seeds(140, 142, 138),
            "pretrained": seeds(160, 161, 159),
        },
        curves={"scratch": (0.5, 0.6, 0.7), "pretrained": (0.65, 0.75, 0.8)},
    )
    assert sentences == [
        "The linear model is best: 90.0 % on test, 10.0 points above the pretrained network (80.0 %).",
        "Pretraining gained +10.0 points over random weights (95 % interval +5.6 to +14.4, 3 paired seeds).",
        "After one epoch, the pretrained network reaches 65.0 % on validation; the from-scratch network needs 3 epochs "
        "for it (95 % interval 3 to 3).",
    ]


def test_the_verdict_names_the_pretrained_network_as_the_winner(tmp_path):
    sentences = verdict_of(
        tmp_path,
        {
            "majority": MAJORITY,
            "linear": seeds(160),
            "scratch": seeds(140, 142, 138),
            "pretrained": seeds(180, 181, 179),
        },
        curves={"scratch": (0.5, 0.6, 0.7), "pretrained": (0.75, 0.75, 0.8)},
    )
    assert sentences == [
        "The pretrained network is best: 90.0 % on test, 10.0 points above the linear model (80.0 %).",
        "Pretraining gained +20.0 points over random weights (95 % interval +14.3 to +25.7, 3 paired seeds).",
        "After one epoch, the pretrained network reaches 75.0 % on validation; the from-scratch network does not reach "
        "it in 3 epochs.",
    ]


def test_a_lead_within_the_interval_is_not_called_a_win(tmp_path):
    answers = {
        "majority": MAJORITY,
        "linear": {0: marks(160, shift=20)},
        "scratch": {0: marks(158, shift=60), 1: marks(159, shift=60)},
        "pretrained": {0: marks(161), 1: marks(163)},
    }
    assert verdict_of(tmp_path, answers) == [
        "No clear winner: The pretrained network has 81.0 % on test, 1.0 points above "
        "the linear model (80.0 %; 95 % interval −7.9 to +9.9).",
        "No clear gain from pretraining: +1.8 points (95 % interval −7.6 to +11.1, 2 paired seeds).",
        "No clear gain in epochs: after the first epoch, the pretrained network (50.0 % on validation) is "
        "not clearly above the from-scratch network.",
    ]


def test_the_verdict_says_that_pretraining_hurt(tmp_path):
    answers = {"scratch": seeds(180, 181, 179), "pretrained": seeds(150, 151, 149)}
    assert verdict_of(tmp_path, answers | {"majority": MAJORITY, "linear": seeds(120)})[:3] == [
        "The from-scratch network is best: 90.0 % on test, 15.0 points above the pretrained network (75.0 %).",
        "The linear model reached 60.0 %, 30.0 points below the from-scratch network.",
        "Pretraining was harmful: −15.0 points compared with random weights (95 % interval −20.1 to −9.9, 3 paired seeds).",
    ]


def test_the_verdict_on_one_seed_claims_no_proof(tmp_path):
    answers = {"majority": MAJORITY, "linear": seeds(110), "scratch": seeds(140), "pretrained": seeds(160)}
    assert verdict_of(tmp_path, answers)[2] == (
        "With one seed, the difference between pretraining and random weights was +10.0 points, which one seed "
        "cannot confirm (95 % interval +5.6 to +14.4 over the test texts only: one seed does not show the "
        "variation between training runs)."
    )


def test_a_tie_is_called_a_tie(tmp_path):
    answers = {"majority": MAJORITY, "linear": seeds(160), "scratch": seeds(120), "pretrained": seeds(160)}
    expected = "A tie: the linear model and the pretrained network both have 80.0 % on test."
    assert verdict_of(tmp_path, answers)[0] == expected


def test_a_difference_that_rounds_to_zero_is_level(tmp_path):
    answers = {
        "majority": {0: marks(1500, of=3000)},
        "linear": {0: marks(2400, of=3000)},
        "scratch": {0: marks(2000, of=3000)},
        "pretrained": {0: marks(2401, shift=30, of=3000)},
    }
    assert verdict_of(tmp_path, answers)[0] == (
        "The pretrained network and the linear model are equal: 80.0 % and 80.0 % on test."
    )


def test_an_arm_of_the_second_sentence_can_be_level(tmp_path):
    answers = {
        "majority": {0: marks(1500, of=3000)},
        "linear": {0: marks(2400, of=3000)},
        "scratch": {0: marks(2401, of=3000)},
        "pretrained": {0: marks(2401, of=3000)},
    }
    assert verdict_of(tmp_path, answers)[1] == ("The linear model reached 80.0 %, level with the from-scratch network.")


def test_equal_networks_show_no_gain(tmp_path):
    answers = {"majority": MAJORITY, "linear": seeds(120), "scratch": seeds(150, 151), "pretrained": seeds(150, 151)}
    expected = "No clear gain from pretraining: 0.0 points (95 % interval −1.4 to +1.4, 2 paired seeds)."
    assert expected in verdict_of(tmp_path, answers)


def test_the_verdict_names_two_networks_below_the_majority_class(tmp_path):
    answers = {"majority": seeds(120), "linear": seeds(150), "scratch": seeds(110, 110), "pretrained": seeds(119, 119)}
    assert verdict_of(tmp_path, answers)[:2] == [
        "The linear model is best: 75.0 % on test, 15.5 points above the pretrained network (59.5 %).",
        "Neither network beat the majority class (60.0 %): the pretrained network 59.5 %, the from-scratch network 55.0 %.",
    ]


def test_a_win_is_not_claimed_on_one_run_of_a_network(tmp_path):
    answers = {"linear": seeds(150), "scratch": seeds(110), "pretrained": seeds(119)}
    assert verdict_of(tmp_path, answers)[0] == (
        "No clear winner with one seed: The linear model has 75.0 % on test, "
        "15.5 points above the pretrained network (59.5 %)."
    )


def test_a_leading_linear_arm_is_compared_with_the_best_network_not_with_another_linear_arm(tmp_path):
    answers = {
        "naive_bayes": seeds(148),
        "linear": seeds(150),
        "scratch": seeds(110, 111),
        "pretrained": seeds(125, 125),
    }
    first = "The linear model is best: 75.0 % on test, 12.5 points above the pretrained network (62.5 %)."
    assert verdict_of(tmp_path, answers)[0] == first


def test_the_verdict_names_one_network_at_the_majority_class(tmp_path):
    answers = {"majority": seeds(120), "linear": seeds(150), "scratch": seeds(120), "pretrained": seeds(140)}
    expected = "The from-scratch network (60.0 %) did not beat the majority class (60.0 %)."
    assert verdict_of(tmp_path, answers)[1] == expected


def test_every_smaller_budget_has_a_sentence_with_the_gain_in_labels(tmp_path):
    base = {"majority": MAJORITY, "linear": seeds(170), "scratch": seeds(140, 142), "pretrained": seeds(160, 161)}
    write_answers(tmp_path, base)
    few = {"majority": MAJORITY, "linear": seeds(130, 130), "scratch": seeds(105, 104), "pretrained": seeds(140, 139)}
    write_answers(tmp_path, few, budget=50)
    some = {"majority": MAJORITY, "linear": seeds(150, 150), "scratch": seeds(120, 121), "pretrained": seeds(120, 121)}
    write_answers(tmp_path, some, budget=400)
    sentences = verdict(load_comparison(tmp_path))
    assert sentences[1:3] == [
        "Pretraining gained +9.8 points over random weights (95 % interval +4.5 to +15.0, 2 paired seeds): "
        "the from-scratch network needs more than the 1,600 available labels for the same accuracy.",
        "The linear model needs about 830 labels (95 % interval 440 to 1,500) for the accuracy "
        "that the pretrained network has with 1,600.",
    ]
    assert sentences[-2:] == [
        "With 50 labels, pretraining gained +17.5 points over random weights (95 % interval +12.1 to +22.9, "
        "2 paired seeds), or about 1,400 labels (95 % interval 450 to more than 1,550): the from-scratch network needs "
        "about 1,400 for the same accuracy, the linear model about 130 (95 % interval 53 to 340).",
        "With 400 labels, no clear gain from pretraining: 0.0 points (95 % interval −1.4 to +1.4, 2 paired seeds); "
        "the linear model was best with 75.0 %.",
    ]


def test_imbalanced_labels_add_a_sentence_on_macro_f1(tmp_path):
    labels = ("common", "rare")
    folder = make_comparison(tmp_path, arms={"scratch": 0.7, "pretrained": 0.9}, seeds=3, labels=labels)
    assert not any("macro-F1" in sentence for sentence in verdict(load_comparison(folder)))  # control
    comparison = load_comparison(folder)
    test = comparison.data.test.model_copy(update={"counts": {"common": 300, "rare": 100}})
    unequal = replace(comparison, data=comparison.data.model_copy(update={"test": test}))
    assert verdict(unequal)[2].startswith("In macro-F1, which weights all labels equally: +2")


def several(folder):
    """A comparison of six arms, two of them pretrained from folders of their own."""
    arms = {"nbsvm": 0.9, "scratch": 0.6, "frozen": 0.75, "one": 0.7, "two": 0.85}
    comparison = load_comparison(
        make_comparison(folder, arms=arms, seeds=3, networks=("scratch", "frozen", "one", "two"))
    )
    names = {"one": "pretrained:one", "two": "pretrained:two"}
    runs = tuple(run.model_copy(update={"arm": names.get(run.arm, run.arm)}) for run in comparison.runs)
    return replace(comparison, runs=runs, arms=tuple(names.get(arm, arm) for arm in comparison.arms))


def test_of_several_pretrained_folders_the_best_on_validation_is_compared(tmp_path):
    sentences = verdict(several(tmp_path))
    assert sentences[0].startswith("NB-SVM is best: 9")
    assert "points above the pretrained network two (8" in sentences[0]
    assert sentences[1].startswith("Pretraining gained +2")
    assert [sentence.split(": +")[0] for sentence in sentences[-3:-1]] == [
        "The frozen pretrained network",
        "The pretrained network one",
    ]


def test_a_page_is_rendered_for_any_set_of_arms(tmp_path):
    comparison = several(tmp_path)
    page = render(comparison)
    assert [figure.name for figure in confusion_figures(comparison)][-2:] == [
        "confusion-pretrained-one",
        "confusion-pretrained-two",
    ]
    assert "The pretrained network two against the from-scratch network" in page
    assert "Pretrained one − from scratch" in page


def test_nothing_is_claimed_of_a_missing_arm(tmp_path):
    assert verdict_of(tmp_path, {"pretrained": seeds(160, 150)}) == [
        "Only the pretrained network has finished, with 77.5 % on test: there is no other arm to compare it with.",
        "The gain from pretraining is unknown: the from-scratch network has no finished run.",
        "Not finished: majority (no run); linear (no run); scratch (no run).",
    ]


def test_an_arm_that_was_not_requested_is_not_called_unfinished(tmp_path):
    folder = write_answers(tmp_path, {"linear": seeds(150), "pretrained": seeds(160, 150)})
    (folder / "run.json").write_text('{"inputs": {"arms": ["linear", "pretrained"]}}')
    assert verdict(load_comparison(folder))[1:] == [
        "The gain from pretraining was not measured: the from-scratch network was not among the arms (--arms).",
    ]
    (folder / "run.json").write_text('{"inputs": {"arms": ["linear", "scratch", "pretrained"]}}')  # control
    assert verdict(load_comparison(folder))[1:] == [
        "The gain from pretraining is unknown: the from-scratch network has no finished run.",
        "Not finished: scratch (no run).",
    ]


def test_networks_without_a_common_seed_are_not_compared(tmp_path):
    answers = {"majority": MAJORITY, "linear": seeds(90), "scratch": {0: marks(140)}, "pretrained": {1: marks(160)}}
    sentences = verdict_of(tmp_path, answers)
    assert sentences[0] == (
        "The pretrained network has the highest accuracy, but shares no seed with the second: 80.0 % on "
        "test, 10.0 points above "
        "the from-scratch network (70.0 %)."
    )
    assert "The gain from pretraining is unknown: the two networks share no seed." in sentences
    assert sentences[-1] == "Not finished: scratch with all labels, seed 1; pretrained with all labels, seed 0."


def test_missing_runs_beyond_three_are_only_counted(tmp_path):
    answers = {"majority": MAJORITY, "linear": seeds(90), "scratch": seeds(140), "pretrained": seeds(*[160] * 6)}
    assert verdict_of(tmp_path, answers)[-1] == "Not finished: scratch with all labels, seeds 1, 2, 3, 4 and 5."
    for budget in (20, 40, 80):
        write_answers(tmp_path, {"pretrained": seeds(160)}, budget=budget)
    assert verdict(load_comparison(tmp_path))[-1].endswith("; and 10 more.")


def test_an_arm_of_an_unknown_type_is_called_by_its_name(tmp_path):
    sentences = verdict_of(tmp_path, {"majority": MAJORITY, "linear": seeds(120), "distilled": seeds(180)})
    assert sentences[0].startswith("Distilled is best: 90.0 % on test, 30.0 points above the linear model")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_sentence_of_the_verdict_is_one_line_with_a_full_stop(tmp_path, count):
    arms = {"majority": 0.5, "naive_bayes": 0.7, "linear": 0.8, "scratch": 0.6, "pretrained": 0.7}
    sentences = verdict(load_comparison(make_comparison(tmp_path, arms=arms, seeds=count, budgets=(50, "all"))))
    assert len(sentences) >= 3
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
