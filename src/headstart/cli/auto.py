"""`headstart auto`: find the best classifier for a table."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Flags, Options, Quiet, Resume, check_resumes, command_line
from headstart.config.schema import FinetuneConfig
from headstart.errors import UsageError

_RUNTIME = ("seed", "device", "precision", "threads", "deterministic", "time_limit")
OPTIONS = Options(
    FinetuneConfig,
    names={
        "labelled.text_column": "--text-column",
        "labelled.label_column": "--label-column",
        "labelled.encoding": "--encoding",
        **{f"runtime.{name}": f"--runtime.{name.replace('_', '-')}" for name in _RUNTIME},
    },
)


Table = Annotated[
    str | None,
    Parameter(
        name="TABLE",
        help="Labelled file (csv, tsv, jsonl or parquet). Rows without a label are used as unlabelled text.",
    ),
]
Texts = Annotated[
    tuple[str, ...] | None,
    Parameter(
        metavar="FILE",
        negative=(),
        consume_multiple=True,
        help="Files with unlabelled text that is similar to the texts of TABLE.",
    ),
]
Test = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Labelled test file. By default, rows of TABLE are held out for testing."),
]
Out = Annotated[Path | None, Parameter(metavar="FOLDER", show_default="runs/auto-TABLE", help="Folder to write.")]
Minutes = Annotated[float | None, Parameter(metavar="FLOAT", show_default="10", help="Total time in minutes.")]
Backbone = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="MODEL|none",
        help="Pretrained folder, starter:NAME, or none for linear classifiers only. By default (starter:auto), the starter "
        "for the language of TABLE.",
    ),
]


@OPTIONS.on
def auto(
    table: Table = None,
    /,
    *,
    texts: Texts = None,
    test: Test = None,
    out: Out = None,
    minutes: Minutes = None,
    backbone: Backbone = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Find the best classifier for a table by cross-validation."""
    if table is None and resume and out is None:
        raise UsageError("auto --resume needs --out, the folder of the run to continue")
    if table is None and not resume:
        raise UsageError("auto needs TABLE, a file with a text and a label per row; see headstart auto --help")
    began = time.monotonic()  # before torch is imported
    from headstart.config.merge import nest
    from headstart.recipes.auto.run import AutoRequest, default_out, run_auto

    folder = out if out is not None else default_out(str(table))
    if resume:
        others = {"texts": texts, "test": test, "minutes": minutes, "from": backbone}
        OPTIONS.refuse_with_resume(flags, folder, **others)
        check_resumes(folder, "auto", "table", [table] if table else [])
    request = AutoRequest(
        table=table,
        out=folder,
        texts=texts or (),
        test=test,
        minutes=10.0 if minutes is None else minutes,
        backbone=backbone,
        settings=nest(OPTIONS.typed(flags)),
        resume=resume,
        command=command_line(),
        began=began,
    )
    console = Console(quiet=quiet, names=OPTIONS.names)
    result = run_auto(request, console)
    console.say(f"report: {result.report}")
    console.prose(f"{result.headline}.")
    console.prose(f'Classify texts with: headstart predict {folder} "..."')
