"""Mistakes that a person can make or meet, each told in one line.

    HeadstartError            exit code 1: tried and failed
    ├── UsageError            exit code 2: ask differently (an option, a configuration, a path that is not there)
    │   └── ConfigError       a setting: unknown, of the wrong type, out of range, at odds with another
    ├── DataError             exit code 2: a user's file: missing column, broken row, wrong encoding, empty; names file and row
    ├── StoreError            one of our own folders: damaged, of another format, in use, not finished
    │   └── TransferError     exit code 2: the backbone of a folder does not fit where it should go
    ├── TrainingError         the numbers went wrong: a loss that is not finite
    ├── LostError             one of several processes of a run ended or cannot be reached
    ├── ElsewhereError        another process of the run failed, says why, and gives its exit code
    └── Interrupted           exit code 130, 143 or 75: a signal or a time limit stopped the run after its state was saved

A message names the option or file as the person wrote it, what was found, what was expected, and what to try.
`assert` is for our own mistakes, never for theirs.
"""


class HeadstartError(Exception):
    """Something went wrong that one line can explain."""

    exit_code = 1


class UsageError(HeadstartError):
    """The question was wrong: nothing was tried."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, of the wrong type, out of range, or at odds with another."""


class DataError(HeadstartError):
    """A user's file cannot be read as asked. Wrong input is a wrong question, so the exit code is 2."""

    exit_code = 2


class StoreError(HeadstartError):
    """A folder written by Headstart is damaged, unfinished, in use, or of another format."""


class TransferError(StoreError):
    """A backbone does not fit where it should go; nothing was transferred. Another folder was meant: the exit code is 2."""

    exit_code = 2


class TrainingError(HeadstartError):
    """Training cannot go on."""


class PeerLostError(HeadstartError):
    """Several processes train together, and one of them ended or cannot be reached."""


class PeerFailedError(HeadstartError):
    """Another process of this run failed and says why; this one ends with it, in silence."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(HeadstartError):
    """The run was stopped from outside and saved first; the message says how to go on."""

    exit_code = 130

    def __init__(self, message: str, reason: str = "SIGINT") -> None:
        super().__init__(message)
        # a shell reports 128 + the signal; 75 is the system's word for "try again later"
        self.exit_code = {"SIGINT": 130, "SIGTERM": 143}.get(reason, 75)
        self.reason = reason
