"""Reliability diagrams: how many answers are right among those that are equally sure."""

from collections.abc import Callable

from matplotlib.figure import Figure

from headstart.measures import wilson
from headstart.report.calibration import Calibrated
from headstart.report.canvas import FAINT, INK, Percent, colour_of, empty, round_ticks, short_name
from headstart.report.figures import Drawing

WIDTH = 2.9


def reliability_diagrams(found: list[Calibrated]) -> list[Drawing]:
    """One small diagram an arm."""
    return [Drawing(f"calibration-{each.arm.replace(':', '-')}", caption(each), _drawn(each)) for each in found]


def caption(found: Calibrated) -> str:
    """What a diagram shows, in a sentence that also serves who cannot see it."""
    together = f", {found.seeds} seeds together" if found.seeds > 1 else ""
    return (
        f"Right answers by certainty{together}: calibration error {100 * found.ece:.1f} points "
        f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})."
    )


def _drawn(found: Calibrated) -> Callable[[float], Figure]:
    return lambda width: draw_reliability(found, width)


def draw_reliability(found: Calibrated, width: float) -> Figure:
    """A dot a bin, as large as the bin is full, with the 95 % interval of its share; on the diagonal all is well."""
    figure, axes = empty(width, height=width * 0.86)
    colour = colour_of(found.arm)
    low = min(0.5, *(each.low for each in found.bins))
    axes.plot([low, 1], [low, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    most = max(each.rows for each in found.bins)
    for each in found.bins:
        # seeds answer the same texts: what they agree on is one observation, not several
        texts = max(1, round(each.rows / found.seeds))
        bottom, top = wilson(round(each.right * texts), texts)
        axes.plot([each.sure] * 2, [bottom, top], color=colour, linewidth=1.4, alpha=0.55)
    sizes = [8 + 70 * each.rows / most for each in found.bins]
    axes.scatter(
        [each.sure for each in found.bins],
        [each.right for each in found.bins],
        s=sizes,
        color=colour,
        linewidths=0,
        zorder=3,
        clip_on=False,
    )
    axes.set_xlim(low - 0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(Percent())
    axes.xaxis.set_major_locator(round_ticks(4))
    axes.yaxis.set_major_locator(round_ticks(5))
    axes.xaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.set_xlabel("sure", color=INK, fontsize=9)
    axes.set_ylabel("right", color=INK, fontsize=9)
    axes.set_title(f"{short_name(found.arm)}", color=colour, fontsize=10, weight="bold", loc="left")
    return figure
