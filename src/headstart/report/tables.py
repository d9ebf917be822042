"""The numbers of a report for programs: results.csv, a row per run, and results.json."""

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Any

from headstart.files import FORMAT
from headstart.report.error_tables import error_tables
from headstart.report.figures import short_name
from headstart.report.gain import gains
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
    """The difference of two arms with one budget."""

    arm: str
    other: str
    budget: Budget
    estimate: Estimate


def results_csv(comparison: ComparisonResults) -> str:
    """Format a row per run, in the order of arms, labels and seeds."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in comparison.runs:
        metrics = [run.valid.accuracy, run.valid.macro_f1, run.test.accuracy, run.test.macro_f1]
        setting = json.dumps(run.setting, sort_keys=True, ensure_ascii=False)
        training = [run.best_epoch, len(run.epochs), run.seconds, setting]
        writer.writerow([run.arm, run.labels, run.rows, run.seed, *metrics, *training])
    return buffer.getvalue()


def results_json(comparison: ComparisonResults) -> dict[str, Any]:
    """Return every number of the page for programs; no user text is in it.

    The key `protocols` exists where test was measured after every epoch, `calibration` where probabilities were kept,
    `errors` where a network has run, `leaks` where a test text has an exact or a near-duplicate in train.
    """
    errors = error_tables(comparison)
    protocols = [row for budget in comparison.budgets for row in protocol_accuracies(comparison, budget)]
    optional = {
        "protocols": [row.as_dict() for row in protocols],
        "calibration": [row.as_dict() for row in arm_calibrations(comparison, comparison.largest_budget)],
        "errors": errors.as_dict() if errors else None,
        "leaks": [row.as_dict() for row in differences_without_leaks(comparison)],
    }
    return {
        "format": FORMAT,
        "verdict": verdict(comparison),
        "arms": [_summary_dict(summary) for budget in comparison.budgets for summary in summaries(comparison, budget)],
        "differences": [asdict(difference) for difference in differences(comparison)],
        "gain": [row.as_dict() for row in gains(comparison)],
        "missing": list(comparison.missing),
    } | {name: value for name, value in optional.items() if value}


def differences(comparison: ComparisonResults) -> list[Difference]:
    """Estimate each network against random weights and against the best linear arm, the pretrained one first."""
    first, linear = pretrained_and_scratch(comparison)[0], best_linear(comparison)
    networks = sorted(network_arms(comparison), key=lambda arm: (arm != first, arm == SCRATCH))
    pairs = [(arm, SCRATCH) for arm in networks if arm != SCRATCH] + [(arm, linear) for arm in networks if linear]
    rows = []
    for budget in reversed(comparison.budgets):
        for arm, other in pairs:
            estimate = paired_difference(comparison, arm, other, budget)
            if estimate is not None:
                rows.append(Difference(arm, other, budget, estimate))
    return rows


def setting_rows(comparison: ComparisonResults) -> list[str]:
    """Describe the settings of each arm at the largest budget, and the candidates that validation selected from."""
    lines = []
    for summary in summaries(comparison, comparison.largest_budget):
        used = dict.fromkeys(_format_setting(run.setting) for run in summary.runs if run.setting)
        tried = dict.fromkeys(_format_setting(_without_metrics(row)) for run in summary.runs for row in run.tried)
        chosen = f", chosen on validation from {'; '.join(tried)}" if tried else ""
        if used:
            lines.append(f"{short_name(summary.arm)}: {' or '.join(used)}{chosen}")
    return lines


def _without_metrics(tried: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tried.items() if not name.startswith("valid_")}


def _format_setting(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} {format_value(value)}" for name, value in sorted(setting.items()))


def _summary_dict(summary: Summary) -> dict[str, Any]:
    return {
        "arm": summary.arm,
        "labels": summary.budget,
        "rows": max(run.rows for run in summary.runs),
        "seeds": [run.seed for run in summary.runs],
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
    """Format a JSON value, with strings unquoted and numbers of four significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
