"""The entry point: it runs a command, and prints an error as one line.

Exit status: 0 success, 1 the command failed, 2 invalid usage (an option, setting, path or file); 130 interrupted,
143 terminated, 141 broken pipe, 75 stopped at a time limit.

`HEADSTART_TRACEBACK=1` prints the traceback of an error. A command's module is imported when the command is called, and
imports heavy packages inside its function, so that `headstart --help` is fast.
"""

import errno
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

from headstart.cli.commands import COMMANDS, SUMMARY
from headstart.cli.distributed import exit_process, launcher_exit_code, refuse_multi_process, report_error_once
from headstart.errors import HeadstartError, UsageError
from headstart.version import __version__


def main() -> NoReturn:
    """Run the command line and exit with its exit status."""
    _open_closed_streams()
    signal.signal(signal.SIGTERM, _terminate)
    # spinning threads halve the speed on two cores, and quarter it if another program uses one of them
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    exit_process(run(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Give closed standard streams to nobody; the next file that is opened would take the place of one of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; every error is printed as one line on stderr."""
    try:
        from headstart.cli.help import help_page

        if (page := help_page(arguments)) is not None:
            print(page)  # noqa: T201
            sys.stdout.flush()
            return 0
        _refuse_other_bytes(arguments)
        refuse_multi_process(arguments)
        build_command_app()(_normalize(list(arguments)), exit_on_error=False, print_error=False, verbose=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # otherwise Python reports the closed pipe again when it flushes at exit
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
        help_flags=(),  # cli/help.py has the pages
        group_commands=Group("Commands", sort_key=0),
        group_parameters=Group("Options", sort_key=0),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # run() reports it
    )
    for order, command in enumerate(COMMANDS):
        app.command(
            f"headstart.cli.{command.python_name}:{command.python_name}",
            name=command.name,
            help=f"{command.summary}\n\nExample: {command.examples[0]}",
            usage=f"Usage: headstart {command.name} {command.usage}",
            sort_key=order,
        )
    return app


class Terminated(BaseException):
    """SIGTERM was received outside of training, which handles signals itself."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _normalize(arguments: list[str]) -> list[str]:
    """Accept --quiet before the command as well as after it."""
    if len(arguments) > 1 and arguments[0] in ("--quiet", "-q"):
        return [arguments[1], arguments[0], *arguments[2:]]
    return arguments


def _refuse_other_bytes(arguments: Sequence[str]) -> None:
    """Refuse an argument that is not UTF-8: a file name cannot be recorded, and a text cannot be encoded."""
    for argument in arguments:
        shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if shown != argument:
            raise UsageError(
                f"'{shown}' is not valid UTF-8 in this locale; rename the file or folder, or write the text in UTF-8"
            )


def _option_names(arguments: Sequence[str]) -> Mapping[str, str]:
    """Return the options of the current command by setting, if its module was imported."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    options = getattr(sys.modules.get(f"headstart.cli.{command}"), "OPTIONS", None)
    names: Mapping[str, str] = options.names if options else {}
    return names


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def describe_error(
    error: BaseException, names: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> tuple[str, int]:
    """Return the message and the exit status for an error; `names` are the command's options by setting."""
    if isinstance(error, HeadstartError):
        from headstart.cli.options import use_option_names, use_short_options

        message = use_option_names(str(error), names)
        return use_short_options(message, arguments, names or ()), error.exit_code
    if isinstance(error, CycloptsError):
        return _explain_parsing(error), 2
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, Terminated):
        return "terminated", 143
    if _is_out_of_memory(error):
        return "out of memory; try a smaller --batch-size, --model.context or --model.width", 1
    if isinstance(error, OSError) and error.filename is not None:
        from headstart.files import os_error_reason

        return f"{error.filename}: {os_error_reason(error, Path(str(error.filename)))}", 1
    if isinstance(error, OSError) and error.errno in _DISK_FULL:  # without a file name: usually standard output
        return f"cannot write: {os.strerror(error.errno)}", 1
    if (pydantic := sys.modules.get("pydantic")) and isinstance(error, pydantic.ValidationError):
        from headstart.config.merge import describe_validation_error
        from headstart.config.schema import Section

        return describe_validation_error(error, Section), 2
    description = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected {description}; set HEADSTART_TRACEBACK=1 for the traceback", 1


def _is_out_of_memory(error: BaseException) -> bool:
    # torch raises its own class on GPUs and a RuntimeError on CPUs; torch is not imported here
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
        if typed == "explain":  # a function in Python
            return "unknown command 'explain'; use headstart predict MODEL TEXT --explain"
        return f"unknown command {typed!r}; {_nearest(typed, [command.name for command in COMMANDS], 'headstart')}"
    if isinstance(error, UnknownOptionError):
        typed = (error.token.keyword or error.token.value).split("=")[0]
        options = [name for argument in error.argument_collection for name in argument.names if name.startswith("-")]
        return f"{command} has no option {typed}; {_nearest(typed, options, f'headstart {command}')}"
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} was given more than once"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _explain_missing(error, command)
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        expected = _describe_type(error.target_type)
        return f"{error.token.keyword or _label(error.argument)} must be {expected}, got {error.token.value!r}"
    if isinstance(error, UnusedCliTokensError):
        return f"{command} got an unexpected argument {(error.unused_tokens or ['?'])[0]!r}"
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
        return "an integer" if members[0] is int else "a number"
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
