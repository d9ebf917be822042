"""`headstart predict`: texts from anywhere, answers to anywhere."""

import csv
import io
import json
from contextlib import chdir
from pathlib import Path

import pytest

from fixtures.output import without_quality
from headstart.cli import predict as room
from headstart.cli.main import run
from headstart.data.sources import read_rows
from headstart.recipes.quality import recorded_quality


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def test_one_text_gets_a_label_and_a_probability(typed):
    code, out, err = typed("predict clf 'the film is superb'")
    label, probability = out.split()
    assert (code, err) == (0, "")
    assert label in ("negative", "positive")
    assert 0.5 <= float(probability) <= 1


def test_several_texts_get_a_line_each(typed):
    _, out, _ = typed("predict clf 'the film is superb' 'the  film is\ndull' --quiet")
    assert [line.split(maxsplit=2)[2] for line in out.splitlines()] == ["the film is superb", "the film is dull"]


def test_texts_come_from_standard_input(typed, monkeypatch):
    stdin(monkeypatch, b"un livre magnifique\nthe film is dull")
    _, out, _ = typed("predict clf --json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["un livre magnifique", "the film is dull"]


def test_a_blank_line_has_an_empty_prediction(typed, monkeypatch):
    stdin(monkeypatch, b"the film is dull\n  \nthe film is superb\n")
    code, out, err = typed("predict clf")
    assert (code, err) == (0, "1 of 3 rows has no text and no prediction\n")
    lines = out.splitlines()
    assert lines[1] == "-"
    assert [lines[index].split(maxsplit=2)[2] for index in (0, 2)] == ["the film is dull", "the film is superb"]


def test_a_blank_argument_among_several_has_an_empty_prediction(typed):
    code, out, err = typed("predict clf 'the film is dull' ' '")
    assert (code, err) == (0, "1 of 2 rows has no text and no prediction\n")
    assert out.splitlines()[1] == "-"
    assert out.splitlines()[0].endswith("the film is dull")


def test_a_csv_file_keeps_its_columns_and_gains_the_answer(typed, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "WINDOW_ROWS", 7)  # several chunks, the last one short
    (tmp_path / "in.csv").write_text('id,text\n7,"the film, is superb"\n8,the film is dull\n' + "9,more\n" * 20)
    code, out, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {tmp_path / 'out.csv'}")
    assert (code, out, without_quality(err)) == (0, "", f"22 rows written to {tmp_path / 'out.csv'}\n")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    added = ["label", "probability", "probability_negative", "probability_positive", "truncated"]
    assert list(rows[0]) == ["id", "text", *added]
    assert {row["truncated"] for row in rows} == {"false"}
    assert [row["id"] for row in rows] == ["7", "8", *["9"] * 20]
    for row in rows:
        assert float(row["probability"]) == max(float(row["probability_negative"]), float(row["probability_positive"]))
        assert row["probability"] == row[f"probability_{row['label']}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]  # no draft is left


def test_a_model_that_was_poor_in_training_says_so_before_it_labels_a_file(typed):
    _, out, err = typed("predict clf --input test.csv")
    sentence = recorded_quality(json.loads(Path("clf/bundle/bundle.json").read_text())["about"]).sentence
    assert "poor result" in sentence
    assert err.splitlines()[0] == f"when clf was trained: {sentence}"
    assert len(out.splitlines()) == 21  # and labels it
    assert typed("predict clf --input test.csv --quiet")[2] == ""


def test_a_file_s_own_labels_are_not_overwritten(typed):
    _, out, _ = typed("predict clf --input test.csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert list(rows[0])[:4] == ["text", "label", "predicted_label", "probability"]
    assert [row["label"] for row in rows[:2]] == ["positive", "negative"]


def test_other_files_become_json_lines(typed):
    _, out, _ = typed("predict clf --input corpus.txt")
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 200
    assert list(answers[0]) == ["text", "label", "probability", "probabilities", "truncated"]


def test_an_answer_is_the_same_alone_and_in_a_file(typed):
    _, alone, _ = typed("predict clf 'the film is weak 65' --json")
    _, together, _ = typed("predict clf --input corpus.txt")
    other = next(line for line in map(json.loads, together.splitlines()) if line["text"] == "the film is weak 65")
    assert json.loads(alone)["probability"] == pytest.approx(other["probability"], abs=2e-6)


def test_a_broken_file_leaves_no_output(typed, tmp_path):
    (tmp_path / "in.csv").write_text("text\nthe film\n" + "a,b\n")
    code, _, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {tmp_path / 'out.csv'}")
    assert (code, err) == (
        2,
        f"headstart: {tmp_path / 'in.csv'}, row 2: 2 cells, but the header has 1; "
        'put quotes around a text that contains the separator: "..."\n',
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_without_text_are_kept_without_an_answer(typed, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(room, "WINDOW_ROWS", 2)
    (tmp_path / "in.csv").write_text('id,text\n1,""\n2,the film is dull\n3," "\n4,\n5,the film is superb\n')
    out = tmp_path / f"out.{suffix}"
    code, _, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {out}")
    assert code == 0
    assert without_quality(err) == f"3 of 5 rows have no text and no prediction\n5 rows written to {out}\n"
    lines = out.read_text().splitlines()
    rows = list(csv.DictReader(lines)) if suffix == "csv" else [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5"]
    nothing = "" if suffix == "csv" else None
    for row in rows:
        is_empty = row["id"] in ("1", "3", "4")
        answer = [value for name, value in row.items() if name not in ("id", "text")]
        assert all((value == nothing) == is_empty for value in answer)


def test_an_end_that_was_not_read_is_marked(typed, tmp_path):
    (tmp_path / "in.csv").write_text("text\nthe film\n" + "the film is dull " * 40 + "\n")
    _, out, err = typed(f"predict clf --input {tmp_path / 'in.csv'}")
    assert [row["truncated"] for row in csv.DictReader(out.splitlines())] == ["false", "true"]
    assert without_quality(err) == "1 of 2 rows was truncated to the context of the model\n"


def test_an_empty_file_is_named(typed, tmp_path):
    (tmp_path / "in.txt").write_text("")
    code, _, err = typed(f"predict clf --input {tmp_path / 'in.txt'}")
    assert (code, err) == (2, f"headstart: {tmp_path / 'in.txt'} contains no texts\n")


def test_the_folder_of_the_output_is_made(typed, tmp_path):
    out = tmp_path / "new" / "folder" / "out.csv"
    code, _, err = typed(f"predict clf hello --out {out}")
    assert (code, err) == (0, f"1 row written to {out}\n")
    assert out.read_text().startswith("text,label,")


def test_an_output_that_cannot_be_written_is_named(typed, tmp_path):
    (tmp_path / "no").write_text("a file")
    code, _, err = typed(f"predict clf hello --out {tmp_path / 'no' / 'out.csv'}")
    assert (code, err) == (
        1,
        f"headstart: cannot write {tmp_path / 'no' / 'out.csv'}: {tmp_path / 'no'} is a file, not a folder\n",
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_keeps_its_separator_and_byte_order_mark(typed, tmp_path, separator, mark):
    table = f'"a, b"{separator}text\r\n7{separator}"the film; is, superb"\r\n8{separator}été\r\n'
    (tmp_path / "in.csv").write_bytes(mark + table.encode())
    code, out, _ = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {tmp_path / 'out.csv'}")
    written = (tmp_path / "out.csv").read_bytes()
    assert (code, out) == (0, "")
    assert written.startswith(b"\xef\xbb\xbf") == bool(mark)
    assert b"\r" not in written
    rows = list(csv.reader(written.decode("utf-8-sig").splitlines(), delimiter=separator))
    assert [row[:2] for row in rows] == [["a, b", "text"], ["7", "the film; is, superb"], ["8", "été"]]
    assert [dict(row.values)["text"] for row in read_rows(str(tmp_path / "out.csv"))] == ["the film; is, superb", "été"]


def test_standard_output_has_the_separator_but_no_mark(typed, tmp_path):
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfid;text\n7;dull\n")
    _, out, _ = typed(f"predict clf --input {tmp_path / 'in.csv'}")
    assert out.startswith("id;text;label;probability;")


def test_a_line_that_tells_excel_the_separator_is_written_again(typed, tmp_path):
    (tmp_path / "in.csv").write_bytes(b"sep=;\r\nid;text\r\n7;dull\r\n")
    code, _, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {tmp_path / 'out.csv'}")
    assert code == 0, err
    assert (tmp_path / "out.csv").read_text().startswith("sep=;\nid;text;label;probability;")
    _, out, _ = typed(f"predict clf --input {tmp_path / 'in.csv'}")
    assert out.startswith("id;text;label;probability;")


def test_a_tsv_becomes_a_csv_with_commas(typed, tmp_path):
    (tmp_path / "in.tsv").write_bytes(b"\xef\xbb\xbfid\ttext\n7\tdull\n")
    typed(f"predict clf --input {tmp_path / 'in.tsv'} --out {tmp_path / 'out.csv'}")
    assert (tmp_path / "out.csv").read_text().startswith("id,text,label,probability,")


def test_the_input_is_not_written_over(typed, tmp_path):
    (tmp_path / "in.csv").write_text("text\nthe film\n")
    other = tmp_path / ".." / tmp_path.name / "in.csv"
    code, _, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --out {other}")
    assert (code, err) == (
        2,
        f"headstart: --out {other} would overwrite the file of --input; choose another --out\n",
    )
    assert (tmp_path / "in.csv").read_text() == "text\nthe film\n"


@pytest.fixture(scope="module")
def topics(trained):
    """A classifier trained on a file whose columns have no usual names, beside a column that has one."""
    with chdir(trained):
        rows = list(csv.DictReader((trained / "train.csv").read_text().splitlines()))
        with (trained / "mails.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "mail", "topic"])
            writer.writerows(["a subject", row["text"], row["label"]] for row in rows)
        line = "finetune mails.csv --text-column mail --label-column topic --from base --out topics --quiet --loop.epochs 1"
        assert run([*line.split(), "--runtime.threads", "1"]) == 0
    return "topics"


MAILS = "text,mail,topic\nx,the film is superb,\nx,the film is dull,negative\nx,  ,\nx,  ,positive\nx,more, \n"


def answers(out):
    return [row["label"] for row in csv.DictReader(out.splitlines())]


def test_the_text_column_of_training_is_the_default(typed, topics, tmp_path):
    (tmp_path / "in.csv").write_text("text,mail\nthe film is dull,the film is superb\n")
    _, by_default, _ = typed(f"predict {topics} --input {tmp_path / 'in.csv'}")
    _, named, _ = typed(f"predict {topics} --input {tmp_path / 'in.csv'} --text-column mail")
    _, other, _ = typed(f"predict {topics} --input {tmp_path / 'in.csv'} --text-column text")
    assert by_default == named != other
    (tmp_path / "plain.csv").write_text("id,text\n7,the film is dull\n")  # without it, a usual name
    code, out, _ = typed(f"predict {topics} --input {tmp_path / 'plain.csv'}")
    assert (code, out.splitlines()[1].split(",")[:2]) == (0, ["7", "the film is dull"])


def test_rows_that_have_a_label_are_predicted_too_with_a_note(typed, topics, tmp_path):
    (tmp_path / "in.csv").write_text(MAILS)
    code, out, err = typed(f"predict {topics} --input {tmp_path / 'in.csv'}")
    assert (code, without_quality(err)) == (
        0,
        "2 of 5 rows have a value in the label column 'topic'; they were also predicted; use --only-unlabelled to skip "
        "such rows\n2 of 5 rows have no text and no prediction\n",
    )
    assert [bool(answer) for answer in answers(out)] == [True, True, False, False, True]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_only_unlabelled_copies_rows_that_have_a_label_without_predicting_them(typed, topics, tmp_path, suffix):
    (tmp_path / "in.csv").write_text(MAILS)
    out_file = tmp_path / f"out.{suffix}"
    code, _, err = typed(f"predict {topics} --input {tmp_path / 'in.csv'} --only-unlabelled --out {out_file}")
    assert (code, without_quality(err)) == (
        0,
        "2 of 5 rows have a value in the label column 'topic'; they were not predicted\n"
        f"2 of 5 rows have no text and no prediction\n5 rows written to {out_file}\n",
    )
    content = out_file.read_text()
    rows = [json.loads(line) for line in content.splitlines()] if suffix == "jsonl" else None
    labels = answers(content) if rows is None else [row["label"] for row in rows]
    assert [bool(label) for label in labels] == [True, False, False, False, True]
    kept = list(csv.DictReader(content.splitlines())) if rows is None else rows
    assert [row["topic"].strip() for row in kept] == ["", "negative", "", "positive", ""]


def test_a_label_column_with_a_usual_name_or_a_typed_one_is_known_too(typed, tmp_path):
    (tmp_path / "in.csv").write_text("text,Label,mine\nthe film is superb,,a\nthe film is dull,negative,\n")
    _, out, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --only-unlabelled")
    assert without_quality(err) == "1 of 2 rows has a value in the label column 'Label'; it was not predicted\n"
    assert [bool(answer) for answer in answers(out)] == [True, False]
    _, out, err = typed(f"predict clf --input {tmp_path / 'in.csv'} --only-unlabelled --label-column mine")
    assert without_quality(err) == "1 of 2 rows has a value in the label column 'mine'; it was not predicted\n"
    assert [bool(answer) for answer in answers(out)] == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'a text' --only-unlabelled", "--only-unlabelled needs --input FILE"),
        (
            "--input corpus.txt --only-unlabelled",
            "corpus.txt has no label column for --only-unlabelled; name it with --label-column",
        ),
        ("--input test.csv --label-column kind", "test.csv has no column 'kind'; its columns are text, label"),
    ],
)
def test_labels_that_cannot_be_found_are_one_line(typed, options, message):
    code, out, err = typed(f"predict clf {options}")
    assert (code != 0, out, err) == (True, "", f"headstart: {message}\n")
