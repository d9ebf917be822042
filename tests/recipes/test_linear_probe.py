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
    Probe,
    Probes,
    choose_probe,
    cross_validated_log_loss,
    probe_starters,
)
from headstart.recipes.auto.run import AutoRequest, run_auto
from headstart.recipes.auto.schedule import FULL_PLAN_FOLDS, NetworkPlan, Speed, seconds_for_network
from headstart.recipes.auto.table import load_table
from headstart.runtime import setup_runtime
from headstart.store.bundle import load_bundle
from headstart.store.locate import STARTERS_PACKAGE
from headstart.store.records import read_record, record_path

SETTINGS = {"loop.epochs": 1, "loop.min_steps": 0, "runtime.threads": 1}
WIDTH, LR = 384, 1.5e-4
"""The width of the starters, and the learning rate of the preset for it."""


@pytest.fixture(scope="module")
def two_starters(tmp_path_factory):
    """A table, and a package with a trained starter `good` and one of constant features, `poor`."""
    folder = write_reviews(tmp_path_factory.mktemp("probe"), train=64)
    config = pretrain_config(loop__steps=3, model__width=WIDTH, model__depth=1)
    run = pretrain_run([str(folder / "texts.txt")], folder / "base", config)
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


def test_many_labels_with_few_rows_each_print_no_warning(recwarn):
    features = np.random.default_rng(0).normal(size=(90, 4))
    cross_validated_log_loss(features, np.arange(90) % 45, 45, np.arange(90) // 45 + np.arange(90) % 3)
    assert not [str(warning.message) for warning in recwarn]


LOOP, ROWS = FinetuneLoop(epochs=10, batch_size=16), 160
BEST, FAST = Probe("best", 0.5, 0.01), Probe("fast", 0.7, 0.001)
SPEEDS = {"best": Speed(0.5, 0.01), "fast": Speed(0.05, 0.001)}


def full_seconds(speed):
    return NetworkPlan(FULL_PLAN_FOLDS, ROWS, None, True).seconds(speed, LOOP)


def choose(seconds, probes=(BEST, FAST), **options):
    """Return the choice with so many seconds left, and the starters whose speed was measured."""
    measured = []

    def measure_speed(name):
        measured.append(name)
        return SPEEDS[name]

    chosen, speed = choose_probe(probes, 16, lambda speed: full_seconds(speed) <= seconds, measure_speed, **options)
    assert speed == SPEEDS[chosen.name]
    return chosen, measured


def test_the_best_starter_is_chosen_if_its_training_fits_by_its_measured_speed():
    assert choose(full_seconds(SPEEDS["best"])) == (BEST, ["best"])
    assert choose(0.9 * full_seconds(SPEEDS["best"])) == (FAST, ["best", "fast"])


def test_a_starter_whose_forward_passes_alone_take_too_long_is_not_measured_except_on_a_gpu():
    seconds = 0.9 * full_seconds(Speed(16 * BEST.row_seconds, BEST.row_seconds))
    assert choose(seconds) == (FAST, ["fast"])
    assert choose(seconds, asynchronous=True) == (FAST, ["best", "fast"])
    # nothing fits: the fastest has the best chance, and is measured once
    assert choose(0.0) == (FAST, ["fast"])


def test_of_starters_that_are_about_as_fast_and_too_slow_the_one_with_the_lowest_log_loss_is_taken():
    similar = Probe("best", 0.5, 1.2 * FAST.row_seconds)
    assert choose(0.0, (similar, FAST)) == (similar, ["best"])


def test_without_time_to_measure_a_speed_it_is_forecast():
    chosen, speed = choose_probe((BEST, FAST), 16, lambda speed: True, lambda name: None)
    assert (chosen, speed) == (FAST, Speed(3 * 16 * FAST.row_seconds, FAST.row_seconds))


def test_where_not_even_the_forward_passes_of_the_shortest_training_fit_nothing_is_measured():
    forward, forecast = (Speed(factor * 16 * FAST.row_seconds, FAST.row_seconds) for factor in (1, 3))
    seconds = seconds_for_network(ROWS, forward, LOOP)
    too_short = {"can_train": lambda speed: seconds_for_network(ROWS, speed, LOOP) <= 0.9 * seconds}
    probes, never = (BEST, FAST), lambda speed: False
    assert choose_probe(probes, 16, never, SPEEDS.get, **too_short) == (FAST, forecast)
    assert choose_probe(probes, 16, never, SPEEDS.get, lambda speed: True) == (FAST, SPEEDS["fast"])  # control
    assert choose_probe(probes, 16, never, SPEEDS.get, **too_short, asynchronous=True) == (FAST, SPEEDS["fast"])


def test_every_starter_that_was_too_slow_is_named():
    starters = tuple(Probe(name, loss, 0.01) for name, loss in (("large", 0.5), ("small", 0.625), ("other", 0.75)))
    lines = [Probes(starters, 200).describe(chosen) for chosen in starters]
    start = (
        "starters on 200 rows, log-loss of a linear probe (lower is better): large 0.500, small 0.625, other 0.750; "
    )
    assert lines == [
        f"{start}chosen: large",
        f"{start}chosen: small (large would take too long)",
        f"{start}chosen: other (large and small would take too long)",
    ]


@pytest.fixture(scope="module")
def table(two_starters):
    return load_table(str(two_starters / "train.csv"), (), None, LabelledConfig(), 0, Listener())


def probe(table, **options):
    runtime = setup_runtime(RuntimeConfig(threads=1))
    names = ["starter:poor", "starter:good"]
    return probe_starters(names, table, LabelledConfig(), runtime, 0, lambda: None, **options)


@pytest.mark.usefixtures("installed")
def test_starters_are_ranked_by_their_features(table):
    probes = probe(table)
    assert [starter.name for starter in probes.starters] == ["starter:good", "starter:poor"]
    assert all(starter.row_seconds > 0 for starter in probes.starters)
    assert probes.rows == len(table.train)


@pytest.mark.usefixtures("installed")
def test_without_time_starters_are_not_compared_and_keep_their_order(table):
    probes = probe(table, seconds=0.0)
    assert [(starter.name, starter.log_loss) for starter in probes.starters] == [
        ("starter:poor", None),
        ("starter:good", None),
    ]
    assert probes.describe(probes.starters[0]) == (
        "starters were not compared, because the time is short; chosen: starter:poor"
    )


def test_auto_reports_the_probes_and_a_resumed_run_keeps_the_choice(installed, tmp_path):
    listener = Listener()
    request = AutoRequest(
        out=tmp_path / "run", table=str(installed / "train.csv"), settings=SETTINGS, minutes=60.0, max_folds=2
    )
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
    assert read_checksummed(tmp_path / "run" / "plan.json") == plan


@pytest.mark.parametrize(("settings", "lr"), [({}, LR), ({"optim.lr": 2e-3}, 2e-3)])
def test_the_learning_rate_fits_the_chosen_starter_unless_it_is_given(installed, tmp_path, settings, lr):
    request = AutoRequest(
        out=tmp_path / "run", table=str(installed / "train.csv"), settings=SETTINGS | settings, max_folds=1
    )
    run_auto(request)
    assert read_record(record_path(tmp_path / "run", "pretrained", "all", 0)).setting["lr"] == pytest.approx(lr)
