"""Classifiers of every task come back from transformers as they went: labels, thresholds, bounds and pairs of texts."""

import json
import shutil

import numpy as np
import pytest
import torch

from fixtures import hf_models
from fixtures.small_models import TEXTS, language
from fixtures.tiny import CPU
from headstart.cli.main import run
from headstart.errors import TransferError, UsageError
from headstart.interop.hf_export import export_hf
from headstart.interop.model_source import load_model_source
from headstart.predict.predictor import Predictor
from headstart.store.bundle import load_bundle
from headstart.tasks import MultiLabel, Regression, SingleLabel
from interop.test_export_tasks import TARGETS, bundle_of, text_inputs

BLOCKS = [("classic", "causal"), ("modern", "bidirectional"), ("modern", "causal")]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


def probabilities(bundle, inputs):
    predictor = Predictor(bundle, CPU)
    return predictor.probabilities(predictor.encode(inputs))


@pytest.mark.parametrize("kind", BLOCKS, ids=str)
@pytest.mark.parametrize("name", TARGETS)
def test_an_exported_model_comes_back_whole(tmp_path, name, kind):
    if kind == ("modern", "causal") and TARGETS[name].kind == "rating":
        pytest.skip("a stock Llama has no bias for a rating")
    ours = bundle_of(tmp_path / "ours", name, *kind)
    export_hf(ours, tmp_path / "theirs")
    assert run(["import", f"hf:{tmp_path / 'theirs'}", "--out", str(tmp_path / "back")]) == 0
    back = load_bundle(tmp_path / "back", head_type="classify")
    assert back.task == ours.task  # labels, thresholds, bounds, scale, and whether it reads pairs
    assert (back.attention, back.config.block) == (ours.attention, ours.config.block)
    inputs = text_inputs(name)
    assert np.abs(probabilities(back, inputs) - probabilities(ours, inputs)).max() < 1e-5
    export_hf(back, tmp_path / "again")
    first, second = (json.loads((tmp_path / one / "config.json").read_text()) for one in ("theirs", "again"))
    assert first == second


@pytest.mark.parametrize("kind", BLOCKS[:2], ids=str)
@pytest.mark.parametrize("name", ["labels", "rating"])
def test_a_model_that_transformers_saved_again_comes_back_whole(transformers, tmp_path, name, kind):
    """transformers keeps the settings that it does not know."""
    ours = bundle_of(tmp_path / "ours", name, *kind)
    export_hf(ours, tmp_path / "theirs")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "saved")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "theirs" / file, tmp_path / "saved" / file)
    back = load_model_source(f"hf:{tmp_path / 'saved'}", head_type="classify")
    assert back.task == ours.task
    inputs = text_inputs(name)
    assert np.abs(probabilities(back, inputs) - probabilities(ours, inputs)).max() < 1e-5


def test_a_classic_language_model_comes_back(tmp_path):
    ours = language(tmp_path / "ours", "classic", "causal")
    export_hf(ours, tmp_path / "theirs")
    back = load_model_source(f"hf:{tmp_path / 'theirs'}", head_type="language")
    assert (back.config, back.objective) == (ours.config, "causal")
    for name, tensor in ours.model.state_dict().items():
        assert torch.allclose(back.model.state_dict()[name], tensor, atol=1e-6), name


def test_an_opt_whose_channels_are_not_doubled_by_us_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    export_hf(language(tmp_path / "ours", "classic", "causal"), tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.decoder.layers.0.fc2.weight"][-1] += 1
    save_file(tensors, path)
    with pytest.raises(TransferError) as caught:
        load_model_source(f"hf:{tmp_path / 'theirs'}")
    assert str(caught.value) == (
        f"hf:{tmp_path / 'theirs'} has word_embed_proj_dim 17, not hidden_size: embeddings of another width; "
        "nothing was imported"
    )


PROBLEM_TYPES = {
    "several labels": ({"problem_type": "multi_label_classification", "num_labels": 3}, MultiLabel),
    "a number": ({"problem_type": "regression", "num_labels": 1}, Regression),
    "a number, not said": ({"num_labels": 1}, Regression),
    "classes, not said": ({"num_labels": 3}, SingleLabel),
}


@pytest.mark.parametrize("kind", ["bert", "distilbert", "opt"])
@pytest.mark.parametrize("name", PROBLEM_TYPES)
def test_a_model_of_transformers_is_read_by_its_problem_type(transformers, tmp_path, name, kind):
    settings, task_class = PROBLEM_TYPES[name]
    model, reader = hf_models.saved(transformers, tmp_path / "theirs", kind, "ForSequenceClassification", **settings)
    bundle = load_model_source(f"hf:{tmp_path / 'theirs'}", head_type="classify")
    assert type(bundle.task) is task_class
    assert bundle.task.outputs == settings["num_labels"]
    if isinstance(bundle.task, MultiLabel):
        assert bundle.task.threshold_array.tolist() == [0.5] * 3
    texts = [text[:60] for text in TEXTS[:6]]
    with torch.inference_mode():
        logits = model(**reader(texts, return_tensors="pt", padding=True)).logits.double().numpy()
    ours = probabilities(bundle, texts)
    assert np.abs(ours - bundle.task.probabilities(logits)).max() < 1e-5
    if isinstance(bundle.task, Regression):
        assert np.abs(ours - logits).max() < 1e-5  # nothing is clipped
    export_hf(bundle, tmp_path / "again")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again").eval()
    with torch.inference_mode():
        assert np.abs(again(**reader(texts, return_tensors="pt", padding=True)).logits.numpy() - logits).max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"problem_type": "regression"},
            "problem_type is regression with 3 outputs, and a rating has one output",
        ),
        (
            {"problem_type": "ranking"},
            "problem_type is 'ranking', expected one of single_label_classification, multi_label_classification, "
            "regression",
        ),
        (
            {"headstart": {"kind": "labels", "pair": False, "thresholds": {"bad": 0.5}}},
            "the thresholds are not those of its labels",
        ),
        ({"headstart": {"kind": "labels"}}, "headstart is incomplete: 'pair'"),
        ({"headstart": []}, "headstart is incomplete: list indices must be integers or slices, not str"),
        (
            {"headstart": {"kind": "classes", "pair": False}},
            "problem_type is multi_label_classification, and headstart describes single_label_classification",
        ),
        ({"id2label": {"1": "bad", "2": "good"}}, "id2label does not number its labels from 0"),
    ],
    ids=str,
)
def test_a_task_that_cannot_be_is_refused_with_the_reason(tmp_path, changes, reason):
    export_hf(bundle_of(tmp_path / "ours", "labels"), tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(TransferError) as caught:
        load_model_source(f"hf:{tmp_path / 'theirs'}")
    assert str(caught.value) == (
        f"hf:{tmp_path / 'theirs'} has a config.json that does not describe a supported task: {reason}; nothing was imported"
    )


def test_a_rating_that_a_stock_head_cannot_express_is_not_exported(transformers, tmp_path):
    """The head of a stock GPT-2 or OPT has no bias; transformers would drop it without an error."""
    from headstart.model.heads import ClassifierHead, Model
    from headstart.store.bundle import Bundle, save_bundle

    hf_models.saved(transformers, tmp_path / "theirs", "gpt2", "LMHeadModel")
    base = load_model_source(f"hf:{tmp_path / 'theirs'}")
    head = ClassifierHead(base.config, 1, "causal", bias=True)
    task = Regression((), lowest=1.0, highest=5.0, mean=3.0)
    save_bundle(tmp_path / "ours", Bundle(Model(base.model.backbone, head), base.tokenizer, task))
    bundle = load_bundle(tmp_path / "ours")
    with pytest.raises(UsageError) as caught:
        export_hf(bundle, tmp_path / "out")
    assert str(caught.value) == (
        f"{bundle.name} predicts a rating with a head that has a bias, which a stock GPT2ForSequenceClassification does "
        "not have; use --to onnx"
    )
