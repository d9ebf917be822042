"""Figures and their style.

The look that all figures share: colours, names, an empty figure, a line with its band, and the bytes of a file.

No pyplot: nothing global is touched and no window can open. Colours are after Okabe and Ito, told apart by
colour-blind readers too. The same figure gives the same SVG bytes.

The figures of a comparison, as matplotlib `Figure` objects drawn at any width.

Lines carry their names, so there is no legend to look up.

Reliability diagrams: how many answers are right among those that are equally sure.
"""

import io
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import Formatter, MaxNLocator, NullLocator

from headstart.metrics import wilson
from headstart.report.intervals import mean
from headstart.report.load import ComparisonResults, arm_name
from headstart.report.reliability import ArmCalibration
from headstart.report.statistics import summaries, summarise
from headstart.report.summary import capitalize
from headstart.store.records import Epoch, RunRecord

COLOURS = {
    "majority": "#6e6e6e",
    "naive_bayes": "#b5528b",
    "nbsvm": "#7b4ea3",
    "tfidf": "#008060",
    "scratch": "#d55e00",
    "frozen": "#3f6f8f",
    "pretrained": "#0072b2",
}
FURTHER = {"further-1": "#a8324e", "further-2": "#4f6d00", "further-3": "#5145a8", "further-4": "#00707a"}
"""For arms that are told apart by a folder's name: which one it is follows from the name alone."""
OTHER = "#8a6d00"
INK, FAINT, PAPER = "#333333", "#d9d9d9", "#ffffff"
SHORT = {"naive_bayes": "naive Bayes", "nbsvm": "NB-SVM", "tfidf": "TF-IDF", "scratch": "from scratch"}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be found, copied, read aloud, and takes the page's font
    "svg.hashsalt": "headstart",
    "font.family": "DejaVu Sans",  # matplotlib brings it along, so PNGs look the same everywhere
    "font.size": 10,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_MAX_WIDTH = 6.0


def svg(figure: Figure) -> str:
    """The figure as SVG, the same text every time."""
    return _saved(figure, "svg").decode("utf-8")


def png(figure: Figure) -> bytes:
    """The figure as PNG, sharp enough for a slide."""
    return _saved(figure, "png")


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=200, metadata=_NO_METADATA if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def new_figure(width: float, title: str = "", note: str = "", *, height: float | None = None) -> tuple[Figure, Axes]:
    """An empty figure; `note` follows the title where there is room, for the reader who meets the figure alone."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(width, height or max(3.1, width * 0.52)),
            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
            facecolor=PAPER,
        )
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.set_title(f"{title} ({note})" if note and width >= _MAX_WIDTH else title, loc="left", color=INK, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_axisbelow(True)
    axes.yaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.yaxis.set_major_formatter(PercentFormatter())
    return figure, axes


class PercentFormatter(Formatter):
    """A share in per cent, with a decimal where the ticks are closer than one."""

    def __call__(self, share: float, _place: int | None = None) -> str:
        return f"{100 * share:.0f} %"

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The ticks of an axis, all with the same decimals."""
        digits = 1 if any(later - earlier < 0.0099 for earlier, later in pairwise(values)) else 0
        return [f"{100 * share:.{digits}f} %" for share in values]


def round_ticks(count: int = 7) -> MaxNLocator:
    """Ticks at 1, 2, 5, 10 per cent and so on, not at every 2.5."""
    return MaxNLocator(nbins=count, steps=[1, 2, 5, 10])


Band = tuple[float, float, float]
"""The lower edge, the line, the upper edge."""


def draw_line(axes: Axes, arm: str, places: list[float], bands: list[Band], marker: str = "") -> None:
    """A line with a band around it; a single place is a dot."""
    colour = arm_colour(arm)
    lows, levels, highs = zip(*bands, strict=True)
    axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    dot = marker or ("o" if len(places) == 1 else "")
    axes.plot(places, levels, color=colour, linewidth=2.2, marker=dot, markersize=5, clip_on=False)


def label_line_ends(axes: Axes, ends: list[tuple[float, str]]) -> None:
    """Write each arm's name and number right of its line, moved apart where lines end close together."""
    low, high = axes.get_ylim()
    gap = 0.068 * (high - low)
    heights: list[float] = []
    for level, _ in sorted(ends):
        heights.append(max(level, heights[-1] + gap) if heights else level)
    over = heights[-1] - (high - gap / 2) if heights else 0.0
    if over > 0:
        heights[-1] -= over
        for index in range(len(heights) - 2, -1, -1):
            heights[index] = min(heights[index], heights[index + 1] - gap)
    for (level, arm), height in zip(sorted(ends), heights, strict=True):
        _name(axes, arm, level, (1.0, height), ("axes fraction", "data"))
    axes.set_ylim(low, high)


def label_line_end(axes: Axes, arm: str, place: float, level: float) -> None:
    """The same for a line that ends before the others: beside its last point."""
    _name(axes, arm, level, (place, level), "data")


def _name(axes: Axes, arm: str, level: float, at: tuple[float, float], units: str | tuple[str, str]) -> None:
    axes.annotate(
        f"{shorten(short_name(arm), 22)} {100 * level:.1f}",
        at,
        xytext=(7, 0),
        xycoords=units,
        textcoords="offset points",
        color=arm_colour(arm),
        va="center",
        weight="bold",
    )


def arm_hue(arm: str) -> str:
    """The name of an arm's colour.

    >>> arm_hue("scratch"), arm_hue("distilled"), arm_hue("pretrained:books") in FURTHER
    ('scratch', 'other', True)
    """
    if arm in COLOURS:
        return arm
    return list(FURTHER)[zlib.crc32(arm.encode()) % len(FURTHER)] if ":" in arm else "other"


def arm_colour(arm: str) -> str:
    return (COLOURS | FURTHER).get(arm_hue(arm), OTHER)


def short_name(arm: str) -> str:
    """An arm in the fewest words, for lines and tables.

    >>> short_name("tfidf"), short_name("pretrained:books")
    ('TF-IDF', 'pretrained books')
    """
    return SHORT.get(arm, arm.replace(":", " "))


def shorten(text: str, limit: int) -> str:
    # a dollar sign would start matplotlib's formulas
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown.replace("$", r"\$")


_LIMIT_OF_NUMBERS = 10
_FEW = 3


@dataclass(frozen=True)
class ReportFigure:
    """A figure and what it shows, in a sentence that also serves who cannot see it."""

    name: str
    caption: str
    draw: Callable[[float], Figure]
    """Draws at a width in inches, so that a telephone gets a figure of its own instead of a shrunken one."""


def report_figures(comparison: ComparisonResults) -> list[ReportFigure]:
    """Every figure that the comparison has the numbers for, in the order of the page."""
    found = []
    over = "seeds and test texts" if len(comparison.seeds) > 1 else "test texts"
    if len(comparison.budgets) > 1:
        caption = f"Test accuracy by number of labels: mean over seeds, and the band its 95 % interval over {over}."
        found.append(ReportFigure("budgets", caption, lambda width: draw_budgets(comparison, width)))
    if _trained(comparison):
        found.append(_curves(comparison, "curves", "validation", lambda epoch: epoch.valid_accuracy))
    if _looked_at_test(comparison):
        found.append(_curves(comparison, "curves-test", "test", lambda epoch: epoch.test_accuracy or 0.0))
    caption = f"Test accuracy: a dot is a seed, the tick is their mean, the bar its 95 % interval over {over}."
    caption += _absent(comparison)
    found.append(ReportFigure("test", caption, lambda width: draw_test(comparison, width)))
    return found


def confusion_figures(comparison: ComparisonResults) -> list[ReportFigure]:
    """One small matrix for every arm that does not always say the same."""
    return [
        ReportFigure(
            f"confusion-{arm.replace(':', '-')}", _confusion_caption(comparison, arm), _confusion(comparison, arm)
        )
        for arm in comparison.arms
        if arm != "majority" and comparison.of(arm, comparison.main)
    ]


def _curves(comparison: ComparisonResults, name: str, split: str, value: Callable[[Epoch], float]) -> ReportFigure:
    seeds = _seeds(comparison)
    caption = f"Accuracy on {split} after every epoch"
    caption += f": mean of {seeds} seeds, and the band from the worst seed to the best." if seeds > 1 else ", one seed."
    if split == "test":
        caption += " Nothing was chosen by these numbers."
    caption += _absent(comparison)
    return ReportFigure(name, caption, lambda width: draw_curves(comparison, width, split, value))


def _absent(comparison: ComparisonResults) -> str:
    """Whom one looks for in vain in a figure of the most labels."""
    names = " and ".join(arm_name(arm) for arm in comparison.absent(comparison.main))
    return f" {capitalize(names)}: no finished run with so many labels." if names else ""


def _looked_at_test(comparison: ComparisonResults) -> bool:
    epochs = [epoch for cell in _trained(comparison) for epoch in cell.epochs]
    return bool(epochs) and all(epoch.test_accuracy is not None for epoch in epochs)


def _trained(comparison: ComparisonResults) -> list[RunRecord]:
    """The runs with all labels that went through epochs."""
    return [cell for arm in comparison.arms for cell in comparison.of(arm, comparison.main) if cell.epochs]


def _seeds(comparison: ComparisonResults) -> int:
    return len({cell.seed for cell in _trained(comparison)})


def draw_curves(comparison: ComparisonResults, width: float, split: str, value: Callable[[Epoch], float]) -> Figure:
    """Accuracy by epoch, with the arms that have no epochs as level lines."""
    figure, axes = new_figure(width, f"accuracy on {split}", _seeds_and_labels(comparison))
    ends: list[tuple[float, str]] = []
    last = 1
    for arm in comparison.arms:
        cells = comparison.of(arm, comparison.main)
        curves = [{epoch.epoch: value(epoch) for epoch in cell.epochs} for cell in cells]
        shared = sorted(set.intersection(*map(set, curves))) if curves else []
        if shared:
            rows = [[curve[epoch] for curve in curves] for epoch in shared]
            draw_line(axes, arm, [float(epoch) for epoch in shared], [(min(row), mean(row), max(row)) for row in rows])
            ends.append((mean(rows[-1]), arm))
            last = max(last, *shared)
    for arm in comparison.arms:
        cells = comparison.of(arm, comparison.main)
        if cells and not any(cell.epochs for cell in cells):
            level = mean([(cell.valid if split == "validation" else cell.test).accuracy for cell in cells])
            axes.axhline(level, color=arm_colour(arm), linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
            ends.append((level, arm))
    axes.set_xlim(1 if last > 1 else 0.5, last + (0 if last > 1 else 0.5))
    axes.set_xlabel("epoch", color=INK)
    axes.set_xticks(range(1, last + 1, 1 + (last - 1) // 8))
    axes.yaxis.set_major_locator(round_ticks())
    label_line_ends(axes, ends)
    return figure


def draw_budgets(comparison: ComparisonResults, width: float) -> Figure:
    """Test accuracy by number of labels, on a log scale, with the interval that the tables give."""
    figure, axes = new_figure(width, "accuracy on test", "mean over seeds, band its 95 % interval")
    ends: list[tuple[float, str]] = []
    rows_of = {budget: comparison.rows_of(budget) for budget in comparison.budgets}
    for arm in comparison.arms:
        found = [summarise(comparison, arm, budget) for budget in comparison.budgets]
        there = [summary for summary in found if summary is not None]
        bands = [(summary.accuracy.low, summary.accuracy.mean, summary.accuracy.high) for summary in there]
        if arm == "majority":  # a floor to stand above, not one of those that learn
            bands = [(level, level, level) for _, level, _ in bands]
        draw_line(axes, arm, [float(rows_of[summary.budget]) for summary in there], bands, "o")
        if there[-1].budget == comparison.main:
            ends.append((there[-1].accuracy.mean, arm))
        else:  # beside the last axis it would seem to have been run with all labels
            label_line_end(axes, arm, float(rows_of[there[-1].budget]), there[-1].accuracy.mean)
    places = list(rows_of.values())
    axes.set_xscale("log")
    axes.set_xlim(places[0] * 0.93, places[-1])
    axes.set_xticks(_spread_labels(places, width), [f"{place:,}" for place in _spread_labels(places, width)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(round_ticks())
    axes.set_xlabel("labelled texts to learn from", color=INK)
    label_line_ends(axes, ends)
    return figure


def _spread_labels(places: list[int], width: float) -> list[int]:
    """The places whose numbers do not run into each other on a log scale, the last one among them.

    >>> _spread_labels([50, 100, 110, 1600], width=3.9)
    [50, 110, 1600]
    """
    least = math.log(places[-1] / places[0]) * 0.33 / max(1.0, width - 2.2)  # a number takes about 0.33 inches
    kept = [places[-1]]
    for place in reversed(places[:-1]):
        if math.log(kept[0] / place) >= least:
            kept.insert(0, place)
    return kept


def draw_test(comparison: ComparisonResults, width: float) -> Figure:
    """Who won on test: every seed of every arm, best arm on top."""
    ranked = sorted(summaries(comparison, comparison.main), key=lambda summary: summary.accuracy.mean)
    figure, axes = new_figure(width, height=0.5 * len(ranked) + 0.75)
    for place, summary in enumerate(ranked):
        colour, found = arm_colour(summary.arm), summary.accuracy
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=7, alpha=0.28, solid_capstyle="butt")
        axes.scatter(
            summary.accuracies, [place] * len(summary.accuracies), s=22, color=colour, alpha=0.85, linewidths=0
        )
        axes.plot([found.mean] * 2, [place - 0.24, place + 0.24], color=colour, linewidth=2.2)
        axes.annotate(
            f"{100 * found.mean:.1f} %",
            (1.02, place),
            xycoords=("axes fraction", "data"),
            color=colour,
            va="center",
            weight="bold",
        )
    axes.set_yticks(range(len(ranked)), [short_name(summary.arm) for summary in ranked], color=INK)
    axes.set_ylim(-0.6, len(ranked) - 0.4)
    axes.yaxis.grid(visible=False)
    axes.xaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.xaxis.set_major_formatter(PercentFormatter())
    axes.xaxis.set_major_locator(round_ticks(6))
    axes.set_xlabel("accuracy on test", color=INK)
    return figure


def confusion_width(labels: int) -> float:
    """Inches in which the numbers of so many labels do not touch.

    >>> confusion_width(2), confusion_width(8), confusion_width(77)
    (2.9, 4.7, 7.4)
    """
    return 2.9 if labels <= _FEW else min(7.4, round(1.5 + 0.4 * labels, 1))


def draw_confusion(comparison: ComparisonResults, arm: str, width: float) -> Figure:
    """Share of each true label (row) given each answer (column), over all seeds."""
    size = len(comparison.labels)
    figure, axes = new_figure(width, height=width * 0.86)
    colour, points = arm_colour(arm), 10 if size <= _FEW else 8
    for row, shares in enumerate(_shares(comparison.of(arm, comparison.main), size)):
        for column, share in enumerate(shares):
            alpha = 0.06 + 0.42 * share  # pale enough for the page's ink, by day and by night
            box = Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, facecolor=colour, alpha=alpha, linewidth=0)
            axes.add_patch(box)
            if size <= _LIMIT_OF_NUMBERS:
                axes.text(
                    column,
                    row,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    color=INK,
                    weight="bold",
                    fontsize=points,
                )
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    names = [shorten(label, 12) for label in comparison.labels] if size <= 2 * _LIMIT_OF_NUMBERS else []
    turned = 0 if size <= _FEW else 90
    axes.set_xticks(range(len(names)), names, color=INK, rotation=turned, fontsize=9)
    axes.set_yticks(range(len(names)), names, color=INK, fontsize=9)
    axes.grid(visible=False)
    axes.set_xlabel("answered", color=INK, fontsize=9)
    axes.set_ylabel("true label", color=INK, fontsize=9)
    axes.set_title(f"{short_name(arm)}, %", color=colour, fontsize=10, weight="bold", loc="left")
    return figure


def _confusion(comparison: ComparisonResults, arm: str) -> Callable[[float], Figure]:
    return lambda width: draw_confusion(comparison, arm, width)


def _confusion_caption(comparison: ComparisonResults, arm: str) -> str:
    seeds = len(comparison.of(arm, comparison.main))
    together = f", {seeds} seeds together" if seeds > 1 else ""
    return f"Share of each true label given each answer on test{together}."


def _shares(cells: tuple[RunRecord, ...], size: int) -> list[list[float]]:
    total = [
        [sum((cell.test.confusion or ())[row][column] for cell in cells) for column in range(size)]
        for row in range(size)
    ]
    return [[count / max(1, sum(row)) for count in row] for row in total]


def _seeds_and_labels(comparison: ComparisonResults) -> str:
    seeds = _seeds(comparison)
    runs = f"mean of {seeds} seeds, band from worst to best" if seeds > 1 else "one seed"
    return f"{comparison.rows_of(comparison.main):,} labels, {runs}"


RELIABILITY_WIDTH = 2.9


def reliability_diagrams(found: list[ArmCalibration]) -> list[ReportFigure]:
    """One small diagram an arm."""
    return [
        ReportFigure(f"calibration-{each.arm.replace(':', '-')}", reliability_caption(each), _drawn(each))
        for each in found
    ]


def reliability_caption(found: ArmCalibration) -> str:
    """What a diagram shows, in a sentence that also serves who cannot see it."""
    together = f", {found.seeds} seeds together" if found.seeds > 1 else ""
    return (
        f"Right answers by certainty{together}: calibration error {100 * found.ece:.1f} points "
        f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})."
    )


def _drawn(found: ArmCalibration) -> Callable[[float], Figure]:
    return lambda width: draw_reliability(found, width)


def draw_reliability(found: ArmCalibration, width: float) -> Figure:
    """A dot a bin, as large as the bin is full, with the 95 % interval of its share; on the diagonal all is well."""
    figure, axes = new_figure(width, height=width * 0.86)
    colour = arm_colour(found.arm)
    low = min(0.5, *(each.low for each in found.bins))
    axes.plot([low, 1], [low, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    most = max(each.rows for each in found.bins)
    for each in found.bins:
        # seeds answer the same texts: what they agree on is one observation, not several
        texts = max(1, round(each.rows / found.seeds))
        bottom, top = wilson(round(each.accuracy * texts), texts)
        axes.plot([each.confidence] * 2, [bottom, top], color=colour, linewidth=1.4, alpha=0.55)
    sizes = [8 + 70 * each.rows / most for each in found.bins]
    axes.scatter(
        [each.confidence for each in found.bins],
        [each.accuracy for each in found.bins],
        s=sizes,
        color=colour,
        linewidths=0,
        zorder=3,
        clip_on=False,
    )
    axes.set_xlim(low - 0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter())
    axes.xaxis.set_major_locator(round_ticks(4))
    axes.yaxis.set_major_locator(round_ticks(5))
    axes.xaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.set_xlabel("sure", color=INK, fontsize=9)
    axes.set_ylabel("right", color=INK, fontsize=9)
    axes.set_title(f"{short_name(found.arm)}", color=colour, fontsize=10, weight="bold", loc="left")
    return figure
