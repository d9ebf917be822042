"""What pretraining was worth at a glance: points, labels, epochs, each a figure, its interval and a few words."""

from dataclasses import dataclass

from headstart.report.arms import name_of
from headstart.report.collect import Comparison
from headstart.report.intervals import Estimate, mean
from headstart.report.words import count, interval, number, percent, place, places, points
from headstart.report.worth import Place, Worth, worth
from headstart.store.cells import Budget

NONE = "–"


@dataclass(frozen=True)
class Figure:
    """One of the three."""

    name: str
    value: str
    unit: str
    interval: str
    note: str


def glance(comparison: Comparison) -> list[Figure]:
    """Points, labels and epochs, with the most labels that both networks were run with; nothing where there are none."""
    found = [each for each in (worth(comparison, budget) for budget in reversed(comparison.budgets)) if each]
    if not found:
        return []
    return [_points(comparison, found[0]), _labels(found), _epochs(found[0], comparison.main)]


def _points(comparison: Comparison, found: Worth) -> Figure:
    ours, theirs = (
        percent(mean([cell.test.accuracy for cell in comparison.of(arm, found.budget)]))
        for arm in (found.arm, found.other)
    )
    note = f"on test with {number(found.budget)} labels: {ours} instead of {theirs}"
    return Figure("accuracy", points(found.points.mean), "points", _sure(found.points), note)


def _sure(found: Estimate) -> str:
    if found.one_run:
        return "one seed: no proof"
    return interval(found) + ("" if found.measurable else ", not measurable")


def _labels(known: list[Worth]) -> Figure:
    """With the most labels at which they can be read off the other's curve; a bound where they never can."""
    name = "labels saved"
    curves = [(each, each.labels) for each in known if each.labels is not None]
    if not curves:
        return Figure(name, NONE, "", "not measured", "compare with --labels 50,200,all to learn it")
    gains = [(each, labels) for each, labels in curves if each.points.measurable and each.points.low > 0]
    if not gains:
        return Figure(name, NONE, "", "not measurable", "there is no measurable gain to count in labels")
    for each, labels in gains:
        needed, have = labels.needed, labels.rows
        if needed.at is not None and needed.at > have:
            note = f"with {have:,} labels as good as {name_of(each.other)} with {place(needed.at, needed)}"
            return Figure(name, count(needed.at - have), "labels", _inside(needed, have), note)
    # where no end is known, the fewest labels say the most; the first to be sure of
    for each, labels in sorted(gains, key=lambda gain: (gain[1].needed.low is not None, gain[1].rows)):
        if labels.rows < labels.needed.last:
            note = f"with {labels.rows:,} labels better than {name_of(each.other)} with {labels.needed.last:,.0f}"
            return Figure(name, f"> {labels.needed.last - labels.rows:,.0f}", "labels", "beyond what was run", note)
    return Figure(name, NONE, "", "not known", "no run has more labels to compare with")


def _epochs(found: Worth, most: Budget) -> Figure:
    name, epochs, other = "epochs saved", found.epochs, name_of(found.other)
    if epochs is None:
        return Figure(name, NONE, "", "not measured", "the two networks share no epochs")
    if epochs.one_run:
        return Figure(name, NONE, "", "one seed: no proof", "several seeds are needed to count epochs")
    if epochs.needed.low is not None and epochs.needed.low <= 1:
        return Figure(name, NONE, "", "not measurable", f"after one epoch it is not measurably above {other}")
    labels = "" if found.budget == most else f"with {number(found.budget)} labels "
    needed, start = epochs.needed, f"{labels}after one epoch ({percent(epochs.accuracy)} on validation) where {other}"
    if needed.at is None:
        inside = _inside(needed, 1) or "beyond what was run"
        return Figure(
            name, f"> {needed.last - 1:.0f}", "epochs", inside, f"{start} does not arrive in {needed.last:.0f}"
        )
    return Figure(name, f"{needed.at - 1:.0f}", "epochs", _inside(needed, 1), f"{start} is after {needed.at:.0f}")


def _inside(needed: Place, less: float) -> str:
    """The interval of a place, without its brackets."""
    return places(needed, less).removeprefix(" (").removesuffix(")")
