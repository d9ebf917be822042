"""Networks, linear classifiers and blends have one interface: predictions, abstention, explanations."""

import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headstart
from fixtures.small_models import LABELS, ODD, TEXTS, blend, classifier, linear
from headstart.config.schema import RuntimeConfig
from headstart.errors import DataError, UsageError
from headstart.linear.blend import blend_logits
from headstart.metrics import softmax
from headstart.predict.blend_predictor import BlendPredictor
from headstart.predict.bundle_predictor import load_predictor
from headstart.predict.explain import WordWeight, _aligned, explain_prediction
from headstart.predict.linear_predictor import LinearPredictor
from headstart.predict.numpy_predictor import NumpyPredictor
from headstart.predict.predictor import Predictor
from headstart.store.bundle import save_bundle
from headstart.train.calibration import Threshold

ONE = RuntimeConfig(threads=1, device="cpu")
KINDS = {"network": Predictor, "linear": LinearPredictor, "blend": BlendPredictor}
ALL = [*TEXTS[:6], *ODD, "wonderful " * 90]
THRESHOLDS = {
    "rows": 60,
    "temperature": 1.0,
    "reason": "it was calibrated before",
    "thresholds": [asdict(Threshold(0.5, 0.7, precision=0.6, low=0.4, high=0.8, coverage=0.5, answered=30))],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    classifier(folder / "network", "modern", "bidirectional")
    linear(folder / "linear", {"calibration": THRESHOLDS})
    blend(folder / "blend", {"calibration": THRESHOLDS})
    return folder


@pytest.fixture(scope="module")
def predictors(folder):
    return {kind: load_predictor(folder / kind, ONE) for kind in KINDS}


def test_each_kind_of_bundle_has_its_predictor(folder, predictors):
    for kind, expected in KINDS.items():
        assert type(predictors[kind]) is expected
        assert type(headstart.load(folder / kind)) is expected


def test_a_blends_probabilities_are_those_of_its_parts_blended(predictors):
    parts = predictors["blend"].network, predictors["linear"]
    network, by_words = (part.logits(part.encode(ALL)) for part in parts)
    expected = softmax(blend_logits(network, by_words, 0.4, 0.8))
    predictions = predictors["blend"].predict(ALL)
    assert np.allclose([list(one.probabilities.values()) for one in predictions], expected, atol=1e-6)
    answers = {kind: [one.label for one in predictor.predict(ALL)] for kind, predictor in predictors.items()}
    assert len(set(map(tuple, answers.values()))) > 1  # control: the kinds do differ
    assert set(answers["blend"]) <= set(LABELS)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(len(ALL))), kind=st.sampled_from(["linear", "blend"]))
def test_a_prediction_does_not_depend_on_its_batch(predictors, order, kind):
    together = predictors[kind].predict([ALL[index] for index in order])
    for index, prediction in zip(order[:4], together, strict=False):
        (alone,) = predictors[kind].predict([ALL[index]])
        assert prediction.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
        assert prediction.truncated == alone.truncated


def test_only_a_network_truncates(predictors):
    long = "wonderful " * 90
    truncated = {kind: predictor.predict([long])[0].truncated for kind, predictor in predictors.items()}
    assert truncated == {"network": True, "linear": False, "blend": True}


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_every_kind_abstains_by_the_table_in_its_bundle(predictors, kind):
    predictor = predictors[kind]
    plain, abstaining = predictor.predict(ALL), predictor.predict(ALL, abstain=0.5)
    assert [one.label for one in abstaining] == [one.label if one.probability >= 0.7 else "abstain" for one in plain]
    assert {one.abstained for one in abstaining} == {False, True}
    with pytest.raises(
        UsageError, match=r"no threshold gave a precision of 0\.9 on the 60 validation rows of .*highest was 0\.5"
    ):
        predictor.predict(ALL, abstain=0.9)


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_a_blank_text_has_no_prediction(predictors, kind):
    (alone,) = predictors[kind].predict(["a text"])
    assert predictors[kind].predict([" ", "a text", ""]) == [None, alone, None]


class DataFrame:
    """A table like those of pandas, which iterate over the names of their columns."""

    columns = ("text",)

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_what_is_no_text_is_refused(predictors, kind):
    with pytest.raises(DataError, match=r"^texts\[1\] is 7, expected a string$"):
        predictors[kind].predict(["a", 7])
    with pytest.raises(UsageError, match=r"^predict takes a list of texts, got one text; write"):
        predictors[kind].predict("a text")
    for value in ({"text": "a text"}, DataFrame(), None, 7):
        with pytest.raises(UsageError) as caught:
            predictors[kind].predict(value)
        name = type(value).__name__
        assert str(caught.value) == f'predict takes a list of texts, got {name}; write predict(["..."])'
    assert predictors[kind].predict([]) == []


def test_progress_and_interruptions_reach_the_parts(predictors):
    for predictor in predictors.values():
        done, checks = [], []
        predictor.logits(predictor.encode(ALL), lambda checks=checks: checks.append(1), done.append)
        assert (sum(done), len(checks) > 0) == (len(ALL), True)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("text", [TEXTS[0], "never seen at all", ODD[1], "a\n\tfilm, it was: great!! "])
def test_the_weights_of_words_sum_to_the_margin(predictors, kind, text):
    for label in LABELS:
        explanation = explain_prediction(predictors[kind], text, label)
        predictor = predictors[kind]
        (logits,) = predictor.logits(predictor.encode([text]))
        index = LABELS.index(label)
        assert explanation.margin == pytest.approx(logits[index] - np.delete(logits, index).mean(), abs=1e-4)
        total = sum(word.weight for word in explanation.words)
        change = explanation.margin - explanation.baseline
        assert total == pytest.approx(change, abs=1e-4 if kind == "linear" else 0.03 * max(1, abs(change)))
        assert total - change == pytest.approx(explanation.error, abs=1e-6)
        if kind != "network":
            assert [word.text for word in explanation.words] == text.split()


def test_the_weights_of_a_blend_are_those_of_its_parts(predictors):
    text = TEXTS[1]
    network, by_words, both = (
        explain_prediction(predictor, text, "good")
        for predictor in (predictors["blend"].network, predictors["linear"], predictors["blend"])
    )
    expected = [
        (0.4 * one.weight + 0.6 * other.weight) / 0.8 for one, other in zip(network.words, by_words.words, strict=True)
    ]
    assert [word.weight for word in both.words] == pytest.approx(expected)
    assert explain_prediction(predictors["blend"], text).label == predictors["blend"].predict([text])[0].label


def test_the_words_of_a_truncated_text_are_matched_from_the_beginning(predictors):
    explanation = explain_prediction(predictors["blend"], "wonderful " * 90, "good")
    assert len(explanation.words) == 90
    by_words = explain_prediction(predictors["linear"], "wonderful " * 90, "good").words
    assert explanation.words[-1].weight == pytest.approx(0.6 * by_words[-1].weight / 0.8)
    assert explanation.words[0].weight != pytest.approx(0.6 * by_words[0].weight / 0.8)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([("good", 1.0), ("day", 2.0)], [1.0, 2.0, 0.0]),  # the same words, truncated
        ([("goo", 1.0), ("d", 1.0), ("dayto", 5.0), ("you", 2.0)], [2.0, 3.0, 4.0]),  # other borders
        ([("good day to you and more", 30.0)], [30 * 4 / 12, 30 * 3 / 12, 30 * 5 / 12]),  # more than the text has
    ],
)
def test_words_are_matched_by_position_where_a_tokenizer_changes_them(others, expected):
    weights = _aligned(["good", "day", "toyou"], [WordWeight(*other) for other in others])
    assert weights == pytest.approx(expected)
    assert sum(weights) == pytest.approx(sum(weight for _, weight in others))


def test_a_blend_answers_a_few_texts_in_numpy_as_in_torch(folder, predictors):
    quick = NumpyPredictor.load(folder / "blend", ALL)
    assert quick is not None
    for one, other in zip(quick.predict(ALL), predictors["blend"].predict(ALL), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert (one.label, one.truncated) == (other.label, other.truncated)


def test_a_linear_bundle_is_not_read_as_a_network(folder):
    assert NumpyPredictor.load(folder / "linear", ["a text"]) is None
    with pytest.raises(
        UsageError, match="contains a network and a linear classifier; this command needs a network alone"
    ):
        Predictor.load(folder / "blend")


@pytest.mark.parametrize("options", [[], ["--explain"], ["--abstain", "0.5"], ["--json"]])
def test_a_linear_classifier_answers_without_torch(folder, options):
    code = (
        "import sys; sys.modules['torch'] = None; from headstart.cli.main import run; "
        f"sys.exit(run(['predict', {str(folder / 'linear')!r}, 'a wonderful film', *{options!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "good" in result.stdout


def test_the_table_is_missing_from_a_bundle_that_was_not_calibrated(folder, tmp_path):
    bare = replace(load_predictor(folder / "linear").bundle, about={})
    save_bundle(tmp_path / "bare", bare)
    with pytest.raises(UsageError, match="has no table of thresholds"):
        load_predictor(tmp_path / "bare").predict(["a"], abstain=0.5)
