"""Every arm of a comparison on the same rows and seeds; a grid goes on anywhere, and repeats nothing."""

import csv
import json
import shutil
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from fixtures.tiny import Listener, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.data.labelled import read_labelled
from headstart.errors import ConfigError, StoreError, UsageError
from headstart.files import read_json
from headstart.predict.predictor import Predictor
from headstart.progress import SilentProgress
from headstart.recipes.compare.arms import expand_arms, source_names
from headstart.recipes.compare.run import run_compare
from headstart.recipes.finetune.run import run_finetune
from headstart.recipes.prepare import run_prepare_labelled
from headstart.recipes.pretrain.run import run_pretrain
from headstart.report.error_tables import error_tables
from headstart.report.load import load_comparison
from headstart.store.bundle import load_bundle
from headstart.store.records import RunRecord, read_record

ARMS = ("majority", "tfidf", "naive_bayes", "nbsvm", "scratch", "frozen", "pretrained")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Labelled reviews, and two language models of other shapes and vocabularies."""
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    text = [str(folder / "texts.txt")]
    run_pretrain(text, folder / "small", pretrain_config(loop__steps=3))
    other = {"model__width": 24, "tokenizer__vocab_size": 280}
    run_pretrain(text, folder / "other", pretrain_config(loop__steps=3, **other))
    return folder


def compare(reviews, out, *sources, config=None, **asked):
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")} | asked
    paths = [str(reviews / name) for name in sources]
    return run_compare(
        str(reviews / "train.csv"), out, config or finetune_config(loop__epochs=1), source=paths, **files
    )


@pytest.fixture(scope="module")
def two(reviews):
    """Both models, every arm, two seeds, few labels and all of them."""
    listener = Listener()
    out = reviews / "two"
    compare(reviews, out, "small", "other", arms=ARMS, seeds=2, labels=(12, None), progress=listener)
    return out, listener.lines


def test_several_folders_are_an_arm_each(two):
    comparison = load_comparison(two[0])
    linear, networks = ARMS[:4], ["scratch", *(f"{kind}:{name}" for kind in ARMS[5:] for name in ("other", "small"))]
    assert comparison.arms == ("majority", "naive_bayes", "nbsvm", "tfidf", *networks)
    assert comparison.missing == ()
    assert len(comparison.runs) == 3 * len(linear) + 4 * len(networks)
    assert sorted(path.name for path in two[0].glob("receipt*.json")) == ["receipt-other.json", "receipt.json"]
    assert read_json(two[0] / "receipt.json")["source"].endswith("small")


def test_folders_that_are_not_alike_are_remarked_on(reviews, two):
    note = (
        f"{reviews / 'other'} has another shape and tokenizer than {reviews / 'small'}, whose network scratch is: "
        "their difference is not pretraining alone"
    )
    assert note in two[1]
    assert note in read_json(two[0] / "data.json")["notes"]


def test_a_comparison_in_a_hurry_says_so(reviews, tmp_path):
    listener, config = Listener(), finetune_config(loop__epochs=1, loop__minutes=0.5)
    compare(reviews, tmp_path / "cmp", "small", config=config, arms=("pretrained",), seeds=1, progress=listener)
    note = (
        "every network was given 0.5 minutes (--minutes) in place of all its epochs, which may be too few to learn "
        "anything"
    )
    assert note in listener.lines
    assert note in read_json(tmp_path / "cmp" / "data.json")["notes"]


@pytest.mark.parametrize("arm", ["frozen", "pretrained"])
def test_a_cell_of_one_folder_among_several_is_its_fine_tuning(reviews, two, tmp_path, arm):
    """Its own tokenizer, shape and start, whichever folder came first."""
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    frozen = {"transfer__freeze": True, "optim__lr": 5e-2} if arm == "frozen" else {}
    config = finetune_config(loop__epochs=1, runtime__seed=1, **frozen)
    run = run_finetune(str(reviews / "train.csv"), tmp_path / "run", config, source=str(reviews / "other"), **files)
    cell, result = read_record(two[0] / "cells" / f"{arm}@other-all-seed1.json"), read_json(run.path / "result.json")
    assert (cell.valid.accuracy, cell.epochs[0].valid_loss) == (
        result["valid"]["accuracy"],
        run.metrics.read("epoch")[0]["valid_loss"],
    )
    assert [list(row) for row in cell.test.confusion] == result["test"]["confusion"]
    assert cell.setting["lr"] == config.optim.lr
    assert cell.setting.get("freeze", False) == (arm == "frozen")


def test_every_cell_has_the_probabilities_of_test_and_validation(two):
    data = read_json(two[0] / "data.json")
    for cell in load_comparison(two[0]).runs:
        assert len(cell.probabilities) == data["test"]["rows"]
        assert len(cell.valid_probabilities) == len(data["valid"]["gold"])
        right = np.mean((np.array(cell.valid_probabilities) > 0.5) == data["valid"]["gold"])
        assert right == pytest.approx(cell.valid.accuracy)


def test_the_beginnings_of_the_listed_mistakes_are_kept_and_no_other_text(reviews, two):
    with (reviews / "test.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    comparison = load_comparison(two[0])
    mistakes = error_tables(comparison).mistakes
    assert mistakes
    assert comparison.excerpts == {mistake.row: texts[mistake.row] for mistake in mistakes}
    assert comparison.data.test.lengths == tuple(
        len(ids) for ids in load_bundle(reviews / "small").tokenizer.encode_batch(texts)
    )
    page = (two[0] / "report.html").read_text("utf-8")
    assert all(text in page for text in comparison.excerpts.values())


def test_without_texts_none_is_kept_anywhere(reviews, tmp_path):
    arms = ("majority", "scratch")
    for out, asked in (("with", {}), ("without", {"texts": False})):
        compare(reviews, tmp_path / out, arms=arms, seeds=1, **asked)
    kept = load_comparison(tmp_path / "with").excerpts  # control: the same runs have mistakes to quote
    assert kept
    assert (
        error_tables(load_comparison(tmp_path / "without")).mistakes
        == error_tables(load_comparison(tmp_path / "with")).mistakes
    )
    for path in (tmp_path / "without").rglob("*.*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [text for text in kept.values() if text.encode() in content], path


def test_a_table_of_runs_fills_up_and_goes_on_where_it_stopped(reviews, tmp_path):
    asked = {"arms": ("majority", "tfidf", "scratch"), "seeds": 2, "labels": (12, None)}
    planned = {(arm, budget): 2 for budget in ("12", "all") for arm in asked["arms"]}
    planned |= {("majority", "all"): 1, ("tfidf", "all"): 1}
    watcher = Watcher()
    compare(reviews, tmp_path / "cmp", progress=watcher, **asked)
    assert watcher.planned == planned
    assert watcher.started == watcher.added
    assert Counter(watcher.added) == planned
    (tmp_path / "cmp" / "result.json").unlink()
    again = Watcher()
    run_compare(None, tmp_path / "cmp", None, resume=True, progress=again)
    assert (again.added, again.values) == (watcher.added, watcher.values)  # finished runs count, too


class Watcher(SilentProgress):
    """A progress that remembers what its table of runs was told."""

    def __init__(self):
        self.started, self.added, self.values = [], [], []

    @contextmanager
    def board(self, title, planned):
        self.planned = dict(planned)
        yield self

    def start(self, place):
        self.started.append(place)

    def add(self, place, value):
        self.added.append(place)
        self.values.append(value)


def test_arms_of_a_seed_learn_from_the_same_rows(reviews, two):
    """Of each class as many, and the same however the file is ordered."""
    lines = (reviews / "train.csv").read_text().splitlines()
    moved = reviews / "moved"
    moved.mkdir()
    (moved / "train.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    arms = ("tfidf", "nbsvm")
    config = finetune_config()
    run_compare(str(moved / "train.csv"), moved / "cmp", config, arms=arms, seeds=2, labels=(12,), **files)
    for arm in arms:
        cells = [json.loads((out / "cells" / f"{arm}-12-seed1.json").read_text()) for out in (two[0], moved / "cmp")]
        assert cells[0]["probabilities"] == pytest.approx(cells[1]["probabilities"], abs=2e-4)


def test_a_grid_goes_on_elsewhere_with_its_cells_alone(reviews, two, tmp_path):
    """Copied without weights, and with cells missing at the start, in the middle and at the end."""
    out = tmp_path / "elsewhere"
    shutil.copytree(two[0], out, ignore=shutil.ignore_patterns("work", "result.json", "report.html", "figures"))
    lost = ["majority-12-seed0", "pretrained@small-12-seed1", "frozen@other-all-seed1", "tfidf-all-seed0"]
    before = {path.stem: path.read_bytes() for path in (out / "cells").iterdir()}
    for name in lost:
        (out / "cells" / f"{name}.json").unlink()
    assert run_compare(None, out, None, resume=True) == out / "report.html"
    after = {path.stem: path.read_bytes() for path in (out / "cells").iterdir()}
    assert [name for name in sorted(before) if before[name] != after[name]] == sorted(lost)  # their seconds at least
    for name in lost:
        ours, theirs = ({**json.loads(cells[name]), "seconds": 0, "seal": ""} for cells in (before, after))
        for cell in (ours, theirs):
            for epoch in cell["epochs"]:
                epoch["seconds"] = 0
        assert ours == theirs


def test_a_cell_that_another_machine_made_meanwhile_is_not_made_again(reviews, tmp_path):
    asked = {"arms": ("majority", "tfidf"), "seeds": 2, "labels": (12,)}
    compare(reviews, tmp_path / "there", **asked)
    first, last = ("tfidf-12-seed0.json", "tfidf-12-seed1.json")

    class Brought(SilentProgress):
        def say(self, line):
            if line.startswith("majority, 12 labels, seed 0"):
                shutil.copy(tmp_path / "there" / "cells" / last, tmp_path / "here" / "cells" / last)

    compare(reviews, tmp_path / "here", progress=Brought(), **asked)
    here, there = (
        {name: (tmp_path / at / "cells" / name).read_bytes() for name in (first, last)} for at in ("here", "there")
    )
    assert here[last] == there[last]
    assert here[first] != there[first]  # control: a run of its own takes a time of its own


def test_a_damaged_cell_is_named_before_anything_runs(two, tmp_path):
    out = tmp_path / "cmp"
    shutil.copytree(two[0], out, ignore=shutil.ignore_patterns("result.json"))
    path = out / "cells" / "majority-12-seed0.json"
    path.write_text(path.read_text()[:100])
    (out / "cells" / "tfidf-all-seed0.json").unlink()
    with pytest.raises(StoreError) as caught:
        run_compare(None, out, None, resume=True)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert not (out / "cells" / "tfidf-all-seed0.json").exists()


def test_a_comparison_does_not_go_on_with_another_model_under_the_same_name(reviews, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(reviews / "small", base)
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    config, arms = finetune_config(loop__epochs=1), ("majority", "pretrained")
    out = tmp_path / "cmp"
    run_compare(str(reviews / "train.csv"), out, config, source=str(base), arms=arms, seeds=1, **files)
    (out / "result.json").unlink()
    run_compare(None, out, None, resume=True)  # control
    (out / "result.json").unlink()
    shutil.rmtree(base)
    run_pretrain([str(reviews / "texts.txt")], base, pretrain_config(loop__steps=4))
    with pytest.raises(UsageError) as caught:
        run_compare(None, out, None, resume=True)
    assert str(caught.value) == f"{base} is not what {out} was started with; put it back, or start another run"


def test_validation_chooses_the_rate_if_asked_and_test_has_no_say(reviews, tmp_path):
    (tmp_path / "turned.csv").write_text(
        (reviews / "test.csv")
        .read_text()
        .replace("positive", "?")
        .replace("negative", "positive")
        .replace("?", "negative")
    )
    config = finetune_config(loop__epochs=2, optim__lr=1e-4)
    cells = []
    for name, test in (("cmp", reviews / "test.csv"), ("other", tmp_path / "turned.csv")):
        arms = ("scratch", "frozen")
        compare(reviews, tmp_path / name, "small", config=config, seeds=1, arms=arms, choose=True, test=str(test))
        cells.append([read_record(tmp_path / name / "cells" / f"{arm}-all-seed0.json") for arm in arms])
    for ours, other in zip(*cells, strict=True):
        rates = [one["lr"] for one in ours.tried]
        assert rates == pytest.approx([rates[0], 3 * rates[0]])
        best = max(ours.tried, key=lambda one: (one["valid_accuracy"], -one["valid_loss"]))
        assert (ours.setting["lr"], ours.valid.accuracy) == (best["lr"], best["valid_accuracy"])
        assert (ours.setting, ours.tried, ours.predictions) == (other.setting, other.tried, other.predictions)
        assert ours.test.accuracy == pytest.approx(1 - other.test.accuracy)  # control: it was turned round
    assert cells[0][1].tried[0]["lr"] == pytest.approx(10 * cells[0][0].tried[0]["lr"])
    assert not (tmp_path / "cmp" / "work").exists()


def test_a_network_s_probabilities_are_those_of_the_classifier_that_finetune_would_leave(reviews, tmp_path):
    """Its temperature too, which validation has enough rows for here."""
    files = {"valid": str(tmp_path / "valid.csv"), "test": str(reviews / "test.csv")}
    rows = [(reviews / f"{name}.csv").read_text().splitlines() for name in ("valid", "train")]
    (tmp_path / "valid.csv").write_text("\n".join([*rows[0], *rows[1][1:]]) + "\n")
    train, config, source = str(reviews / "train.csv"), finetune_config(loop__epochs=1), str(reviews / "small")
    run_compare(train, tmp_path / "cmp", config, source=source, arms=("pretrained",), seeds=1, **files)
    run = run_finetune(train, tmp_path / "run", config, source=source, **files)
    cell = read_record(tmp_path / "cmp" / "cells" / "pretrained-all-seed0.json")
    assert cell.temperature == read_json(run.path / "result.json")["temperature"] != 1.0
    texts = read_labelled(files["test"], LabelledConfig()).texts
    answers = Predictor.load(run.path, RuntimeConfig(threads=1)).predict(texts)
    assert cell.probabilities == pytest.approx([one.probabilities["positive"] for one in answers], abs=1e-4)


def test_choosing_while_watching_test_is_refused(reviews, tmp_path):
    with pytest.raises(ConfigError) as caught:
        compare(reviews, tmp_path / "cmp", "small", choose=True, config=finetune_config(loop__watch_test=True))
    assert str(caught.value) == "--choose and loop.watch_test exclude each other: what is tried may not see test"


def test_prepared_rows_speak_one_vocabulary(reviews, tmp_path):
    shards = tmp_path / "shards"
    run_prepare_labelled(
        str(reviews / "train.csv"), shards, LabelledConfig(), tokenizer=reviews / "small", progress=SilentProgress()
    )
    sources = [str(reviews / name) for name in ("small", "other")]
    with pytest.raises(UsageError) as caught:
        run_compare(str(shards), tmp_path / "cmp", finetune_config(), source=sources, test=str(reviews / "test.csv"))
    assert str(caught.value) == (
        f"{shards} was prepared with another tokenizer than {reviews / 'other'}'s; give the file itself"
    )
    assert not (tmp_path / "cmp").exists()


def test_folders_are_called_by_what_tells_them_apart():
    assert source_names(["runs/base"]) == ("base",)
    assert source_names(["a/x/base", "b/x/base"]) == ("a-x-base", "b-x-base")
    assert source_names(["a/été 1", "a/b"]) == ("t_1", "b")
    assert expand_arms(("pretrained", "pretrained", "tfidf"), ["one"]) == ("pretrained", "tfidf")
    with pytest.raises(UsageError) as caught:
        source_names(["runs/base", "runs/../runs/base"])
    assert str(caught.value) == "--from names runs/base twice; once is enough"


def cell(**changed):
    facts = {
        "arm": "tfidf",
        "labels": "all",
        "rows": 4,
        "seed": 0,
        "setting": {},
        "epochs": [],
        "best_epoch": None,
        "valid": {"accuracy": 0.5, "macro_f1": 0.5},
        "seconds": 1.0,
        "predictions": [1, 0],
        "test": {"accuracy": 0.5, "macro_f1": 0.5, "confusion": [[1, 1], [0, 0]]},
    }
    return RunRecord.model_validate(facts | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"probabilities": [0.7]}, "probabilities are 1 for 2 predictions"),
        ({"probabilities": [0.7, 0.7]}, "the prediction 0 is not the likeliest of probabilities 0.7"),
        (
            {"valid_probabilities": [[0.2, 0.3, 0.5]]},
            "valid_probabilities holds (0.2, 0.3, 0.5), which does not share 1 among 2 labels",
        ),
        (
            {"probabilities": [[0.2, 0.7], [0.9, 0.1]]},
            "probabilities holds (0.2, 0.7), which does not share 1 among 2 labels",
        ),
    ],
)
def test_a_cell_whose_probabilities_do_not_fit_is_refused(changed, message):
    assert cell(probabilities=[0.7, 0.5]).probabilities == (0.7, 0.5)  # control; a tie is either's
    with pytest.raises(ValueError) as caught:
        cell(**changed)
    assert message in str(caught.value)


def test_labels_that_a_subset_lacks_have_no_chance(reviews, tmp_path):
    texts = read_labelled(str(reviews / "train.csv"), LabelledConfig())
    rows = [f"{text},{label}" for text, label in zip(texts.texts, texts.labels, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows, "the film a,odd", "the film b,odd"]) + "\n")
    files = {"valid": str(reviews / "valid.csv"), "test": str(reviews / "test.csv")}
    arms = ("majority", "tfidf", "nbsvm", "naive_bayes")
    config = finetune_config()
    run_compare(str(tmp_path / "train.csv"), tmp_path / "cmp", config, arms=arms, seeds=1, labels=(2,), **files)
    for cell in load_comparison(tmp_path / "cmp").runs:
        assert {len(row) for row in cell.probabilities} == {3}
        assert min(min(row) for row in cell.probabilities) == 0.0
