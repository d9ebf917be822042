"""Mutated requests for the real app behind its real gate, in this process: no socket, but what a server's parser lets through.

An answer is `read`, a refusal with its one line is `refused`; a fault of the server, an answer that the OpenAPI document
does not promise, or one that is not JSON, gave.
"""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headstart.errors import HeadstartError

BODIES: dict[str, list[Any]] = {
    "predict": [
        {"text": "the film was great, but it was long"},
        {"texts": ["a lovely scene", "this dull plot — and \u00e9t\u00e9 \ud83d\ude00", "x " * 40]},
        {"texts": ["the story"], "abstain": 0.5},
    ],
    "explain": [{"text": "a lovely and clever film"}, {"text": "the plot was dull", "label": "negative"}],
    "generate": [
        {"prompt": "the film", "tokens": 6, "stream": False},
        {"prompt": "the", "tokens": 4, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 3},
    ],
    "next": [{"prompt": "the film was", "count": 5}],
}
"""Valid bodies of each route."""
HEAD = (
    "POST /{} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Type: application/json; charset=utf-8\r\nAccept: */*\r\n"
    "X-Deadline-Ms: 9000\r\nAuthorization: Bearer open-sesame\r\nContent-Length: {}\r\n\r\n"
)
KEY = "open-sesame"


class Refused(HeadstartError):
    """The server said no, in one line."""


class Desk:
    """The app of one model on an event loop of its own, in the process that made it."""

    def __init__(self, folder: Path) -> None:
        from headstart.config.schema import RuntimeConfig
        from headstart.serve.app import build_app
        from headstart.serve.config import ServeConfig
        from headstart.serve.service import Service

        self.owner = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.service = Service(
            folder,
            ServeConfig(tokens=64, texts=8, characters=6000, body=40_000),
            RuntimeConfig(device="cpu", threads=1),
        )
        self.gate = build_app(self.service, KEY)
        self.loop.run_until_complete(self._start())
        _, document = self.ask(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: open-sesame\r\n\r\n")
        self.promised = {
            path: set(one["post"]["responses"]) for path, one in document["paths"].items() if "post" in one
        }

    async def _start(self) -> None:
        self.service.start()

    def ask(self, raw: bytes) -> tuple[int, Any]:
        """The status and the content of the answer to some bytes; what is no request at all is refused before the app."""
        import h11

        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=65_536)
        messages: list[dict[str, Any]] = []
        try:
            parser.receive_data(raw)
            request = parser.next_event()
            if not isinstance(request, h11.Request):
                raise Refused("the request is not whole")
            while isinstance(event := parser.next_event(), h11.Data):
                messages.append({"type": "http.request", "body": bytes(event.data), "more_body": True})
        except h11.RemoteProtocolError as error:
            raise Refused(f"invalid HTTP request: {error}") from None
        whole = isinstance(event, h11.EndOfMessage)
        messages.append(
            {"type": "http.request", "body": b"", "more_body": False} if whole else {"type": "http.disconnect"}
        )
        # of every few clients one leaves as soon as it has asked
        path, _, query = bytes(request.target).partition(b"?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "method": request.method.decode("ascii"), "path": unquote(path.decode("ascii")), "raw_path": path,
            "query_string": query, "root_path": "", "headers": [(name.lower(), value) for name, value in request.headers],
            "client": ("127.0.0.1", 4242), "server": ("127.0.0.1", 8000), "state": {},
        }  # fmt: skip
        return self.loop.run_until_complete(self._answer(scope, messages, patient=len(raw) % 16 != 3))

    async def _answer(self, scope: dict[str, Any], messages: list[dict[str, Any]], *, patient: bool) -> tuple[int, Any]:
        waiting = iter(messages)
        sent: list[Any] = []

        async def receive() -> Any:
            message = next(waiting, None)
            if message is None and patient:
                await asyncio.Event().wait()  # the client waits for its answer
            return message or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.gate(scope, receive, send)
        status, headers = sent[0]["status"], dict(sent[0]["headers"])
        body = b"".join(part.get("body", b"") for part in sent[1:])
        assert headers[b"x-content-type-options"] == b"nosniff"
        kind = headers.get(b"content-type", b"")
        if kind.startswith(b"text/event-stream"):
            events = body.decode().split("\n\n")[:-1]
            return status, [json.loads(event.removeprefix("data: ")) for event in events]
        return status, json.loads(body) if kind.startswith(b"application/json") else body.decode()

    def check(self, raw: bytes, path: str) -> None:
        """Ask, and see that the answer is one that a server may give."""
        status, content = self.ask(raw)
        own = b"x-deadline-ms" in raw.lower()  # who asks for less time than it takes is told so
        assert status < 500 or (status == 504 and own), f"the server failed with {status}: {content}"
        promised = self.promised[path] | {"405"}  # of other methods the document does not speak
        assert str(status) in promised, f"no word of {status} in the document"
        if status >= 400:
            assert set(content) == {"error", "detail"}, f"an answer of another shape: {content}"
            raise Refused(content["detail"])


def request(path: str, body: bytes) -> bytes:
    """A whole request, its length as it is."""
    return HEAD.format(path, len(body)).encode() + body


def requests(models: dict[str, Path], add: Callable[..., None]) -> None:
    """A reader for the bodies of each route, and one for requests from the first byte to the last."""
    desks: dict[Path, Desk] = {}

    def desk(path: str, size: int) -> Desk:
        """The model that a route is for; of every few requests one comes to the other."""
        language = (path in ("generate", "next")) != (size % 16 == 5)
        folder = models["language" if language else "classifier"]
        if folder not in desks or desks[folder].owner != os.getpid():  # threads and loops do not survive a fork
            desks[folder] = Desk(folder)
        return desks[folder]

    def ask(at: Path) -> None:
        changed = [file for file in sorted(at.iterdir()) if file.read_bytes() != original[file.name]]
        for file in changed:
            path, content = file.name.partition("-")[0], file.read_bytes()
            desk(path, len(content)).check(request(path, content) if file.suffix == ".json" else content, f"/{path}")
        for file in () if changed else sorted(at.iterdir()):  # control: as they are, all are answered
            path, content = file.name.partition("-")[0], file.read_bytes()
            desk(path, 0).check(request(path, content) if file.suffix == ".json" else content, f"/{path}")

    original: dict[str, bytes] = {}
    for path, bodies in BODIES.items():
        files = {f"{path}-{number}.json": json.dumps(body).encode() for number, body in enumerate(bodies)}
        original |= files
        add(f"HTTP body of /{path}", files, ask)
    files = {
        f"{path}-{number}.http": request(path, json.dumps(body).encode())
        for path, bodies in BODIES.items()
        for number, body in enumerate(bodies)
    }
    original |= files
    add("HTTP request", files, ask)
