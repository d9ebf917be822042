"""Exported multi-label, regression and pair models predict as `headstart predict` does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.small_models import ODD, TEXTS, jittered, shape, tokenizer
from fixtures.tiny import CPU
from headstart.errors import UsageError
from headstart.estimator import TextClassifier, TextRegressor
from headstart.interop.export import export_compact
from headstart.interop.hf_export import export_hf
from headstart.interop.onnx_export import export_onnx
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict.predictor import Predictor
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.tasks import MultiLabel, Regression, SingleLabel

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
LONG = " ".join(TEXTS)
PAIRS = [
    *zip(TEXTS[:6], TEXTS[6:12], strict=True),
    *zip(ODD, ODD[::-1], strict=True),
    (LONG, "a"),
    ("b", LONG),
    (LONG, LONG),
]
TEXT_INPUTS = [*TEXTS[:8], *ODD, LONG]  # of several lengths, one beyond the context
TARGETS = {
    "classes": SingleLabel(("bad", "fine", "good")),
    "labels": MultiLabel(("bad", "fine", "good"), thresholds=(0.3, 0.5, 0.7)),
    "rating": Regression((), False, 1.0, 5.0, 3.0, 1.4),
    "pair": SingleLabel(("other", "same"), pair=True),
    "rated pair": Regression((), True, -2.0, 2.0, 0.0, 1.0),
}


def bundle_of(folder, name, block="classic", attention="causal"):
    task, words = TARGETS[name], tokenizer()
    config = shape(block)
    head = build_classifier_head(config, task.outputs, 0, attention, bias=task.kind == "rating")
    model = jittered(Model(build_backbone(config, words.vocab_size, 0), head))
    if task.kind == "rating":
        model.head.linear.bias.data += task.mean
    save_bundle(folder, Bundle(model, words, task, attention=attention))
    return load_bundle(folder)


def text_inputs(name):
    return PAIRS if TARGETS[name].pair else TEXT_INPUTS


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


@pytest.mark.parametrize("kind", [("classic", "causal"), ("modern", "bidirectional"), ("modern", "causal")], ids=str)
@pytest.mark.parametrize("name", TARGETS)
def test_a_stock_class_answers_as_we_do(transformers, tmp_path, name, kind):
    bundle = bundle_of(tmp_path / "ours", name, *kind)
    task = bundle.task
    if task.kind == "rating" and kind == ("modern", "causal"):
        with pytest.raises(UsageError) as caught:
            export_hf(bundle, tmp_path / "theirs")
        assert str(caught.value) == (
            f"{tmp_path / 'ours'} predicts a rating with a head that has a bias, which the head of a stock Llama does "
            "not have; fine-tune with --transfer.attention bidirectional to export, or use --to onnx"
        )
        return
    export_hf(bundle, tmp_path / "theirs")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    inputs = text_inputs(name)
    texts = [list(part) for part in zip(*inputs, strict=True)] if task.pair else [inputs]
    batch = reader(*texts, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        theirs = task.probabilities(model(**batch).logits.double().numpy())
    predictor = Predictor(bundle, CPU)
    ours = predictor.probabilities(predictor.encode(inputs))
    assert np.abs(ours - theirs).max() < 1e-5
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    expected = {
        "labels": "multi_label_classification",
        "rating": "regression",
        "classes": "single_label_classification",
    }
    assert config["problem_type"] == expected[task.kind]


@pytest.mark.parametrize("name", TARGETS)
def test_the_pipeline_of_the_exported_readme_gives_our_numbers(transformers, tmp_path, name):
    bundle = bundle_of(tmp_path / "ours", name)
    export_hf(bundle, tmp_path / "theirs")
    readme = (tmp_path / "theirs" / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0].replace("THIS FOLDER", str(tmp_path / "theirs"))
    code = code.replace("print(", "printed.append(")
    printed = []
    exec(code, {"printed": printed})
    text = ("the first text", "the second") if bundle.task.pair else "a text to classify"
    predictor = Predictor(bundle, CPU)
    (ours,) = predictor.probabilities(predictor.encode([text]))
    rows = printed[0] if isinstance(printed[0], list) else [printed[0]]
    theirs = {row["label"]: row["score"] for row in rows}
    named = dict(zip(bundle.labels or ("rating",), ours, strict=True))
    assert theirs == pytest.approx({label: named[label] for label in theirs}, abs=1e-5)
    assert len(theirs) == (len(named) if bundle.task.kind == "labels" else 1)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("labels", "rating", "rated pair")],
)
def test_onnxruntime_and_the_example_answer_as_we_do(tmp_path, name):
    for extra in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(extra, reason="needs the extra onnx: pip install 'headstart[onnx]'")
    bundle = bundle_of(tmp_path / "ours", name)
    export_onnx(bundle, tmp_path / "theirs")  # refuses a graph that differs by more than 1e-5 on 64 made-up texts
    facts = json.loads((tmp_path / "theirs" / "headstart.json").read_text())
    assert facts["task"] == bundle.task.facts()
    assert facts["outputs"] == ["logits", "value" if bundle.task.kind == "rating" else "probabilities"]
    inputs = text_inputs(name)[:6]
    flat = [text for one in inputs for text in (one if bundle.task.pair else (one,))]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "theirs"), *flat]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=kept)
    assert done.returncode == 0, done.stderr
    shown = [line.split("\t")[0] for line in done.stdout.splitlines()]
    answers = Predictor(bundle, CPU).predict(inputs)
    if bundle.task.kind == "rating":
        assert [float(value) for value in shown] == pytest.approx([one.value for one in answers], abs=1e-4)
    else:
        assert shown == [", ".join(one.labels) for one in answers]


def test_the_estimators_answer_as_we_do(tmp_path):
    bundle = bundle_of(tmp_path / "labels", "labels")
    estimator = TextClassifier.load(tmp_path / "labels")
    answers = Predictor(bundle, CPU).predict(TEXT_INPUTS)
    assert estimator.predict_proba(TEXT_INPUTS).tolist() == [
        pytest.approx(list(one.probabilities.values()), abs=1e-6) for one in answers
    ]
    predicted = estimator.predict(TEXT_INPUTS)
    assert [tuple(estimator.classes_[row > 0]) for row in predicted] == [one.labels for one in answers]
    rating = bundle_of(tmp_path / "rating", "rating")
    assert TextRegressor.load(tmp_path / "rating").predict(TEXT_INPUTS).tolist() == pytest.approx(
        [one.value for one in Predictor(rating, CPU).predict(TEXT_INPUTS)], abs=1e-6
    )
    with pytest.raises(UsageError) as caught:
        TextClassifier.load(tmp_path / "rating")
    assert str(caught.value) == f"{tmp_path / 'rating'} predicts a rating; load it with TextRegressor"


ROUNDING = {"fp32": 0.0, "bf16": 0.02, "int8": 0.04}
"""How far an answer may move when the weights are rounded, as a share of the range of answers."""


@pytest.mark.parametrize("storage", ROUNDING)
@pytest.mark.parametrize("kind", [("classic", "causal"), ("modern", "bidirectional"), ("modern", "causal")], ids=str)
@pytest.mark.parametrize("name", TARGETS)
def test_a_compact_bundle_keeps_the_task_and_answers_as_the_whole_one(tmp_path, name, kind, storage):
    original = bundle_of(tmp_path / "whole", name, *kind)
    export_compact(original, tmp_path / "small", storage)
    small = load_bundle(tmp_path / "small", head_type="classify")
    assert small.task == original.task  # thresholds, bounds and scale with it
    assert (small.labels, small.attention, small.objective) == (original.labels, original.attention, original.objective)
    inputs = text_inputs(name)
    before, after = (
        Predictor(bundle, CPU).probabilities(Predictor(bundle, CPU).encode(inputs)) for bundle in (original, small)
    )
    span = original.task.highest - original.task.lowest if original.task.kind == "rating" else 1.0
    assert np.abs(before - after).max() <= ROUNDING[storage] * span
    assert np.ptp(before, axis=0).max() > 2 * ROUNDING[storage] * span  # control: the answers differ by more than that
