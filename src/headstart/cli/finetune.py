"""`headstart finetune`: labelled text, and a pretrained model or none, to a classifier."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
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
from headstart.config.schema import FinetuneConfig
from headstart.errors import UsageError

OPTIONS = Options(FinetuneConfig, preset="finetune")
Backbone = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="FOLDER|scratch",
        help="The pretrained run, starter:NAME, hf: and a model of transformers, or the word scratch.",
    ),
]


@OPTIONS.on
def finetune(
    train: Train = None,
    /,
    *,
    backbone: Backbone = None,
    out: Out,
    valid: Valid = None,
    test: Annotated[
        str | None, Parameter(metavar="FILE", help="Labelled text to measure on, once, at the end.")
    ] = None,
    tokenizer: Tokenizer = None,
    preset: FinetunePreset = None,
    config: ConfigFile = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Train a classifier."""
    if resume:
        others = {
            "from": backbone,
            "valid": valid,
            "test": test,
            "tokenizer": tokenizer,
            "preset": preset,
            "config": config,
        }
        OPTIONS.refuse_with_resume(flags, out, **others)
        check_resumes(out, "finetune", "train", [train] if train else [])
    elif train is None:
        raise UsageError("finetune needs TRAIN, a labelled file; see headstart finetune --help")
    elif backbone is None:
        raise UsageError(
            "finetune needs --from: a pretrained folder, as in --from runs/base, a starter, as in --from starter:en (or "
            "starter:fr), or --from scratch"
        )
    OPTIONS.refuse_with_backbone(flags, backbone)
    from headstart.recipes.finetune.run import FinetuneRequest, default_preset, run_finetune

    settings = None if resume else OPTIONS.settings(flags, preset=preset or default_preset(backbone), path=config)
    request = FinetuneRequest(
        train=train,
        out=out,
        backbone=backbone,
        valid=valid,
        test=test,
        tokenizer=tokenizer,
        resume=resume,
        command=command_line(),
    )
    run_finetune(request, settings, Console(quiet=quiet))
