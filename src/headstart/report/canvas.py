"""The look that all figures share: colours, names, an empty figure, a line with its band, and the bytes of a file.

No pyplot: nothing global is touched and no window can open. Colours are after Okabe and Ito, told apart by
colour-blind readers too. The same figure gives the same SVG bytes.
"""

import io
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import Formatter, MaxNLocator

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
_WIDE = 6.0


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


def empty(width: float, title: str = "", note: str = "", *, height: float | None = None) -> tuple[Figure, Axes]:
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
    axes.set_title(f"{title} ({note})" if note and width >= _WIDE else title, loc="left", color=INK, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_axisbelow(True)
    axes.yaxis.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.yaxis.set_major_formatter(Percent())
    return figure, axes


class Percent(Formatter):
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


def line(axes: Axes, arm: str, places: list[float], bands: list[Band], marker: str = "") -> None:
    """A line with a band around it; a single place is a dot."""
    colour = colour_of(arm)
    lows, levels, highs = zip(*bands, strict=True)
    axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    dot = marker or ("o" if len(places) == 1 else "")
    axes.plot(places, levels, color=colour, linewidth=2.2, marker=dot, markersize=5, clip_on=False)


def name_the_ends(axes: Axes, ends: list[tuple[float, str]]) -> None:
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


def name_an_end(axes: Axes, arm: str, place: float, level: float) -> None:
    """The same for a line that ends before the others: beside its last point."""
    _name(axes, arm, level, (place, level), "data")


def _name(axes: Axes, arm: str, level: float, at: tuple[float, float], units: str | tuple[str, str]) -> None:
    axes.annotate(
        f"{clipped(short_name(arm), 22)} {100 * level:.1f}",
        at,
        xytext=(7, 0),
        xycoords=units,
        textcoords="offset points",
        color=colour_of(arm),
        va="center",
        weight="bold",
    )


def hue_of(arm: str) -> str:
    """The name of an arm's colour.

    >>> hue_of("scratch"), hue_of("distilled"), hue_of("pretrained:books") in FURTHER
    ('scratch', 'other', True)
    """
    if arm in COLOURS:
        return arm
    return list(FURTHER)[zlib.crc32(arm.encode()) % len(FURTHER)] if ":" in arm else "other"


def colour_of(arm: str) -> str:
    return (COLOURS | FURTHER).get(hue_of(arm), OTHER)


def short_name(arm: str) -> str:
    """An arm in the fewest words, for lines and tables.

    >>> short_name("tfidf"), short_name("pretrained:books")
    ('TF-IDF', 'pretrained books')
    """
    return SHORT.get(arm, arm.replace(":", " "))


def clipped(text: str, limit: int) -> str:
    # a dollar sign would start matplotlib's formulas
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown.replace("$", r"\$")
