"""Tiny real objects that the tests share. Width 16, two layers, a vocabulary of 17: large enough to be wrong."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fixtures.order import LONGEST
from fixtures.processes import end_survivors, mark_processes

REPOSITORY = Path(__file__).parent.parent

# a shell starts what runs in its background deaf to Ctrl-C, and every process of a test would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no test asserts how long something takes, and a busy machine must not fail one
settings.register_profile("any time", deadline=None)
settings.load_profile("any time")


mark_processes()
# a test compiles one small function at a time: processes for that would only import torch
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# without bytecode, every process that a test starts would compile the whole package again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; a worker runs whole files (`--dist loadfile`), whose fixtures are made once."""
    position = {REPOSITORY / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: position.get(item.path, len(position)))


@pytest.fixture(scope="session", autouse=True)
def _no_process_survives_the_session() -> Iterator[None]:
    """Tests and fixtures end what they start. This fixture is set up first, and therefore torn down last."""
    yield
    survivors = end_survivors(set())
    assert not survivors, "still running after the last test: " + "; ".join(survivors)


@pytest.fixture(scope="session", autouse=True)
def _files_are_not_flushed_to_the_disk() -> Iterator[None]:
    """A flush takes milliseconds, a run has hundreds, and files survive a killed process without it; tests cut no power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _one_thread_and_no_leftovers() -> Iterator[None]:
    """Tests compare bits: one thread, the usual determinism, whatever an earlier test set."""
    import torch

    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data, for tests marked `data`."""
    folder = os.environ.get("HEADSTART_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real data not found; set HEADSTART_DATA to the folder that holds it")
    return Path(folder)
