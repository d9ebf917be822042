"""A command that torchrun started several times: one process speaks, and exit codes say what the launcher should do."""

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from headstart.errors import Interrupted, PeerFailedError, UsageError

_TRY_LATER = 75


def is_multi_process() -> bool:
    """Whether this process is one of several."""
    return "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def refuse_multi_process(arguments: Sequence[str]) -> None:
    """Several processes train one model; another command would be run once by each of them."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    if is_multi_process() and command not in ("pretrain", "finetune"):
        raise UsageError(
            f"torchrun starts several processes for pretrain and finetune alone; start headstart {command} without it"
        )


def report_error_once(error: BaseException, message: str, say: Callable[[str], None]) -> None:
    """Say why the command ends, in one of the processes: the first to know, for the others only follow it."""
    if not is_multi_process():
        say(message)
        return
    from headstart.train import distributed as ranks

    if isinstance(error, PeerFailedError):
        ranks.await_error_report()
    elif ranks.claim_error_report():
        say(message)
        ranks.end_error_report()


def exit_process(exit_code: int) -> NoReturn:
    """End this process. One of several does without Python's own end, where threads of gloo can abort what was well done."""
    if is_multi_process():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def launcher_exit_code(error: BaseException, exit_code: int) -> int:
    """The exit code; 0 where a time limit is over and torchrun would start the run once more for any other."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    over = isinstance(error, Interrupted) and exit_code == _TRY_LATER
    return 0 if is_multi_process() and restarts and over else exit_code
