"""`headstart report`: rebuild the report of a comparison. No torch."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, Quiet


def report(
    folder: Annotated[Path, Parameter(name="FOLDER", help="Folder written by headstart compare or auto.")],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(metavar="FOLDER", help="Folder to write. By default, the same folder.")
    ] = None,
    as_json: AsJson = False,
    no_texts: Annotated[
        bool,
        Parameter(name="--no-texts", negative=(), show_default=False, help="Do not quote texts in the report."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the report of a comparison and print its summary."""
    from headstart.report.page import write_report

    page, console = write_report(folder, out, texts=not no_texts), Console(quiet=quiet)
    if as_json:
        console.result((page.parent / "results.json").read_text("utf-8").rstrip("\n"))
    else:
        show(folder, page, console)


def show(folder: Path, page: Path, console: Console) -> None:
    """Print the verdict, a table of the arms, and the path of the report."""
    from headstart.report.load import load_comparison
    from headstart.report.statistics import summaries
    from headstart.report.summary import format_percent, verdict

    comparison = load_comparison(folder)
    for sentence in verdict(comparison):
        console.prose(sentence)
    console.result()
    rows = []
    for budget in reversed(comparison.budgets):
        for summary in summaries(comparison, budget):
            estimate = summary.accuracy
            interval = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
            figures = (format_percent(estimate.mean), interval, f"{summary.macro_f1:.3f}", str(len(summary.runs)))
            rows.append((summary.arm, str(budget), *figures))
    console.table(["arm", "labels", "accuracy", "95 % interval", "macro-F1", "seeds"], rows)
    console.result()
    console.result(f"report: {page}")
