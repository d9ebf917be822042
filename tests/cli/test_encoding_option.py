"""A table in Shift-JIS through the commands: refused with a remedy, read with it, and remembered."""

import io
import json
import sys

import pytest

GOOD, BAD = "とても面白い本でした", "退屈で読むのをやめた"
ROWS = [f"{GOOD if row % 2 else BAD} {row},{'よい' if row % 2 else 'わるい'}" for row in range(40)]
TABLE = "text,label\r\n" + "".join(row + "\r\n" for row in ROWS)
ADVICE = "add --encoding cp932, or save the spreadsheet as CSV UTF-8"
TINY = "--model.width 16 --model.depth 1 --model.feedforward 16 --model.context 16 --runtime.threads 1 -q"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    (folder / "train.csv").write_bytes(TABLE.encode("cp932"))
    (folder / "utf8.csv").write_bytes(TABLE.encode("utf-8-sig"))
    (folder / "texts.txt").write_bytes("\n".join(row.split(",")[0] for row in ROWS).encode("cp932"))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "finetune {}/train.csv --from scratch --out {}/no",
        "compare {}/train.csv --test {}/utf8.csv --from base --out {}/no",
        "auto {}/train.csv --from none --out {}/no",
        "tune {}/train.csv --from scratch --trials 1 --out {}/no",
        "evaluate clf {}/train.csv",
        "predict clf --input {}/train.csv",
        "inspect {}/train.csv",
        "inspect train.csv --texts {}/train.csv --corpus.text-column text",
        "prepare {}/train.csv --labelled --tokenizer tok --out {}/no",
        "prepare {}/train.csv --out {}/no",
        "tokenizer {}/train.csv --out {}/no",
        "pretrain {}/train.csv --out {}/no",
    ],
)
def test_every_command_names_the_option_that_reads_the_file(typed, tables, line):
    code, _, err = typed(line.replace("{}", str(tables)) + " -q")
    assert code == 2
    message = err.splitlines()[-1]
    assert "it looks like Shift-JIS ('" in message
    assert message.endswith(f"): {ADVICE}")
    assert not (tables / "no").exists()


def test_a_model_remembers_the_encoding_of_its_training_file(typed, tables):
    folder = str(tables)
    steps = "--loop.epochs 1 --tokenizer.vocab-size 300"
    assert (
        typed(f"finetune {folder}/train.csv --from scratch --encoding cp932 --out {folder}/clf {steps} {TINY}")[0] == 0
    )
    facts = json.loads((tables / "clf" / "bundle" / "bundle.json").read_text(encoding="utf-8"))
    assert facts["labels"] == ["よい", "わるい"]
    for name in ("train.csv", "utf8.csv"):  # a UTF-8 file is read as such
        code, out, _ = typed(f"evaluate {folder}/clf {folder}/{name} --json -q")
        assert (code, json.loads(out)["rows"]) == (0, 40)
    code, _, err = typed(f"predict {folder}/clf --input {folder}/train.csv --out {folder}/out.csv -q")
    assert (code, err) == (0, "")
    written = (tables / "out.csv").read_bytes().decode("utf-8")
    assert written.startswith("\ufefftext,label,")  # spreadsheets recognise UTF-8 by the mark
    assert [line.rsplit(",", 3)[0].split(",")[0] for line in written.splitlines()[1:]] == [
        row.split(",")[0] for row in ROWS
    ]


def test_auto_reads_the_table_and_further_texts_in_the_named_encoding(typed, tables):
    folder = str(tables)
    line = f"auto {folder}/train.csv --texts {folder}/texts.txt --from none --out {folder}/auto -q"
    assert typed(f"{line} --encoding cp932 --runtime.threads 1")[0] == 0
    code, out, _ = typed(f"evaluate {folder}/auto {folder}/train.csv --json -q")
    assert (code, json.loads(out)["accuracy"]) == (0, 1.0)


@pytest.mark.parametrize("command", ["pretrain", "tokenizer", "prepare"])
def test_unlabelled_text_is_read_in_its_encoding(typed, tables, tmp_path, command):
    more = {
        "pretrain": f"--tokenizer.vocab-size 300 --loop.steps 1 {TINY}",
        "tokenizer": "--vocab-size 300",
        "prepare": "--tokenizer tok",
    }
    code, _, err = typed(f"{command} {tables}/texts.txt --encoding cp932 --out {tmp_path}/out {more[command]}")
    assert code == 0, err


def test_a_prediction_reads_standard_input_in_the_encoding(typed, monkeypatch):
    raw = io.BytesIO(f"{GOOD}\n{BAD}\n".encode("cp932"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
    code, out, _ = typed("predict clf --encoding cp932 --json -q")
    assert (code, [json.loads(line)["text"] for line in out.splitlines()]) == (0, [GOOD, BAD])
