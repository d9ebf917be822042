"""`headstart inspect` as a user sees it: a line per finding, wrapped in a narrow window, and JSON for programs."""

import json
import re

import pytest

import headstart
from headstart.cli.main import run

ROWS = [
    ("the film is lovely 60", "positive"),
    ("a  film is dull 61", "negative"),
    ("a film is dull 61", "negative"),
    ("", "negative"),
    ("caf\u00c3\u00a9 noir", "positive"),
]


@pytest.fixture
def files(tmp_path):
    for name, rows in (("a.csv", ROWS), ("b.csv", [ROWS[0], ("new", "positive")])):
        table = "".join(f'"{text}",{label}\n' for text, label in rows)
        (tmp_path / name).write_text(f"text,label\n{table}", encoding="utf-8")
    return tmp_path / "a.csv", tmp_path / "b.csv"


def test_findings_are_shown_on_a_line_each_and_are_no_failure(typed, files):
    train, test = files
    code, out, err = typed(f"inspect {train} --test {test} --texts corpus.txt train.csv")
    assert code == 0
    assert out.splitlines() == [
        f"{train}: 5 rows",
        "  labels        negative 3 (60.0 %), positive 2 (40.0 %)",
        "  characters    median 17, 90th percentile 21, maximum 21",
        "  words         median 5, 90th percentile 5, maximum 5",
        "  ! text empty  1 row has no text; auto skips such rows, other commands need --labelled.skip-empty: row 4",
        "  ! duplicates  1 row repeats an earlier row verbatim (1 text in 2 rows): row 3 = row 2",
        "  ! encoding    1 row with mojibake: row 5 (Ã©)",
        "  pretraining   of the 4 rows, 1 is identical to a document of corpus.txt, train.csv, and none are "
        "near-duplicates of one or part of one: row 1 = corpus.txt, line 1 there",
        "",
        f"{test}: 2 rows",
        "  labels         positive 2 (100.0 %)",
        "  characters     median 3, 90th percentile 21, maximum 21",
        "  words          median 1, 90th percentile 5, maximum 5",
        "  ! labels       every row has the label 'positive'",
        "  ! overlap      1 row (1 different text) appears verbatim in a.csv, in 1 row there: row 1 = row 1 there",
        "  ! pretraining  of the 2 rows, 1 is identical to a document of corpus.txt, train.csv, and none are "
        "near-duplicates of one or part of one: row 1 = corpus.txt, line 1 there",
    ]
    assert f"reading {train}\n" in err


def test_json_lists_the_files_and_findings(typed, files):
    train, test = files
    code, out, _ = typed(f"inspect {train} --test {test} --json --quiet")
    report = json.loads(out)
    assert code == 0
    assert report["format"] == 1
    assert [file["rows"] for file in report["files"]] == [5, 2]
    assert [finding["kind"] for finding in report["findings"]] == [
        "text empty",
        "duplicates",
        "encoding",
        "labels",
        "overlap",
    ]


def test_inspect_with_a_model_reports_tokens_context_and_pretraining_overlap(typed):
    code, out, _ = typed("inspect train.csv --test test.csv --from base -q")
    assert code == 0
    assert "; 0 longer than the context of 32\n" in out
    assert re.search(
        r"pretraining +none of the 20 rows was among the 200 different documents that base was pretrained on", out
    )


@pytest.mark.parametrize("more", ["", " --json"])
def test_a_file_in_another_encoding_is_reported_as_incomplete(typed, tmp_path, more):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text;label\nfine;1\n\xe9t\xe9;0\ndull;0\n")
    code, out, err = typed(f"inspect {path} -q{more}")
    assert (code, err) == (2, f"headstart: {path}: reading stopped at row 2; the report covers the rows before it\n")
    why = (
        f"reading stopped at row 2: {path}, line 3: not UTF-8 (byte 1 is 0xe9); it looks like Windows-1252 "
        "('été;0 dull;0'): add labelled.encoding cp1252, or save the spreadsheet as CSV UTF-8"
    )
    if more:
        assert json.loads(out)["findings"][0]["message"] == why
    else:
        assert out.splitlines()[0] == f"{path}: 1 row, the rest is unreadable"
        assert out.splitlines()[4] == f"  ! cut short  {why.replace('labelled.encoding', '--encoding')}"


def test_a_clean_file_has_no_findings(typed):
    _, out, _ = typed("inspect train.csv -q")
    assert out.splitlines()[-1] == "  findings    none"


@pytest.mark.parametrize("columns", ["60", "120"])
def test_inspect_wraps_lines_in_their_column(headstart, files, columns):
    train, test = files
    done = headstart("inspect", train, "--test", test, "-q", FORCE_COLOR="1", COLUMNS=columns)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0
    body = [line for line in plain.splitlines() if not line.startswith(str(train.parent)[:8])]
    assert max(map(len, body)) <= int(columns)
    folded = [line for line in body if line.startswith(" " * 12)]
    assert bool(folded) == (columns == "60")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect", "inspect needs TRAIN; see headstart inspect --help"),
        ("inspect else/a.csv", "no such file: else/a.csv (there is no folder else)"),
        ("inspect corpus.txt", "corpus.txt: a .txt file has no labels; pass unlabelled text with --texts"),
        ("inspect train.csv --context 9", "--context counts tokens and needs --tokenizer or --from"),
        (
            "inspect train.csv --text-column txt",
            "train.csv has no column 'txt'; its columns are text, label; did you mean 'text'?",
        ),
        ("inspect train.csv --from runs/no", "no such folder: runs/no"),
        (
            "inspect base/tokens",
            "base/tokens is a prepared folder, which contains tokens and no text; use the file that it was prepared from",
        ),
        ("pretrain corpus.txt --out x --exclude tast.csv", "no such file: tast.csv; did you mean test.csv?"),
        (
            "prepare train.csv --labelled --tokenizer tok --out x --exclude test.csv",
            "--exclude cannot be used with --labelled; it is for pretraining text",
        ),
    ],
)
def test_what_cannot_be_inspected_gives_a_one_line_error(typed, line, message):
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"headstart: {message}"


def test_inspect_in_python_gives_the_same_report(trained, files):
    train, test = files
    report = headstart.inspect(train, test=test, texts=trained / "corpus.txt", tokenizer=trained / "tok", context=8)
    assert [one.exact for one in report.pretraining] == [1, 1]
    assert report.files[0].beyond is not None
    settings = {"labelled.text_column": "label", "labelled.label_column": "text"}
    assert headstart.inspect(test, settings=settings).files[0].labels == {"new": 1, "the film is lovely 60": 1}


def test_prepare_excludes_texts_from_the_command_line(typed, tmp_path):
    code, out, err = typed(
        f"prepare corpus.txt train.csv --tokenizer tok --out {tmp_path / 'tokens'} --exclude train.csv"
    )
    assert code == 0
    assert out.startswith(f"{tmp_path / 'tokens'}: 200 documents, ")
    assert "excluded 40 exact duplicates and 0 near-duplicates of texts in train.csv; 200 documents kept" in err


def test_columns_without_a_common_name_are_found_by_their_contents(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"{row};a long description of package number {row};{'libs' if row % 2 else 'games'}" for row in range(12)]
    (tmp_path / "pakete.csv").write_text("\n".join(["Nr;Betreff;Kategorie", *lines]), encoding="utf-8")
    assert run(["inspect", "pakete.csv"]) == 0
    shown = capsys.readouterr()
    assert "columns found by their contents: text 'Betreff', label 'Kategorie'" in shown.err
    assert "games 6 (50.0 %), libs 6 (50.0 %)" in shown.out
