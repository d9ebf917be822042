"""The linear model: its rows in comparisons whose runs are older than it, and its own table on auto.md."""

import statistics
from typing import Any

from .markdown import commands, load, percent, points, points_range, table

CANDIDATES = {
    "old arm": "earlier linear arm: TF-IDF of words, logistic regression, C chosen on 200 further labels",
    "union, LR": "scikit-learn: TF-IDF of words and characters, logistic regression, C = 10",
    "union, SVM": "scikit-learn: TF-IDF of words and characters, linear SVM, C = 1",
    "linear": "linear model",
    "linear, unlabelled": "linear model, with up to 3,000 unlabelled texts",
    "- naive Bayes": "linear model without naive Bayes",
    "- balance": "linear model without class weights",
    "- characters": "linear model without character n-grams",
    "- words": "linear model without word n-grams",
    "C 1 alone": "linear model with C = 1, not chosen by cross-validation",
}
"""The candidates of benchmarks/linear.py in the words of the page."""
SIZES = {"few": ("100", "5x"), "many": ("1000", "10x")}
"""The sizes of a sample: a number of rows, or of rows per label (`x`)."""


def label_curve(name: str) -> dict:
    """Return the results of a comparison over label budgets, with the linear model fitted on its rows later."""
    results, later = load(name, "results.json"), load("linear_arm.json")[name]
    linear = {arm["labels"]: arm for arm in later["arms"]}
    needed = {row["labels"]: row for row in later["needed"]}
    arms, gains = [], []
    for arm in results["arms"]:
        arms += [arm, linear[arm["labels"]]] if arm["arm"] == "tfidf" else [arm]
    for gain in results["gain"]:
        labels = gain["linear_labels"] | {"other": "linear", "needed": needed[gain["budget"]]}
        gains.append(gain | {"linear_labels": labels})
    return results | {"arms": arms, "gain": gains, "verdict": later["verdict"]}


def against_linear(name: str) -> list[str]:
    """The difference between the pretrained network and the linear model by number of labels, and its protocol."""
    record = load("linear_arm.json")
    rows = [
        [
            row["labels"] if row["labels"] == "all" else f"{row['labels']:,}",
            points(row["mean"]),
            points_range(row["low"], row["high"]),
        ]
        for row in record[name]["differences"]
        if row["arm"] == "pretrained"
    ]
    return [
        *table(["labels", "network, pretrained − linear model, points", "95 % interval"], rows),
        "",
        "The linear model is that of this version. It was fitted later, on a CPU, with the same label subsets and seeds. The linear arm of the original runs is TF-IDF + logistic regression, which the HTML report shows. "
        "The predictions of the original runs were not kept, so the intervals of this table and of the labels that the linear model needs treat the two arms as independent; paired intervals are usually narrower "
        f"(commit {record['about']['commit']}):",
        "",
        *commands(record["about"]["command"]),
    ]


def with_linear(part: dict, name: str) -> dict:
    """Return a part of starters.json with the rows of the linear model, and differences from it instead of TF-IDF."""
    later = load("linear_arm.json")["starters"][name]
    linear = {row["labels"]: row for row in later["arms"]}
    arms = []
    for row in part["arms"]:
        arms += [row, linear[row["labels"]]] if row["arm"] == "tfidf" else [row]
    others = [row for row in part["differences"] if row["other"] != "tfidf"]
    return part | {"arms": arms, "differences": later["differences"] + others}


def candidates() -> list[str]:
    """Accuracy, log-loss and time of the linear model, of ordinary recipes and without each of its parts."""
    record = load("linear.json")
    runs = record["runs"]
    cells = {size: [cell for cell in runs["linear"] if cell.split()[1] in names] for size, names in SIZES.items()}
    samples = sorted({len(runs[name][cell]) for name in CANDIDATES for size in SIZES for cell in cells[size]})
    rows = [
        [words, *(figure for size in SIZES for figure in _means(runs[name], cells[size]))]
        for name, words in CANDIDATES.items()
    ]
    return [
        "## The linear model",
        "",
        f"The linear model, ordinary recipes of scikit-learn, and the linear model without each of its parts. Samples of 100 and 1,000 training rows of {len(cells['few'])} datasets (clinc150: 5 and 10 rows per label) are "
        f"fitted, and up to 1,000 other training rows are predicted. No test file was read. Mean over datasets, with {' to '.join(map(str, dict.fromkeys((samples[0], samples[-1]))))} samples per dataset and size; CPU time of "
        "fitting one sample on a shared machine.",
        "",
        *table(
            ["classifier"]
            + [
                f"{what}, {size} labels"
                for size in ("100", "1,000")
                for what in ("accuracy", "log-loss", "CPU seconds")
            ],
            rows,
        ),
        "",
        *commands(record["about"]["command"]),
    ]


def _means(runs: dict[str, dict[str, Any]], cells: list[str]) -> tuple[str, str, str]:
    """Return the mean accuracy, log-loss and time over datasets, each the mean over its samples."""
    accuracy, loss, seconds = (
        statistics.mean(statistics.mean(run[key] for run in runs[cell].values()) for cell in cells)
        for key in ("accuracy", "log_loss", "cpu_seconds")
    )
    return percent(accuracy), f"{loss:.3f}", f"{seconds:.2f}"
