"""Settings of the server: address, API key and limits. No torch, no web framework."""

import os
from pathlib import Path

from pydantic import Field, model_validator

from headstart.config.schema import RuntimeConfig, Section
from headstart.errors import ConfigError, UsageError

KEY_VARIABLE = "HEADSTART_API_KEY"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServeConfig(Section):
    """Address, limits and batching of the server."""

    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only."""
    port: int = Field(8000, ge=0, lt=65536)
    """Port to listen on; 0 chooses a free port, which is printed."""
    api_key_file: str | None = None
    """File with an API key that requests must send. By default, the environment variable HEADSTART_API_KEY; without
    either, no key is required.
    """
    allow_hosts: str | None = None
    """Additional host names, separated by commas, that requests may use, for example behind a proxy."""
    deadline: float = Field(30.0, gt=0, le=3600)
    """Maximum time per request in seconds. A client can set a shorter time with the header X-Deadline-Ms."""
    head_deadline: float = Field(10.0, gt=0, le=3600)
    """Maximum time to receive the headers of a request in seconds; slower connections are closed."""
    connections: int = Field(1024, ge=1)
    """Maximum number of open connections; at most half of them may be idle connections of one address. The oldest idle
    connection is closed to accept a new one.
    """
    body: int = Field(4_000_000, ge=1000)
    """Maximum size of a request body in bytes."""
    texts: int = Field(256, ge=1)
    """Maximum number of texts per request."""
    characters: int = Field(100_000, ge=1)
    """Maximum length of a text in characters."""
    queue: int = Field(2048, ge=1)
    """Maximum number of queued texts; further requests are rejected with status 503."""
    concurrency: int = Field(256, ge=1)
    """Maximum number of concurrent requests; further requests are rejected with status 429."""
    batch_tokens: int = Field(4096, ge=1)
    """Maximum batch size in tokens, including padding."""
    wait: float = Field(2.0, ge=0, le=1000)
    """Maximum time to wait for more requests before a batch is run, in milliseconds. Applied only while requests
    overlap.
    """
    tokens: int = Field(512, ge=1)
    """Maximum number of tokens to generate per request."""
    log: bool = False
    """Log method, path, status and duration of every request. Texts are never logged."""

    @model_validator(mode="after")
    def _request_fits_into_queue(self) -> "ServeConfig":
        if self.texts > self.queue:
            raise ValueError(f"serve.texts must be at most serve.queue, got {self.texts} and {self.queue}")
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
    """The settings of the serve command."""

    serve: ServeConfig = ServeConfig()
    runtime: RuntimeConfig = RuntimeConfig()


def api_key(config: ServeConfig) -> str | None:
    """Return the API key from a file or an environment variable, never from the command line, which others can read."""
    if config.api_key_file is not None:
        try:
            key = Path(config.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise UsageError(f"--api-key-file {config.api_key_file} cannot be read: {reason}") from None
        if not key:
            raise UsageError(f"--api-key-file {config.api_key_file} is empty")
    else:
        key = os.environ.get(KEY_VARIABLE, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("the API key must consist of printable ASCII characters without spaces")
    return key or None
