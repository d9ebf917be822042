"""`headstart tune`: search for fine-tuning settings on validation data, within a time or a number of trials."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.compare import Address, EngineName, Jobs
from headstart.cli.console import Console
from headstart.cli.finetune import Backbone
from headstart.cli.options import (
    ConfigFile,
    FinetunePreset,
    Flags,
    Options,
    Out,
    Quiet,
    Resume,
    Tokenizer,
    Train,
    Valid,
    check_resumes,
    command_line,
)
from headstart.config.merge import iter_fields
from headstart.config.schema import FinetuneConfig
from headstart.errors import UsageError
from headstart.progress import pluralize

if TYPE_CHECKING:
    from headstart.recipes.tune import TuneResult

_EXCLUDED = ("loop.minutes", "loop.watch_test", "model.generic")
OPTIONS = Options(
    FinetuneConfig,
    names={name: "--" + name.replace("_", "-") for name, _ in iter_fields(FinetuneConfig) if name not in _EXCLUDED},
    recipe="finetune",
)
SEARCH = "lr,epochs,layer_decay,dropout,attention"
_MAX_SHOWN = 5


@OPTIONS.on
def tune(
    train: Train = None,
    /,
    *,
    backbone: Backbone = None,
    out: Out,
    valid: Valid = None,
    minutes: Annotated[
        float | None,
        Parameter(metavar="FLOAT", help="Maximum total time in minutes; no trial is started that would end later."),
    ] = None,
    trials: Annotated[int | None, Parameter(metavar="INT", help="Maximum number of trials.")] = None,
    search: Annotated[
        str | None, Parameter(metavar="NAME,...", show_default=SEARCH, help="Settings to search, where they apply.")
    ] = None,
    jobs: Jobs = None,
    engine: EngineName = "local",
    address: Address = None,
    tokenizer: Tokenizer = None,
    preset: FinetunePreset = None,
    config: ConfigFile = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Search for the best fine-tuning settings on validation data."""
    others: dict[str, object] = {"from": backbone, "valid": valid, "minutes": minutes, "trials": trials}
    others |= {"search": search, "tokenizer": tokenizer, "preset": preset, "config": config}
    _check(train, backbone, out if resume else None, flags, others)
    OPTIONS.refuse_with_backbone(flags, backbone)
    from headstart.recipes.executors import Executor
    from headstart.recipes.finetune.backbone_preset import default_preset
    from headstart.recipes.starter_choice import resolve_starter, table_texts
    from headstart.recipes.tune import TuneRequest, run_tune

    console = Console(quiet=quiet)
    backbone = resolve_starter(
        backbone, lambda: table_texts(train, OPTIONS.settings(flags, path=config).labelled), console
    )
    preset = preset or ("classic" if resume else default_preset(backbone))
    request = TuneRequest(
        train=train,
        out=out,
        backbone=backbone,
        valid=valid,
        tokenizer=tokenizer,
        minutes=minutes,
        trials=trials,
        search=tuple(name.strip() for name in (search or SEARCH).split(",")),
        preset=preset,
        executor=Executor(engine, jobs, address),
        resume=resume,
        command=command_line(),
    )
    settings = None if resume else OPTIONS.settings(flags, preset=preset, path=config)
    _show(run_tune(request, settings, console), console)


def _check(
    train: str | None,
    backbone: str | None,
    resumed: Path | None,
    flags: Flags | None,
    others: dict[str, object],
) -> None:
    """Check the arguments before torch is imported."""
    if resumed:
        OPTIONS.refuse_with_resume(flags, resumed, **others)
        check_resumes(resumed, "tune", "train", [train] if train else [])
    elif train is None:
        raise UsageError("tune needs TRAIN, a labelled file; see headstart tune --help")
    elif backbone is None:
        raise UsageError(
            "tune needs --from: a pretrained folder such as runs/base, a starter such as starter:en or starter:fr, "
            "or scratch"
        )


def _show(result: "TuneResult", console: Console) -> None:
    """Print the best trials, the first one, and the command that repeats the best."""
    ranked = sorted(result.trials, key=lambda trial: trial.rank, reverse=True)
    first = result.trials[0]
    shown = ranked[:_MAX_SHOWN] + ([] if first in ranked[:_MAX_SHOWN] else [first])
    names = list(first.settings)
    rows = [
        [
            f"{trial.trial}" + (" (defaults)" if trial.trial == 0 else ""),
            f"{trial.accuracy:.4f}" + ("" if trial.state == "done" else f", {trial.state}"),
            *(str(trial.settings[name]) for name in names),
        ]
        for trial in shown
    ]
    console.table(["trial", "validation accuracy", *(name.split(".")[-1] for name in names)], rows)
    console.result(
        f"{pluralize(len(result.trials), 'trial')}, compared on validation data; best settings: {result.toml}. To train:"
    )
    console.result(f"  {result.command}")
