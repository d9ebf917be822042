"""Write the report of a comparison: one page that opens offline, and the same numbers as CSV and JSON.

report.html     verdict, figures and tables in one file, without scripts
results.csv     a row per run
results.json    the verdict, the summaries and the paired differences
figures/        the figures of the page as .svg and .png
"""

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

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
from headstart.report.gain import gains
from headstart.report.load import ComparisonResults, arm_name, load_comparison
from headstart.report.reliability import arm_calibrations
from headstart.report.statistics import differences_without_leaks, protocol_accuracies, summaries
from headstart.report.summary import (
    capitalize,
    describe_missing,
    describe_pairing,
    format_budget,
    format_percent,
    format_point,
    format_point_interval,
    format_points,
    headline_tiles,
    verdict_sentences,
)
from headstart.report.tables import differences, format_value, results_csv, results_json, setting_rows
from headstart.store.model_card import base_name

DESKTOP_WIDTH, PHONE_WIDTH = 7.4, 3.9  # inches
_VARIABLES = {INK: "ink", FAINT: "line", PAPER: "card", OTHER: "other"}
_VARIABLES |= {colour: name for name, colour in (COLOURS | FURTHER).items()}
# a row that a phone shows as a card is still read aloud as a row; names and texts are escaped, so all tags are ours
_ROLES = {
    "<table": "table",
    "<tr": "row",
    "<td": "cell",
    '<th scope="row"': "rowheader",
    "<th(?! scope)": "columnheader",
}
_MAX_SENTENCES_ABOVE = 2
_REM_PER_INCH = 5.1  # an inch of a figure is 4.5 rem, and the padding of the card is added


def write_report(folder: Path, out: Path | None = None, *, texts: bool = True) -> Path:
    """Write the report of the comparison in `folder` to `out`, by default to `folder`, and return the path of the page.

    Args:
        texts: quote excerpts of test texts and generated text, where they were kept.
    """
    comparison = load_comparison(folder)
    if not texts:
        comparison = comparison.without_texts()
    out = out or folder
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {os_error_reason(error, out / 'figures')}") from error
    figures = _Figures(comparison)
    figures.write(out / "figures")
    atomic_write(out / "results.csv", results_csv(comparison).encode("utf-8"))
    write_json(out / "results.json", results_json(comparison))
    page = out / "report.html"
    atomic_write(page, _render(comparison, figures).encode("utf-8"))
    return page


def render(comparison: ComparisonResults) -> str:
    """Render the page as HTML."""
    return _render(comparison, _Figures(comparison))


def _render(comparison: ComparisonResults, figures: "_Figures") -> str:
    page = _page_template().render(
        comparison=comparison, **_sentences(comparison), **figures.of_page(), **_tables(comparison)
    )
    for tag, role in _ROLES.items():
        page = re.sub(rf"({tag})(?=[ >])", rf'\1 role="{role}"', page)
    return page


@cache
def _page_template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.filters |= {
        "percent": format_percent,
        "points": format_points,
        "capital": capitalize,
        "number": format_budget,
        "unbroken": _keep_percent_together,
        "arm": short_name,
        "name": arm_name,
        "hue": arm_hue,
        "plain": format_value,
        "point": format_point,
        "point_interval": format_point_interval,
        "file": base_name,
    }
    return environment.get_template("template.html")


def _template(name: str) -> str:
    return (files("headstart.report") / name).read_text("utf-8")


def _sentences(comparison: ComparisonResults) -> dict[str, Any]:
    """Return the sentences of the page; with many budgets only the smallest is above the figures."""
    verdict = verdict_sentences(comparison)
    headline, *others = map(_keep_percent_together, verdict.largest_budget)
    smaller_budgets = [_keep_percent_together(sentence) for sentence in verdict.smaller_budgets]
    many = len(smaller_budgets) > _MAX_SENTENCES_ABOVE
    return {
        "headline": headline,
        "sentences": [*others, *(smaller_budgets[:1] if many else smaller_budgets)],
        "by_labels": smaller_budgets if many else [],
        "unfinished": [_keep_percent_together(sentence) for sentence in verdict.missing],
        "not_finished": describe_missing(comparison.missing),
    }


def _keep_percent_together(sentence: str) -> str:
    """Keep a number and its per cent sign on one line."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


class _Figures:
    """The figures of a report: those of the files are also on the page, and are drawn once."""

    def __init__(self, comparison: ComparisonResults) -> None:
        self._report = report_figures(comparison)
        self._confusions = confusion_figures(comparison)
        self._calibration = arm_calibrations(comparison, comparison.largest_budget)
        self._diagrams = reliability_diagrams(self._calibration)
        self._confusion_width = confusion_width(len(comparison.labels))
        self._drawn: dict[tuple[str, float], tuple[Figure, str]] = {}

    def write(self, folder: Path) -> None:
        """Write every figure as SVG and PNG."""
        widths = [(figure, DESKTOP_WIDTH) for figure in self._report]
        widths += [(figure, self._confusion_width) for figure in self._confusions]
        widths += [(figure, RELIABILITY_WIDTH) for figure in self._diagrams]
        for figure, width in widths:
            drawn, text = self._draw(figure, width)
            atomic_write(folder / f"{figure.name}.svg", text.encode("utf-8"))
            atomic_write(folder / f"{figure.name}.png", png(drawn))

    def of_page(self) -> dict[str, Any]:
        """Return the figures of the page as inline SVG."""
        drawn = {
            figure.name: (figure.caption, self._inline(figure, DESKTOP_WIDTH), self._inline(figure, PHONE_WIDTH))
            for figure in self._report
        }
        width = self._confusion_width
        return {
            "figures": drawn,
            "confusions": [(figure.caption, self._inline(figure, width)) for figure in self._confusions],
            "confusion_rem": _REM_PER_INCH * width,
            "confusion_scrolls": width >= DESKTOP_WIDTH,  # many labels, whose names a phone would shrink too much
            "calibration": self._calibration,
            "diagrams": [(figure.caption, self._inline(figure, RELIABILITY_WIDTH)) for figure in self._diagrams],
            "diagram_rem": _REM_PER_INCH * RELIABILITY_WIDTH,
        }

    def _draw(self, figure: ReportFigure, width: float) -> tuple[Figure, str]:
        """Return the figure and its SVG."""
        key = (figure.name, width)
        if key not in self._drawn:
            drawn = figure.draw(width)
            self._drawn[key] = (drawn, svg(drawn))
            drawn.set_layout_engine(None)  # the PNG has the layout of the SVG, which takes most of the time
        return self._drawn[key]

    def _inline(self, figure: ReportFigure, width: float) -> Markup:
        """Return the figure as an element of the page: in the page's colours, labelled, and with unique ids.

        Matplotlib has escaped the text in it; everything inserted here is ours or escaped.
        """
        _, text = self._draw(figure, width)
        text = text[text.index("<svg") :]
        prefix = f"{figure.name}-{int(10 * width)}-"
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
        for colour, name in _VARIABLES.items():
            text = text.replace(f": {colour}", f": var(--{name}, {colour})")
        label = Markup("<svg role='img' aria-label='{}'").format(figure.caption)
        return Markup(text.replace("<svg", str(label), 1))


def _tables(comparison: ComparisonResults) -> dict[str, Any]:
    """Return the numbers of the page's tables."""
    data = comparison.data
    return {
        "tiles": headline_tiles(comparison),
        "tables": [(budget, summaries(comparison, budget)) for budget in reversed(comparison.budgets)],
        "settings": setting_rows(comparison),
        "differences": differences(comparison),
        "gains": gains(comparison),
        "protocols": protocol_accuracies(comparison, comparison.largest_budget),
        "classes": _classes(comparison),
        "errors": error_tables(comparison),
        "leaks": differences_without_leaks(comparison),
        "splits": [("train", data.train), ("validation", data.valid), ("test", data.test)],
        "one_seed": len(comparison.seeds) == 1,
        "pairing": describe_pairing(comparison),
        "looked_at_test": any(epoch.test_accuracy is not None for run in comparison.runs for epoch in run.epochs),
    }


def _classes(comparison: ComparisonResults) -> list[tuple[str, list[tuple[str, float, float, float, int]]]]:
    """Return, for each arm, the label, precision, recall and F1 over all seeds, and the label's count in test."""
    tables = []
    for summary in summaries(comparison, comparison.largest_budget):
        if summary.arm == "majority":
            continue
        confusion = np.sum([run.test.confusion or () for run in summary.runs], axis=0)
        hits, gold, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
        rows = [
            (
                label,
                float(hits[index] / max(1, predicted[index])),
                float(hits[index] / max(1, gold[index])),
                float(2 * hits[index] / max(1, predicted[index] + gold[index])),
                int(gold[index]) // len(summary.runs),
            )
            for index, label in enumerate(comparison.labels)
        ]
        tables.append((summary.arm, rows))
    return tables
