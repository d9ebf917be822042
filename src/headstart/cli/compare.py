"""`headstart compare`: the gain from pretraining, over arms, label budgets and seeds."""

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

OPTIONS = Options(FinetuneConfig, preset="finetune")
ARMS = "majority,tfidf,scratch,pretrained"

Backbones = Annotated[
    tuple[str, ...] | None,
    Parameter(
        name="--from",
        metavar="FOLDER",
        negative=(),
        help="The pretrained run whose worth is measured (or starter:en, or hf: and a model of transformers); several, "
        "given again or with commas, are compared with each other.",
    ),
]
Test = Annotated[str | None, Parameter(metavar="FILE", help="Labelled text that every arm is measured on.")]
Seeds = Annotated[int | None, Parameter(metavar="INT", show_default="5", help="Runs of each arm.")]
Labels = Annotated[
    str | None, Parameter(metavar="INT,...,all", show_default="all", help="How many labelled rows to learn from.")
]
Arms = Annotated[
    str | None,
    Parameter(
        metavar="ARM,...", show_default=ARMS, help="What to compare; naive_bayes, nbsvm and frozen are three more."
    ),
]
Choose = Annotated[
    bool | None,
    Parameter(
        negative=(), show_default=False, help="Try each network at its rate and at 3 times it; validation chooses."
    ),
]
NoTexts = Annotated[
    bool | None,
    Parameter(
        name="--no-texts",
        negative=(),
        show_default=False,
        help="Quote no text, and keep none in the comparison's folder.",
    ),
]


Jobs = Annotated[
    int | None,
    Parameter(
        metavar="INT",
        show_default="1, or all a cluster has room for",
        help="Runs at the same time, each in a process of its own; worth it on a GPU or on many cores.",
    ),
]
EngineName = Annotated[
    str,
    Parameter(name="--engine", metavar="local|ray", help="Where the runs are made; the results are the same."),
]
Address = Annotated[
    str | None,
    Parameter(metavar="HOST:PORT", help="A Ray cluster whose machines see these folders; else one is started here."),
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
    """Do every run of the comparison, and print the results."""
    others: dict[str, object] = {"from": backbone, "test": test, "valid": valid, "tokenizer": tokenizer}
    others |= {"preset": preset, "seeds": seeds, "labels": labels, "arms": arms, "choose": choose}
    others |= {"no-texts": no_texts, "config": config}
    _check(train, test, out if resume else None, flags, others)
    backbones = parse_backbones(backbone or ())
    first = next(iter(backbones), None)
    OPTIONS.refuse_with_backbone(flags, first)
    from headstart.cli.report import show
    from headstart.recipes.compare.run import CompareRequest, run_compare
    from headstart.recipes.executors import Executor
    from headstart.recipes.finetune.run import default_preset

    preset = preset or default_preset(first)
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
    settings = None if resume else OPTIONS.settings(flags, preset=preset, path=config)
    console = Console(quiet=quiet)
    show(out, run_compare(request, settings, console), console)


def _check(
    train: str | None, test: str | None, resumed: Path | None, flags: Flags | None, others: dict[str, object]
) -> None:
    """Refuse wrong arguments before torch is imported."""
    if resumed:
        OPTIONS.refuse_with_resume(flags, resumed, **others)
        check_resumes(resumed, "compare", "train", [train] if train else [])
    elif train is None:
        raise UsageError("compare needs TRAIN, a labelled file; see headstart compare --help")
    elif test is None:
        raise UsageError("compare needs --test, a labelled file to measure on; see headstart compare --help")


def parse_backbones(arguments: Sequence[str]) -> tuple[str, ...]:
    """Parse --from, which may be repeated or hold several folders with commas between, unless a folder has that name.

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
            raise UsageError(f"--labels must be whole numbers and all, as in 50,200,all, got {word!r}")
        budgets.append(None if word == "all" else int(word))
    return tuple(dict.fromkeys(budgets))
