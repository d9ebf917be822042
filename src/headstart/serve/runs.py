"""What is known of how a model was trained, for its page: figures, curves, and the report beside it. No torch."""

from pathlib import Path
from typing import Any

from headstart.errors import StoreError
from headstart.files import read_json
from headstart.store.rundir import RunFolder

MOST_POINTS = 300
CURVES = {
    "epoch": ("epoch", (("train_loss", "loss on train"), ("valid_loss", "loss on validation"))),
    "evaluation": ("step", (("loss", "loss on held-out text"),)),
}
MEASURES = (
    ("Accuracy", "valid_accuracy", "accuracy on validation"),
    ("Micro-F1", "valid_micro_f1", "micro-F1 on validation"),
    ("RMSE", "valid_rmse", "RMSE on validation"),
)
"""Each kind of answer has one of them."""


def curves_of(run: RunFolder | None) -> list[dict[str, Any]]:
    """Lines to draw: `{title, x, lines: [{name, points: [[x, y]]}]}`; none where there is no run or it is damaged."""
    if run is None:
        return []
    try:
        lines = run.metrics.read()
    except (StoreError, OSError):
        return []
    charts = []
    for kind, (x, names) in CURVES.items():
        own = [line for line in lines if line.get("kind") == kind]
        charts += _chart("Loss", x, own, names)
        for title, key, words in MEASURES:
            charts += _chart(title, x, own, ((key, words),))
    return charts


def _chart(title: str, x: str, lines: list[dict[str, Any]], names: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    drawn = []
    for key, name in names:
        points = [[line[x], line[key]] for line in lines if _number(line.get(x)) and _number(line.get(key))]
        if len(points) > 1:
            drawn.append({"name": name, "points": points[:: -(-len(points) // MOST_POINTS)]})
    return [{"title": title, "x": x, "lines": drawn}] if drawn else []


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def result_of(run: RunFolder | None) -> dict[str, float]:
    """The figures that a run ended with, by the words a person would use."""
    if run is None or not run.finished:
        return {}
    try:
        result = read_json(run.path / "result.json")
    except StoreError:
        return {}
    wanted = {
        ("test", "accuracy"): "accuracy on test",
        ("test", "macro_f1"): "macro-F1 on test",
        ("valid", "accuracy"): "accuracy on validation",
        ("test", "micro_f1"): "micro-F1 on test",
        ("valid", "micro_f1"): "micro-F1 on validation",
        ("test", "mae"): "mean absolute error on test",
        ("valid", "mae"): "mean absolute error on validation",
        ("held_out", "perplexity"): "perplexity of held-out text",
        ("held_out", "bits_per_byte"): "bits per byte of held-out text",
    }
    found = {}
    for (part, name), words in wanted.items():
        value = (result.get(part) or {}).get(name) if isinstance(result, dict) else None
        if isinstance(value, (int, float)):
            found[words] = float(value)
    return found


def report_of(run: RunFolder | None) -> Path | None:
    """The page that tells about the run, if someone made one."""
    page = None if run is None else run.path / "report.html"
    return page if page is not None and page.is_file() else None
