"""Connections under limits: the time for the head of a request, and how many connections may be open or wait.

A client that opens connections and sends half a request head on each must not keep others from an answer. So a head has
a deadline, and where too many connections wait for one, the oldest is closed: a client that sends its request at once
is not the oldest. Everything here runs on the event loop's thread.
"""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headstart.serve.middleware import HEADERS, HTTPError, ServerMetrics

RESERVED_FILES = 256
"""File descriptors that connections leave free: for files, and for connections that are accepted or closed just now."""
ACCEPTED_AT_ONCE = 32
"""Connections that the event loop accepts before it closes those that are too many; far fewer than are reserved."""


def reserve_files(connections: int) -> int:
    """Raise the process's limit of open files for so many connections; return how many it allows."""
    if sys.platform == "win32":  # which has no such limit
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, max(soft - RESERVED_FILES, soft // 2))


class ConnectionLimits:
    """The connections that wait for the head of a request, by address and oldest first, and their limits.

    Args:
        connections: connections that may be open; half of them may wait from one address.
        head_deadline: seconds in which the head of a request must arrive.
    """

    def __init__(self, connections: int, head_deadline: float, metrics: ServerMetrics) -> None:
        self.connections, self.head_deadline, self.metrics = connections, head_deadline, metrics
        self._per_address = max(1, connections // 2)
        self._waiting: dict[str, dict[LimitedProtocol, None]] = {}
        metrics.gauges["waiting_connections"] = lambda: sum(map(len, self._waiting.values()))

    def add(self, connection: "LimitedProtocol", num_open: int) -> None:
        """Add a waiting connection; close the oldest waiting ones if there are too many."""
        waiting = self._waiting.setdefault(connection.address, {})
        waiting[connection] = None
        if len(waiting) > self._per_address:
            self._close_oldest(waiting)
        elif num_open > self.connections:
            self._close_oldest(max(self._waiting.values(), key=len))

    def discard(self, connection: "LimitedProtocol") -> None:
        """Remove a connection that is no longer waiting."""
        waiting = self._waiting.get(connection.address, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(connection.address, None)

    def _close_oldest(self, waiting: "dict[LimitedProtocol, None]") -> None:
        oldest = next(iter(waiting))
        self.discard(oldest)
        self.metrics.events["refused_connections"] += 1
        oldest.refuse(HTTPError(503, "too many open connections are waiting for a request; try again later", 1))


class LimitedProtocol(H11Protocol):
    """uvicorn's connection, with a deadline for the head of a request and with errors in JSON."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._start_timer()
        self._limits.add(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what arrives; a request after an earlier one on this connection gets its own deadline."""
        if self._head_timer is None and not self._in_request:
            self._start_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        """Stop waiting once the head of a request is complete."""
        super().handle_events()
        if self._in_request:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        if not self.transport.is_closing():
            self._limits.add(self, len(self.connections))
        super().on_response_complete()
        if self.conn.trailing_data[0] and not self._in_request and not self.transport.is_closing():
            self._start_timer()  # part of the next request came with the last one

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Respond to invalid HTTP with an error in JSON; a response that has started is left incomplete."""
        if self._in_request:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answers = not (self._in_request and self.cycle.response_started)
        self._close_with(HTTPError(400, "this is not a valid HTTP request") if answers else None)

    def refuse(self, error: HTTPError) -> None:
        """Close a connection that waits, with an error if part of a request has arrived."""
        self._close_with(error if self.conn.trailing_data[0] else None)

    def _close_with(self, error: HTTPError | None) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if error is not None:
            self.transport.write(_error_response(error))
        self.transport.close()

    @property
    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_deadline, self._close_late)

    def _stop_waiting(self) -> None:
        self._limits.discard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_late(self) -> None:
        self._limits.metrics.events["slow_heads"] += 1
        self.refuse(HTTPError(408, "the request head was not received in time"))


def _error_response(error: HTTPError) -> bytes:
    """Return a whole response as bytes, for a connection on which no request was read."""
    body = json.dumps(error.body()).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    headers |= error.headers() | {name.decode(): value.decode() for name, value in HEADERS}
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
