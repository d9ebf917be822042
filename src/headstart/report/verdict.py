"""What a comparison found, in plain sentences: who won first, then what pretraining was worth.

"Won" and "worth" are said only when the interval leaves zero out; the words for everything else are here too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.progress import counted
from headstart.report.arms import SCRATCH, best_linear, is_network, name_of, networks, pair
from headstart.report.collect import Comparison
from headstart.report.intervals import Estimate
from headstart.report.statistics import Summary, paired_difference, summaries
from headstart.report.words import capital, interval, number, percent, place, places, points
from headstart.report.worth import Place, Worth, labels_needed, worth
from headstart.store.cells import Budget

__all__ = ["percent", "verdict"]
FEW_MISSING = 3


@dataclass(frozen=True)
class Findings:
    """What was found, one sentence an entry."""

    most: list[str]
    """With the most labels; the first says who won on test."""
    fewer: list[str]
    """With fewer of them, from few to many."""
    missing: list[str]
    """What has not been run."""


def verdict(comparison: Comparison) -> list[str]:
    """All that was found; the first sentence says who won on test."""
    found = findings(comparison)
    return [*found.most, *found.fewer, *found.missing]


def findings(comparison: Comparison) -> Findings:
    """All that was found, by what it is about."""
    ranked = sorted(summaries(comparison, comparison.main), key=lambda summary: -summary.accuracy.mean)
    rival = _rival(ranked)
    sentences = [_winner(comparison, ranked[0], rival), *_also_ran(comparison, ranked, rival)]
    sentences += _against_majority(ranked)
    sentences += _worth(comparison)
    fewer = [sentence for budget in comparison.budgets[:-1] for sentence in _fewer_labels(comparison, budget)]
    return Findings(sentences, fewer, _missing(comparison))


def _rival(ranked: list[Summary]) -> Summary | None:
    """Whom the first sentence holds against the best arm: the next one, or the best network where a linear arm leads."""
    others = [summary for summary in ranked[1:] if is_network(summary.arm)]
    if not is_network(ranked[0].arm) and others:
        return others[0]
    return ranked[1] if len(ranked) > 1 else None


def _winner(comparison: Comparison, first: Summary, second: Summary | None) -> str:
    name, share = capital(name_of(first.arm)), percent(first.accuracy.mean)
    if second is None:
        return f"Only {name_of(first.arm)} has finished, with {share} on test: there is nothing to compare it with."
    other, other_share = name_of(second.arm), percent(second.accuracy.mean)
    gap = first.accuracy.mean - second.accuracy.mean
    if gap == 0:
        return f"A tie: {name_of(first.arm)} and {other} both have {share} on test."
    lead = f"{share} on test, {points(gap, sign=False)} points above {other}"
    difference = paired_difference(comparison, first.arm, second.arm, comparison.main)
    if difference is None:
        return f"{name} is ahead, but shares no seed with the next: {lead} ({other_share})."
    if _is_level(gap):
        return f"{name} is level with {other}: {share} and {other_share} on test."
    if difference.measurable and difference.low > 0:
        return f"{name} won: {lead} ({other_share})."
    if difference.low > 0:
        return f"{name} is ahead, but one seed cannot show the luck of training: {lead} ({other_share})."
    return f"{name} is ahead, but not measurably: {lead} ({other_share}; {interval(difference)})."


def _also_ran(comparison: Comparison, ranked: list[Summary], rival: Summary | None) -> list[str]:
    """Name the best network and the linear arm where the first sentence, which names two arms, left them out."""
    first = ranked[0]
    named = [first.arm, *([rival.arm] if rival else [])]
    network = next((summary for summary in ranked if is_network(summary.arm)), None)
    others = [network] if network and not any(map(is_network, named)) else []
    linear = best_linear(comparison)
    told = any(not is_network(arm) and arm != "majority" for arm in named)
    others += [summary for summary in ranked if summary.arm == linear and not told]
    sentences = []
    for summary in others:
        gap = first.accuracy.mean - summary.accuracy.mean
        distance = "level with" if _is_level(gap) else f"{points(gap, sign=False)} points below"
        name = capital(name_of(summary.arm))
        sentences.append(f"{name} came to {percent(summary.accuracy.mean)}, {distance} {name_of(first.arm)}.")
    return sentences


def _is_level(gap: float) -> bool:
    """Whether a difference is nothing at the one decimal that accuracies are told with."""
    return round(100 * gap, 1) == 0


def _against_majority(ranked: list[Summary]) -> list[str]:
    floor = next((summary.accuracy.mean for summary in ranked if summary.arm == "majority"), None)
    tried = [summary for summary in ranked if is_network(summary.arm)]
    losers = [summary for summary in tried if floor is not None and summary.accuracy.mean <= floor]
    if floor is None or not losers:
        return []
    if len(losers) == len(tried) > 1:
        shares = ", ".join(f"{name_of(loser.arm)} {percent(loser.accuracy.mean)}" for loser in losers)
        return [
            f"{'Neither' if len(tried) == 2 else 'No'} network beat the majority class ({percent(floor)}): {shares}."
        ]
    return [
        f"{capital(name_of(loser.arm))} ({percent(loser.accuracy.mean)}) "
        f"did not beat the majority class ({percent(floor)})."
        for loser in losers
    ]


def _worth(comparison: Comparison) -> list[str]:
    """What pretraining was worth with all labels: in points, in labels, in epochs; then every further network."""
    arms = pair(comparison)
    absent = [name_of(arm) for arm in reversed(arms) if not comparison.of(arm, comparison.main)]
    unasked = [name_of(arm) for arm in reversed(arms) if arm not in (*comparison.arms, *comparison.missing)]
    if unasked:
        was = "was" if len(unasked) == 1 else "were"
        return [f"What pretraining was worth was not asked: {' and '.join(unasked)} {was} left out (--arms)."]
    if absent:
        ran = all(arm in comparison.arms for arm in arms)  # with fewer labels
        verb, labels = "has" if len(absent) == 1 else "have", f" with {number(comparison.main)} labels" if ran else ""
        many = " with so many" if ran else ""
        return [
            f"What pretraining was worth{labels} is not known: {' and '.join(absent)} {verb} no finished run{many}."
        ]
    found = worth(comparison, comparison.main)
    if found is None:
        return ["What pretraining was worth is not known: the two networks share no seed."]
    sentences = [f"{_gain(found.points)}{_labels(comparison, found)}.", *_macro(found), *_linear_labels(comparison)]
    sentences += _epochs(found)
    for arm in networks(comparison):
        further = None if arm in arms else paired_difference(comparison, arm, SCRATCH, comparison.main)
        if further:
            words = f"{points(further.mean)} points against random weights ({_over(further)})"
            sentences.append(f"{capital(name_of(arm))}: {words}{'' if further.measurable else ', not measurable'}.")
    return sentences


def _gain(found: Estimate, budget: Budget | None = None) -> str:
    """What the head start brought; `budget` is named where it is not all labels."""
    gain, over = f"{points(found.mean)} points", _over(found)
    if found.one_run:
        run = "With one seed" if budget is None else f"With {number(budget)} labels and one seed"
        return f"{run}, pretraining made {gain} against random weights, which is no proof ({over})"
    if found.low > 0:
        claim = f"Pretraining was worth {gain} over random weights ({over})"
    elif found.high < 0:
        claim = f"Pretraining hurt: {gain} against random weights ({over})"
    else:
        claim = f"No measurable gain from pretraining: {gain} ({over})"
    return claim if budget is None else f"With {number(budget)} labels, {claim[:1].lower()}{claim[1:]}"


def _over(difference: Estimate) -> str:
    if difference.one_run:
        return f"{interval(difference)} over the test texts alone: one seed cannot show the luck of training"
    return f"{interval(difference)}, {difference.seeds} paired seeds"


def _macro(found: Worth) -> list[str]:
    """Macro-F1 where labels are unbalanced, and accuracy says little of the rare ones."""
    if not found.unbalanced:
        return []
    macro = found.macro_f1
    claim = "" if macro.measurable else ", not measurable"
    return [
        f"In macro-F1, where a rare label counts as much as a frequent one: {points(macro.mean)} points "
        f"({interval(macro)}){claim}."
    ]


def _epochs(found: Worth) -> list[str]:
    epochs = found.epochs
    if epochs is None or epochs.one_run:
        return []
    needed, here = epochs.needed, f"({percent(epochs.accuracy)} on validation)"
    if needed.low is not None and needed.low <= 1:  # after one epoch the two cannot be told apart
        where = f"{name_of(found.arm)} {here} is not measurably above {name_of(found.other)}"
        return [f"No measurable head start in epochs: after the first, {where}."]
    start, other = f"After one epoch {name_of(found.arm)} {here} is where", name_of(found.other)
    if needed.at is None:
        return [f"{start} {other} does not arrive in {counted(round(needed.last), 'epoch')}{places(needed)}."]
    return [f"{start} {other} is after {needed.at:.0f}{places(needed)}."]


def _fewer_labels(comparison: Comparison, budget: Budget) -> list[str]:
    found = worth(comparison, budget)
    if found is None:
        return _against_linear(comparison, budget)
    sentence = _gain(found.points, budget) + _labels(comparison, found)
    best = max(summaries(comparison, budget), key=lambda summary: summary.accuracy.mean)
    if not is_network(best.arm):
        sentence += f"; {name_of(best.arm)} was ahead with {percent(best.accuracy.mean)}"
    return [f"{sentence}."]


def _against_linear(comparison: Comparison, budget: Budget) -> list[str]:
    """The head start against the linear arm, where the other network has no run with so many labels."""
    (arm, other), linear = pair(comparison), best_linear(comparison)
    found = paired_difference(comparison, arm, linear, budget) if linear else None
    if linear is None or found is None or comparison.of(other, budget):
        return []
    needed = labels_needed(comparison, arm, linear, budget)
    more = ""
    if found.measurable and found.low > 0 and needed and needed.rows < needed.needed.last:
        more = f", which needs {_many(needed.needed)} for the same accuracy"
    side = "above" if found.mean > 0 else "below"
    apart = f"{points(found.mean, sign=False)} points {side} {name_of(linear)} ({_over(found)})"
    if not found.measurable and not found.one_run:
        apart += ", which is not measurable"
    unknown = f"{name_of(other)} has no finished run with so many"
    return [f"With {number(budget)} labels, {name_of(arm)} was {apart}{more}; {unknown}."]


def _labels(comparison: Comparison, found: Worth) -> str:
    """What a measurable gain is worth in labels, as the end of a sentence."""
    if found.labels is None or not found.points.measurable or found.points.low <= 0:
        return ""
    needed, have, other = found.labels.needed, found.labels.rows, name_of(found.other)
    linear = found.linear_labels
    ahead = linear is not None and (linear.needed.at is None or linear.needed.at > have)
    also = f", {name_of(linear.other)} {_many(linear.needed)}" if linear and ahead else ""
    if needed.at is None and have >= needed.last and have < comparison.rows_of(comparison.main):
        return f": {other}, which was run with no more labels, needs more than {have:,} for the same accuracy{also}"
    if needed.at is None and have >= needed.last:
        return f": {other} needs more than the {have:,} labels there are for the same accuracy"
    worth_of = f", or {place(needed.at, needed, have)} labels{places(needed, have)}"
    return f"{worth_of}: {other} needs {place(needed.at, needed)} for the same accuracy{also}"


def _many(needed: Place) -> str:
    return place(needed.at, needed) + places(needed)


def _linear_labels(comparison: Comparison) -> list[str]:
    """With how few labels the linear arm does what the head start does with all, where it does."""
    arm, linear = pair(comparison)[0], best_linear(comparison)
    behind = paired_difference(comparison, arm, linear, comparison.main) if linear else None
    if linear is None or behind is None or not behind.measurable or behind.high > 0:
        return []
    labels = labels_needed(comparison, arm, linear, comparison.main)
    if labels is None:
        return []
    needed = labels.needed
    return [
        f"{capital(name_of(linear))} needs {place(needed.at, needed)} labels{places(needed)} for what "
        f"{name_of(arm)} reaches with {labels.rows:,}."
    ]


def _missing(comparison: Comparison) -> list[str]:
    if not comparison.missing:
        return []
    names = unfinished(comparison.missing)
    more = len(names) - FEW_MISSING
    return [f"Not finished: {'; '.join(names[:FEW_MISSING])}{f'; and {more} more' if more > 0 else ''}."]


def unfinished(missing: Sequence[str]) -> list[str]:
    """Runs that are missing, those that differ by their seed alone in one entry.

    >>> unfinished(["tfidf", "scratch with 50 labels, seed 0", "scratch with 50 labels, seed 3"])
    ['tfidf (no run at all)', 'scratch with 50 labels, seeds 0 and 3']
    """
    seeds: dict[str, list[str]] = {}
    for name in missing:
        run, _, seed = name.partition(", seed ")
        seeds.setdefault(run, []).extend([seed] if seed else [])
    return [f"{run}, {_seeds(each)}" if each else f"{run} (no run at all)" for run, each in seeds.items()]


def _seeds(each: list[str]) -> str:
    *others, last = each
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"
