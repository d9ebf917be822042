"""RunFolder: the settings, environment, metrics, checkpoints and result of one run, as files. This module needs no torch.

run.json  config.json  environment.json  metrics.jsonl  checkpoints/  bundle/  result.json

failed.json exists from the moment training fails until the run is resumed or restarted.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headstart.config.schema import Section
from headstart.errors import Interrupted, StoreError, UsageError
from headstart.files import (
    FORMAT,
    os_error_reason,
    read_checksummed,
    read_json,
    sha256_of,
    write_checksummed,
    write_json,
    wrong_format_error,
)
from headstart.version import __version__

if sys.platform != "win32":  # Windows has no fcntl, so run folders are not locked there
    import fcntl

_SECONDS_BETWEEN_FLUSHES = 1.0
_BEGINNING = re.compile(r"config\.json|\.lock|\.(config|run)\.json\.writing-\d+")
"""Files left by a process that was killed before it wrote run.json; they may be overwritten."""
_FAILED = "failed.json"
_UNSAVED = re.compile(
    r"(run|config|environment|inputs|plan|receipt|failed)\.json|metrics\.jsonl|\.lock|\.\w+\.jsonl?\.writing-\d+"
)
"""Files of a run that has saved neither a checkpoint nor a model."""
_REUSED = re.compile(r"tokens(-\d+)?|tokenizer")
"""Prepared text. The next run reuses it if its settings match, and replaces it otherwise."""


class RunFolder:
    """A folder that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = Metrics(path / "metrics.jsonl")
        """The metrics of this run, in the order they were written."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: Path, *, kind: str, command: str, config: Section, inputs: dict[str, Any]) -> "RunFolder":
        """Start a run in a new or empty folder, or replace a run that failed before it saved anything.

        Args:
            inputs: the files and folders that the run reads, as the user typed them; resuming reads them again.
        """
        emptied = _remove_unsaved_run(path)
        if (path / "run.json").exists():
            raise _existing_run_error(path)
        if path.is_file():
            raise UsageError(f"{path} is a file; --out must be a folder to write")
        if path.is_dir() and not emptied and not all(_BEGINNING.fullmatch(entry.name) for entry in path.iterdir()):
            raise UsageError(f"{path} is not empty; choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create the folder {path}: {os_error_reason(error, path)}") from None
        run = cls(path)
        write_json(path / "config.json", config.model_dump(mode="json"))
        facts = {"format": FORMAT, "kind": kind, "command": command, "headstart": __version__, "inputs": inputs}
        write_checksummed(path / "run.json", facts | {"config": sha256_of(path / "config.json")})
        return run

    @staticmethod
    def check_no_run(path: Path) -> None:
        """Raise an error if a folder contains a run that did not fail, which `create` would refuse."""
        if (path / "run.json").exists() and not (path / _FAILED).is_file():
            raise _existing_run_error(path)

    @classmethod
    def open(cls, path: Path, *, kind: str) -> "RunFolder":
        """Open an existing run of the expected kind."""
        if not (path / "run.json").is_file():
            raise UsageError(f"{path} contains no run; start one without --resume")
        run = cls(path)
        facts = run.facts
        if facts.get("format") != FORMAT:
            raise StoreError(f"{path} {wrong_format_error(facts.get('format'), 'start another run')}")
        if not isinstance(facts.get("inputs"), dict):
            raise StoreError(f"{path / 'run.json'} is damaged: the inputs of the run are missing")
        if facts.get("kind") != kind:
            raise UsageError(f"{path} contains a {facts.get('kind')} run, not a {kind} run")
        return run

    @property
    def facts(self) -> dict[str, Any]:
        """The content of `run.json`."""
        return read_checksummed(self.path / "run.json")

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `config.json`, which must be unchanged since the run was started."""
        path = self.path / "config.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or self.facts.get("config", sha256_of(path)) != sha256_of(path):
            raise StoreError(f"{path} is not what {self.path} was started with; restore it, or start another run")
        return settings

    @property
    def finished(self) -> bool:
        """Whether the run has a result, which is written last."""
        return (self.path / "result.json").is_file()

    @contextmanager
    def remove_on_error(self, new: bool) -> Iterator[None]:
        """Delete a new run folder if the block raises, for example because an input is wrong."""
        try:
            yield
        except BaseException:  # an interrupted start leaves nothing to resume, either
            if new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @contextmanager
    def record_failure(self) -> Iterator[None]:
        """Write failed.json if the block raises, so that a run that saved nothing can be restarted in the same folder."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Interrupted) and self.path.is_dir():
                with suppress(StoreError, OSError):  # a full disk must not replace the original error
                    self.write_json(_FAILED, {"error": type(error).__name__})
            raise

    def check_inputs_unchanged(self, facts: dict[str, Any]) -> None:
        """Record the inputs of a new run; raise an error if those of a resumed run have changed."""
        path = self.path / "inputs.json"
        if not path.is_file():
            write_checksummed(path, facts)
            return
        recorded = read_checksummed(path)
        for name, value in facts.items():
            if recorded.get(name) != value:
                raise UsageError(f"{name} is not what {self.path} was started with; restore it, or start another run")

    def write_json(self, name: str, content: dict[str, Any], *, checksummed: bool = False) -> None:
        """Write a JSON file of the run."""
        (write_checksummed if checksummed else write_json)(self.path / name, content)

    def check_present(self) -> None:
        """Raise if the folder was moved or deleted, rather than write part of a run at its old path."""
        if not (self.path / "run.json").is_file():
            raise _missing_error(self.path)

    def remove_checkpoints(self) -> None:
        """Delete checkpoints and best weights, which only an unfinished run needs."""
        for leftover in (self.path / "checkpoints", *self.path.glob("best-[0-9]*")):
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold an exclusive lock on the folder; the system releases it when the process ends."""
        if sys.platform == "win32":
            (self.path / _FAILED).unlink(missing_ok=True)
            yield
            return
        try:
            file = (self.path / ".lock").open("w")
        except OSError as error:
            raise StoreError(f"cannot write in {self.path}: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"{self.path} is in use by another process; wait for it, or choose another --out"
                ) from None
            (self.path / _FAILED).unlink(missing_ok=True)
            try:
                yield
            finally:
                if self.path.exists():
                    self.metrics.flush()


class ReadOnlyRunFolder(RunFolder):
    """The run folder of a process other than the main one: it reads, and leaves writing and locking to the main process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metrics = NullMetrics(path / "metrics.jsonl")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: the main process holds the lock."""
        yield

    @contextmanager
    def remove_on_error(self, new: bool) -> Iterator[None]:  # noqa: ARG002
        """Do nothing: the main process deletes the folder."""
        yield

    def check_inputs_unchanged(self, facts: dict[str, Any]) -> None:
        """Do nothing: the main process checks the inputs."""

    def write_json(self, name: str, content: dict[str, Any], *, checksummed: bool = False) -> None:
        """Do nothing: the main process writes."""

    def remove_checkpoints(self) -> None:
        """Do nothing: the main process deletes checkpoints."""


def _remove_unsaved_run(path: Path) -> bool:
    """Delete the files of a failed run that saved nothing. A folder with any unfamiliar file is left as it is."""
    if not (path / _FAILED).is_file():
        return False
    checkpoints = path / "checkpoints"
    if checkpoints.is_dir() and not any(checkpoints.iterdir()):
        checkpoints.rmdir()
    removable = [entry for entry in path.iterdir() if not (_REUSED.fullmatch(entry.name) and entry.is_dir())]
    if not all(_UNSAVED.fullmatch(entry.name) and entry.is_file() for entry in removable):
        return False
    # failed.json goes last, so that an interrupted removal is repeated
    for entry in sorted(removable, key=lambda entry: entry.name == _FAILED):
        entry.unlink()
    return True


def _existing_run_error(path: Path) -> UsageError:
    return UsageError(f"{path} already contains a run; continue it with --resume, or choose another --out")


def _missing_error(path: Path) -> StoreError:
    return StoreError(f"{path} is missing: it was moved or deleted during the run")


class Metrics:
    """An append-only file of JSON lines, each with a `kind`.

    Lines are buffered for about a second, and flushed before a checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[str] = []
        self._flushed = time.monotonic()

    def write(self, kind: str, **values: Any) -> None:
        """Append one line. A crash loses only lines after the last checkpoint, which resuming would rewind anyway."""
        self._pending.append(json.dumps({"kind": kind, **values}, ensure_ascii=False, allow_nan=False) + "\n")
        if kind != "step" or time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self._flushed = time.monotonic()
        if not self._pending:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(self._pending))
        except FileNotFoundError:
            raise _missing_error(self.path.parent) from None
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
        self._pending.clear()

    def size(self) -> int:
        """Sync the file to disk and return its size in bytes, which a checkpoint records."""
        self.flush()
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def rewind(self, size: int) -> None:
        """Truncate the file to the size that a checkpoint recorded."""
        self._pending.clear()
        current = self.path.stat().st_size if self.path.exists() else 0
        if current < size:
            raise StoreError(f"{self.path} is damaged: {current} bytes where {size} were written")
        if current:
            os.truncate(self.path, size)

    def read(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Read all lines, or those of one kind. An unterminated last line, cut short by a crash, is skipped."""
        self.flush()
        if not self.path.exists():
            return []
        try:
            lines = self.path.read_bytes().decode("utf-8").split("\n")[:-1]
            values = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.path} is damaged: {error}") from None
        if not all(isinstance(value, dict) for value in values):
            raise StoreError(f"{self.path} is damaged: one of its lines is not a JSON object")
        return [value for value in values if kind is None or value.get("kind") == kind]


class NullMetrics(Metrics):
    """Metrics of a process that does not write: the main process does."""

    def write(self, kind: str, **values: Any) -> None:
        """Do nothing."""

    def rewind(self, size: int) -> None:
        """Do nothing."""
