"""From a folder to a port: load, bind, serve, and leave no accepted request without its answer."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from headstart.config.schema import RuntimeConfig
from headstart.errors import Interrupted, UsageError
from headstart.progress import pluralize
from headstart.serve.config import ServeConfig, api_key

try:
    import uvicorn

    from headstart.serve.app import build_app
    from headstart.serve.middleware import ServiceMiddleware as Gate
    from headstart.serve.service import Service
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("fastapi", "starlette", "uvicorn"):
        raise
    raise UsageError(f"serve needs {error.name}, which is not installed; pip install 'headstart[serve]'") from None


def run_server(
    folder: Path,
    config: ServeConfig,
    runtime: RuntimeConfig | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Serve a bundle until SIGTERM or SIGINT; returns when all that was accepted is answered."""
    key = api_key(config)
    listening = _bound(config)
    try:
        service = Service(folder, config, runtime)
        gate = build_app(service, key)
        host, port = listening.getsockname()[:2]
        say(f"serving {folder} at http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops)")
        if not config.loopback and key is None:
            say("anyone who can reach this machine can ask; HEADSTART_API_KEY or --api-key-file asks them for a key")
        server = _Server(_settings(gate), gate)
        server.run(sockets=[listening])
    finally:
        listening.close()
    if server.force_exit:
        raise Interrupted("stopped at once; requests in hand were not answered", server.reason)
    say(f"stopped: {pluralize(gate.answered, 'request')} answered")


def _bound(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # the protocol is named because asyncio asks for it before it turns Nagle's delay off: 40 ms an answer otherwise
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
        listening.listen(2048)
        return listening
    except (OSError, OverflowError, UnicodeError) as error:
        listening.close()
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(getattr(error, "strerror", None) or error)
        tip = "; choose another --port, or 0 for any that is free" if "in use" in reason else ""
        raise UsageError(f"cannot listen at {config.host} port {config.port}: {reason}{tip}") from None


def _settings(gate: "Gate") -> "uvicorn.Config":
    return uvicorn.Config(
        gate,
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
    """Uvicorn, but the first signal drains and the exit code is 0; the second stops at once."""

    def __init__(self, config: "uvicorn.Config", gate: "Gate") -> None:
        super().__init__(config)
        self.gate, self.reason = gate, "SIGINT"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising the signal once more at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Let nobody in; the second time, leave."""
        if self.gate.draining:
            self.reason = signal.Signals(sig).name
            self.force_exit = self.should_exit = True
        else:
            self.gate.drain()

    async def on_tick(self, counter: int) -> bool:
        """Leave once everyone has an answer."""
        self.should_exit = self.should_exit or self.gate.drained(len(self.server_state.connections))
        return await super().on_tick(counter)
