"""Files on the web are read like any other, here from a local server."""

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import read_labelled
from headstart.errors import DataError


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """The address of a server of the folder of the test."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("requests")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_on_the_web_is_read(server, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nfine,1\ndull,0\n")
    rows = read_labelled(f"{server}/train.csv", LabelledConfig())
    assert (rows.texts, rows.labels) == (("fine", "dull"), ("1", "0"))
    assert rows.where[0] == f"{server}/train.csv, row 1"


def test_a_missing_url_is_reported(server):
    with pytest.raises(DataError) as caught:
        read_labelled(f"{server}/train.csv", LabelledConfig())
    assert str(caught.value) == f"no such file: {server}/train.csv"


def test_the_packages_that_urls_need_are_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    from fsspec.registry import _registry

    monkeypatch.delitem(_registry, "https", raising=False)
    with pytest.raises(DataError) as caught:
        list(read_documents(["https://example.org/a.txt"], CorpusConfig()))
    assert str(caught.value) == (
        "cannot open https://example.org/a.txt: reading URLs needs two more packages; install them with: pip "
        'install "headstart[url]"'
    )


def test_a_protocol_that_needs_a_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(DataError) as caught:
        list(read_documents(["s3://bucket/a.txt"], CorpusConfig()))
    assert str(caught.value) == "cannot open s3://bucket/a.txt: Install s3fs to access S3"
