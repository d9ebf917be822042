"""A run as a folder: what was asked, where it ran, what it measured, and its result. No torch here.

run.json  config.json  environment.json  metrics.jsonl  checkpoints/  bundle/  result.json

failed.json stands there from the moment training fails until someone goes on or begins again.
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

if sys.platform != "win32":  # there the lock is a courtesy that is not offered
    import fcntl

_SECONDS_BETWEEN_FLUSHES = 1.0
_BEGINNING = re.compile(r"config\.json|\.lock|\.(config|run)\.json\.writing-\d+")
"""What a process that was killed before it wrote run.json leaves: nothing that is worth keeping."""
_FAILED = "failed.json"
_UNSAVED = re.compile(
    r"(run|config|environment|inputs|plan|receipt|failed)\.json|metrics\.jsonl|\.lock|\.\w+\.jsonl?\.writing-\d+"
)
"""What a run that saved nothing leaves."""
_REUSED = re.compile(r"tokens(-\d+)?|tokenizer")
"""Text that it prepared: whoever asks for the same finds it there, and anything else replaces it."""


class RunFolder:
    """A folder that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = Metrics(path / "metrics.jsonl")
        """The numbers of this run, in order."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: Path, *, kind: str, command: str, config: Section, inputs: dict[str, Any]) -> "RunFolder":
        """Start a run in a new or empty folder, or in place of one that failed before it had saved anything.

        Args:
            inputs: the files and folders the run reads, as the person wrote them; resuming reads them again.
        """
        room = _remove_unsaved_run(path)
        if (path / "run.json").exists():
            raise UsageError(f"{path} already holds a run; continue it with --resume, or choose another --out")
        if path.is_file():
            raise UsageError(f"{path} is a file; --out names a folder to write")
        if path.is_dir() and not room and not all(_BEGINNING.fullmatch(entry.name) for entry in path.iterdir()):
            raise UsageError(f"{path} is not empty; choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {path}: {os_error_reason(error, path)}") from None
        run = cls(path)
        write_json(path / "config.json", config.model_dump(mode="json"))
        facts = {"format": FORMAT, "kind": kind, "command": command, "headstart": __version__, "inputs": inputs}
        write_checksummed(path / "run.json", facts | {"config": sha256_of(path / "config.json")})
        return run

    @classmethod
    def open(cls, path: Path, *, kind: str) -> "RunFolder":
        """An existing run of the expected kind."""
        if not (path / "run.json").is_file():
            raise UsageError(f"{path} holds no run; start one without --resume")
        run = cls(path)
        facts = run.facts
        if facts.get("format") != FORMAT:
            raise StoreError(f"{path} {wrong_format_error(facts.get('format'), 'start another run')}")
        if not isinstance(facts.get("inputs"), dict):
            raise StoreError(f"{path / 'run.json'} is damaged: it does not say what the run reads")
        if facts.get("kind") != kind:
            raise UsageError(f"{path} holds a {facts.get('kind')} run, not a {kind} run")
        return run

    @property
    def facts(self) -> dict[str, Any]:
        """What `run.json` says."""
        return read_checksummed(self.path / "run.json")

    @property
    def settings(self) -> dict[str, Any]:
        """What `config.json` says, if it is what the run was started with: with other settings it would be another run."""
        path = self.path / "config.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or self.facts.get("config", sha256_of(path)) != sha256_of(path):
            raise StoreError(f"{path} is not what {self.path} was started with; put it back, or start another run")
        return settings

    @property
    def finished(self) -> bool:
        """True once the result is there: it is written last."""
        return (self.path / "result.json").is_file()

    @contextmanager
    def remove_on_error(self, new: bool) -> Iterator[None]:
        """Take a new run folder away again when its inputs turn out to be wrong: nothing half-written stays behind."""
        try:
            yield
        except BaseException:  # an interruption here, too, leaves nothing that is worth resuming
            if new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @contextmanager
    def record_failure(self) -> Iterator[None]:
        """Leave a note where training fails: if nothing was saved, the same folder may be named again."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Interrupted) and self.path.is_dir():
                with suppress(StoreError, OSError):  # a full disk must not hide what went wrong
                    self.write_json(_FAILED, {"error": type(error).__name__})
            raise

    def check_inputs_unchanged(self, facts: dict[str, Any]) -> None:
        """Remember what the run reads when it starts; refuse to go on when that has changed since."""
        path = self.path / "inputs.json"
        if not path.is_file():
            write_checksummed(path, facts)
            return
        before = read_checksummed(path)
        for name, value in facts.items():
            if before.get(name) != value:
                raise UsageError(f"{name} is not what {self.path} was started with; put it back, or start another run")

    def write_json(self, name: str, content: dict[str, Any], *, checksummed: bool = False) -> None:
        """Write a JSON file of the run."""
        (write_checksummed if checksummed else write_json)(self.path / name, content)

    def check_present(self) -> None:
        """Refuse to go on in a folder that was moved or deleted: half of a run would come into being in its place."""
        if not (self.path / "run.json").is_file():
            raise _missing_error(self.path)

    def remove_checkpoints(self) -> None:
        """Let go of what only an unfinished run needs; the bundle and the result stay."""
        for leftover in (self.path / "checkpoints", *self.path.glob("best-epoch-*")):
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; the lock goes with the process, however it ends."""
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
    """A run folder as seen by a process that helps with the run: another one writes, and keeps the lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metrics = NullMetrics(path / "metrics.jsonl")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The other process keeps everybody else out."""
        yield

    @contextmanager
    def remove_on_error(self, new: bool) -> Iterator[None]:  # noqa: ARG002
        """The other process takes the folder away, if it has to go."""
        yield

    def check_inputs_unchanged(self, facts: dict[str, Any]) -> None:
        """The other process has looked."""

    def write_json(self, name: str, content: dict[str, Any], *, checksummed: bool = False) -> None:
        """Nothing is written."""

    def remove_checkpoints(self) -> None:
        """Nothing is taken away."""


def _remove_unsaved_run(path: Path) -> bool:
    """Take away what a failed run left, if it had saved nothing; whatever is not known to be worthless is left alone."""
    if not (path / _FAILED).is_file():
        return False
    saved = path / "checkpoints"
    if saved.is_dir() and not any(saved.iterdir()):
        saved.rmdir()
    left = [entry for entry in path.iterdir() if not (_REUSED.fullmatch(entry.name) and entry.is_dir())]
    if not all(_UNSAVED.fullmatch(entry.name) and entry.is_file() for entry in left):
        return False
    for entry in sorted(
        left, key=lambda entry: entry.name == _FAILED
    ):  # the note last: until then it can be done again
        entry.unlink()
    return True


def _missing_error(path: Path) -> StoreError:
    return StoreError(f"{path} is gone: it was moved or deleted while the run was under way")


class Metrics:
    """An append-only file of JSON lines, each with its `kind`. Lines reach the file within seconds, and before a checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []
        self._flushed = time.monotonic()

    def write(self, kind: str, **values: Any) -> None:
        """Append one line. What a crash loses was written after the last checkpoint, and would be rewound anyway."""
        self._waiting.append(json.dumps({"kind": kind, **values}, ensure_ascii=False, allow_nan=False) + "\n")
        if kind != "step" or time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        self._flushed = time.monotonic()
        if not self._waiting:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(self._waiting))
        except FileNotFoundError:
            raise _missing_error(self.path.parent) from None
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
        self._waiting.clear()

    def size(self) -> int:
        """Bytes written so far, once they have reached the disk: a checkpoint remembers this."""
        self.flush()
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def rewind(self, size: int) -> None:
        """Forget what was written after a checkpoint."""
        self._waiting.clear()
        found = self.path.stat().st_size if self.path.exists() else 0
        if found < size:
            raise StoreError(f"{self.path} is damaged: {found} bytes where {size} were written")
        if found:
            os.truncate(self.path, size)

    def read(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines, all or of one kind. A last line without its end was being written when the power went: it is left out."""
        self.flush()
        if not self.path.exists():
            return []
        try:
            lines = self.path.read_bytes().decode("utf-8").split("\n")[:-1]
            values = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.path} is damaged: {error}") from None
        if not all(isinstance(value, dict) for value in values):
            raise StoreError(f"{self.path} is damaged: a line of it is no JSON object")
        return [value for value in values if kind is None or value.get("kind") == kind]


class NullMetrics(Metrics):
    """The numbers of a run that another process writes down."""

    def write(self, kind: str, **values: Any) -> None:
        """Nothing."""

    def rewind(self, size: int) -> None:
        """Nothing."""
