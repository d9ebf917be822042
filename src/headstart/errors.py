"""Errors that a user can make or meet, each explained in one line.

    HeadstartError            exit code 1: tried and failed
    ├── UsageError            exit code 2: the request is wrong (an option, a configuration, a missing path)
    │   └── ConfigError       a setting is unknown, of the wrong type, out of range, or contradicts another
    ├── DataError             exit code 2: a user's file has a missing column, a broken row or a wrong encoding
    ├── StoreError            one of our own folders is damaged, unfinished, in use, or of another format
    │   └── TransferError     exit code 2: a backbone does not fit the network it is loaded into
    ├── TrainingError         a loss is not finite
    ├── PeerLostError         another process of the run ended or cannot be reached
    ├── PeerFailedError       another process of the run failed; carries its message and exit code
    └── Interrupted           exit code 130, 143 or 75: a signal or a time limit stopped the run after its state was saved

A message names the option or file as the user wrote it, the actual and the expected value, and a remedy.
`assert` is for our own mistakes, never for theirs.
"""


class HeadstartError(Exception):
    """The base class: something went wrong that one line can explain."""

    exit_code = 1


class UsageError(HeadstartError):
    """The request is wrong; nothing was tried."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(HeadstartError):
    """A user's file cannot be read as requested. The exit code is 2: the input has to change."""

    exit_code = 2


class StoreError(HeadstartError):
    """A folder written by Headstart is damaged, unfinished, in use, or of another format."""


class TransferError(StoreError):
    """A backbone does not fit the network; nothing was transferred. The exit code is 2: another folder was meant."""

    exit_code = 2


class TrainingError(HeadstartError):
    """Training cannot continue."""


class PeerLostError(HeadstartError):
    """Another process of a distributed run ended or cannot be reached."""


class PeerFailedError(HeadstartError):
    """Another process of the run failed and reports the reason; this process exits without a message."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(HeadstartError):
    """A signal or a time limit stopped the run after its state was saved; the message says how to resume."""

    exit_code = 130

    def __init__(self, message: str, reason: str = "SIGINT") -> None:
        super().__init__(message)
        # a shell reports 128 + the signal; 75 is EX_TEMPFAIL, "try again later"
        self.exit_code = {"SIGINT": 130, "SIGTERM": 143}.get(reason, 75)
        self.reason = reason
