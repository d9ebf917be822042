"""What the training rows ask of a model, and whether other rows ask the same."""

import numpy as np

from headstart.config import LabelledConfig
from headstart.data.labelled import LabelledTexts, LabelSet, check_split
from headstart.data.opening import one_line
from headstart.errors import DataError
from headstart.kinds import Classes, Labels, Rating, Target

_UNEVEN = 3.0
"""So many times as many rows of one label as of another are worth a remark."""


def target_of(train: LabelledTexts, config: LabelledConfig) -> Target:
    """The labels that occur, or the numbers' bounds and scale."""
    pair = train.pairs is not None
    if train.kind == "labels":
        return Labels(LabelSet.from_training(train).names, pair)
    if train.kind == "classes":
        return Classes(LabelSet.from_training(train).names, pair)
    numbers = np.array(train.labels)
    if np.ptp(numbers) == 0:
        raise DataError(f"{train.name}: every row has the rating {numbers[0]:g}; there is nothing to tell apart")
    lowest = float(numbers.min()) if config.lowest is None else config.lowest
    highest = float(numbers.max()) if config.highest is None else config.highest
    return Rating((), pair, lowest, highest, float(numbers.mean()), float(numbers.std()))


def check_target(target: Target, other: LabelledTexts, train_name: str) -> list[str]:
    """Refuse rows whose label no training row has; what else there is to know about them comes back in words."""
    if target.kind != "rating":
        check_split(LabelSet(target.labels), other, train_name)
        return []
    assert isinstance(target, Rating)
    numbers = np.array(other.labels)
    outside = int(((numbers < target.lowest) | (numbers > target.highest)).sum())
    if not outside:
        return []
    bounds = f"{target.lowest:g} to {target.highest:g}"
    return [f"{outside:,} of {len(other):,} ratings of {other.name} lie outside of {bounds}, which no answer does"]


def balance_of(texts: LabelledTexts) -> str | None:
    """How uneven the labels are, where that is worth knowing."""
    counts = texts.counts()
    if len(counts) < 2 or max(counts.values()) < _UNEVEN * min(counts.values()):
        return None
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    shares = (f"{one_line(name)} {counts[name]:,} ({100 * counts[name] / len(texts):.1f} %)" for name in (most, least))
    return (
        f"uneven labels in {texts.name}: from {' down to '.join(shares)}; macro-F1 counts all alike, and "
        "transfer.class_weights balanced lets the rare ones weigh more"
    )
