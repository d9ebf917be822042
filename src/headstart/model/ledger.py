"""Every parameter of a network, by formula, before anything is built. No torch here.

Two conventions: `full` counts what is trained (and equals `numel`, tested for random shapes); `weights-only` is a
published count of the same design that leaves out biases and norms, and says which terms it leaves out.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headstart.config import ModelConfig

Convention = Literal["full", "weights-only"]


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    part: str
    formula: str
    count: int


@dataclass(frozen=True)
class Ledger:
    """What a network is made of, in parameters."""

    task: str
    convention: Convention
    rows: tuple[Entry, ...]
    left_out: tuple[Entry, ...]

    @property
    def total(self) -> int:
        """All that is counted."""
        return sum(row.count for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "total": self.total}


def ledger(config: ModelConfig, vocab_size: int, classes: int | None, convention: Convention = "full") -> Ledger:
    """The parameters of a language model (`classes` None) or of a classifier, part by part.

    >>> ledger(ModelConfig(), 50001, None).total, ledger(ModelConfig(), 50001, 2).total
    (21018401, 10968602)
    """
    V, d, f, L = vocab_size, config.width, config.feedforward, config.depth
    out, letter, name = (V, "V", "language head") if classes is None else (classes, "C", "classifier head")
    weights = [
        Entry("embedding", "V·d", V * d),
        Entry("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        Entry("attention out", "L·d²", L * d * d),
        Entry("feed-forward", "L·2·d·f", L * 2 * d * f),
        Entry(name, f"{letter}·d", out * d),
    ]
    small = [
        Entry("attention in, biases", "L·3d", L * 3 * d),
        Entry("attention out, biases", "L·d", L * d),
        Entry("feed-forward, biases", "L·(f + d)", L * (f + d)),
        Entry("norms", "L·4d", L * 4 * d),
        Entry(f"{name}, bias", letter, out),
    ]
    task = "language model" if classes is None else "classifier"
    if convention == "weights-only":
        return Ledger(task, convention, tuple(weights), tuple(small))
    merged = [
        weights[0],
        Entry("attention in (query, key, value)", "L·3d·(d + 1)", weights[1].count + small[0].count),
        Entry("attention out", "L·d·(d + 1)", weights[2].count + small[1].count),
        Entry("feed-forward", "L·(f·(d + 1) + d·(f + 1))", weights[3].count + small[2].count),
        Entry("norms", "L·4d", small[3].count),
        Entry(name, f"{letter}·(d + 1)", weights[4].count + small[4].count),
    ]
    return Ledger(task, convention, tuple(merged), ())
