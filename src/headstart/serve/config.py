"""Settings of the server: address, key and limits. No torch, no web framework."""

import os
from pathlib import Path

from pydantic import Field, model_validator

from headstart.config.schema import RuntimeConfig, Section
from headstart.errors import ConfigError, UsageError

KEY_VARIABLE = "HEADSTART_API_KEY"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServeConfig(Section):
    """How much a server takes at once, and how long a request may wait."""

    host: str = "127.0.0.1"
    """Where to listen; the default can be reached from this machine only."""
    port: int = Field(8000, ge=0, lt=65536)
    """0 takes any that is free; the first line printed says which."""
    api_key_file: str | None = None
    """A file with a key that requests must bring; or put the key into the variable HEADSTART_API_KEY."""
    allow_hosts: str | None = None
    """Further host names, with commas between, under which the server may be asked (behind a proxy, say)."""
    deadline: float = Field(30.0, gt=0, le=3600)
    """Seconds after which a request is given up; one may ask for less by the header X-Deadline-Ms."""
    body: int = Field(4_000_000, ge=1000)
    """Bytes a request may have."""
    texts: int = Field(256, ge=1)
    """Texts a request may have."""
    characters: int = Field(100_000, ge=1)
    """Characters a text may have."""
    queue: int = Field(2048, ge=1)
    """Texts that may wait; what does not fit is refused with 503."""
    concurrency: int = Field(256, ge=1)
    """Requests that may be in hand; more are refused with 429."""
    batch_tokens: int = Field(4096, ge=1)
    """Padded tokens that are read together."""
    wait: float = Field(2.0, ge=0, le=1000)
    """Milliseconds that a text may wait for company; only where there was company before."""
    tokens: int = Field(512, ge=1)
    """Tokens that a language model may be asked for."""
    log: bool = False
    """Print a line a request: method, path, status, milliseconds. Never its text."""

    @model_validator(mode="after")
    def _request_fits_into_queue(self) -> "ServeConfig":
        if self.texts > self.queue:
            raise ValueError(f"serve.texts ({self.texts}) must not be above serve.queue ({self.queue})")
        return self

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the server."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    def hosts(self) -> frozenset[str] | None:
        """Return the host names that requests may use; None allows any.

        A web page elsewhere can point its own name at 127.0.0.1 (DNS rebinding) and read the answers, so a server on a
        loopback address accepts only loopback names.
        """
        named = {name.strip().lower() for name in (self.allow_hosts or "").split(",") if name.strip()}
        if self.loopback:
            return frozenset({*LOOPBACK, self.host, *named})
        return frozenset(named) or None


class ServeCommandConfig(Section):
    """All settings of a server."""

    serve: ServeConfig = ServeConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def api_key(config: ServeConfig) -> str | None:
    """Return the API key from a file or an environment variable, never from the command line, which others can read."""
    if config.api_key_file is not None:
        try:
            key = Path(config.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"--api-key-file {config.api_key_file} cannot be read: {reason}") from None
        if not key:
            raise UsageError(f"--api-key-file {config.api_key_file} is empty")
    else:
        key = os.environ.get(KEY_VARIABLE, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("the API key must be of printable ASCII letters without spaces")
    return key or None
