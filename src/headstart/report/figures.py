"""The figures of a comparison, as matplotlib `Figure` objects drawn at any width.

Lines carry their names, so there is no legend to look up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from headstart.report.arms import name_of
from headstart.report.canvas import (
    FAINT,
    INK,
    Percent,
    clipped,
    colour_of,
    empty,
    line,
    name_an_end,
    name_the_ends,
    round_ticks,
    short_name,
)
from headstart.report.collect import Comparison
from headstart.report.intervals import mean
from headstart.report.statistics import summaries, summarise
from headstart.report.words import capital
from headstart.store.cells import Cell, Epoch

_LIMIT_OF_NUMBERS = 10
_FEW = 3


@dataclass(frozen=True)
class Drawing:
    """A figure and what it shows, in a sentence that also serves who cannot see it."""

    name: str
    caption: str
    draw: Callable[[float], Figure]
    """Draws at a width in inches, so that a telephone gets a figure of its own instead of a shrunken one."""


def drawings(comparison: Comparison) -> list[Drawing]:
    """Every figure that the comparison has the numbers for, in the order of the page."""
    found = []
    over = "seeds and test texts" if len(comparison.seeds) > 1 else "test texts"
    if len(comparison.budgets) > 1:
        caption = f"Test accuracy by number of labels: mean over seeds, and the band its 95 % interval over {over}."
        found.append(Drawing("budgets", caption, lambda width: draw_budgets(comparison, width)))
    if _trained(comparison):
        found.append(_curves(comparison, "curves", "validation", lambda epoch: epoch.valid_accuracy))
    if _looked_at_test(comparison):
        found.append(_curves(comparison, "curves-test", "test", lambda epoch: epoch.test_accuracy or 0.0))
    caption = f"Test accuracy: a dot is a seed, the tick is their mean, the bar its 95 % interval over {over}."
    caption += _absent(comparison)
    found.append(Drawing("test", caption, lambda width: draw_test(comparison, width)))
    return found


def confusions(comparison: Comparison) -> list[Drawing]:
    """One small matrix for every arm that does not always say the same."""
    return [
        Drawing(f"confusion-{arm.replace(':', '-')}", _confusion_caption(comparison, arm), _confusion(comparison, arm))
        for arm in comparison.arms
        if arm != "majority" and comparison.of(arm, comparison.main)
    ]


def _curves(comparison: Comparison, name: str, split: str, value: Callable[[Epoch], float]) -> Drawing:
    seeds = _seeds(comparison)
    caption = f"Accuracy on {split} after every epoch"
    caption += f": mean of {seeds} seeds, and the band from the worst seed to the best." if seeds > 1 else ", one seed."
    if split == "test":
        caption += " Nothing was chosen by these numbers."
    caption += _absent(comparison)
    return Drawing(name, caption, lambda width: draw_curves(comparison, width, split, value))


def _absent(comparison: Comparison) -> str:
    """Whom one looks for in vain in a figure of the most labels."""
    names = " and ".join(name_of(arm) for arm in comparison.absent(comparison.main))
    return f" {capital(names)}: no finished run with so many labels." if names else ""


def _looked_at_test(comparison: Comparison) -> bool:
    epochs = [epoch for cell in _trained(comparison) for epoch in cell.epochs]
    return bool(epochs) and all(epoch.test_accuracy is not None for epoch in epochs)


def _trained(comparison: Comparison) -> list[Cell]:
    """The runs with all labels that went through epochs."""
    return [cell for arm in comparison.arms for cell in comparison.of(arm, comparison.main) if cell.epochs]


def _seeds(comparison: Comparison) -> int:
    return len({cell.seed for cell in _trained(comparison)})


def draw_curves(comparison: Comparison, width: float, split: str, value: Callable[[Epoch], float]) -> Figure:
    """Accuracy by epoch, with the arms that have no epochs as level lines."""
    figure, axes = empty(width, f"accuracy on {split}", _seeds_and_labels(comparison))
    ends: list[tuple[float, str]] = []
    last = 1
    for arm in comparison.arms:
        cells = comparison.of(arm, comparison.main)
        curves = [{epoch.epoch: value(epoch) for epoch in cell.epochs} for cell in cells]
        shared = sorted(set.intersection(*map(set, curves))) if curves else []
        if shared:
            rows = [[curve[epoch] for curve in curves] for epoch in shared]
            line(axes, arm, [float(epoch) for epoch in shared], [(min(row), mean(row), max(row)) for row in rows])
            ends.append((mean(rows[-1]), arm))
            last = max(last, *shared)
    for arm in comparison.arms:
        cells = comparison.of(arm, comparison.main)
        if cells and not any(cell.epochs for cell in cells):
            level = mean([(cell.valid if split == "validation" else cell.test).accuracy for cell in cells])
            axes.axhline(level, color=colour_of(arm), linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
            ends.append((level, arm))
    axes.set_xlim(1 if last > 1 else 0.5, last + (0 if last > 1 else 0.5))
    axes.set_xlabel("epoch", color=INK)
    axes.set_xticks(range(1, last + 1, 1 + (last - 1) // 8))
    axes.yaxis.set_major_locator(round_ticks())
    name_the_ends(axes, ends)
    return figure


def draw_budgets(comparison: Comparison, width: float) -> Figure:
    """Test accuracy by number of labels, on a log scale, with the interval that the tables give."""
    figure, axes = empty(width, "accuracy on test", "mean over seeds, band its 95 % interval")
    ends: list[tuple[float, str]] = []
    rows_of = {budget: comparison.rows_of(budget) for budget in comparison.budgets}
    for arm in comparison.arms:
        found = [summarise(comparison, arm, budget) for budget in comparison.budgets]
        there = [summary for summary in found if summary is not None]
        bands = [(summary.accuracy.low, summary.accuracy.mean, summary.accuracy.high) for summary in there]
        if arm == "majority":  # a floor to stand above, not one of those that learn
            bands = [(level, level, level) for _, level, _ in bands]
        line(axes, arm, [float(rows_of[summary.budget]) for summary in there], bands, "o")
        if there[-1].budget == comparison.main:
            ends.append((there[-1].accuracy.mean, arm))
        else:  # beside the last axis it would seem to have been run with all labels
            name_an_end(axes, arm, float(rows_of[there[-1].budget]), there[-1].accuracy.mean)
    places = list(rows_of.values())
    axes.set_xscale("log")
    axes.set_xlim(places[0] * 0.93, places[-1])
    axes.set_xticks(_apart(places, width), [f"{place:,}" for place in _apart(places, width)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(round_ticks())
    axes.set_xlabel("labelled texts to learn from", color=INK)
    name_the_ends(axes, ends)
    return figure


def _apart(places: list[int], width: float) -> list[int]:
    """The places whose numbers do not run into each other on a log scale, the last one among them.

    >>> _apart([50, 100, 110, 1600], width=3.9)
    [50, 110, 1600]
    """
    least = math.log(places[-1] / places[0]) * 0.33 / max(1.0, width - 2.2)  # a number takes about 0.33 inches
    kept = [places[-1]]
    for place in reversed(places[:-1]):
        if math.log(kept[0] / place) >= least:
            kept.insert(0, place)
    return kept


def draw_test(comparison: Comparison, width: float) -> Figure:
    """Who won on test: every seed of every arm, best arm on top."""
    ranked = sorted(summaries(comparison, comparison.main), key=lambda summary: summary.accuracy.mean)
    figure, axes = empty(width, height=0.5 * len(ranked) + 0.75)
    for place, summary in enumerate(ranked):
        colour, found = colour_of(summary.arm), summary.accuracy
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
    axes.xaxis.set_major_formatter(Percent())
    axes.xaxis.set_major_locator(round_ticks(6))
    axes.set_xlabel("accuracy on test", color=INK)
    return figure


def confusion_width(labels: int) -> float:
    """Inches in which the numbers of so many labels do not touch.

    >>> confusion_width(2), confusion_width(8), confusion_width(77)
    (2.9, 4.7, 7.4)
    """
    return 2.9 if labels <= _FEW else min(7.4, round(1.5 + 0.4 * labels, 1))


def draw_confusion(comparison: Comparison, arm: str, width: float) -> Figure:
    """Share of each true label (row) given each answer (column), over all seeds."""
    size = len(comparison.labels)
    figure, axes = empty(width, height=width * 0.86)
    colour, points = colour_of(arm), 10 if size <= _FEW else 8
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
    names = [clipped(label, 12) for label in comparison.labels] if size <= 2 * _LIMIT_OF_NUMBERS else []
    turned = 0 if size <= _FEW else 90
    axes.set_xticks(range(len(names)), names, color=INK, rotation=turned, fontsize=9)
    axes.set_yticks(range(len(names)), names, color=INK, fontsize=9)
    axes.grid(visible=False)
    axes.set_xlabel("answered", color=INK, fontsize=9)
    axes.set_ylabel("true label", color=INK, fontsize=9)
    axes.set_title(f"{short_name(arm)}, %", color=colour, fontsize=10, weight="bold", loc="left")
    return figure


def _confusion(comparison: Comparison, arm: str) -> Callable[[float], Figure]:
    return lambda width: draw_confusion(comparison, arm, width)


def _confusion_caption(comparison: Comparison, arm: str) -> str:
    seeds = len(comparison.of(arm, comparison.main))
    together = f", {seeds} seeds together" if seeds > 1 else ""
    return f"Share of each true label given each answer on test{together}."


def _shares(cells: tuple[Cell, ...], size: int) -> list[list[float]]:
    total = [
        [sum((cell.test.confusion or ())[row][column] for cell in cells) for column in range(size)]
        for row in range(size)
    ]
    return [[count / max(1, sum(row)) for count in row] for row in total]


def _seeds_and_labels(comparison: Comparison) -> str:
    seeds = _seeds(comparison)
    runs = f"mean of {seeds} seeds, band from worst to best" if seeds > 1 else "one seed"
    return f"{comparison.rows_of(comparison.main):,} labels, {runs}"
