"""labelled.skip_empty: training reports the rows it skips and skips the same ones when it is resumed."""

import csv
import tomllib

import pytest

from fixtures.recipes import finetune_run
from fixtures.tiny import Listener, change_runtime, finetune_config, write_reviews
from headstart.config.schema import LabelledConfig, TokenizerConfig
from headstart.errors import DataError, Interrupted
from headstart.files import read_json
from headstart.progress import SilentProgress
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.evaluate import EvaluateRequest, run_error_analysis, run_evaluate
from headstart.recipes.prepare import run_prepare_labelled
from headstart.recipes.tune import TuneRequest, run_tune
from headstart.tokenization.bpe import train_tokenizer

SKIP = {"labelled__skip_empty": True, "loop__epochs": 1}


@pytest.fixture
def mails(tmp_path, monkeypatch):
    """train.csv has 30 rows without a label and 2 without a text; test.csv has one row without a label."""
    monkeypatch.chdir(write_reviews(tmp_path))
    add("train.csv", [(f"a letter {number}", "") for number in range(30)] + [("", "positive"), (" ", "")])
    add("test.csv", [("a letter", "")])


def add(name, rows):
    with open(name, "a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


NOTES = [
    "30 rows of train.csv have no label, 2 no text; they are skipped",
    "1 row of test.csv has no label; it is skipped",
]


@pytest.mark.usefixtures("mails")
def test_a_run_reports_and_records_skipped_rows(tmp_path):
    listener = Listener()
    config = finetune_config(**SKIP)
    run = finetune_run("train.csv", tmp_path / "run", config, backbone="scratch", test="test.csv", progress=listener)
    assert [line for line in listener.lines if "skipped" in line] == NOTES
    result = read_json(run.path / "result.json")
    assert result["notes"][:2] == NOTES
    assert {name: part["rows"] for name, part in result["data"].items()} == {"train": 38, "valid": 10, "test": 24}


@pytest.mark.usefixtures("mails")
def test_without_the_setting_the_first_empty_row_stops_training(tmp_path):
    with pytest.raises(DataError) as caught:
        finetune_run("train.csv", tmp_path / "run", finetune_config(), backbone="scratch")
    assert str(caught.value) == (
        "train.csv, row 49: the label is empty; give the row a label, remove it, or skip such rows with "
        "labelled.skip_empty"
    )


@pytest.mark.usefixtures("mails")
def test_a_resumed_run_skips_the_same_rows(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        finetune_run("train.csv", out, finetune_config(**SKIP, runtime__time_limit=1e-6), backbone="scratch")
    assert read_json(out / "config.json")["labelled"]["skip_empty"] is True
    change_runtime(out, time_limit=None)
    finetune_run(None, out, None, resume=True)
    assert read_json(out / "result.json")["notes"][0] == NOTES[0]


@pytest.mark.usefixtures("mails")
def test_a_comparison_notes_skipped_rows_for_its_report(tmp_path):
    request = CompareRequest(
        train="train.csv", out=tmp_path / "cmp", test="test.csv", seeds=1, arms=("majority", "linear")
    )
    run_compare(request, finetune_config(**SKIP))
    assert read_json(tmp_path / "cmp" / "data.json")["notes"][:2] == NOTES
    assert NOTES[0] in (tmp_path / "cmp" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("mails")
def test_evaluation_skips_empty_rows_and_slices_the_others(tmp_path):
    config = finetune_config(**SKIP)
    run = finetune_run("train.csv", tmp_path / "run", config, backbone="scratch")
    listener = Listener()
    assert run_evaluate(EvaluateRequest(run.path, "test.csv", config.labelled), listener).rows == 24
    assert [line for line in listener.lines if "skipped" in line] == [NOTES[1]]
    request = EvaluateRequest(run.path, "test.csv", config.labelled, columns=["label"], mistakes=0)
    analysis = run_error_analysis(request)
    assert {one.name: one.rows for one in analysis.slices["column label"]} == {"negative": 12, "positive": 12}
    with pytest.raises(DataError, match="the label is empty"):
        run_evaluate(EvaluateRequest(run.path, "test.csv"))


@pytest.mark.usefixtures("mails")
def test_a_search_records_the_setting_to_skip_empty_rows(tmp_path):
    pytest.importorskip("optuna", reason="needs the extra tune")
    listener = Listener()
    config = finetune_config(**SKIP)
    tuned = run_tune(
        TuneRequest(train="train.csv", out=tmp_path / "tuned", backbone="scratch", trials=1), config, listener
    )
    assert [line for line in listener.lines if "skipped" in line] == NOTES[:1]
    assert tomllib.loads(tuned.toml.read_text(encoding="utf-8"))["labelled"] == {"skip_empty": True}


@pytest.mark.usefixtures("mails")
def test_labelled_shards_are_prepared_again_if_empty_rows_are_skipped(tmp_path):
    tokenizer = train_tokenizer(["a film and a letter"] * 9, TokenizerConfig(vocab_size=270), SilentProgress())
    full = LabelledConfig()
    with pytest.raises(DataError, match="the label is empty"):
        run_prepare_labelled("train.csv", tmp_path / "shards", full, tokenizer=tokenizer, progress=SilentProgress())
    listener = Listener()
    skip = LabelledConfig(skip_empty=True)
    shards = run_prepare_labelled("train.csv", tmp_path / "shards", skip, tokenizer=tokenizer, progress=listener)
    assert (shards.num_documents, listener.lines[0]) == (48, NOTES[0])
