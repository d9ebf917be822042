"""The six mistakes of the published experiment, each with a test that fails when the mistake is put in.

Each test says which mistake it guards against; docs/course.md has the table. Numbers are those of the six in there.
"""

import csv
import inspect
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.comparison_folder import write_answers
from fixtures.recipes import pretrain_run
from fixtures.tiny import (
    CPU,
    SPECIAL,
    VOCABULARY,
    classifier,
    finetune_config,
    in_memory,
    pretrain_config,
    write_reviews,
)
from headstart import api
from headstart.cli.compare import ARMS as TYPED_ARMS
from headstart.config.schema import ModelConfig, OptimConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.shards import Shards
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.model.transformer import build_backbone
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.report.statistics import protocol_accuracies
from headstart.report.summary import verdict
from headstart.runtime import setup_runtime
from headstart.store.bundle import load_bundle
from headstart.store.records import read_record
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import class_logits, classification_loss, language_model_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.scoring import score_language, score_texts

NUM_DUPLICATES = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tiny reviews, four test texts of which also appear in train, one with other white space."""
    folder = write_reviews(tmp_path_factory.mktemp("data"))
    rows = {name: read(folder / f"{name}.csv") for name in ("train", "test")}
    for index in range(NUM_DUPLICATES):
        rows["test"][index] = dict(rows["train"][3 * index])
    rows["test"][0]["text"] = f"  {rows['test'][0]['text'].replace(' ', '  ')} "
    write(folder / "test.csv", rows["test"])
    write(folder / "other.csv", [row | {"label": opposite(row["label"])} for row in rows["test"]])
    return folder


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(rows)


def opposite(label):
    return {"positive": "negative", "negative": "positive"}[label]


@pytest.fixture(scope="module")
def language_model(data, tmp_path_factory):
    """Pretrained for one pass with one document a step, so that the steps count the documents that were learnt from."""
    texts = data / "texts.txt"
    lines = texts.read_text("utf-8").splitlines()
    texts.write_text("".join(f"{line}\n" for line in lines + lines[:20]), encoding="utf-8")  # duplicates
    out = tmp_path_factory.mktemp("base") / "run"
    one = {"loop__steps": None, "loop__epochs": 1.0, "loop__batch_size": 1, "loop__accumulate": 1}
    config = pretrain_config(**one, corpus__layout="documents", corpus__held_out=0.2, model__dropout=0.0)
    pretrain_run([str(texts)], out, config)
    return out


@pytest.fixture(scope="module")
def comparison(data, language_model, tmp_path_factory):
    """A comparison with nothing asked for but one seed, test watched after every epoch."""
    out = tmp_path_factory.mktemp("comparison") / "run"
    compare(data, out, language_model, seeds=1)
    return load_comparison(out)


def compare(data, out, source, test="test.csv", **options):
    files = {"valid": str(data / "valid.csv"), "test": str(data / test)}
    config = finetune_config(loop__watch_test=True, loop__epochs=4, optim__lr=2e-3)
    run_compare(
        CompareRequest(train=str(data / "train.csv"), out=out, backbones=(str(source),), **files, **options), config
    )


# 1. The classification vector was the last row of the padded batch.


@pytest.mark.parametrize("neighbour", [8, 11])
def test_1_a_prediction_does_not_depend_on_the_longest_text_of_its_batch(neighbour):
    model = classifier().eval()
    chance = np.random.default_rng(1)
    texts = [chance.integers(4, VOCABULARY, length) for length in (5, neighbour)]
    rows = LabelledDataset(texts, [0, 1], SPECIAL, context=12)
    with torch.no_grad():
        together, alone = class_logits(model, rows.batch([0, 1])), class_logits(model, rows.batch([0]))
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-6)
    scored = score_texts(model, rows, CPU, lambda: None)
    np.testing.assert_allclose(scored[:1], alone.numpy(), rtol=0, atol=1e-6)
    assert not np.allclose(scored[0], scored[1], atol=1e-3)  # control: the two texts do have different answers


# 2. "Validation accuracy" was test accuracy, and test texts stood in train.


def test_2_test_chooses_nothing(data, language_model, tmp_path):
    for test in ("test", "other"):
        compare(data, tmp_path / test, language_model, f"{test}.csv", seeds=1, arms=("scratch", "pretrained"))
    for arm in ("scratch", "pretrained"):
        ours, other = (read_record(tmp_path / test / "cells" / f"{arm}-all-seed0.json") for test in ("test", "other"))
        assert [epoch.test_accuracy for epoch in ours.epochs] == pytest.approx(
            [1 - epoch.test_accuracy for epoch in other.epochs]
        )  # control: with every label of test turned round, its curve is turned round
        assert len({epoch.test_accuracy for epoch in ours.epochs}) > 1
        assert ours.best_epoch == other.best_epoch
        assert ours.predictions == other.predictions
        assert [epoch.valid_accuracy for epoch in ours.epochs] == [epoch.valid_accuracy for epoch in other.epochs]
        best = max(ours.epochs, key=lambda epoch: (epoch.valid_accuracy, -epoch.valid_loss))
        assert ours.best_epoch == best.epoch


def test_2_duplicates_of_train_in_test_are_found_and_accuracy_is_reported_with_and_without_them(comparison):
    assert comparison.data.test.overlap == tuple(range(NUM_DUPLICATES))
    page = render(comparison)
    assert f"* without the {NUM_DUPLICATES} test texts with an exact duplicate in train." in page
    gold = comparison.data.test.gold
    for reading in protocol_accuracies(comparison, "all"):
        (cell,) = comparison.runs_of(reading.arm, "all")
        right = [answer == truth for answer, truth in zip(cell.predictions, gold, strict=True)]
        assert reading.honest_every_row.mean == pytest.approx(sum(right) / len(right))
        assert reading.honest.mean == pytest.approx(sum(right[NUM_DUPLICATES:]) / len(right[NUM_DUPLICATES:]))
        assert reading.course.mean == max(epoch.test_accuracy for epoch in cell.epochs)
    assert [reading.arm for reading in protocol_accuracies(comparison, "all")] == ["scratch", "pretrained"]


# 3. One run an arm, no seed.


def test_3_with_one_seed_the_report_states_that_the_variation_between_runs_is_unknown(comparison, tmp_path):
    words = " ".join(verdict(comparison))
    assert "over the test texts only: one seed does not show the variation between training runs" in words
    assert (
        "One seed: the intervals cover the choice of test texts, not the variation between training runs."
    ) in render(comparison)
    answers = {arm: dict.fromkeys((0, 1), "11101100") for arm in ("scratch", "pretrained")}
    assert "2 paired seeds" in " ".join(verdict(load_comparison(write_answers(tmp_path, answers))))


@pytest.mark.parametrize("function", [CompareRequest, api.compare], ids=["recipe", "Python"])
def test_3_a_comparison_runs_several_seeds_by_default(function):
    assert inspect.signature(function).parameters["seeds"].default == 5


# 4. Nobody ran the simple baseline.


def test_4_the_linear_arm_runs_by_default(comparison):
    assert comparison.arms == ("majority", "linear", "scratch", "pretrained")
    assert comparison.missing == ()
    assert inspect.signature(api.compare).parameters["arms"].default == tuple(TYPED_ARMS.split(","))


def test_4_the_verdict_names_the_linear_arm_when_it_wins(tmp_path):
    answers = {
        "majority": {0: "10" * 20},
        "linear": {0: "1" * 38 + "00"},
        "scratch": {0: "10" * 10 + "1" * 8 + "0" * 12, 1: "10" * 10 + "1" * 7 + "0" * 13},
        "pretrained": {0: "10" * 10 + "1" * 11 + "0" * 9, 1: "10" * 10 + "1" * 12 + "0" * 8},
    }
    assert verdict(load_comparison(write_answers(tmp_path, answers)))[0] == (
        "The linear model is best: 95.0 % on test, 41.2 points above the pretrained network (53.8 %)."
    )


# 5. Nobody measured the language model on held-out text.


def test_5_the_language_model_is_measured_on_documents_that_it_was_not_trained_on(language_model):
    shards = Shards.open(language_model / "tokens")
    train, held_out = shards.split(0.2, 0)
    assert len(held_out) > 10
    assert len(train) + len(held_out) == shards.num_documents
    assert not set(shards.digests[train].tolist()) & set(shards.digests[held_out].tolist())  # not even a double
    result = json.loads((language_model / "result.json").read_text())
    assert result["steps"] == len(train)  # one pass, a document a step
    measured = result["held_out"]
    bundle = load_bundle(language_model)
    special = bundle.tokenizer.special

    def score(documents):
        rows = PackedDataset(shards, documents, special, context=bundle.config.context, layout="packed", seed=None)
        runtime = setup_runtime(pretrain_config().runtime)
        return score_language(bundle.model, rows, int(shards.text_bytes[documents].sum()), runtime, lambda: None)

    expected = score(held_out)
    assert measured["loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert measured["perplexity"] == pytest.approx(math.exp(expected.loss), rel=1e-6)
    size = sum(shards.text_bytes[held_out].tolist())
    assert measured["bits_per_byte"] == pytest.approx(expected.loss * expected.tokens / math.log(2) / size, rel=1e-6)
    assert score(train).loss != pytest.approx(expected.loss, rel=1e-6)  # control


# 6. Softmax before cross-entropy, and no optimizer step: each leaves a signature in the loss.

WORDS, WIDTH = 2000, 200
TEXT = [np.arange(4 + 30 * number, 34 + 30 * number) for number in range(8)]
SHAPE = ModelConfig(width=WIDTH, depth=1, heads=2, feedforward=16, context=32)


def losses(model, batch, objective, steps):
    config = OptimConfig(lr=3e-3)
    state = TrainState(model, build_optimizer(model, config), 0)
    return [report.loss for report in fit(state, lambda _: [batch], lambda b: objective(model, b), config, steps, CPU)]


def test_6_the_language_models_loss_starts_where_it_must_and_falls_below_what_a_second_softmax_allows():
    model = Model(build_backbone(SHAPE, WORDS, 0), build_language_head(SHAPE, WORDS, 0))
    rows = PackedDataset(in_memory(TEXT), np.arange(len(TEXT)), SPECIAL, context=32, layout="documents", seed=None)
    outcome = losses(model, rows.batch(0, len(TEXT)), language_model_loss, 30)
    # scores of a fresh head have variance d · 0.1² / 3, which adds half of itself to ln V; a second softmax would flatten
    # them and start at ln V itself. At the published V = 50,001 and d = 200 these are 11.15 and 10.82
    assert outcome[0] == pytest.approx(math.log(WORDS) + WIDTH * 0.1**2 / 6, abs=0.15)
    floor = math.log(WORDS - 1 + math.e) - 1  # of a second softmax, however well the text is learnt
    assert outcome[-1] < floor - 1


def test_6_the_classifiers_loss_falls_below_what_a_second_softmax_allows():
    model = Model(build_backbone(SHAPE, WORDS, 0), build_classifier_head(SHAPE, 2, 0))
    rows = LabelledDataset(TEXT, [number % 2 for number in range(len(TEXT))], SPECIAL, context=32)
    outcome = losses(model, rows.batch(range(len(TEXT))), classification_loss, 40)
    floor = math.log(1 + math.e) - 1
    assert floor == pytest.approx(0.3133, abs=1e-4)  # the floor seen in published runs
    assert outcome[-1] < floor / 2


def test_6_every_step_changes_every_weight():
    model = classifier()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rows = LabelledDataset([np.arange(4, VOCABULARY)[:11]] * 2, [0, 0], SPECIAL, context=12)
    outcome = losses(model, rows.batch([0, 1]), classification_loss, 2)
    assert outcome[1] < outcome[0]
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert still == []


def test_the_documentation_names_these_tests_and_no_others():
    text = (Path(__file__).parents[2] / "docs" / "course.md").read_text("utf-8")
    own = [name for name in globals() if re.match(r"test_\d_", name)]
    assert len(own) == 11
    assert sorted(set(re.findall(r"`(test_\w+)`", text))) == sorted(own)
