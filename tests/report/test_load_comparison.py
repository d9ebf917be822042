"""A comparison folder is read strictly, and missing runs are listed."""

import json
import subprocess
import sys

import pytest

from fixtures.comparison_folder import write_answers
from headstart.errors import StoreError, UsageError
from headstart.files import FORMAT, read_checksummed
from headstart.report.load import load_comparison
from headstart.store.records import read_record, record_path, write_record

ANSWERS = {
    "majority": {0: "1010"},
    "linear": {0: "1110"},
    "scratch": {0: "1100", 1: "1000"},
    "pretrained": {0: "1110", 1: "1100"},
}


@pytest.fixture
def folder(tmp_path):
    return write_answers(tmp_path / "books", ANSWERS)


def test_a_run_reads_back_as_it_was_written(folder, tmp_path):
    run = read_record(record_path(folder, "pretrained", "all", 1))
    assert run.predictions == (0, 1, 1, 0)
    assert read_record(write_record(tmp_path, run)) == run


def test_a_run_is_written_in_the_documented_format(folder):
    content = json.loads(record_path(folder, "linear", "all", 0).read_text())
    assert sorted(content) == [
        *("arm", "best_epoch", "epochs", "format", "labels", "predictions", "rows", "seal", "seconds", "seed"),
        *("setting", "test", "valid"),
    ]
    assert (content["format"], content["epochs"], content["best_epoch"]) == (FORMAT, [], None)
    content = read_checksummed(record_path(folder, "scratch", "all", 0))
    assert sorted(content["epochs"][0]) == [
        *("epoch", "seconds", "train_loss", "valid_accuracy", "valid_loss", "valid_macro_f1")
    ]


def test_arms_budgets_and_seeds_are_sorted(folder):
    write_answers(folder, {"pretrained": {0: "1110"}, "scratch": {0: "1110"}}, budget=100)
    write_answers(folder, {"pretrained": {0: "1110"}, "scratch": {0: "1110"}}, budget=20)
    comparison = load_comparison(folder)
    assert comparison.arms == ("majority", "linear", "scratch", "pretrained")
    assert comparison.budgets == (20, 100, "all")
    assert comparison.seeds == (0, 1)
    assert [run.seed for run in comparison.runs_of("pretrained", "all")] == [0, 1]


def test_a_finished_comparison_has_no_missing_runs(folder):
    assert load_comparison(folder).missing == ()


def test_a_missing_run_and_a_missing_arm_are_named(folder):
    record_path(folder, "scratch", "all", 1).unlink()
    record_path(folder, "linear", "all", 0).unlink()
    assert load_comparison(folder).missing == ("linear", "scratch with all labels, seed 1")


def test_a_planned_seed_that_no_arm_has_run_is_named(folder):
    (folder / "run.json").write_text('{"inputs": {"seeds": 3, "labels": [null]}}')
    assert load_comparison(folder).missing == (
        "scratch with all labels, seed 2",
        "pretrained with all labels, seed 2",
    )


def test_a_planned_number_of_labels_that_no_arm_has_run_is_named(folder):
    (folder / "run.json").write_text('{"inputs": {"labels": [null, 8], "arms": ["linear", "scratch"]}}')
    for seed in (0, 1):
        record_path(folder, "pretrained", "all", seed).unlink()
    assert load_comparison(folder).missing == (
        "majority with 8 labels, seed 0",
        "linear with 8 labels, seed 0",
        "scratch with 8 labels, seed 0",
        "scratch with 8 labels, seed 1",
    )


def test_an_arm_that_was_not_requested_is_not_missing(folder):
    record_path(folder, "linear", "all", 0).unlink()
    assert load_comparison(folder).missing == ("linear",)
    (folder / "run.json").write_text('{"inputs": {"arms": ["majority", "scratch", "pretrained"]}}')
    assert load_comparison(folder).missing == ()


def test_environment_and_command_are_read_if_present(folder):
    assert (load_comparison(folder).command, load_comparison(folder).environment) == (None, {})
    (folder / "run.json").write_text('{"command": "headstart compare a.csv"}')
    (folder / "environment.json").write_text('{"python": "3.11.2"}')
    assert load_comparison(folder).command == "headstart compare a.csv"
    assert load_comparison(folder).environment == {"python": "3.11.2"}


def refused(folder, error=StoreError):
    with pytest.raises(error) as caught:
        load_comparison(folder)
    return str(caught.value)


def test_a_missing_folder_is_a_usage_error(tmp_path):
    expected = f"{tmp_path / 'no'} is not a folder; expected one that `headstart compare` wrote"
    assert refused(tmp_path / "no", UsageError) == expected


def test_a_folder_that_is_not_a_comparison_is_refused(tmp_path):
    expected = f"{tmp_path} is not a comparison: it has no data.json; expected a folder that `headstart compare` wrote"
    assert refused(tmp_path) == expected


def test_a_comparison_without_a_finished_run_is_refused(folder):
    for path in (folder / "cells").iterdir():
        path.unlink()
    assert refused(folder) == f"{folder} has no finished run: there is no .json file in {folder / 'cells'}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: run.update(format=FORMAT + 1),
            f"{{path}} has format {FORMAT + 1}, this version of Headstart reads {FORMAT}; update Headstart, "
            "or run the comparison again",
        ),
        (
            lambda run: run["test"].update(accuracy=1.5),
            "{path} is damaged: test.accuracy: Input should be less than or equal to 1",
        ),
        (
            lambda run: run.update(seed="0"),
            "{path} is damaged: seed: Input should be a valid integer",
        ),
        (
            lambda run: run.update(colour="red"),
            "{path} is damaged: colour: Extra inputs are not permitted",
        ),
        (
            lambda run: run.pop("valid"),
            "{path} is damaged: valid: Field required",
        ),
        (
            lambda run: run["test"].pop("confusion"),
            "{path} is damaged: test has no confusion",
        ),
        (
            lambda run: run.update(best_epoch=9),
            "{path} is damaged: best_epoch 9 is none of its 2 epochs",
        ),
        (
            lambda run: run.update(seed=7),
            "{path} is damaged: it contains the run that belongs in scratch-all-seed7.json",
        ),
        (
            lambda run: run.update(predictions=[0, 1, 1]),
            "{path} belongs to another comparison: it has 3 predictions for 4 rows of test",
        ),
        (
            lambda run: run.update(predictions=[0, 1, 1, 2]),
            "{path} belongs to another comparison: it predicts label 2, where there are 2",
        ),
        (
            lambda run: run["test"].update(accuracy=0.75),
            "{path} belongs to another comparison: it records accuracy 0.7500, its predictions give 0.5000 on test.jsonl",
        ),
        (
            lambda run: run.update(predictions=[0, 1, 0, 1]),
            "{path} belongs to another comparison: it records accuracy 0.5000, its predictions give 1.0000 on test.jsonl",
        ),
    ],
)
def test_a_damaged_run_or_one_of_another_comparison_is_named_and_refused(folder, change, message):
    path = record_path(folder, "scratch", "all", 0)
    content = read_checksummed(path)  # edited by hand, without the checksum
    change(content)
    path.write_text(json.dumps(content))
    assert refused(folder) == message.format(path=path)


def test_a_truncated_run_is_named_and_refused(folder):
    path = record_path(folder, "scratch", "all", 0)
    path.write_text(path.read_text()[:40])
    assert refused(folder).startswith(f"{path} is damaged: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["test"].update(gold=[0, 1]), "test: test.gold has 2 labels for 4 rows"),
        (lambda data: data["test"].update(gold=[0, 1, 0, 5]), "test.gold has answer 5 of 2 labels"),
        (lambda data: data["test"].update(overlap=[4]), "test: test.overlap names row 4 of 4"),
        (lambda data: data["test"].update(near=[1, 5]), "test: test.near names row 5 of 4"),
        (lambda data: data["test"].update(lengths=[7]), "test: test.lengths has 1 lengths for 4 rows"),
    ],
)
def test_inconsistent_data_is_named_and_refused(folder, change, message):
    path = folder / "data.json"
    content = read_checksummed(path)  # edited by hand, without the checksum
    change(content)
    path.write_text(json.dumps(content))
    assert refused(folder) == f"{path} is damaged: {message}"


def test_a_report_is_made_without_torch(folder):
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; "
        "from headstart.report.page import write_report; write_report(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True)
    assert (folder / "report.html").is_file()
