"""Run the server: bind, load, serve, and drain, so that every admitted request is answered."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

from headstart.config.schema import RuntimeConfig
from headstart.errors import Interrupted, UsageError
from headstart.progress import pluralize
from headstart.serve.config import ServeConfig, api_key

try:
    import uvicorn

    from headstart.serve.app import build_app
    from headstart.serve.connections import ACCEPTED_AT_ONCE, ConnectionLimits, LimitedProtocol, reserve_files
    from headstart.serve.middleware import ServiceMiddleware
    from headstart.serve.service import Service
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("fastapi", "starlette", "uvicorn"):
        raise
    raise UsageError(f"serve needs {error.name}, which is not installed; pip install 'headstart[serve]'") from None

_BACKLOG = 2048
"""Connections that the system holds until they are accepted."""


def run_server(
    folder: Path,
    config: ServeConfig,
    runtime: RuntimeConfig | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Serve a bundle until SIGTERM or SIGINT; return when every admitted request is answered."""
    key = api_key(config)
    sock = _bind(config)
    try:
        service = Service(folder, config, runtime)
        middleware = build_app(service, key)
        host, port = sock.getsockname()[:2]
        say(f"serving {folder} at http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops)")
        if not config.loopback and key is None:
            say(
                "anyone who can reach this machine can use the server; set HEADSTART_API_KEY or "
                "--api-key-file to require a key"
            )
        limits = ConnectionLimits(reserve_files(config.connections), config.head_deadline, service.metrics)
        server = _Server(_uvicorn_config(middleware, limits), middleware)
        server.run(sockets=[sock])
    finally:
        sock.close()
    if server.force_exit:
        raise Interrupted("stopped; requests in progress were not answered", server.reason)
    say(f"stopped: {pluralize(middleware.num_answered, 'request')} answered")


def _bind(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which costs 40 ms per answer, only if the protocol is named
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on other systems it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
        sock.listen(_BACKLOG)
        return sock
    except (OSError, OverflowError, UnicodeError) as error:
        sock.close()
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(getattr(error, "strerror", None) or error)
        tip = "; choose another --port, or 0 for any free port" if "in use" in reason else ""
        raise UsageError(f"cannot listen at {config.host} port {config.port}: {reason}{tip}") from None


def _uvicorn_config(middleware: ServiceMiddleware, limits: "ConnectionLimits") -> "uvicorn.Config":
    return uvicorn.Config(
        middleware,
        http=cast("type[LimitedProtocol]", partial(LimitedProtocol, limits=limits)),
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=65_536,
    )


class _Server(uvicorn.Server):
    """A uvicorn server that drains on the first signal, with exit code 0, and stops at once on the second."""

    def __init__(self, config: "uvicorn.Config", middleware: ServiceMiddleware) -> None:
        super().__init__(config)
        self.middleware, self.reason = middleware, "SIGINT"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with the full backlog; that of the settings is also how many connections asyncio accepts at once."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers without uvicorn's re-raising of the signal at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain on the first signal, exit on the second."""
        if self.middleware.draining:
            self.reason = signal.Signals(sig).name
            self.force_exit = self.should_exit = True
        else:
            self.middleware.drain()

    async def on_tick(self, counter: int) -> bool:
        """Exit once every admitted request is answered."""
        self.should_exit = self.should_exit or self.middleware.drained(len(self.server_state.connections))
        return await super().on_tick(counter)
