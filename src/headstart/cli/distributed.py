"""Commands under torchrun: one process reports an error, and the exit status tells the launcher whether to restart."""

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from headstart.errors import Interrupted, PeerFailedError, UsageError

_EX_TEMPFAIL = 75


def is_multi_process() -> bool:
    """Return True if this process is one of several."""
    return "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def refuse_multi_process(arguments: Sequence[str]) -> None:
    """Raise an error for commands that do not train: each process would run them once."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    if is_multi_process() and command not in ("pretrain", "finetune"):
        raise UsageError(
            f"torchrun with several processes supports only pretrain and finetune; run headstart {command} without it"
        )


def report_error_once(error: BaseException, message: str, print_error: Callable[[str], None]) -> None:
    """Report an error once, in the first process that fails."""
    if not is_multi_process():
        print_error(message)
        return
    from headstart.train.distributed import await_error_report, claim_error_report, end_error_report

    if isinstance(error, PeerFailedError):
        await_error_report()
    elif claim_error_report():
        print_error(message)
        end_error_report()


def exit_process(exit_code: int) -> NoReturn:
    """Exit. One of several processes skips the interpreter shutdown, during which threads of gloo can abort."""
    if is_multi_process():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def launcher_exit_code(error: BaseException, exit_code: int) -> int:
    """Return the exit status; 0 after a time limit if torchrun would restart the run for any other status."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    timed_out = isinstance(error, Interrupted) and exit_code == _EX_TEMPFAIL
    return 0 if is_multi_process() and restarts and timed_out else exit_code
