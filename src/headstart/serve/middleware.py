"""ASGI middleware: host, key, limits, headers, error bodies and Prometheus counters.

What a client is told when it gets no answer: one JSON shape, `{error, detail}`, and a status.

Counts of what a server did, as the text that Prometheus reads. Used on one thread only: the event loop's.

What stands before every route: whose name was called, who asks, how much, how many at once; and what every answer says.

Plain ASGI, so that a body is counted while it arrives and not after.
"""

import asyncio
import hmac
import json
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any

from headstart.serve.config import ServeConfig

ERRORS = {
    400: "bad_request",
    401: "no_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "slow_body",
    413: "too_large",
    415: "not_json",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "busy",
    504: "deadline",
}
"""The word for each status, for programs; the detail is for people."""


class HTTPError(Exception):
    """A request that is not answered, and why.

    Args:
        retry_after: seconds after which it may be tried again.
    """

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after

    def body(self) -> dict[str, str]:
        """What the client reads."""
        return {"error": ERRORS.get(self.status, "error"), "detail": self.detail}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def deadline_error() -> HTTPError:
    """For whatever could not be answered in time."""
    return HTTPError(504, "the deadline passed before there was an answer; ask for less, or allow more time")


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often a value fell into each range."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        """Each range with all below it, the sum, and the count."""
        below = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == float("inf") else f"{edge:g}"}"}} {below}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {below}"


class ServerMetrics:
    """All that is counted."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.events: Counter[str] = Counter()
        """texts, tokens, truncated, batches, expired: what was read, and what came too late to be."""
        self.seconds, self.batch_texts = Histogram(SECONDS), Histogram(TEXTS)
        self.gauges: dict[str, Callable[[], float]] = {}
        """Values that are asked for when they are read."""

    def text(self) -> str:
        """Everything, in the text format."""
        lines = ["# TYPE headstart_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'headstart_requests_total{{path="{path}",status="{status}"}} {count}')
        for name in ("texts", "tokens", "truncated", "batches", "expired"):
            lines += [f"# TYPE headstart_{name}_total counter", f"headstart_{name}_total {self.events[name]}"]
        for name, value in self.gauges.items():
            lines += [f"# TYPE headstart_{name} gauge", f"headstart_{name} {value():g}"]
        for name, histogram in (("request_seconds", self.seconds), ("batch_texts", self.batch_texts)):
            lines += [f"# TYPE headstart_{name} histogram", *histogram.lines(f"headstart_{name}")]
        return "\n".join(lines) + "\n"


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


class ServiceMiddleware:
    """The app that the server runs: the gate, and the routes behind it."""

    def __init__(self, app: App, config: ServeConfig, metrics: ServerMetrics, key: str | None = None) -> None:
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
        answer = _ResponseWriter(scope, send)
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
        except HTTPError as refusal:
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
            raise HTTPError(503, "the server is stopping; ask another, or try again later", 5)
        if self._key is not None and scope["path"] not in OPEN:
            self._check_key(headers)
        if scope["method"] == "POST" and self.in_hand >= self._config.concurrency:
            raise HTTPError(
                429, f"{self.in_hand} requests are in hand, as many as this server takes; try again later", 1
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        headers = _headers(scope)
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":  # which also keeps out what other sites' forms can send unasked
            raise HTTPError(415, "the body must be JSON, with the header Content-Type: application/json")
        length = headers.get(b"content-length", b"")
        return await self._read(receive, int(length) if length.isdigit() else 0)

    def _check_host(self, host: bytes) -> None:
        if self._hosts is None:
            return
        name = host.decode("latin-1").lower()
        name = name[1:].split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        if name not in self._hosts:
            raise HTTPError(403, f"this server does not answer to the name {name[:60]!r}; --allow-hosts may add it")

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        assert self._key is not None
        if not hmac.compare_digest(given.strip(), self._key):
            raise HTTPError(401, "this server needs a key: Authorization: Bearer KEY")

    async def _read(self, receive: Receive, announced: int) -> bytes:
        most = self._config.body
        parts: list[bytes] = []
        size, more = announced if announced > most else 0, True
        try:
            async with asyncio.timeout(min(self._config.deadline, _SLOWEST_BODY)):
                while more and size <= _DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPError(400, "the client left before its request was whole")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part) if announced <= most else 0
                    if size <= most:
                        parts.append(part)
        except TimeoutError:
            raise HTTPError(408, "the body did not arrive in time") from None
        if size > most:
            raise HTTPError(413, f"a request may have {most:,} bytes; ask for fewer or shorter texts at a time")
        return b"".join(parts)

    def _record(self, scope: Scope, answer: "_ResponseWriter") -> None:
        seconds = time.monotonic() - answer.started
        path = scope["path"] if scope["path"] in ROUTES else "other"  # a client must not be able to make up names
        self._metrics.requests[path, answer.status] += 1
        self._metrics.seconds.add(seconds)
        if self._config.log:
            LOG.info("%s %s %d %.1f ms", scope["method"], path, answer.status, 1000 * seconds)


class _ResponseWriter:
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

    async def refuse(self, refusal: HTTPError, *, close: bool) -> None:
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
