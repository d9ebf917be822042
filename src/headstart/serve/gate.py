"""What stands before every route: whose name was called, who asks, how much, how many at once; and what every answer says.

Plain ASGI, so that a body is counted while it arrives and not after.
"""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from headstart.serve.metrics import Metrics
from headstart.serve.refusals import Refusal
from headstart.serve.settings import ServeConfig

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("headstart.serve")
OPEN = frozenset({"/", "/page.css", "/page.js", "/health", "/ready"})
"""What needs no key: the page itself holds nothing, and asks for the key."""
ROUTES = OPEN | {"/predict", "/explain", "/generate", "/next", "/metrics", "/about", "/report", "/openapi.json"}
ALWAYS = frozenset({"/health", "/ready", "/metrics"})
"""What is answered to the last."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_DISCARDED = 64_000_000
"""Bytes of a body too large that are read away, so that the client can hear why."""
_SLOWEST_BODY = 10.0
_GOODBYE = 1.5
"""Seconds in which a client that asks again is told, rather than cut off."""


class Gate:
    """The app that the server runs: the gate, and the routes behind it."""

    def __init__(self, app: App, config: ServeConfig, metrics: Metrics, key: str | None = None) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._key = None if key is None else key.encode()
        self._hosts = config.hosts()
        self.in_hand = 0
        """Requests that were let in and are not answered yet."""
        self.answered = 0
        self._draining_since: float | None = None
        metrics.gauges["requests_in_hand"] = lambda: self.in_hand

    @property
    def draining(self) -> bool:
        """Whether nobody is let in any more."""
        return self._draining_since is not None

    def drain(self) -> None:
        """Let nobody in from now on."""
        self._draining_since = time.monotonic()

    def drained(self, connections: int) -> bool:
        """Whether all that were let in have their answers, and those who still hold a connection had time to hear of it."""
        if self._draining_since is None or self.in_hand:
            return False
        return not connections or time.monotonic() - self._draining_since > _GOODBYE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        scope["headstart.started"] = answer.started
        counted = read = False
        try:
            self._check(scope)
            if scope["method"] != "POST":
                await self._app(scope, receive, answer.send)
                return
            self.in_hand, counted = self.in_hand + 1, True
            body, read = await self._body(scope, receive), True
            await self._app(scope, _replayed(body, receive), answer.send)
        except Refusal as refusal:
            if scope["method"] == "POST" and not read and refusal.status not in (400, 408, 413):
                await _discard(receive)
            await answer.refuse(refusal, close=self.draining or refusal.status in (408, 413))
        finally:
            self.in_hand -= counted
            self.answered += 1
            self._record(scope, answer)

    def _check(self, scope: Scope) -> None:
        """Whether a request may come in."""
        headers = _headers(scope)
        self._check_host(headers.get(b"host", b""))
        if self.draining and scope["path"] not in ALWAYS:
            raise Refusal(503, "the server is stopping; ask another, or try again later", 5)
        if self._key is not None and scope["path"] not in OPEN:
            self._check_key(headers)
        if scope["method"] == "POST" and self.in_hand >= self._config.concurrency:
            raise Refusal(429, f"{self.in_hand} requests are in hand, as many as this server takes; try again later", 1)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        headers = _headers(scope)
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":  # which also keeps out what other sites' forms can send unasked
            raise Refusal(415, "the body must be JSON, with the header Content-Type: application/json")
        length = headers.get(b"content-length", b"")
        return await self._read(receive, int(length) if length.isdigit() else 0)

    def _check_host(self, host: bytes) -> None:
        if self._hosts is None:
            return
        name = host.decode("latin-1").lower()
        name = name[1:].split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        if name not in self._hosts:
            raise Refusal(403, f"this server does not answer to the name {name[:60]!r}; --allow-hosts may add it")

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        assert self._key is not None
        if not hmac.compare_digest(given.strip(), self._key):
            raise Refusal(401, "this server needs a key: Authorization: Bearer KEY")

    async def _read(self, receive: Receive, announced: int) -> bytes:
        most = self._config.body
        parts: list[bytes] = []
        size, more = announced if announced > most else 0, True
        try:
            async with asyncio.timeout(min(self._config.deadline, _SLOWEST_BODY)):
                while more and size <= _DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client left before its request was whole")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part) if announced <= most else 0
                    if size <= most:
                        parts.append(part)
        except TimeoutError:
            raise Refusal(408, "the body did not arrive in time") from None
        if size > most:
            raise Refusal(413, f"a request may have {most:,} bytes; ask for fewer or shorter texts at a time")
        return b"".join(parts)

    def _record(self, scope: Scope, answer: "_Answer") -> None:
        seconds = time.monotonic() - answer.started
        path = scope["path"] if scope["path"] in ROUTES else "other"  # a client must not be able to make up names
        self._metrics.requests[path, answer.status] += 1
        self._metrics.seconds.add(seconds)
        if self._config.log:
            LOG.info("%s %s %d %.1f ms", scope["method"], path, answer.status, 1000 * seconds)


class _Answer:
    """What is sent back: with the headers that every answer has."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self.status, self.started = scope, 500, time.monotonic()
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            there = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in there)]
        await self._send(message)

    async def refuse(self, refusal: Refusal, *, close: bool) -> None:
        body = json.dumps(refusal.body()).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | refusal.headers()
        headers |= {"Connection": "close"} if close else {}
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


async def _discard(receive: Receive) -> None:
    """Read a body away: a connection that is closed on unread bytes is reset, and its client never hears why."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_SLOWEST_BODY):
            while more and size <= _DISCARDED:
                message = await receive()
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in scope["headers"]}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more for the routes; after it, whatever else arrives."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
