"""What pretraining was worth at a glance: points, labels, epochs, each a figure, its interval and a few words."""

from dataclasses import dataclass

from headstart.report.arms import name_of
from headstart.report.collect import Comparison
from headstart.report.intervals import Estimate
from headstart.report.words import count, interval, percent, place, places, points
from headstart.report.worth import Worth, worth

NOT_KNOWN = "–"


@dataclass(frozen=True)
class Figure:
    """One of the three."""

    name: str
    value: str
    interval: str
    note: str


def glance(comparison: Comparison) -> list[Figure]:
    """Points, labels and epochs; nothing where the two networks cannot be compared."""
    found = [worth(comparison, budget) for budget in reversed(comparison.budgets)]
    known = [each for each in found if each is not None]
    if not known or known[0].budget != comparison.main:
        return []
    return [_points(comparison, known[0]), _labels(known), _epochs(known[0])]


def _points(comparison: Comparison, found: Worth) -> Figure:
    levels = []
    for arm in (found.arm, found.other):
        cells = comparison.of(arm, comparison.main)
        levels.append(percent(sum(cell.test.accuracy for cell in cells) / len(cells)))
    labels = "all labels" if found.budget == "all" else f"{found.budget:,} labels"
    note = f"of test accuracy with {labels}: {levels[0]} instead of {levels[1]}"
    return Figure("points", points(found.points.mean), _sure(found.points), note)


def _sure(found: Estimate) -> str:
    if found.one_run:
        return "one seed: no proof"
    return interval(found) + ("" if found.measurable else ", not measurable")


def _labels(known: list[Worth]) -> Figure:
    """With the largest number of labels at which the worth in labels can be read off; a lower bound where none can."""
    curves = [each for each in known if each.labels is not None]
    if not curves:
        return Figure("labels", NOT_KNOWN, "not measured", "compare with --labels 50,200,all to learn it")
    gains = [each for each in curves if each.points.measurable and each.points.low > 0]
    for each in gains:
        assert each.labels is not None
        needed, have = each.labels.needed, each.labels.rows
        if needed.at is not None and needed.at > have:
            note = f"not written: with {have:,} labels as good as {name_of(each.other)} with {place(needed.at, needed)}"
            inside = places(needed, have).removeprefix(" (").removesuffix(")")
            return Figure("labels", count(needed.at - have), inside, note)
    beyond = [each for each in gains if each.labels is not None and each.labels.rows < each.labels.needed.last]
    if beyond and beyond[0].labels is not None:
        rows, last = beyond[0].labels.rows, beyond[0].labels.needed.last
        note = f"not written: with {rows:,} labels better than {name_of(beyond[0].other)} with {last:,.0f}"
        return Figure("labels", f"> {last - rows:,.0f}", "beyond what was run", note)
    why = "no measurable gain to convert" if not gains else "no run has more labels to compare with"
    return Figure("labels", NOT_KNOWN, "not measurable", why)


def _epochs(found: Worth) -> Figure:
    epochs = found.epochs
    if epochs is None:
        return Figure("epochs", NOT_KNOWN, "not measured", "the two networks share no epochs")
    needed, other = epochs.needed, name_of(found.other)
    if epochs.one_run:
        return Figure("epochs", NOT_KNOWN, "one seed: no proof", f"{other} needs several seeds to be timed against")
    start = f"after its first epoch ({percent(epochs.accuracy)} on validation)"
    if needed.at is None:
        inside = places(needed).removeprefix(" (").removesuffix(")") or "beyond what was run"
        note = f"saved and more: {start} it stands where {other} does not arrive in {needed.last:.0f}"
        return Figure("epochs", f"> {needed.last - 1:.0f}", inside, note)
    inside = places(needed, 1).removeprefix(" (").removesuffix(")")
    if needed.low is not None and needed.low <= 1:
        inside += ", not measurable"
    note = f"saved: {start} it stands where {other} is after {needed.at:.0f}"
    return Figure("epochs", f"{needed.at - 1:.0f}", inside, note)
