"""Every arm of a comparison has the same rows and seeds; a comparison resumes anywhere, and repeats no run."""

import csv
import json
import shutil
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import Listener, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.data.labelled import read_labelled
from headstart.errors import ConfigError, StoreError, UsageError
from headstart.files import read_json
from headstart.predict.predictor import Predictor
from headstart.progress import SilentProgress
from headstart.recipes.compare.arms import backbone_names, expand_arms
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.prepare import run_prepare_labelled
from headstart.report.error_tables import error_tables
from headstart.report.load import load_comparison
from headstart.store.bundle import load_bundle
from headstart.store.records import RunRecord, read_record

ARMS = ("majority", "linear", "naive_bayes", "nbsvm", "scratch", "frozen", "pretrained")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Labelled reviews, and two language models of other shapes and vocabularies."""
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    text = [str(folder / "texts.txt")]
    pretrain_run(text, folder / "small", pretrain_config(loop__steps=3))
    other = {"model__width": 24, "tokenizer__vocab_size": 280}
    pretrain_run(text, folder / "other", pretrain_config(loop__steps=3, **other))
    return folder


def compare(reviews, out, *backbones, config=None, progress=None, **options):
    files = {name: str(reviews / f"{name}.csv") for name in ("train", "valid", "test")}
    paths = tuple(str(reviews / name) for name in backbones)
    request = CompareRequest(**{"out": out, "backbones": paths, **files, **options})
    return run_compare(request, config or finetune_config(loop__epochs=1), progress)


def resume(out, progress=None):
    return run_compare(CompareRequest(out=out, resume=True), None, progress)


@pytest.fixture(scope="module")
def two(reviews):
    """Both models, every arm, two seeds, few labels and all of them."""
    listener = Listener()
    out = reviews / "two"
    compare(reviews, out, "small", "other", arms=ARMS, seeds=2, label_budgets=(12, None), progress=listener)
    return out, listener.lines


def test_each_of_several_pretrained_folders_is_an_arm(two):
    comparison = load_comparison(two[0])
    linear, networks = ARMS[:4], ["scratch", *(f"{arm}:{name}" for arm in ARMS[5:] for name in ("other", "small"))]
    assert comparison.arms == ("majority", "naive_bayes", "nbsvm", "linear", *networks)
    assert comparison.missing == ()
    assert len(comparison.runs) == 3 * len(linear) + 4 * len(networks)
    assert sorted(path.name for path in two[0].glob("receipt*.json")) == ["receipt-other.json", "receipt.json"]
    assert read_json(two[0] / "receipt.json")["source"].endswith("small")


def test_folders_of_other_shapes_and_tokenizers_are_noted(reviews, two):
    note = (
        f"{reviews / 'other'} has another shape and tokenizer than {reviews / 'small'}, which scratch uses: "
        "the difference from scratch is not due to pretraining alone"
    )
    assert note in two[1]
    assert note in read_json(two[0] / "data.json")["notes"]


def test_a_comparison_within_minutes_notes_it(reviews, tmp_path):
    listener, config = Listener(), finetune_config(loop__epochs=1, loop__minutes=0.5)
    compare(reviews, tmp_path / "cmp", "small", config=config, arms=("pretrained",), seeds=1, progress=listener)
    note = (
        "the first network of each seed was trained for 0.5 minutes (--minutes), which may be too short to learn "
        "anything; the other networks of the seed were trained for the same number of steps"
    )
    assert note in listener.lines
    assert note in read_json(tmp_path / "cmp" / "data.json")["notes"]


@pytest.mark.parametrize("arm", ["frozen", "pretrained"])
def test_a_run_of_one_folder_among_several_equals_its_fine_tuning(reviews, two, tmp_path, arm):
    """It has the tokenizer, shape and weights of its folder, whichever folder came first."""
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    frozen = {"transfer__freeze": True, "optim__lr": 5e-2} if arm == "frozen" else {}
    config = finetune_config(loop__epochs=1, runtime__seed=1, **frozen)
    run = finetune_run(str(reviews / "train.csv"), tmp_path / "run", config, backbone=str(reviews / "other"), **files)
    record, result = read_record(two[0] / "cells" / f"{arm}@other-all-seed1.json"), read_json(run.path / "result.json")
    assert (record.valid.accuracy, record.epochs[0].valid_loss) == (
        result["valid"]["accuracy"],
        run.metrics.read("epoch")[0]["valid_loss"],
    )
    assert [list(row) for row in record.test.confusion] == result["test"]["confusion"]
    assert record.setting["lr"] == config.optim.lr
    assert record.setting.get("freeze", False) == (arm == "frozen")


def test_every_record_has_the_probabilities_of_test_and_validation(two):
    data = read_json(two[0] / "data.json")
    for record in load_comparison(two[0]).runs:
        assert len(record.probabilities) == data["test"]["rows"]
        assert len(record.valid_probabilities) == len(data["valid"]["gold"])
        accuracy = np.mean((np.array(record.valid_probabilities) > 0.5) == data["valid"]["gold"])
        assert accuracy == pytest.approx(record.valid.accuracy)


def test_only_excerpts_of_the_listed_mistakes_are_saved(reviews, two):
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


def test_without_quote_texts_no_file_contains_a_text(reviews, tmp_path):
    arms = ("majority", "scratch")
    for out, quote_texts in (("with", True), ("without", False)):
        compare(reviews, tmp_path / out, arms=arms, seeds=1, quote_texts=quote_texts)
    quotes = load_comparison(tmp_path / "with").excerpts  # control: the same runs have mistakes to quote
    assert quotes
    assert (
        error_tables(load_comparison(tmp_path / "without")).mistakes
        == error_tables(load_comparison(tmp_path / "with")).mistakes
    )
    for path in (tmp_path / "without").rglob("*.*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [text for text in quotes.values() if text.encode() in content], path


def test_the_table_of_runs_shows_every_run_also_when_resumed(reviews, tmp_path):
    options = {"arms": ("majority", "linear", "scratch"), "seeds": 2, "label_budgets": (12, None)}
    planned = {(arm, budget): 2 for budget in ("12", "all") for arm in options["arms"]}
    planned |= {("majority", "all"): 1, ("linear", "all"): 1}
    first = RecordedProgress()
    compare(reviews, tmp_path / "cmp", progress=first, **options)
    assert first.planned == planned
    assert first.started == first.added
    assert Counter(first.added) == planned
    (tmp_path / "cmp" / "result.json").unlink()
    resumed = RecordedProgress()
    resume(tmp_path / "cmp", resumed)
    assert (resumed.added, resumed.values) == (first.added, first.values)  # finished runs count, too


class RecordedProgress(SilentProgress):
    """Records what its table of runs receives."""

    def __init__(self):
        self.started, self.added, self.values = [], [], []

    @contextmanager
    def board(self, title, planned):
        self.planned = dict(planned)
        yield self

    def start(self, row_and_column):
        self.started.append(row_and_column)

    def add(self, row_and_column, value):
        self.added.append(row_and_column)
        self.values.append(value)


def test_arms_of_a_seed_learn_from_the_same_rows_in_any_order_of_the_file(reviews, two):
    lines = (reviews / "train.csv").read_text().splitlines()
    moved = reviews / "moved"
    moved.mkdir()
    (moved / "train.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    arms = ("linear", "nbsvm")
    config = finetune_config()
    request = CompareRequest(
        train=str(moved / "train.csv"), out=moved / "cmp", arms=arms, seeds=2, label_budgets=(12,), **files
    )
    run_compare(request, config)
    for arm in arms:
        records = [json.loads((out / "cells" / f"{arm}-12-seed1.json").read_text()) for out in (two[0], moved / "cmp")]
        assert records[0]["probabilities"] == pytest.approx(records[1]["probabilities"], abs=2e-4)


def test_a_copied_comparison_resumes_from_its_records_alone(reviews, two, tmp_path):
    """It is copied without weights, and with records missing at the start, in the middle and at the end."""
    out = tmp_path / "elsewhere"
    shutil.copytree(two[0], out, ignore=shutil.ignore_patterns("work", "result.json", "report.html", "figures"))
    lost = ["majority-12-seed0", "pretrained@small-12-seed1", "frozen@other-all-seed1", "linear-all-seed0"]
    before = {path.stem: path.read_bytes() for path in (out / "cells").iterdir()}
    for name in lost:
        (out / "cells" / f"{name}.json").unlink()
    assert resume(out) == out / "report.html"
    after = {path.stem: path.read_bytes() for path in (out / "cells").iterdir()}
    assert [name for name in sorted(before) if before[name] != after[name]] == sorted(lost)  # their seconds at least
    for name in lost:
        original, repeated = ({**json.loads(records[name]), "seconds": 0, "seal": ""} for records in (before, after))
        for record in (original, repeated):
            for epoch in record["epochs"]:
                epoch["seconds"] = 0
        assert original == repeated


def test_a_run_that_another_machine_finished_meanwhile_is_not_repeated(reviews, tmp_path):
    options = {"arms": ("majority", "linear"), "seeds": 2, "label_budgets": (12,)}
    compare(reviews, tmp_path / "there", **options)
    first, last = ("linear-12-seed0.json", "linear-12-seed1.json")

    class CopiesARecord(SilentProgress):
        def say(self, line):
            if line.startswith("majority, 12 labels, seed 0"):
                shutil.copy(tmp_path / "there" / "cells" / last, tmp_path / "here" / "cells" / last)

    compare(reviews, tmp_path / "here", progress=CopiesARecord(), **options)
    ours, theirs = (
        {name: (tmp_path / out / "cells" / name).read_bytes() for name in (first, last)} for out in ("here", "there")
    )
    assert ours[last] == theirs[last]
    assert ours[first] != theirs[first]  # control: another run takes another time


def test_a_damaged_record_is_named_before_any_run_begins(two, tmp_path):
    out = tmp_path / "cmp"
    shutil.copytree(two[0], out, ignore=shutil.ignore_patterns("result.json"))
    path = out / "cells" / "majority-12-seed0.json"
    path.write_text(path.read_text()[:100])
    (out / "cells" / "linear-all-seed0.json").unlink()
    with pytest.raises(StoreError) as caught:
        resume(out)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert str(caught.value).endswith("; delete the file and use --resume to repeat that run")
    assert not (out / "cells" / "linear-all-seed0.json").exists()


def test_a_comparison_does_not_resume_with_another_model_under_the_same_name(reviews, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(reviews / "small", base)
    files = {name: str(reviews / f"{name}.csv") for name in ("valid", "test")}
    config, arms = finetune_config(loop__epochs=1), ("majority", "pretrained")
    out = tmp_path / "cmp"
    run_compare(
        CompareRequest(train=str(reviews / "train.csv"), out=out, backbones=(str(base),), arms=arms, seeds=1, **files),
        config,
    )
    (out / "result.json").unlink()
    resume(out)  # control
    (out / "result.json").unlink()
    shutil.rmtree(base)
    pretrain_run([str(reviews / "texts.txt")], base, pretrain_config(loop__steps=4))
    with pytest.raises(UsageError) as caught:
        resume(out)
    assert str(caught.value) == f"{base} is not what {out} was started with; restore it, or start another run"


def test_with_choose_validation_chooses_the_learning_rate_and_test_does_not(reviews, tmp_path):
    (tmp_path / "flipped.csv").write_text(
        (reviews / "test.csv")
        .read_text()
        .replace("positive", "?")
        .replace("negative", "positive")
        .replace("?", "negative")
    )
    config = finetune_config(loop__epochs=2, optim__lr=1e-4)
    records = []
    for name, test in (("cmp", reviews / "test.csv"), ("other", tmp_path / "flipped.csv")):
        arms = ("scratch", "frozen")
        compare(reviews, tmp_path / name, "small", config=config, seeds=1, arms=arms, choose=True, test=str(test))
        records.append([read_record(tmp_path / name / "cells" / f"{arm}-all-seed0.json") for arm in arms])
    for record, flipped in zip(*records, strict=True):
        rates = [candidate["lr"] for candidate in record.tried]
        assert rates == pytest.approx([rates[0], 3 * rates[0]])
        best = max(record.tried, key=lambda candidate: (candidate["valid_accuracy"], -candidate["valid_loss"]))
        assert (record.setting["lr"], record.valid.accuracy) == (best["lr"], best["valid_accuracy"])
        assert (record.setting, record.tried, record.predictions) == (
            flipped.setting,
            flipped.tried,
            flipped.predictions,
        )
        assert record.test.accuracy == pytest.approx(1 - flipped.test.accuracy)  # control: labels were flipped
    assert records[0][1].tried[0]["lr"] == pytest.approx(10 * records[0][0].tried[0]["lr"])
    assert not (tmp_path / "cmp" / "work").exists()


def test_the_probabilities_of_a_network_are_those_of_the_fine_tuned_classifier(reviews, tmp_path):
    """The temperature is equal too: validation has enough rows to fit one."""
    files = {"valid": str(tmp_path / "valid.csv"), "test": str(reviews / "test.csv")}
    rows = [(reviews / f"{name}.csv").read_text().splitlines() for name in ("valid", "train")]
    (tmp_path / "valid.csv").write_text("\n".join([*rows[0], *rows[1][1:]]) + "\n")
    train, config, source = str(reviews / "train.csv"), finetune_config(loop__epochs=4), str(reviews / "small")
    request = CompareRequest(
        train=train, out=tmp_path / "cmp", backbones=(source,), arms=("pretrained",), seeds=1, **files
    )
    run_compare(request, config)
    run = finetune_run(train, tmp_path / "run", config, backbone=source, **files)
    record = read_record(tmp_path / "cmp" / "cells" / "pretrained-all-seed0.json")
    assert record.temperature == read_json(run.path / "result.json")["temperature"] != 1.0
    texts = read_labelled(files["test"], LabelledConfig()).texts
    predictions = Predictor.load(run.path, RuntimeConfig(threads=1)).predict(texts)
    expected = [prediction.probabilities["positive"] for prediction in predictions]
    assert record.probabilities == pytest.approx(expected, abs=1e-4)


def test_a_comparison_without_networks_counts_its_runs(reviews, tmp_path):
    totals = []

    @contextmanager
    def task(name, total, unit):
        totals.append((name, total, unit))
        with SilentProgress().task(name, total, unit) as bar:
            yield bar

    listener = Listener()
    listener.task = task
    compare(reviews, tmp_path / "cmp", arms=("majority", "naive_bayes"), progress=listener, seeds=1)
    assert ("comparing", 2.0, "runs") in totals


def test_choosing_while_watching_test_is_refused(reviews, tmp_path):
    with pytest.raises(ConfigError) as caught:
        compare(reviews, tmp_path / "cmp", "small", choose=True, config=finetune_config(loop__watch_test=True))
    assert (
        str(caught.value) == "--choose and loop.watch_test cannot be combined: test data may not influence the choice"
    )


def test_prepared_rows_are_not_compared_with_another_tokenizer(reviews, tmp_path):
    shards = tmp_path / "shards"
    run_prepare_labelled(
        str(reviews / "train.csv"), shards, LabelledConfig(), tokenizer=reviews / "small", progress=SilentProgress()
    )
    backbones = tuple(str(reviews / name) for name in ("small", "other"))
    request = CompareRequest(
        train=str(shards), out=tmp_path / "cmp", backbones=backbones, test=str(reviews / "test.csv")
    )
    with pytest.raises(UsageError) as caught:
        run_compare(request, finetune_config())
    assert str(caught.value) == (
        f"{shards} was prepared with another tokenizer than {reviews / 'other'}'s; use the original file"
    )
    assert not (tmp_path / "cmp").exists()


def test_folders_are_named_by_the_shortest_unique_end_of_their_paths():
    assert backbone_names(["runs/base"]) == ("base",)
    assert backbone_names(["a/x/base", "b/x/base"]) == ("a-x-base", "b-x-base")
    assert backbone_names(["a/été 1", "a/b"]) == ("t_1", "b")
    assert expand_arms(("pretrained", "pretrained", "linear"), ["one"]) == ("pretrained", "linear")
    with pytest.raises(UsageError) as caught:
        backbone_names(["runs/base", "runs/../runs/base"])
    assert str(caught.value) == "--from lists runs/base twice; list each folder once"


def run_record(**changed):
    values = {
        "arm": "linear",
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
    return RunRecord.model_validate(values | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"probabilities": [0.7]}, "probabilities are 1 for 2 predictions"),
        ({"probabilities": [0.7, 0.7]}, "the prediction 0 is not the most likely of the probabilities 0.7"),
        (
            {"valid_probabilities": [[0.2, 0.3, 0.5]]},
            "valid_probabilities holds (0.2, 0.3, 0.5), which does not sum to 1 over 2 labels",
        ),
        (
            {"probabilities": [[0.2, 0.7], [0.9, 0.1]]},
            "probabilities holds (0.2, 0.7), which does not sum to 1 over 2 labels",
        ),
    ],
)
def test_a_record_with_inconsistent_probabilities_is_refused(changed, message):
    assert run_record(probabilities=[0.7, 0.5]).probabilities == (0.7, 0.5)  # control; a tie may be either label
    with pytest.raises(ValueError) as caught:
        run_record(**changed)
    assert message in str(caught.value)


def test_labels_that_a_subset_lacks_have_probability_zero(reviews, tmp_path):
    texts = read_labelled(str(reviews / "train.csv"), LabelledConfig())
    rows = [f"{text},{label}" for text, label in zip(texts.texts, texts.labels, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows, "the film a,odd", "the film b,odd"]) + "\n")
    files = {"valid": str(reviews / "valid.csv"), "test": str(reviews / "test.csv")}
    arms = ("majority", "linear", "nbsvm", "naive_bayes")
    config = finetune_config()
    train = str(tmp_path / "train.csv")
    run_compare(
        CompareRequest(train=train, out=tmp_path / "cmp", arms=arms, seeds=1, label_budgets=(2,), **files), config
    )
    for record in load_comparison(tmp_path / "cmp").runs:
        assert {len(row) for row in record.probabilities} == {3}
        assert min(min(row) for row in record.probabilities) == 0.0
