"""One line and an exit code for whatever goes wrong, and help at once."""

import importlib
import json
import keyword
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from headstart.cli.commands import COMMANDS
from headstart.cli.main import Terminated, build_command_app, describe_error, run
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
    helpers = {
        "__init__",
        "main",
        "console",
        "distributed",
        "options",
        "partial_output",
        "prediction_output",
        "text_input",
        "commands",
        "help",
    }
    assert modules - {in_python(name) for name, *_ in COMMANDS} == helpers


HELP = """
import contextlib, io, json, sys
from headstart.cli.main import run
lines, heavy = json.loads(sys.argv[1])
for arguments in lines:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(arguments)
    found = [name for name in heavy if name in sys.modules]
    if code or found or not printed.getvalue():
        print(arguments, code, found)
"""


def test_help_imports_no_heavy_package(environment):
    def imported(lines, heavy):
        done = subprocess.run(
            [sys.executable, "-c", HELP, json.dumps([lines, heavy])],
            capture_output=True,
            encoding="utf-8",
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert imported([["--help"], [], ["--version"], *([name, "--help"] for name, *_ in COMMANDS)], HEAVY) == ""
    assert imported([["--help"]], ["cyclopts"]) == "['--help'] 0 ['cyclopts']\n"  # control


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"]], ids=" ".join)
def test_help_imports_few_modules(arguments, environment):
    # the time of help is that of its imports: 300 to 360 modules take a quarter of a second; torch brings 1,100
    code = (
        "import sys; from headstart.cli.main import run; code = run(sys.argv[1:]); "
        "print(len(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, encoding="utf-8", env=environment, check=True
    )
    assert int(done.stderr) < 450


def test_the_version_is_printed_alone(headstart):
    from headstart import __version__

    assert headstart("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pretrian"], "unknown command 'pretrian'; did you mean pretrain?"),
        (["explain", "runs/clf"], "unknown command 'explain'; use headstart predict MODEL TEXT --explain"),
        (["frobnicate"], "unknown command 'frobnicate'; see headstart --help"),
        (["pretrain"], "pretrain needs --out; see headstart pretrain --help"),
        (["pretrain", "a.txt", "--out"], "--out needs a value; see headstart pretrain --help"),
        (
            ["pretrain", "--out", "x"],
            "pretrain needs TEXTS, text files or one prepared folder; see headstart pretrain --help",
        ),
        (["pretrain", "a.txt", "--oot", "x"], "pretrain has no option --oot; did you mean --out?"),
        (
            ["pretrain", "a.txt", "--out", "x", "--model.widht=3"],
            "pretrain has no option --model.widht; did you mean --model.width?",
        ),
        (["params", "--xyzzy"], "params has no option --xyzzy; see headstart params --help"),
        (["params", "--preset", "a", "--preset", "b"], "--preset was given more than once"),
        (["params", "--vocab-size", "x"], "--vocab-size must be an integer, got 'x'"),
        (["params", "--vocab-size", "0"], "--vocab-size must be at least 1, got 0"),
        (["params", "--rows", "9" * 400], f"--rows must be a finite number, got {'9' * 400}"),
        (["params", "--convention", "half"], "--convention must be full or weights-only, got 'half'"),
        (["params", "more"], "params got an unexpected argument 'more'"),
        (["params", "--model.width", "x"], "--model.width must be an integer, got 'x'"),
        (["params", "--config", "no.toml"], "cannot read no.toml: No such file or directory"),
        (["tokenizer", "--out", "x"], "tokenizer needs TEXTS; see headstart tokenizer --help"),
        (
            ["tokenizer", "a.txt", "--out", "x", "--vocab-size", "9"],
            "--vocab-size must be greater than or equal to 260, got '9'",
        ),
        (["tokenizer", "no.txt", "--out", "x"], "no such file: no.txt"),
        (
            ["prepare", "a.csv", "--labelled", "--out", "x"],
            "prepare --labelled needs --tokenizer, the tokenizer of the model that will use the shards",
        ),
        (
            ["prepare", "a.csv", "b.csv", "--labelled", "--tokenizer", "t", "--out", "x"],
            "prepare --labelled needs exactly one file, got 2",
        ),
        (["finetune", "--out", "x"], "finetune needs TRAIN, a labelled file; see headstart finetune --help"),
        (
            ["finetune", "a.csv", "--out", "x"],
            "finetune needs --from: a pretrained folder such as runs/base, a starter such as starter:en or starter:fr, "
            "or scratch",
        ),
        (
            ["finetune", "a.csv", "--from", "base", "--out", "x", "--model.width", "8"],
            "--model.width cannot be used with --from base, which has its own model",
        ),
        (
            ["compare", "a.csv", "--test", "b.csv", "--from", "base", "--out", "x", "--tokenizer.vocab-size", "300"],
            "--tokenizer.vocab-size cannot be used with --from base, which has its own tokenizer",
        ),
        (["compare", "--out", "x"], "compare needs TRAIN, a labelled file; see headstart compare --help"),
        (
            ["compare", "a.csv", "--out", "x"],
            "compare needs --test, a labelled file; see headstart compare --help",
        ),
        (
            ["compare", "a.csv", "--test", "b.csv", "--out", "x", "--labels", "50,many"],
            "--labels must be positive integers or all, such as 50,200,all, got 'many'",
        ),
        (
            ["pretrain", "--resume", "--out", "x", "--model.width", "8"],
            "--resume uses the recorded settings of x; remove --model.width",
        ),
        (
            ["finetune", "--resume", "--out", "x", "--from", "base"],
            "--resume uses the recorded settings of x; remove --from",
        ),
        (
            ["compare", "--resume", "--out", "x", "--seeds", "3"],
            "--resume uses the recorded settings of x; remove --seeds",
        ),
        (["pretrain", "--resume", "--out", "x"], "x contains no run; start one without --resume"),
        (["evaluate", "runs/no"], "evaluate needs FILE; see headstart evaluate --help"),
        (["predict", "runs/no", "a", "--input", "b.csv"], "predict accepts texts or --input, not both"),
        (["predict", "runs/no"], "predict needs texts: as arguments, on standard input, or --input FILE"),
        (["predict", "runs/no", "a", "--out", "b.txt"], "--out must end in .csv or .jsonl, got b.txt"),
        (
            ["predict", "runs/no", "a", "--json", "--out", "b.csv"],
            "--json cannot be used with --out b.csv; choose a .jsonl file",
        ),
        (["predict", "runs/no", " "], "the text is empty; there is nothing to classify"),
        (["predict", "runs/no", "", " "], "all texts are empty; there is nothing to classify"),
        (["generate", "runs/no", "a", "--samples", "0"], "--samples must be at least 1, got 0"),
        (
            ["auto", os.fsdecode(b"caf\xe9.csv"), "--out", "x"],
            "'caf\ufffd.csv' is not valid UTF-8 in this locale; rename the file or folder, or write the text in UTF-8",
        ),
        (
            ["generate", "runs/no", "a", "--seed", "9223372036854775808"],
            "--seed must be between 0 and 2,147,483,647, got 9223372036854775808",
        ),
        (["report", "runs/no"], "runs/no is not a folder; expected one that `headstart compare` wrote"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else "",
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
    assert capsys.readouterr().err == "headstart: unknown command '-q'; see headstart --help\n"


def validation_error() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        ModelConfig(width="x")
    return caught.value


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


MEMORY = "out of memory; try a smaller --batch-size, --model.context or --model.width"


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
        (ValueError("what"), ("unexpected ValueError: what; set HEADSTART_TRACEBACK=1 for the traceback", 1)),
        (validation_error(), ("width must be an integer, got 'x'", 2)),
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
    assert run(["params"]) == 1
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


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "arguments",
    [["params", "--json"], ["predict", "runs/no", "a"], pytest.param(["--help"], marks=pytest.mark.slow)],
)
def test_closed_standard_streams_are_no_error(environment, arguments, closed):
    """As under some schedulers; a file must not be opened in the place of a stream that others write to."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "headstart", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == (2 if arguments[0] == "predict" else 0)
    assert "unexpected" not in done.stderr


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_standard_output_on_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headstart", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "headstart: cannot write: No space left on device\n")
