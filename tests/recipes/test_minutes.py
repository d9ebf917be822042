"""Runs with minutes: planned again while they train, replayed to the bit, and fair between the arms of a comparison."""

import shutil
import time
from itertools import pairwise

import pytest

from fixtures.comparison_folder import write_answers
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.runner import stages_of
from fixtures.tiny import CPU, Listener, change_runtime, finetune_config, pretrain_config, write_reviews
from headstart.errors import Interrupted
from headstart.files import read_checksummed, read_json, write_checksummed, write_json
from headstart.interrupts import StopSignal
from headstart.progress import SilentProgress
from headstart.recipes import trainer
from headstart.recipes.auto.network import TotalBar
from headstart.recipes.compare.arms import RunSpec
from headstart.recipes.compare.run import CompareRequest, ComparisonRun, run_compare
from headstart.recipes.finetune.dataset import build_classifier, load_labelled_data
from headstart.recipes.finetune.trainer import Deadline, FinetuneTrainer
from headstart.report.load import load_comparison
from headstart.report.page import render
from headstart.store.records import read_record, record_path, write_record
from headstart.store.run_folder import RunFolder

ALONE = "The two networks differ in their initial weights only."


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


def begin(kind, reviews, out, **settings):
    """Begin a run that is stopped at once."""
    with pytest.raises(Interrupted):
        if kind == "finetune":
            config = finetune_config(loop__epochs=9, loop__minutes=60.0, runtime__time_limit=1e-5, **settings)
            files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
            finetune_run(str(reviews / "train.csv"), out, config, backbone="scratch", **files)
        else:
            limits = {"loop__steps": None, "loop__minutes": 0.02, "runtime__time_limit": 1e-5}
            pretrain_run([], out, pretrain_config(stages=stages_of(reviews), **limits, **settings))


def go_on(kind, out):
    return (finetune_run if kind == "finetune" else pretrain_run)(
        None if kind == "finetune" else [], out, None, resume=True
    )


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_recorded_changes_of_the_plan_are_repeated_to_the_bit(kind, reviews, tmp_path):
    """A schedule, EMA weights and stages depend on the steps of the run."""
    plan = {"steps": 30, "replans": [{"step": 4, "steps": 18}, {"step": 11, "steps": 15}]}
    for name in ("whole", "cut"):
        begin(kind, reviews, tmp_path / name, optim__schedule="linear", optim__ema_decay=0.9)
        write_checksummed(tmp_path / name / "plan.json", plan)
        shutil.rmtree(tmp_path / name / "checkpoints", ignore_errors=True)  # of a step by another plan
    change_runtime(tmp_path / "whole", time_limit=None)
    go_on(kind, tmp_path / "whole")
    for _ in range(6):
        with pytest.raises(Interrupted):
            go_on(kind, tmp_path / "cut")
    change_runtime(tmp_path / "cut", time_limit=None)
    go_on(kind, tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert read_checksummed(tmp_path / "cut" / "plan.json") == plan  # a resumed run makes no further change
    if kind == "pretrain":
        lines = [RunFolder(tmp_path / name).metrics.read("step") for name in ("whole", "cut")]
        assert lines[0] == lines[1]
        assert [line["step"] for line in lines[0]] == list(range(1, 16))
        # the rate after a change falls faster: 30 steps were planned, 15 were made
        falls = [one["lr"] - next_one["lr"] for one, next_one in pairwise(lines[0][8:])]
        assert falls[-1] > 1.5 * falls[0] > 0
        assert [part["steps"] for part in read_json(tmp_path / "whole" / "result.json")["stages"]] == [7, 5, 3]


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_a_run_whose_timed_steps_misled_is_planned_again(kind, reviews, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "seconds_per_step", lambda *_, **__: 1e-6)
    # a busy machine needs the shortest time for the preparation alone, or becomes slower in the last steps
    for minutes in (0.02, 0.1, 0.5, 2.5):
        out = run_for(kind, minutes, reviews, tmp_path / str(minutes))
        plan = read_checksummed(out / "plan.json")
        rates = [line["lr"] for line in RunFolder(out).metrics.read("step")] if kind == "pretrain" else [1.0, 0.0]
        if plan.get("replans") and plan["replans"][-1]["steps"] > 20 and rates[-1] < 0.5 * rates[0]:
            break
    assert 20 < plan["replans"][-1]["steps"] < plan["steps"]
    assert rates[-1] < 0.5 * rates[0]  # the schedule came to its end
    if kind == "pretrain":
        assert len(rates) == plan["replans"][-1]["steps"] == read_json(out / "result.json")["steps"]


def run_for(kind, minutes, reviews, out):
    if kind == "finetune":
        config = finetune_config(loop__epochs=50_000, loop__minutes=minutes)
        return finetune_run(str(reviews / "train.csv"), out, config, backbone="scratch").path
    config = pretrain_config(loop__steps=None, loop__minutes=minutes, optim__schedule="linear", optim__warmup=0.0)
    return pretrain_run([str(reviews / "texts.txt")], out, config).path


def compare(reviews, out, **options):
    files = {name: str(reviews / f"{name}.csv") for name in ("train", "valid", "test")}
    config = finetune_config(loop__epochs=50_000, loop__minutes=0.02)
    request = CompareRequest(out=out, **files, arms=("majority", "scratch", "pretrained"), seeds=1, **options)
    run_compare(request, config)
    return [read_record(record_path(out, arm, "all", 0)) for arm in ("scratch", "pretrained")]


def test_the_networks_of_a_seed_make_the_same_steps(reviews, tmp_path):
    pretrain_run([str(reviews / "texts.txt")], tmp_path / "base", pretrain_config(loop__steps=2))
    scratch, pretrained = compare(reviews, tmp_path / "cmp", backbones=(str(tmp_path / "base"),))
    assert scratch.steps == pretrained.steps
    assert 1 <= scratch.steps < 50_000 * 6  # a busy machine makes one
    assert ALONE in render(load_comparison(tmp_path / "cmp"))
    # a record that is made again has the steps of the one that is left
    record_path(tmp_path / "cmp", "scratch", "all", 0).unlink()
    write_record(tmp_path / "cmp", pretrained.model_copy(update={"steps": 3}))
    (tmp_path / "cmp" / "result.json").unlink()
    run_compare(CompareRequest(out=tmp_path / "cmp", resume=True), None)
    assert read_record(record_path(tmp_path / "cmp", "scratch", "all", 0)).steps == 3


def test_several_processes_begin_with_the_first_network_of_each_seed():
    arms, seeds = ("linear", "scratch", "frozen", "pretrained"), (0, 1)
    specs = [RunSpec(arm, budget, seed) for budget in (50, "all") for seed in seeds for arm in arms]
    grid = ComparisonRun.__new__(ComparisonRun)
    grid.specs, grid.config = specs, finetune_config(loop__minutes=1.0)
    first, later, blends = grid.phases(specs)
    assert blends == []
    assert {spec.arm for spec in first} == {"linear", "scratch"}
    assert {spec.arm for spec in later} == {"frozen", "pretrained"}
    assert grid.phases(later) == [[], later, []]  # on resuming
    grid.config = finetune_config()
    assert grid.phases(specs) == [specs, [], []]


def test_a_report_does_not_claim_equal_steps_that_were_not(tmp_path):
    folder = write_answers(tmp_path / "cmp", {"scratch": {0: "1100"}, "pretrained": {0: "1110"}})
    assert ALONE in render(load_comparison(folder))
    for arm, steps in (("scratch", 56), ("pretrained", 1202)):
        record = read_record(record_path(folder, arm, "all", 0))
        write_record(folder, record.model_copy(update={"steps": steps}))
    page = render(load_comparison(folder))
    assert ALONE not in page
    assert (
        "The networks of a seed were not trained for the same number of steps (56 to 1,202): they differ in this "
        "as well as in their initial weights."
    ) in page


def test_a_report_says_that_steps_within_minutes_were_not_recorded(tmp_path):
    folder = write_answers(tmp_path / "cmp", {"scratch": {0: "1100"}, "pretrained": {0: "1110"}})
    write_json(folder / "config.json", {"loop": {"minutes": 2.0}})
    page = render(load_comparison(folder))
    assert ALONE not in page
    assert "The number of steps of each network was not recorded; it may differ between the networks." in page


def test_the_plan_of_few_rows_counts_passes_and_says_what_an_epoch_is(reviews, tmp_path, monkeypatch):
    # 48 rows are 6 steps; the run reads them 50 times in its one epoch, to reach 300 steps
    monkeypatch.setattr(trainer, "seconds_per_step", lambda *_, **__: 1000.0)
    listener = Listener()
    config = finetune_config(loop__epochs=1, loop__min_steps=300, loop__minutes=1000 * 15 / 60 / 0.97 + 1)
    out, valid = tmp_path / "run", str(reviews / "valid.csv")
    finetune_run(str(reviews / "train.csv"), out, config, backbone="scratch", valid=valid, progress=listener)
    assert (
        "15 steps, 2.5 passes over the rows (an epoch is 50 passes, because the rows are few), "
        f"in {config.loop.minutes:,} minutes"
    ) in listener.lines
    # 300 steps of 1,000 seconds in 97 % of the time
    assert (
        "this is a small part of the 50 passes in the settings; about 5,155 minutes would be enough for all of them"
    ) in listener.lines


def train_until(reviews, out, deadline):
    """Fine-tune without minutes, as a fold of `auto` does."""
    config = finetune_config(loop__epochs=9, optim__schedule="linear")
    data = load_labelled_data(
        str(reviews / "train.csv"),
        str(reviews / "valid.csv"),
        None,
        config.labelled,
        tokenizer=None,
        tokenizer_config=config.tokenizer,
        seed=0,
        progress=SilentProgress(),
    )
    run = RunFolder.create(out, kind="finetune", command="", config=config, inputs={})
    model, _ = build_classifier(config.model, data, None, "scratch", 0, "causal")
    trainer = FinetuneTrainer(run, config, data, model, CPU, StopSignal(), SilentProgress(), deadline=deadline)
    return trainer.train(resume=False)


def test_a_training_that_would_miss_its_deadline_makes_fewer_steps(reviews, tmp_path):
    now = time.monotonic()
    late = train_until(reviews, tmp_path / "late", Deadline(now - 1, 0.01, 0.0))
    early = train_until(reviews, tmp_path / "early", Deadline(now + 1e6, 0.01, 0.0))  # control
    alone = train_until(reviews, tmp_path / "alone", None)
    assert late.steps == 2
    assert read_checksummed(tmp_path / "late" / "plan.json")["replans"] == [{"step": 1, "steps": 2}]
    assert early.steps == alone.steps > 2
    assert early.epochs[-1]["valid_loss"] == alone.epochs[-1]["valid_loss"]


def test_the_bar_of_all_trainings_follows_a_training_that_makes_fewer_steps():
    totals = []

    class Bar:
        def advance(self, amount=1, note="", total=None):
            totals.append(total)

    bar = TotalBar(Bar(), 300)
    bar.begin_part(100)
    bar.advance(10)
    bar.advance(0, total=40)
    bar.begin_part(100)
    bar.advance(0, total=90)
    assert totals == [None, 240, 230]
