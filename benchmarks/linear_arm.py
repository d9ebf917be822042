"""The linear model on the rows of published comparisons of earlier versions, whose linear arm was TF-IDF + logistic regression.

    python benchmarks/linear_arm.py --data DATA --work runs/linear-arm

The script fits the arm `linear` of `headstart compare` on the rows of the arms of docs/results/cls-books, imdb and
starters.json (label budgets and seeds), on the CPU; an interrupted run continues. It records accuracies, differences and
sentences in docs/results/linear_arm.json, and draws docs/images/imdb-labels.png.

Those comparisons did not record predictions, so differences are not paired by text: their intervals are those of two
independent measurements, which are wider than paired ones.
"""

import argparse
import json
import math
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from starters import FOLD, FOLDS, Aloud, demo_data, fold_files, interval

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.report import figures
from headstart.report.gain import CURVE_STEPS, CurvePoint, _interpolate, _zero_crossing, isotonic
from headstart.report.intervals import Floats
from headstart.report.intervals import estimate as estimate_of
from headstart.report.load import load_comparison
from headstart.report.page import DESKTOP_WIDTH
from headstart.report.statistics import aligned, summarise
from headstart.report.summary import format_percent, format_point, format_point_interval, format_points
from headstart.report.tables import results_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
KEPT, PICTURE = RESULTS / "linear_arm.json", ROOT / "docs" / "images" / "imdb-labels.png"
LINEAR, NETWORKS = "linear", ("pretrained", "scratch")
BUDGETS = {"cls-books": (50, 100, 200, 500, None), "imdb": (100, 500, 1000, 5000, None)}
SETTINGS: dict[str, dict[str, Any]] = {"cls-books": {}, "imdb": {"labelled": {"valid_fraction": 0.04}}}
OLD_NAME = "TF-IDF + logistic regression"


def fit(files: dict[str, str], out: Path, settings: dict[str, Any], **others: Any) -> Path:
    """Fit the linear arm with every label budget and seed, or continue; returns the folder of the comparison."""
    if (out / "result.json").is_file():
        return out
    config = merge_config(FinetuneConfig, settings)
    request = CompareRequest(
        **files, out=out, arms=(LINEAR,), quote_texts=False, resume=(out / "run.json").is_file(), **others
    )
    run_compare(request, config, Aloud())
    return out


def label_curve(name: str, folder: Path) -> dict[str, Any]:
    """Return the linear arm of a label curve, the networks' differences to it, and the sentences of the report with it."""
    published = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))
    linear = {row["labels"]: row for row in results_json(load_comparison(folder))["arms"] if row["arm"] == LINEAR}
    differences, needed = [], {}
    for row in published["arms"]:
        if row["arm"] in NETWORKS:
            gap = difference(row["test_accuracy"], linear[row["labels"]]["test_accuracy"])
            differences.append({"arm": row["arm"], "other": LINEAR, "labels": row["labels"], **gap})
        if row["arm"] == "pretrained":
            needed[row["labels"]] = labels_needed(folder, row["test_accuracy"])
    return {
        "arms": list(linear.values()),
        "differences": differences,
        "needed": [{"labels": labels, **vars(point)} for labels, point in needed.items()],
        "verdict": sentences(published["verdict"], differences, linear, needed),
    }


def difference(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return the difference of two means with the interval of independent measurements."""
    mean, reach = one["mean"] - other["mean"], math.hypot(half(one), half(other))
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def half(estimate: dict[str, float]) -> float:
    """Return half the width of an interval."""
    return (estimate["high"] - estimate["low"]) / 2


def labels_needed(folder: Path, target: dict[str, float]) -> CurvePoint:
    """Return the number of labels that the linear arm needs for an accuracy, from its curve, as in a report."""
    comparison = load_comparison(folder)
    tables = aligned(comparison, [(LINEAR, budget) for budget in comparison.budgets])
    assert tables is not None
    curve_KSN, sizes = isotonic(np.stack(tables[0])), [comparison.rows_of(budget) for budget in comparison.budgets]
    log_sizes = np.log(sizes)
    grid = np.unique(np.concatenate([np.linspace(a, b, CURVE_STEPS + 1) for a, b in pairwise(log_sizes)]))
    leads = [difference(target, vars(_point(curve_KSN, log_sizes, log_size))) for log_size in grid]
    at, low, high = (_zero_crossing(grid, [lead[end] for lead in leads]) for end in ("mean", "low", "high"))
    return CurvePoint(at, low, high, first=sizes[0], last=sizes[-1])


def _point(curve_KSN: Floats, log_sizes: Floats, log_size: float) -> Any:
    return estimate_of(_interpolate(curve_KSN, log_sizes, log_size), bounds=(0.0, 1.0))


def sentences(
    published: Sequence[str], differences: list[dict[str, Any]], linear: dict[Any, Any], needed: dict[Any, CurvePoint]
) -> list[str]:
    """Return the sentences of a report with the linear model in place of the earlier arm."""
    gap = next(row for row in differences if (row["arm"], row["labels"]) == ("pretrained", "all"))
    assert gap["low"] > 0, "the first sentence requires a significant difference"
    accuracy = linear["all"]["test_accuracy"]["mean"]
    first = (
        f"The pretrained network is best: {format_percent(gap['mean'] + accuracy)} on test, "
        f"{format_points(gap['mean'], sign=False)} points above the linear model ({format_percent(accuracy)})."
    )
    result = [first]
    for sentence in published[1:]:
        before, name, _ = sentence.partition(OLD_NAME)
        if name:
            labels = int(before.split()[1].replace(",", ""))  # With 50 labels, ...
            point = needed[labels]
            sentence = f"{before}the linear model {format_point(point.at, point)}{format_point_interval(point)}."
        result.append(sentence)
    return result


def starter_rows(folder: Path, part: dict[str, Any]) -> dict[str, Any]:
    """Return the linear arm of a part of starters.json, and the networks' differences to it."""
    comparison = load_comparison(folder)
    arms = []
    for budget in dict.fromkeys(row["labels"] for row in part["arms"]):
        summary = summarise(comparison, LINEAR, budget)
        assert summary is not None
        accuracy = summary.accuracy
        arms.append(
            {"arm": LINEAR, "labels": budget, "mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high}
            | {"seeds": len(summary.runs), "seconds": round(summary.seconds, 1), "worst": min(summary.accuracies)}
        )
    return with_differences(arms, part)


def fold_rows(folders: list[Path], part: dict[str, Any]) -> dict[str, Any]:
    """Return the linear arm of the folds as one, like `starters.pooled`."""
    runs = [load_comparison(folder).runs[0] for folder in folders]
    accuracies = [run.test.accuracy for run in runs]
    seconds = round(sum(run.seconds for run in runs) / len(runs), 1)
    facts = {"arm": LINEAR, "labels": FOLD[0], "worst": min(accuracies), "seeds": len(runs), "seconds": seconds}
    return with_differences([facts | interval(accuracies)], part)


def with_differences(arms: list[dict[str, Any]], part: dict[str, Any]) -> dict[str, Any]:
    """Add the differences of the pretrained networks to the linear arm."""
    by_labels = {row["labels"]: row for row in arms}
    differences = [
        {"arm": row["arm"], "other": LINEAR, "labels": row["labels"], **difference(row, by_labels[row["labels"]])}
        for row in part["arms"]
        if row["arm"].startswith("pretrained")
    ]
    return {"arms": arms, "differences": differences}


def draw_labels(name: str, linear: list[dict[str, Any]]) -> bytes:
    """Draw accuracy by number of labels, as the report does, with the linear arm in place of the earlier one."""
    published = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))["arms"]
    rows = [row for row in published if row["arm"] != "tfidf"] + linear
    sizes = sorted({row["rows"] for row in rows})
    figure, axes = figures.new_figure(DESKTOP_WIDTH, "accuracy on test", "mean over seeds, band its 95 % interval")
    ends = []
    for arm in ("majority", LINEAR, "scratch", "pretrained"):
        of_arm = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["rows"])
        bands = [tuple(row["test_accuracy"][key] for key in ("low", "mean", "high")) for row in of_arm]
        if arm == "majority":
            bands = [(level, level, level) for _, level, _ in bands]
        figures.draw_line(axes, arm, [float(row["rows"]) for row in of_arm], bands, "o")
        ends.append((of_arm[-1]["test_accuracy"]["mean"], arm))
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] * 0.93, sizes[-1])
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(figures.NullLocator())
    axes.yaxis.set_major_locator(figures.round_ticks())
    axes.set_xlabel("labelled training texts", color=figures.INK)
    figures.label_line_ends(axes, ends)
    return figures.png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with cls-books/ and imdb/ in it")
    parser.add_argument("--work", type=Path, default=Path("runs/linear-arm"))
    options = parser.parse_args()
    books = {part: str(options.data / "cls-books" / f"{part}.jsonl") for part in ("train", "valid", "test")}
    films = {part: str(options.data / "imdb" / f"{part}.parquet") for part in ("train", "test")}
    curves = {}
    for name, files in (("cls-books", books), ("imdb", films | {"valid": None})):
        folder = fit(files, options.work / name, SETTINGS[name], label_budgets=BUDGETS[name], seeds=5)
        curves[name] = label_curve(name, folder)
    starters = json.loads((RESULTS / "starters.json").read_text(encoding="utf-8"))
    demo = fit(demo_data(options.work), options.work / "demo", {}, label_budgets=(200, 1000), seeds=5)
    folds = []
    for fold in range(FOLDS):
        rows = fold_files(options.data, options.work / "folds" / str(fold), fold)
        folds.append(fit(rows, options.work / "folds" / str(fold) / "compared", {}, seeds=1))
    parts = {part: starter_rows(demo, starters[part]) for part in ("demo", "ways")}
    parts["books"] = starter_rows(options.work / "cls-books", starters["books"])
    parts["folds"] = fold_rows(folds, starters["folds"])
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    about = {"command": "python benchmarks/linear_arm.py --data DATA", "commit": commit}
    KEPT.write_text(json.dumps({"about": about, **curves, "starters": parts}, indent=1, ensure_ascii=False) + "\n")
    PICTURE.write_bytes(draw_labels("imdb", curves["imdb"]["arms"]))


if __name__ == "__main__":
    main()
