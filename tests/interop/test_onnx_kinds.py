"""Linear classifiers and blends in onnxruntime answer like `headstart predict`, on any text."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.small_models import LABELS, ODD, TEXTS, blend, linear, linear_classifier
from headstart.cli.main import run
from headstart.config.schema import RuntimeConfig
from headstart.errors import UsageError
from headstart.files import read_json
from headstart.interop.export import run_export
from headstart.linear.classifier import LinearClassifier
from headstart.predict.bundle_predictor import load_predictor
from headstart.predict.onnx_predictor import OnnxPredictor
from headstart.store.bundle import save_bundle
from headstart.store.linear_bundle import LinearBundle
from headstart.tasks import SingleLabel

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
ALL = [*TEXTS[:8], *ODD, "!!", "İSTANBUL ǅ ΑΣ", "the the the film the film", "wonderful " * 90]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    linear(folder / "linear")
    blend(folder / "blend")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    for kind in ("linear", "blend"):
        run_export(folder / kind, folder / f"{kind}-onnx", "onnx", check=str(folder / "texts.txt"))
    return folder


@pytest.fixture(scope="module")
def predictors(folder):
    one = RuntimeConfig(threads=1, device="cpu")
    return {
        kind: (load_predictor(folder / kind, one), OnnxPredictor(folder / f"{kind}-onnx", threads=1))
        for kind in ("linear", "blend")
    }


def check(ours, exported):
    for one, other in zip(ours, exported, strict=True):
        assert other.probabilities == pytest.approx(one.probabilities, abs=1e-5)
        assert (other.label, other.truncated) == (one.label, one.truncated)


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_an_exported_model_answers_like_the_original(predictors, kind):
    ours, exported = (predictor.predict(ALL) for predictor in predictors[kind])
    check(ours, exported)
    assert len({prediction.label for prediction in ours}) > 1  # control


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(min_size=1, max_size=60).filter(str.strip))
def test_any_text_gets_the_same_answer_from_an_exported_linear_classifier(predictors, text):
    original, exported = predictors["linear"]
    check(original.predict([text]), exported.predict([text]))


def test_an_export_says_what_it_was_compared_on(folder):
    facts = {kind: read_json(folder / f"{kind}-onnx" / "headstart.json") for kind in ("linear", "blend")}
    assert facts["linear"]["inputs"] == ["words", "characters"]
    assert facts["blend"]["inputs"] == ["input_ids", "attention_mask", "words", "characters"]
    assert (facts["linear"]["context"], facts["blend"]["context"]) == (None, 64)
    for kind, names in (("linear", ["model.onnx"]), ("blend", ["model.onnx", "model.int8.onnx"])):
        files = facts[kind]["files"]
        assert [file["name"] for file in files] == names
        assert (files[0]["texts"], files[0]["same_answers"]) == (len(TEXTS), len(TEXTS))
        assert files[0]["largest_difference"] < 1e-5
        assert facts[kind]["compared_on"] == f"{len(TEXTS)} texts of {folder / 'texts.txt'}"


def test_an_export_is_compared_on_made_up_texts_where_there_are_no_others(folder, tmp_path):
    *table, last = run_export(folder / "linear", tmp_path / "out", "onnx")
    assert table[1].split()[-3:] == ["64", "of", "64"]
    assert last.startswith("in probability, on 64 texts generated from the vocabulary; opset 18; in ")


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_the_command_answers_with_an_export(folder, capsys, kind):
    assert run(["predict", str(folder / f"{kind}-onnx"), TEXTS[0]]) == 0
    answer = capsys.readouterr().out
    assert run(["predict", str(folder / kind), TEXTS[0]]) == 0
    assert capsys.readouterr().out == answer


def test_a_linear_export_has_no_int8_graph(folder):
    with pytest.raises(UsageError) as raised:
        OnnxPredictor(folder / "linear-onnx", int8=True)
    name = folder / "linear-onnx"
    assert str(raised.value) == f"{name} has no model.int8.onnx: a linear classifier is exported in fp32 only"
    assert OnnxPredictor(folder / "blend-onnx", int8=True).predict(["a text"])[0].label in LABELS  # control


@pytest.mark.parametrize("kind", ["linear", "blend"])
def test_the_example_needs_no_headstart_and_answers_the_same(folder, predictors, kind):
    code = (
        "import runpy, sys; sys.modules['headstart'] = sys.modules['torch'] = None; "
        "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    texts = [text for text in ALL if "\n" not in text]
    arguments = [sys.executable, "-c", code, str(EXAMPLE), str(folder / f"{kind}-onnx"), *texts]
    lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    expected = [f"{one.label}\t{one.probability:.4f}" for one in predictors[kind][1].predict(texts)]
    assert [line.rpartition("\t")[0] for line in lines] == expected


def test_a_classifier_that_knows_no_words_has_no_graph(tmp_path):
    views = tuple(
        replace(view, ngrams=view.ngrams[:0], idf=view.idf[:0], weight=view.weight[:0])
        for view in linear_classifier().views
    )
    save_bundle(
        tmp_path / "empty", LinearBundle(LinearClassifier(views, linear_classifier().bias), SingleLabel(LABELS))
    )
    with pytest.raises(UsageError) as raised:
        run_export(tmp_path / "empty", tmp_path / "out", "onnx")
    name = tmp_path / "empty"
    assert (
        str(raised.value) == f"{name} has no n-grams: it predicts the same label for all texts and cannot be exported"
    )
