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
Source = Annotated[
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


def _is_to_be_planned(preset: str | None, config: Path | None, flags: Flags | None) -> bool:
    """Whether the size is left to us: `--preset auto`, or minutes and nothing that says what network it should be."""
    if preset is not None or config is not None or TOML.exists():
        return preset == "auto"
    given = OPTIONS.typed(flags)
    return "loop.minutes" in given and not any(name.startswith(("model.", "optim.", "objective")) for name in given)


def _planned(flags: Flags | None, config: Path | None, progress: Console) -> str:
    wanted = OPTIONS.settings(flags, path=config)
    from headstart.recipes.pretrain.preset_search import choose_preset

    return choose_preset(wanted, progress)


@OPTIONS.on
def pretrain(
    *texts: Annotated[
        str,
        Parameter(
            name="TEXTS", help="Text files, folders, patterns or URLs, or one prepared folder; none beside stages."
        ),
    ],
    out: Out,
    source: Source = None,
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
        others: dict[str, object] = {"from": source, "preset": preset, "config": config, "tokenizer": tokenizer}
        others |= {"teacher": teacher, "teacher-weight": teacher_weight}
        OPTIONS.refuse_with_resume(flags, out, **others)
        check_resumes(out, "pretrain", "texts", texts)
    OPTIONS.refuse_with_backbone(flags, source)
    if not resume and source is None and _is_to_be_planned(preset, config, flags):
        preset = _planned(flags, config, Console(quiet=quiet))
    from headstart.recipes.pretrain.run import default_objective, run_pretrain

    settings = None
    if not resume:
        settings = OPTIONS.settings(flags, defaults=default_objective(source), preset=preset, path=config)
    if settings and not texts and not settings.stages:
        raise UsageError("pretrain needs TEXTS, or one prepared folder; see headstart pretrain --help")

    run_pretrain(
        texts,
        out,
        settings,
        source=source,
        tokenizer=tokenizer,
        teacher=teacher,
        teacher_weight=teacher_weight,
        resume=resume,
        command=command_line(),
        progress=Console(quiet=quiet),
    )
