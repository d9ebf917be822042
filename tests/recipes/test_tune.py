"""A search for settings reads validation alone, is reproducible, repeats no trial, and ends with a command."""

import shlex
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart import api
from headstart.cli.main import run
from headstart.config.schema import FinetuneConfig
from headstart.errors import ConfigError, Interrupted, StoreError, UsageError
from headstart.files import read_json
from headstart.recipes.tune import (
    SearchDimension,
    TuneRequest,
    TuneRun,
    objective_value,
    run_tune,
    search_dimensions,
    suggest,
)
from headstart.store.bundle import load_bundle
from headstart.store.records import Trial, best_trial, read_trials, write_trial

optuna = pytest.importorskip("optuna", reason="needs the extra tune: pip install 'headstart[tune]'")

SMALL = {"loop.epochs": 2, "runtime.threads": 1, "optim.lr": 1e-3, "loop.batch_size": 16}
SCRATCH = SMALL | {
    "tokenizer.vocab_size": 300,
    "model.width": 16,
    "model.depth": 1,
    "model.feedforward": 24,
    "model.context": 24,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def base(data, tmp_path_factory):
    from fixtures.recipes import pretrain_run

    out = tmp_path_factory.mktemp("base") / "run"
    config = pretrain_config(loop__steps=2, objective="hybrid", loop__accumulate=1)
    pretrain_run([str(data / "texts.txt")], out, config)
    return out


def tune(data, out, **options):
    defaults = {"backbone": "scratch", "valid": data / "valid.csv", "trials": 3, "settings": SCRATCH}
    return api.tune(data / "train.csv", out=out, **(defaults | options))


def without_seconds(trials):
    return [trial.model_copy(update={"seconds": 0.0}) for trial in trials]


def test_a_search_is_reproducible_and_depends_on_the_seed(data, tmp_path):
    one = tune(data, tmp_path / "one")
    assert without_seconds(one.trials) == without_seconds(tune(data, tmp_path / "two").trials)
    other = tune(data, tmp_path / "three", settings=SCRATCH | {"runtime.seed": 1})
    assert [trial.settings for trial in other.trials[1:]] != [trial.settings for trial in one.trials[1:]]
    assert one.trials[0].settings == {"optim.lr": 1e-3, "loop.epochs": 2, "model.dropout": 0.0}  # as configured
    assert one.best == best_trial(one.trials)


def test_a_stopped_search_resumes_and_repeats_no_trial(data, tmp_path, monkeypatch):
    expected = tune(data, tmp_path / "expected")
    run_one, numbers = TuneRun.run_one, []

    def record(self, spec, stop):
        numbers.append(spec.number)
        return run_one(self, spec, stop)

    def stop_in_the_second(self, spec, stop):
        if spec.number == 1:
            stop.reason = "SIGTERM"  # it arrives during the trial
        return record(self, spec, stop)

    monkeypatch.setattr(TuneRun, "run_one", stop_in_the_second)
    with pytest.raises(Interrupted) as caught:
        tune(data, tmp_path / "part")
    assert str(caught.value) == (
        f"SIGTERM after 1 trial; saved. Continue with: headstart tune --resume --out {tmp_path / 'part'}"
    )
    monkeypatch.setattr(TuneRun, "run_one", record)
    resume = TuneRequest(out=tmp_path / "part", resume=True)
    result = run_tune(resume, None)
    assert numbers == [0, 1, 1, 2]
    assert without_seconds(result.trials) == without_seconds(expected.trials)
    assert (tmp_path / "part" / "best.toml").read_text() == (tmp_path / "expected" / "best.toml").read_text()
    run_tune(resume, None)
    assert numbers == [0, 1, 1, 2]  # all trials are finished


def test_the_command_at_the_end_repeats_the_best_trial(data, base, tmp_path, capsys):
    words = ["tune", str(data / "train.csv"), "--valid", str(data / "valid.csv"), "--from", str(base), "--trials", "3"]
    words += [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run([*words, "--out", str(tmp_path / "tuned"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    command = shlex.split(printed.strip().splitlines()[-1])
    assert "(defaults)" in printed
    assert command[:2] == ["headstart", "finetune"]
    result = read_json(tmp_path / "tuned" / "result.json")
    assert shlex.split(result["command"]) == command
    assert set(result["best"]["settings"]) == {
        "optim.lr", "loop.epochs", "transfer.layer_decay", "transfer.dropout", "transfer.attention"
    }  # fmt: skip
    assert run([*command[1:], "--quiet"]) == 0
    out = tmp_path / "tuned-clf"
    valid = read_json(out / "result.json")["valid"]
    assert (valid["accuracy"], valid["loss"]) == (result["best"]["accuracy"], result["best"]["loss"])
    assert load_bundle(out).config.dropout == result["best"]["settings"]["transfer.dropout"]


def test_a_search_never_opens_the_test_file(data, tmp_path):
    opened, enabled = set(), [True]

    def on_open(event, arguments):
        if enabled and event == "open":
            opened.add(str(arguments[0]))

    sys.addaudithook(on_open)  # an audit hook cannot be removed, only disabled
    tune(data, tmp_path / "tuned", trials=1)
    enabled.clear()
    assert {str(data / "train.csv"), str(data / "valid.csv")} <= opened  # control
    assert str(data / "test.csv") not in opened


@pytest.mark.slow
def test_several_processes_run_every_trial_once(data, tmp_path):
    result = tune(data, tmp_path / "tuned", jobs=2, trials=3)
    assert [trial.trial for trial in result.trials] == [0, 1, 2]
    assert result.trials[0].settings["optim.lr"] == 1e-3


def test_minutes_end_a_search_after_at_least_one_trial(data, tmp_path):
    result = tune(data, tmp_path / "tuned", trials=None, minutes=1e-6)
    assert len(result.trials) == 1
    with pytest.raises(UsageError) as caught:
        tune(data, tmp_path / "none", trials=None)
    assert str(caught.value) == "tune needs --minutes or --trials"


def test_a_trial_below_the_median_half_way_is_pruned(data, tmp_path, monkeypatch):
    """The earlier trials are invented: four that were perfect half-way."""
    run_one = TuneRun.run_one

    def invent_the_first_four(self, spec, stop):
        if spec.number < 4:
            settings = suggest(self.dimensions, 0, spec.number, [], 24)
            trial = Trial(
                trial=spec.number, settings=settings, state="done", accuracy=1.0, loss=0.01, macro_f1=1.0, epochs=2,
                half=(1.0, 0.01), seconds=1.0,
            )  # fmt: skip
            write_trial(self.path, trial)
            return trial
        return run_one(self, spec, stop)

    monkeypatch.setattr(TuneRun, "run_one", invent_the_first_four)
    slow = SCRATCH | {"optim.lr": 1e-6, "loop.epochs": 4}
    listener = Listener()
    result = tune(data, tmp_path / "tuned", trials=5, settings=slow, progress=listener)
    last = result.trials[-1]
    assert last.state == "stopped"
    assert last.epochs == (last.settings["loop.epochs"] + 1) // 2
    assert result.best.trial != 4
    assert any("stopped after epoch" in line for line in listener.lines)


def test_a_search_continues_after_a_trial_whose_loss_is_not_finite(data, tmp_path):
    diverging = SCRATCH | {"optim.lr": 1e30, "optim.clip": 0.0}
    result = tune(data, tmp_path / "tuned", trials=2, settings=diverging)
    assert [trial.state for trial in result.trials] == ["failed", "failed"]


def test_a_damaged_trial_is_refused_by_name(data, tmp_path):
    result = tune(data, tmp_path / "tuned", trials=1)
    path = result.path / "trials" / "0000.json"
    path.write_text(path.read_text().replace('"done"', '"gone"'))
    with pytest.raises(StoreError) as caught:
        read_trials(result.path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (("lr", "width"), "--search must be among lr, epochs, layer_decay, dropout, attention, got 'width'"),
        (
            ("layer_decay",),
            "--search layer_decay leaves nothing to search; available: lr, epochs, dropout",
        ),
    ],
)
def test_settings_that_cannot_be_searched_are_refused(data, tmp_path, search, message):
    with pytest.raises(ConfigError) as caught:
        tune(data, tmp_path / "tuned", search=search)
    assert str(caught.value) == message
    assert not (tmp_path / "tuned").exists()


@settings(max_examples=20)
@given(st.integers(0, 2**31 - 1), st.integers(0, 30), st.integers(0, 12))
def test_a_suggestion_is_within_its_bounds_and_a_function_of_the_trials(seed, number, num_trials):
    dimensions = search_dimensions(FinetuneConfig(), None, ("lr", "epochs", "dropout"))
    trials = []
    for index in range(num_trials):
        values = suggest(dimensions, 7, index, [], 50)
        trials.append(
            Trial(
                trial=index,
                settings=values,
                state="done",
                accuracy=index / 20,
                loss=0.5,
                macro_f1=0.5,
                epochs=1,
                seconds=1.0,
            )
        )
    suggested = suggest(dimensions, seed, number, trials, 50)
    assert suggested == suggest(dimensions, seed, number, trials[::-1], 50)
    for dimension in dimensions:
        assert dimension.low <= suggested[dimension.name] <= dimension.high


@given(st.floats(0, 1), st.floats(0, 100), st.floats(0, 100), st.integers(2, 5000))
def test_one_more_correct_prediction_outweighs_any_loss(accuracy, loss, other_loss, rows):
    correct = min(int(accuracy * rows), rows - 1)
    assert objective_value((correct + 1) / rows, loss, rows) > objective_value(correct / rows, other_loss, rows)


def test_a_setting_outside_the_usual_bounds_widens_them():
    config = FinetuneConfig.model_validate({"model": {"dropout": 0.5}})
    assert search_dimensions(config, None, ("dropout",)) == (SearchDimension("model.dropout", 0.5, 0.0, 0.5),)


def test_a_search_on_ratings_is_refused(tmp_path):
    rows = "".join(f"a text of number {number},{number % 5}\n" for number in range(40))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    with pytest.raises(UsageError) as caught:
        api.tune(
            tmp_path / "train.csv",
            out=tmp_path / "out",
            backbone="scratch",
            trials=2,
            settings=SCRATCH | {"labelled.task": "rating"},
        )
    assert str(caught.value) == (
        f"tune supports one class per text, but {tmp_path / 'train.csv'} has ratings; run finetune with different settings, "
        "and compare the validation scores in result.json"
    )
    assert not (tmp_path / "out").exists()
