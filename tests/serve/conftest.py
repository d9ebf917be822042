"""Tiny trained models, and the servers that most tests share, each in its own process."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from fixtures.serving import Server
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from fixtures.waiting import PATIENCE


@pytest.fixture(scope="session", autouse=True)
def _require_serve_extra() -> None:
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name, reason="the extra `serve` is not installed")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model `base`, a classifier `clf` and their data."""
    from fixtures.recipes import finetune_run, pretrain_run

    folder = write_reviews(tmp_path_factory.mktemp("served"), train=200, valid=80, test=40)
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=10))
    train, valid = str(folder / "train.csv"), str(folder / "valid.csv")
    finetune_run(train, folder / "clf", finetune_config(loop__epochs=2), backbone=str(folder / "base"), valid=valid)
    return folder


@pytest.fixture(scope="session")
def classifier(served: Path) -> Iterator[Server]:
    """A server of the classifier with default settings."""
    with Server(served / "clf", "--serve.log") as server:
        yield server


@pytest.fixture(scope="session")
def language(served: Path) -> Iterator[Server]:
    """A server of the language model that admits two requests at once."""
    with Server(served / "base", "--serve.concurrency", 2, "--serve.tokens", 300) as server:
        yield server


@pytest.fixture(scope="session")
def strict(served: Path) -> Iterator[Server]:
    """A server that needs a key and has low limits."""
    low_limits = ["--serve.texts", 3, "--serve.queue", 8, "--serve.characters", 50, "--serve.body", 1000]
    with Server(served / "clf", *low_limits, HEADSTART_API_KEY="open-sesame") as server:
        yield server


@pytest.fixture(scope="session")
def crowded(served: Path) -> Iterator[Server]:
    """A server with a short queue, which a test may stop."""
    with Server(served / "clf", "--serve.queue", 80, "--serve.texts", 40) as server:
        yield server


def client(server: Server, **headers: str) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, headers=headers, timeout=PATIENCE)


@pytest.fixture
def ask(classifier: Server) -> Iterator[httpx2.Client]:
    with client(classifier) as http_client:
        yield http_client


@pytest.fixture
def ask_language(language: Server) -> Iterator[httpx2.Client]:
    with client(language) as http_client:
        yield http_client


@pytest.fixture
def ask_strict(strict: Server) -> Iterator[httpx2.Client]:
    with client(strict, Authorization="Bearer open-sesame") as http_client:
        yield http_client
