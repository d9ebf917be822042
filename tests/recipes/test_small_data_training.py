"""Training on little data or in little time: EMA weights, the last epoch, min_steps and max_steps, minutes."""

import pytest
import torch

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.recorded_capture import RerunCapture
from fixtures.tiny import Listener, change_runtime, finetune_config, pretrain_config, write_reviews
from headstart.config.presets import PRESET_SIZES
from headstart.errors import ConfigError, Interrupted, UsageError
from headstart.files import read_json, write_checksummed
from headstart.recipes.pretrain import preset_search
from headstart.recipes.pretrain.preset_search import (
    MAX_COMPILE_GAIN,
    TOKENS_PER_PARAMETER,
    PresetTrial,
    choose_preset,
)
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_tensors
from headstart.train.cuda_graphs import GraphCache
from headstart.train.plan import Plan
from headstart.train.static_batch import static_tokens


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


def finetune(reviews, out, progress=None, **settings):
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")} | {"progress": progress}
    return finetune_run(str(reviews / "train.csv"), out, finetune_config(**settings), backbone="scratch", **files)


def weights(run):
    return load_tensors(run.path / "bundle" / "backbone.safetensors")


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def epochs(run):
    return RunFolder(run.path).metrics.read("epoch")


def test_select_last_keeps_the_last_epoch(reviews, tmp_path):
    listener = Listener()
    settings = {"loop__epochs": 4, "optim__schedule": "linear"}
    last = finetune_run(
        str(reviews / "train.csv"),
        tmp_path / "last",
        finetune_config(**settings, loop__select="last"),
        backbone="scratch",
        valid=str(reviews / "valid.csv"),
        progress=listener,
    )
    result = read_json(last.path / "result.json")
    assert result["best_epoch"] == 4
    assert result["valid"]["accuracy"] == epochs(last)[-1]["valid_accuracy"]
    assert any(line.startswith("epoch 4, validation accuracy 0.") for line in listener.lines)
    assert not any("best" in line for line in listener.lines)


def test_patience_is_refused_with_select_last():
    with pytest.raises(
        ConfigError,
        match=r"^loop.patience needs loop.select best, got last: without a best epoch there is no early stopping$",
    ):
        finetune_config(loop__select="last", loop__patience=2)


def test_ema_weights_are_evaluated_and_saved(reviews, tmp_path):
    plain = finetune(reviews, tmp_path / "plain", loop__select="last")
    mean = finetune(reviews, tmp_path / "mean", loop__select="last", optim__ema_decay=0.9)
    assert [line["train_loss"] for line in epochs(mean)] == [line["train_loss"] for line in epochs(plain)]
    assert [line["valid_loss"] for line in epochs(mean)] != [line["valid_loss"] for line in epochs(plain)]
    assert not same(weights(mean), weights(plain))


@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_ema_weights_survive_a_stop(reviews, tmp_path, command):
    def go(out, **settings):
        if command == "finetune":
            return finetune(reviews, out, optim__ema_decay=0.9, **settings)
        return pretrain_run([str(reviews / "texts.txt")], out, pretrain_config(optim__ema_decay=0.9, **settings))

    whole = go(tmp_path / "whole")
    with pytest.raises(Interrupted):
        go(tmp_path / "cut", runtime__time_limit=1e-5)
    change_runtime(tmp_path / "cut", time_limit=None)
    if command == "finetune":
        cut = finetune_run(None, tmp_path / "cut", None, resume=True)
    else:
        cut = pretrain_run([], tmp_path / "cut", None, resume=True)
    assert same(weights(whole), weights(cut))


def test_min_steps_repeats_few_rows_within_an_epoch(reviews, tmp_path):
    usual = finetune(reviews, tmp_path / "usual", loop__epochs=2)
    often = finetune(reviews, tmp_path / "often", loop__epochs=2, loop__min_steps=30)
    reached = finetune(reviews, tmp_path / "reached", loop__epochs=2, loop__min_steps=12)
    assert len(epochs(often)) == len(epochs(usual)) == 2
    assert epochs(often)[-1]["train_loss"] < epochs(usual)[-1]["train_loss"]
    assert same(weights(reached), weights(usual))
    with pytest.raises(Interrupted) as caught:
        finetune(reviews, tmp_path / "cut", loop__epochs=2, loop__min_steps=30, runtime__time_limit=1e-5)
    # 48 rows in batches of 8 are 6 steps, 2 epochs are 12: three passes an epoch reach 36
    resume = f"headstart finetune --resume --out {tmp_path / 'cut'}"
    assert str(caught.value) == f"time limit reached at step 1 of 36; saved. Continue with: {resume}"


@pytest.mark.parametrize(("select", "rows"), [("last", [60, 60, None]), ("best", [None, None, None])])
def test_evaluations_that_choose_nothing_read_a_part_of_a_large_validation_file(reviews, tmp_path, select, rows):
    """48 rows in batches of 8 are 6 steps: a tenth of their cost is that of 14 rows, and at least 60 are read."""
    lines = (reviews / "train.csv").read_text(encoding="utf-8").splitlines()
    valid = tmp_path / "valid.csv"
    valid.write_text("\n".join([lines[0], *lines[1:41] * 3]), encoding="utf-8")
    settings = finetune_config(loop__epochs=3, loop__select=select)
    run = finetune_run(str(reviews / "train.csv"), tmp_path / "run", settings, backbone="scratch", valid=str(valid))
    assert [line.get("valid_rows") for line in epochs(run)] == rows
    assert read_json(run.path / "result.json")["data"]["valid"]["rows"] == 120
    small = finetune(reviews, tmp_path / "small", loop__epochs=3, loop__select=select)
    assert [line.get("valid_rows") for line in epochs(small)] == [None] * 3  # control
    if select == "last":
        assert same(weights(run), weights(small))  # what is evaluated does not change what is trained


def test_max_steps_reduces_the_epochs(reviews, tmp_path):
    # 48 rows in batches of 8 are 6 steps
    fewer = finetune(reviews, tmp_path / "fewer", loop__epochs=4, loop__max_steps=13)
    two = finetune(reviews, tmp_path / "two", loop__epochs=2)
    one = finetune(reviews, tmp_path / "one", loop__epochs=4, loop__max_steps=1)
    assert len(epochs(fewer)) == 2
    assert same(weights(fewer), weights(two))  # the schedule has its end there too
    assert len(epochs(one)) == 1


def test_minutes_limit_the_epochs_and_the_plan_is_recorded(reviews, tmp_path):
    listener = Listener()
    run = finetune(reviews, tmp_path / "run", listener, loop__epochs=2000, loop__minutes=0.03)
    steps = read_json(run.path / "plan.json")["steps"]
    assert 1 <= steps < 2000 * 6
    assert any(line.startswith("this is a small part of the 2,000 epochs in the settings; ") for line in listener.lines)
    # 48 rows in batches of 8 are 6 steps; the rest of them counts as an epoch of its own
    plan = Plan.from_dict(read_json(run.path / "plan.json"))
    assert len(epochs(run)) == -(-plan.steps // 6)


def test_a_resumed_run_keeps_its_plan(reviews, tmp_path):
    settings = {"loop__epochs": 2000, "loop__minutes": 60.0, "runtime__time_limit": 0.02}
    with pytest.raises(Interrupted):
        finetune(reviews, tmp_path / "run", **settings)
    change_runtime(tmp_path / "run", time_limit=None)
    done = len(RunFolder(tmp_path / "run").metrics.read("epoch"))
    write_checksummed(tmp_path / "run" / "plan.json", {"steps": 6 * done + 8, "seconds_per_step": 1.0})
    run = finetune_run(None, tmp_path / "run", None, resume=True)
    assert len(epochs(run)) == done + 2


def test_sufficient_minutes_change_nothing(reviews, tmp_path):
    plain = finetune(reviews, tmp_path / "plain")
    listener = Listener()
    timed = finetune(reviews, tmp_path / "timed", listener, loop__minutes=60.0)
    assert same(weights(plain), weights(timed))
    assert not any("little" in line for line in listener.lines)


def test_preset_auto_takes_the_smallest_size_in_a_short_time():
    listener = Listener()
    config = pretrain_config(loop__steps=None, loop__minutes=0.001, tokenizer__vocab_size=300)
    assert choose_preset(config, listener) == "modern-nano"
    assert listener.lines[0] == "timing sizes for 0.001 minutes on cpu"
    assert listener.lines[1].startswith("preset modern-nano: 0.8 M parameters, about 0.0 M tokens in that time")


def test_preset_auto_times_captured_steps_where_the_run_captures_them(monkeypatch):
    captures = []

    def token_graphs(model, runtime, strategy, notify):
        captures.append(RerunCapture())
        return GraphCache(model, captures[-1], notify, static_tokens)

    monkeypatch.setattr(preset_search, "token_graphs", token_graphs)
    config = pretrain_config(loop__steps=None, loop__minutes=0.001, tokenizer__vocab_size=300)
    assert choose_preset(config, Listener()) == "modern-nano"
    assert len(captures) == 1
    assert captures[0].num_replays >= 3  # every timed step


@pytest.mark.parametrize(
    ("compiles", "tokens", "timed", "chosen"),
    [
        # of each preset: the tokens per parameter that its steps allow, captured and compiled
        (False, [(9, 9), (4, 9)], [("modern-nano", False), ("modern-micro", False)], "modern-nano"),
        (True, [(9, 9), (2, 3)], [("modern-nano", False), ("modern-micro", False)], "modern-nano"),
        (
            True,
            [(9, 9), (4, 6), (1, 1)],
            [("modern-nano", False), ("modern-micro", False), ("modern-micro", True), ("modern", False)],
            "modern-micro",
        ),
        (
            True,
            [(9, 9), (4, 4)],
            [("modern-nano", False), ("modern-micro", False), ("modern-micro", True)],
            "modern-nano",
        ),
    ],
)
def test_preset_auto_compiles_only_where_that_decides(compiles, tokens, timed, chosen, monkeypatch):
    calls, per_parameter = [], dict(zip(PRESET_SIZES, tokens, strict=False))

    def time_preset(preset, config, runtime, *, compiled):
        calls.append((preset, compiled))
        return PresetTrial(preset, 100, 100 * per_parameter[preset][compiled])

    monkeypatch.setattr(preset_search, "_time_preset", time_preset)
    monkeypatch.setattr(preset_search, "_compiles", lambda *_: compiles)
    listener = Listener()
    assert choose_preset(pretrain_config(loop__steps=None, loop__minutes=60.0), listener) == chosen
    assert calls == timed
    assert f", {'at least' if compiles else 'about'} 0.0 M tokens in that time" in listener.lines[-1]


def test_a_preset_is_affordable_if_its_text_suffices_for_its_parameters():
    assert PresetTrial("modern", 100, TOKENS_PER_PARAMETER * 100).is_affordable
    assert not PresetTrial("modern", 100, TOKENS_PER_PARAMETER * 100 - 1).is_affordable


def test_compiling_can_only_decide_about_a_preset_that_is_nearly_affordable():
    needed = TOKENS_PER_PARAMETER * 100
    assert not PresetTrial("modern", 100, needed).may_be_affordable_compiled
    assert PresetTrial("modern", 100, needed - 1).may_be_affordable_compiled
    assert PresetTrial("modern", 100, needed / MAX_COMPILE_GAIN).may_be_affordable_compiled
    assert not PresetTrial("modern", 100, needed / MAX_COMPILE_GAIN - 1).may_be_affordable_compiled


def test_preset_auto_without_minutes_is_refused():
    with pytest.raises(UsageError, match=r"^--preset auto needs a time limit; set it with --minutes$"):
        choose_preset(pretrain_config(), Listener())
