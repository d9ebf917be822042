"""Linear classifiers and blends are bundles like any other: safetensors and JSON, checked when loaded."""

import json

import numpy as np
import pytest

from faults.readers import seal
from fixtures.small_models import LABELS, TEXTS, blend, classifier, language, linear, linear_classifier
from headstart.errors import StoreError, UsageError
from headstart.files import read_json
from headstart.store.bundle import (
    BlendBundle,
    Bundle,
    LinearBundle,
    load_bundle,
    load_classifier,
)
from headstart.tasks import MultiLabel, SingleLabel


def test_a_linear_bundle_gives_the_logits_that_were_saved(tmp_path):
    loaded = linear(tmp_path / "linear", {"source": "a/b.csv"})
    assert isinstance(loaded, LinearBundle)
    assert np.array_equal(loaded.classifier.logits(TEXTS), linear_classifier().logits(TEXTS))
    assert (loaded.labels, loaded.path) == (LABELS, tmp_path / "linear")
    assert loaded.about == {"source": "b.csv"}
    files = {path.name for path in (tmp_path / "linear").iterdir()}
    assert files == {"bundle.json", "README.md", "linear.json", "linear.safetensors", "manifest.json"}


def test_a_blend_holds_a_network_a_linear_classifier_and_how_they_are_blended(tmp_path):
    loaded = blend(tmp_path / "blend", {"note": "blended"}, network_about={"source": "scratch"})
    assert isinstance(loaded, BlendBundle)
    assert (loaded.weight, loaded.temperature, loaded.about, loaded.labels) == (0.4, 0.8, {"note": "blended"}, LABELS)
    assert loaded.network.about == {"source": "scratch"}
    assert np.array_equal(loaded.linear.logits(TEXTS), linear_classifier().logits(TEXTS))
    facts = read_json(tmp_path / "blend" / "bundle.json")
    assert (facts["classifier"], facts["blend"]) == ("blend", {"weight": 0.4, "temperature": 0.8})


def test_a_network_is_written_without_a_kind_and_loaded_as_before(tmp_path):
    classifier(tmp_path / "network", "classic", "causal")
    assert "classifier" not in read_json(tmp_path / "network" / "bundle.json")
    assert isinstance(load_classifier(tmp_path / "network"), Bundle)


def test_a_linear_classifier_is_no_backbone(tmp_path):
    linear(tmp_path / "linear")
    message = (
        f"{tmp_path / 'linear'} contains a linear classifier, which has no network; this command "
        f"needs one (from headstart pretrain)"
    )
    with pytest.raises(UsageError) as raised:
        load_bundle(tmp_path / "linear")
    assert str(raised.value) == message


def test_the_network_of_a_blend_is_a_backbone(tmp_path):
    loaded = blend(tmp_path / "blend")
    backbone = load_bundle(tmp_path / "blend")
    assert isinstance(backbone, Bundle)
    assert backbone.tokenizer.digest == loaded.network.tokenizer.digest


def test_a_language_model_is_no_classifier(tmp_path):
    language(tmp_path / "base", "modern", "causal")
    with pytest.raises(
        UsageError, match=r"contains a language model .from headstart pretrain.; this command needs a classifier"
    ):
        load_classifier(tmp_path / "base")


@pytest.mark.parametrize("task", [MultiLabel(LABELS), SingleLabel(LABELS, pair=True)])
def test_a_linear_classifier_gives_one_label_to_one_text(task):
    with pytest.raises(ValueError, match=r"^a linear classifier predicts one class per text$"):
        LinearBundle(linear_classifier(), task)


def test_a_linear_classifier_of_other_labels_is_refused():
    with pytest.raises(ValueError, match=r"^the linear classifier has 3 outputs for 2 labels$"):
        LinearBundle(linear_classifier(), SingleLabel(("a", "b")))


@pytest.mark.parametrize(
    ("weight", "temperature", "message"),
    [
        (1.5, 1.0, "the weight of a blend is between 0 and 1, got 1.5"),
        (float("nan"), 1.0, "the weight of a blend is between 0 and 1, got nan"),
        ("half", 1.0, "the weight of a blend is between 0 and 1, got 'half'"),
        (10**400, 1.0, f"the weight of a blend is between 0 and 1, got 1{'0' * 39}"),
        (0.5, 0.0, "the temperature of a blend is between 0.001 and 1,000, got 0.0"),
        (0.5, 1e-320, "the temperature of a blend is between 0.001 and 1,000, got 1e-320"),
    ],
)
def test_a_blend_with_an_impossible_weight_is_refused(tmp_path, weight, temperature, message):
    network = classifier(tmp_path / "network", "modern", "causal")
    with pytest.raises(ValueError) as raised:
        BlendBundle(network, linear_classifier(), weight, temperature)
    assert str(raised.value) == message


def test_a_changed_file_is_refused(tmp_path):
    linear(tmp_path / "linear")
    path = tmp_path / "linear" / "linear.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(StoreError, match="is damaged"):
        load_classifier(tmp_path / "linear")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("bundle.json", {"labels": ["bad", "good", "good"]}, "bundle.json is damaged: it has a label twice"),
        (
            "linear.json",
            {"views": [{"kind": "words", "tokens": ["the", "\ud800"]}]},
            "linear.json and linear.safetensors do not match: a token of words contains an unpaired surrogate",
        ),
    ],
)
@pytest.mark.parametrize("kind", [linear, blend])
def test_what_no_training_writes_is_refused_under_a_valid_seal(tmp_path, kind, file, change, message):
    folder = tmp_path / "model"
    kind(folder)
    facts = json.loads((folder / file).read_bytes())
    (folder / file).write_text(json.dumps(facts | change))
    seal(folder, (file,))
    with pytest.raises(StoreError) as raised:
        load_classifier(folder)
    assert str(raised.value) == f"{folder}/{message}"


RESULT = {"rows": 60, "accuracy": 0.9, "macro_f1": 0.89, "loss": 0.3, "per_class": (), "truncated": 0}
ABOUT = {
    "setting": {"C": 3.0, "temperature": 0.5},
    "data": {
        name: {"name": f"/home/jane/{name}.csv", "rows": 60, "sha256": "0" * 8, "counts": counts}
        for name, counts in (("train", {"bad": 10, "good": 50}), ("test", {"bad": 45, "good": 15}))
    },
    "valid": RESULT,
    "test": RESULT,
    "calibration": {
        "rows": 60,
        "temperature": 1.0,
        "reason": None,
        "test": None,
        "after": {"rows": 60, "ece": 0.05, "low": 0.01, "high": 0.09},
        "thresholds": [],
    },
}


def card(folder, name):
    return (folder / name / "README.md").read_text("utf-8")


def test_the_card_of_a_linear_classifier_says_how_it_was_made_and_what_it_scored(tmp_path):
    views = linear(tmp_path / "linear", ABOUT).classifier.views
    text = card(tmp_path, "linear")
    assert "# Headstart linear classifier\n" in text
    assert "cross-validation chose its regularization." in text
    words, characters = (len(view.ngrams) for view in views)
    assert (
        f"{3 * (words + characters):,} weights: one support vector machine per label on TF-IDF of {words:,} n-grams of one "
        f"to 2 words and {characters:,} n-grams of one to 5 characters." in text
    )
    assert "Cross-validation chose: C 3, temperature 0.5." in text
    assert "| cross-validation (it chose the settings) | 90.0 % |" in text
    assert "| test (read once) | 90.0 % |" in text
    assert "Always predicting `good`, the majority class of train, has an accuracy of 25.0 % on test." in text
    assert "Its temperature was fitted on 60 rows of train by models that had not seen them." in text
    assert "Calibration error on these rows: 5.0 points (95 % interval 1.0 to 9.0, 60 rows)." in text
    assert "`train.csv`" in text
    assert "## Network" not in text
    assert "pytorch" not in text
    for absent in ("jane", "epoch", "tokens are", "None"):
        assert absent not in text


def test_the_card_of_a_blend_says_how_much_each_part_weighs(tmp_path):
    about = ABOUT | {"setting": {"weight": 0.4}, "linear_setting": {"C": 0.3}}
    blend(tmp_path / "blend", about, network_about={"source": "starter:en", "select": "last"})
    text = card(tmp_path, "blend")
    assert (
        "It is the mean of the log-probabilities of two models, divided by a temperature of 0.80: a network "
        "(weight 0.40) and a linear classifier (weight 0.60). The network was fine-tuned with Headstart" in text
    )
    assert "from the pretrained model `starter:en`; the last epoch was kept." in text
    assert "## Network" in text
    assert "## Linear classifier" in text
    assert "Cross-validation chose: C 0.3." in text
    assert "- Texts longer than 64 tokens are truncated by its network." in text
    assert "## Linear classifier" not in card(tmp_path, "blend-network")  # control
    assert "cross-validation" not in card(tmp_path, "blend-network")


def test_the_card_calls_one_split_a_hold_out(tmp_path):
    linear(tmp_path / "one", ABOUT | {"cross_validated": True, "folds": 1})
    linear(tmp_path / "five", ABOUT | {"cross_validated": True, "folds": 5})
    assert "| hold-out (it chose the settings) |" in card(tmp_path, "one")
    assert "| cross-validation (it chose the settings) |" in card(tmp_path, "five")


def test_the_card_leaves_the_commonest_label_to_a_sentence_that_names_it(tmp_path):
    linear(tmp_path / "linear", ABOUT | {"quality": {"sentence": "it is better than always saying good"}})
    text = card(tmp_path, "linear")
    assert "It is better than always saying good." in text
    assert "Always answering" not in text


def test_an_export_for_onnxruntime_is_no_bundle_and_is_called_what_it_is(tmp_path):
    for name in ("model.onnx", "headstart.json", "manifest.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_classifier(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is an export for onnxruntime, which only headstart predict accepts; use the model that "
        f"it was exported from"
    )
