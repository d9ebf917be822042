"""What a comparison found, in plain sentences: who won first, then what pretraining was worth.

"Won" and "worth" are said only when the interval leaves zero out; the words for everything else are here too.
"""

from headstart.report.collect import Comparison
from headstart.report.statistics import Estimate, Summary, epochs_to_reach, paired_difference, summaries
from headstart.store.cells import Budget

NAMES = {
    "majority": "the majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "scratch": "the from-scratch network",
    "pretrained": "the pretrained network",
}
NETWORKS = ("scratch", "pretrained")
LINEAR = "tfidf"


def verdict(comparison: Comparison) -> list[str]:
    """What was found, one sentence an entry; the first says who won on test."""
    ranked = sorted(summaries(comparison, comparison.main), key=lambda summary: -summary.accuracy.mean)
    rival = _rival(ranked)
    sentences = [_winner(comparison, ranked[0], rival), *_also_ran(ranked, rival)]
    sentences += _against_majority(ranked)
    sentences += _worth(comparison)
    sentences += _epochs(comparison)
    sentences += [_fewer_labels(comparison, budget) for budget in comparison.budgets[:-1]]
    sentences += _missing(comparison)
    return [sentence for sentence in sentences if sentence]


def name_of(arm: str) -> str:
    """An arm in words.

    >>> name_of("tfidf"), name_of("distilled")
    ('TF-IDF + logistic regression', 'distilled')
    """
    return NAMES.get(arm, arm)


def capital(words: str) -> str:
    """The same words at the start of a sentence.

    >>> capital("the majority class"), capital("TF-IDF")
    ('The majority class', 'TF-IDF')
    """
    return words[:1].upper() + words[1:]


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.841)
    '84.1 %'
    """
    return f"{100 * share:.1f} %"


def points(difference: float, *, sign: bool = True) -> str:
    """A difference of shares in points, with a true minus; one that is not zero is never written as zero.

    >>> points(0.0431), points(-0.012), points(0.0004), points(0.0), points(-0.02, sign=False)
    ('+4.3', '−1.2', '+0.04', '0.0', '2.0')
    """
    if difference == 0:
        return "0.0"
    value = 100 * (difference if sign else abs(difference))
    digits = next((digits for digits in (1, 2, 3) if round(value, digits)), 4)
    return (f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}").replace("-", "−")


def interval(estimate: Estimate) -> str:
    """The interval of a difference, in points."""
    return f"95 % interval {points(estimate.low)} to {points(estimate.high)}"


def _rival(ranked: list[Summary]) -> Summary | None:
    """Whom the first sentence holds against the best arm: the next one, or the best network where a linear arm leads."""
    networks = [summary for summary in ranked[1:] if summary.arm in NETWORKS]
    if ranked[0].arm not in NETWORKS and networks:
        return networks[0]
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
    if difference.low > 0:
        return f"{name} won: {lead} ({other_share})."
    if _is_level(gap):
        return f"{name} is level with {other}: {share} and {other_share} on test."
    return f"{name} is ahead, but not measurably: {lead} ({other_share}; {interval(difference)})."


def _also_ran(ranked: list[Summary], rival: Summary | None) -> list[str]:
    """Name the best network and the linear arm where the first sentence, which names two arms, left them out."""
    first = ranked[0]
    named = [first.arm, *([rival.arm] if rival else [])]
    sentences = []
    network = next((summary for summary in ranked if summary.arm in NETWORKS), None)
    others = [network] if network and not set(named) & set(NETWORKS) else []
    others += [summary for summary in ranked if summary.arm == LINEAR and LINEAR not in named]
    for summary in others:
        gap = first.accuracy.mean - summary.accuracy.mean
        place = "level with" if _is_level(gap) else f"{points(gap, sign=False)} points below"
        name = capital(name_of(summary.arm))
        sentences.append(f"{name} came to {percent(summary.accuracy.mean)}, {place} {name_of(first.arm)}.")
    return sentences


def _is_level(gap: float) -> bool:
    """Whether a difference is nothing at the one decimal that accuracies are told with."""
    return round(100 * gap, 1) == 0


def _against_majority(ranked: list[Summary]) -> list[str]:
    by_arm = {summary.arm: summary.accuracy.mean for summary in ranked}
    floor = by_arm.get("majority")
    networks = [arm for arm in NETWORKS if arm in by_arm]
    losers = [arm for arm in networks if floor is not None and by_arm[arm] <= floor]
    if floor is None or not losers:
        return []
    if len(losers) == len(NETWORKS):
        return [
            f"Neither network beat the majority class ({percent(floor)}): "
            f"from scratch {percent(by_arm['scratch'])}, pretrained {percent(by_arm['pretrained'])}."
        ]
    (loser,) = losers
    name = capital(name_of(loser))
    return [f"{name} ({percent(by_arm[loser])}) did not beat the majority class ({percent(floor)})."]


def _worth(comparison: Comparison) -> list[str]:
    there = [arm for arm in NETWORKS if comparison.of(arm, comparison.main)]
    if len(there) < len(NETWORKS):
        absent = [name_of(arm) for arm in NETWORKS if arm not in there]
        return [f"What pretraining was worth is not known: {' and '.join(absent)} has no finished run."]
    difference = paired_difference(comparison, "pretrained", "scratch", comparison.main)
    if difference is None:
        return ["What pretraining was worth is not known: the two networks share no seed."]
    gain, over = points(difference.mean), _over(difference)
    if difference.low > 0:
        return [f"Pretraining was worth {gain} points over random weights ({over})."]
    if difference.high < 0:
        return [f"Pretraining hurt: {gain} points against random weights ({over})."]
    return [f"No measurable gain from pretraining: {gain} points ({over})."]


def _over(difference: Estimate) -> str:
    if difference.seeds == 1:
        return f"{interval(difference)} over the test texts alone: one seed cannot show the luck of training"
    return f"{interval(difference)}, {difference.seeds} paired seeds"


def _epochs(comparison: Comparison) -> list[str]:
    reach = epochs_to_reach(comparison, comparison.main)
    if reach is None:
        return []
    bar = "the from-scratch network's best validation accuracy"
    if reach.pretrained_epoch is None:
        return [f"The pretrained network never reached {bar} ({percent(reach.accuracy)}, epoch {reach.scratch_epoch})."]
    count = f"{reach.pretrained_epoch} epoch{'s' if reach.pretrained_epoch > 1 else ''}"
    if reach.pretrained_epoch < reach.scratch_epoch:
        return [f"The pretrained network reached {bar} after {count} instead of {reach.scratch_epoch}."]
    if reach.pretrained_epoch == reach.scratch_epoch:
        return [f"The pretrained network reached {bar} no sooner: after {count}, like the other."]
    return [f"The pretrained network reached {bar} later: after {count} instead of {reach.scratch_epoch}."]


def _fewer_labels(comparison: Comparison, budget: Budget) -> str:
    difference = paired_difference(comparison, "pretrained", "scratch", budget)
    if difference is None:
        return ""
    gain, over = points(difference.mean), _over(difference)
    if difference.low > 0:
        words = f"pretraining was worth {gain} points ({over})"
    elif difference.high < 0:
        words = f"pretraining hurt: {gain} points ({over})"
    else:
        words = f"no measurable gain: {gain} points ({over})"
    best = max(summaries(comparison, budget), key=lambda summary: summary.accuracy.mean)
    ahead = f"; {name_of(best.arm)} was ahead with {percent(best.accuracy.mean)}" if best.arm not in NETWORKS else ""
    return f"With {budget} labels, {words}{ahead}."


def _missing(comparison: Comparison) -> list[str]:
    if not comparison.missing:
        return []
    shown = [f"{name} (no run at all)" if " " not in name else name for name in comparison.missing[:3]]
    more = len(comparison.missing) - len(shown)
    return [f"Not finished: {'; '.join(shown)}{f'; and {more} more' if more else ''}."]
