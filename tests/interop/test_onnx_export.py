"""onnxruntime predicts as Headstart does; the example needs only onnxruntime and a tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.small_models import ODD, TEXTS, classifier
from fixtures.tiny import CPU
from headstart.cli.main import run
from headstart.errors import UsageError
from headstart.interop import onnx_export
from headstart.interop.onnx_export import export_onnx
from headstart.predict.onnx_predictor import OnnxPredictor
from headstart.predict.predictor import Predictor

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
SLOW = (
    ("modern", "bidirectional"),
    ("modern", "causal"),
    ("classic", "bidirectional"),
)  # torch takes seconds to export one
KINDS = [("classic", "causal"), *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]


@pytest.fixture(scope="module")
def onnx():
    for name in ("onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="needs the extra onnx: pip install 'headstart[onnx]'")
    return pytest.importorskip("onnx", reason="needs the extra onnx: pip install 'headstart[onnx]'")


@pytest.fixture(scope="module")
def exported(onnx, tmp_path_factory):
    """A bundle, the folder it was exported to, and what the command printed; made once for each kind."""
    made = {}

    def export(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("onnx")
            bundle = classifier(folder / "ours", *kind)
            made[kind] = bundle, folder / "theirs", export_onnx(bundle, folder / "theirs")
        return made[kind]

    return export


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_onnxruntime_answers_as_we_do(exported, kind):
    bundle, folder, lines = exported(kind)
    assert sorted(path.name for path in folder.iterdir()) == [
        "headstart.json",
        "manifest.json",
        "model.int8.onnx",
        "model.onnx",
        "tokenizer.json",
    ]
    texts = [*TEXTS[:6], *ODD, " ".join(TEXTS)]  # several lengths, one beyond the context
    ours = [list(answer.probabilities.values()) for answer in Predictor(bundle, CPU).predict(texts)]
    theirs = onnx_export._run_graph(folder, "model.onnx", texts)
    alone = onnx_export._run_graph(folder, "model.onnx", texts, batch_size=1)
    assert theirs.tolist() == [pytest.approx(row, abs=1e-5) for row in ours]
    assert alone.tolist() == [pytest.approx(row, abs=1e-5) for row in ours]
    facts = json.loads((folder / "headstart.json").read_text())
    exact, small = facts["files"]
    assert exact["largest_difference"] < 1e-5
    assert exact["same_answers"] == exact["texts"] == 64
    assert 1e-5 < small["largest_difference"] < 0.2  # control: the small graph is another one
    assert small["bytes"] < exact["bytes"]
    assert lines[-1] == f"in probability, on 64 texts generated from the vocabulary; opset 18; in {folder}"


def test_a_graph_tells_nothing_of_the_machine_it_was_made_on(onnx, exported):
    _, folder, _ = exported(("classic", "causal"))
    for name in ("model.onnx", "model.int8.onnx"):
        content = (folder / name).read_bytes()
        assert b".py" not in content
        graph = onnx.load(folder / name)
        assert not any(tensor.external_data for tensor in graph.graph.initializer)
        assert [axis.dim_param for axis in graph.graph.input[0].type.tensor_type.shape.dim] == ["batch", "length"]
        assert [part.version for part in graph.opset_import if part.domain == ""] == [18]


def test_the_example_runs_without_us_and_answers_the_same(exported):
    bundle, folder, _ = exported(("classic", "causal"))
    blocked = "import sys; sys.modules.update(torch=None, headstart=None, transformers=None)\n"
    code = f"{blocked}import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = [str(EXAMPLE), str(folder), *TEXTS[:2], ODD[0]]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, encoding="utf-8", env=kept)
    assert done.returncode == 0, done.stderr
    answers = Predictor(bundle, CPU).predict([*TEXTS[:2], ODD[0]])
    shown = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[0] for line in shown] == [answer.label for answer in answers]
    assert [float(line[1]) for line in shown] == pytest.approx([answer.probability for answer in answers], abs=1e-4)


@pytest.mark.slow
def test_the_command_prints_a_table_measured_on_the_texts_it_is_given(onnx, tmp_path, capsys):
    classifier(tmp_path / "ours", "classic", "causal")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:5]) + "\n")
    arguments = ["export", str(tmp_path / "ours"), "--to", "onnx", "--out", str(tmp_path / "theirs")]
    assert run([*arguments, "--check", str(tmp_path / "texts.txt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "size", "largest", "difference", "same", "predictions"]
    assert lines[1].startswith("model.onnx ")
    assert lines[1].endswith("5 of 5")
    assert lines[2].startswith("model.int8.onnx ")


def test_a_classifier_with_windows_is_not_exported_to_onnx(onnx, tmp_path):
    with pytest.raises(UsageError) as caught:
        export_onnx(classifier(tmp_path / "ours", "modern", "bidirectional", windows=True), tmp_path / "theirs")
    assert "reads long texts in windows" in str(caught.value)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        export_onnx(classifier(tmp_path / "ours", "modern", "bidirectional"), tmp_path / "theirs")
    assert str(caught.value) == "--to onnx needs onnx, onnxscript, onnxruntime: pip install 'headstart[onnx]'"


def test_the_option_check_is_refused_for_other_formats_than_onnx(tmp_path, capsys):
    classifier(tmp_path / "ours", "classic", "causal")
    arguments = ["export", str(tmp_path / "ours"), "--to", "hf", "--out", str(tmp_path / "x"), "--check", "a.txt"]
    assert run(arguments) == 2
    assert capsys.readouterr().err == "headstart: --check is for --to onnx, got --to hf\n"


def test_predict_reads_an_export_and_answers_as_the_model_does(exported, capsys):
    bundle, folder, _ = exported(("classic", "causal"))
    texts = [*TEXTS[:3], " ".join(TEXTS)]
    ours = Predictor(bundle, CPU).predict(texts)
    theirs = OnnxPredictor(folder, threads=1).predict(texts)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.label, a.truncated) == (b.label, b.truncated)
        assert b.probabilities == pytest.approx(a.probabilities, abs=1e-5)
    assert [answer.truncated for answer in theirs] == [False, False, False, True]
    assert run(["predict", str(folder), *texts, "--json", "--runtime.threads", "1"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in shown] == [answer.label for answer in ours]


def test_an_answer_of_an_export_does_not_depend_on_its_batch(exported, monkeypatch):
    _, folder, _ = exported(("classic", "causal"))
    predictor = OnnxPredictor(folder, threads=1)
    together = predictor.predict(TEXTS)
    monkeypatch.setattr("headstart.predict.onnx_predictor.BATCH_TOKENS", 1)
    for a, b in zip(together, predictor.predict(TEXTS), strict=True):
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)
    assert len({round(answer.probability, 4) for answer in together}) > 1  # control: they do differ


@pytest.mark.parametrize(("threads", "expected"), [(None, 3), (2, 2)])
def test_an_export_takes_the_free_cores_and_leaves_them_while_it_waits(exported, monkeypatch, threads, expected):
    _, folder, _ = exported(("classic", "causal"))
    monkeypatch.setattr("headstart.predict.onnx_predictor.free_cores", lambda: 3)
    options = OnnxPredictor(folder, threads=threads)._session.get_session_options()
    assert options.intra_op_num_threads == expected
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_int8_says_how_well_it_agreed(exported, capsys):
    _, folder, _ = exported(("classic", "causal"))
    assert run(["predict", str(folder), TEXTS[0], "--int8"]) == 0
    row = json.loads((folder / "headstart.json").read_text())["files"][1]
    assert capsys.readouterr().err == (
        f"int8: {row['same_answers']} of {row['texts']} predictions are the same as in full precision, on "
        f"{row['texts']} texts generated "
        "from the vocabulary\n"
    )


@pytest.mark.parametrize("wish", ["--explain", "--abstain"])
def test_what_an_export_cannot_do_is_said(exported, capsys, wish):
    _, folder, _ = exported(("classic", "causal"))
    more = ["0.9"] if wish == "--abstain" else []
    assert run(["predict", str(folder), TEXTS[0], wish, *more]) == 2
    message = f"{wish} does not support ONNX exports, got {folder}; use the model that was exported"
    assert capsys.readouterr().err == f"headstart: {message}\n"


def test_int8_is_for_exports(exported, capsys):
    bundle, _, _ = exported(("classic", "causal"))
    assert run(["predict", str(bundle.path), TEXTS[0], "--int8"]) == 2
    message = (
        f"--int8 needs an ONNX export, got {bundle.path}; "
        f"create one with: headstart export {bundle.path} --to onnx --out FOLDER"
    )
    assert capsys.readouterr().err == f"headstart: {message}\n"
