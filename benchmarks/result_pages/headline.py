"""RESULTS.md: one row per topic, with a link to its page."""

from . import auto, corpus, cpu, distributed, gpu, intervals, pretraining, reviews, robustness, starters
from .markdown import load, percent, percent_range, points, points_range, table, times

INTRODUCTION = """# Results

Every figure comes from a record under `docs/results/`, written by the command on the linked page. This file and the pages are generated from the records
by `python benchmarks/results.py`, and a test fails if they differ.

- Seeds are paired: the arms of a seed share training rows, their order and the initial head.
- Settings and epochs are chosen on validation rows or by cross-validation. The test file is read once per run.
- Intervals are 95 % and include the variance of seeds and of test texts, unless the page states otherwise. For speeds, the range over rounds is shown.
- `DATA` in commands is a folder with the datasets, which are not part of the project.
"""


def accuracy() -> list[str]:
    """The accuracies, each with its interval and with those of the baselines; then differences."""
    header = ["data", "protocol", "accuracy", "95 % interval", "linear model", "random weights", "details"]
    return [
        "## Accuracy",
        "",
        "Test accuracy of the pretrained network (for `auto`, of the model that it chooses), of a linear model, and of the same network from random weights.",
        "",
        *table(header, [_suite(), *_reviews(), *_starters()]),
        "",
        *table(["paired difference", "protocol", "points", "95 % interval", "details"], [*_course(), _objective()]),
    ]


def _suite() -> list[str]:
    cells = auto.with_network()
    better = sum(cell["auto_less_linear"]["low"] > 0 for cell in cells)
    worse = sum(cell["auto_less_linear"]["high"] < 0 for cell in cells)
    seeds = [cell["seeds"] for cell in cells]
    return [
        "`headstart auto`, 8 datasets",
        f"100 to 1,500 labels, {min(seeds)} to {max(seeds)} seeds, mean of {len(cells)} rows",
        percent(auto.mean_accuracy(cells, "auto")),
        f"{better} of {len(cells)} differences above 0, {worse} below",
        percent(auto.mean_accuracy(cells, "linear")),
        "–",
        "[auto](docs/results/auto.md)",
    ]


def _reviews() -> list[list[str]]:
    french, english = load("recipe.json")["cls_books"]["minutes"], load("imdb", "about.json")["pretraining"]["minutes"]
    cases: list[tuple[str, float, int | str, str, str]] = [
        ("cls-books", french, 50, "French book reviews, 50 labels", "french"),
        ("cls-books", french, "all", "French book reviews, 1,600 labels", "french"),
        ("imdb", english, 100, "English film reviews, 100 labels", "english"),
        ("imdb", english, "all", "English film reviews, 24,000 labels", "english"),
    ]
    rows = []
    for folder, minutes, labels, words, page in cases:
        (ours, interval), (linear, _), (scratch, _) = (
            reviews.headline(folder, arm, labels) for arm in ("pretrained", "linear", "scratch")
        )
        protocol, link = f"pretrained {minutes:g} minutes on one H200, 5 seeds", f"docs/results/reviews-{page}.md"
        rows.append([words, protocol, ours, interval, linear, scratch, f"[{page.capitalize()} reviews]({link})"])
    return rows


def _starters() -> list[list[str]]:
    cases: list[tuple[str, int | str, str]] = [
        ("demo", 200, "`starter:en-reviews`, film review sentences, 200 labels"),
        ("books", "all", "`starter:fr`, French book reviews, 1,600 labels"),
    ]
    rows = []
    for part, labels, words in cases:
        arms = starters.headline(part, labels)
        ours, scratch = arms["pretrained"], arms.get("scratch")
        rows.append(
            [
                words,
                f"fine-tuned on a CPU, {ours['seeds']} seeds",
                percent(ours["mean"]),
                percent_range(ours["low"], ours["high"]),
                percent(arms["linear"]["mean"]),
                percent(scratch["mean"]) if scratch else "–",
                "[starters](docs/results/starters.md)",
            ]
        )
    return rows


def _course() -> list[list[str]]:
    estimates = {(row["arm"], row["other"]): row["estimate"] for row in load("course", "results.json")["differences"]}
    rows = []
    for other, words in (("scratch", "random weights"), ("linear", "linear model")):
        estimate = estimates["pretrained", other]
        verdict = ", no clear winner" if estimate["low"] < 0 < estimate["high"] else ""
        rows.append(
            [
                f"course experiment, pretrained − {words}",
                "the course's small network, 1,600 labels, 5 seeds",
                f"{points(estimate['mean'])}{verdict}",
                points_range(estimate["low"], estimate["high"]),
                "[course](docs/results/course.md)",
            ]
        )
    return rows


def _objective() -> list[str]:
    arms = pretraining.arms()
    figure, _, interval = pretraining.against(arms["hybrid"], arms["masked"]).partition(" (")
    return [
        "objective of pretraining, hybrid − masked",
        "equal size and tokens, five-fold cross-validation",
        figure,
        interval.rstrip(")"),
        "[pretraining](docs/results/pretraining.md)",
    ]


def reliability() -> list[str]:
    """Coverage of the intervals, and robustness."""
    covered, counts = intervals.coverages(), robustness.totals()
    link = "[robustness](docs/results/robustness.md)"
    rows = [
        [
            "coverage of the 95 % intervals",
            f"{len(covered)} simulated scenarios with a known true difference",
            f"{percent(min(covered))} in the worst scenario, {percent(sum(covered) / len(covered))} on average",
            "[intervals](docs/results/intervals.md)",
        ],
        [
            "`kill -9` and `--resume`",
            f"{counts['kills']:,} kills at random moments and at disk operations",
            f"{counts['lost']} runs lost, {counts['different']} with different bytes",
            link,
        ],
        [
            "damaged files",
            f"{counts['damaged']:,} truncated files and flipped bits",
            f"{counts['refused']:,} refused by name",
            link,
        ],
        [
            "mutated files and HTTP requests",
            f"{counts['mutations']:,} mutations",
            f"{counts['faults']} crashes, hangs or responses with status 500",
            link,
        ],
    ]
    return ["## Reliability", "", *table(["what", "protocol", "result", "details"], rows)]


def speed() -> list[str]:
    """Speed on a GPU, on CPU cores, and of the server."""
    rows = [*_gpu(), *_cpu(), _serving(), _corpus(), _distributed()]
    header = ["what", "compared with", "speed", "range over rounds", "memory", "details"]
    return ["## Speed", "", *table(header, rows)]


def _gpu() -> list[list[str]]:
    cases = {
        "classic": ("pretraining step, the course's network, H200", "transformers' GPT-2 of that size, compiled"),
        "gpt2": ("pretraining step, GPT-2 small, H200", "transformers' GPT-2, compiled"),
        "modern": ("pretraining step, `modern`, H200", "plain script, compiled"),
    }
    rows = []
    for name, words in cases.items():
        ratio, ours, theirs = gpu.speed_up(name)
        memory = f"{ours:.1f} instead of {theirs:.1f} GiB"
        rows.append([*words, f"{times(ratio)} times", "medians", memory, "[GPU](docs/results/gpu.md)"])
    return rows


def _cpu() -> list[list[str]]:
    record, link = load("cpu.json"), "[CPU](docs/results/cpu.md)"
    ratio, memory = record["step_2"]["ratios"]["trainer"], record["memory"]["mib"]
    (low, high) = cpu.int8_range("reviews")
    cold = [row["cpu"] for row in record["cold"]["rows"] if row["who"] == "transformers"]
    return [
        [
            "pretraining step, the course's network, 2 CPU threads",
            "transformers' `Trainer`",
            f"{times(ratio['cpu'])} times (CPU time)",
            f"{times(ratio['cpu_min'])} to {times(ratio['cpu_max'])}",
            f"{memory['headstart']['peak']:,} instead of {memory['trainer']['peak']:,} MiB",
            link,
        ],
        [
            "prediction, int8 export, reviews",
            "the faster transformers pipeline",
            f"{times(low)} to {times(high)} times",
            "two networks, 1 and 2 threads",
            "–",
            link,
        ],
        [
            "first prediction of a new process",
            "script with a transformers pipeline",
            f"{times(min(cold))} times (CPU time)",
            f"{times(min(cold))} to {times(max(cold))}",
            "–",
            link,
        ],
    ]


def _serving() -> list[str]:
    row = next(row for row in load("serving.json")["rows"] if (row["clients"], row["server"]) == (32, "plain FastAPI"))
    rates = f"FastAPI {min(row['rates']):.0f} to {max(row['rates']):.0f} texts/s"
    link = "[serving](docs/results/serving.md)"
    return [
        "`headstart serve`, 32 clients",
        "plain FastAPI",
        f"{times(row['headstart_ratio'])} times",
        rates,
        "–",
        link,
    ]


def _corpus() -> list[str]:
    ratios = load("corpus.json")["speed"]["times"]["fast"]
    return [
        "`headstart prepare`, extra `fast`, 62 MB of reviews",
        "datasets + tokenizers, same ids",
        f"{times(ratios['cpu'])} times (CPU time)",
        corpus.ratio_range(ratios, "cpu"),
        "–",
        "[corpus](docs/results/corpus.md)",
    ]


def _distributed() -> list[str]:
    return [
        "DDP, 2 processes on 2 CPU cores",
        "no gradient synchronization",
        f"{distributed.communication(2, 'ddp')} of the CPU time is communication",
        "medians",
        "FSDP: half per process",
        "[distributed](docs/results/distributed.md)",
    ]


def not_measured() -> list[str]:
    """What the figures do not cover."""
    return [
        "## Not measured",
        "",
        "Several GPUs or machines, Apple's GPUs, and pretraining on text other than French and English.",
    ]
