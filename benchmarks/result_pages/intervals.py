"""intervals.md: coverage of the confidence intervals of a report, on simulated tables and on real trainings."""

from .markdown import commands, load, table

METHODS = {
    "headstart": "Headstart: seeds and texts, a t quantile for each",
    "satterthwaite": "seeds and texts, one t quantile with Satterthwaite's degrees of freedom",
    "seeds t": "t interval over seeds only",
    "seeds bootstrap": "bootstrap over seeds only",
    "texts": "over test texts only",
}
TRAININGS = {
    "coin": "test labels are random: the true difference is exactly 0",
    "noise": "pretrained on the same texts with shuffled letters: nothing to learn",
    "must": "word co-occurrence can be learned from the unlabelled texts only",
}


def _range(fractions: list[float]) -> str:
    return f"{min(fractions):.3f} to {max(fractions):.3f}"


def percent_range(fractions: list[float]) -> str:
    """Format the lowest and the highest fraction in per cent; one number if they are equal."""
    low, high = (f"{100 * fraction:.1f}" for fraction in (min(fractions), max(fractions)))
    return low if low == high else f"{low} to {high}"


def _groups(rows: list[dict]) -> list[tuple[int, int, list[dict]]]:
    """Group the scenarios by their numbers of seeds and of texts."""
    keys = sorted({(row["seeds"], row["texts"]) for row in rows})
    return [
        (seeds, texts, [row for row in rows if (row["seeds"], row["texts"]) == (seeds, texts)]) for seeds, texts in keys
    ]


def coverages() -> list[float]:
    """Return the coverage of the accuracy interval in every scenario."""
    return [row["methods"]["headstart"]["coverage"] for row in load("coverage.json")["simulation"]["settings"]]


def accuracy() -> list[str]:
    """Coverage of the interval of a difference of accuracies, and of other methods."""
    simulation = load("coverage.json")["simulation"]
    rows, ours = simulation["settings"], coverages()
    by_size = []
    for seeds, texts, group in _groups(rows):
        false = max(row["methods"]["headstart"]["claims"] for row in group if row["difference"] == 0)
        covered = _range([row["methods"]["headstart"]["coverage"] for row in group])
        by_size.append([seeds, f"{texts:,}", covered, f"{false:.3f}", power(group, 1.0), power(group, 3.0)])
    return [
        "## Differences of accuracy",
        "",
        f"{simulation['tables']:,} result tables were simulated for each of {len(rows)} scenarios with a known true difference: 3, 5 and 10 seeds; 200 to 25,000 test texts; true differences of 0, 1 and 3 points; "
        "standard deviations over seeds of 0, 1 and 3 points; several distributions of text difficulty (Beta); arms for which the same or different texts are difficult; one arm whose predictions do not depend on the seed; "
        f"two arms with almost identical predictions; macro-F1 with a rare label. The coverage of the 95 % interval is {100 * min(ours):.1f} % in the worst scenario and {100 * sum(ours) / len(ours):.1f} % on average "
        f"(the error of a measured coverage is up to {100 * simulation['tolerance']:.1f} points).",
        "",
        *table(
            [
                "seeds",
                "test texts",
                "coverage, worst to best scenario",
                "false positive rate, at most",
                "power, 1 point",
                "power, 3 points",
            ],
            by_size,
        ),
        "",
        "A difference is detected if the interval excludes 0. Power is for networks with a standard deviation of 1 point over seeds. With few test texts the power is low for any number of seeds: 200 texts are not enough to detect 3 points.",
        "",
        *table(
            [
                "interval",
                "coverage, worst scenario",
                "coverage, arms with almost identical predictions",
                "scenarios with too low coverage",
                "mean width, points",
            ],
            (_method_row(name, words, simulation) for name, words in METHODS.items()),
        ),
        "",
        *_labels(simulation),
    ]


def _method_row(name: str, words: str, simulation: dict) -> list[str]:
    rows = simulation["settings"]
    measured = [row["methods"][name] for row in rows]
    twins, others = (
        min(row["methods"][name]["coverage"] for row in rows if (row["kind"] == "twins") == alike)
        for alike in (True, False)
    )
    short = sum(row["coverage"] < 0.95 - simulation["tolerance"] for row in measured)
    width = sum(row["width"] for row in measured) / len(measured)
    return [words, f"{others:.3f}", f"{twins:.3f}", f"{short} of {len(rows)}", f"{width:.1f}"]


def _labels(simulation: dict) -> list[str]:
    rows = simulation["labels"]
    covered, ended = ([row[key] for row in rows] for key in ("coverage", "has_upper_end"))
    return [
        f"The number of labels that pretraining saves is interpolated on the label curve with the same interval. In {len(rows)} scenarios with {simulation['labels_tables']} tables each (3, 5 and 10 seeds, 200 and 2,000 texts, "
        f"a curve that gains 6 points for four times the labels), the coverage is {100 * min(covered):.1f} to {100 * max(covered):.1f} %, and the interval has an upper end "
        f'(instead of "more than") in {100 * min(ended):.0f} to {100 * max(ended):.0f} % of the tables.',
    ]


def power(rows: list[dict], difference: float) -> str:
    """Format how often a difference was detected between networks with a standard deviation of 1 point over seeds."""
    scenario = {"kind": "networks", "difference": difference, "luck": 1.0, "hardness": 1.0, "shared": 0.5}
    matching = [row for row in rows if all(row[name] == value for name, value in scenario.items())]
    return f"{matching[0]['methods']['headstart']['right_claims']:.2f}" if matching else "–"


def epochs() -> list[str]:
    """Coverage of the number of epochs that pretraining saves."""
    record = load("coverage.json")["epochs"]
    rows, ours = record["settings"], [row["methods"]["headstart"] for row in record["settings"]]
    other = [row["methods"]["epoch by epoch"]["coverage"] for row in rows]
    short = sum(coverage < 0.95 - record["tolerance"] for coverage in other)
    shown = []
    for seeds, texts, group in _groups(rows):
        measured = [row["methods"]["headstart"] for row in group]
        none = max(row["methods"]["headstart"]["too_many"] for row in group if row["truth"] == 1)
        never = max(row["methods"]["headstart"]["too_few"] for row in group if row["truth"] is None)
        ends = [row["methods"]["headstart"]["has_upper_end"] for row in group if row["truth"] is not None]
        shown.append(
            [
                seeds,
                f"{texts:,}",
                _range([row["coverage"] for row in measured]),
                f"{none:.3f}",
                f"{never:.3f}",
                f"{100 * min(ends):.0f} to {100 * max(ends):.0f} %",
                f"{sum(row['width'] for row in measured) / len(measured):.1f}",
            ]
        )
    return [
        "## Epochs saved",
        "",
        f"The number of epochs that pretraining saves is estimated from the validation accuracy after every epoch. {record['tables']:,} tables were simulated for each of {len(rows)} scenarios: "
        "the other arm reaches the accuracy in the first epoch, after two, three or five epochs (and then improves or declines), or stays slightly or one point below it; standard deviations over seeds of 1 and 3 points, "
        "of which 30 and 80 % are independent between epochs; test accuracies slightly or much higher than after the first epochs, with the same or lower agreement between seeds. "
        f"The coverage of the 95 % interval is {100 * min(row['coverage'] for row in ours):.1f} to {100 * max(row['coverage'] for row in ours):.1f} %, so the interval is conservative.",
        "",
        *table(
            [
                "seeds",
                "validation texts",
                "coverage, worst to best scenario",
                "false claims that epochs are saved, at most",
                "false claims that the other arm reaches the accuracy, at most",
                "intervals with an upper end, if the other arm reaches it",
                "mean width, epochs",
            ],
            shown,
        ),
        "",
        'Eight or twelve epochs were simulated; for the width, "more than" counts as one more epoch.',
        "",
        f"What did not work: an earlier version used the first epoch at which the accuracy was significantly reached. Its coverage is {100 * min(other):.1f} % in the worst scenario and too low in {short} scenarios, "
        "because the maximum over many epochs is biased upwards, and because the variance over texts on test can be lower than after an epoch.",
    ]


def calibration() -> list[str]:
    """Coverage of the interval of the calibration error."""
    record = load("coverage.json")["calibration"]
    rows, ours = record["settings"], [row["methods"]["headstart"] for row in record["settings"]]
    resampled, plain = (
        [row["methods"][name]["coverage"] for row in rows if row["truth"] == 0]
        for name in ("resampled", "as for accuracy")
    )
    shown = []
    for seeds, texts, group in _groups(rows):
        measured = [row["methods"]["headstart"] for row in group]
        right = [row for row in group if row["truth"] == 0]
        even = next(row["mean"] for row in right if (row["sure"], row["alike"]) == ("even", 0.7))
        shown.append(
            [
                seeds,
                f"{texts:,}",
                _range([row["coverage"] for row in measured]),
                f"{max(row['methods']['headstart']['claims'] for row in right):.3f}",
                f"{even:.1f}",
                f"{sum(row['width'] for row in measured) / len(measured):.1f}",
            ]
        )
    return [
        "## Calibration error",
        "",
        f"{record['tables']:,} tables were simulated for each of {len(rows)} scenarios: uniform or mostly high confidence; two and five classes; probabilities that are calibrated, slightly or strongly overconfident, "
        "partly over- and partly underconfident, or wrong in one bin only; with and without differences between runs. "
        f"The coverage of the 95 % interval is {100 * min(row['coverage'] for row in ours):.1f} to {100 * max(row['coverage'] for row in ours):.1f} %: conservative as well.",
        "",
        *table(
            [
                "seeds",
                "test texts",
                "coverage, worst to best scenario",
                "false claims of an error, at most",
                "measured error if the true error is 0 (two classes, uniform confidence), points",
                "mean width, points",
            ],
            shown,
        ),
        "",
        "What did not work: the measured error is biased upwards, so if the true error is 0, a bootstrap over seeds and texts (an earlier version) "
        f"has a coverage of {percent_range(resampled)} % ({record['resampled_tables']} tables), and the interval for accuracies one of {percent_range(plain)} %.",
    ]


def trainings() -> list[str]:
    """What a report concludes from real trainings whose truth is known."""
    record = load("coverage.json")["trainings"]
    rows = [
        [TRAININGS[row["kind"]], *(row[key] for key in ("seeds", "gain", "loss", "neither"))]
        for row in record["counts"]
    ]
    return [
        "## Real trainings",
        "",
        f"In each scenario a tiny network was pretrained {record['each']} times on generated texts and compared with random weights (12 labels, 300 test texts). The table counts the conclusions of the report about pretraining.",
        "",
        *table(["scenario", "seeds", "gain", "loss", "no clear difference"], rows),
        "",
        "About one, two, three and ten minutes of one CPU core; the first three commands simulate the same tables every time:",
        "",
        *commands(
            *(
                f"python benchmarks/coverage.py{option}"
                for option in ("", " --epochs", " --calibration", " --trainings")
            )
        ),
    ]
