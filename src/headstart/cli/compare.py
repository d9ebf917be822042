"""`headstart compare`: measure the gain from pretraining, over arms, label budgets and seeds."""

from collections.abc import Sequence
from pathlib import Path
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
ARMS = "majority,linear,scratch,pretrained"

Backbones = Annotated[
    tuple[str, ...] | None,
    Parameter(
        name="--from",
        metavar="MODEL",
        negative=(),
        help="Pretrained folder, starter:NAME or hf:NAME. Repeat it, or separate models by commas, to compare several.",
    ),
]
Test = Annotated[str | None, Parameter(metavar="FILE", help="Labelled test file.")]
Seeds = Annotated[
    int | None,
    Parameter(metavar="INT", show_default="5", help="Number of runs per arm, each with another random seed."),
]
Labels = Annotated[
    str | None,
    Parameter(
        metavar="INT,...,all", show_default="all", help="Numbers of labelled rows to train on, such as 50,200,all."
    ),
]
Arms = Annotated[
    str | None,
    Parameter(
        metavar="ARM,...",
        show_default=ARMS,
        help="Arms to compare. Also available: naive_bayes, nbsvm, frozen and blend.",
    ),
]
Choose = Annotated[
    bool | None,
    Parameter(
        negative=(),
        show_default=False,
        help="Also train each network with 3 times its learning rate. The better one on validation is kept.",
    ),
]
NoTexts = Annotated[
    bool | None,
    Parameter(
        name="--no-texts",
        negative=(),
        show_default=False,
        help="Do not quote texts in the report or store them in the folder.",
    ),
]


Jobs = Annotated[
    int | None,
    Parameter(
        metavar="INT",
        show_default="1, or the capacity of the cluster",
        help="Number of worker processes.",
    ),
]
EngineName = Annotated[
    str,
    Parameter(
        name="--engine",
        metavar="local|ray",
        help="Where the runs are executed: in local processes or on a Ray cluster.",
    ),
]
Address = Annotated[
    str | None,
    Parameter(
        metavar="HOST:PORT",
        help="Address of a Ray cluster that shares these folders. By default, a local one is started.",
    ),
]


@OPTIONS.on
def compare(
    train: Train = None,
    /,
    *,
    backbone: Backbones = None,
    test: Test = None,
    out: Out,
    valid: Valid = None,
    seeds: Seeds = None,
    labels: Labels = None,
    arms: Arms = None,
    choose: Choose = None,
    jobs: Jobs = None,
    engine: EngineName = "local",
    address: Address = None,
    no_texts: NoTexts = None,
    tokenizer: Tokenizer = None,
    preset: FinetunePreset = None,
    config: ConfigFile = None,
    resume: Resume = False,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Run the comparison and print the results."""
    others: dict[str, object] = {"from": backbone, "test": test, "valid": valid, "tokenizer": tokenizer}
    others |= {"preset": preset, "seeds": seeds, "labels": labels, "arms": arms, "choose": choose}
    others |= {"no-texts": no_texts, "config": config}
    _check(train, test, out if resume else None, flags, others)
    names = parse_backbones(backbone or ())
    OPTIONS.refuse_with_backbone(flags, next(iter(names), None))
    from headstart.cli.report import show
    from headstart.recipes.compare.run import CompareRequest, run_compare
    from headstart.recipes.executors import Executor
    from headstart.recipes.starter_choice import resolve_starter, table_texts

    console = Console(quiet=quiet)
    backbones = tuple(
        resolve_starter(name, lambda: table_texts(train, OPTIONS.settings(flags, path=config).labelled), console)
        for name in names
    )
    request = CompareRequest(
        train=train,
        out=out,
        backbones=backbones,
        valid=valid,
        test=test,
        tokenizer=tokenizer,
        seeds=5 if seeds is None else seeds,
        label_budgets=parse_budgets(labels or "all"),
        arms=tuple(arm.strip() for arm in (arms or ARMS).split(",")),
        choose=bool(choose),
        executor=Executor(engine, jobs, address),
        quote_texts=not no_texts,
        resume=resume,
        command=command_line(),
    )
    first = next(iter(backbones), None)
    settings = None if resume else OPTIONS.settings(flags, backbone=first, preset=preset, path=config)
    show(out, run_compare(request, settings, console), console)


def _check(
    train: str | None, test: str | None, resumed: Path | None, flags: Flags | None, others: dict[str, object]
) -> None:
    """Check the arguments before torch is imported."""
    if resumed:
        OPTIONS.refuse_with_resume(flags, resumed, **others)
        check_resumes(resumed, "compare", "train", [train] if train else [])
    elif train is None:
        raise UsageError("compare needs TRAIN, a labelled file; see headstart compare --help")
    elif test is None:
        raise UsageError("compare needs --test, a labelled file; see headstart compare --help")


def parse_backbones(arguments: Sequence[str]) -> tuple[str, ...]:
    """Parse --from, which may be repeated or list several folders separated by commas.

    >>> parse_backbones(["runs/a,runs/b", "runs/c"])
    ('runs/a', 'runs/b', 'runs/c')
    """
    groups = [[argument] if Path(argument).exists() else argument.split(",") for argument in arguments]
    return tuple(name.strip() for group in groups for name in group if name.strip())


def parse_budgets(text: str) -> tuple[int | None, ...]:
    """Parse --labels; None stands for all, and duplicates are removed.

    >>> parse_budgets("50, 200,all,50")
    (50, 200, None)
    """
    budgets: list[int | None] = []
    for word in text.split(","):
        word = word.strip()
        if word != "all" and not (word.isdecimal() and int(word) > 0):
            raise UsageError(f"--labels must be positive integers or all, such as 50,200,all, got {word!r}")
        budgets.append(None if word == "all" else int(word))
    return tuple(dict.fromkeys(budgets))
