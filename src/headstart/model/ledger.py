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


def ledger(
    config: ModelConfig,
    vocab_size: int,
    classes: int | None,
    convention: Convention = "full",
    reading: Literal["causal", "both"] = "causal",
    *,
    bias: bool = False,
) -> Ledger:
    """The parameters of a language model (`classes` None) or of a classifier, part by part.

    `bias` is a head's that has one whatever its kind, as that of a number.

    >>> ledger(ModelConfig(), 50001, None).total, ledger(ModelConfig(), 50001, 2).total
    (21018401, 10968602)
    """
    parts = {"modern": _modern, "classic": _classic, "stock": _stock}[config.block]
    weights, small = parts(config, vocab_size, classes, reading)
    if bias and classes is not None and not any(row.part == "classifier head, biases" for row in small):
        small.append(Entry("classifier head, biases", "C", classes))
    task = "language model" if classes is None else "classifier"
    if convention == "weights-only":
        return Ledger(task, convention, tuple(weights), tuple(small))
    return Ledger(task, convention, tuple(_together(weights, small)), ())


Parts = tuple[list[Entry], list[Entry]]
"""Matrices, and what the weights-only convention leaves out: biases and norms."""


def _classic(config: ModelConfig, vocab_size: int, classes: int | None, _reading: str) -> Parts:
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
        Entry("attention in (query, key, value), biases", "L·3d", L * 3 * d),
        Entry("attention out, biases", "L·d", L * d),
        Entry("feed-forward, biases", "L·(f + d)", L * (f + d)),
        Entry("norms", "L·4d", L * 4 * d),
        Entry(f"{name}, biases", letter, out),
    ]
    return weights, small


def _modern(config: ModelConfig, vocab_size: int, classes: int | None, reading: str) -> Parts:
    V, d, f, L = vocab_size, config.width, config.feedforward, config.depth
    weights = [
        Entry("embedding", "V·d", V * d),
        Entry("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        Entry("attention out", "L·d²", L * d * d),
        Entry("feed-forward", "L·3·d·f", L * 3 * d * f),
    ]
    small = [Entry("norms", "L·2d + d", L * 2 * d + d)]
    if classes is None:
        again = Entry("language head", "0: the embedding again", 0)
        weights.append(again if config.tied else Entry("language head", "V·d", V * d))
    elif reading == "causal":
        weights.append(Entry("classifier head", "C·d", classes * d))
    else:
        weights += [Entry("classifier dense", "d²", d * d), Entry("classifier head", "C·d", classes * d)]
        small += [Entry("classifier dense, biases", "d", d), Entry("classifier head, biases", "C", classes)]
    return weights, small


def _stock(config: ModelConfig, vocab_size: int, classes: int | None, reading: str) -> Parts:
    V, d, f, L, stock = vocab_size, config.width, config.feedforward, config.depth, config.stock
    assert stock is not None
    norms = 2 * L + stock.embedding_norm + stock.final_norm - (stock.norm_first and stock.embedding_norm)
    ins, P = 2 if stock.gated else 1, stock.positions
    weights = [
        Entry("embedding", "V·d", V * d),
        *([Entry("positions", f"{P:,}·d", P * d)] if P else []),
        Entry("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        Entry("attention out", "L·d²", L * d * d),
        Entry("feed-forward", f"L·{ins + 1}·d·f", L * (ins + 1) * d * f),
    ]
    small = []
    if stock.bias:
        small = [
            Entry("attention in (query, key, value), biases", "L·3d", L * 3 * d),
            Entry("attention out, biases", "L·d", L * d),
            Entry("feed-forward, biases", f"L·({ins if ins > 1 else ''}f + d)", L * (ins * f + d)),
        ]
    name, out, letter = ("language", V, "V") if classes is None else ("classifier", classes, "C")
    head_bias = stock.head_bias if classes is None else reading == "both"
    transform = stock.transform if classes is None else reading == "both" and stock.classifier == "transform"
    dense = classes is not None and reading == "both" and stock.classifier != "transform"
    if transform or dense:
        weights.append(Entry(f"{name} dense", "d²", d * d))
        small += [Entry(f"{name} dense, biases", "d", d)] if dense or stock.transform_bias else []
    again = classes is None and config.tied
    weights.append(Entry(f"{name} head", "0: the embedding again" if again else f"{letter}·d", 0 if again else out * d))
    small += [Entry(f"{name} head, biases", letter, out)] if head_bias else []
    norms += transform
    each = 2 if stock.norm_bias else 1
    return weights, [*small, Entry("norms", f"{norms}·{each if each > 1 else ''}d", norms * each * d)]


def _together(weights: list[Entry], small: list[Entry]) -> list[Entry]:
    """Each matrix with its biases, in one line; norms before the head."""
    biases = {row.part.removesuffix(", biases"): row for row in small if row.part.endswith(", biases")}
    rows = []
    for row in weights:
        bias = biases.get(row.part)
        rows.append(row if bias is None else Entry(row.part, f"{row.formula} + {bias.formula}", row.count + bias.count))
    norms = [row for row in small if row.part == "norms"]
    head = next(place for place, row in enumerate(rows) if row.part.startswith(("language", "classifier")))
    return [*rows[:head], *norms, *rows[head:]]
