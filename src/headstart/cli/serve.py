"""`headstart serve`: serve a model over HTTP, with a web page to try it."""

import logging
import sys

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, ConfigFile, Flags, ModelOrStarter, Options, Quiet
from headstart.serve.config import ServeCommandConfig, ServeConfig

_SHORT_OPTIONS = {"host": "--host", "port": "--port", "api_key_file": "--api-key-file", "allow_hosts": "--allow-hosts"}
OPTIONS = Options(
    ServeCommandConfig,
    names={
        f"serve.{name}": _SHORT_OPTIONS.get(name, f"--serve.{name.replace('_', '-')}")
        for name in ServeConfig.model_fields
    }
    | RUNTIME_OPTIONS,
)


@OPTIONS.on
def serve(
    model: ModelOrStarter,
    /,
    *,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; accepted requests are finished, then the exit status is 0."""
    settings = OPTIONS.settings(flags, path=config)
    console = Console(quiet=quiet)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("headstart.serve").setLevel(logging.INFO)
    from headstart.serve.server import run_server

    run_server(model, settings.serve, settings.runtime, console.say)
