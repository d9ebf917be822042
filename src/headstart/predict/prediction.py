"""The answer to one text. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """The answer to one text."""

    label: str
    """The likeliest, or `abstain` where that is not sure enough."""
    probability: float
    """Of the likeliest."""
    probabilities: dict[str, float]
    truncated: bool
    """True when the text was longer than the context and its end was not read."""
    abstained: bool = False
