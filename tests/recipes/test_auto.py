"""`headstart auto` on tiny tables: a winner that can be used, a report, and runs that are stopped and go on."""

import os
import signal
import time
from dataclasses import replace

import pytest

import headstart
from faults.runs import outcome
from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart.config.merge import resolve_settings
from headstart.config.schema import FinetuneConfig, LabelledConfig, RuntimeConfig
from headstart.errors import Interrupted, StoreError, UsageError
from headstart.interop.model_source import load_model_source
from headstart.interrupts import handle_signals
from headstart.linear import classifier
from headstart.linear.classifier import fit_linear
from headstart.predict.bundle_predictor import load_predictor, threshold_for
from headstart.recipes.auto import finish, run
from headstart.recipes.auto.finish import FittedArms
from headstart.recipes.auto.network import Network, cross_validate
from headstart.recipes.auto.pretraining import own_backbone
from headstart.recipes.auto.run import AutoRequest, run_auto
from headstart.recipes.auto.schedule import NetworkPlan
from headstart.recipes.auto.table import load_table
from headstart.recipes.evaluate import EvaluateRequest, run_evaluate
from headstart.recipes.finetune.trainer import Deadline
from headstart.runtime import setup_runtime
from headstart.store.bundle import load_bundle
from headstart.store.records import read_comparison_data, read_record, record_path
from headstart.store.run_folder import RunFolder

SETTINGS = {"loop": {"epochs": 2}, "runtime": {"threads": 1}, "optim": {"lr": 5e-3}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("reviews"), train=64)
    with (folder / "train.csv").open("a", encoding="utf-8") as file:
        file.write("a film that nobody has labelled,\n")
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=2))
    return folder


def auto(data, out, progress=None, **fields):
    request = {"table": str(data / "train.csv"), "backbone": str(data / "base"), "settings": SETTINGS} | fields
    return run_auto(AutoRequest(out=out, **request), progress)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    listener = Listener()
    return auto(data, out, listener), listener


def test_the_winner_can_be_used_and_every_arm_has_a_record(whole):
    result, _ = whole
    assert set(result.scores) == {"majority", "linear", "pretrained", "blend"}
    assert result.winner in ("linear", "pretrained", "blend")
    prediction = result.load().predict(["a wonderful lovely film"])[0]
    assert prediction.label in ("negative", "positive")
    assert headstart.load(result.folder).predict(["a dull boring plot"])
    assert sorted(path.name for path in (result.folder / "cells").iterdir()) == [
        "blend-all-seed0.json",
        "linear-all-seed0.json",
        "majority-all-seed0.json",
        "pretrained-all-seed0.json",
    ]
    assert not (result.folder / "parts").exists()
    assert not (result.folder / "work").exists()


@pytest.fixture(scope="module")
def blend(data, tmp_path_factory):
    """The result of a run in which the blend won."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "choose_winner", lambda *_: "blend")
        return auto(data, tmp_path_factory.mktemp("blend") / "run", settings=SETTINGS | {"loop": {"epochs": 1}})


def test_the_card_says_that_the_last_epoch_of_the_network_was_kept(blend):
    """The rows that a network did not see judge it; they choose no epoch."""
    card = (blend.folder / "bundle" / "README.md").read_text("utf-8")
    assert "from the pretrained model `base`; the last epoch was kept." in card
    assert "chosen on validation" not in card
    assert "| cross-validation (it chose the settings) |" in card


def test_the_report_names_the_winner_and_nothing_is_missing(whole):
    result, _ = whole
    page = result.report.read_text(encoding="utf-8")
    assert result.headline.split(":")[0].replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert "Headstart · the best classifier on held-out rows of train.csv" in page
    assert "Not finished" not in page
    assert "--arms" not in page


def test_a_difference_whose_interval_contains_zero_is_called_unclear(blend):
    assert blend.winner == "blend"
    assert blend.headline.endswith(", no clear difference)")


def test_the_lines_say_what_was_done(whole):
    _, listener = whole
    lines = "\n".join(listener.lines)
    assert "no test file: 12 rows of 64 are held out for the test (stratified) and read once, at the end" in lines
    assert "1 text without a label is used as unlabelled text" in lines
    assert "network, fold 5 of 5" in lines
    assert "cross-validation accuracy on" in lines


def test_test_rows_that_are_set_aside_are_not_in_train(whole):
    data = read_comparison_data(whole[0].folder)
    assert data.test.rows + data.train.rows == 64
    assert data.test.overlap == ()


def test_copies_of_a_text_do_not_count_in_the_choice(tmp_path):
    lines = [f"text {row} is {('bad', 'good')[row % 2]},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines, *lines[:10]]), encoding="utf-8")
    table = load_table(str(tmp_path / "t.csv"), (), None, LabelledConfig(), 0, Listener())
    fit = fit_linear(table.train.texts, table.gold, 2)
    fitted = FittedArms(table, FinetuneConfig(), fit, 0.0, "none")
    compared = table.train.take(fitted.rows).texts
    assert len(set(table.train.texts)) < len(table.train)  # control: there are copies in train
    assert all(table.train.texts.count(text) == 1 for text in compared)
    assert len(compared) >= 20
    listener = Listener()
    headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", backbone="none", progress=listener)
    start = f"cross-validation accuracy on {len(compared)} rows whose text occurs once: the majority class "
    assert any(line.startswith(start) for line in listener.lines)


def test_texts_with_more_than_one_label_are_counted(tmp_path):
    lines = [f"text {row} is {('bad', 'good')[row % 2]},{'ab'[row % 2]}" for row in range(40)]
    conflicts = [line[:-1] + ("b" if line[-1] == "a" else "a") for line in lines[:3]]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines, *conflicts]), encoding="utf-8")
    path = str(tmp_path / "t.csv")
    table = load_table(path, (), None, LabelledConfig(), 0, Listener())
    note = f"{path}: 3 texts have more than one label, in 6 rows"
    assert (
        f"{note}; these rows are not held out, which makes the test easier (headstart inspect lists them)"
        in table.notes
    )
    assert not {line.partition(",")[0] for line in conflicts} & set(table.test.texts)
    (tmp_path / "test.csv").write_text("\n".join(["text,label", "a new one,a", "another one,b"]), encoding="utf-8")
    table = load_table(path, (), str(tmp_path / "test.csv"), LabelledConfig(), 0, Listener())
    assert f"{note} (headstart inspect lists them)" in table.notes


def test_a_linear_model_that_would_take_too_long_is_fitted_on_fewer_rows(data, tmp_path, monkeypatch):
    monkeypatch.setattr(classifier, "TRIAL_NONZEROS", 500)
    listener = Listener()
    result = auto(data, tmp_path / "run", listener, backbone="none", minutes=0.001)
    rows = read_record(record_path(result.folder, "linear", "all", 0)).rows
    assert 1 < rows < 26
    assert any(line.endswith(f"; fitted on {rows} of 52 rows to save time") for line in listener.lines)


@pytest.mark.parametrize(("settings", "steps"), [({}, 156), ({"loop": {"min_steps": 170}}, 170)])
def test_few_rows_are_trained_for_fewer_steps_unless_they_are_given(data, tmp_path, settings, steps):
    result = auto(data, tmp_path / "run", backbone="none", settings=settings)
    assert RunFolder.open(result.folder, kind="auto").settings["loop"]["min_steps"] == steps  # 3 for each of 52 rows


def test_the_line_about_one_minute_is_singular(data, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "plan_network", lambda *_: None)
    listener = Listener()
    auto(data, tmp_path / "run", listener, minutes=1.0)
    assert "no network: 1 minute is not enough to train one; --minutes 2 would be enough" in listener.lines


def test_a_folder_that_contains_a_run_is_refused_before_the_table_is_read(whole, data):
    out, listener = whole[0].folder, Listener()
    with pytest.raises(UsageError) as caught:
        auto(data, out, listener)
    assert str(caught.value) == f"{out} already contains a run; continue it with --resume, or choose another --out"
    assert listener.lines == []


class StopAfter(Listener):
    """Sends a signal to this process once a line begins with some words."""

    def __init__(self, words, number=signal.SIGINT):
        super().__init__()
        self.words, self.number = words, number

    def say(self, line):
        super().say(line)
        if line.startswith(self.words):
            self.words = "\0"
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    "words",
    [
        "linear model:",
        "network, fold 1",
        *(pytest.param(words, marks=pytest.mark.slow) for words in ("network: ", "network, fold 3")),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_result(words, whole, data, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted) as error:
        auto(data, out, StopAfter(words))
    assert str(error.value) == (
        f"Ctrl-C; saved; the linear model can already be used. Continue with: headstart auto --resume --out {out}"
    )
    assert headstart.load(out).predict(["a film"])
    result = run_auto(AutoRequest(out=out, resume=True))
    assert outcome(out) == outcome(whole[0].folder)
    assert result.scores == whole[0].scores
    assert run_auto(AutoRequest(out=out, resume=True)) == result  # finished already


def test_a_resumed_run_refuses_another_table(data, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text((data / "train.csv").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(Interrupted):
        auto(data, tmp_path / "run", StopAfter("linear model:"), table=str(table))
    table.write_text(table.read_text(encoding="utf-8").replace("film", "book"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"is not what .* was started with; restore it, or start another run"):
        run_auto(AutoRequest(out=tmp_path / "run", resume=True))


def test_a_resumed_run_refuses_other_text_without_labels(data, tmp_path):
    table = tmp_path / "train.csv"
    table.write_text((data / "train.csv").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(Interrupted):
        auto(data, tmp_path / "run", StopAfter("linear model:"), table=str(table))
    with table.open("a", encoding="utf-8") as file:
        file.write("a row that has no label yet,\n")
    with pytest.raises(UsageError) as error:
        run_auto(AutoRequest(out=tmp_path / "run", resume=True))
    assert str(error.value) == (
        f"the unlabelled text of {table} is not what {tmp_path / 'run'} was started with; restore it, "
        f"or start another run"
    )


def test_a_difference_that_test_rows_prove_is_not_called_nothing(tmp_path):
    rows = ["lovely film,good", "awful film,bad", "nice,good", "poor,bad"]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    tests = [f"a {('lovely', 'awful')[row % 2]} film {row},{('good', 'bad')[row % 2]}" for row in range(60)]
    (tmp_path / "test.csv").write_text("\n".join(["text,label", *tests]), encoding="utf-8")
    result = headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", test=tmp_path / "test.csv", backbone="none")
    assert result.above_majority
    assert result.headline == (
        "The linear model classifies 100.0 % of 60 test texts correctly: +50.0 points compared with always predicting 'bad' "
        "(95 % interval +36.1 to +63.9)"
    )


def test_a_difference_that_only_cross_validation_shows_is_called_so(tmp_path):
    lines = [f"{('awful', 'lovely')[row % 2]} film {row},{('bad', 'good')[row % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    result = headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", backbone="none")
    assert result.above_majority
    assert result.headline == (
        "The linear model classifies 100.0 % of 8 test texts correctly: +50.0 points compared with always predicting 'bad' "
        "(95 % interval −11.2 to +100.0, a clear difference in cross-validation only)"
    )


def test_more_minutes_are_suggested_only_after_a_hold_out(tmp_path):
    lines = [f"{('awful', 'lovely')[row % 2]} film {row},{('bad', 'good')[row % 2]}" for row in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", backbone="none")
    bundle = load_predictor(tmp_path / "run").bundle
    for folds, hint in ((None, ""), (5, ""), (1, ", or run headstart auto with more minutes")):
        changed = replace(bundle, about=bundle.about | {"folds": folds})
        with pytest.raises(UsageError, match=f"; 50 are needed: label more rows{hint}$"):
            threshold_for(changed, 0.9)


def test_a_damaged_part_is_named(data, tmp_path):
    with pytest.raises(Interrupted):
        auto(data, tmp_path / "run", StopAfter("network, fold 1"))
    (tmp_path / "run" / "parts" / "fold-0" / "logits.safetensors").write_bytes(b"")
    with pytest.raises(
        StoreError, match=r"logits.safetensors is damaged.*; delete the folder and use --resume to create it again"
    ):
        run_auto(AutoRequest(out=tmp_path / "run", resume=True))


def test_a_short_time_keeps_the_network_of_the_hold_out_or_none(data, tmp_path):
    listener = Listener()
    auto(data, tmp_path / "run", listener, minutes=0.001)
    assert any(line.startswith("no network: 0.001 minutes are not enough to train one") for line in listener.lines)
    assert RunFolder(tmp_path / "run").finished


def test_a_training_that_would_end_too_late_makes_fewer_steps(data, tmp_path):
    table = load_table(str(data / "train.csv"), (), None, LabelledConfig(), 0, Listener())
    config = resolve_settings(FinetuneConfig, "modern-nano", "finetune", SETTINGS)
    bundle = load_model_source(str(data / "base"), head_type="language")
    epochs = {}
    for name, deadline in (("late", -60.0), ("early", 3600.0)):
        with handle_signals(None, time.monotonic()) as stop:
            runtime = setup_runtime(config.runtime)
            network = Network(tmp_path / name, config, table, bundle, "base", runtime, stop, Listener())
            limit = Deadline(time.monotonic() + deadline, seconds_per_step=0.01, seconds_per_row=0.0)
            plan = NetworkPlan(folds=1, rows=len(table.train), steps=None, refit=False)
            epochs[name] = len(cross_validate(network, plan, limit).epochs)
    assert epochs["late"] < epochs["early"]


def test_a_table_with_fewer_texts_than_folds_has_a_fold_for_each_text(data, tmp_path):
    rows = [("a good film", "pos"), ("a bad film", "neg")] * 6
    (tmp_path / "copies.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    (tmp_path / "test.csv").write_text("text,label\na lovely film,pos\n")
    listener = Listener()
    result = auto(
        data,
        tmp_path / "run",
        listener,
        table=str(tmp_path / "copies.csv"),
        test=str(tmp_path / "test.csv"),
        settings=SETTINGS | {"loop": {"epochs": 1}},
    )
    assert "pretrained" in result.scores
    assert any(line.startswith("network, fold 2 of 2: ") for line in listener.lines)


def test_a_chinese_table_takes_no_starter_and_says_why_there_is_no_network(tmp_path):
    good, bad = "质量很好非常喜欢推荐", "太差了退货浪费钱别买"
    lines = [f"{(good, bad)[row % 2]}{'的' * (row % 5)}第{row}个,{'好坏'[row % 2]}" for row in range(60)]
    (tmp_path / "zh.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    listener = Listener()
    result = headstart.auto(
        tmp_path / "zh.csv", out=tmp_path / "run", settings={"runtime.threads": 1}, progress=listener
    )
    assert result.winner == "linear"
    assert set(result.scores) == {"majority", "linear"}
    assert any(
        line.startswith(
            "no network: the texts are Chinese (100 %), Han script, and there is no starter for Chinese; less than 0.1 MB "
            "of text and 10 minutes on a CPU are not enough"
        )
        for line in listener.lines
    )


def test_labels_that_cannot_be_learnt_are_no_success(tmp_path):
    lines = [f"text number {row * 7919 % 97},{'ab'[row * row % 7 % 2]}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    result = headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", backbone="none")
    assert not result.above_majority
    assert result.headline.startswith("No model is clearly better than always predicting 'a'")
    lines = evaluation_lines(tmp_path / "run", tmp_path / "other.csv", ["text,label", "a new text,a", "another one,b"])
    headline = result.headline[0].lower() + result.headline[1:]
    assert lines == [f"when {tmp_path / 'run'} was trained: {headline}"]


def evaluation_lines(run, file, lines):
    file.write_text("\n".join(lines), encoding="utf-8")
    listener = Listener()
    run_evaluate(EvaluateRequest(run, str(file)), listener)
    return listener.lines


def test_an_evaluation_on_the_table_of_the_training_says_so(tmp_path):
    lines = ["text,label", *(f"text {row} is {('bad', 'good')[row % 2]},{'ab'[row % 2]}" for row in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    run, other = tmp_path / "run", tmp_path / "other.csv"
    headstart.auto(tmp_path / "t.csv", out=run, backbone="none")
    assert evaluation_lines(run, other, lines) == [
        f"{run} was trained on the rows of {other}: the accuracy on new texts is usually lower; evaluate it on rows that "
        "it was not trained on"
    ]
    assert evaluation_lines(run, other, lines[:-1]) == []


def test_the_headline_says_if_most_test_texts_nearly_repeat_training_rows(tmp_path):
    story = "the river rose above the old bridge after a week of rain and the people of the town walked to the church"
    endings = {"a": "it ended badly and they cried", "b": "all was well and they sang a song"}
    lines = [f"{row} {story} {endings['ab'[row % 2]]} {row},{'ab'[row % 2]}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    result = headstart.auto(tmp_path / "t.csv", out=tmp_path / "run", backbone="none")
    remark = "test texts have a duplicate or near-duplicate in the training rows, so new texts may be harder"
    assert result.headline.endswith(f"). All 12 {remark}")
    page = result.report.read_text(encoding="utf-8")
    assert f"All 12 {remark}." in page
    assert (
        "Every test text has an exact or a near-duplicate in train: the accuracy on other texts was not measured."
        in page
    )
    assert "* without" not in page


def test_a_starter_is_continued_on_the_text_of_the_table_without_test_and_resumes(data, tmp_path):
    table = load_table(str(data / "train.csv"), (), None, LabelledConfig(), 0, Listener())
    assert table.megabytes < 0.1
    base, runtime = str(data / "base"), RuntimeConfig(threads=1)
    listener = Listener()
    folder = own_backbone(tmp_path, table, base, 0.03, runtime, listener)
    assert f"pretraining on 0.0 MB of text for 0 minutes, from {base}" in listener.lines
    bundle = load_bundle(folder, head_type="language")
    assert bundle.about["excluded"]["files"][0]["name"] == "test.jsonl"
    assert own_backbone(tmp_path, table, base, 0.03, runtime, listener) == folder  # finished already
