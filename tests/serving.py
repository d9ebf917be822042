"""A server as a process of its own, and a client for it. Imported by tests of the server and of its page."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SOURCE = Path(__file__).parents[1] / "src"


class Server:
    """`headstart serve FOLDER ...` on a free port, until the end of a `with`."""

    def __init__(self, folder: Path, *options: object, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADSTART_")}
        words = ["serve", folder, "--port", 0, "--runtime.threads", 1, "--runtime.device", "cpu", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headstart", *map(str, words)],
            env=kept | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80"} | variables,
            cwd=folder.parent,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.said = ""

    @property
    def url(self) -> str:
        """Where it answers; waits for the first line."""
        assert self.process.stderr is not None
        while (found := re.search(r"at (http://\S+) \(", self.said)) is None:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        return found[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, wait for it, and return its exit code; `said` then has all its lines."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.said += self.process.communicate(timeout=60)[1]
        return self.process.returncode

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()
