"""The verdict of a comparison in sentences, its headline tiles, and number formats.

A sentence claims a win or a gain only where the interval excludes zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.progress import pluralize
from headstart.report.gain import CurvePoint, Gain, gain, gains, labels_needed
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

MAX_LISTED_MISSING = 3
NO_VALUE = "–"


def capitalize(text: str) -> str:
    """Capitalize the first letter and leave the others as they are.

    >>> capitalize("the majority class"), capitalize("NB-SVM")
    ('The majority class', 'NB-SVM')
    """
    return text[:1].upper() + text[1:]


def format_percent(fraction: float) -> str:
    """Format a fraction in per cent.

    >>> format_percent(0.841)
    '84.1 %'
    """
    return f"{100 * fraction:.1f} %"


def format_points(difference: float, *, sign: bool = True) -> str:
    """Format a difference of fractions in points, with a minus sign; only zero is written as zero.

    >>> [format_points(difference) for difference in (0.0431, -0.012, 0.0004, 0.0)], format_points(-0.02, sign=False)
    (['+4.3', '−1.2', '+0.04', '0.0'], '2.0')
    """
    if difference == 0:
        return "0.0"
    value = 100 * (difference if sign else abs(difference))
    digits = next((digits for digits in (1, 2, 3) if round(value, digits)), 4)
    return (f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}").replace("-", "−")


def format_interval(estimate: Estimate) -> str:
    """Format the interval of a difference, in points."""
    return f"95 % interval {format_points(estimate.low)} to {format_points(estimate.high)}"


def format_budget(budget: Budget) -> str:
    """Format a number of labels.

    >>> format_budget(1000), format_budget("all")
    ('1,000', 'all')
    """
    return budget if budget == "all" else f"{budget:,}"


def format_count(number: float) -> str:
    """Format an estimated count with two significant figures.

    >>> format_count(1234.5), format_count(87.3), format_count(2.6)
    ('1,200', '87', '3')
    """
    return f"{float(f'{number:.2g}'):,.0f}"


def format_point(value: float | None, curve: CurvePoint, offset: float = 0) -> str:
    """Format a value on a curve, less an offset; values beyond its ends are bounds.

    >>> curve = CurvePoint(830, 50, None, first=50, last=1600)
    >>> format_point(830, curve), format_point(50, curve), format_point(None, curve), format_point(830, curve, offset=200)
    ('about 830', 'at most 50', 'more than 1,600', 'about 630')
    """
    if value is None:
        return f"more than {round(curve.last - offset):,}"
    if value <= curve.first:
        return f"at most {round(curve.first - offset):,}"
    return f"about {format_count(value - offset)}"


def format_point_interval(point: CurvePoint, offset: float = 0) -> str:
    """Format the interval of a point in brackets; nothing where all of it is beyond an end of the curve.

    >>> format_point_interval(CurvePoint(830, 510, None, first=50, last=1600), offset=200)
    ' (95 % interval 310 to more than 1,400)'
    >>> format_point_interval(CurvePoint(None, None, None, first=50, last=1600))
    ''
    >>> format_point_interval(CurvePoint(50, 50, 50, first=50, last=1600))
    ''
    >>> format_point_interval(CurvePoint(None, 1590, None, first=50, last=1600))
    ''
    """
    if point.low is None or (point.high is not None and point.high <= point.first):
        return ""
    low, high = (format_point(value, point, offset).removeprefix("about ") for value in (point.low, point.high))
    if point.at is None and high == f"more than {low}":
        return ""
    return f" (95 % interval {low} to {high})"


@dataclass(frozen=True)
class Verdict:
    """The sentences of a verdict by topic."""

    largest_budget: list[str]
    """With the most labels; the first names the winner on test."""
    smaller_budgets: list[str]
    """With fewer labels, from few to many."""
    missing: list[str]
    """Runs that have not finished."""


def verdict(comparison: ComparisonResults) -> list[str]:
    """Return all sentences of the verdict; the first names the winner on test."""
    sentences = verdict_sentences(comparison)
    return [*sentences.largest_budget, *sentences.smaller_budgets, *sentences.missing]


def verdict_sentences(comparison: ComparisonResults) -> Verdict:
    """Return the sentences of the verdict by topic."""
    ranked = sorted(summaries(comparison, comparison.largest_budget), key=lambda summary: -summary.accuracy.mean)
    rival = _rival(ranked)
    sentences = [_winner(comparison, ranked[0], rival), *_also_ran(comparison, ranked, rival)]
    sentences += _against_majority(ranked)
    if comparison.choice:
        result, _, differences = comparison.choice.partition(": ")
        sentences[:0] = [f"{result}.", *([f"{capitalize(differences)}."] if differences else [])]
    else:
        sentences += _gain_sentences(comparison)
    smaller_budgets = [
        sentence for budget in comparison.budgets[:-1] for sentence in _smaller_budget(comparison, budget)
    ]
    return Verdict(sentences, smaller_budgets, _missing(comparison))


def _rival(ranked: list[Summary]) -> Summary | None:
    """Return the arm that the first sentence compares with the best: the next, or the best network below a linear arm."""
    networks = [summary for summary in ranked[1:] if is_network_arm(summary.arm)]
    if not is_network_arm(ranked[0].arm) and networks:
        return networks[0]
    return ranked[1] if len(ranked) > 1 else None


def _winner(comparison: ComparisonResults, first: Summary, second: Summary | None) -> str:
    name, accuracy = capitalize(arm_name(first.arm)), format_percent(first.accuracy.mean)
    if second is None:
        return f"Only {arm_name(first.arm)} has finished, with {accuracy} on test: there is no other arm to compare it with."
    other, other_accuracy = arm_name(second.arm), format_percent(second.accuracy.mean)
    gap = first.accuracy.mean - second.accuracy.mean
    if gap == 0:
        return f"A tie: {arm_name(first.arm)} and {other} both have {accuracy} on test."
    lead = f"{accuracy} on test, {format_points(gap, sign=False)} points above {other}"
    difference = paired_difference(comparison, first.arm, second.arm, comparison.largest_budget)
    if difference is None:
        return f"{name} has the highest accuracy, but shares no seed with the second: {lead} ({other_accuracy})."
    if _is_level(gap):
        return f"{name} and {other} are equal: {accuracy} and {other_accuracy} on test."
    if difference.measurable and difference.low > 0:
        return f"{name} is best: {lead} ({other_accuracy})."
    if difference.low > 0:
        return f"No clear winner with one seed: {name} has {lead} ({other_accuracy})."
    return f"No clear winner: {name} has {lead} ({other_accuracy}; {format_interval(difference)})."


def _also_ran(comparison: ComparisonResults, ranked: list[Summary], rival: Summary | None) -> list[str]:
    """Name the best network and the best linear arm unless the first sentence, which names two arms, did."""
    first = ranked[0]
    named = [first.arm, *([rival.arm] if rival else [])]
    network = next((summary for summary in ranked if is_network_arm(summary.arm)), None)
    unnamed = [network] if network and not any(map(is_network_arm, named)) else []
    linear = best_linear(comparison)
    linear_named = any(not is_network_arm(arm) and arm != "majority" for arm in named)
    unnamed += [summary for summary in ranked if summary.arm == linear and not linear_named]
    sentences = []
    for summary in unnamed:
        gap = first.accuracy.mean - summary.accuracy.mean
        distance = "level with" if _is_level(gap) else f"{format_points(gap, sign=False)} points below"
        name = capitalize(arm_name(summary.arm))
        sentences.append(f"{name} reached {format_percent(summary.accuracy.mean)}, {distance} {arm_name(first.arm)}.")
    return sentences


def _is_level(gap: float) -> bool:
    """Return True if a difference is zero at the one decimal of reported accuracies."""
    return round(100 * gap, 1) == 0


def _against_majority(ranked: list[Summary]) -> list[str]:
    floor = next((summary.accuracy.mean for summary in ranked if summary.arm == "majority"), None)
    networks = [summary for summary in ranked if is_network_arm(summary.arm)]
    losers = [summary for summary in networks if floor is not None and summary.accuracy.mean <= floor]
    if floor is None or not losers:
        return []
    if len(losers) == len(networks) > 1:
        accuracies = ", ".join(f"{arm_name(loser.arm)} {format_percent(loser.accuracy.mean)}" for loser in losers)
        none = "Neither" if len(networks) == 2 else "No"
        return [f"{none} network beat the majority class ({format_percent(floor)}): {accuracies}."]
    return [
        f"{capitalize(arm_name(loser.arm))} ({format_percent(loser.accuracy.mean)}) "
        f"did not beat the majority class ({format_percent(floor)})."
        for loser in losers
    ]


def _gain_sentences(comparison: ComparisonResults) -> list[str]:
    """Describe the gain of pretraining with all labels: in points, in labels, in epochs; then every further network."""
    arms = pretrained_and_scratch(comparison)
    unmeasured = _unmeasured_gain(comparison, arms)
    if unmeasured:
        return [unmeasured]
    measured = gain(comparison, comparison.largest_budget)
    if measured is None:
        return ["The gain from pretraining is unknown: the two networks share no seed."]
    sentences = [
        f"{_points_sentence(measured.points)}{_labels_clause(comparison, measured)}.",
        *_macro_f1_sentence(measured),
        *_linear_labels(comparison),
        *_epochs_sentence(measured),
    ]
    for arm in network_arms(comparison):
        difference = None if arm in arms else paired_difference(comparison, arm, SCRATCH, comparison.largest_budget)
        if difference:
            points = f"{format_points(difference.mean)} points compared with random weights ({_interval_and_seeds(difference)})"
            claim = "" if difference.measurable else ", not statistically significant"
            sentences.append(f"{capitalize(arm_name(arm))}: {points}{claim}.")
    return sentences


def _unmeasured_gain(comparison: ComparisonResults, arms: tuple[str, str]) -> str | None:
    """Explain why the gain of pretraining was not measured; None if both networks have runs with all labels."""
    not_requested = [arm_name(arm) for arm in reversed(arms) if arm not in (*comparison.arms, *comparison.missing)]
    if not_requested:
        was = "was" if len(not_requested) == 1 else "were"
        return f"The gain from pretraining was not measured: {' and '.join(not_requested)} {was} not among the arms (--arms)."
    absent = [arm_name(arm) for arm in reversed(arms) if not comparison.runs_of(arm, comparison.largest_budget)]
    if not absent:
        return None
    ran_with_fewer = all(arm in comparison.arms for arm in arms)
    labels = f" with {format_budget(comparison.largest_budget)} labels" if ran_with_fewer else ""
    verb, many = "has" if len(absent) == 1 else "have", " with this number" if ran_with_fewer else ""
    return f"The gain from pretraining{labels} is unknown: {' and '.join(absent)} {verb} no finished run{many}."


def _points_sentence(points: Estimate, budget: Budget | None = None) -> str:
    """Describe the gain of pretraining in points; `budget` is named where it is not all labels."""
    difference, interval = f"{format_points(points.mean)} points", _interval_and_seeds(points)
    if points.one_run:
        run = "With one seed" if budget is None else f"With {format_budget(budget)} labels and one seed"
        return (
            f"{run}, the difference between pretraining and random weights was {difference}, which one "
            f"seed cannot confirm ({interval})"
        )
    if points.low > 0:
        claim = f"Pretraining gained {difference} over random weights ({interval})"
    elif points.high < 0:
        claim = f"Pretraining was harmful: {difference} compared with random weights ({interval})"
    else:
        claim = f"No clear gain from pretraining: {difference} ({interval})"
    return claim if budget is None else f"With {format_budget(budget)} labels, {claim[:1].lower()}{claim[1:]}"


def _interval_and_seeds(difference: Estimate) -> str:
    if difference.one_run:
        return (
            f"{format_interval(difference)} over the test texts only: one seed does not show the "
            f"variation between training runs"
        )
    return f"{format_interval(difference)}, {difference.seeds} paired seeds"


def _macro_f1_sentence(measured: Gain) -> list[str]:
    """Describe the gain in macro-F1 where labels are imbalanced, because accuracy says little about the rare ones."""
    if not measured.unbalanced:
        return []
    macro = measured.macro_f1
    claim = "" if macro.measurable else ", not statistically significant"
    return [
        f"In macro-F1, which weights all labels equally: {format_points(macro.mean)} points "
        f"({format_interval(macro)}){claim}."
    ]


def _epochs_sentence(measured: Gain) -> list[str]:
    epochs, arm, other = measured.epochs, arm_name(measured.arm), arm_name(measured.other)
    if epochs is None or epochs.one_run:
        return []
    needed, accuracy = epochs.needed, f"({format_percent(epochs.accuracy)} on validation)"
    if needed.low is not None and needed.low <= 1:  # after one epoch the two cannot be distinguished
        return [f"No clear gain in epochs: after the first epoch, {arm} {accuracy} is not clearly above {other}."]
    start = f"After one epoch, {arm} reaches {format_percent(epochs.accuracy)} on validation"
    if needed.at is None:
        epochs_run = pluralize(round(needed.last), "epoch")
        return [f"{start}; {other} does not reach it in {epochs_run}{format_point_interval(needed)}."]
    return [f"{start}; {other} needs {needed.at:.0f} epochs for it{format_point_interval(needed)}."]


def _smaller_budget(comparison: ComparisonResults, budget: Budget) -> list[str]:
    measured = gain(comparison, budget)
    if measured is None:
        return _against_linear(comparison, budget)
    sentence = _points_sentence(measured.points, budget) + _labels_clause(comparison, measured)
    best = max(summaries(comparison, budget), key=lambda summary: summary.accuracy.mean)
    if not is_network_arm(best.arm):
        sentence += f"; {arm_name(best.arm)} was best with {format_percent(best.accuracy.mean)}"
    return [f"{sentence}."]


def _against_linear(comparison: ComparisonResults, budget: Budget) -> list[str]:
    """Compare the pretrained arm with the linear arm where the other network has no run with this budget."""
    (arm, other), linear = pretrained_and_scratch(comparison), best_linear(comparison)
    difference = paired_difference(comparison, arm, linear, budget) if linear else None
    if linear is None or difference is None or comparison.runs_of(other, budget):
        return []
    labels = labels_needed(comparison, arm, linear, budget)
    needs = ""
    if difference.measurable and difference.low > 0 and labels and labels.rows < labels.needed.last:
        needs = f", which needs {_format_needed(labels.needed)} for the same accuracy"
    side = "above" if difference.mean > 0 else "below"
    points = f"{format_points(difference.mean, sign=False)} points {side} {arm_name(linear)}"
    points += f" ({_interval_and_seeds(difference)})"
    if not difference.measurable and not difference.one_run:
        points += ", not statistically significant"
    unknown = f"{arm_name(other)} has no finished run with this number"
    return [f"With {format_budget(budget)} labels, {arm_name(arm)} was {points}{needs}; {unknown}."]


def _labels_clause(comparison: ComparisonResults, measured: Gain) -> str:
    """Express a measurable gain in labels, as the end of a sentence."""
    if measured.labels is None or not measured.points.measurable or measured.points.low <= 0:
        return ""
    needed, rows, other = measured.labels.needed, measured.labels.rows, arm_name(measured.other)
    linear = measured.linear_labels
    linear_needs_more = linear is not None and (linear.needed.at is None or linear.needed.at > rows)
    also = f", {arm_name(linear.other)} {_format_needed(linear.needed)}" if linear and linear_needs_more else ""
    if needed.at is None and rows >= needed.last and rows < comparison.rows_of(comparison.largest_budget):
        return f": {other}, which was not run with more labels, needs more than {rows:,} for the same accuracy{also}"
    if needed.at is None and rows >= needed.last:
        return f": {other} needs more than the {rows:,} available labels for the same accuracy"
    saved = f", or {format_point(needed.at, needed, rows)} labels{format_point_interval(needed, rows)}"
    return f"{saved}: {other} needs {format_point(needed.at, needed)} for the same accuracy{also}"


def _format_needed(needed: CurvePoint) -> str:
    return format_point(needed.at, needed) + format_point_interval(needed)


def _linear_labels(comparison: ComparisonResults) -> list[str]:
    """Describe how many labels the linear arm needs for the accuracy of the pretrained arm with all, if it is better."""
    arm, linear = pretrained_and_scratch(comparison)[0], best_linear(comparison)
    difference = paired_difference(comparison, arm, linear, comparison.largest_budget) if linear else None
    if linear is None or difference is None or not difference.measurable or difference.high > 0:
        return []
    labels = labels_needed(comparison, arm, linear, comparison.largest_budget)
    if labels is None:
        return []
    needed = labels.needed
    return [
        f"{capitalize(arm_name(linear))} needs {format_point(needed.at, needed)} labels{format_point_interval(needed)} "
        f"for the accuracy that {arm_name(arm)} has with {labels.rows:,}."
    ]


def _missing(comparison: ComparisonResults) -> list[str]:
    if not comparison.missing:
        return []
    names = describe_missing(comparison.missing)
    unlisted = len(names) - MAX_LISTED_MISSING
    return [f"Not finished: {'; '.join(names[:MAX_LISTED_MISSING])}{f'; and {unlisted} more' if unlisted > 0 else ''}."]


def describe_missing(missing: Sequence[str]) -> list[str]:
    """Describe missing runs, with those that differ only in their seed in one entry.

    >>> describe_missing(["linear", "scratch with 50 labels, seed 0", "scratch with 50 labels, seed 3"])
    ['linear (no run)', 'scratch with 50 labels, seeds 0 and 3']
    """
    seeds: dict[str, list[str]] = {}
    for name in missing:
        run, _, seed = name.partition(", seed ")
        seeds.setdefault(run, []).extend([seed] if seed else [])
    return [f"{run}, {_format_seeds(listed)}" if listed else f"{run} (no run)" for run, listed in seeds.items()]


def _format_seeds(seeds: list[str]) -> str:
    *others, last = seeds
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def describe_pairing(comparison: ComparisonResults) -> str:
    """Describe the differences between the networks of a seed: their initial weights, and their steps if those differ.

    Empty if there is only one network.
    """
    limited = (comparison.config.get("loop") or {}).get("minutes") is not None
    steps: dict[tuple[Budget, int], set[int | None]] = {}
    for run in comparison.runs:
        if run.epochs:
            steps.setdefault((run.labels, run.seed), set()).add(run.steps)
    if len({run.arm for run in comparison.runs if run.epochs}) < 2:
        return ""
    if limited and any(None in numbers for numbers in steps.values()):
        return "The number of steps of each network was not recorded; it may differ between the networks."
    known = [sorted(number for number in numbers if number is not None) for numbers in steps.values()]
    unequal = [numbers for numbers in known if len(numbers) > 1]
    if unequal:
        low, high = min(numbers[0] for numbers in unequal), max(numbers[-1] for numbers in unequal)
        return (
            f"The networks of a seed were not trained for the same number of steps ({low:,} to {high:,}): they "
            "differ in this as well as in their initial weights."
        )
    return "The two networks differ in their initial weights only."


@dataclass(frozen=True)
class HeadlineTile:
    """A number in large type: accuracy, labels saved or epochs saved."""

    name: str
    value: str
    unit: str
    interval: str
    note: str


def headline_tiles(comparison: ComparisonResults) -> list[HeadlineTile]:
    """Return accuracy, labels and epochs gained with the most labels that both networks were run with."""
    measured = gains(comparison)
    if not measured:
        return []
    return [
        _points_tile(comparison, measured[0]),
        _labels_tile(measured),
        _epochs_tile(measured[0], comparison.largest_budget),
    ]


def _points_tile(comparison: ComparisonResults, measured: Gain) -> HeadlineTile:
    accuracy, other_accuracy = (
        format_percent(mean([run.test.accuracy for run in comparison.runs_of(arm, measured.budget)]))
        for arm in (measured.arm, measured.other)
    )
    note = f"on test with {format_budget(measured.budget)} labels: {accuracy} instead of {other_accuracy}"
    return HeadlineTile(
        "accuracy", format_points(measured.points.mean), "points", _format_significance(measured.points), note
    )


def _format_significance(points: Estimate) -> str:
    if points.one_run:
        return "one seed: not conclusive"
    return format_interval(points) + ("" if points.measurable else ", not statistically significant")


def _labels_tile(measured: list[Gain]) -> HeadlineTile:
    """Show the labels saved at the largest budget whose point is on the other arm's curve; else a lower bound."""
    name = "labels saved"
    curves = [(at_budget, at_budget.labels) for at_budget in measured if at_budget.labels is not None]
    if not curves:
        return HeadlineTile(name, NO_VALUE, "", "not measured", "compare with --labels 50,200,all to measure it")
    positive = [
        (at_budget, labels) for at_budget, labels in curves if at_budget.points.measurable and at_budget.points.low > 0
    ]
    if not positive:
        return HeadlineTile(name, NO_VALUE, "", "not measurable", "there is no clear gain to express in labels")
    for at_budget, labels in positive:
        needed, rows = labels.needed, labels.rows
        if needed.at is not None and needed.at > rows:
            note = f"with {rows:,} labels the accuracy of {arm_name(at_budget.other)} with {format_point(needed.at, needed)}"
            return HeadlineTile(name, format_count(needed.at - rows), "labels", _interval_only(needed, rows), note)
    # without an upper end the smallest budget says the most; one whose interval is beyond the curve comes first
    for at_budget, labels in sorted(positive, key=lambda item: (item[1].needed.low is not None, item[1].rows)):
        rows, last = labels.rows, labels.needed.last
        if rows < last:
            note = f"with {rows:,} labels better than {arm_name(at_budget.other)} with {last:,.0f}"
            return HeadlineTile(name, f"> {last - rows:,.0f}", "labels", "above the measured range", note)
    return HeadlineTile(name, NO_VALUE, "", "not known", "no run has more labels to compare with")


def _epochs_tile(measured: Gain, largest_budget: Budget) -> HeadlineTile:
    name, epochs, other = "epochs saved", measured.epochs, arm_name(measured.other)
    if epochs is None:
        return HeadlineTile(name, NO_VALUE, "", "not measured", "the two networks have no epochs in common")
    if epochs.one_run:
        return HeadlineTile(name, NO_VALUE, "", "one seed: not conclusive", "several seeds are needed to count epochs")
    needed = epochs.needed
    if needed.low is not None and needed.low <= 1:
        return HeadlineTile(name, NO_VALUE, "", "not measurable", f"after one epoch it is not clearly above {other}")
    labels = "" if measured.budget == largest_budget else f"with {format_budget(measured.budget)} labels "
    start = f"{labels}{format_percent(epochs.accuracy)} on validation after one epoch; {other}"
    interval = _interval_only(needed, 1)
    if needed.at is None:
        note = f"{start} does not reach it in {needed.last:.0f}"
        return HeadlineTile(name, f"> {needed.last - 1:.0f}", "epochs", interval or "above the measured range", note)
    return HeadlineTile(name, f"{needed.at - 1:.0f}", "epochs", interval, f"{start} needs {needed.at:.0f}")


def _interval_only(point: CurvePoint, offset: float) -> str:
    """Format the interval of a point without brackets."""
    return format_point_interval(point, offset).removeprefix(" (").removesuffix(")")
