"""Verdict sentences, headline tiles and number formats.

Numbers as a report writes them.

What a comparison found, in plain sentences: who won first, then what pretraining was worth.

"Won" and "worth" are said only when the interval leaves zero out; the words for everything else are here too.

What pretraining was worth at a glance: points, labels, epochs, each a figure, its interval and a few words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.progress import pluralize
from headstart.report.gain import CurvePoint, Gain, gain, labels_needed
from headstart.report.intervals import Estimate, mean
from headstart.report.load import (
    SCRATCH,
    ComparisonResults,
    arm_name,
    best_linear,
    is_network_arm,
    network_arms,
    pretrained_and_scratch,
)
from headstart.report.statistics import Summary, paired_difference, summaries
from headstart.store.records import Budget


def capitalize(words: str) -> str:
    """The same words at the start of a sentence.

    >>> capitalize("the majority class"), capitalize("TF-IDF")
    ('The majority class', 'TF-IDF')
    """
    return words[:1].upper() + words[1:]


def format_percent(share: float) -> str:
    """A share in per cent.

    >>> format_percent(0.841)
    '84.1 %'
    """
    return f"{100 * share:.1f} %"


def format_points(difference: float, *, sign: bool = True) -> str:
    """A difference of shares in points, with a true minus; one that is not zero is never written as zero.

    >>> format_points(0.0431), format_points(-0.012), format_points(0.0004), format_points(0.0), format_points(-0.02, sign=False)
    ('+4.3', '−1.2', '+0.04', '0.0', '2.0')
    """
    if difference == 0:
        return "0.0"
    value = 100 * (difference if sign else abs(difference))
    digits = next((digits for digits in (1, 2, 3) if round(value, digits)), 4)
    return (f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}").replace("-", "−")


def format_interval(estimate: Estimate) -> str:
    """The interval of a difference, in points."""
    return f"95 % interval {format_points(estimate.low)} to {format_points(estimate.high)}"


def format_budget(budget: Budget) -> str:
    """How many labels.

    >>> format_budget(1000), format_budget("all")
    ('1,000', 'all')
    """
    return budget if budget == "all" else f"{budget:,}"


def format_count(number: float) -> str:
    """About how many: two figures are all that such a number is known to.

    >>> format_count(1234.5), format_count(87.3), format_count(2.6)
    ('1,200', '87', '3')
    """
    return f"{float(f'{number:.2g}'):,.0f}"


def format_point(number: float | None, on: CurvePoint, less: float = 0) -> str:
    """A place on a curve, less what was there anyway; beyond its ends in words.

    >>> on = Place(830, 50, None, first=50, last=1600)
    >>> format_point(830, on), format_point(50, on), format_point(None, on), format_point(830, on, less=200)
    ('about 830', 'at most 50', 'more than 1,600', 'about 630')
    """
    if number is None:
        return f"more than {round(on.last - less):,}"
    if number <= on.first:
        return f"at most {round(on.first - less):,}"
    return f"about {format_count(number - less)}"


def decimal_places(on: CurvePoint, less: float = 0) -> str:
    """The interval of a place, in brackets; nothing where it lies beyond the end as a whole.

    >>> decimal_places(Place(830, 510, None, first=50, last=1600), less=200)
    ' (95 % interval 310 to more than 1,400)'
    >>> decimal_places(Place(None, None, None, first=50, last=1600)), decimal_places(Place(50, 50, 50, first=50, last=1600))
    ('', '')
    >>> decimal_places(Place(None, 1590, None, first=50, last=1600))
    ''
    """
    if on.low is None or (on.high is not None and on.high <= on.first):
        return ""
    low, high = (format_point(number, on, less).removeprefix("about ") for number in (on.low, on.high))
    if on.at is None and high == f"more than {low}":
        return ""
    return f" (95 % interval {low} to {high})"


MAX_LISTED_MISSING = 3


@dataclass(frozen=True)
class Verdict:
    """What was found, one sentence an entry."""

    most: list[str]
    """With the most labels; the first says who won on test."""
    fewer: list[str]
    """With fewer of them, from few to many."""
    missing: list[str]
    """What has not been run."""


def verdict(comparison: ComparisonResults) -> list[str]:
    """All that was found; the first sentence says who won on test."""
    found = verdict_sentences(comparison)
    return [*found.most, *found.fewer, *found.missing]


def verdict_sentences(comparison: ComparisonResults) -> Verdict:
    """All that was found, by what it is about."""
    ranked = sorted(summaries(comparison, comparison.main), key=lambda summary: -summary.accuracy.mean)
    rival = _rival(ranked)
    sentences = [_winner(comparison, ranked[0], rival), *_also_ran(comparison, ranked, rival)]
    sentences += _against_majority(ranked)
    sentences += _gain_sentences(comparison)
    fewer = [sentence for budget in comparison.budgets[:-1] for sentence in _fewer_labels(comparison, budget)]
    return Verdict(sentences, fewer, _missing(comparison))


def _rival(ranked: list[Summary]) -> Summary | None:
    """Whom the first sentence holds against the best arm: the next one, or the best network where a linear arm leads."""
    others = [summary for summary in ranked[1:] if is_network_arm(summary.arm)]
    if not is_network_arm(ranked[0].arm) and others:
        return others[0]
    return ranked[1] if len(ranked) > 1 else None


def _winner(comparison: ComparisonResults, first: Summary, second: Summary | None) -> str:
    name, share = capitalize(arm_name(first.arm)), format_percent(first.accuracy.mean)
    if second is None:
        return f"Only {arm_name(first.arm)} has finished, with {share} on test: there is nothing to compare it with."
    other, other_share = arm_name(second.arm), format_percent(second.accuracy.mean)
    gap = first.accuracy.mean - second.accuracy.mean
    if gap == 0:
        return f"A tie: {arm_name(first.arm)} and {other} both have {share} on test."
    lead = f"{share} on test, {format_points(gap, sign=False)} points above {other}"
    difference = paired_difference(comparison, first.arm, second.arm, comparison.main)
    if difference is None:
        return f"{name} is ahead, but shares no seed with the next: {lead} ({other_share})."
    if _is_level(gap):
        return f"{name} is level with {other}: {share} and {other_share} on test."
    if difference.measurable and difference.low > 0:
        return f"{name} won: {lead} ({other_share})."
    if difference.low > 0:
        return f"{name} is ahead, but one seed cannot show the luck of training: {lead} ({other_share})."
    return f"{name} is ahead, but not measurably: {lead} ({other_share}; {format_interval(difference)})."


def _also_ran(comparison: ComparisonResults, ranked: list[Summary], rival: Summary | None) -> list[str]:
    """Name the best network and the linear arm where the first sentence, which names two arms, left them out."""
    first = ranked[0]
    named = [first.arm, *([rival.arm] if rival else [])]
    network = next((summary for summary in ranked if is_network_arm(summary.arm)), None)
    others = [network] if network and not any(map(is_network_arm, named)) else []
    linear = best_linear(comparison)
    told = any(not is_network_arm(arm) and arm != "majority" for arm in named)
    others += [summary for summary in ranked if summary.arm == linear and not told]
    sentences = []
    for summary in others:
        gap = first.accuracy.mean - summary.accuracy.mean
        distance = "level with" if _is_level(gap) else f"{format_points(gap, sign=False)} points below"
        name = capitalize(arm_name(summary.arm))
        sentences.append(f"{name} came to {format_percent(summary.accuracy.mean)}, {distance} {arm_name(first.arm)}.")
    return sentences


def _is_level(gap: float) -> bool:
    """Whether a difference is nothing at the one decimal that accuracies are told with."""
    return round(100 * gap, 1) == 0


def _against_majority(ranked: list[Summary]) -> list[str]:
    floor = next((summary.accuracy.mean for summary in ranked if summary.arm == "majority"), None)
    tried = [summary for summary in ranked if is_network_arm(summary.arm)]
    losers = [summary for summary in tried if floor is not None and summary.accuracy.mean <= floor]
    if floor is None or not losers:
        return []
    if len(losers) == len(tried) > 1:
        shares = ", ".join(f"{arm_name(loser.arm)} {format_percent(loser.accuracy.mean)}" for loser in losers)
        return [
            f"{'Neither' if len(tried) == 2 else 'No'} network beat the majority class ({format_percent(floor)}): {shares}."
        ]
    return [
        f"{capitalize(arm_name(loser.arm))} ({format_percent(loser.accuracy.mean)}) "
        f"did not beat the majority class ({format_percent(floor)})."
        for loser in losers
    ]


def _gain_sentences(comparison: ComparisonResults) -> list[str]:
    """What pretraining was worth with all labels: in points, in labels, in epochs; then every further network."""
    arms = pretrained_and_scratch(comparison)
    absent = [arm_name(arm) for arm in reversed(arms) if not comparison.of(arm, comparison.main)]
    unasked = [arm_name(arm) for arm in reversed(arms) if arm not in (*comparison.arms, *comparison.missing)]
    if unasked:
        was = "was" if len(unasked) == 1 else "were"
        return [f"What pretraining was worth was not asked: {' and '.join(unasked)} {was} left out (--arms)."]
    if absent:
        ran = all(arm in comparison.arms for arm in arms)  # with fewer labels
        verb, labels = (
            "has" if len(absent) == 1 else "have",
            f" with {format_budget(comparison.main)} labels" if ran else "",
        )
        many = " with so many" if ran else ""
        return [
            f"What pretraining was worth{labels} is not known: {' and '.join(absent)} {verb} no finished run{many}."
        ]
    found = gain(comparison, comparison.main)
    if found is None:
        return ["What pretraining was worth is not known: the two networks share no seed."]
    sentences = [
        f"{_gain(found.points)}{_labels_sentence(comparison, found)}.",
        *_macro(found),
        *_linear_labels(comparison),
    ]
    sentences += _epochs_sentence(found)
    for arm in network_arms(comparison):
        further = None if arm in arms else paired_difference(comparison, arm, SCRATCH, comparison.main)
        if further:
            words = f"{format_points(further.mean)} points against random weights ({_over(further)})"
            sentences.append(f"{capitalize(arm_name(arm))}: {words}{'' if further.measurable else ', not measurable'}.")
    return sentences


def _gain(found: Estimate, budget: Budget | None = None) -> str:
    """What the head start brought; `budget` is named where it is not all labels."""
    gain, over = f"{format_points(found.mean)} points", _over(found)
    if found.one_run:
        run = "With one seed" if budget is None else f"With {format_budget(budget)} labels and one seed"
        return f"{run}, pretraining made {gain} against random weights, which is no proof ({over})"
    if found.low > 0:
        claim = f"Pretraining was worth {gain} over random weights ({over})"
    elif found.high < 0:
        claim = f"Pretraining hurt: {gain} against random weights ({over})"
    else:
        claim = f"No measurable gain from pretraining: {gain} ({over})"
    return claim if budget is None else f"With {format_budget(budget)} labels, {claim[:1].lower()}{claim[1:]}"


def _over(difference: Estimate) -> str:
    if difference.one_run:
        return f"{format_interval(difference)} over the test texts alone: one seed cannot show the luck of training"
    return f"{format_interval(difference)}, {difference.seeds} paired seeds"


def _macro(found: Gain) -> list[str]:
    """Macro-F1 where labels are unbalanced, and accuracy says little of the rare ones."""
    if not found.unbalanced:
        return []
    macro = found.macro_f1
    claim = "" if macro.measurable else ", not measurable"
    return [
        f"In macro-F1, where a rare label counts as much as a frequent one: {format_points(macro.mean)} points "
        f"({format_interval(macro)}){claim}."
    ]


def _epochs_sentence(found: Gain) -> list[str]:
    epochs = found.epochs
    if epochs is None or epochs.one_run:
        return []
    needed, here = epochs.needed, f"({format_percent(epochs.accuracy)} on validation)"
    if needed.low is not None and needed.low <= 1:  # after one epoch the two cannot be told apart
        where = f"{arm_name(found.arm)} {here} is not measurably above {arm_name(found.other)}"
        return [f"No measurable head start in epochs: after the first, {where}."]
    start, other = f"After one epoch {arm_name(found.arm)} {here} is where", arm_name(found.other)
    if needed.at is None:
        return [f"{start} {other} does not arrive in {pluralize(round(needed.last), 'epoch')}{decimal_places(needed)}."]
    return [f"{start} {other} is after {needed.at:.0f}{decimal_places(needed)}."]


def _fewer_labels(comparison: ComparisonResults, budget: Budget) -> list[str]:
    found = gain(comparison, budget)
    if found is None:
        return _against_linear(comparison, budget)
    sentence = _gain(found.points, budget) + _labels_sentence(comparison, found)
    best = max(summaries(comparison, budget), key=lambda summary: summary.accuracy.mean)
    if not is_network_arm(best.arm):
        sentence += f"; {arm_name(best.arm)} was ahead with {format_percent(best.accuracy.mean)}"
    return [f"{sentence}."]


def _against_linear(comparison: ComparisonResults, budget: Budget) -> list[str]:
    """The head start against the linear arm, where the other network has no run with so many labels."""
    (arm, other), linear = pretrained_and_scratch(comparison), best_linear(comparison)
    found = paired_difference(comparison, arm, linear, budget) if linear else None
    if linear is None or found is None or comparison.of(other, budget):
        return []
    needed = labels_needed(comparison, arm, linear, budget)
    more = ""
    if found.measurable and found.low > 0 and needed and needed.rows < needed.needed.last:
        more = f", which needs {_format_needed(needed.needed)} for the same accuracy"
    side = "above" if found.mean > 0 else "below"
    apart = f"{format_points(found.mean, sign=False)} points {side} {arm_name(linear)} ({_over(found)})"
    if not found.measurable and not found.one_run:
        apart += ", which is not measurable"
    unknown = f"{arm_name(other)} has no finished run with so many"
    return [f"With {format_budget(budget)} labels, {arm_name(arm)} was {apart}{more}; {unknown}."]


def _labels_sentence(comparison: ComparisonResults, found: Gain) -> str:
    """What a measurable gain is worth in labels, as the end of a sentence."""
    if found.labels is None or not found.points.measurable or found.points.low <= 0:
        return ""
    needed, have, other = found.labels.needed, found.labels.rows, arm_name(found.other)
    linear = found.linear_labels
    ahead = linear is not None and (linear.needed.at is None or linear.needed.at > have)
    also = f", {arm_name(linear.other)} {_format_needed(linear.needed)}" if linear and ahead else ""
    if needed.at is None and have >= needed.last and have < comparison.rows_of(comparison.main):
        return f": {other}, which was run with no more labels, needs more than {have:,} for the same accuracy{also}"
    if needed.at is None and have >= needed.last:
        return f": {other} needs more than the {have:,} labels there are for the same accuracy"
    worth_of = f", or {format_point(needed.at, needed, have)} labels{decimal_places(needed, have)}"
    return f"{worth_of}: {other} needs {format_point(needed.at, needed)} for the same accuracy{also}"


def _format_needed(needed: CurvePoint) -> str:
    return format_point(needed.at, needed) + decimal_places(needed)


def _linear_labels(comparison: ComparisonResults) -> list[str]:
    """With how few labels the linear arm does what the head start does with all, where it does."""
    arm, linear = pretrained_and_scratch(comparison)[0], best_linear(comparison)
    behind = paired_difference(comparison, arm, linear, comparison.main) if linear else None
    if linear is None or behind is None or not behind.measurable or behind.high > 0:
        return []
    labels = labels_needed(comparison, arm, linear, comparison.main)
    if labels is None:
        return []
    needed = labels.needed
    return [
        f"{capitalize(arm_name(linear))} needs {format_point(needed.at, needed)} labels{decimal_places(needed)} for what "
        f"{arm_name(arm)} reaches with {labels.rows:,}."
    ]


def _missing(comparison: ComparisonResults) -> list[str]:
    if not comparison.missing:
        return []
    names = describe_missing(comparison.missing)
    more = len(names) - MAX_LISTED_MISSING
    return [f"Not finished: {'; '.join(names[:MAX_LISTED_MISSING])}{f'; and {more} more' if more > 0 else ''}."]


def describe_missing(missing: Sequence[str]) -> list[str]:
    """Runs that are missing, those that differ by their seed alone in one entry.

    >>> describe_missing(["tfidf", "scratch with 50 labels, seed 0", "scratch with 50 labels, seed 3"])
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


NO_VALUE = "–"


@dataclass(frozen=True)
class HeadlineTile:
    """One of the three."""

    name: str
    value: str
    unit: str
    interval: str
    note: str


def headline_tiles(comparison: ComparisonResults) -> list[HeadlineTile]:
    """Points, labels and epochs, with the most labels that both networks were run with; nothing where there are none."""
    found = [each for each in (gain(comparison, budget) for budget in reversed(comparison.budgets)) if each]
    if not found:
        return []
    return [_points_tile(comparison, found[0]), _labels_tile(found), _epochs_tile(found[0], comparison.main)]


def _points_tile(comparison: ComparisonResults, found: Gain) -> HeadlineTile:
    ours, theirs = (
        format_percent(mean([cell.test.accuracy for cell in comparison.of(arm, found.budget)]))
        for arm in (found.arm, found.other)
    )
    note = f"on test with {format_budget(found.budget)} labels: {ours} instead of {theirs}"
    return HeadlineTile("accuracy", format_points(found.points.mean), "points", _sure(found.points), note)


def _sure(found: Estimate) -> str:
    if found.one_run:
        return "one seed: no proof"
    return format_interval(found) + ("" if found.measurable else ", not measurable")


def _labels_tile(known: list[Gain]) -> HeadlineTile:
    """With the most labels at which they can be read off the other's curve; a bound where they never can."""
    name = "labels saved"
    curves = [(each, each.labels) for each in known if each.labels is not None]
    if not curves:
        return HeadlineTile(name, NO_VALUE, "", "not measured", "compare with --labels 50,200,all to learn it")
    gains = [(each, labels) for each, labels in curves if each.points.measurable and each.points.low > 0]
    if not gains:
        return HeadlineTile(name, NO_VALUE, "", "not measurable", "there is no measurable gain to count in labels")
    for each, labels in gains:
        needed, have = labels.needed, labels.rows
        if needed.at is not None and needed.at > have:
            note = f"with {have:,} labels as good as {arm_name(each.other)} with {format_point(needed.at, needed)}"
            return HeadlineTile(name, format_count(needed.at - have), "labels", _inside(needed, have), note)
    # where no end is known, the fewest labels say the most; the first to be sure of
    for each, labels in sorted(gains, key=lambda gain: (gain[1].needed.low is not None, gain[1].rows)):
        if labels.rows < labels.needed.last:
            note = f"with {labels.rows:,} labels better than {arm_name(each.other)} with {labels.needed.last:,.0f}"
            return HeadlineTile(
                name, f"> {labels.needed.last - labels.rows:,.0f}", "labels", "beyond what was run", note
            )
    return HeadlineTile(name, NO_VALUE, "", "not known", "no run has more labels to compare with")


def _epochs_tile(found: Gain, most: Budget) -> HeadlineTile:
    name, epochs, other = "epochs saved", found.epochs, arm_name(found.other)
    if epochs is None:
        return HeadlineTile(name, NO_VALUE, "", "not measured", "the two networks share no epochs")
    if epochs.one_run:
        return HeadlineTile(name, NO_VALUE, "", "one seed: no proof", "several seeds are needed to count epochs")
    if epochs.needed.low is not None and epochs.needed.low <= 1:
        return HeadlineTile(name, NO_VALUE, "", "not measurable", f"after one epoch it is not measurably above {other}")
    labels = "" if found.budget == most else f"with {format_budget(found.budget)} labels "
    needed, start = (
        epochs.needed,
        f"{labels}after one epoch ({format_percent(epochs.accuracy)} on validation) where {other}",
    )
    if needed.at is None:
        inside = _inside(needed, 1) or "beyond what was run"
        return HeadlineTile(
            name, f"> {needed.last - 1:.0f}", "epochs", inside, f"{start} does not arrive in {needed.last:.0f}"
        )
    return HeadlineTile(name, f"{needed.at - 1:.0f}", "epochs", _inside(needed, 1), f"{start} is after {needed.at:.0f}")


def _inside(needed: CurvePoint, less: float) -> str:
    """The interval of a place, without its brackets."""
    return decimal_places(needed, less).removeprefix(" (").removesuffix(")")
