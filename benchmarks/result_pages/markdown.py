"""What the pages of results share: reading records, formatting numbers, tables and commands."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"
NAMES = {
    "majority": "majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "linear": "linear model",
    "scratch": "network from random weights",
    "pretrained": "network, pretrained",
}
"""How the pages name the arms of a comparison."""


def load(*parts: str) -> Any:
    """Read a record of docs/results."""
    return json.loads(RESULTS.joinpath(*parts).read_text(encoding="utf-8"))


def exists(name: str) -> bool:
    """Return whether docs/results has the record."""
    return (RESULTS / name).is_file()


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> table(["arm", "accuracy"], [["network", "89.2 %"]])
    ['| arm | accuracy |', '|---|---|', '| network | 89.2 % |']
    """
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows),
    ]


def commands(*lines: str) -> list[str]:
    """Return the lines of a block of commands."""
    return ["```", *dict.fromkeys(lines), "```"]


def percent(fraction: float) -> str:
    """Format a fraction in per cent.

    >>> percent(0.8918)
    '89.2 %'
    """
    return f"{100 * fraction:.1f} %"


def percent_range(low: float, high: float) -> str:
    """Format two fractions in per cent as an interval."""
    return f"{percent(low)} to {percent(high)}"


def points(mean: float) -> str:
    """Format a difference of fractions in points, with its sign."""
    return f"{100 * mean:+.1f}"


def points_range(low: float, high: float) -> str:
    """Format an interval of differences in points, with signs."""
    return f"{points(low)} to {points(high)}"


def difference(estimate: dict) -> str:
    """Format a paired difference in points with its interval.

    >>> difference({"mean": 0.014, "low": -0.008, "high": 0.036})
    '+1.4 (-0.8 to +3.6)'
    """
    return f"{points(estimate['mean'])} ({points_range(estimate['low'], estimate['high'])})"


def times(ratio: float) -> str:
    """Format a ratio."""
    return f"{ratio:.2f}"


def megabytes(size: float) -> str:
    """Format a size on disk."""
    return f"{size / 1e9:.1f} GB" if size > 999e6 else f"{size / 1e6:.0f} MB"


def arm_of(results: dict, name: str, labels: int | str) -> dict:
    """Return one arm of a comparison at one label budget."""
    return next(arm for arm in results["arms"] if (arm["arm"], arm["labels"]) == (name, labels))


def measured_by(parts: Iterable[tuple[str, dict]]) -> list[str]:
    """Return a block of commands, each with the commit and the date of its figures as a comment."""
    lines = []
    for command, machine in parts:
        made = (f"commit {machine['commit']}" if machine.get("commit") else "", machine.get("date", ""))
        note = ", ".join(filter(None, made))
        lines.append(f"{command}  # {note}" if note else command)
    return commands(*lines)
