"""`headstart compare`: what pretraining was worth, over arms, label budgets and seeds."""

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

Source = Annotated[
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
    source: Source = None,
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
    """Run every cell of the comparison, and print what was found."""
    others: dict[str, object] = {"from": source, "test": test, "valid": valid, "tokenizer": tokenizer, "preset": preset}
    others |= {"seeds": seeds, "labels": labels, "arms": arms, "choose": choose, "no-texts": no_texts, "config": config}
    _check(train, test, None if not resume else out, flags, others)
    sources = parse_folders(source or ())
    OPTIONS.refuse_with_backbone(flags, next(iter(sources), None))
    from headstart.cli.report import show
    from headstart.recipes.compare.run import run_compare
    from headstart.recipes.finetune.run import default_preset

    kind = preset or default_preset(next(iter(sources), None))
    settings = None if resume else OPTIONS.settings(flags, preset=kind, path=config)
    console = Console(quiet=quiet)
    page: Path = run_compare(
        train,
        out,
        settings,
        source=sources,
        valid=valid,
        test=test,
        tokenizer=tokenizer,
        seeds=5 if seeds is None else seeds,
        labels=parse_budgets(labels or "all"),
        arms=tuple(arm.strip() for arm in (arms or ARMS).split(",")),
        choose=bool(choose),
        jobs=jobs,
        engine=engine,
        address=address,
        texts=not no_texts,
        resume=resume,
        command=command_line(),
        progress=console,
    )
    show(out, page, console)


def _check(
    train: str | None, test: str | None, resumed: Path | None, flags: Flags | None, others: dict[str, object]
) -> None:
    """Refuse what is wrong before anything heavy is loaded."""
    if resumed:
        OPTIONS.refuse_with_resume(flags, resumed, **others)
        check_resumes(resumed, "compare", "train", [train] if train else [])
    elif train is None:
        raise UsageError("compare needs TRAIN, a labelled file; see headstart compare --help")
    elif test is None:
        raise UsageError("compare needs --test, a labelled file to measure on; see headstart compare --help")


def parse_folders(given: Sequence[str]) -> tuple[str, ...]:
    """Read --from: given several times, or folders with commas between them, unless a folder is called that.

    >>> parse_folders(["runs/a,runs/b", "runs/c"])
    ('runs/a', 'runs/b', 'runs/c')
    """
    parts = [[text] if Path(text).exists() else text.split(",") for text in given]
    return tuple(name.strip() for part in parts for name in part if name.strip())


def parse_budgets(text: str) -> tuple[int | None, ...]:
    """Read --labels; None stands for all, and what is named twice is run once.

    >>> parse_budgets("50, 200,all,50")
    (50, 200, None)
    """
    found: list[int | None] = []
    for word in text.split(","):
        word = word.strip()
        if word != "all" and not (word.isdecimal() and int(word) > 0):
            raise UsageError(f"--labels must be whole numbers and all, as in 50,200,all, got {word!r}")
        found.append(None if word == "all" else int(word))
    return tuple(dict.fromkeys(found))
