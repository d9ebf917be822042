"""`predict`, `evaluate`, `export` and the commands that need a network, on linear classifiers and blends."""

import csv
import json
from contextlib import chdir

import pytest

from fixtures.small_models import TEXTS, blend, language, linear, linear_classifier
from headstart.cli.main import run
from headstart.estimator import TextClassifier
from headstart.predict.bundle_predictor import load_predictor
from headstart.store.bundle import LinearBundle, save_bundle
from headstart.tasks import SingleLabel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    linear(folder / "words")
    blend(folder / "both")
    language(folder / "base", "modern", "causal")
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, LABEL[index % 2]) for index, text in enumerate(TEXTS))])
    return folder


LABEL = ("bad", "good")


@pytest.fixture
def command(folder, capsys):
    def call(line):
        with chdir(folder):
            code = run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize("model", ["words", "both"])
def test_an_interrupted_file_is_resumed_to_the_same_bytes(command, model, tmp_path, stop_after):
    whole, out = (tmp_path / f"{name}.csv" for name in ("whole", "out"))
    stop_after(None)
    assert command(f"predict {model} --input rows.csv --out {whole}")[0] == 0
    stop_after(1)
    assert command(f"predict {model} --input rows.csv --out {out}")[0] == 130
    stop_after(None)
    assert command(f"predict {model} --input rows.csv --out {out} --resume")[0] == 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("model", ["words", "both"])
def test_a_file_is_predicted_row_by_row(folder, command, model):
    code, out, _ = command(f"predict {model} --input rows.csv")
    assert code == 0
    rows = list(csv.DictReader(out.splitlines()))
    answers = load_predictor(folder / model).predict(TEXTS)
    assert [row["predicted_label"] for row in rows] == [answer.label for answer in answers]


@pytest.mark.parametrize(("model", "unit"), [("words", "words"), ("both", "tokens")])
def test_mistakes_are_analysed(command, model, unit):
    code, out, _ = command(f"evaluate {model} rows.csv --errors --json --mistakes 2")
    analysis = json.loads(out)
    assert (code, analysis["evaluation"]["rows"]) == (0, len(TEXTS))
    assert all(group["name"].endswith(f" {unit}") for group in analysis["slices"]["length"])
    assert len(analysis["mistakes"]) == min(2, round((1 - analysis["evaluation"]["accuracy"]) * len(TEXTS)))
    code, out, _ = command(f"evaluate {model} rows.csv")
    assert out.startswith(f"accuracy {analysis['evaluation']['accuracy']:.4f}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "export words --to hf --out hf",
            "words contains a linear classifier, and transformers has no architecture for it; use --to onnx",
        ),
        (
            "export both --to hf --out hf",
            "both contains a network and a linear classifier; transformers can represent the network only, whose "
            "predictions differ; use --to onnx",
        ),
        (
            "export words --to compact --out hf",
            "words contains a linear classifier, which has no smaller format",
        ),
        (
            "finetune rows.csv --from words --out clf",
            "words contains a linear classifier, which has no network; this command needs one (from headstart pretrain)",
        ),
        (
            "generate words a",
            "words contains a linear classifier, which has no network; this command needs one (from headstart pretrain)",
        ),
    ],
)
def test_what_is_impossible_is_said_in_one_line(folder, command, line, message):
    code, out, err = command(line)
    assert (code, out, err) == (2, "", f"headstart: {message}\n")
    assert {path.name for path in folder.iterdir()} >= {"words", "both", "rows.csv"}
    assert not (folder / "hf").exists()
    assert not (folder / "clf").exists()


def test_a_label_cannot_steer_the_terminal_nor_break_a_line(tmp_path, capsys):
    classifier = linear_classifier()
    labels = ("bad\x1b[2J\nnews", "fine", "good\u202etxt")
    save_bundle(tmp_path / "model", LinearBundle(classifier, SingleLabel(labels), {}))
    assert run(["predict", str(tmp_path / "model"), *TEXTS[:8]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert {line.split("  ")[0] for line in lines} == {"bad�[2J news", "good�txt"}
    assert run(["predict", str(tmp_path / "model"), "--json", *TEXTS[:8]]) == 0  # control: programs get the label
    assert {json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()} == {labels[0], labels[2]}


def test_a_compact_copy_of_a_blend_answers_the_same(folder, command):
    code, out, _ = command("export both --to compact --out small")
    assert (code, out.strip().endswith("MB in small (bf16)")) == (0, True)
    sizes = [(folder / name / "backbone.safetensors").stat().st_size for name in ("both", "small")]
    assert sizes[1] < 0.6 * sizes[0]
    whole, small = (load_predictor(folder / name).predict(TEXTS) for name in ("both", "small"))
    for one, other in zip(whole, small, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.02)


@pytest.mark.parametrize("model", ["words", "both"])
def test_an_estimator_loads_and_saves_it(folder, tmp_path, model):
    estimator = TextClassifier.load(folder / model)
    answers = [answer.label for answer in load_predictor(folder / model).predict(TEXTS)]
    assert estimator.predict(TEXTS).tolist() == answers
    estimator.save(tmp_path / "copy")
    assert TextClassifier.load(tmp_path / "copy").predict(TEXTS).tolist() == answers


def test_a_network_can_be_finetuned_from_a_blend(folder, command):
    code, _, err = command("finetune rows.csv --from both --out again --loop.epochs 1 --runtime.threads 1 --quiet")
    assert (code, err) == (0, "")
    assert load_predictor(folder / "again").labels == ("bad", "good")
