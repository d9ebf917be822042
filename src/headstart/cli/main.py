"""The entry point: the table of commands, and how every error becomes one line and an exit code.

    0  success                                2    a wrong option, setting, path or file
    1  failure                                130  interrupted   143  terminated   141  broken pipe

`HEADSTART_TRACEBACK=1` shows where an error came from. A command's module is imported when the command is called, and
imports heavy packages inside its function: `headstart --help` answers at once.
"""

import keyword
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, get_args

from cyclopts import App, CoercionError, CycloptsError, Group, MissingArgumentError, UnknownOptionError
from cyclopts.exceptions import RepeatArgumentError, UnknownCommandError, UnusedCliTokensError

from headstart.cli.distributed import exit_process, launcher_exit_code, refuse_multi_process, report_error_once
from headstart.errors import HeadstartError
from headstart.version import __version__

SUMMARY = "Pretrain on your own text, swap the head, fine-tune, and learn what the head start was worth."

# name, arguments, summary, example; in the order of a project
COMMANDS = (
    (
        "demo",
        "[OPTIONS]",
        "Tell the whole story with few labels in minutes, and write a report.",
        "headstart demo --out runs/demo",
    ),
    (
        "inspect",
        "TRAIN [OPTIONS]",
        "Look for what is wrong with labelled files: duplicates, leaks, odd rows.",
        "headstart inspect train.csv --test test.csv --texts reviews.txt",
    ),
    (
        "tokenizer",
        "TEXTS... --out FOLDER [OPTIONS]",
        "Train a tokenizer on text and show how well it fits.",
        "headstart tokenizer reviews.txt --vocab-size 16384 --out tok",
    ),
    (
        "prepare",
        "TEXTS... --out FOLDER [OPTIONS]",
        "Turn text into token shards, once, for any number of runs.",
        "headstart prepare 'reviews/*.parquet' --tokenizer tok --out tokens",
    ),
    (
        "merge",
        "FOLDERS... --out FOLDER",
        "Put together what was prepared apart, on several machines perhaps.",
        "headstart merge tokens-1 tokens-2 --out tokens",
    ),
    (
        "pretrain",
        "[TEXTS...] --out FOLDER [OPTIONS]",
        "Learn a language model from unlabelled text.",
        "headstart pretrain reviews.txt --out runs/base --loop.epochs 2",
    ),
    (
        "finetune",
        "TRAIN --from FOLDER|scratch --out FOLDER [OPTIONS]",
        "Train a classifier on labelled text, from a pretrained model or from scratch.",
        "headstart finetune train.csv --valid valid.csv --from runs/base --out runs/clf",
    ),
    (
        "tune",
        "TRAIN --from FOLDER|scratch --out FOLDER [OPTIONS]",
        "Search for the settings of a fine-tuning that validation likes best.",
        "headstart tune train.csv --from runs/base --minutes 30 --out runs/tuned",
    ),
    (
        "compare",
        "TRAIN --test FILE --from FOLDER --out FOLDER [OPTIONS]",
        "Measure what pretraining was worth: arms, label budgets and seeds, with a report.",
        "headstart compare train.csv --test test.csv --from runs/base --labels 50,200,all --out runs/cmp",
    ),
    (
        "evaluate",
        "MODEL FILE [OPTIONS]",
        "Measure a classifier on a labelled file.",
        "headstart evaluate runs/clf test.csv",
    ),
    (
        "predict",
        "MODEL [TEXTS...] [OPTIONS]",
        "Classify texts given as arguments, on standard input, or in a file.",
        'headstart predict runs/clf "un livre magnifique"',
    ),
    (
        "generate",
        "MODEL PROMPT [OPTIONS]",
        "Let a language model go on from a prompt.",
        'headstart generate runs/base "Bonjour les" --temperature 0.8 --samples 3',
    ),
    (
        "serve",
        "MODEL [OPTIONS]",
        "Answer over HTTP, with a page to try the model on.",
        "headstart serve runs/clf --port 8000",
    ),
    (
        "params",
        "[OPTIONS]",
        "Count the parameters of a model, part by part, without building it.",
        "headstart params --preset classic --vocab-size 50001",
    ),
    (
        "bench",
        "[OPTIONS]",
        "Time training and prediction on this machine, in a minute or so.",
        "headstart bench --preset modern-nano",
    ),
    (
        "import",
        "FILE|hf:FOLDER --out FOLDER [OPTIONS]",
        "Turn weights of the published course, or a model of transformers, into a model here.",
        "headstart import course.safetensors --tokenizer sentencepiece.french.model --out runs/course",
    ),
    (
        "export",
        "MODEL --to hf|onnx --out FOLDER",
        "Write a model for transformers or onnxruntime: the same answers, none of our code.",
        "headstart export runs/clf --to hf --out clf-hf",
    ),
    (
        "report",
        "FOLDER [OPTIONS]",
        "Write the report of a comparison again, from its folder.",
        "headstart report runs/cmp",
    ),
)


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    # spinning threads halve the speed of two cores, and quarter it when another program wants one
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    exit_process(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error becomes one line on stderr."""
    try:
        refuse_multi_process(arguments)
        build_command_app()(_normalize(list(arguments)), exit_on_error=False, print_error=False, verbose=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # without this, Python would report the closed pipe once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (Exception, KeyboardInterrupt, Terminated) as error:
        if os.environ.get("HEADSTART_TRACEBACK") == "1":
            traceback.print_exc()
        message, exit_code = describe_error(error, _option_names(arguments), arguments)
        report_error_once(error, message, _print_error)
        return launcher_exit_code(error, exit_code)
    return 0


def build_command_app() -> App:
    """Build the app with all commands, none of them imported yet."""
    app = App(
        name="headstart",
        help=SUMMARY,
        version=__version__,
        help_format="plaintext",
        group_commands=Group("Commands", sort_key=0),
        group_parameters=Group("Options", sort_key=0),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # it has its own message here
    )
    for order, (name, usage, summary, example) in enumerate(COMMANDS):
        python_name = f"{name}_" if keyword.iskeyword(name) else name
        app.command(
            f"headstart.cli.{python_name}:{python_name}",
            name=name,
            help=f"{summary}\n\nExample: {example}",
            usage=f"Usage: headstart {name} {usage}",
            sort_key=order,
        )
    for flag, text in (
        ("--help", "Show this page; after a command, the command's own."),
        ("--version", "Show the version."),
    ):
        app[flag].help = text
        app[flag].sort_key = len(COMMANDS)
    return app


class Terminated(BaseException):
    """SIGTERM arrived outside of training, which handles signals itself."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _normalize(arguments: list[str]) -> list[str]:
    """Accept --quiet before the command as well as after it, and `help` for --help."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:2], "--help"]
    if len(arguments) > 1 and arguments[0] in ("--quiet", "-q"):
        return [arguments[1], arguments[0], *arguments[2:]]
    return arguments


def _option_names(arguments: Sequence[str]) -> Mapping[str, str]:
    """Return the option names of the current command, if its module was imported."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    options = getattr(sys.modules.get(f"headstart.cli.{command}"), "OPTIONS", None)
    names: Mapping[str, str] = options.names if options else {}
    return names


def describe_error(
    error: BaseException, names: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> tuple[str, int]:
    """Return the message and the exit code for an error; `names` are the command's options by setting name."""
    if isinstance(error, HeadstartError):
        from headstart.cli.options import use_option_names, use_short_options

        return use_short_options(use_option_names(str(error), names), arguments), error.exit_code
    if isinstance(error, CycloptsError):
        return _explain_parsing(error), 2
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, Terminated):
        return "terminated", 143
    if _is_out_of_memory(error):
        return "out of memory; try a smaller --loop.batch-size, --model.context or --model.width", 1
    if isinstance(error, OSError) and error.filename is not None:
        from headstart.files import os_error_reason

        return f"{error.filename}: {os_error_reason(error, Path(str(error.filename)))}", 1
    if (pydantic := sys.modules.get("pydantic")) and isinstance(error, pydantic.ValidationError):
        from headstart.config.merge import describe_validation_error
        from headstart.config.schema import Section

        return describe_validation_error(error, Section), 2
    description = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected {description}; HEADSTART_TRACEBACK=1 shows where", 1


def _is_out_of_memory(error: BaseException) -> bool:
    # torch raises its own class on GPUs and a plain RuntimeError on CPUs; torch is not imported here
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    )


def _explain_parsing(error: CycloptsError) -> str:
    """Describe a parsing error in the style of our own messages."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnknownCommandError):
        typed = (error.unused_tokens or ["?"])[0]
        return f"there is no command {typed!r}; {_nearest(typed, [name for name, *_ in COMMANDS], 'headstart')}"
    if isinstance(error, UnknownOptionError):
        typed = (error.token.keyword or error.token.value).split("=")[0]
        options = [name for argument in error.argument_collection for name in argument.names if name.startswith("-")]
        return f"{command} has no option {typed}; {_nearest(typed, options, f'headstart {command}')}"
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given more than once"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _explain_missing(error, command)
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        expected = _describe_type(error.target_type)
        return f"{error.token.keyword or _label(error.argument)} must be {expected}, got {error.token.value!r}"
    if isinstance(error, UnusedCliTokensError):
        return f"{command} takes no further argument, got {(error.unused_tokens or ['?'])[0]!r}"
    return " ".join(str(error).split())


def _explain_missing(error: MissingArgumentError, command: str) -> str:
    assert error.argument is not None
    name = error.keyword or _label(error.argument)
    if error.keyword or error.argument.tokens:
        return f"{name} needs a value; see headstart {command} --help"
    return f"{command} needs {name}; see headstart {command} --help"


def _label(argument: Any) -> str:
    """Return the name of an argument in the usage line: options by name, positional arguments in capitals."""
    name: str = argument.name
    return name if name.startswith("-") and argument.index is None else name.lstrip("-").upper()


def _describe_type(target_type: Any) -> str:
    members = [member for member in get_args(target_type) if member is not type(None)] or [target_type]
    if members[0] in (int, float):
        return "a whole number" if members[0] is int else "a number"
    return " or ".join(map(str, members))


def _nearest(typed: str, names: Sequence[str], page: str) -> str:
    from headstart.config.merge import closest_name

    close = closest_name(typed, names)
    return f"did you mean {close}?" if close else f"see {page} --help"


def _print_error(message: str) -> None:
    line = "headstart: " + " ".join(message.split("\n"))
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        line = f"\x1b[31m{line}\x1b[0m"
    print(line, file=sys.stderr)  # noqa: T201
