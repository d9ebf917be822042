"""A server as a process of its own, and a client for it. Imported by tests of the server and of its page."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from types import TracebackType

SOURCE = Path(__file__).parents[1] / "src"


class Server:
    """`headstart serve FOLDER ...` on a free port, until the end of a `with`."""

    def __init__(self, folder: Path, *options: object, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADSTART_")}
        words = ["serve", folder, "--port", 0, "--runtime.threads", 1, "--runtime.device", "cpu", *options]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would hold the server up
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headstart", *map(str, words)],
            env=kept | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80"} | variables,
            cwd=folder.parent,
            stdin=subprocess.DEVNULL,
            stderr=self._file,
        )

    @property
    def said(self) -> str:
        """All that it wrote so far."""
        return os.pread(self._file.fileno(), 1 << 24, 0).decode()

    @cached_property
    def url(self) -> str:
        """Where it answers; waits for the first line."""
        while (found := re.search(r"at (http://\S+) \(", self.said)) is None:
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        return found[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, wait for it, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._file.close()
