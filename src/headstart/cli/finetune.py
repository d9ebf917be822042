"""`headstart finetune`: train a classifier from a pretrained model or from scratch."""

import time
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

OPTIONS = Options(FinetuneConfig, recipe="finetune")
Backbone = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="MODEL|scratch",
        help="Pretrained folder, starter:NAME, hf:NAME, or scratch.",
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
        str | None, Parameter(metavar="FILE", help="Labelled test file, evaluated once at the end.")
    ] = None,
    tokenizer: Tokenizer = None,
    preset: FinetunePreset = None,
    config: ConfigFile = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Train a classifier from a pretrained model or from scratch."""
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
            "finetune needs --from: a pretrained folder such as runs/base, a starter such as starter:en or starter:fr, "
            "or scratch"
        )
    OPTIONS.refuse_with_backbone(flags, backbone)
    began = time.monotonic()  # before torch is imported
    from headstart.recipes.finetune.run import FinetuneRequest, run_finetune
    from headstart.recipes.starter_choice import resolve_starter, table_texts

    console = Console(quiet=quiet)
    backbone = resolve_starter(
        backbone, lambda: table_texts(train, OPTIONS.settings(flags, path=config).labelled), console
    )
    settings = None if resume else OPTIONS.settings(flags, backbone=backbone, preset=preset, path=config)
    request = FinetuneRequest(
        train=train,
        out=out,
        backbone=backbone,
        valid=valid,
        test=test,
        tokenizer=tokenizer,
        resume=resume,
        command=command_line(),
        began=began,
    )
    run_finetune(request, settings, console)
