"""Predictions in bf16 have the labels of fp32: a close decision is computed again, whatever the rest of the batch."""

import numpy as np
import pytest
import torch

from fixtures.small_models import LABELS, TEXTS, blend, jittered, tokenizer
from headstart.config.schema import ModelConfig, RuntimeConfig
from headstart.kernels.packed_linear import has_bf16_products, has_packed_products
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict import bundle_predictor
from headstart.predict.bundle_predictor import load_predictor
from headstart.predict.explain import explain_prediction
from headstart.predict.outputs import decision_margins
from headstart.predict.predictor import Predictor
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle, save_bundle
from headstart.tasks import MultiLabel, Regression, SingleLabel

needs_bf16 = pytest.mark.skipif(
    not (has_packed_products() and has_bf16_products()), reason="needs a processor with bf16 products"
)
SETTINGS = {name: RuntimeConfig(threads=1, device="cpu", precision=name) for name in ("auto", "fp32", "bf16")}
MANY = [*TEXTS, *(" ".join(TEXTS[:length]) for length in range(2, 12))]
TASKS = {
    "classes": SingleLabel(LABELS),
    "labels": MultiLabel(LABELS, thresholds=(0.4, 0.5, 0.6)),
    "rating": Regression((), lowest=-50, highest=50),
}


def wide_classifier(folder, block="modern", attention="bidirectional", kind="classes", width=128):
    """A network wide enough for bf16, with decisions of all margins."""
    words, task = tokenizer(), TASKS[kind]
    config = ModelConfig(block=block, width=width, depth=2, heads=2, feedforward=160, context=256)
    head = build_classifier_head(config, task.outputs, 0, attention, bias=kind == "rating")
    model = jittered(Model(build_backbone(config, words.vocab_size, 0), head))
    with torch.no_grad():
        head.linear.weight.mul_(0.05)
    save_bundle(folder, Bundle(model, words, task, attention=attention))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    wide_classifier(folder / "classes")
    wide_classifier(folder / "labels", kind="labels")
    wide_classifier(folder / "rating", kind="rating")
    wide_classifier(folder / "classic", "classic", "causal")
    return folder


def load(folder, kind, precision="auto"):
    return load_predictor(folder / kind, SETTINGS[precision])


def probabilities(predictor, texts=MANY, **options):
    return predictor.probabilities(predictor.encode(texts), **options)


def test_the_margin_of_a_label_is_its_lead_or_the_distance_to_the_threshold_of_abstaining():
    rows = np.array([[0.5, 0.3, 0.2], [0.1, 0.45, 0.45], [0.0, 0.1, 0.9]])
    assert decision_margins(TASKS["classes"], rows) == pytest.approx([0.2, 0.0, 0.8])
    assert decision_margins(TASKS["classes"], rows, 0.85) == pytest.approx([0.2, 0.0, 0.05])
    assert decision_margins(TASKS["classes"], rows, np.array([0.45, 0.0, 0.0])) == pytest.approx([0.05, 0.0, 0.8])


def test_the_margin_of_several_labels_is_the_distance_to_the_nearest_threshold_and_a_rating_has_none():
    rows = np.array([[0.9, 0.1, 0.35], [0.38, 0.9, 0.1]])
    assert decision_margins(TASKS["labels"], rows) == pytest.approx([0.25, 0.02])
    assert decision_margins(TASKS["rating"], np.array([[3.0], [9.0]])) == pytest.approx([0, 0])


@needs_bf16
@pytest.mark.parametrize("kind", ["classes", "labels", "classic"])
def test_close_decisions_are_those_of_fp32_bit_for_bit_and_the_others_within_rounding(folder, kind):
    mixed, exact, rounded = (probabilities(load(folder, kind, name)) for name in ("auto", "fp32", "bf16"))
    margins = decision_margins(load(folder, kind).task, rounded)
    close = margins < bundle_predictor.CLOSE_MARGIN
    assert 0 < close.sum() < len(close)
    assert np.abs(mixed[close] - exact[close]).max() < 1e-6
    assert 1e-6 < np.abs(mixed[~close] - exact[~close]).max() < bundle_predictor.CLOSE_MARGIN / 2
    assert np.array_equal(mixed[~close], rounded[~close])


@needs_bf16
@pytest.mark.parametrize("kind", ["classes", "labels", "classic"])
def test_the_labels_are_those_of_fp32(folder, kind):
    mixed, exact = (load(folder, kind, name).predict(MANY) for name in ("auto", "fp32"))
    for one, other in zip(mixed, exact, strict=True):
        assert (one.labels == other.labels) if kind == "labels" else (one.label == other.label)
    assert mixed != exact  # control: it is bf16


@needs_bf16
@pytest.mark.parametrize("kind", ["classes", "labels", "classic"])
@pytest.mark.parametrize("shortest", [4, 96])
def test_a_prediction_is_the_same_alone_and_in_any_batch(folder, kind, shortest, monkeypatch):
    monkeypatch.setattr("headstart.kernels.attention._MIN_PRODUCT_TOKENS", shortest)
    predictor = load(folder, kind)
    together = probabilities(predictor)
    alone = np.concatenate([probabilities(predictor, [text]) for text in MANY])
    backwards = probabilities(predictor, MANY[::-1])[::-1]
    assert np.abs(alone - together).max() < 1e-6
    assert np.abs(backwards - together).max() < 1e-6


@needs_bf16
def test_rounding_that_changes_a_close_decision_is_corrected(folder, monkeypatch):
    exact, predictor = probabilities(load(folder, "classes", "fp32")), load(folder, "classes")
    order = np.argsort(exact, axis=1)
    wrong, rows = np.log(exact), np.arange(len(exact))
    close = decision_margins(predictor.task, exact) < 0.04
    assert close.any()
    first, second = order[close, -1], order[close, -2]  # as if rounding had exchanged them
    wrong[rows[close], first], wrong[rows[close], second] = np.log(exact[close, second]), np.log(exact[close, first])
    rounded = {tuple(text): logits for text, logits in zip(predictor.encode(MANY), wrong, strict=True)}
    monkeypatch.setattr(
        predictor, "rounded_logits", lambda encoded, _check: np.stack([rounded[tuple(text)] for text in encoded])
    )
    assert np.array_equal(probabilities(predictor).argmax(axis=1), exact.argmax(axis=1))
    monkeypatch.setattr(bundle_predictor, "CLOSE_MARGIN", 0.0)  # control: without the second computation
    assert (probabilities(predictor).argmax(axis=1) != exact.argmax(axis=1)).sum() == close.sum()


@needs_bf16
def test_a_text_that_is_close_to_abstaining_is_computed_again(folder):
    predictor, exact = load(folder, "classes"), probabilities(load(folder, "classes", "fp32"))
    rounded = probabilities(load(folder, "classes", "bf16"))
    row = int(decision_margins(predictor.task, rounded).argmax())
    limits = np.zeros(len(MANY))
    limits[row] = rounded[row].max() + 0.01
    assert np.abs(probabilities(predictor, min_probability=limits)[row] - exact[row]).max() < 1e-7
    assert np.abs(probabilities(predictor)[row] - exact[row]).max() > 1e-7  # control


@needs_bf16
def test_logits_explanations_and_ratings_are_exact(folder):
    for kind in ("classes", "rating"):
        auto, fp32 = load(folder, kind), load(folder, kind, "fp32")
        encoded = auto.encode(MANY)
        assert np.array_equal(auto.logits(encoded), fp32.logits(encoded))  # those that `evaluate` reads
        assert explain_prediction(auto, TEXTS[0]) == explain_prediction(fp32, TEXTS[0])
    assert np.array_equal(probabilities(auto), probabilities(fp32))
    assert load(folder, "rating").rounded_logits(encoded) is None


@needs_bf16
def test_bf16_is_chosen_for_wide_networks_on_a_cpu_unless_a_precision_is_given(folder, tmp_path, monkeypatch):
    wide_classifier(tmp_path / "narrow", width=64)
    chosen = {
        (kind, name): load_predictor(path, SETTINGS[name]).rounded_logits([np.array([5])]) is not None
        for kind, path in (("wide", folder / "classes"), ("narrow", tmp_path / "narrow"))
        for name in SETTINGS
    }
    assert [key for key, is_chosen in chosen.items() if is_chosen] == [("wide", "auto")]
    monkeypatch.setattr("headstart.kernels.packed_linear.has_bf16_products", lambda: False)
    assert load(folder, "classes").rounded_logits([np.array([5])]) is None
    assert not Runtime(torch.device("cpu"), bf16=False, threads=1).mixed


@needs_bf16
def test_both_networks_share_their_parameters(folder):
    predictor = load(folder, "classes")
    assert isinstance(predictor, Predictor)
    ours, copied = (list(model.parameters()) for model in (predictor.bundle.model, predictor._bf16_model))
    assert all(one is other for one, other in zip(ours, copied, strict=True))


@needs_bf16
def test_a_blend_decides_by_its_own_probabilities(tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.kernels.packed_linear._MIN_BF16_WIDTH", 16)
    blend(tmp_path / "blend", temperature=4.0)
    mixed, exact, rounded = (probabilities(load(tmp_path, "blend", name)) for name in ("auto", "fp32", "bf16"))
    close = decision_margins(TASKS["classes"], rounded) < bundle_predictor.CLOSE_MARGIN
    assert 0 < close.sum() < len(close)
    assert np.abs(mixed[close] - exact[close]).max() < 1e-6
    assert np.array_equal(mixed[~close], rounded[~close])
    assert np.array_equal(mixed.argmax(axis=1), exact.argmax(axis=1))
