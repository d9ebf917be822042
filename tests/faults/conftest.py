"""What takes long is done once, however many processes share the tests."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a script of this folder, or take what another worker of the same session had from it."""
    own = tmp_path_factory.getbasetemp()
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    shared = own.parent / f"once-{session}" if session else own / "once"
    shared.mkdir(exist_ok=True)

    def run(script: str, *arguments: str) -> str:
        name = "-".join([script, *(word for word in arguments if word.isidentifier())])
        answer = shared / f"{name}.txt"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not answer.exists():
                folder = tmp_path_factory.mktemp(script.partition(".")[0])
                args = [word.format(folder=folder) for word in arguments]
                done = subprocess.run([sys.executable, str(HERE / script), *args], capture_output=True, text=True)
                assert done.returncode in (0, 1), done.stderr
                kept = folder / "answer.json"
                answer.write_text(kept.read_text() if kept.exists() else done.stdout)
        return answer.read_text()

    return run
