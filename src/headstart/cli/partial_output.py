"""The resumable output of `headstart predict --input FILE --out OUT`.

Each window of rows is appended to `OUT.partial`. Then `OUT.partial.json` records the number of complete rows, and the input,
model and options that they depend on. The file is renamed to `OUT` when it is complete.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headstart.errors import StoreError, UsageError
from headstart.files import FORMAT, os_error_reason, read_checksummed, sha256_of, write_checksummed, wrong_format_error


@dataclass(frozen=True)
class PredictionSource:
    """The input, model and options of an output, which must be the same when the run is resumed."""

    input: str
    input_digest: str
    model: Path
    model_digest: str
    options: Mapping[str, Any]
    """The options that change the output, by name."""

    @classmethod
    def of(cls, file: str, model: Path, options: Mapping[str, Any]) -> "PredictionSource":
        """Compute the digests of a file and of the manifest of a model."""
        from headstart.files import MANIFEST
        from headstart.store.locate import find_bundle

        is_export = (model / "model.onnx").is_file()
        folder = model if is_export else find_bundle(model)
        manifest = folder / MANIFEST
        try:
            input_digest = sha256_of(Path(file))
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror or error}") from None
        return cls(file, input_digest, model, sha256_of(manifest) if manifest.is_file() else "", options)

    def facts(self) -> dict[str, Any]:
        """Return the values that the side file records."""
        return {"input": self.input_digest, "model": self.model_digest, "options": dict(self.options)}


@dataclass
class PartialOutput:
    """An output that is not complete yet."""

    out: Path
    source: PredictionSource
    threads: int = 0
    """The number of threads of the first process; another number could change the last digit of a probability."""
    rows: int = 0
    """The number of complete rows."""
    size: int = 0
    """The size of these rows in bytes."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of these rows, for the remarks at the end."""
    _hash: Any = field(default_factory=hashlib.sha256)
    """The sha256 of these rows so far."""

    @property
    def partial(self) -> Path:
        """The path of the file until it is complete."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def side_file(self) -> Path:
        """The path of the record of the complete rows and their source."""
        return self.out.with_name(f"{self.out.name}.partial.json")

    @classmethod
    def begin(cls, out: Path, source: PredictionSource, threads: int, *, resume: bool) -> "PartialOutput":
        """Begin an output, or continue one; the caller skips the first `rows` rows."""
        output = cls(out, source, threads)
        if not (output.partial.exists() and output.side_file.exists()):
            return output
        state = read_checksummed(output.side_file)
        if not resume:
            raise UsageError(
                f"{output.partial} has {state.get('rows', 0):,} rows of an unfinished run; "
                f"add --resume to continue, or delete it to start again"
            )
        output._restore(state)
        return output

    def write(self, text: str, rows: int, counts: Mapping[str, int]) -> None:
        """Append the text of some rows, and record that they are complete.

        Args:
            text: the rows as they are written.
            rows: their number.
            counts: the counts of all rows so far.
        """
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {self.out}: {os_error_reason(error, self.out)}") from error
        try:
            with self.partial.open("r+b" if self.rows else "wb") as file:
                self._append(file, text.encode("utf-8"))
        except OSError as error:
            raise StoreError(f"cannot write {self.out}: {error.strerror or error}") from error
        self.rows, self.counts = self.rows + rows, dict(counts)
        write_checksummed(self.side_file, self._state())

    def finish(self) -> None:
        """Rename the complete file to `out`."""
        try:
            self.partial.replace(self.out)
            self.side_file.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {self.out}: {error.strerror or error}") from error

    def _append(self, file: IO[bytes], content: bytes) -> None:
        file.truncate(self.size)  # a killed process may have written some of the next rows
        file.seek(self.size)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        self.size += len(content)
        self._hash.update(content)

    def _state(self) -> dict[str, Any]:
        progress = {"rows": self.rows, "bytes": self.size, "counts": self.counts, "threads": self.threads}
        return {"format": FORMAT} | self.source.facts() | progress | {"sha256": self._hash.hexdigest()}

    def _restore(self, state: dict[str, Any]) -> None:
        if state.get("format") != FORMAT:
            raise StoreError(f"{self.side_file} {wrong_format_error(state.get('format'), 'delete it to start again')}")
        self._check_source(state)
        try:
            self.rows, self.size, self.threads = int(state["rows"]), int(state["bytes"]), int(state["threads"])
            self.counts = {str(name): int(count) for name, count in state["counts"].items()}
            size = self.partial.stat().st_size
        except (AttributeError, KeyError, TypeError, ValueError, OSError):
            raise StoreError(f"{self.side_file} is damaged; delete it to start again") from None
        if size < self.size:
            raise StoreError(
                f"{self.partial} is damaged: {size} bytes where {self.size} were written; delete it to start again"
            )
        self._hash = self._hash_of_rows()
        if self._hash.hexdigest() != state.get("sha256"):
            raise StoreError(
                f"{self.partial} is damaged: its rows are not those that were written; delete it to start again"
            )

    def _hash_of_rows(self) -> Any:
        result, left = hashlib.sha256(), self.size
        with self.partial.open("rb") as file:
            while left and (content := file.read(min(left, 2**20))):
                result.update(content)
                left -= len(content)
        return result

    def _check_source(self, state: dict[str, Any]) -> None:
        source, remedy = self.source, f"delete {self.partial} to start again"
        if state.get("input") != source.input_digest:
            raise UsageError(f"{source.input} differs from the input of {self.partial} (sha256); {remedy}")
        if state.get("model") != source.model_digest:
            raise UsageError(f"{source.model} differs from the model of {self.partial} (sha256); {remedy}")
        before, now = state.get("options"), dict(source.options)
        if not isinstance(before, dict) or before != now:
            recorded = before if isinstance(before, dict) else {}
            names = sorted(name for name in {*recorded, *now} if recorded.get(name) != now.get(name))
            raise UsageError(f"{self.partial} has rows with other values of {', '.join(names)}; {remedy}")
