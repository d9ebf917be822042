"""The same numbers that the page shows, for programs: a table of runs, and all that was computed from them."""

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Any

from headstart.files import FORMAT
from headstart.report.error_tables import error_tables
from headstart.report.figures import short_name
from headstart.report.gain import Gain, gain
from headstart.report.intervals import Estimate
from headstart.report.load import SCRATCH, ComparisonResults, best_linear, network_arms, pretrained_and_scratch
from headstart.report.reliability import arm_calibrations
from headstart.report.statistics import (
    Summary,
    differences_without_leaks,
    paired_difference,
    protocol_accuracies,
    summaries,
)
from headstart.report.summary import verdict
from headstart.store.records import Budget

COLUMNS = (
    *("arm", "labels", "rows", "seed", "valid_accuracy", "valid_macro_f1", "test_accuracy", "test_macro_f1"),
    *("best_epoch", "epochs", "seconds", "setting"),
)


@dataclass(frozen=True)
class Difference:
    """How two arms compare, with so many labels."""

    arm: str
    other: str
    budget: Budget
    estimate: Estimate


def results_csv(comparison: ComparisonResults) -> str:
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


def results_json(comparison: ComparisonResults) -> dict[str, Any]:
    """Everything the page says in numbers, for programs; no text of anybody's in it.

    `protocols` is there where test was measured after every epoch, `calibration` where probabilities were kept, `errors`
    where a network has run, `leaks` where a test text (almost) stands in train.
    """
    read = [reading.as_dict() for budget in comparison.budgets for reading in protocol_accuracies(comparison, budget)]
    found = error_tables(comparison)
    further = {
        "protocols": read,
        "calibration": [each.as_dict() for each in arm_calibrations(comparison, comparison.main)],
        "errors": found.as_dict() if found else None,
        "leaks": [each.as_dict() for each in differences_without_leaks(comparison)],
    }
    return {
        "format": FORMAT,
        "verdict": verdict(comparison),
        "arms": [_plain(summary) for budget in comparison.budgets for summary in summaries(comparison, budget)],
        "differences": [asdict(difference) for difference in differences(comparison)],
        "worth": [found.as_dict() for found in gains(comparison)],
        "missing": list(comparison.missing),
    } | {name: value for name, value in further.items() if value}


def differences(comparison: ComparisonResults) -> list[Difference]:
    """The pairs worth reading: what pretraining gave, and each network against the best linear arm."""
    first, linear = pretrained_and_scratch(comparison)[0], best_linear(comparison)
    tried = sorted(network_arms(comparison), key=lambda arm: (arm != first, arm == SCRATCH))
    pairs = [(arm, SCRATCH) for arm in tried if arm != SCRATCH] + [(arm, linear) for arm in tried if linear]
    found = []
    for budget in reversed(comparison.budgets):
        for arm, other in pairs:
            estimate = paired_difference(comparison, arm, other, budget)
            if estimate is not None:
                found.append(Difference(arm, other, budget, estimate))
    return found


def gains(comparison: ComparisonResults) -> list[Gain]:
    """What pretraining was worth, from all labels to few."""
    found = [gain(comparison, budget) for budget in reversed(comparison.budgets)]
    return [each for each in found if each is not None]


def setting_rows(comparison: ComparisonResults) -> list[str]:
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
    return ", ".join(f"{name} {format_value(value)}" for name, value in sorted(setting.items()))


def _plain(summary: Summary) -> dict[str, Any]:
    return {
        "arm": summary.arm,
        "labels": summary.budget,
        "rows": max(cell.rows for cell in summary.cells),
        "seeds": [cell.seed for cell in summary.cells],
        "test_accuracy": asdict(summary.accuracy),
        "test_accuracies": list(summary.accuracies),
        "test_accuracy_sd": summary.sd,
        "test_accuracy_without_overlap": summary.without_overlap,
        "test_macro_f1": summary.macro_f1,
        "test_macro_f1_interval": [summary.macro.low, summary.macro.high],
        "valid_accuracy": summary.valid_accuracy,
        "best_epochs": list(summary.best_epochs),
        "seconds": summary.seconds,
    }


def format_value(value: Any) -> str:
    """A value of a JSON file as a person would write it."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
