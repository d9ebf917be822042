"""Figures of a comparison as matplotlib `Figure` objects, their style, and their bytes as SVG and PNG.

No pyplot: no global state is touched and no window can open. Colours are after Okabe and Ito, which colour-blind readers
can distinguish. The same figure gives the same SVG bytes. Lines are labelled at their ends, so there is no legend.
"""

import io
import math
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import Formatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

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
    "linear": "#008060",
    "scratch": "#d55e00",
    "frozen": "#3f6f8f",
    "pretrained": "#0072b2",
    "blend": "#a8324e",
}
FURTHER = {"further-1": "#a8324e", "further-2": "#4f6d00", "further-3": "#5145a8", "further-4": "#00707a"}
"""Colours of arms that differ by the name of a folder; the name alone decides which."""
OTHER = "#8a6d00"
INK, FAINT, PAPER = "#333333", "#d9d9d9", "#ffffff"
SHORT = {"naive_bayes": "naive Bayes", "nbsvm": "NB-SVM", "tfidf": "TF-IDF", "scratch": "from scratch"}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud, and takes the font of the page
    "svg.hashsalt": "headstart",
    "font.family": "DejaVu Sans",  # matplotlib ships it, so PNGs look the same everywhere
    "font.size": 10,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_MIN_WIDTH_WITH_NOTE = 6.0  # inches
_MAX_LABELS_WITH_NUMBERS = 10
_MAX_LABELS_UNROTATED = 3
_NUM_CONFUSED = 3
"""Pairs of labels that a caption names where the figure has no numbers."""
_PALEST = 0.06
"""The opacity of a cell of a confusion matrix without any text."""
RELIABILITY_WIDTH = 2.9

Band = tuple[float, float, float]
"""The lower edge, the line, the upper edge."""


def svg(figure: Figure) -> str:
    """Return the figure as SVG, the same text every time."""
    return _render(figure, "svg").decode("utf-8")


def png(figure: Figure) -> bytes:
    """Return the figure as PNG, sharp enough for a slide."""
    return _render(figure, "png")


def _render(figure: Figure, file_format: str) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # labels in Chinese: the page has them as text in the reader's font, and the warning is not actionable
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        metadata = _NO_METADATA if file_format == "svg" else {"Software": None}
        figure.savefig(buffer, format=file_format, dpi=200, metadata=metadata)
    return buffer.getvalue()


def new_figure(width: float, title: str = "", note: str = "", *, height: float | None = None) -> tuple[Figure, Axes]:
    """Return an empty figure; `note` follows the title where there is room, for a figure that is shown by itself."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(width, height or max(3.1, width * 0.52)),
            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
            facecolor=PAPER,
        )
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.set_title(
        f"{title} ({note})" if note and width >= _MIN_WIDTH_WITH_NOTE else title, loc="left", color=INK, fontsize=10
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_axisbelow(True)
    axes.yaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.yaxis.set_major_formatter(PercentFormatter())
    return figure, axes


class PercentFormatter(Formatter):
    """Formats a fraction in per cent, with a decimal where ticks are less than one per cent apart."""

    def __call__(self, fraction: float, _position: int | None = None) -> str:
        return f"{100 * fraction:.0f} %"

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Format the ticks of an axis, all with the same decimals."""
        digits = 1 if any(later - earlier < 0.0099 for earlier, later in pairwise(values)) else 0
        return [f"{100 * fraction:.{digits}f} %" for fraction in values]


def round_ticks(count: int = 7) -> MaxNLocator:
    """Return a locator of ticks at 1, 2, 5, 10 per cent and so on, not at every 2.5."""
    return MaxNLocator(nbins=count, steps=[1, 2, 5, 10])


def draw_line(axes: Axes, arm: str, xs: list[float], bands: list[Band], marker: str = "") -> None:
    """Draw a line with a band around it; a single point is a dot."""
    colour = arm_colour(arm)
    lows, levels, highs = zip(*bands, strict=True)
    axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, linewidth=0)
    dot = marker or ("o" if len(xs) == 1 else "")
    axes.plot(xs, levels, color=colour, linewidth=2.2, marker=dot, markersize=5, clip_on=False)


def label_line_ends(axes: Axes, ends: list[tuple[float, str]]) -> None:
    """Write the name and value of each arm right of its line, spaced out where lines end close together."""
    low, high = axes.get_ylim()
    gap = 0.068 * (high - low)
    heights: list[float] = []
    for level, _ in sorted(ends):
        heights.append(max(level, heights[-1] + gap) if heights else level)
    overflow = heights[-1] - (high - gap / 2) if heights else 0.0
    if overflow > 0:
        heights[-1] -= overflow
        for index in range(len(heights) - 2, -1, -1):
            heights[index] = min(heights[index], heights[index + 1] - gap)
    for (level, arm), height in zip(sorted(ends), heights, strict=True):
        _annotate(axes, arm, level, (1.0, height), ("axes fraction", "data"))
    axes.set_ylim(low, high)


def label_line_end(axes: Axes, arm: str, x: float, level: float) -> None:
    """Write the name and value of an arm beside the last point of a line that ends before the others."""
    _annotate(axes, arm, level, (x, level), "data")


def _annotate(axes: Axes, arm: str, level: float, xy: tuple[float, float], units: str | tuple[str, str]) -> None:
    axes.annotate(
        f"{shorten(short_name(arm), 22)} {100 * level:.1f}",
        xy,
        xytext=(7, 0),
        xycoords=units,
        textcoords="offset points",
        color=arm_colour(arm),
        va="center",
        weight="bold",
    )


def arm_hue(arm: str) -> str:
    """Return the name of an arm's colour.

    >>> arm_hue("scratch"), arm_hue("distilled"), arm_hue("pretrained:books") in FURTHER
    ('scratch', 'other', True)
    """
    if arm in COLOURS:
        return arm
    return list(FURTHER)[zlib.crc32(arm.encode()) % len(FURTHER)] if ":" in arm else "other"


def arm_colour(arm: str) -> str:
    """Return the colour of an arm."""
    return (COLOURS | FURTHER).get(arm_hue(arm), OTHER)


def short_name(arm: str) -> str:
    """Name an arm briefly, for lines and tables.

    >>> short_name("nbsvm"), short_name("pretrained:books")
    ('NB-SVM', 'pretrained books')
    """
    return SHORT.get(arm, arm.replace(":", " "))


def shorten(text: str, limit: int) -> str:
    """Cut a text after `limit` characters, and escape the dollar signs that would start a formula."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown.replace("$", r"\$")


@dataclass(frozen=True)
class ReportFigure:
    """A figure and its caption, which also describes it to readers who cannot see it."""

    name: str
    caption: str
    draw: Callable[[float], Figure]
    """Draws at a width in inches, so that a phone gets its own figure instead of a shrunken one."""


def report_figures(comparison: ComparisonResults) -> list[ReportFigure]:
    """Return every figure that the comparison has the numbers for, in the order of the page."""
    figures = []
    over = "seeds and test texts" if len(comparison.seeds) > 1 else "test texts"
    if len(comparison.budgets) > 1:
        caption = f"Test accuracy by number of labels: mean over seeds, and the band its 95 % interval over {over}."
        figures.append(ReportFigure("budgets", caption, lambda width: draw_budgets(comparison, width)))
    if _trained_runs(comparison):
        figures.append(_curves(comparison, "curves", "validation", lambda epoch: epoch.valid_accuracy))
    if _has_test_curves(comparison):
        figures.append(_curves(comparison, "curves-test", "test", lambda epoch: epoch.test_accuracy or 0.0))
    caption = f"Test accuracy: a dot is a seed, the tick is their mean, the bar its 95 % interval over {over}."
    caption += _absent_arms(comparison)
    figures.append(ReportFigure("test", caption, lambda width: draw_test(comparison, width)))
    return figures


def confusion_figures(comparison: ComparisonResults) -> list[ReportFigure]:
    """Return one small matrix for every arm except the majority class."""
    return [
        ReportFigure(
            f"confusion-{arm.replace(':', '-')}",
            _confusion_caption(comparison, arm),
            partial(draw_confusion, comparison, arm),
        )
        for arm in comparison.arms
        if arm != "majority" and comparison.runs_of(arm, comparison.largest_budget)
    ]


def _curves(comparison: ComparisonResults, name: str, split: str, value: Callable[[Epoch], float]) -> ReportFigure:
    seeds = _num_seeds(comparison)
    caption = f"Accuracy on {split} after every epoch"
    caption += f": mean of {seeds} seeds, and the band from the worst seed to the best." if seeds > 1 else ", one seed."
    if split == "test":
        caption += " These numbers were not used to choose anything."
    elif any(epoch.valid_rows is not None for run in _trained_runs(comparison) for epoch in run.epochs):
        caption += " Epochs before the last one were evaluated on a part of the validation rows."
    caption += _absent_arms(comparison)
    return ReportFigure(name, caption, lambda width: draw_curves(comparison, width, split, value))


def _absent_arms(comparison: ComparisonResults) -> str:
    """Name the arms that a figure of the largest budget lacks."""
    names = " and ".join(arm_name(arm) for arm in comparison.arms_without_runs(comparison.largest_budget))
    return f" {capitalize(names)}: no finished run with this number of labels." if names else ""


def _has_test_curves(comparison: ComparisonResults) -> bool:
    epochs = [epoch for run in _trained_runs(comparison) for epoch in run.epochs]
    return bool(epochs) and all(epoch.test_accuracy is not None for epoch in epochs)


def _trained_runs(comparison: ComparisonResults) -> list[RunRecord]:
    """Return the runs at the largest budget that have epochs."""
    return [run for arm in comparison.arms for run in comparison.runs_of(arm, comparison.largest_budget) if run.epochs]


def _num_seeds(comparison: ComparisonResults) -> int:
    return len({run.seed for run in _trained_runs(comparison)})


def draw_curves(comparison: ComparisonResults, width: float, split: str, value: Callable[[Epoch], float]) -> Figure:
    """Draw accuracy by epoch, with the arms that have no epochs as horizontal lines."""
    figure, axes = new_figure(width, f"accuracy on {split}", _seeds_and_labels(comparison))
    ends: list[tuple[float, str]] = []
    last = 1
    for arm in comparison.arms:
        runs = comparison.runs_of(arm, comparison.largest_budget)
        curves = [{epoch.epoch: value(epoch) for epoch in run.epochs} for run in runs]
        epochs = sorted(set.intersection(*map(set, curves))) if curves else []
        if epochs:
            rows = [[curve[epoch] for curve in curves] for epoch in epochs]
            draw_line(axes, arm, [float(epoch) for epoch in epochs], [(min(row), mean(row), max(row)) for row in rows])
            ends.append((mean(rows[-1]), arm))
            last = max(last, *epochs)
    for arm in comparison.arms:
        runs = comparison.runs_of(arm, comparison.largest_budget)
        if runs and not any(run.epochs for run in runs):
            level = mean([(run.valid if split == "validation" else run.test).accuracy for run in runs])
            axes.axhline(level, color=arm_colour(arm), linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
            ends.append((level, arm))
    axes.set_xlim(1 if last > 1 else 0.5, last + (0 if last > 1 else 0.5))
    axes.set_xlabel("epoch", color=INK)
    axes.set_xticks(range(1, last + 1, 1 + (last - 1) // 8))
    axes.yaxis.set_major_locator(round_ticks())
    label_line_ends(axes, ends)
    return figure


def draw_budgets(comparison: ComparisonResults, width: float) -> Figure:
    """Draw test accuracy by number of labels, on a log scale, with the interval of the tables."""
    figure, axes = new_figure(width, "accuracy on test", "mean over seeds, band its 95 % interval")
    ends: list[tuple[float, str]] = []
    rows_of = {budget: comparison.rows_of(budget) for budget in comparison.budgets}
    for arm in comparison.arms:
        by_budget = [summarise(comparison, arm, budget) for budget in comparison.budgets]
        measured = [summary for summary in by_budget if summary is not None]
        bands = [(summary.accuracy.low, summary.accuracy.mean, summary.accuracy.high) for summary in measured]
        if arm == "majority":  # a floor, which does not learn
            bands = [(level, level, level) for _, level, _ in bands]
        draw_line(axes, arm, [float(rows_of[summary.budget]) for summary in measured], bands, "o")
        if measured[-1].budget == comparison.largest_budget:
            ends.append((measured[-1].accuracy.mean, arm))
        else:  # at the right edge it would seem to have been run with all labels
            label_line_end(axes, arm, float(rows_of[measured[-1].budget]), measured[-1].accuracy.mean)
    sizes = list(rows_of.values())
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] * 0.93, sizes[-1])
    ticks = _readable_ticks(sizes, width)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(round_ticks())
    axes.set_xlabel("labelled training texts", color=INK)
    label_line_ends(axes, ends)
    return figure


def _readable_ticks(sizes: list[int], width: float) -> list[int]:
    """Return the sizes whose numbers do not overlap on a log scale, including the last one.

    >>> _readable_ticks([50, 100, 110, 1600], width=3.9)
    [50, 110, 1600]
    """
    min_distance = math.log(sizes[-1] / sizes[0]) * 0.33 / max(1.0, width - 2.2)  # a number takes about 0.33 inches
    ticks = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if math.log(ticks[0] / size) >= min_distance:
            ticks.insert(0, size)
    return ticks


def draw_test(comparison: ComparisonResults, width: float) -> Figure:
    """Draw the test accuracy of every seed of every arm, the best arm on top."""
    ranked = sorted(summaries(comparison, comparison.largest_budget), key=lambda summary: summary.accuracy.mean)
    figure, axes = new_figure(width, height=0.5 * len(ranked) + 0.75)
    for row, summary in enumerate(ranked):
        colour, accuracy = arm_colour(summary.arm), summary.accuracy
        axes.plot(
            [accuracy.low, accuracy.high], [row, row], color=colour, linewidth=7, alpha=0.28, solid_capstyle="butt"
        )
        axes.scatter(summary.accuracies, [row] * len(summary.accuracies), s=22, color=colour, alpha=0.85, linewidths=0)
        axes.plot([accuracy.mean] * 2, [row - 0.24, row + 0.24], color=colour, linewidth=2.2)
        axes.annotate(
            f"{100 * accuracy.mean:.1f} %",
            (1.02, row),
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


def confusion_width(num_labels: int) -> float:
    """Return the inches in which the numbers, or the names, of so many labels do not touch.

    >>> confusion_width(2), confusion_width(8), confusion_width(30), confusion_width(77), confusion_width(500)
    (2.9, 4.7, 7.4, 10.1, 14.0)
    """
    if num_labels <= _MAX_LABELS_UNROTATED:
        return 2.9
    with_numbers, with_names = 1.5 + 0.4 * num_labels, 1.6 + 0.11 * num_labels
    return round(max(min(7.4, with_numbers), min(14.0, with_names)), 1)


def draw_confusion(comparison: ComparisonResults, arm: str, width: float) -> Figure:
    """Draw the fraction of each true label (row) that got each prediction (column), over all seeds."""
    size = len(comparison.labels)
    figure, axes = new_figure(width, height=width * 0.86)
    colour, font_size = arm_colour(arm), 10 if size <= _MAX_LABELS_UNROTATED else 8
    counts = _confusion_counts(comparison, arm)
    axes.add_patch(Rectangle((-0.5, -0.5), size, size, facecolor=colour, alpha=_PALEST, linewidth=0))
    for row, column in np.ndindex(size, size):
        fraction = counts[row, column] / max(1, counts[row].sum())
        if fraction:  # pale enough for the text colour, in the light and the dark theme
            box = Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, facecolor=colour, linewidth=0)
            box.set_alpha(0.42 * fraction)
            axes.add_patch(box)
        if size <= _MAX_LABELS_WITH_NUMBERS:
            number = f"{100 * fraction:.0f}"
            axes.text(column, row, number, ha="center", va="center", color=INK, weight="bold", fontsize=font_size)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    many = size > _MAX_LABELS_WITH_NUMBERS
    names = [shorten(label, 24 if many else 12) for label in comparison.labels]
    name_size = min(9.0, 72 * 0.62 * width / size)  # of the points that a row has
    rotation = 0 if size <= _MAX_LABELS_UNROTATED else 90
    axes.set_xticks(range(size), names, color=INK, rotation=rotation, fontsize=name_size)
    axes.set_yticks(range(size), names, color=INK, fontsize=name_size)
    axes.grid(visible=False)
    axes.set_xlabel("predicted", color=INK, fontsize=9)
    axes.set_ylabel("true label", color=INK, fontsize=9)
    axes.set_title(f"{short_name(arm)}, %", color=colour, fontsize=10, weight="bold", loc="left")
    return figure


def _confusion_caption(comparison: ComparisonResults, arm: str) -> str:
    seeds = len(comparison.runs_of(arm, comparison.largest_budget))
    together = f", {seeds} seeds together" if seeds > 1 else ""
    caption = f"Fraction of the test texts of each true label by predicted label{together}."
    if len(comparison.labels) <= _MAX_LABELS_WITH_NUMBERS:
        return caption
    counts = _confusion_counts(comparison, arm)
    mistakes = counts - np.diag(np.diag(counts))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_NUM_CONFUSED]
    pairs = [(row, column) for row, column in zip(*np.unravel_index(order, counts.shape), strict=True)]
    described = [
        f"{comparison.labels[row]} predicted as {comparison.labels[column]} "
        f"({100 * counts[row, column] / counts[row].sum():.0f} % of its texts)"
        for row, column in pairs
        if mistakes[row, column]
    ]
    return f"{caption} Most often confused: {'; '.join(described)}." if described else caption


def _confusion_counts(comparison: ComparisonResults, arm: str) -> NDArray[np.int64]:
    """Return the texts of each true label (row) that got each prediction (column), over all seeds."""
    runs = comparison.runs_of(arm, comparison.largest_budget)
    counts: NDArray[np.int64] = np.sum([run.test.confusion or () for run in runs], axis=0, dtype=np.int64)
    return counts


def _seeds_and_labels(comparison: ComparisonResults) -> str:
    seeds = _num_seeds(comparison)
    runs = f"mean of {seeds} seeds, band from worst to best" if seeds > 1 else "one seed"
    return f"{comparison.rows_of(comparison.largest_budget):,} labels, {runs}"


def reliability_diagrams(calibrations: list[ArmCalibration]) -> list[ReportFigure]:
    """Return one small diagram per arm."""
    return [
        ReportFigure(
            f"calibration-{calibration.arm.replace(':', '-')}",
            reliability_caption(calibration),
            partial(draw_reliability, calibration),
        )
        for calibration in calibrations
    ]


def reliability_caption(calibration: ArmCalibration) -> str:
    """Describe a diagram, also for readers who cannot see it."""
    together = f", {calibration.seeds} seeds together" if calibration.seeds > 1 else ""
    return (
        f"Accuracy by predicted probability{together}: calibration error {100 * calibration.ece:.1f} points "
        f"(95 % interval {100 * calibration.low:.1f} to {100 * calibration.high:.1f})."
    )


def draw_reliability(calibration: ArmCalibration, width: float) -> Figure:
    """Draw accuracy by confidence: a dot per bin, sized by its texts, with its 95 % interval; the diagonal is perfect."""
    figure, axes = new_figure(width, height=width * 0.86)
    colour, bins = arm_colour(calibration.arm), calibration.bins
    low = min(0.5, *(bin_.low for bin_ in bins))
    axes.plot([low, 1], [low, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for bin_ in bins:
        # seeds predict the same texts: what they agree on is one observation, not several
        texts = max(1, round(bin_.rows / calibration.seeds))
        bottom, top = wilson(round(bin_.accuracy * texts), texts)
        axes.plot([bin_.confidence] * 2, [bottom, top], color=colour, linewidth=1.4, alpha=0.55)
    max_rows = max(bin_.rows for bin_ in bins)
    axes.scatter(
        [bin_.confidence for bin_ in bins],
        [bin_.accuracy for bin_ in bins],
        s=[8 + 70 * bin_.rows / max_rows for bin_ in bins],
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
    axes.set_xlabel("probability", color=INK, fontsize=9)
    axes.set_ylabel("accuracy", color=INK, fontsize=9)
    axes.set_title(short_name(calibration.arm), color=colour, fontsize=10, weight="bold", loc="left")
    return figure
