"""Next-sentence prediction in a run: scored, checkpointed, resumed, and no part of the bundle."""

import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import Listener, change_runtime, finetune_config, pretrain_config, write_reviews
from headstart.cli.main import run as headstart
from headstart.errors import ConfigError, Interrupted
from headstart.files import read_json
from headstart.store.bundle import load_bundle
from headstart.store.tensors import load_tensors

PAIRS = {"objective": "masked", "next_sentence__weight": 0.5}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(**PAIRS), progress=Listener())
    return folder


def test_pairs_are_measured_logged_and_in_the_result(reviews, tmp_path):
    listener = Listener()
    run = pretrain_run(
        [str(reviews / "base" / "tokens")], tmp_path / "run", pretrain_config(**PAIRS), progress=listener
    )
    result = read_json(run.path / "result.json")
    evaluations = run.metrics.read("evaluation")
    assert all(0 <= line["pairs"]["accuracy"] <= 1 and line["pairs"]["pairs"] > 1 for line in evaluations)
    assert result["pairs"] == {
        "weight": 0.5,
        "head": "trained with the language-model head, not part of the bundle",
        **evaluations[-1]["pairs"],
    }
    assert any(" pairs of pieces per epoch from 107 documents" in line for line in listener.lines)
    assert f" % of {result['pairs']['pairs']} pairs correct; model in " in listener.lines[-1]


def test_the_bundle_of_a_run_with_pairs_has_no_pair_head(reviews, tmp_path):
    bundle = load_bundle(reviews / "base", head_type="language")
    assert set(load_tensors(bundle.path / "head.safetensors")) == {"linear.weight", "linear.bias"}
    assert bundle.about["pairs"]["head"] == "trained with the language-model head, not part of the bundle"
    run = finetune_run(
        str(reviews / "train.csv"),
        tmp_path / "clf",
        finetune_config(loop__epochs=1),
        backbone=str(reviews / "base"),
        valid=str(reviews / "valid.csv"),
    )
    assert run.finished


def test_the_receipt_of_a_continued_model_names_the_pair_head_as_new(reviews, tmp_path):
    config = pretrain_config(loop__steps=2, **PAIRS)
    run = pretrain_run([str(reviews / "texts.txt")], tmp_path / "run", config, backbone=str(reviews / "base"))
    receipt = read_json(run.path / "receipt.json")
    assert [line["name"] for line in receipt["new"]] == ["head.pair.bias", "head.pair.weight"]
    assert "head.linear.weight" in [line["name"] for line in receipt["moved"]]


@pytest.mark.parametrize("objective", ["masked", "hybrid"])
def test_a_run_with_pairs_and_stages_resumes_to_the_same_bits(objective, reviews, tmp_path):
    stages = [{"texts": str(reviews / "texts.txt"), "context": 12}, {"texts": str(reviews / "texts.txt")}]
    settings = {"objective": objective, "next_sentence__weight": 0.5, "stages": stages, "loop__steps": 8}
    whole = pretrain_run([], tmp_path / "whole", pretrain_config(**settings))
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain_run([], out, pretrain_config(runtime__time_limit=1e-4, **settings))
    saved = load_tensors(out / "checkpoints" / "step-00000001" / "head.safetensors")
    assert {"pair.weight", "pair.bias"} < set(saved)
    for limit in (1e-4, 1e-4, 1e-4, 1e-4, None):  # one step more each time, across the border of the stages
        change_runtime(out, time_limit=limit)
        if limit:
            with pytest.raises(Interrupted):
                pretrain_run([], out, None, resume=True)
        else:
            pretrain_run([], out, None, resume=True)
    for name in ("backbone.safetensors", "head.safetensors"):
        assert (out / "bundle" / name).read_bytes() == (whole.path / "bundle" / name).read_bytes()
    assert (out / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()
    assert (out / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert [part["pairs"]["pairs"] > 1 for part in read_json(out / "result.json")["stages"]] == [True, True]


def test_documents_too_short_for_pairs_are_counted(tmp_path):
    (tmp_path / "t.txt").write_text("a\nb\n" + "\n".join(f"the film number {index} was long" for index in range(60)))
    listener = Listener()
    config = pretrain_config(loop__steps=2, corpus__held_out=0.2, **PAIRS)
    pretrain_run([str(tmp_path / "t.txt")], tmp_path / "run", config, progress=listener)
    (line,) = [line for line in listener.lines if "pairs of pieces" in line]
    assert line.endswith("; 2 documents of one token are skipped")


def test_without_a_next_sentence_weight_no_pairs_are_scored(reviews, tmp_path):
    run = pretrain_run([str(reviews / "base" / "tokens")], tmp_path / "run", pretrain_config(objective="masked"))
    assert "pairs" not in read_json(run.path / "result.json")
    assert "pairs" not in run.metrics.read("evaluation")[0]


def test_next_sentence_prediction_is_refused_with_a_causal_objective(reviews, capsys, monkeypatch, tmp_path):
    expected = (
        "next_sentence.weight needs objective masked or hybrid, got causal: with causal attention the start "
        "token cannot attend to the two texts"
    )
    with pytest.raises(ConfigError) as caught:
        pretrain_config(next_sentence__weight=1.0)
    assert str(caught.value) == expected
    monkeypatch.chdir(tmp_path)
    assert headstart(["pretrain", str(reviews / "texts.txt"), "--next-sentence.weight", "1", "--out", "run"]) == 2
    assert capsys.readouterr().err == f"headstart: --{expected.replace('next_sentence', 'next-sentence')}\n"
