"""Write the report of a comparison: one page that needs no network, and the same numbers as CSV and JSON.

report.html     verdict, figures, tables; figures, style and all in one file, no script
results.csv     a row a run
results.json    the verdict, the summaries and the paired differences
figures/        the page's figures as .svg and .png
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from headstart.errors import StoreError
from headstart.files import atomic_write, os_error_reason, write_json
from headstart.report.error_tables import error_tables
from headstart.report.figures import (
    COLOURS,
    FAINT,
    FURTHER,
    INK,
    OTHER,
    PAPER,
    RELIABILITY_WIDTH,
    ReportFigure,
    arm_hue,
    confusion_figures,
    confusion_width,
    png,
    reliability_diagrams,
    report_figures,
    short_name,
    svg,
)
from headstart.report.load import ComparisonResults, arm_name, load_comparison
from headstart.report.reliability import arm_calibrations
from headstart.report.statistics import differences_without_leaks, protocol_accuracies, summaries
from headstart.report.summary import (
    capitalize,
    decimal_places,
    describe_missing,
    format_budget,
    format_percent,
    format_point,
    format_points,
    headline_tiles,
    verdict_sentences,
)
from headstart.report.tables import differences, format_value, gains, results_csv, results_json, setting_rows
from headstart.store.model_card import base_name
from headstart.store.records import RunRecord

WIDE, NARROW = 7.4, 3.9
_VARIABLES = {INK: "ink", FAINT: "line", PAPER: "card", OTHER: "other"}
_VARIABLES |= {colour: name for name, colour in (COLOURS | FURTHER).items()}
# a row that a telephone shows as a card is still read aloud as a row; names and texts are escaped, so tags are ours
_ROLES = {
    "<table": "table",
    "<tr": "row",
    "<td": "cell",
    '<th scope="row"': "rowheader",
    "<th(?! scope)": "columnheader",
}
_FEW_SENTENCES = 2
_REM = 5.1  # an inch is 4.5 rem in a figure's own size, and the card's padding comes on top


def write_report(folder: Path, out: Path | None = None, *, texts: bool = True) -> Path:
    """Report on the comparison in `folder`, into `out` or beside it, and return the page's path.

    Args:
        texts: quote the beginnings of test texts and what the language model wrote, where they were kept.
    """
    comparison = load_comparison(folder)
    if not texts:
        comparison = comparison.without_texts()
    out = out or folder
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {os_error_reason(error, out / 'figures')}") from error
    for drawing in report_figures(comparison):
        _write_figure(out, drawing, WIDE)
    for drawing in confusion_figures(comparison):
        _write_figure(out, drawing, confusion_width(len(comparison.labels)))
    for drawing in reliability_diagrams(arm_calibrations(comparison, comparison.main)):
        _write_figure(out, drawing, RELIABILITY_WIDTH)
    atomic_write(out / "results.csv", results_csv(comparison).encode("utf-8"))
    write_json(out / "results.json", results_json(comparison))
    page = out / "report.html"
    atomic_write(page, render(comparison).encode("utf-8"))
    return page


def render(comparison: ComparisonResults) -> str:
    """The page, as text."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_part)
    )
    environment.filters |= {
        "percent": format_percent,
        "points": format_points,
        "capital": capitalize,
        "number": format_budget,
        "unbroken": _unbroken,
        "arm": short_name,
        "name": arm_name,
        "hue": arm_hue,
        "plain": format_value,
        "place": format_point,
        "places": decimal_places,
        "file": base_name,
    }
    page = environment.get_template("template.html").render(
        comparison=comparison, **_words(comparison), **_figures(comparison), **_numbers(comparison)
    )
    for tag, role in _ROLES.items():
        page = re.sub(rf"({tag})(?=[ >])", rf'\1 role="{role}"', page)
    return page


def _part(name: str) -> str:
    return (files("headstart.report") / name).read_text("utf-8")


def _words(comparison: ComparisonResults) -> dict[str, Any]:
    """What the page says in sentences: with many numbers of labels the fewest first, the others below the figures."""
    found = verdict_sentences(comparison)
    first, *rest = map(_unbroken, found.most)
    fewer = [_unbroken(sentence) for sentence in found.fewer]
    many = len(fewer) > _FEW_SENTENCES
    return {
        "headline": first,
        "sentences": [*rest, *(fewer[:1] if many else fewer)],
        "by_labels": fewer if many else [],
        "unfinished": [_unbroken(sentence) for sentence in found.missing],
        "not_finished": describe_missing(comparison.missing),
    }


def _unbroken(sentence: str) -> str:
    """A number and its sign stay on one line."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def _figures(comparison: ComparisonResults) -> dict[str, Any]:
    """What the page shows as drawings."""
    width = confusion_width(len(comparison.labels))
    drawn = {
        drawing.name: (drawing.caption, _inline(drawing, WIDE), _inline(drawing, NARROW))
        for drawing in report_figures(comparison)
    }
    calibration = arm_calibrations(comparison, comparison.main)
    return {
        "figures": drawn,
        "confusions": [(drawing.caption, _inline(drawing, width)) for drawing in confusion_figures(comparison)],
        "confusion_rem": _REM * width,
        "calibration": calibration,
        "diagrams": [
            (drawing.caption, _inline(drawing, RELIABILITY_WIDTH)) for drawing in reliability_diagrams(calibration)
        ],
        "diagram_rem": _REM * RELIABILITY_WIDTH,
    }


def _numbers(comparison: ComparisonResults) -> dict[str, Any]:
    """What the page shows as tables."""
    data = comparison.data
    return {
        "glance": headline_tiles(comparison),
        "tables": [(budget, summaries(comparison, budget)) for budget in reversed(comparison.budgets)],
        "settings": setting_rows(comparison),
        "differences": differences(comparison),
        "worths": gains(comparison),
        "readings": protocol_accuracies(comparison, comparison.main),
        "classes": _classes(comparison),
        "errors": error_tables(comparison),
        "leaks": differences_without_leaks(comparison),
        "splits": [("train", data.train), ("validation", data.valid), ("test", data.test)],
        "one_seed": len(comparison.seeds) == 1,
        "looked_at_test": any(epoch.test_accuracy is not None for cell in comparison.cells for epoch in cell.epochs),
    }


def _write_figure(out: Path, drawing: ReportFigure, width: float) -> None:
    figure = drawing.draw(width)
    atomic_write(out / "figures" / f"{drawing.name}.svg", svg(figure).encode("utf-8"))
    atomic_write(out / "figures" / f"{drawing.name}.png", png(figure))


def _inline(drawing: ReportFigure, width: float) -> Markup:
    """The figure as an element of the page: in the page's colours, with a name, and with ids of its own.

    The text in it was escaped by matplotlib; everything put in here is ours or escaped.
    """
    text = svg(drawing.draw(width))
    text = text[text.index("<svg") :]
    prefix = f"{drawing.name}-{int(10 * width)}-"
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name}, {colour})")
    label = Markup("<svg role='img' aria-label='{}'").format(drawing.caption)
    return Markup(text.replace("<svg", str(label), 1))


def _classes(comparison: ComparisonResults) -> list[tuple[str, list[tuple[str, float, float, float, int]]]]:
    """For each arm: label, precision, recall, F1 over all its seeds, and how often the label is right in test."""
    tables = []
    for summary in summaries(comparison, comparison.main):
        if summary.arm == "majority":
            continue
        rows = []
        for index, label in enumerate(comparison.labels):
            hits = sum(_confusion(cell)[index][index] for cell in summary.cells)
            answered = sum(row[index] for cell in summary.cells for row in _confusion(cell))
            true = sum(sum(_confusion(cell)[index]) for cell in summary.cells)
            shares = (hits / max(1, answered), hits / max(1, true), 2 * hits / max(1, answered + true))
            rows.append((label, *shares, true // len(summary.cells)))
        tables.append((summary.arm, rows))
    return tables


def _confusion(cell: RunRecord) -> tuple[tuple[int, ...], ...]:
    assert cell.test.confusion is not None  # reading a cell made sure
    return cell.test.confusion
