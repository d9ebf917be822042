"""Clients that open connections and send less than the head of a request: a server must go on answering the others."""

import http.client
import json
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fixtures.serving import Server
from fixtures.waiting import PATIENCE

HEADS = {
    "half a head": b"POST /next HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le",
    "nothing": b"",
    "a head after an answer": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea",
}
REPEATS = 5


def torture(model: Path, connections: int) -> Iterator[dict[str, Any]]:
    """Open so many connections of each kind to a server that may have fewer files open, and ask it meanwhile."""
    files = connections - 76  # 1,024, the usual limit, for 1,100 connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, connections + 200)), hard))
    try:
        with Server(model, "--serve.head-deadline", 3, files=files) as server:
            for name, head in HEADS.items():
                yield {"name": name, "connections": connections, "files": files} | _besiege(server, head, connections)
            code = server.stop()
            faults = [f"it ended with {code}: {server.log[-300:]}"] if code else []
            yield {"name": "the end of the server", "connections": 0, "files": files, "answered": 0, "faults": faults}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _besiege(server: Server, head: bytes, connections: int) -> dict[str, Any]:
    address = urlsplit(server.url)
    host, port = str(address.hostname), int(address.port or 0)
    slow: list[socket.socket] = []
    faults: list[str] = []
    answered = 0
    try:
        for _ in range(connections):
            slow.append(socket.create_connection((host, port), timeout=PATIENCE))
            slow[-1].sendall(head)
        for number in range(REPEATS):
            try:
                answered += _ask(host, port)
            except OSError as error:
                faults.append(f"request {number} of {REPEATS} had no answer: {error!r}")
                break
        left_open = _wait_until_closed(slow)
        if left_open:
            faults.append(f"{left_open} connections were left open")
    finally:
        for one in slow:
            one.close()
    return {"answered": answered, "faults": faults}


def _ask(host: str, port: int) -> int:
    """Ask whether the server lives and for a prediction, each on a connection of its own; return how many answered."""
    body = json.dumps({"prompt": "the film", "count": 2})
    answered = 0
    for method, path, content in (("GET", "/health", None), ("POST", "/next", body)):
        client = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        client.request(method, path, content, {"Content-Type": "application/json"})
        answered += client.getresponse().status == 200
        client.close()
    return answered


def _wait_until_closed(slow: list[socket.socket]) -> int:
    """Read from all connections until the server has closed them; return how many it left open."""
    deadline = time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        for one in slow:
            selector.register(one, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(timeout=PATIENCE):
                try:
                    closed = not key.fileobj.recv(65536)  # type: ignore[union-attr]
                except OSError:
                    closed = True
                if closed:
                    selector.unregister(key.fileobj)
        return len(selector.get_map())
