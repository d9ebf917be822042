"""What people type at first: short names, columns of their own, rows that are not labelled yet."""

import pytest

from headstart.cli.main import run
from headstart.errors import ConfigError
from headstart.layering import nearest

FLAGS = "--from scratch --out x --quiet"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "finetune train.csv --label-colum kind --out x",
            "finetune has no option --label-colum; did you mean --label-column?",
        ),
        (
            "compare train.csv --labels-column k --out x",
            "compare has no option --labels-column; did you mean --label-column?",
        ),
        ("finetune train.csv --context 64 --out x", "finetune has no option --context; did you mean --model.context?"),
        ("finetune train.csv --epoch 3 --out x", "finetune has no option --epoch; did you mean --loop.epochs?"),
        ("finetune train.csv --model.lr 1 --out x", "finetune has no option --model.lr; did you mean --optim.lr?"),
        (
            "prepare a.csv --label-column k --out x",
            "prepare has no option --label-column; did you mean --labelled.label-column?",
        ),
        ("pretrain corpus.txt --minutes -1 --out x", "--minutes must be greater than 0, got '-1'"),
        ("pretrain corpus.txt --minutes=-1 --out x", "--minutes must be greater than 0, got '-1'"),
        ("pretrain corpus.txt --loop.minutes -1 --out x", "--loop.minutes must be greater than 0, got '-1'"),
        (
            f"finetune train.csv --label-column kind {FLAGS}",
            "train.csv has no column 'kind'; its columns are text, label",
        ),
        (
            f"finetune train.csv --text-column txt {FLAGS}",
            "train.csv has no column 'txt'; its columns are text, label; did you mean 'text'?",
        ),
        (
            "finetune --resume --label-column kind --out clf",
            "--resume goes on with the settings of clf; leave out --label-column",
        ),
        (
            "finetune --resume --labelled.label-column kind --out clf",
            "--resume goes on with the settings of clf; leave out --labelled.label-column",
        ),
    ],
)
def test_a_wrong_line_is_told_in_the_words_it_was_typed_in(typed, line, expected):
    assert typed(line) == (2, "", f"headstart: {expected}\n")


def test_a_setting_without_its_section_is_found_in_python():
    import headstart

    with pytest.raises(ConfigError) as caught:
        headstart.finetune("train.csv", source="scratch", out="x", settings={"label_column": "kind"})
    assert str(caught.value) == "unknown setting label_column; did you mean labelled.label_column?"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lr", "optim.lr"),
        ("modle.context", "model.context"),
        ("transfr.context", "transfer.context"),
        ("model.widht", "model.width"),
        ("xyzzy", None),
    ],
)
def test_the_part_after_the_dot_is_compared_first(name, expected):
    known = ["model.context", "model.width", "transfer.context", "optim.lr", "labelled.label_column"]
    assert nearest(name, known) == expected


@pytest.mark.parametrize("command", ["finetune", "compare", "tune"])
def test_both_names_stand_on_one_line_of_the_help(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    for short, name in (("--label-column", "--labelled.label-column"), ("--skip-empty", "--labelled.skip-empty")):
        assert sum(short in line and name in line for line in lines) == 1
        assert sum(name in line for line in lines) == 1


def test_a_few_labelled_rows_of_many_are_enough(typed, trained):
    rows = [f"{text},{label if number < 24 else ''}" for number, (text, label) in enumerate(_rows(trained))]
    (trained / "mails.csv").write_text("\n".join(["body,kind", *rows, ",positive"]) + "\n", encoding="utf-8")
    line = "finetune mails.csv --from base --out few --label-column kind --text-column body --loop.epochs 1"
    code, _, shown = typed(f"{line} --runtime.threads 1")
    assert (code, shown.splitlines()[-1]) == (
        2,
        "headstart: mails.csv, row 25: the label is empty; give the row a label, remove it, or leave such rows out with "
        "--labelled.skip-empty",
    )
    code, _, shown = typed(f"{line} --runtime.threads 1 --skip-empty")
    assert code == 0
    assert "16 rows of mails.csv have no label, 1 no text; they are left out\n" in shown
    code, out, shown = typed("evaluate few mails.csv --skip-empty")
    assert (code, out.splitlines()[0].split()[-2:]) == (0, ["rows", "24"])
    assert shown == "16 rows of mails.csv have no label, 1 no text; they are left out\n"


def test_inspecting_shows_no_dots_after_the_last_example(typed, trained):
    (trained / "torn.csv").write_text("text,label\na fine book,good\na fine book,bad\na dull one,bad\n")
    assert "in 2 rows: row 1 good / row 2 bad\n" in typed("inspect torn.csv")[1]
    (trained / "torn.csv").write_text("text,label\n" + "".join(f"a fine book,{label}\n" for label in "abcd"))
    assert "in 4 rows: row 1 a / row 2 b / row 3 c / ...\n" in typed("inspect torn.csv")[1]
    (trained / "one.csv").write_text("text,label\na fine book,good\n")
    assert typed("inspect one.csv")[1].startswith("one.csv: 1 row\n")


def _rows(folder):
    lines = (folder / "train.csv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.rsplit(",", 1) for line in lines]
