"""ASGI middleware in front of every route: host, key, limits, headers, error bodies and Prometheus metrics.

An error is one JSON object, `{error, detail}`, with a status. The middleware is plain ASGI, so that a body is counted
while it arrives. Everything here runs on the event loop's thread.
"""

import asyncio
import hmac
import json
import logging
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any

from headstart.serve.config import ServeConfig

LOG = logging.getLogger("headstart.serve")
ERRORS = {
    400: "bad_request",
    401: "no_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "slow_request",
    413: "too_large",
    415: "not_json",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "busy",
    504: "deadline",
}
"""The error code of each status, for programs; the detail is for people."""


class HTTPError(Exception):
    """An error response.

    Args:
        retry_after: seconds after which the client may try again.
    """

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after

    def body(self) -> dict[str, str]:
        """Return the JSON body."""
        return {"error": ERRORS.get(self.status, "error"), "detail": self.detail}

    def headers(self) -> dict[str, str]:
        """Return the extra headers."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def deadline_error() -> HTTPError:
    """Return the error of a request that exceeded its deadline."""
    return HTTPError(504, "the deadline passed before the response was ready; send fewer texts, or allow more time")


def unexpected_error(error: BaseException) -> HTTPError:
    """Log the location of an internal error, without any text of the request; return one line for the client."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    LOG.error("unexpected %s in %s, line %s", type(error).__name__, frame.filename.rsplit("/", 1)[-1], frame.lineno)
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        return HTTPError(503, "the model ran out of memory; send fewer or shorter texts", 5)
    return HTTPError(500, "the server failed on this request")


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values by range, for Prometheus."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the cumulative buckets, the sum and the count."""
        cumulative = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == float("inf") else f"{edge:g}"}"}} {cumulative}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {cumulative}"


class ServerMetrics:
    """Counters, gauges and histograms of a server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.events: Counter[str] = Counter()
        """Counts of texts, tokens, truncated texts, batches, texts expired in the queue, and idle connections closed."""
        self.seconds, self.batch_texts = Histogram(SECONDS), Histogram(TEXTS)
        self.gauges: dict[str, Callable[[], float]] = {}
        """Functions that return the current value."""

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        lines = ["# TYPE headstart_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'headstart_requests_total{{path="{path}",status="{status}"}} {count}')
        for name in ("texts", "tokens", "truncated", "batches", "expired", "slow_heads", "refused_connections"):
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

PUBLIC_PATHS = frozenset({"/", "/page.css", "/page.js", "/health", "/ready"})
"""Paths that need no key: the page contains no data, and asks the user for the key."""
ROUTES = PUBLIC_PATHS | {"/predict", "/explain", "/generate", "/next", "/metrics", "/about", "/report", "/openapi.json"}
DRAIN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are answered while the server drains."""
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
_MAX_DISCARDED_BYTES = 64_000_000
"""Bytes of an oversized body that are read and discarded, so that the client receives the error."""
_MAX_BODY_SECONDS = 10.0
_DRAIN_SECONDS = 1.5
"""Seconds in which clients with an open connection get an error rather than a reset."""


class ServiceMiddleware:
    """The ASGI app that the server runs: checks, and the routes behind them."""

    def __init__(self, app: App, config: ServeConfig, metrics: ServerMetrics, key: str | None = None) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._key = None if key is None else key.encode()
        self._hosts = config.hosts()
        self.in_flight = 0
        """Requests that were admitted and are not answered yet."""
        self.num_answered = 0
        self._draining_since: float | None = None
        metrics.gauges["requests_in_hand"] = lambda: self.in_flight

    @property
    def draining(self) -> bool:
        """True if no request is admitted any more."""
        return self._draining_since is not None

    def drain(self) -> None:
        """Admit no further requests."""
        self._draining_since = time.monotonic()

    def drained(self, connections: int) -> bool:
        """Return True if every admitted request is answered and open connections had time to receive an error."""
        if self._draining_since is None or self.in_flight:
            return False
        return not connections or time.monotonic() - self._draining_since > _DRAIN_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _ResponseWriter(scope, send)
        scope["headstart.started"] = response.started
        admitted = body_read = False
        try:
            self._check(scope)
            if scope["method"] != "POST":
                await self._app(scope, receive, response.send)
                return
            self.in_flight, admitted = self.in_flight + 1, True
            body, body_read = await self._body(scope, receive), True
            await self._app(scope, _replay(body, receive), response.send)
        except HTTPError as error:
            if scope["method"] == "POST" and not body_read and error.status not in (400, 408, 413):
                await _discard(receive)
            await response.send_error(error, close=self.draining or error.status in (408, 413))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit) or response.begun:
                raise
            await response.send_error(unexpected_error(error), close=True)
        finally:
            self.in_flight -= admitted
            self.num_answered += 1
            self._record(scope, response)

    def _check(self, scope: Scope) -> None:
        """Raise an `HTTPError` unless the request may be admitted."""
        headers = _headers(scope)
        self._check_host(headers.get(b"host", b""))
        if self.draining and scope["path"] not in DRAIN_PATHS:
            raise HTTPError(503, "the server is shutting down; try again later", 5)
        if self._key is not None and scope["path"] not in PUBLIC_PATHS:
            self._check_key(headers)
        if scope["method"] == "POST" and self.in_flight >= self._config.concurrency:
            raise HTTPError(
                429, f"{self.in_flight} requests are in progress, which is the limit of this server; try again later", 1
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        headers = _headers(scope)
        content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if content_type != b"application/json":  # which also rejects the forms that other sites can submit
            raise HTTPError(415, "the body must be JSON, with the header Content-Type: application/json")
        length = headers.get(b"content-length", b"")
        return await self._read(receive, int(length) if length.isdigit() else 0)

    def _check_host(self, host: bytes) -> None:
        if self._hosts is None:
            return
        name = host.decode("latin-1").lower()
        name = name[1:].split("]")[0] if name.startswith("[") else name.rsplit(":", 1)[0]
        if name not in self._hosts:
            raise HTTPError(403, f"this server does not accept the host name {name[:60]!r}; add it with --allow-hosts")

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            key = headers.get(b"x-api-key", b"")
        assert self._key is not None
        if not hmac.compare_digest(key.strip(), self._key):
            raise HTTPError(401, "this server requires an API key: Authorization: Bearer KEY")

    async def _read(self, receive: Receive, content_length: int) -> bytes:
        """Read a body up to the limit; what is beyond it is discarded, so that the client receives the error."""
        limit = self._config.body
        chunks: list[bytes] = []
        size, more_body = content_length if content_length > limit else 0, True
        try:
            async with asyncio.timeout(min(self._config.deadline, _MAX_BODY_SECONDS)):
                while more_body and size <= _MAX_DISCARDED_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPError(400, "the client disconnected before its request was complete")
                    chunk, more_body = message.get("body", b""), message.get("more_body", False)
                    size += len(chunk) if content_length <= limit else 0
                    if size <= limit:
                        chunks.append(chunk)
        except TimeoutError:
            raise HTTPError(408, "the request body was not received in time") from None
        if size > limit:
            raise HTTPError(413, f"a request may have at most {limit:,} bytes; send fewer or shorter texts per request")
        return b"".join(chunks)

    def _record(self, scope: Scope, response: "_ResponseWriter") -> None:
        seconds = time.monotonic() - response.started
        path = scope["path"] if scope["path"] in ROUTES else "other"  # a client must not be able to invent label values
        self._metrics.requests[path, response.status] += 1
        self._metrics.seconds.add(seconds)
        if self._config.log:
            LOG.info("%s %s %d %.1f ms", scope["method"], path, response.status, 1000 * seconds)


class _ResponseWriter:
    """Sends a response with the headers that every response has."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self.status, self.started = scope, 500, time.monotonic()
        self.begun = False
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
            present = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in present)]
        await self._send(message)

    async def send_error(self, error: HTTPError, *, close: bool) -> None:
        body = json.dumps(error.body()).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | error.headers()
        headers |= {"Connection": "close"} if close else {}
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


async def _discard(receive: Receive) -> None:
    """Discard a body: closing a connection with unread bytes resets it, and the client never receives the error."""
    size, more_body = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_MAX_BODY_SECONDS):
            while more_body and size <= _MAX_DISCARDED_BYTES:
                message = await receive()
                size, more_body = size + len(message.get("body", b"")), message.get("more_body", False)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in scope["headers"]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body that was read, then all further messages."""
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
