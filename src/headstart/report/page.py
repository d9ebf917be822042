"""Write the report of a comparison: one page that needs no network, and the same numbers as CSV and JSON.

report.html     verdict, figures, tables; figures, style and all in one file, no script
results.csv     a row a run
results.json    the verdict, the summaries and the paired differences
figures/        the page's figures as .svg and .png
"""

import csv
import io
import json
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from headstart.errors import StoreError
from headstart.files import FORMAT, write_json, write_whole
from headstart.report.arms import SCRATCH, best_linear, name_of, networks, pair
from headstart.report.canvas import COLOURS, FAINT, FURTHER, INK, ON_COLOUR, OTHER, PAPER, hue_of, png, short_name, svg
from headstart.report.collect import Comparison, collect
from headstart.report.figures import Drawing, confusion_width, confusions, drawings
from headstart.report.intervals import Estimate
from headstart.report.protocols import readings
from headstart.report.statistics import Summary, paired_difference, summaries
from headstart.report.verdict import verdict
from headstart.report.words import capital, percent, place, places, points
from headstart.report.worth import Worth, worth
from headstart.store.cells import Budget, Cell

COLUMNS = (
    *("arm", "labels", "rows", "seed", "valid_accuracy", "valid_macro_f1", "test_accuracy", "test_macro_f1"),
    *("best_epoch", "epochs", "seconds", "setting"),
)
WIDE, NARROW = 7.4, 3.9
_VARIABLES = {INK: "ink", FAINT: "line", PAPER: "card", ON_COLOUR: "on-colour", OTHER: "other"}
_VARIABLES |= {colour: name for name, colour in (COLOURS | FURTHER).items()}


@dataclass(frozen=True)
class Difference:
    """How two arms compare, with so many labels."""

    arm: str
    other: str
    budget: Budget
    estimate: Estimate


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Report on the comparison in `folder`, into `out` or beside it, and return the page's path."""
    comparison = collect(folder)
    out = out or folder
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}") from error
    for drawing in drawings(comparison):
        _write_figure(out, drawing, WIDE)
    for drawing in confusions(comparison):
        _write_figure(out, drawing, confusion_width(len(comparison.labels)))
    write_whole(out / "results.csv", results_csv(comparison).encode("utf-8"))
    write_json(out / "results.json", results_json(comparison))
    page = out / "report.html"
    write_whole(page, render(comparison).encode("utf-8"))
    return page


def results_csv(comparison: Comparison) -> str:
    """A row a run, in the order of arms, labels and seeds."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in comparison.cells:
        scores = [cell.valid.accuracy, cell.valid.macro_f1, cell.test.accuracy, cell.test.macro_f1]
        setting = json.dumps(cell.setting, sort_keys=True, ensure_ascii=False)
        last = [cell.best_epoch, len(cell.epochs), cell.seconds, setting]
        writer.writerow([cell.arm, cell.labels, cell.rows, cell.seed, *scores, *last])
    return buffer.getvalue()


def results_json(comparison: Comparison) -> dict[str, Any]:
    """Everything the page says in numbers, for programs; `protocols` where test was measured after every epoch."""
    read = [reading.as_dict() for budget in comparison.budgets for reading in readings(comparison, budget)]
    return {
        "format": FORMAT,
        "verdict": verdict(comparison),
        "arms": [_plain(summary) for budget in comparison.budgets for summary in summaries(comparison, budget)],
        "differences": [asdict(difference) for difference in differences(comparison)],
        "worth": [found.as_dict() for found in worths(comparison)],
        "missing": list(comparison.missing),
    } | ({"protocols": read} if read else {})


def differences(comparison: Comparison) -> list[Difference]:
    """The pairs worth reading: what pretraining gave, and each network against the best linear arm."""
    first, linear = pair(comparison)[0], best_linear(comparison)
    tried = sorted(networks(comparison), key=lambda arm: (arm != first, arm == SCRATCH))
    pairs = [(arm, SCRATCH) for arm in tried if arm != SCRATCH] + [(arm, linear) for arm in tried if linear]
    found = []
    for budget in reversed(comparison.budgets):
        for arm, other in pairs:
            estimate = paired_difference(comparison, arm, other, budget)
            if estimate is not None:
                found.append(Difference(arm, other, budget, estimate))
    return found


def worths(comparison: Comparison) -> list[Worth]:
    """What pretraining was worth, from all labels to few."""
    found = [worth(comparison, budget) for budget in reversed(comparison.budgets)]
    return [each for each in found if each is not None]


def settings(comparison: Comparison) -> list[str]:
    """What each arm was set to with the most labels, over its seeds, and what validation had to choose from."""
    found = []
    for summary in summaries(comparison, comparison.main):
        used = dict.fromkeys(_listed(cell.setting) for cell in summary.cells if cell.setting)
        tried = dict.fromkeys(_listed(one) for cell in summary.cells for one in map(_set, cell.tried))
        chosen = f", chosen on validation from {'; '.join(tried)}" if tried else ""
        if used:
            found.append(f"{short_name(summary.arm)}: {' or '.join(used)}{chosen}")
    return found


def _set(tried: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tried.items() if not name.startswith("valid_")}


def _listed(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in sorted(setting.items()))


def render(comparison: Comparison) -> str:
    """The page, as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "percent": percent,
        "points": points,
        "capital": capital,
        "arm": short_name,
        "name": name_of,
        "hue": hue_of,
        "plain": _shown,
        "place": place,
        "places": places,
    }
    template = environment.from_string((files("headstart.report") / "template.html").read_text("utf-8"))
    width = confusion_width(len(comparison.labels))
    figures = [(drawing.caption, _inline(drawing, WIDE), _inline(drawing, NARROW)) for drawing in drawings(comparison)]
    # a number and its sign stay on one line
    first, *rest = (sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in verdict(comparison))
    return template.render(
        comparison=comparison,
        headline=first,
        sentences=rest,
        figures=figures,
        confusions=[(drawing.caption, _inline(drawing, width)) for drawing in confusions(comparison)],
        confusion_rem=5.1 * width,  # an inch is 4.5 rem in the figure's own size, and the card's padding comes on top
        tables=[(budget, summaries(comparison, budget)) for budget in reversed(comparison.budgets)],
        settings=settings(comparison),
        differences=differences(comparison),
        worths=worths(comparison),
        readings=readings(comparison, comparison.main),
        classes=_classes(comparison),
        splits=[
            ("train", comparison.data.train),
            ("validation", comparison.data.valid),
            ("test", comparison.data.test),
        ],
        one_seed=len(comparison.seeds) == 1,
        looked_at_test=any(epoch.test_accuracy is not None for cell in comparison.cells for epoch in cell.epochs),
    )


def _write_figure(out: Path, drawing: Drawing, width: float) -> None:
    figure = drawing.draw(width)
    write_whole(out / "figures" / f"{drawing.name}.svg", svg(figure).encode("utf-8"))
    write_whole(out / "figures" / f"{drawing.name}.png", png(figure))


def _inline(drawing: Drawing, width: float) -> Markup:
    """The figure as an element of the page: in the page's colours, with a name, and with ids of its own.

    The text in it was escaped by matplotlib; everything put in here is ours or escaped.
    """
    text = svg(drawing.draw(width))
    text = text[text.index("<svg") :]
    prefix = f"{drawing.name}-{int(10 * width)}-"
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name}, {colour})")
    label = Markup("<svg role='img' aria-label='{}'").format(drawing.caption)
    return Markup(text.replace("<svg", str(label), 1))


def _classes(comparison: Comparison) -> list[tuple[str, list[tuple[str, float, float, float, int]]]]:
    """For each arm: label, precision, recall, F1 over all its seeds, and how often the label is right in test."""
    tables = []
    for summary in summaries(comparison, comparison.main):
        if summary.arm == "majority":
            continue
        rows = []
        for index, label in enumerate(comparison.labels):
            hits = sum(_confusion(cell)[index][index] for cell in summary.cells)
            answered = sum(row[index] for cell in summary.cells for row in _confusion(cell))
            true = sum(sum(_confusion(cell)[index]) for cell in summary.cells)
            shares = (hits / max(1, answered), hits / max(1, true), 2 * hits / max(1, answered + true))
            rows.append((label, *shares, true // len(summary.cells)))
        tables.append((summary.arm, rows))
    return tables


def _confusion(cell: Cell) -> tuple[tuple[int, ...], ...]:
    assert cell.test.confusion is not None  # reading a cell made sure
    return cell.test.confusion


def _plain(summary: Summary) -> dict[str, Any]:
    return {
        "arm": summary.arm,
        "labels": summary.budget,
        "rows": max(cell.rows for cell in summary.cells),
        "seeds": [cell.seed for cell in summary.cells],
        "test_accuracy": asdict(summary.accuracy),
        "test_accuracy_sd": summary.sd,
        "test_accuracy_without_overlap": summary.without_overlap,
        "test_macro_f1": summary.macro_f1,
        "test_macro_f1_interval": [summary.macro.low, summary.macro.high],
        "valid_accuracy": summary.valid_accuracy,
        "best_epochs": list(summary.best_epochs),
        "seconds": summary.seconds,
    }


def _shown(value: Any) -> str:
    """A value of a JSON file as a person would write it."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
