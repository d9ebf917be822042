"""`--help` is one screen; `--help-all` shows every setting with the value that the command line would use."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest

from headstart.cli.commands import COMMANDS, EXAMPLES, GROUPS
from headstart.cli.main import build_command_app, run
from headstart.cli.options import Options
from headstart.config.merge import iter_fields
from headstart.config.schema import FinetuneConfig, PretrainConfig

MAX_LINES = 40
NAMES = [command.name for command in COMMANDS]


@pytest.fixture
def shown(capsys, monkeypatch, tmp_path):
    """Return the page of a command line, as lines, in a window of a number of columns."""
    monkeypatch.chdir(tmp_path)

    def page(line: str, columns: int = 100) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(shlex.split(line)) == 0
        return capsys.readouterr().out.splitlines()

    return page


def entry(lines: list[str], option: str) -> str:
    """Return the text of an option on a page, without line breaks."""
    start = next(
        number for number, line in enumerate(lines) if re.search(rf"^  (.*, )?{re.escape(option)}([ ,]|$)", line)
    )
    end = next(number for number in range(start + 1, len(lines)) if not lines[number].startswith("    "))
    return " ".join(" ".join(lines[start:end]).split())


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_is_one_screen(shown, name, columns):
    lines = shown(f"{name} --help", columns)
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_page_fits_a_narrow_window(shown, name):
    assert max(map(len, shown(f"{name} --help", 70))) <= 70


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_page_has_usage_summary_options_examples_and_the_way_to_the_rest(shown, command):
    lines = shown(f"{command.name} --help", 100)
    assert lines[0] == f"Usage: headstart {command.name} {command.usage}"
    assert lines[2] == command.summary
    assert [line.split()[0] for line in lines if line.startswith("  --")] == [
        name if name != "--quiet" else "--quiet," for name in command.options.split()
    ]
    assert "Examples:" in lines
    assert lines[-1] == f"headstart {command.name} --help-all shows all options, with their defaults."


def test_the_first_page_lists_commands_by_task(shown):
    lines = shown("--help", 80)
    listed = [line.split()[0] for line in lines if re.match(r"  [a-z]+  ", line)]
    assert listed == NAMES
    assert listed[:7] == ["auto", "finetune", "predict", "evaluate", "compare", "report", "inspect"]
    assert [line[:-1] for line in lines if line.endswith(":") and line[:-1] in GROUPS] == list(GROUPS)
    assert "Exit status: 0 success, 1 the command failed, 2 invalid usage." in lines


@pytest.mark.parametrize("example", [*EXAMPLES, *(example for command in COMMANDS for example in command.examples)])
def test_the_examples_are_valid_command_lines(example):
    _, bound, _ = build_command_app().parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)
    assert bound.arguments or example == "headstart demo"


def test_a_page_reads_no_model_and_says_that_the_preset_decides(shown):
    lines = shown("finetune --help")
    assert entry(lines, "--lr FLOAT") == "--lr FLOAT Peak learning rate. [default: set by preset]"
    assert entry(lines, "--seed INT") == "--seed INT Random seed. [default: 0]"


@pytest.mark.parametrize(
    ("line", "rate", "epochs"),
    [
        ("finetune x.csv --from starter:en", "[default: 0.0003]", "[default: 10]"),
        ("finetune x.csv --from scratch", "[default: 0.0001]", "[default: 15]"),
        ("finetune x.csv --from starter:en --preset modern", "[default: 0.00015]", "[default: 10]"),
        ("finetune x.csv --preset classic", "[default: 0.0001]", "[default: 15]"),
        ("finetune x.csv --from starter:en --config my.toml", "[default: 0.0003]", "[my.toml: 3]"),
        ("finetune x.csv --from starter:en --lr 0.01 --config my.toml", "[given: 0.01]", "[my.toml: 3]"),
        ("compare x.csv --from starter:en", "[default: 0.0003]", "[default: 10]"),
        ("tune x.csv --from starter:en", "[default: 0.0003]", "[default: 10]"),
        ("pretrain x.txt", "[default: 0.0003]", "[default: 1]"),
        ("pretrain x.txt --preset modern-nano", "[default: 0.002]", "[default: 1]"),
        ("pretrain x.txt --from starter:en", "[default: 0.002]", "[default: 1]"),
        (
            "finetune",
            "[default: 0.0001 (classic, modern-base); 0.0003 (modern-nano, modern-micro); 0.00015 (modern)]",
            "[default: 15 (classic); 10 (modern presets)]",
        ),
    ],
)
def test_help_all_shows_the_values_of_this_command_line(shown, tmp_path, line, rate, epochs):
    (tmp_path / "my.toml").write_text("[finetune.loop]\nepochs = 3\n")
    lines = shown(f"{line} --help-all")
    assert entry(lines, "--optim.lr").endswith(rate)
    assert entry(lines, "--loop.epochs").endswith(epochs)


def test_help_all_shows_the_model_that_is_fixed_by_from(shown):
    assert entry(shown("finetune --from starter:en --help-all"), "--model.width").endswith("[starter:en: 256]")
    assert entry(shown("finetune --from scratch --help-all"), "--model.width").endswith("[default: 200]")


def test_help_all_says_that_minutes_choose_the_preset(shown):
    lines = shown("pretrain x.txt --minutes 5 --help-all")
    assert entry(lines, "--model.block").endswith("[default: classic (classic); modern (modern presets)]")
    assert entry(lines, "--loop.minutes").endswith("[given: 5]")


@pytest.mark.parametrize("name", NAMES)
def test_help_all_has_every_setting_of_the_command(shown, name):
    module = importlib.import_module(f"headstart.cli.{next(c for c in COMMANDS if c.name == name).python_name}")
    options: Options | None = getattr(module, "OPTIONS", None)
    lines = shown(f"{name} --help-all")
    for flag in options.names.values() if options else ():
        assert entry(lines, flag)


@pytest.mark.parametrize(("name", "config"), [("pretrain", PretrainConfig), ("finetune", FinetuneConfig)])
def test_help_all_of_a_trainer_has_every_field_but_that_of_imported_models(shown, name, config):
    lines = shown(f"{name} --help-all")
    for field, _ in iter_fields(config):
        if field not in ("model.generic", "stages"):
            assert entry(lines, "--" + field.replace("_", "-"))


@pytest.mark.parametrize(
    "line", ["finetune x.csv --from starter:en --help-all", "pretrain --from starter:en --help-all"]
)
def test_help_all_does_not_import_torch(line, environment):
    code = "import sys; sys.modules['torch'] = None; from headstart.cli.main import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "name",
    ["auto", "finetune", "compare", "tune", "evaluate", "inspect", "predict", "pretrain", "prepare", "tokenizer"],
)
def test_a_command_that_reads_a_table_has_the_same_short_options(shown, name):
    lines = shown(f"{name} --help")
    for option in ("--text-column TEXT", "--encoding TEXT"):
        assert entry(lines, option)
    if name not in ("pretrain", "tokenizer"):
        assert entry(lines, "--label-column TEXT")


def test_help_after_two_dashes_is_a_text(capsys):
    assert run(["predict", "no-such-model", "--", "--help"]) == 2
    assert capsys.readouterr().err == "headstart: no such folder: no-such-model\n"
