"""starters.md (of results): the starters that come with the package, on labelled text."""

import statistics
from collections.abc import Iterable

from .linear import with_linear
from .markdown import NAMES, commands, exists, load, percent, percent_range, points, points_range, table

PARTS = {
    "demo": (
        "Sentences of English film reviews",
        "The data of `headstart demo`, fine-tuned from `starter:en-reviews`.",
        "python benchmarks/starters.py demo",
    ),
    "books": (
        "French book reviews",
        "cls-books, fine-tuned from `starter:fr`.",
        "python benchmarks/starters.py books --data DATA",
    ),
    "ways": (
        "bf16 and int8",
        "The data of `headstart demo`, fine-tuned from pretrained networks that fit within the same number of bytes, one stored in bf16 and one in int8.",
        "python benchmarks/starters.py ways --way FOLDER ...",
    ),
    "folds": (
        "Choice of the French starter",
        "cls-books without its test part, five folds with three seeds each. The intervals are over folds, which share most of their evaluation rows, so they are somewhat too narrow. "
        "`fr-wide` is the previous `starter:fr` (width 384, 8,192 entries, 8,000 steps), `fr-taught` the present one (width 320, 16,384 entries, 8,000 steps with a teacher, 5 minutes on an H200), "
        "and `fr-plain` the same network without a teacher (14,587 steps, 3 minutes).",
        "python benchmarks/starters.py folds --data DATA --way FOLDER ...",
    ),
}


LABELS = {("clinc150", "100"): "5 per class", ("clinc150", "1000"): "10 per class"}


def models() -> list[str]:
    """The starters themselves; nothing if they were not measured."""
    if not exists("starters.json"):
        return []
    rows = [
        [
            f"`{starter['name']}`",
            f"{starter['bytes']:,}",
            f"{starter['parameters']:,}",
            f"{starter['tokens_seen']:,}",
            f"{starter['held_out']['bits_per_byte']:.3f} ({starter['held_out']['tokens']:,} tokens)",
            starter["environment"].get("gpu") or "no GPU",
        ]
        for starter in load("starters.json")["about"]
    ]
    return [
        "## Models",
        "",
        *table(["starter", "bytes", "parameters", "training tokens", "held-out bits per byte", "trained on"], rows),
        "",
        "The cards in `starters/src/headstart_starters/` describe the text, the held-out part and the limits; [docs/starters.md](../starters.md) has all commands. Pretraining:",
        "",
        *commands(*(starter["command"] for starter in load("starters.json")["about"])),
    ]


def english() -> list[str]:
    """The English starters on seven datasets, and the linear probe that chooses among them; nothing if not measured."""
    if not exists("starter_search.json"):
        return []
    record = load("starter_search.json")
    accuracy = {(run["set"], run["size"], run["backbone"]): run["accuracy"] for run in record["runs"]}
    names = list(dict.fromkeys(run["backbone"] for run in sorted(record["runs"], key=lambda run: run["backbone"])))
    shipped = [name for name in names if name in record["probes"][0]["log_loss"]]
    rows, hits = [], 0
    for probe in record["probes"]:
        own = {name: accuracy[probe["set"], probe["size"], name] for name in names}
        first = min(probe["log_loss"], key=probe["log_loss"].get)
        hits += own[first] == max(own[name] for name in shipped)
        labels = LABELS.get((probe["set"], probe["size"]), f"{int(probe['size']):,}")
        losses = ", ".join(f"{name} {probe['log_loss'][name]:.3f}" for name in shipped)
        rows.append([probe["set"], labels, percent(probe["linear"]), *(percent(own[name]) for name in names), losses])
    for size in ("100", "1000"):
        chosen = [probe for probe in record["probes"] if probe["size"] == size]
        means = [_mean(accuracy[probe["set"], size, name] for probe in chosen) for name in names]
        linear = _mean(probe["linear"] for probe in chosen)
        rows.append(["mean", f"{int(size):,}", percent(linear), *(percent(mean) for mean in means), ""])
    return [
        "## The English starters",
        "",
        f"Accuracy of networks that are fine-tuned from each starter with the default settings on a sample of training rows and evaluated on {record['evaluated_rows']:,} other training rows, and of the "
        "linear model on the same rows. No test file was read, and no text of these datasets but imdb is in the pretraining text. One sample per row, so single accuracies vary by 2 to 3 points. "
        "The contrastive stage (600 steps, `benchmarks/contrastive.py`) did not change the mean clearly and was left out.",
        "",
        "The last column is the log-loss of the linear probe by which `headstart auto` chooses: cross-validated on at most 200 rows of the sample, with frozen features of the first 128 tokens. "
        f"The starter with the lowest log-loss has the highest accuracy of the three in {hits} of {len(record['probes'])} rows.",
        "",
        *table(
            [
                "dataset",
                "labels",
                "linear model",
                *(f"`{name}`" if name in shipped else name for name in names),
                "log-loss of the probe",
            ],
            rows,
        ),
        "",
        f"Fine-tuning: commit {record['commit']}, one {record['gpu']}, torch {record['torch']}, {record['date']}; probes and linear models on a CPU:",
        "",
        *commands(
            "python benchmarks/recipes.py --data DATA --backbone en=runs/en --backbone en-large=runs/en-large ... --sizes 100 1000 --draws 1 --out runs.json",
            "python benchmarks/starter_probes.py --data DATA --backbone en=starter:en --backbone en-large=starter:en-large ... --out probes.json",
        ),
    ]


def general() -> list[str]:
    """The general English starters and the starter of film reviews on test files; nothing if either was not measured."""
    if not (exists("suite.json") and exists("suite_reviews.json")):
        return []
    before, now = (
        {(cell["set"], cell["labels"]): cell for cell in load(name)["cells"] if "pretrained" in cell["accuracy"]}
        for name in ("suite_reviews.json", "suite.json")
    )
    rows, gains = [], {}
    for (name, labels), cell in now.items():
        if name not in GENERAL:
            continue
        new, linear = (cell["accuracies"][arm] for arm in ("pretrained", "linear"))
        # the same tables, in the order of their seeds; those that are missing now are the last ones
        old = before[name, labels]["accuracies"]["pretrained"][: len(new)]
        size = 100 if labels < 1000 else 1000
        gains.setdefault(size, []).append([_mean(values) for values in (linear, old, new)])
        rows.append([name, f"{labels:,}", len(new), *(percent(_mean(values)) for values in (linear, old, new))])
        rows[-1].append(points(_mean(new) - _mean(old)))
    for size, values in gains.items():
        means = [_mean(column) for column in zip(*values, strict=True)]
        words = f"{size:,}" if size == 100 else "1,000"
        rows.append(["mean", words, "", *map(percent, means), points(means[2] - means[1])])
    record = load("suite.json")
    return [
        "## General English and film reviews, on test files",
        "",
        "Test accuracy of the network alone, fine-tuned with the same settings from `starter:en-reviews` and from the starter that the linear probe of `headstart auto` chooses, usually `starter:en-large`; and of the linear "
        "model. The same training rows for each seed, up to 1,500 test rows. In the two means, clinc150 counts with 5 labels per class (750) as 100 labels and with 10 (1,500) as 1,000.",
        "",
        *table(
            ["dataset", "labels", "seeds", "linear model", "`en-reviews`", "chosen starter", "difference, points"], rows
        ),
        "",
        f"One {record['gpu']}, torch {record['torch']}, commit {', '.join(record['commits'])} ([all arms](auto.md)); `en-reviews`: commit {', '.join(load('suite_reviews.json')['commits'])}, "
        "the same command with the folder of that starter.",
    ]


GENERAL = ("agnews", "complaints", "trec6", "tweet-emotion", "cr", "clinc150")


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def languages() -> list[str]:
    """The accuracy of language detection; nothing if it was not measured."""
    if not exists("language.json"):
        return []
    record = load("language.json")
    sources = record["sources"]
    correct = sum(source["detected"] == [source["language"]] for source in sources)
    others = [source["source"] for source in sources if source["detected"] != [source["language"]]]
    rows = []
    for language, answers in record["confusion"].items():
        count, undecided = sum(answers.values()), answers.get("too little", 0)
        wrong = {code: number for code, number in answers.items() if code not in (language, "too little")}
        frequent = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[:3]
        fractions = (answers[language] / count, undecided / count, sum(wrong.values()) / count)
        shown = ", ".join(f"{code} {number}" for code, number in frequent) or "-"
        rows.append([language, f"{count:,}", *(f"{100 * fraction:.1f} %" for fraction in fractions), shown])
    except_for = f" (except {', '.join(others)}, most of whose speeches are in related languages)" if others else ""
    return [
        "## Language detection",
        "",
        f"`starter:auto` detects the language of a sample of the texts. Here it is applied to single passages of {record['words']} words (Chinese and Japanese: {record['characters']} characters) from "
        f"{len(sources)} sources, at most 300 passages per source. *Undecided* are passages that consist mostly of numbers, addresses or code. All passages of a source together are assigned its language "
        f"for {correct} of {len(sources)} sources{except_for}. Detection takes {record['milliseconds']:.2f} ms of processor time per passage.",
        "",
        *table(["language", "passages", "correct", "undecided", "wrong", "most frequent errors"], rows),
        "",
        *commands("python benchmarks/language.py --data DATA"),
    ]


def measured() -> list[str]:
    """Every measurement of the starters on labelled text."""
    if not exists("starters.json"):
        return []
    record = load("starters.json")
    sections = [_part(with_linear(record[name], name), *words) for name, words in PARTS.items() if name in record]
    return [line for section in sections for line in ("", *section)][1:]


def _part(record: dict, title: str, what: str, command: str) -> list[str]:
    rows, environment, folds = record["rows"], record["environment"], "folds" in record
    linear = load("linear_arm.json")["about"]
    where = environment.get("gpu") or f"CPU, {environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"
    arms = (
        [
            _arm_name(row["arm"]),
            row["labels"],
            percent(row["mean"]),
            percent_range(row["low"], row["high"]),
            percent(row["worst"]),
            row["seeds"],
            f"{row['seconds']:.0f}",
        ]
        for row in record["arms"]
    )
    differences = (
        [
            f"{_arm_name(row['arm'])} − {_arm_name(row['other'])}",
            row["labels"],
            points(row["mean"]),
            points_range(row["low"], row["high"]),
        ]
        for row in record["differences"]
    )
    return [
        f"## {title}",
        "",
        f"{what} {rows['train']:,} training rows, {rows['valid']:,} validation rows, {rows['test']:,} {'evaluation' if folds else 'test'} rows.",
        "",
        *table(
            [
                "arm",
                "labels",
                f"{'' if folds else 'test '}accuracy",
                "95 % interval",
                f"worst {'fold' if folds else 'seed'}",
                "runs" if folds else "seeds",
                "seconds per run",
            ],
            arms,
        ),
        "",
        *table(["difference", "labels", "points", "95 % interval"], differences),
        "",
        "Differences are paired, except those from the linear model: it was fitted later on the same rows, and their intervals treat the two arms as independent. "
        "TF-IDF + logistic regression is the linear arm of the original runs.",
        "",
        f"Commit {record['commit']}, {where}, torch {environment['torch']}; the linear model: commit {linear['commit']}, on a CPU:",
        "",
        *commands(command, linear["command"]),
    ]


def _arm_name(arm: str) -> str:
    arm_type, _, name = arm.partition(":")
    return f"{NAMES[arm_type]} ({name})" if name else NAMES[arm_type]


def headline(part: str, labels: int | str) -> dict[str, dict]:
    """Return the arms of a measurement by name, for the page of headlines."""
    arms = with_linear(load("starters.json")[part], part)["arms"]
    return {row["arm"]: row for row in arms if row["labels"] == labels}
