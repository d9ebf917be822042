"""The request of a recipe that writes a run folder, and the start or resumption of its run. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import StoreError
from headstart.store.run_folder import RunFolder

ConfigT = TypeVar("ConfigT", bound=PretrainConfig | FinetuneConfig)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request of a recipe that writes a run folder.

    Subclasses add the inputs of the recipe, as the user wrote them. A request that resumes a run needs none of them:
    `with_inputs` reads them back from run.json.
    """

    out: Path
    resume: bool = False
    """Continue the run in `out`."""
    command: str = ""
    """The command line, for the record; empty in Python."""
    began: float | None = None
    """When the command began (`time.monotonic`), from which `loop.minutes` count; None if it begins with the recipe."""

    def inputs(self) -> dict[str, Any]:
        """Return the inputs as the JSON values that run.json records."""
        raise NotImplementedError

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        raise NotImplementedError


RequestT = TypeVar("RequestT", bound=RunRequest)


def begin_or_resume(
    request: RequestT,
    *,
    kind: str,
    config_class: type[ConfigT],
    resolve: Callable[[], tuple[RequestT, ConfigT]],
) -> tuple[RunFolder, RequestT, ConfigT]:
    """Open the run in `request.out` if the request resumes it, else create it; returns it with its inputs and settings.

    Args:
        resolve: returns the request and the settings of a new run as they are recorded. It raises where something is
            wrong with them, before anything is written.
    """
    if request.resume:
        return open_recorded(request, kind=kind, config_class=config_class)
    RunFolder.check_no_run(request.out)  # at once, because `resolve` may read large files
    request, config = resolve()
    run = RunFolder.create(request.out, kind=kind, command=request.command, config=config, inputs=request.inputs())
    return run, request, config


def open_recorded(request: RequestT, *, kind: str, config_class: type[ConfigT]) -> tuple[RunFolder, RequestT, ConfigT]:
    """Open the run in `request.out`, with the inputs and the settings that it recorded when it began."""
    run = RunFolder.open(request.out, kind=kind)
    try:
        request = request.with_inputs(run.facts["inputs"])
    except (KeyError, TypeError):
        raise StoreError(f"{run.path / 'run.json'} is damaged: the inputs of the run are missing") from None
    return run, request, merge_config(config_class, run.settings)
