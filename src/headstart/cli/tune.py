"""`headstart tune`: the settings of a fine-tuning that validation likes best, within a time or a number of trials."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.compare import Address, EngineName, Jobs
from headstart.cli.console import Console
from headstart.cli.finetune import Source
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

_LEFT_OUT = ("loop.minutes", "loop.watch_test", "model.generic")
OPTIONS = Options(
    FinetuneConfig,
    names={name: "--" + name.replace("_", "-") for name, _ in iter_fields(FinetuneConfig) if name not in _LEFT_OUT},
    preset="finetune",
)
SEARCH = "lr,epochs,layer_decay,dropout,reading"
_SHOWN = 5


@OPTIONS.on
def tune(
    train: Train = None,
    /,
    *,
    source: Source = None,
    out: Out,
    valid: Valid = None,
    minutes: Annotated[
        float | None, Parameter(metavar="FLOAT", help="Begin no trial that would end after so many minutes.")
    ] = None,
    trials: Annotated[int | None, Parameter(metavar="INT", help="Trials at most.")] = None,
    search: Annotated[
        str | None, Parameter(metavar="NAME,...", show_default=SEARCH, help="What may be turned, where it applies.")
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
    """Try settings on validation; test is never opened."""
    others: dict[str, object] = {"from": source, "valid": valid, "minutes": minutes, "trials": trials, "search": search}
    others |= {"tokenizer": tokenizer, "preset": preset, "config": config}
    _check(train, source, out if resume else None, flags, others)
    OPTIONS.refuse_with_backbone(flags, source)
    from headstart.recipes.finetune.run import default_preset
    from headstart.recipes.tune import run_tune

    kind = preset or ("classic" if resume else default_preset(source))
    console = Console(quiet=quiet)
    found = run_tune(
        train,
        out,
        None if resume else OPTIONS.settings(flags, preset=kind, path=config),
        source=source,
        valid=valid,
        tokenizer=tokenizer,
        minutes=minutes,
        trials=trials,
        search=tuple(name.strip() for name in (search or SEARCH).split(",")),
        jobs=jobs,
        engine=engine,
        address=address,
        preset=kind,
        resume=resume,
        command=command_line(),
        progress=console,
    )
    _show(found, console)


def _check(
    train: str | None,
    source: str | None,
    resumed: Path | None,
    flags: Flags | None,
    others: dict[str, object],
) -> None:
    """Refuse what is wrong before anything heavy is loaded."""
    if resumed:
        OPTIONS.refuse_with_resume(flags, resumed, **others)
        check_resumes(resumed, "tune", "train", [train] if train else [])
    elif train is None:
        raise UsageError("tune needs TRAIN, a labelled file; see headstart tune --help")
    elif source is None:
        raise UsageError(
            "tune needs --from: a pretrained folder, as in --from runs/base, a starter, as in --from starter:en (or "
            "starter:fr), or --from scratch"
        )


def _show(found: "TuneResult", console: Console) -> None:
    """The best trials, the first one, and what to do now."""
    ranked = sorted(found.trials, key=lambda trial: trial.rank, reverse=True)
    first = found.trials[0]
    shown = ranked[:_SHOWN] + ([] if first in ranked[:_SHOWN] else [first])
    names = list(first.settings)
    rows = [
        [
            f"{trial.trial}" + (" (as it stood)" if trial.trial == 0 else ""),
            f"{trial.accuracy:.4f}" + ("" if trial.state == "done" else f", {trial.state}"),
            *(str(trial.settings[name]) for name in names),
        ]
        for trial in shown
    ]
    console.table(["trial", "validation accuracy", *(name.split(".")[-1] for name in names)], rows)
    console.result(
        f"{pluralize(len(found.trials), 'trial')}; the best settings are in {found.toml}; on validation alone. Now:"
    )
    console.result(f"  {found.command}")
