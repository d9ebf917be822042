"""onnxruntime answers as we do; the example runs with it and a tokenizer alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import ODD, TEXTS, classifier

from headstart.cli.main import run
from headstart.errors import UsageError
from headstart.interop import onnx_export
from headstart.interop.onnx_export import export_onnx
from headstart.predict.predictor import Predictor
from tiny import CPU

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
SLOW = (("modern", "both"), ("modern", "causal"), ("classic", "both"))  # torch takes seconds to export one
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
    theirs = onnx_export._answers(folder, "model.onnx", texts)
    alone = onnx_export._answers(folder, "model.onnx", texts, bite=1)
    assert theirs.tolist() == [pytest.approx(row, abs=1e-5) for row in ours]
    assert alone.tolist() == [pytest.approx(row, abs=1e-5) for row in ours]
    facts = json.loads((folder / "headstart.json").read_text())
    exact, small = facts["files"]
    assert exact["largest_difference"] < 1e-5
    assert exact["same_answers"] == exact["texts"] == 64
    assert 1e-5 < small["largest_difference"] < 0.2  # control: the small graph is another one
    assert small["bytes"] < exact["bytes"]
    assert lines[-1] == f"in probability, on 64 texts made up from the vocabulary; opset 18; in {folder}"


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
    assert lines[0].split() == ["file", "size", "largest", "difference", "same", "answers"]
    assert lines[1].startswith("model.onnx ")
    assert lines[1].endswith("5 of 5")
    assert lines[2].startswith("model.int8.onnx ")


def test_windows_are_refused_here_too(onnx, tmp_path):
    with pytest.raises(UsageError) as caught:
        export_onnx(classifier(tmp_path / "ours", "modern", "both", windows=True), tmp_path / "theirs")
    assert "reads long texts in windows" in str(caught.value)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        export_onnx(classifier(tmp_path / "ours", "modern", "both"), tmp_path / "theirs")
    assert str(caught.value) == "--to onnx needs onnx, onnxscript, onnxruntime: pip install 'headstart[onnx]'"


def test_checking_is_for_onnx(tmp_path, capsys):
    classifier(tmp_path / "ours", "classic", "causal")
    arguments = ["export", str(tmp_path / "ours"), "--to", "hf", "--out", str(tmp_path / "x"), "--check", "a.txt"]
    assert run(arguments) == 2
    assert capsys.readouterr().err == "headstart: --check is for --to onnx, got --to hf\n"
