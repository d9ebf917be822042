"""`headstart auto` as a person meets it."""

import random

import pytest

from fixtures.tiny import review
from headstart.cli.main import run


@pytest.fixture
def headstart(tmp_path, monkeypatch, capsys):
    """`headstart(...)` in the test's own folder: exit code, lines of stdout, lines of stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = run(arguments)
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err.splitlines()

    return call


def write_table(path, rows=30):
    chance = random.Random(5)
    lines = [f"{review(chance, bool(row % 2))},{('bad', 'good')[row % 2]}" for row in range(rows)]
    path.write_text("\n".join(["text,label", *lines, "nobody has labelled this,"]) + "\n", encoding="utf-8")


def test_thirty_rows_give_a_model_and_the_last_lines_say_what_it_is_worth(headstart, tmp_path):
    write_table(tmp_path / "films.csv")
    code, lines, remarks = headstart("auto", "films.csv", "--from", "none", "--runtime.threads", "1")
    assert code == 0, remarks
    assert "1 text without a label is used as unlabelled text" in remarks
    headline, usage = lines
    assert headline.startswith("The linear model classifies ")
    assert "of 6 test texts correctly: " in headline
    assert "points compared with always predicting 'bad' (95 % interval " in headline
    assert usage == 'Classify texts with: headstart predict runs/auto-films "..."'
    code, lines, remarks = headstart("predict", "runs/auto-films", "a great wonderful film")
    assert code == 0, remarks
    assert "good" in lines[0]
    code, _, remarks = headstart("auto", "films.csv")
    assert code == 2
    assert remarks[-1] == (
        "headstart: runs/auto-films already contains a run; continue it with --resume, or choose another --out"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("auto", "auto needs TABLE, a file with a text and a label per row; see headstart auto --help"),
        ("auto --resume", "auto --resume needs --out, the folder of the run to continue"),
        ("auto films.csv --minutes 0", "--minutes must be greater than 0, got 0"),
        ("auto films.csv --from nowhere", "no such folder: nowhere"),
        ("auto --resume --out runs/x", "runs/x contains no run; start one without --resume"),
        (
            "auto films.csv --label-column lable",
            "films.csv has no column 'lable'; its columns are text, label; did you mean 'label'?",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(words, line, headstart, tmp_path):
    write_table(tmp_path / "films.csv")
    code, _, remarks = headstart(*words.split())
    assert (code, remarks[-1]) == (2, f"headstart: {line}")
    assert not (tmp_path / "runs").exists()


def test_too_few_rows_to_abstain_after_auto_are_counted_once(headstart, tmp_path):
    write_table(tmp_path / "films.csv")
    assert headstart("auto", "films.csv", "--from", "none", "--runtime.threads", "1")[0] == 0
    code, _, remarks = headstart("predict", "runs/auto-films", "a great film", "--abstain", "0.9")
    assert code == 2
    assert remarks[-1] == (
        "headstart: runs/auto-films/bundle was chosen on 24 validation rows, too few to choose a threshold; "
        "50 are needed: label more rows"
    )


def test_remarks_name_the_options_of_the_command(headstart, tmp_path):
    words = ("text", "label", "note", "comment")
    lines = [f"C-{row},{'ab'[row % 2]},the package number {row} is late,none" for row in range(40)]
    (tmp_path / "ids.csv").write_text("\n".join([",".join(words), *lines]), encoding="utf-8")
    options = ("ids.csv", "--text-column", "text")
    for command in (("auto", *options, "--from", "none"), ("inspect", *options)):
        code, lines, remarks = headstart(*command)
        assert code == 0, remarks
        (line,) = [line for line in (*lines, *remarks) if "holds ids, numbers or addresses" in line]
        assert line.endswith("'note' looks like the text column: select it with --text-column")
