"""NumpyPredictor needs no torch and predicts as Predictor does."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.recipes import finetune_run
from fixtures.tiny import CPU, SPECIAL, finetune_config, write_reviews
from headstart.config.schema import ModelConfig, RuntimeConfig
from headstart.data.datasets import LabelledDataset
from headstart.files import MANIFEST, read_json, write_json
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict import numpy_predictor as quick
from headstart.predict.numpy_predictor import NumpyPredictor, numpy_logits, weight_shapes
from headstart.predict.predictor import Predictor
from headstart.train.scoring import score_texts

ONE = RuntimeConfig(threads=1, device="cpu")
KINDS = {
    "classic": {"model__context": 24},
    "windows": {"labelled__long_texts": "windows"},
    "modern": {"model__block": "modern", "model__heads": 2},
}


def network(block, attention, seed=0, context=600):
    shape = ModelConfig(block=block, width=16, depth=2, heads=2, feedforward=24, context=context)
    model = Model(build_backbone(shape, 300, seed), build_classifier_head(shape, 3, seed, attention)).eval()
    with torch.no_grad():  # norms and biases that begin as ones and zeros would hide a mistake
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return shape, model


def in_numpy(model):
    named = {name: tensor.numpy() for name, tensor in model.backbone.state_dict().items()}
    return named | {f"head.{name}": tensor.numpy() for name, tensor in model.head.state_dict().items()}


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("block", ["classic", "modern"])
@settings(max_examples=10)
@given(length=st.integers(1, 600), seed=st.integers(0, 9))
def test_numpy_and_torch_give_the_same_scores(block, attention, length, seed):
    shape, model = network(block, attention, seed)
    ids = np.random.default_rng(seed).integers(4, 300, length - 1)
    theirs = score_texts(model, LabelledDataset([ids], [0], SPECIAL, context=600), CPU, lambda: None)[0]
    ours = numpy_logits(in_numpy(model), shape, attention, np.concatenate(([SPECIAL.sos], ids)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("block", ["classic", "modern"])
def test_weight_shapes_are_those_of_the_torch_model(block, attention):
    shape, model = network(block, attention)
    assert weight_shapes(shape, 300, 3, attention) == {name: tensor.shape for name, tensor in in_numpy(model).items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("quick"))
    for name, changes in KINDS.items():
        config = finetune_config(loop__epochs=1, **changes)
        finetune_run(
            str(folder / "train.csv"), folder / name, config, backbone="scratch", valid=str(folder / "valid.csv")
        )
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_predictions_equal_those_of_the_predictor(trained, kind):
    texts = ["a lovely story", "dull", "the film was " * 20, "🙂"]
    ours = NumpyPredictor.load(trained / kind, texts).predict(texts)
    theirs = Predictor.load(trained / kind, ONE).predict(texts)
    assert len({round(answer.probability, 4) for answer in theirs}) > 1  # control: the answers do differ
    for a, b in zip(ours, theirs, strict=True):
        assert (a.label, a.truncated, a.abstained) == (b.label, b.truncated, b.abstained)
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)


def test_one_text_is_answered_without_torch(trained):
    """The control is the same command with something to explain, which does need it."""
    code = (
        "import sys; sys.modules['torch'] = None; from headstart.cli.main import run; "
        "sys.exit(run(['predict', sys.argv[1], 'a lovely story', *sys.argv[2:]]))"
    )
    command = [sys.executable, "-c", code, str(trained / "classic")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] in ("negative", "positive")
    assert subprocess.run([*command, "--explain"], capture_output=True).returncode == 1


def test_much_text_is_left_to_torch(trained, monkeypatch):
    assert NumpyPredictor.load(trained / "classic", ["dull"]) is not None
    monkeypatch.setattr(quick, "MAX_MULTIPLICATIONS", 10)
    assert NumpyPredictor.load(trained / "classic", ["dull"]) is None


@pytest.mark.parametrize("more", [{"kind": "several labels"}, {"model": {"sliding": 8}}, {"model": {"depth": 10**9}}])
def test_a_bundle_with_unknown_keys_is_left_to_the_predictor(trained, tmp_path, more):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "classic" / "bundle", copy)
    facts = read_json(copy / "bundle.json")
    write_json(
        copy / "bundle.json",
        facts | {key: facts.get(key, {}) | value if key == "model" else value for key, value in more.items()},
    )
    assert NumpyPredictor.load(copy, ["dull"]) is None


@pytest.mark.parametrize("name", ["backbone.safetensors", "tokenizer/tokenizer.json", MANIFEST])
def test_a_damaged_bundle_is_left_to_the_predictor_which_names_the_damage(trained, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "classic" / "bundle", copy)
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    assert NumpyPredictor.load(copy, ["dull"]) is None


def test_a_folder_without_a_model_is_left_to_the_predictor(tmp_path):
    (tmp_path / "bundle.json").write_text(json.dumps([]))
    assert NumpyPredictor.load(tmp_path, ["dull"]) is None
    assert NumpyPredictor.load(tmp_path / "nowhere", ["dull"]) is None
