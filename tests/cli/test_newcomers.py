"""What people type at first: short names, columns of their own, rows that are not labelled yet."""

import pytest

from headstart.cli.main import run
from headstart.config.merge import closest_name
from headstart.errors import ConfigError

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
        ("finetune train.csv --epoch 3 --out x", "finetune has no option --epoch; did you mean --epochs?"),
        ("finetune train.csv --model.lr 1 --out x", "finetune has no option --model.lr; did you mean --optim.lr?"),
        (
            "prepare a.csv --label-column k --out x",
            "no such file: a.csv",
        ),
        ("finetune train.csv --from starter --out x", "no such folder: starter; did you mean starter:en?"),
        ("finetune train.csv --from en --out x", "no such folder: en; did you mean starter:en?"),
        ("finetune train.csv --from starter-fr --out x", "no such folder: starter-fr; did you mean starter:fr?"),
        ("finetune train.csv --from runs/starter --out x", "no such folder: runs/starter"),
        (
            "tune train.csv --out x",
            "tune needs --from: a pretrained folder such as runs/base, a starter such as starter:en or starter:fr, or scratch",
        ),
        (
            "predict clf hello --abstain 0.9",
            "clf/bundle was chosen on 8 validation rows, too few to choose a threshold; there are 40 labelled "
            "rows: label more, so that 50 can be held out",
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
            "--resume uses the recorded settings of clf; remove --label-column",
        ),
        (
            "finetune --resume --labelled.label-column kind --out clf",
            "--resume uses the recorded settings of clf; remove --labelled.label-column",
        ),
    ],
)
def test_an_error_names_options_as_they_were_typed(typed, line, expected):
    assert typed(line) == (2, "", f"headstart: {expected}\n")


def test_a_setting_without_its_section_is_suggested_in_python():
    import headstart

    with pytest.raises(ConfigError) as caught:
        headstart.finetune("train.csv", backbone="scratch", out="x", settings={"label_column": "kind"})
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
    assert closest_name(name, known) == expected


@pytest.mark.parametrize("command", ["finetune", "compare", "tune"])
def test_short_and_long_option_are_on_one_line_of_the_help(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run([command, "--help-all"])
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
        "headstart: mails.csv, row 25: the label is empty; give the row a label, remove it, or skip such rows with "
        "--labelled.skip-empty",
    )
    code, _, shown = typed(f"{line} --runtime.threads 1 --skip-empty")
    assert code == 0
    assert "16 rows of mails.csv have no label, 1 no text; they are skipped\n" in shown
    code, out, shown = typed("evaluate few mails.csv --skip-empty")
    assert (code, out.splitlines()[0].split()[-2:]) == (0, ["rows", "24"])
    skipped, quality = shown.splitlines()
    assert skipped == "16 rows of mails.csv have no label, 1 no text; they are skipped"
    assert quality.startswith("when few was trained: validation accuracy ")


def test_a_share_that_is_large_enough_to_abstain_is_named(typed, trained):
    rows = [f"{text} once more,{label}" for text, label in _rows(trained)]
    extra = [f"{text} and again,{label}" for text, label in _rows(trained)]
    rows += extra + [f"{text},{label}" for text, label in _rows(trained)]
    (trained / "more.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    line = "finetune more.csv --from base --loop.epochs 1 --runtime.threads 1 --quiet"
    assert typed(f"{line} --out few-held")[0] == 0
    assert typed("predict few-held hello --abstain 0.9") == (
        2,
        "",
        "headstart: few-held/bundle was chosen on 24 validation rows, too few to choose a threshold; fine-tune "
        "with --labelled.valid-fraction 0.43, which holds out 50 of the 120 labelled rows\n",
    )
    assert typed(f"{line} --out many-held --labelled.valid-fraction 0.43")[0] == 0
    assert "too few" not in typed("predict many-held hello --abstain 0.9")[2]


def test_a_scale_read_as_names_is_remarked_on_while_training(typed, trained):
    rows = [f"{text},{number % 4}" for number, (text, _) in enumerate(_rows(trained))]
    (trained / "stars.csv").write_text("\n".join(["text,stars", *rows]) + "\n", encoding="utf-8")
    code, _, shown = typed("finetune stars.csv --from base --out stars --loop.epochs 1 --runtime.threads 1")
    assert code == 0
    assert (
        "the labels of stars.csv are 4 whole numbers (stars), read as class names without an order; "
        "--labelled.task rating reads "
        "them as numbers\n"
    ) in shown


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


def test_counts_of_one_use_the_singular(typed, tmp_path):
    (tmp_path / "t.txt").write_text("".join(f"the film number {number} was long and good\n" for number in (1, 2, 3)))
    (tmp_path / "one.txt").write_text("the film was good\n")
    out = tmp_path / "run"
    network = "--model.width 16 --model.depth 1 --model.heads 1 --model.feedforward 16 --model.context 8"
    options = f"--loop.steps 1 --corpus.held-out 0.3 --tokenizer tok --runtime.threads 1 {network}"
    code, _, err = typed(f"pretrain {tmp_path / 't.txt'} --out {out} {options}")
    assert code == 0, err
    first = err.splitlines()[0]
    assert first.startswith("1 document for training, 2 held out; ")
    assert first.endswith(" parameters; 1 step on cpu, 1 thread")
    card = (out / "bundle" / "README.md").read_text()
    assert "tokens in 1 step." in card
    assert " parameters: 1 layer of width 16, 1 head, 8 tokens of context, " in card
    assert typed(f"prepare {tmp_path / 'one.txt'} --tokenizer tok --out {tmp_path / 'a'}")[1].startswith(
        f"{tmp_path / 'a'}: 1 document, "
    )
