"""auto.md: accuracy of `headstart auto` on tables of many kinds, and the choice of its fine-tuning settings."""

import re
import statistics
from collections import Counter

from .markdown import commands, difference, exists, load, percent, table

ARMS = {"linear": "linear model", "pretrained": "network", "blend": "blend", "auto": "`auto`"}
TOPICS = ("agnews", "complaints", "trec6", "tweet-emotion", "cr")
"""The English datasets that are neither reviews nor intents."""
WORDS = {
    "the preset until then: rate": "previous default: learning rate",
    "rate 3e-4, 10 epochs (also below)": "learning rate 3e-4, 10 epochs (reference for the rows below)",
    "the same": "the first row",
    "the head at": "head at",
    "the head trained first": "head trained first",
    "times the rate": "times the learning rate",
    "in place of": "instead of",
    "or more": "at least",
    "batches of 8": "batch size 8",
}
"""Words of the record, and those of the page."""


def with_network() -> list[dict]:
    """Return the cells of the suite in which `auto` had a network."""
    return [cell for cell in load("suite.json")["cells"] if "blend" in cell["accuracy"]]


def mean_accuracy(cells: list[dict], arm: str) -> float:
    """Return the mean accuracy of an arm over cells."""
    return statistics.mean(cell["accuracy"][arm] for cell in cells)


def _means(cells: list[dict]) -> str:
    return ", ".join(f"{name} {percent(mean_accuracy(cells, arm))}" for arm, name in ARMS.items())


def accuracy() -> list[str]:
    """The accuracy of every arm on every dataset."""
    record = load("suite.json")
    cells = record["cells"]
    rows = []
    for cell in cells:
        figures = (
            f"{100 * cell['accuracy'][arm]:.1f}" if arm in cell["accuracy"] else "–" for arm in ("majority", *ARMS)
        )
        gap = difference(cell["auto_less_linear"]) if "blend" in cell["accuracy"] else "–"
        rows.append([cell["set"], f"{cell['labels']:,}", str(cell["seeds"]), *figures, gap])
    chosen = sum((Counter(cell["starters"]) for cell in cells), Counter())
    folds = " or ".join(str(count) for count in sorted({count for cell in cells for count in cell["folds"]}))
    worst = min(cells, key=lambda cell: cell["accuracy"]["auto"] - max(cell["accuracy"].values()))
    behind = 100 * (max(worst["accuracy"].values()) - worst["accuracy"]["auto"])
    return [
        "## Accuracy on ten datasets",
        "",
        "Test accuracy in per cent, mean over seeds. For each seed, the training rows (column *labels*) are sampled from the training part of the dataset, and up to 1,500 rows "
        "of its test part are predicted once. No other text is used: a starter is not pretrained further. `auto` chooses the starter, by a linear probe if several fit "
        f"({', '.join(f'`{name}` {count} runs' for name, count in chosen.most_common())}), and fine-tunes it with the default settings. No starter "
        "covers German or Chinese, so `auto` uses the linear model alone there. Cross-validation on the training rows, with "
        f"{folds} folds where there is a network, fits the weight of the blend and chooses the arm that `auto` returns. "
        "The last column is the paired difference in points with its 95 % interval.",
        "",
        *table(
            [
                "dataset",
                "labels",
                "seeds",
                "majority class",
                *ARMS.values(),
                "`auto` − linear model, points (95 %)",
            ],
            rows,
        ),
        "",
        f"- Mean of the {len(with_network())} rows with a network: {_means(with_network())}.",
        f"- Mean of the ten rows of {', '.join(TOPICS[:-1])} and {TOPICS[-1]}: {_means([cell for cell in cells if cell['set'] in TOPICS])}.",
        f"- The largest gap between `auto` and the best arm is {behind:.1f} points ({worst['set']}, {worst['labels']:,} labels).",
        *_blend_of_few_labels(cells),
        "",
        f"One {record['gpu']}, torch {record['torch']}, commit {', '.join(record['commits'])}, {record['date']}; {_named(record['on_cpu'])} on a CPU with one thread, torch 2.13.0:",
        "",
        *commands(
            "python benchmarks/suite.py tables --data DATA --out tables",
            "python benchmarks/suite.py run tables --out runs.json --jobs 12",
            "python benchmarks/suite.py run tables --out runs.json --sets clinc150 --minutes 300 --settings '{\"runtime.threads\": 1}'  # on the CPU",
        ),
    ]


def _named(runs: list[list]) -> str:
    """Return the names of single runs."""
    return " and ".join(f"{name} with {labels:,} labels, seed {seed}," for name, labels, seed in runs)


def _blend_of_few_labels(cells: list[dict]) -> list[str]:
    """State where the blend is clearly worse than the network, if it is anywhere."""
    behind = [
        f"{cell['set']} with {cell['labels']:,} labels ({100 * (cell['accuracy']['pretrained'] - cell['accuracy']['blend']):.1f})"
        for cell in cells
        if "blend" in cell["accuracy"] and cell["accuracy"]["pretrained"] - cell["accuracy"]["blend"] > 0.01
    ]
    return (
        [f"- The blend is more than one point less accurate than the network on {', '.join(behind)}."] if behind else []
    )


def blend_weight() -> list[str]:
    """The rules for the weight of a blend and for the choice of an arm."""
    record = load("blend_weight.json")
    names = {"network": "network alone", "linear": "linear model alone"}
    rows = [
        [
            names.get(rule, rule),
            percent(row["accuracy"]),
            f"{100 * row['worst_gap']:+.1f}",
            f"{row['cells_one_point_worse']} of {record['cells']}",
            f"{100 * row['gap_where_the_network_leads_by_five']:+.1f}",
        ]
        for rule, row in record["rules"].items()
    ]
    strong = record["rules"]["network"]["cells_where_the_network_leads_by_five"]
    return [
        "## The weight of the blend",
        "",
        f"Rules for the weight of a blend, compared on {record['cells']} cells of {', '.join(record['datasets'])}: 8 per label, 50, 100 and 200 training rows (clinc150: 5 per label), "
        "three starters, two strengths of regularization. A logistic regression on frozen features stands for the network, because it takes seconds. Each rule sees the "
        f"cross-validation of {record['samples']} samples per cell, and up to 1,000 other training rows are predicted. No test file was read. The last three rows choose among the linear "
        "model, the network and the blend of the row above them. The gaps are to the better of network and linear model, in points; the last column is the difference to the network, where "
        f"it leads the linear model by 5 points or more ({strong} cells).",
        "",
        *table(["rule", "accuracy", "largest gap", "cells with a gap above 1 point", "strong networks"], rows),
        "",
        "`auto` and `compare` use the posterior mean, and `auto` returns the blend unless another arm is better by two standard errors.",
        "",
        *commands("python benchmarks/blend_weight.py --data DATA --work FOLDER --out docs/results/blend_weight.json"),
    ]


def two_cores() -> list[str]:
    """`headstart auto` within minutes of two cores, every sample; nothing if it was not measured."""
    if not exists("auto_cpu.json"):
        return []
    record = load("auto_cpu.json")
    about, runs = record["about"], record["runs"]
    rows = [
        [
            run["set"],
            run["seed"],
            f"{run['labels']:,} of {run['rows']:,}",
            *(percent(run["scores"][arm]["test"]) if arm in run["scores"] else "–" for arm in ("majority", *ARMS)[:-1]),
            ARMS.get(run["winner"], "majority class"),
            f"{run['seconds'] / 60:.1f} of {run['minutes']:g}",
        ]
        for run in runs
    ]
    threads = " or ".join(str(count) for count in sorted({run["threads"] for run in runs}))
    return [
        f"## {about['cores']} CPU cores",
        "",
        "Tables sampled from training parts. The column *labels* has the number of rows with a label; the other rows are unlabelled text. The test file is read once per sample. *Minutes* is the time from "
        "start to exit, and the value of `--minutes`.",
        "",
        *table(
            ["dataset", "sample", "labels", "majority class", *list(ARMS.values())[:-1], "winner", "minutes"],
            rows,
        ),
        "",
        f"{about['cores']} cores, {threads} threads, load average before a run at most {max(run['load'][0] for run in runs):.1f}, Python {about['python']}, commit {about['commit']}:",
        "",
        *commands(about["command"]),
    ]


def _settings(words: str) -> str:
    """Return the settings of a row of the record in the words of the page."""
    for record, page in WORDS.items():
        words = words.replace(record, page)
    words = re.sub(r"(\d+ steps(?: per label)?) at least", r"at least \1", words)
    return re.sub(r"(?<!learning )rate (?=\d)", "learning rate ", words)


def recipe() -> list[str]:
    """The search for the default settings of fine-tuning, and a check where the old ones were chosen."""
    record = load("finetune_recipe.json")
    lines = [
        "## Choice of the fine-tuning settings",
        "",
        "Mean accuracy over samples of training rows (8 per label, 100 and 1,000; clinc150: 5 and 10 per label), evaluated on other training rows. No test file was read. "
        "*Reviews* are imdb and cls-books, *intents* is clinc150, *other* is agnews, trec6, complaints, tweet-emotion and cr; in the first round *all* also includes the German and "
        "Chinese datasets. The accuracy of a single sample varies by 2 to 3 points.",
    ]
    groups = ("all", "reviews", "other", "intents")
    for number, part in enumerate(record["rounds"], start=1):
        lines += [
            "",
            *table(
                [f"round {number}: {part['draws']} samples, each completed by every setting", *groups],
                ([_settings(row["recipe"]), *(f"{row[group]:.3f}" for group in groups)] for row in part["rows"]),
            ),
        ]
    lines += [
        "",
        "Chosen: learning rate 3e-4 (scaled by 256 / width for widths above 256), 10 epochs, 5 times the learning rate for the head, at least 300 steps and at least 8 steps per label. Training the head "
        "first on frozen features, label smoothing, other dropout rates, other layer decays and smaller batches did not help.",
        "",
        "The new settings were then compared with the old ones on two datasets with all labels. Test accuracy, mean over seeds:",
        "",
    ]
    rows = []
    for name, labels in (("cls-books", 1600), ("imdb", 24000)):
        tests = [
            [check["test"] for check in record["checks"] if (check["set"], check["recipe"]) == (name, settings)]
            for settings in ("before", "now")
        ]
        shown = (f"{percent(statistics.mean(values))} ({len(values)} seeds)" for values in tests)
        rows.append([f"{name}, {labels:,} labels", *shown])
    return [
        *lines,
        *table(["dataset", "old settings", "new settings"], rows),
        "",
        f"One {record['gpu']}, torch {record['torch']}, {record['date']}. The search itself used an earlier script, which sampled rows in the same way and evaluated the last weights "
        "without calibration:",
        "",
        *commands("python benchmarks/recipes.py --data DATA --recipes recipes.json --out runs.json --jobs 7"),
    ]
