"""Of several starters of one language, `headstart auto` takes the one whose frozen features separate the labels best."""

import os
import re

import numpy as np
import pytest
import torch

from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart.config.schema import FinetuneLoop, LabelledConfig, RuntimeConfig
from headstart.files import read_checksummed
from headstart.interop.export import export_compact
from headstart.recipes.auto.linear_probe import (
    FULL_PLAN_FOLDS,
    Probe,
    choose_probe,
    cross_validated_log_loss,
    describe_choice,
    probe_starters,
)
from headstart.recipes.auto.run import AutoRequest, run_auto
from headstart.recipes.auto.schedule import NetworkPlan, Speed
from headstart.recipes.auto.table import load_table
from headstart.runtime import setup_runtime
from headstart.store.bundle import load_bundle
from headstart.store.locate import STARTERS_PACKAGE

SETTINGS = {"loop": {"epochs": 2, "min_steps": 0}, "runtime": {"threads": 1}}


@pytest.fixture(scope="module")
def two_starters(tmp_path_factory):
    """A table, and a package with a trained starter `good` and one of constant features, `poor`."""
    folder = write_reviews(tmp_path_factory.mktemp("probe"), train=64)
    run = pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=3))
    package = folder / "home" / STARTERS_PACKAGE
    facts = {
        "languages": ["en"],
        "licence": "apache-2.0",
        "licence_notes": "None.",
        "text": ["Made-up reviews."],
        "limits": [],
        "prompt": "the film",
        "command": "headstart pretrain texts.txt",
    }
    for name in ("good", "poor"):
        bundle = load_bundle(run.path)
        if name == "poor":
            torch.nn.init.constant_(bundle.model.backbone.embedding.weight, 0.02)
        export_compact(bundle, package / name, "bf16", {"starter": facts | {"name": name}})
    (package / "__init__.py").touch()
    return folder


@pytest.fixture
def installed(two_starters, monkeypatch):
    monkeypatch.syspath_prepend(two_starters / "home")
    return two_starters


def test_features_that_separate_the_labels_have_the_lower_log_loss():
    rng = np.random.default_rng(0)
    gold = np.arange(60) % 3
    folds = np.arange(60) // 3 % 3
    noise = rng.normal(size=(60, 5))
    informative = noise + 3 * np.eye(3)[gold] @ rng.normal(size=(3, 5))
    clear, vague = (cross_validated_log_loss(features, gold, 3, folds) for features in (informative, noise))
    assert clear < 0.8 * np.log(3)
    assert vague > 0.95 * np.log(3)


def test_a_label_that_a_fold_has_never_seen_costs_much_but_is_no_error():
    gold = np.array([0, 0, 0, 0, 0, 1])
    folds = np.array([0, 1, 2, 0, 1, 2])
    assert np.isfinite(cross_validated_log_loss(np.ones((6, 2)), gold, 2, folds))


LOOP, ROWS = FinetuneLoop(epochs=10, batch_size=16), 160
BEST, FAST = Probe("best", 0.5, 0.01), Probe("fast", 0.7, 0.001)
SPEEDS = {"best": Speed(0.5, 0.01), "fast": Speed(0.05, 0.001)}


def full_seconds(name):
    return NetworkPlan(FULL_PLAN_FOLDS, ROWS, None, True).seconds(SPEEDS[name], LOOP)


def choose(seconds):
    """Return the choice with so many seconds left, and the starters whose speed was measured."""
    measured = []

    def measure_speed(name):
        measured.append(name)
        return SPEEDS[name]

    chosen, speed = choose_probe([BEST, FAST], ROWS, LOOP, measure_speed, lambda: seconds)
    assert speed == SPEEDS[chosen.name]
    return chosen, measured


def test_the_best_starter_is_chosen_if_its_training_fits_by_its_measured_speed():
    assert choose(full_seconds("best")) == (BEST, ["best"])
    assert choose(0.9 * full_seconds("best")) == (FAST, ["best", "fast"])


def test_a_starter_whose_forward_passes_alone_take_too_long_is_not_measured():
    forward = NetworkPlan(FULL_PLAN_FOLDS, ROWS, None, True).seconds(
        Speed(16 * BEST.row_seconds, BEST.row_seconds), LOOP
    )
    assert choose(0.9 * forward) == (FAST, ["fast"])
    # nothing fits: the fastest has the best chance, and is measured once
    assert choose(0.0) == (FAST, ["fast"])


def test_every_starter_that_was_too_slow_is_named():
    probes = [Probe(name, loss, 0.01) for name, loss in (("large", 0.5), ("small", 0.6), ("other", 0.7))]
    lines = [describe_choice(probes, chosen) for chosen in probes]
    assert lines == ["large", "small (large would take too long)", "other (large and small would take too long)"]


def test_starters_are_ranked_by_their_features(installed):
    table = load_table(str(installed / "train.csv"), (), None, LabelledConfig(), 0, Listener())
    runtime = setup_runtime(RuntimeConfig(threads=1))
    probes = probe_starters(["starter:poor", "starter:good"], table, LabelledConfig(), runtime, 0, lambda: None)
    assert [probe.name for probe in probes] == ["starter:good", "starter:poor"]
    assert all(probe.row_seconds > 0 for probe in probes)


def test_auto_reports_the_probes_and_a_resumed_run_keeps_the_choice(installed, tmp_path):
    listener = Listener()
    request = AutoRequest(out=tmp_path / "run", table=str(installed / "train.csv"), settings=SETTINGS, minutes=60.0)
    result = run_auto(request, listener)
    assert "starter:good, starter:poor fit: the texts are English (100 %), Latin script" in listener.lines
    pattern = (
        r"starters on \d+ rows, log-loss of a linear probe \(lower is better\): starter:good [\d.]+, starter:poor [\d.]+; "
        r"chosen: starter:good"
    )
    assert len([line for line in listener.lines if re.fullmatch(pattern, line)]) == 1
    plan = read_checksummed(tmp_path / "run" / "plan.json")
    assert plan["starter"] == "starter:good"
    assert plan["speed"]["step"] > plan["speed"]["row"] > 0
    assert {"pretrained", "blend"} <= set(result.scores)
    os.remove(tmp_path / "run" / "result.json")
    again = Listener()
    run_auto(AutoRequest(out=tmp_path / "run", resume=True), again)
    assert not [line for line in again.lines if "linear probe" in line]
