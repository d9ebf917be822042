"""One line and an exit code for whatever goes wrong, and help at once."""

import importlib
import keyword
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from headstart.cli.main import COMMANDS, Terminated, build_command_app, describe_error, run
from headstart.config.schema import ModelConfig
from headstart.errors import ConfigError, DataError, Interrupted, StoreError, UsageError

SOURCE = Path(__file__).parents[2] / "src"
HEAVY = ("torch", "pyarrow", "sklearn", "scipy", "matplotlib", "tokenizers", "fsspec", "jinja2", "numpy")


def in_python(name: str) -> str:
    """A command whose name is a word of the language, `import`, has an underscore there."""
    return f"{name}_" if keyword.iskeyword(name) else name


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_every_command_has_a_module_with_its_function(name):
    python_name = in_python(name)
    function = getattr(importlib.import_module(f"headstart.cli.{python_name}"), python_name)
    assert function.__doc__


def test_every_module_of_the_package_is_a_command_or_a_helper():
    modules = {path.stem for path in (SOURCE / "headstart" / "cli").glob("*.py")}
    helpers = {"__init__", "main", "console", "distributed", "options", "prediction_output", "text_input"}
    assert modules - {in_python(name) for name, *_ in COMMANDS} == helpers


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["--version"], *([name, "--help"] for name, *_ in COMMANDS)], ids=" ".join
)
def test_help_imports_no_heavy_package(arguments, environment):
    code = (
        "import sys; from headstart.cli.main import run; code = run(sys.argv[1:]); "
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"]], ids=" ".join)
def test_help_is_there_in_half_a_second(headstart, arguments):
    def seconds() -> float:
        # of the processor, not of the clock: the machine may have other things to do
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert headstart(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", ["", *(name for name, *_ in COMMANDS)])
def test_help_fits_the_window(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([name, "--help"] if name else ["--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= columns
    assert any(line.startswith("╭─ Options" if name else "╭─ Commands") for line in shown)


@pytest.mark.parametrize(
    ("name", "summary", "example"), [(name, summary, example) for name, _, summary, example in COMMANDS]
)
def test_a_command_s_help_opens_with_what_it_does_and_an_example(name, summary, example, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run([name, "--help"])
    shown = capsys.readouterr().out
    assert f"\n{summary}\n\nExample: {example}\n" in shown


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_no_option_was_made_up_by_the_library(name, capsys, monkeypatch):
    """It offers one that empties a list unless told not to."""
    monkeypatch.setenv("COLUMNS", "120")
    run([name, "--help"])
    assert "--empty-" not in capsys.readouterr().out


@pytest.mark.parametrize("example", [example for *_, example in COMMANDS])
def test_the_examples_in_the_help_are_understood(example):
    _, bound, _ = build_command_app().parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)
    assert bound.arguments


def test_the_help_shows_the_default_a_setting_really_has(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run(["pretrain", "--help"])
    assert "Peak learning rate. [default: 0.0003]" in capsys.readouterr().out
    run(["finetune", "--help"])
    assert "Peak learning rate. [default: 0.0001]" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["finetune", "compare", "tune"])
def test_the_help_says_whose_defaults_it_shows(command, capsys, monkeypatch):
    from headstart.config import presets
    from headstart.config.merge import merge_config
    from headstart.config.schema import FinetuneConfig
    from headstart.recipes.finetune.run import default_preset

    monkeypatch.setenv("COLUMNS", "100")
    run([command, "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert (
        "Named settings to start from. Without it they follow --from: classic, whose defaults are shown here, for scratch and "
        "for a model of that preset; modern for the starters and all others." in words
    )
    values = presets.preset_values("classic", "finetune")
    shown = {name: part for name, part in values.items() if name in FinetuneConfig.model_fields}
    assert merge_config(FinetuneConfig, shown) == FinetuneConfig()
    assert (default_preset("scratch"), default_preset("starter:en")) == ("classic", "modern")


def test_the_version_is_printed_alone(headstart):
    from headstart import __version__

    assert headstart("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pretrian"], "there is no command 'pretrian'; did you mean pretrain?"),
        (["frobnicate"], "there is no command 'frobnicate'; see headstart --help"),
        (["pretrain"], "pretrain needs --out; see headstart pretrain --help"),
        (["pretrain", "a.txt", "--out"], "--out needs a value; see headstart pretrain --help"),
        (["pretrain", "--out", "x"], "pretrain needs TEXTS, or one prepared folder; see headstart pretrain --help"),
        (["pretrain", "a.txt", "--oot", "x"], "pretrain has no option --oot; did you mean --out?"),
        (
            ["pretrain", "a.txt", "--out", "x", "--model.widht=3"],
            "pretrain has no option --model.widht; did you mean --model.width?",
        ),
        (["params", "--xyzzy"], "params has no option --xyzzy; see headstart params --help"),
        (["params", "--preset", "a", "--preset", "b"], "--preset is given more than once"),
        (["params", "--vocab-size", "x"], "--vocab-size must be a whole number, got 'x'"),
        (["params", "--vocab-size", "0"], "--vocab-size must be at least 1, got 0"),
        (["params", "--convention", "half"], "--convention must be full or weights-only, got 'half'"),
        (["params", "more"], "params takes no further argument, got 'more'"),
        (["params", "--model.width", "x"], "--model.width must be a whole number, got 'x'"),
        (["params", "--config", "no.toml"], "cannot read no.toml: No such file or directory"),
        (["tokenizer", "--out", "x"], "tokenizer needs TEXTS; see headstart tokenizer --help"),
        (
            ["tokenizer", "a.txt", "--out", "x", "--vocab-size", "9"],
            "--vocab-size must be greater than or equal to 260, got '9'",
        ),
        (["tokenizer", "no.txt", "--out", "x"], "no such file: no.txt"),
        (
            ["prepare", "a.csv", "--labelled", "--out", "x"],
            "prepare --labelled needs --tokenizer: that of the model which will read the shards",
        ),
        (
            ["prepare", "a.csv", "b.csv", "--labelled", "--tokenizer", "t", "--out", "x"],
            "prepare --labelled takes one file, so that its labels have one order; got 2",
        ),
        (["finetune", "--out", "x"], "finetune needs TRAIN, a labelled file; see headstart finetune --help"),
        (
            ["finetune", "a.csv", "--out", "x"],
            "finetune needs --from: a pretrained folder, as in --from runs/base, a starter, as in --from starter:en (or "
            "starter:fr), or --from scratch",
        ),
        (
            ["finetune", "a.csv", "--from", "base", "--out", "x", "--model.width", "8"],
            "--model.width cannot be set beside --from; base brings its own model",
        ),
        (
            ["compare", "a.csv", "--test", "b.csv", "--from", "base", "--out", "x", "--tokenizer.vocab-size", "300"],
            "--tokenizer.vocab-size cannot be set beside --from; base brings its own tokenizer",
        ),
        (["compare", "--out", "x"], "compare needs TRAIN, a labelled file; see headstart compare --help"),
        (
            ["compare", "a.csv", "--out", "x"],
            "compare needs --test, a labelled file to measure on; see headstart compare --help",
        ),
        (
            ["compare", "a.csv", "--test", "b.csv", "--out", "x", "--labels", "50,many"],
            "--labels must be whole numbers and all, as in 50,200,all, got 'many'",
        ),
        (
            ["pretrain", "--resume", "--out", "x", "--model.width", "8"],
            "--resume goes on with the settings of x; leave out --model.width",
        ),
        (
            ["finetune", "--resume", "--out", "x", "--from", "base"],
            "--resume goes on with the settings of x; leave out --from",
        ),
        (
            ["compare", "--resume", "--out", "x", "--seeds", "3"],
            "--resume goes on with the settings of x; leave out --seeds",
        ),
        (["pretrain", "--resume", "--out", "x"], "x holds no run; start one without --resume"),
        (["evaluate", "runs/no"], "evaluate needs FILE; see headstart evaluate --help"),
        (["predict", "runs/no", "a", "--input", "b.csv"], "predict takes texts or --input, not both"),
        (["predict", "runs/no"], "predict needs texts: as arguments, on standard input, or --input FILE"),
        (["predict", "runs/no", "a", "--out", "b.txt"], "--out must end in .csv or .jsonl, got b.txt"),
        (
            ["predict", "runs/no", "a", "--json", "--out", "b.csv"],
            "--json does not go with --out b.csv; choose a .jsonl file",
        ),
        (["predict", "runs/no", "a", " "], "text 2: the text is empty; there is nothing to classify"),
        (["generate", "runs/no", "a", "--samples", "0"], "--samples must be at least 1, got 0"),
        (["report", "runs/no"], "runs/no is not a folder; expected one that `headstart compare` wrote"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_usage_error_gives_one_line(arguments, expected, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"headstart: {expected}\n"
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_texts_may_begin_with_a_dash_behind_two_dashes():
    _, bound, _ = build_command_app().parse_args(["predict", "m", "--", "-5 stars", "--quiet"], exit_on_error=False)
    assert bound.arguments["texts"] == ("-5 stars", "--quiet")


@pytest.mark.parametrize(("arguments", "same"), [(["help"], ["--help"]), (["help", "params"], ["params", "--help"])])
def test_help_works_as_a_command(capsys, arguments, same):
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert run(same) == 0
    assert shown == capsys.readouterr().out
    assert "Usage: headstart" in shown


def test_quiet_may_come_first(capsys):
    assert run(["--quiet", "params", "--vocab-size", "300"]) == 0
    assert run(["-q"]) == 2
    assert capsys.readouterr().err == "headstart: there is no command '-q'; see headstart --help\n"


def validation_error() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        ModelConfig(width="x")
    return caught.value


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


MEMORY = "out of memory; try a smaller --loop.batch-size, --model.context or --model.width"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UsageError("ask differently"), ("ask differently", 2)),
        (ConfigError("runtime.device 'x' cannot be used"), ("--runtime.device 'x' cannot be used", 2)),
        (DataError("a.csv, row 3: no label"), ("a.csv, row 3: no label", 2)),
        (StoreError("runs/a is damaged"), ("runs/a is damaged", 1)),
        (Interrupted("saved"), ("saved", 130)),
        (KeyboardInterrupt(), ("interrupted", 130)),
        (Terminated(), ("terminated", 143)),
        (MemoryError(), (MEMORY, 1)),
        (OutOfMemoryError("CUDA out of memory."), (MEMORY, 1)),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), (MEMORY, 1)),
        (PermissionError(13, "Permission denied", "a.txt"), ("a.txt: Permission denied", 1)),
        (ValueError("what"), ("unexpected ValueError: what; HEADSTART_TRACEBACK=1 shows where", 1)),
        (validation_error(), ("width must be a whole number, got 'x'", 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_a_line_and_an_exit_code(error, expected):
    assert describe_error(error) == expected


def test_a_traceback_is_shown_on_request(headstart):
    plain = headstart("params", "--config", "no.toml")
    traced = headstart("params", "--config", "no.toml", HEADSTART_TRACEBACK="1")
    assert plain.stderr == "headstart: cannot read no.toml: No such file or directory\n"
    assert traced.stderr.startswith("Traceback (most recent call last):\n")
    assert traced.stderr.endswith(plain.stderr)


def test_a_line_break_in_a_message_does_not_make_two_lines(capsys, monkeypatch):
    monkeypatch.setattr("headstart.cli.main.build_command_app", lambda: _raise)
    assert run([]) == 1
    assert capsys.readouterr().err == "headstart: first second\n"


def _raise(*arguments: object, **others: object) -> None:
    raise StoreError("first\nsecond")


def test_nobody_reading_the_output_is_no_error(environment):
    command = [sys.executable, "-m", "headstart", "params", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, ("headstart: interrupted\n", 130)), (signal.SIGTERM, ("headstart: terminated\n", 143))],
)
def test_a_signal_ends_a_command_with_one_line(number, expected, environment):
    code = (
        "import os, headstart.model.parameter_count as counting, headstart.cli.main as main; "
        f"counting.count_parameters = lambda *arguments: os.kill(os.getpid(), {int(number)}); main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "params"], capture_output=True, encoding="utf-8", env=environment
    )
    assert (done.stderr, done.returncode, done.stdout) == (*expected, "")
