"""`headstart pretrain`: pretrain a language model on unlabelled text."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import (
    TOML,
    ConfigFile,
    Flags,
    Options,
    Out,
    Preset,
    Quiet,
    Resume,
    Tokenizer,
    check_resumes,
    command_line,
)
from headstart.config.schema import PretrainConfig
from headstart.errors import UsageError

OPTIONS = Options(PretrainConfig, recipe="pretrain")
Backbone = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="MODEL",
        help="Model to continue from: folder, starter:NAME (starter:auto: by the language of TEXTS) or hf:NAME.",
    ),
]
Teacher = Annotated[
    str | None,
    Parameter(metavar="FOLDER", help="Larger language model with the same tokenizer, for knowledge distillation."),
]
TeacherWeight = Annotated[
    float | None,
    Parameter(metavar="FLOAT", show_default="0.5", help="Weight of the distillation loss, from 0 to 1."),
]


def searches_preset(preset: str | None, config: Path | None, flags: Flags | None) -> bool:
    """Return True for `--preset auto`, and for --minutes without a setting that determines the network."""
    if preset is not None or config is not None or TOML.exists():
        return preset == "auto"
    names = OPTIONS.typed(flags)
    return "loop.minutes" in names and not any(name.startswith(("model.", "optim.", "objective")) for name in names)


def _search_preset(flags: Flags | None, config: Path | None, progress: Console) -> str:
    settings = OPTIONS.settings(flags, path=config)
    from headstart.recipes.pretrain.preset_search import choose_preset

    return choose_preset(settings, progress)


@OPTIONS.on
def pretrain(
    *texts: Annotated[
        str,
        Parameter(name="TEXTS", help="Text files, folders, glob patterns or URLs, or one prepared folder."),
    ],
    out: Out,
    backbone: Backbone = None,
    tokenizer: Tokenizer = None,
    teacher: Teacher = None,
    teacher_weight: TeacherWeight = None,
    preset: Preset = None,
    config: ConfigFile = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Pretrain a language model on unlabelled text."""
    began = time.monotonic()
    if resume:
        others: dict[str, object] = {"from": backbone, "preset": preset, "config": config, "tokenizer": tokenizer}
        others |= {"teacher": teacher, "teacher-weight": teacher_weight}
        OPTIONS.refuse_with_resume(flags, out, **others)
        check_resumes(out, "pretrain", "texts", texts)
    OPTIONS.refuse_with_backbone(flags, backbone)
    if not resume and backbone is None and searches_preset(preset, config, flags):
        preset = _search_preset(flags, config, Console(quiet=quiet))
    from headstart.recipes.pretrain.run import PretrainRequest, run_pretrain
    from headstart.recipes.starter_choice import corpus_texts, resolve_starter

    console, settings = Console(quiet=quiet), None
    if not resume:
        backbone = resolve_starter(backbone, lambda: corpus_texts(texts, OPTIONS.settings(flags, path=config)), console)
        settings = OPTIONS.settings(flags, backbone=backbone, preset=preset, path=config)
    if settings and not texts and not settings.stages:
        raise UsageError("pretrain needs TEXTS, text files or one prepared folder; see headstart pretrain --help")
    request = PretrainRequest(
        texts=texts,
        out=out,
        backbone=backbone,
        tokenizer=tokenizer,
        teacher=teacher,
        teacher_weight=teacher_weight,
        resume=resume,
        command=command_line(),
        began=began,
    )
    run_pretrain(request, settings, console)
