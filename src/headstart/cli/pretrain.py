"""`headstart pretrain`: unlabelled text to a language model."""

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

OPTIONS = Options(PretrainConfig, preset="pretrain")
Backbone = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="FOLDER",
        help="A pretrained run to go on from, a starter such as starter:en, or hf: and a model of transformers.",
    ),
]
Teacher = Annotated[
    str | None,
    Parameter(metavar="FOLDER", help="A larger pretrained run with the same tokenizer, to learn from beside the text."),
]
TeacherWeight = Annotated[
    float | None,
    Parameter(metavar="FLOAT", show_default="0.5", help="How much the teacher counts beside the text, from 0 to 1."),
]


def _wants_preset_search(preset: str | None, config: Path | None, flags: Flags | None) -> bool:
    """Return True for `--preset auto`, and for minutes without a setting that determines the network."""
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
        Parameter(
            name="TEXTS", help="Text files, folders, patterns or URLs, or one prepared folder; none beside stages."
        ),
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
    """Learn a language model from unlabelled text."""
    if resume:
        others: dict[str, object] = {"from": backbone, "preset": preset, "config": config, "tokenizer": tokenizer}
        others |= {"teacher": teacher, "teacher-weight": teacher_weight}
        OPTIONS.refuse_with_resume(flags, out, **others)
        check_resumes(out, "pretrain", "texts", texts)
    OPTIONS.refuse_with_backbone(flags, backbone)
    if not resume and backbone is None and _wants_preset_search(preset, config, flags):
        preset = _search_preset(flags, config, Console(quiet=quiet))
    from headstart.recipes.pretrain.run import PretrainRequest, default_objective, run_pretrain

    settings = None
    if not resume:
        settings = OPTIONS.settings(flags, defaults=default_objective(backbone), preset=preset, path=config)
    if settings and not texts and not settings.stages:
        raise UsageError("pretrain needs TEXTS, or one prepared folder; see headstart pretrain --help")
    request = PretrainRequest(
        texts=texts,
        out=out,
        backbone=backbone,
        tokenizer=tokenizer,
        teacher=teacher,
        teacher_weight=teacher_weight,
        resume=resume,
        command=command_line(),
    )
    run_pretrain(request, settings, Console(quiet=quiet))
