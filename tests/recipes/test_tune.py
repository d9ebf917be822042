"""A search for settings: on validation alone, the same again for a seed, never a trial twice, and a command at its end."""

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
from headstart.recipes import tune as tuning
from headstart.recipes.tune import SearchDimension, objective_value, run_tune, search_dimensions, suggest
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


def tuned(data, out, **more):
    given = {"source": "scratch", "valid": data / "valid.csv", "trials": 3, "settings": SCRATCH} | more
    return api.tune(data / "train.csv", out=out, **given)


def plain(trials):
    """Trials without the time they took."""
    return [trial.model_copy(update={"seconds": 0.0}) for trial in trials]


def test_the_same_seed_gives_the_same_search_and_another_another(data, tmp_path):
    one = tuned(data, tmp_path / "one")
    assert plain(one.trials) == plain(tuned(data, tmp_path / "two").trials)
    other = tuned(data, tmp_path / "three", settings=SCRATCH | {"runtime.seed": 1})
    assert [trial.settings for trial in other.trials[1:]] != [trial.settings for trial in one.trials[1:]]
    assert one.trials[0].settings == {"optim.lr": 1e-3, "loop.epochs": 2, "model.dropout": 0.0}  # as they stood
    assert one.best == best_trial(one.trials)


def test_a_stopped_search_goes_on_and_repeats_nothing(data, tmp_path, monkeypatch):
    whole = tuned(data, tmp_path / "whole")
    make, made = tuning.TuneRun.make, []

    def stop_in_the_second(self, number, stop):
        made.append(number)
        if number == 1:
            stop.reason = "SIGTERM"  # it comes while the trial is under way
        return make(self, number, stop)

    monkeypatch.setattr(tuning.TuneRun, "make", stop_in_the_second)
    with pytest.raises(Interrupted) as caught:
        tuned(data, tmp_path / "part")
    assert str(caught.value) == (
        f"SIGTERM after 1 trial; saved. Go on with: headstart tune --resume --out {tmp_path / 'part'}"
    )
    monkeypatch.setattr(
        tuning.TuneRun, "make", lambda self, number, stop: (made.append(number), make(self, number, stop))[1]
    )
    done = run_tune(None, tmp_path / "part", None, resume=True)
    assert made == [0, 1, 1, 2]
    assert plain(done.trials) == plain(whole.trials)
    assert (tmp_path / "part" / "best.toml").read_text() == (tmp_path / "whole" / "best.toml").read_text()
    run_tune(None, tmp_path / "part", None, resume=True)
    assert made == [0, 1, 1, 2]  # finished: nothing is left to do


def test_the_command_at_the_end_repeats_the_best_trial(data, base, tmp_path, capsys):
    asked = ["tune", str(data / "train.csv"), "--valid", str(data / "valid.csv"), "--from", str(base), "--trials", "3"]
    asked += [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert run([*asked, "--out", str(tmp_path / "tuned"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    command = shlex.split(printed.strip().splitlines()[-1])
    assert "as it stood" in printed
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


def test_test_is_never_opened(data, tmp_path):
    opened, listening = set(), [True]

    def hear(event, arguments):
        if listening and event == "open":
            opened.add(str(arguments[0]))

    sys.addaudithook(hear)  # there is no way to take it away again; it can be told to be silent
    tuned(data, tmp_path / "tuned", trials=1)
    listening.clear()
    assert {str(data / "train.csv"), str(data / "valid.csv")} <= opened  # control
    assert str(data / "test.csv") not in opened


@pytest.mark.slow
def test_several_processes_give_as_many_trials(data, tmp_path):
    found = tuned(data, tmp_path / "tuned", jobs=2, trials=3)
    assert [trial.trial for trial in found.trials] == [0, 1, 2]
    assert found.trials[0].settings["optim.lr"] == 1e-3


def test_minutes_end_a_search_and_one_trial_is_always_made(data, tmp_path):
    found = tuned(data, tmp_path / "tuned", trials=None, minutes=0.001)
    assert len(found.trials) == 1
    with pytest.raises(UsageError) as caught:
        tuned(data, tmp_path / "none", trials=None)
    assert str(caught.value) == "tune needs --minutes or --trials: how long to search"


def test_a_trial_behind_the_median_half_way_is_given_up(data, tmp_path, monkeypatch):
    """The trials before it are made up: four that were right half-way, every time."""
    make = tuning.TuneRun.make

    def among_better_ones(self, number, stop):
        if number < 4:
            known = suggest(self.knobs, 0, number, [], 24)
            trial = Trial(
                trial=number, settings=known, state="done", accuracy=1.0, loss=0.01, macro_f1=1.0, epochs=2,
                half=(1.0, 0.01), seconds=1.0,
            )  # fmt: skip
            write_trial(self.run.path, trial)
            return trial
        return make(self, number, stop)

    monkeypatch.setattr(tuning.TuneRun, "make", among_better_ones)
    slow = SCRATCH | {"optim.lr": 1e-6, "loop.epochs": 4}
    said = Listener()
    found = tuned(data, tmp_path / "tuned", trials=5, settings=slow, progress=said)
    last = found.trials[-1]
    assert last.state == "stopped"
    assert last.epochs == (last.settings["loop.epochs"] + 1) // 2
    assert found.best.trial != 4
    assert any("given up after epoch" in line for line in said.lines)


def test_a_trial_whose_loss_explodes_is_a_failure_and_the_search_goes_on(data, tmp_path):
    wild = SCRATCH | {"optim.lr": 1e30, "optim.clip": 0.0}
    found = tuned(data, tmp_path / "tuned", trials=2, settings=wild)
    assert [trial.state for trial in found.trials] == ["failed", "failed"]


def test_a_damaged_trial_is_named(data, tmp_path):
    found = tuned(data, tmp_path / "tuned", trials=1)
    path = found.path / "trials" / "0000.json"
    path.write_text(path.read_text().replace('"done"', '"gone"'))
    with pytest.raises(StoreError) as caught:
        read_trials(found.path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (("lr", "width"), "--search knows lr, epochs, layer_decay, dropout, reading, got 'width'"),
        (
            ("layer_decay",),
            "--search layer_decay leaves nothing to search; what can be: lr, epochs, dropout",
        ),
    ],
)
def test_what_cannot_be_searched_gets_a_line(data, tmp_path, search, message):
    with pytest.raises(ConfigError) as caught:
        tuned(data, tmp_path / "tuned", search=search)
    assert str(caught.value) == message
    assert not (tmp_path / "tuned").exists()


@settings(max_examples=20)
@given(st.integers(0, 2**31 - 1), st.integers(0, 30), st.integers(0, 12))
def test_a_suggestion_lies_within_its_bounds_and_follows_from_what_is_known(seed, number, known):
    knobs = search_dimensions(FinetuneConfig(), None, ("lr", "epochs", "dropout"))
    trials = []
    for place in range(known):
        chosen = suggest(knobs, 7, place, [], 50)
        trials.append(
            Trial(
                trial=place,
                settings=chosen,
                state="done",
                accuracy=place / 20,
                loss=0.5,
                macro_f1=0.5,
                epochs=1,
                seconds=1.0,
            )
        )
    asked = suggest(knobs, seed, number, trials, 50)
    assert asked == suggest(knobs, seed, number, trials[::-1], 50)
    for knob in knobs:
        assert knob.low <= asked[knob.name] <= knob.high


@given(st.floats(0, 1), st.floats(0, 100), st.floats(0, 100), st.integers(2, 5000))
def test_one_more_right_answer_is_always_worth_more_than_any_loss(accuracy, loss, other, rows):
    right = min(int(accuracy * rows), rows - 1)
    assert objective_value((right + 1) / rows, loss, rows) > objective_value(right / rows, other, rows)


def test_a_setting_outside_the_usual_bounds_widens_them():
    config = FinetuneConfig.model_validate({"model": {"dropout": 0.5}})
    assert search_dimensions(config, None, ("dropout",)) == (SearchDimension("model.dropout", 0.5, 0.0, 0.5),)


def test_ratings_are_not_searched_for(tmp_path):
    rows = "".join(f"a text of number {number},{number % 5}\n" for number in range(40))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    with pytest.raises(UsageError) as caught:
        api.tune(
            tmp_path / "train.csv",
            out=tmp_path / "out",
            source="scratch",
            trials=2,
            settings=SCRATCH | {"labelled.task": "rating"},
        )
    assert str(caught.value) == (
        f"tune is for one class a text, and {tmp_path / 'train.csv'} has ratings; run finetune with other settings, "
        "and compare what its result.json says of validation"
    )
    assert not (tmp_path / "out").exists()
