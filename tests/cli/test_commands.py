"""The commands on tiny data, as a person would type them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.waiting import PATIENCE, wait_until

TINY = "--model.width 16 --model.depth 1 --model.feedforward 16 --model.context 32 --runtime.threads 1"


def test_a_tokenizer_is_trained_and_shown(typed, tmp_path):
    code, out, err = typed(f"tokenizer corpus.txt --vocab-size 280 --out {tmp_path / 'tok'}")
    assert (code, err) == (0, "")
    table = dict(line.rsplit("  ", 1) for line in out.splitlines())
    card = {name.strip(): value.strip() for name, value in table.items()}
    assert (card["entries"], card["measured on the first"]) == ("280", "200 documents")
    assert (tmp_path / "tok" / "tokenizer.json").is_file()


def test_a_tokenizer_smaller_than_requested_reports_its_size(typed, tmp_path):
    _, out, _ = typed(f"tokenizer train.csv --out {tmp_path / 'tok'}")
    match = re.search(r"^entries +(\d+) of 16,384 requested$", out, re.MULTILINE)
    assert match, out
    assert 260 < int(match[1]) < 500


def test_a_tokenizer_is_not_replaced(typed):
    code, _, err = typed("tokenizer corpus.txt --out tok")
    assert (code, err) == (2, "headstart: tok already contains a tokenizer; choose another --out\n")


def test_texts_are_prepared_once(typed, tmp_path):
    code, out, _ = typed(f"prepare corpus.txt --tokenizer tok --out {tmp_path / 'tokens'}")
    assert code == 0
    assert out.startswith(f"{tmp_path / 'tokens'}: 200 documents, ")
    _, again, err = typed(f"prepare corpus.txt --tokenizer tok --out {tmp_path / 'tokens'}")
    assert again == out
    assert "is up to date" in err


def test_prepare_keeps_labels_with_the_labelled_flag(typed, tmp_path):
    code, out, _ = typed(f"prepare train.csv --labelled --tokenizer tok --out {tmp_path / 'tokens'}")
    assert code == 0
    assert out.endswith(", 2 labels\n")


def test_a_run_records_what_was_typed(trained):
    facts = json.loads((trained / "base" / "run.json").read_text())
    assert facts["inputs"]["texts"] == ["corpus.txt"]
    config = json.loads((trained / "base" / "config.json").read_text())
    assert (config["model"]["width"], config["loop"]["batch_size"]) == (16, 16)


def test_the_command_line_is_kept_with_the_run(typed, tmp_path):
    line = (
        f"pretrain corpus.txt --tokenizer tok --out {tmp_path / 'run'} --loop.steps 2 --loop.prompt 'the film' {TINY}"
    )
    assert typed(line)[0] == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"] == f"headstart {line}"


def test_a_folder_that_holds_a_run_is_not_written_over(typed):
    code, _, err = typed(f"pretrain corpus.txt --out base {TINY}")
    assert (code, err) == (
        2,
        "headstart: base already contains a run; continue it with --resume, or choose another --out\n",
    )


def test_resuming_takes_the_same_texts_or_none_and_no_others(typed):
    assert typed("pretrain --resume --out base")[0] == 0
    assert typed("pretrain corpus.txt --resume --out base")[0] == 0
    code, _, err = typed("pretrain train.csv --resume --out base")
    assert (code, err) == (2, "headstart: --resume uses the recorded files of base, corpus.txt; got train.csv\n")
    code, _, err = typed("finetune test.csv --resume --out clf")
    assert (code, err) == (2, "headstart: --resume uses the recorded files of clf, train.csv; got test.csv\n")


def test_a_classifier_is_trained_from_scratch(typed, tmp_path):
    code, out, err = typed(
        f"finetune train.csv --from scratch --tokenizer tok --out {tmp_path / 'clf'} --loop.epochs 1 {TINY}"
    )
    assert (code, out) == (0, "")
    *_, epoch, quality = err.splitlines()
    assert epoch.startswith("best epoch 1 by validation, accuracy ")
    assert re.match(
        r"validation accuracy \d\.\d{4}; always predicting '\w+' gives \d\.\d{4}, a linear model trained on the same rows",
        quality,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pretrain else/a.txt --out x", "no such file: else/a.txt (there is no folder else)"),
        ("finetune else/a.csv --from base --out x", "no such file: else/a.csv (there is no folder else)"),
        ("finetune train.csv --from runs/no --out x", "no such folder: runs/no"),
        (
            "finetune train.csv --valid else/a.csv --from base --out x",
            "no such file: else/a.csv (there is no folder else)",
        ),
        (
            "finetune train.csv --from scratch --tokenizer tac --out x",
            "tac does not exist; expected a tokenizer, or a folder that holds one",
        ),
        (
            "compare train.csv --test test.csv --out x",
            "compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without pretrained",
        ),
        (
            "compare train.csv --test test.csv --from base,base --out x",
            "--from lists base twice; list each folder once",
        ),
        (
            "compare train.csv --test test.csv --from base --from ./base --out x",
            "--from lists base twice; list each folder once",
        ),
        ("compare train.csv --test test.csv --from base --from no --out x", "no such folder: no"),
        (
            "compare train.csv --test test.csv --arms frozen --out x",
            "compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without frozen",
        ),
        (
            "compare train.csv --test test.csv --from base --choose --loop.watch-test --out x",
            "--choose and --loop.watch-test cannot be combined: test data may not influence the choice",
        ),
        ("evaluate runs/no test.csv", "no such folder: runs/no"),
        ("evaluate clf else/a.csv", "no such file: else/a.csv (there is no folder else)"),
        (
            "evaluate base test.csv",
            "base contains a language model (from headstart pretrain); this command needs a classifier (from "
            "headstart finetune)",
        ),
        ("predict runs/no hello", "no such folder: runs/no"),
        ("predict clf --input else/a.csv", "no such file: else/a.csv (there is no folder else)"),
        (
            "predict clf --input train.csv --text-column txt",
            "train.csv has no column 'txt'; its columns are text, label; did you mean 'text'?",
        ),
        (
            "predict clf --input train.csv --out train.csv",
            "--out train.csv would overwrite the file of --input; choose another --out",
        ),
        ("predict clf --input base", "--input must be a file, got the folder base"),
        ("pretrain base --out x", "base is a Headstart run folder, not text; use the text files"),
        (
            "finetune corpus.txt --from base --out x",
            "corpus.txt: a .txt file has no labels; use a csv, tsv, jsonl or parquet file with a label column",
        ),
        ("demo --data no --out x", "no such folder: no; the demo needs a folder with a labelled train.csv"),
        ("generate runs/no hello", "no such folder: runs/no"),
        ("generate base hello --tokens 0", "--tokens must be at least 1, got 0"),
        ("generate base hello --top-p 2", "--top-p must be above 0 and at most 1, got 2.0"),
    ],
)
def test_a_missing_file_is_named_as_it_was_typed(typed, line, expected, tmp_path):
    code, out, err = typed(line.replace("--out x", f"--out {tmp_path / 'x'}"))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"headstart: {expected}"


def test_a_named_pipe_is_refused_and_not_waited_for(typed, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    code, out, err = typed(f"predict clf --input {tmp_path / 'pipe.csv'}")
    assert (code, out) == (2, "")
    assert err == f"headstart: --input must be a regular file, got {tmp_path / 'pipe.csv'}\n"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("finetune marks.csv --from base --out x", "--labelled.label-column"),
        ("compare marks.csv --test test.csv --from base --out x", "--labelled.label-column"),
        ("prepare marks.csv --labelled --tokenizer tok --out x", "--labelled.label-column"),
        ("evaluate clf marks.csv", "--label-column"),
        ("finetune words.csv --from base --out x", "--labelled.text-column"),
        ("evaluate clf words.csv", "--text-column"),
        ("predict clf --input words.csv", "--text-column"),
        ("pretrain words.csv --out x", "--corpus.text-column"),
        ("tokenizer words.csv --out x", "--text-column"),
    ],
)
def test_an_ambiguous_column_error_names_the_option_of_the_command(typed, tmp_path, line, option):
    for name, header in (("marks.csv", "text,mark"), ("words.csv", "words,label")):
        (tmp_path / name).write_text(f"{header}\nfine,1\ndull,0\n")
    what = "label" if "marks" in line else "text"
    name, columns = ("marks.csv", "text, mark") if "marks" in line else ("words.csv", "words, label")
    code, _, err = typed(line.replace("--out x", f"--out {tmp_path / 'x'}").replace(name, str(tmp_path / name)))
    assert code == 2
    assert err.splitlines()[-1] == (
        f"headstart: {tmp_path / name} has no column with a common name for the {what}; its columns are {columns}; "
        f"name one with {option}"
    )


def test_evaluation_is_shown_as_tables(typed):
    code, out, _ = typed("evaluate clf test.csv")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("accuracy 0.")
    assert lines[0].endswith("rows 20")
    assert [line.split()[0] for line in lines if line] == [
        "accuracy",
        "class",
        "negative",
        "positive",
        "true",
        "negative",
        "positive",
        "always",
    ]
    assert re.match(r"always predicting '\w+' gives 0\.\d{4}: ", lines[-1])


def test_evaluation_is_printed_for_programs(typed):
    code, out, _ = typed("evaluate clf test.csv --json")
    figures = json.loads(out)
    assert code == 0
    assert figures["rows"] == sum(map(sum, figures["confusion"])) == 20
    assert figures["labels"] == ["negative", "positive"]


def test_a_language_model_goes_on_from_a_prompt(typed):
    _, greedy, _ = typed("generate base 'the film' --tokens 5")
    _, slow, _ = typed("generate base 'the film' --tokens 5 --no-cache")
    assert greedy.startswith("the film")
    assert greedy == slow
    _, drawn, _ = typed("generate base 'the film' --tokens 5 --temperature 1 --samples 2 --top-k 50 --top-p 0.9")
    assert [sample.startswith("the film") for sample in drawn.split("---\n")] == [True, True]


def test_parameters_are_counted_as_published(typed):
    code, out, err = typed("params --preset classic --vocab-size 50001")
    totals = [line.split()[-1] for line in out.splitlines() if line.startswith("total ")]
    assert (code, err, totals) == (0, "", ["21,018,401", "10,968,602"])


def test_parameters_are_printed_for_programs(typed):
    _, out, _ = typed("params --vocab-size 50001 --convention weights-only --json")
    language, classifier = json.loads(out)
    assert (language["total"], classifier["total"]) == (20_960_400, 10_960_600)
    assert sum(row["count"] for row in language["excluded"]) == 21_018_401 - 20_960_400


def test_the_file_in_the_folder_is_read_by_every_command(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("headstart.toml").write_text("[model]\nwidth = 16\n[pretrain.loop]\nepochs = 2.0\n")
    _, out, _ = typed("params --vocab-size 300")
    assert out.startswith("V = 300 vocabulary, d = 16 width, ")


@pytest.mark.slow
def test_a_comparison_ends_in_words_a_table_and_a_page(typed, tmp_path):
    folder = tmp_path / "cmp"
    code, out, _ = typed(
        f"compare train.csv --test test.csv --from base --seeds 2 --labels 10,all --out {folder} "
        "--loop.epochs 1 --runtime.threads 1"
    )
    assert code == 0
    header = next(line for line in out.splitlines() if line.startswith("arm "))
    assert re.split(r"  +", header) == ["arm", "labels", "accuracy", "95 % interval", "macro-F1", "seeds"]
    assert out.endswith(f"report: {folder / 'report.html'}\n")
    assert (folder / "report.html").is_file()
    assert typed(f"report {folder}") == (0, out, "")
    assert (folder / "quotes.json").is_file()
    assert typed(f"compare --resume --out {folder}")[:2] == (0, out)


def test_a_report_may_go_elsewhere_and_needs_no_torch(typed, environment, tmp_path):
    folder = tmp_path / "cmp"
    line = f"compare train.csv --test test.csv --seeds 1 --arms majority,linear --from base --out {folder} --quiet"
    code, _, err = typed(line)
    assert (code, err) == (0, "")
    code = (
        "import sys; sys.modules['torch'] = None; from headstart.cli.main import run; "
        "sys.exit(run(['report', 'cmp', '--out', 'page']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page" / "report.html").is_file()


def test_a_report_prints_its_numbers_for_programs(typed, tmp_path):
    folder = tmp_path / "cmp"
    line = f"compare train.csv --test test.csv --seeds 1 --arms majority,linear --from base --out {folder} --quiet"
    assert typed(f"{line} --no-texts")[0] == 0
    code, out, err = typed(f"report {folder} --json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((folder / "results.json").read_text())
    assert json.loads(out)["arms"][1]["arm"] == "linear"


def test_no_texts_is_refused_for_a_resumed_comparison(typed, tmp_path):
    _, _, err = typed(f"compare --resume --no-texts --out {tmp_path}")
    assert err == f"headstart: --resume uses the recorded settings of {tmp_path}; remove --no-texts\n"


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on_and_does(trained, environment, tmp_path):
    texts, tok = trained / "corpus.txt", trained / "tok"
    begun = f"pretrain {texts} --tokenizer {tok} --out run --loop.steps 100000 {TINY}"
    first = stopped_on_the_way(begun, signal.SIGTERM, environment, tmp_path)
    again = stopped_on_the_way("pretrain --resume --out run", signal.SIGINT, environment, tmp_path)
    steps = []
    for name, line in (("SIGTERM", first), ("Ctrl-C", again)):
        match = re.fullmatch(
            rf"headstart: {name} at step (\d+) of 100000; saved\. Continue with: headstart pretrain --resume --out run",
            line,
        )
        assert match, line
        steps.append(int(match[1]))
    assert 0 < steps[0] < steps[1]


def stopped_on_the_way(line: str, number: signal.Signals, environment: dict[str, str], folder: Path) -> str:
    """Start a run, signal it once it has written some more metrics, and return the last line it says."""
    metrics = folder / "run" / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "headstart", *line.split()],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > before + 1000, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    return stderr.splitlines()[-1]
