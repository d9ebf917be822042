"""The parameters of a network by formula, before anything is built and without torch.

There are two conventions: `full` counts every trained parameter and equals `numel`, which is tested for random shapes;
`weights-only` is a published count of the same architecture that excludes biases and norms, and lists what it excludes.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headstart.config.schema import ModelConfig

Convention = Literal["full", "weights-only"]


@dataclass(frozen=True)
class CountRow:
    """One line of the count."""

    part: str
    formula: str
    count: int


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of a network, line by line."""

    task: str
    convention: Convention
    rows: tuple[CountRow, ...]
    excluded: tuple[CountRow, ...]

    @property
    def total(self) -> int:
        """The sum of all rows."""
        return sum(row.count for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {**asdict(self), "total": self.total}


def count_parameters(
    config: ModelConfig,
    vocab_size: int,
    classes: int | None,
    convention: Convention = "full",
    attention: Literal["causal", "bidirectional"] = "causal",
    *,
    bias: bool = False,
) -> ParameterCount:
    """Count the parameters of a language model (`classes` None) or of a classifier.

    Args:
        bias: the classifier head has a bias whatever its block, as that of a regression has.

    >>> count_parameters(ModelConfig(), 50001, None).total, count_parameters(ModelConfig(), 50001, 2).total
    (21018401, 10968602)
    """
    count = {"modern": _modern, "classic": _classic, "generic": _generic}[config.block]
    weights, small = count(config, vocab_size, classes, attention)
    if bias and classes is not None and not any(row.part == "classifier head, biases" for row in small):
        small.append(CountRow("classifier head, biases", "C", classes))
    task = "language model" if classes is None else "classifier"
    if convention == "weights-only":
        return ParameterCount(task, convention, tuple(weights), tuple(small))
    return ParameterCount(task, convention, tuple(_sum_weights(weights, small)), ())


CountRows = tuple[list[CountRow], list[CountRow]]
"""Matrices, and what the weights-only convention excludes: biases and norms."""


def _classic(config: ModelConfig, vocab_size: int, classes: int | None, _attention: str) -> CountRows:
    V, d, f, L = vocab_size, config.width, config.feedforward, config.depth
    out, letter, name = (V, "V", "language head") if classes is None else (classes, "C", "classifier head")
    weights = [
        CountRow("embedding", "V·d", V * d),
        CountRow("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        CountRow("attention out", "L·d²", L * d * d),
        CountRow("feed-forward", "L·2·d·f", L * 2 * d * f),
        CountRow(name, f"{letter}·d", out * d),
    ]
    small = [
        CountRow("attention in (query, key, value), biases", "L·3d", L * 3 * d),
        CountRow("attention out, biases", "L·d", L * d),
        CountRow("feed-forward, biases", "L·(f + d)", L * (f + d)),
        CountRow("norms", "L·4d", L * 4 * d),
        CountRow(f"{name}, biases", letter, out),
    ]
    return weights, small


def _modern(config: ModelConfig, vocab_size: int, classes: int | None, attention: str) -> CountRows:
    V, d, f, L = vocab_size, config.width, config.feedforward, config.depth
    weights = [
        CountRow("embedding", "V·d", V * d),
        CountRow("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        CountRow("attention out", "L·d²", L * d * d),
        CountRow("feed-forward", "L·3·d·f", L * 3 * d * f),
    ]
    small = [CountRow("norms", "L·2d + d", L * 2 * d + d)]
    if classes is None:
        tied = CountRow("language head", "0: the embedding again", 0)
        weights.append(tied if config.tied else CountRow("language head", "V·d", V * d))
    elif attention == "causal":
        weights.append(CountRow("classifier head", "C·d", classes * d))
    else:
        weights += [CountRow("classifier dense", "d²", d * d), CountRow("classifier head", "C·d", classes * d)]
        small += [CountRow("classifier dense, biases", "d", d), CountRow("classifier head, biases", "C", classes)]
    return weights, small


def _generic(config: ModelConfig, vocab_size: int, classes: int | None, attention: str) -> CountRows:
    V, d, f, L, generic = vocab_size, config.width, config.feedforward, config.depth, config.generic
    assert generic is not None
    norms = 2 * L + generic.embedding_norm + generic.final_norm - (generic.norm_first and generic.embedding_norm)
    ins, P = 2 if generic.gated else 1, generic.positions
    weights = [
        CountRow("embedding", "V·d", V * d),
        *([CountRow("positions", f"{P:,}·d", P * d)] if P else []),
        CountRow("attention in (query, key, value)", "L·3d²", L * 3 * d * d),
        CountRow("attention out", "L·d²", L * d * d),
        CountRow("feed-forward", f"L·{ins + 1}·d·f", L * (ins + 1) * d * f),
    ]
    small = []
    if generic.bias:
        small = [
            CountRow("attention in (query, key, value), biases", "L·3d", L * 3 * d),
            CountRow("attention out, biases", "L·d", L * d),
            CountRow("feed-forward, biases", f"L·({ins if ins > 1 else ''}f + d)", L * (ins * f + d)),
        ]
    name, out, letter = ("language", V, "V") if classes is None else ("classifier", classes, "C")
    head_bias = generic.head_bias if classes is None else attention == "bidirectional"
    transform = (
        generic.transform if classes is None else attention == "bidirectional" and generic.classifier == "transform"
    )
    dense = classes is not None and attention == "bidirectional" and generic.classifier != "transform"
    if transform or dense:
        weights.append(CountRow(f"{name} dense", "d²", d * d))
        small += [CountRow(f"{name} dense, biases", "d", d)] if dense or generic.transform_bias else []
    tied = classes is None and config.tied
    weights.append(
        CountRow(f"{name} head", "0: the embedding again" if tied else f"{letter}·d", 0 if tied else out * d)
    )
    small += [CountRow(f"{name} head, biases", letter, out)] if head_bias else []
    norms += transform
    per_norm = 2 if generic.norm_bias else 1
    return weights, [*small, CountRow("norms", f"{norms}·{per_norm if per_norm > 1 else ''}d", norms * per_norm * d)]


def _sum_weights(weights: list[CountRow], small: list[CountRow]) -> list[CountRow]:
    """Return each matrix with its biases in one line, and norms before the head."""
    biases = {row.part.removesuffix(", biases"): row for row in small if row.part.endswith(", biases")}
    rows = []
    for row in weights:
        bias = biases.get(row.part)
        rows.append(
            row if bias is None else CountRow(row.part, f"{row.formula} + {bias.formula}", row.count + bias.count)
        )
    norms = [row for row in small if row.part == "norms"]
    head = next(index for index, row in enumerate(rows) if row.part.startswith(("language", "classifier")))
    return [*rows[:head], *norms, *rows[head:]]
