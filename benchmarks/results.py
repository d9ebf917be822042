"""Makes RESULTS.md from the result folders under docs/results: nobody types a number.

python benchmarks/results.py
"""

import json
import statistics
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PUBLISHED = {"scratch": (0.743, 0.798), "pretrained": (0.769, 0.818)}
NAMES = {
    "majority": "majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "scratch": "network from random weights",
    "pretrained": "network, pretrained",
}

PROTOCOL = """# Results

How to read this page. Every figure comes from a result folder under `docs/results/`, written by the command beside it; this page is made from those
folders by `python benchmarks/results.py`, and a test fails when the two part. Seeds are paired: the arms of one seed share rows, order and head. Validation
chooses, test is read once a run; where the published protocol looks at test after every epoch, that reading is shown apart and never chooses. Intervals are
95 %, over seeds and test texts together. `DATA` is the folder of real data that is not part of the project.
"""


def load(*parts: str) -> dict:
    return json.loads(RESULTS.joinpath(*parts).read_text(encoding="utf-8"))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def span(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def course() -> str:
    about, results = load("course", "about.json"), load("course", "results.json")
    language, config = load("course", "language-model", "result.json"), load("course", "config.json")
    environment = load("course", "environment.json")
    held = language["held_out"]
    samples = load("course", "samples.json")
    lines = [
        f"## {about['title']}",
        "",
        *(f"- {sentence}" for sentence in results["verdict"]),
        "",
        "Network: `classic` with the original vocabulary, 21,018,401 parameters as a language model, 10,968,602 as a classifier. Pretrained causally on "
        f"`french-novels` and `french-reviews` for {about['pretraining_minutes']} minutes of one {environment['gpu']}: {language['steps']:,} steps of 16 "
        f"documents, {language['tokens_seen']:,} tokens, fp32, Adam 3e-4. Held-out text: loss {held['loss']:.3f}, perplexity {held['perplexity']:.1f}, "
        f"{held['bits_per_byte']:.3f} bits per byte over {held['tokens']:,} tokens. Fine-tuning as published: Adam {config['optim']['lr']:g}, batch "
        f"{config['loop']['batch_size']}, {config['loop']['epochs']} epochs, clip {config['optim']['clip']}.",
        "",
        "| arm | test accuracy | 95 % interval | macro-F1 | seeds |",
        "|---|---|---|---|---|",
    ]
    for arm in results["arms"]:
        accuracy = arm["test_accuracy"]
        lines.append(
            f"| {NAMES[arm['arm']]} | {percent(accuracy['mean'])} | {percent(accuracy['low'])} to {percent(accuracy['high'])} | "
            f"{arm['test_macro_f1']:.3f} | {accuracy['seeds']} |"
        )
    lines += ["", "| paired difference | points | 95 % interval |", "|---|---|---|"]
    for row in results["differences"]:
        points = row["estimate"]
        lines.append(
            f"| {NAMES[row['arm']]} − {NAMES[row['other']]} | {100 * points['mean']:+.1f} | {100 * points['low']:+.1f} to {100 * points['high']:+.1f} |"
        )
    lines += [
        "",
        *protocols(results),
        "",
        "![Validation accuracy by epoch](docs/results/course/figures/curves.png)",
        "",
    ]
    lines += ["![Test accuracy by epoch, as the course reads it](docs/results/course/figures/curves-test.png)", ""]
    lines += [f'"{sample["prompt"]}" continued greedily: *{sample["text"].strip()}*' for sample in samples]
    lines += [
        "",
        f"Command: `{about['command']}`; commit {about['commit']}, {about['date']}, torch {environment['torch']}, seeds 0 to 4. The whole page: "
        "[docs/results/course/report.html](docs/results/course/report.html).",
        "",
        "What it shows: read as the course reads it, the network from random weights falls inside the published range, and the pretrained one at the lower "
        "end of its own (minutes of one GPU instead of 12 hours). Choosing the epoch on the test file flatters each arm by about a point. What pretraining bought is speed: after one epoch the "
        "pretrained network stands where the other one arrives after several. Both lose to a linear model that trains in seconds.",
    ]
    return "\n".join(lines)


def protocols(results: dict) -> list[str]:
    lines = [
        "The same runs, read two ways (worst to best seed in brackets):",
        "",
        "| arm | course protocol: best epoch on test, every row | published, best epoch | first epoch | last epoch | honest protocol: epoch by validation, "
        "duplicates of train excluded | the same, every row |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["protocols"]:
        columns = [NAMES[row["arm"]]]
        columns.append(f"{row['course']['mean']:.3f} ({span(row['course']['low'], row['course']['high'])})")
        columns.append(span(*PUBLISHED[row["arm"]]))
        columns += [
            f"{row[key]['mean']:.3f} ({span(row[key]['low'], row[key]['high'])})"
            for key in ("first", "last", "honest", "honest_every_row")
        ]
        lines.append("| " + " | ".join(columns) + " |")
    return lines


def course_table() -> str:
    """The table of docs/course.md."""
    results = load("course", "results.json")
    lines = [
        "| network | course protocol | honest protocol | the same with the 43 texts | first epoch | last epoch |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["protocols"]:
        keys = ("course", "honest", "honest_every_row", "first", "last")
        figures = [f"{row[key]['mean']:.3f} ({span(row[key]['low'], row[key]['high'])})" for key in keys]
        lines.append(f"| {NAMES[row['arm']]} | " + " | ".join(figures) + " |")
    for arm in results["arms"]:
        if arm["arm"] not in PUBLISHED:
            every_row, without_overlap = arm["test_accuracy"]["mean"], arm["test_accuracy_without_overlap"]
            lines.append(f"| {NAMES[arm['arm']]} | – | {without_overlap:.3f} | {every_row:.3f} | – | – |")
    lines += ["", *(f"- {sentence}" for sentence in results["verdict"])]
    return "\n".join(lines)


def language_table() -> str:
    """How the language model of docs/course.md grew."""
    lines = [
        '| steps | held-out loss, nats per token | perplexity | bits per byte | "Bonjour les" goes on with |',
        "|---|---|---|---|---|",
    ]
    entries = load("course", "language-model", "evaluations.json")
    continuations = {entry["step"]: entry["text"].strip() for entry in entries if entry["kind"] == "sample"}
    measured = [entry for entry in entries if entry["kind"] == "evaluation"]
    for entry in [*measured[::4], measured[-1]]:
        lines.append(
            f"| {entry['step']:,} | {entry['loss']:.3f} | {entry['perplexity']:.1f} | {entry['bits_per_byte']:.3f} | {continuations[entry['step']]} |"
        )
    scope = f"over all {measured[-1]['tokens']:,} held-out tokens, the others over the first {measured[0]['tokens']:,}"
    return "\n".join([*lines, "", f"The last line is {scope}."])


METHODS = {
    "headstart": "this report's: seeds and texts, a t for each",
    "satterthwaite": "seeds and texts, one t with Satterthwaite's degrees of freedom",
    "seeds t": "t over seeds alone",
    "seeds bootstrap": "bootstrap over seeds alone",
    "texts": "over test texts alone",
}
WORLDS = {
    "coin": "the labels of test are tossed: the truth is 0 exactly",
    "noise": "pretrained on the same texts with their letters shuffled: nothing to learn from",
    "must": "which words go together can only be learned from the unlabelled texts",
}


def coverage() -> str:
    """How often the intervals are right, on made-up tables and on real trainings."""
    record = load("coverage.json")
    simulation, rows = record["simulation"], record["simulation"]["settings"]
    ours = [row["methods"]["headstart"]["coverage"] for row in rows]
    lines = [
        "## How often the intervals are right",
        "",
        f"{simulation['tables']:,} result tables were drawn from each of {len(rows)} made-up worlds in which the truth is known: 3, 5 and 10 seeds, 200 to 25,000 test texts, "
        "true differences of 0, 1 and 3 points, seeds that spread by 0, 1 and 3 points, easy and hard texts in several proportions (Beta distributed), arms that find "
        "the same or other texts hard, an arm that answers alike whatever the seed, two that answer nearly alike always, and macro-F1 of a rare label. "
        f"The intervals held the truth {100 * min(ours):.1f} % of the time in the worst world, {100 * sum(ours) / len(ours):.1f} % on average (a measured fraction may "
        f"stray by {100 * simulation['tolerance']:.1f} points by chance).",
        "",
        "| seeds | test texts | coverage, worst world to best | most false alarms | finds 1 point | finds 3 points |",
        "|---|---|---|---|---|---|",
    ]
    for seeds, texts in sorted({(row["seeds"], row["texts"]) for row in rows}):
        group = [row for row in rows if (row["seeds"], row["texts"]) == (seeds, texts)]
        coverages = [row["methods"]["headstart"]["coverage"] for row in group]
        alarms = [row["methods"]["headstart"]["claims"] for row in group if row["difference"] == 0]
        detected = " | ".join(power(group, points) for points in (1.0, 3.0))
        lines.append(
            f"| {seeds} | {texts:,} | {min(coverages):.3f} to {max(coverages):.3f} | {max(alarms):.3f} | {detected} |"
        )
    lines += [
        "",
        "A difference is found when the interval leaves 0 out; these are networks whose seeds spread by 1 point. Few test texts find little, whatever the seeds: "
        "200 texts are not enough to see 3 points.",
        "",
        "| interval | coverage in the worst world | of arms that answer nearly alike | worlds in which it falls short | mean width, points |",
        "|---|---|---|---|---|",
    ]
    for name, words in METHODS.items():
        method_rows = [row["methods"][name] for row in rows]
        twins, others = (
            min(row["methods"][name]["coverage"] for row in rows if (row["kind"] == "twins") == alike)
            for alike in (True, False)
        )
        short = sum(row["coverage"] < 0.95 - simulation["tolerance"] for row in method_rows)
        width = sum(row["width"] for row in method_rows) / len(method_rows)
        lines.append(f"| {words} | {others:.3f} | {twins:.3f} | {short} of {len(rows)} | {width:.1f} |")
    label_coverages = [row["coverage"] for row in simulation["labels"]]
    ended = [row["has_upper_end"] for row in simulation["labels"]]
    lines += [
        "",
        f"What pretraining is worth in labels is read off a curve with the same interval. In {len(label_coverages)} worlds of {simulation['labels_tables']} tables (3, 5 and 10 seeds, 200 and 2,000 texts, "
        f"a curve that gains 6 points whenever labels grow fourfold) it held the truth {100 * min(label_coverages):.1f} to {100 * max(label_coverages):.1f} % of the time, and had an upper end "
        f'rather than "more than" in {100 * min(ended):.0f} to {100 * max(ended):.0f} % of the tables.',
    ]
    epochs_and_calibration = [*epochs_coverage(record["epochs"]), "", *calibration_coverage(record["calibration"])]
    return "\n".join([*lines, "", *epochs_and_calibration, "", *trainings(record["trainings"])])


def epochs_coverage(record: dict) -> list[str]:
    """How often "worth so many epochs" is right."""
    rows, ours = record["settings"], [row["methods"]["headstart"] for row in record["settings"]]
    other = [row["methods"]["epoch by epoch"]["coverage"] for row in rows]
    short = sum(coverage < 0.95 - record["tolerance"] for coverage in other)
    lines = [
        f"What it is worth in epochs is read off the accuracies on validation after every epoch. {record['tables']:,} tables were drawn from each of {len(rows)} worlds: "
        "the other arm is as high at once, after two, three or five epochs (rising on, or falling again), or stays a point or a hair below for good; seeds spread by 1 and 3 points, "
        "of which 30 and 80 % is drawn anew at every epoch; on test the arms are a little or much better than after their first epochs, and may agree less over seeds. "
        f"The interval held the truth {100 * min(row['coverage'] for row in ours):.1f} to {100 * max(row['coverage'] for row in ours):.1f} % of the time: it is cautious. "
        f"An earlier version, which took the first epoch that was surely as high, held it {100 * min(other):.1f} % of the time in the worst world and fell short in {short}: "
        "of many epochs one is high by luck, and right and wrong may spread less on test than after an epoch.",
        "",
        "| seeds | validation texts | coverage, worst world to best | says a head start where there is none, at most | says that the other arm arrives where it never does, at most | has an upper end where the other arm arrives | mean width, epochs |",
        "|---|---|---|---|---|---|---|",
    ]
    for seeds, texts in sorted({(row["seeds"], row["texts"]) for row in rows}):
        group = [row for row in rows if (row["seeds"], row["texts"]) == (seeds, texts)]
        ours = [row["methods"]["headstart"] for row in group]
        coverages = [row["coverage"] for row in ours]
        none = max(row["methods"]["headstart"]["too_many"] for row in group if row["truth"] == 1)
        never = max(row["methods"]["headstart"]["too_few"] for row in group if row["truth"] is None)
        ends = [row["methods"]["headstart"]["has_upper_end"] for row in group if row["truth"] is not None]
        width = sum(row["width"] for row in ours) / len(ours)
        lines.append(
            f"| {seeds} | {texts:,} | {min(coverages):.3f} to {max(coverages):.3f} | {none:.3f} | {never:.3f} | {100 * min(ends):.0f} to {100 * max(ends):.0f} % | {width:.1f} |"
        )
    return [*lines, "", 'Eight or twelve epochs were run; "more than" counts as one more.']


def calibration_coverage(record: dict) -> list[str]:
    """How often the interval of the calibration error is right."""
    rows, ours = record["settings"], [row["methods"]["headstart"] for row in record["settings"]]
    other, plain = (
        [row["methods"][name]["coverage"] for row in rows if row["truth"] == 0]
        for name in ("resampled", "as for accuracy")
    )
    lines = [
        f"The calibration error of {record['tables']:,} tables from each of {len(rows)} worlds: answers evenly or mostly sure, of two classes and of five, whose probabilities are right, too sure by "
        "little or much, now too sure and now not sure enough, or wrong in one bin only; with and without runs that differ in it. "
        f"The interval held the true error {100 * min(row['coverage'] for row in ours):.1f} to {100 * max(row['coverage'] for row in ours):.1f} % of the time: cautious again. "
        "Chance adds to a measured error and takes nothing away, so where the true error is 0 a bootstrap of seeds and texts (an earlier version) "
        f"held it {percent_span(other)} % of the time ({record['resampled_tables']} tables), the interval of accuracies {percent_span(plain)} %.",
        "",
        "| seeds | test texts | coverage, worst world to best | says an error where there is none, at most | measured where the true error is 0, mean of two classes evenly sure | mean width, points |",
        "|---|---|---|---|---|---|",
    ]
    for seeds, texts in sorted({(row["seeds"], row["texts"]) for row in rows}):
        group = [row for row in rows if (row["seeds"], row["texts"]) == (seeds, texts)]
        ours = [row["methods"]["headstart"] for row in group]
        coverages = [row["coverage"] for row in ours]
        right = [row for row in group if row["truth"] == 0]
        even = next(row["mean"] for row in right if (row["sure"], row["alike"]) == ("even", 0.7))
        false = max(row["methods"]["headstart"]["claims"] for row in right)
        width = sum(row["width"] for row in ours) / len(ours)
        lines.append(
            f"| {seeds} | {texts:,} | {min(coverages):.3f} to {max(coverages):.3f} | {false:.3f} | {even:.1f} | {width:.1f} |"
        )
    return lines


def percent_span(fractions: list[float]) -> str:
    """The lowest and the highest fraction in per cent; one number where they are equal."""
    low, high = (f"{100 * fraction:.1f}" for fraction in (min(fractions), max(fractions)))
    return low if low == high else f"{low} to {high}"


def power(rows: list[dict], points: float) -> str:
    """How often a difference was found, between networks whose seeds spread by a point."""
    world = {"kind": "networks", "difference": points, "luck": 1.0, "hardness": 1.0, "shared": 0.5}
    matching = [row for row in rows if all(row[name] == value for name, value in world.items())]
    return f"{matching[0]['methods']['headstart']['right_claims']:.2f}" if matching else "–"


def trainings(record: dict) -> list[str]:
    """What the report claims of real trainings whose truth is known."""
    lines = [
        f"Points with real trainings: for each kind of world, {record['each']} times a tiny network was pretrained on made-up texts and compared with random weights "
        "(12 labels, 300 test texts), and this is what the report claims of pretraining:",
        "",
        "| world | seeds | a gain | a loss | nothing measurable |",
        "|---|---|---|---|---|",
    ]
    for row in record["counts"]:
        world = WORLDS[row["kind"]]
        lines.append(f"| {world} | {row['seeds']} | {row['gain']} | {row['loss']} | {row['neither']} |")
    return [
        *lines,
        "",
        "Commands: `python benchmarks/coverage.py`, the same with `--epochs`, with `--calibration` and with `--trainings`: about one, two, three and ten minutes of a CPU core. The first three draw the same tables every time.",
    ]


ABLATION = {
    "causal": "causal: every next token",
    "masked": "masked: 30 % of the tokens, from both sides",
    "hybrid": "hybrid: a quarter of the batches causal, the rest masked",
    "masked-pairs": "masked, and does one piece of text follow the other?",
    "classic-causal": "causal, classic block of as many parameters",
    "classic-masked": "masked, classic block",
    "general-only": "masked, novels alone",
    "general-then-own": "masked, novels, then reviews",
    "both-then-own": "masked, both, then reviews",
    "own-only": "masked, reviews alone",
    "adamw": "masked, AdamW (1e-3) in place of Muon",
    "cosine": "masked, cosine in place of hold-then-fall",
    "no-dropout": "masked, no dropout",
    "ema": "masked, weights averaged while pretraining (0.998)",
}
FINETUNING = {
    "base": "as it was",
    "ema": "weights averaged (0.99)",
    "slow": "half the rate",
    "fast": "twice the rate",
    "batch32": "twice the rate, batches of 32",
}
T_OF_FIVE = 2.776
"""Student's t for 95 % and four degrees of freedom."""


def pooled(row: dict) -> float:
    return sum(accuracy * rows for accuracy, rows in zip(row["folds"], row["rows"], strict=True)) / sum(row["rows"])


def against(row: dict, other: dict) -> str:
    """The paired difference over five folds, in points."""
    if row is other:
        return "–"
    points = [100 * (a - b) for a, b in zip(row["folds"], other["folds"], strict=True)]
    mean = sum(points) / len(points)
    spread = (sum((point - mean) ** 2 for point in points) / (len(points) - 1) / len(points)) ** 0.5
    return f"{mean:+.1f} ({mean - T_OF_FIVE * spread:+.1f} to {mean + T_OF_FIVE * spread:+.1f})"


def swing(row: dict) -> float:
    """How far the second half of the epochs strays, the mean over folds."""
    halves = [epochs[len(epochs) // 2 :] for epochs in row["epochs"]]
    return sum(max(half) - min(half) for half in halves) / len(halves)


def recipe() -> str:
    """Which objective, block, text and fine-tuning make the best start; and what they reach on French book reviews."""
    record = load("recipe.json")
    ablation, tuning, books = record["ablation"], record["finetuning"], record["cls_books"]
    arms = {arm["arm"]: arm for arm in ablation["arms"]}
    masked = arms["masked"]
    made = f"commit {record['commit']}, {record['date']}, one {record['gpu']}, torch {record['torch']}"
    lines = [
        "## Both sides of the context: which start is best",
        "",
        f"Equal tokens and equal size: `{ablation['preset']}` (256 wide, 6 layers), {ablation['steps']} steps of {ablation['tokens_per_step']:,} tokens of French novels and reviews, one "
        "tokenizer of 16,384 entries; then the same fine-tuning on cls-books, 4 epochs, judged by five-fold cross-validation on the 2,000 rows of train and validation. No test file "
        "was read. Differences are paired by fold. This is a small network and little text (under a minute of a GPU each): it ranks recipes, it is not what a recipe can reach.",
        "",
        "| pretraining | accuracy | points against masked (95 %) | worst fold | tokens seen |",
        "|---|---|---|---|---|",
    ]
    for name, words in ABLATION.items():
        arm = arms[name]
        lines.append(
            f"| {words} | {pooled(arm):.3f} | {against(arm, masked)} | {min(arm['folds']):.3f} | {arm['tokens_seen']:,} |"
        )
    lines += [
        "",
        "What it shows. The course's last question, whether BERT's masked objective is the better start: not at this size and after so little text. Asking for masked and for next tokens in "
        "turns (hybrid) beats masking alone and is no worse than causal, and the network can be read either way afterwards: it is what the modern presets do. Text of the task's own kind is worth "
        f"more than any other choice here. Against the classic block the modern one gains {against(arms['causal'], arms['classic-causal'])} points causally and {against(masked, arms['classic-masked'])} "
        "masked. What did not help measurably: next-sentence prediction, averaging weights while pretraining, a cosine, AdamW in place of Muon, leaving dropout out. Only two of the differences in "
        "the table leave 0 outside their interval, hybrid and reviews alone; the rest are directions. Five folds do not tell less than about two points.",
        "",
        f"Commands: `python benchmarks/ablation.py --general novels --own reviews --mixture mixture --out ablation --steps {ablation['steps']} --compile` on prepared folders, then `python "
        f"benchmarks/crossvalidate.py ablation/* --train DATA/cls-books/train.jsonl --valid DATA/cls-books/valid.jsonl --preset modern-micro --try base:loop.epochs=4 --out cv.json`; {made}.",
        "",
        "## Fine-tuning that is steady",
        "",
        f"The network of the next section, five-fold cross-validation on the same 2,000 rows, one seed per fold. As it was: {tuning['base']}. Swing is how far validation accuracy "
        "strays over the second half of the epochs.",
        "",
        "| fine-tuning | accuracy | points against as it was (95 %) | worst fold | swing, points | validation loss |",
        "|---|---|---|---|---|---|",
    ]
    base = next(row for row in tuning["settings"] if row["setting"] == "base")
    for row in tuning["settings"]:
        lines.append(
            f"| {FINETUNING[row['setting']]} | {pooled(row):.4f} | {against(row, base)} | {min(row['folds']):.3f} | {100 * swing(row):.1f} | {row['loss']:.3f} |"
        )
    stages = " then ".join(f"{stage['texts']} ({stage['tokens_seen'] / 1e6:.0f} M tokens)" for stage in books["stages"])
    mean = sum(books["test"]) / len(books["test"])
    spread = (
        sum((accuracy - mean) ** 2 for accuracy in books["test"]) / (len(books["test"]) - 1) / len(books["test"])
    ) ** 0.5
    both = (T_OF_FIVE**2 * spread**2 + 1.96**2 * mean * (1 - mean) / books["test_rows"]) ** 0.5
    lines += [
        "",
        "Averaging the weights halves the swing and loses nothing, so the modern presets do it (0.99, the last epoch kept: nothing is chosen on a few hundred rows).",
        "",
        "## French book reviews, 1,600 labels",
        "",
        f"`modern` (40.5 M parameters), hybrid, pretrained for {books['minutes']:g} minutes of one {record['gpu']} ({books['tokens_seen'] / 1e6:.0f} M tokens, {books['tokens_per_second'] / 1e3:.0f} k tokens/s): "
        f"{stages}; no text of the test file is among them. Held-out reviews: {books['stages'][1]['held_out']['bits_per_byte']:.3f} bits per byte read left to right.",
        "",
        "| | test accuracy | 95 % interval | worst seed | each seed |",
        "|---|---|---|---|---|",
        f"| pretrained, 5 seeds | {percent(mean)} | {percent(mean - both)} to {percent(mean + both)} | {percent(min(books['test']))} | {', '.join(f'{accuracy:.4f}' for accuracy in books['test'])} |",
        "",
        "TF-IDF + logistic regression on the same rows: 84.2 % (first section). The interval adds the spread of seeds and that of test texts. Times that the test file was read for "
        f"this section: {books['test_evaluations']} (five seeds, one setting, fixed by cross-validation before).",
        "",
        f"Commands: `{books['command']}` (the two folders prepared from `DATA/french-novels` and `DATA/french-reviews`), then for each seed `{books['finetune']}`; {made}.",
    ]
    return "\n".join(lines)


RUNS = {
    "causal": "pretraining, causal",
    "masked": "pretraining, masked",
    "hybrid": "pretraining, hybrid",
    "pairs": "pretraining, masked with sentence pairs",
    "stages": "pretraining in stages",
    "ema_decay": "pretraining with averaged weights",
    "accumulate": "pretraining with accumulated gradients",
    "muon": "pretraining, modern block, Muon",
    "finetune": "fine-tuning from a pretrained model, averaged weights",
    "compare": "a comparison of three arms",
}


def label_table(results: dict) -> list[str]:
    """Every number of labels and every arm but the majority class; an arm that was not run with so many, too."""
    lines = [
        "| labels | arm | test accuracy | 95 % interval | worst seed | without leaks |",
        "|---|---|---|---|---|---|",
    ]
    arms = {(arm["labels"], arm["arm"]): arm for arm in results["arms"] if arm["arm"] != "majority"}
    rows = {arm["labels"]: f"{arm['rows']:,}" + (" (all)" if arm["labels"] == "all" else "") for arm in arms.values()}
    for labels, name in product(rows, dict.fromkeys(name for _, name in arms)):
        arm = arms.get((labels, name))
        if arm is None:
            lines.append(f"| {rows[labels]} | {NAMES[name]} | not run | | | |")
            continue
        mean, accuracies = arm["test_accuracy"], arm["test_accuracies"]
        worst = percent(min(accuracies)) if len(accuracies) > 1 else "one run"
        lines.append(
            f"| {rows[labels]} | {NAMES[name]} | {percent(mean['mean'])} | {percent(mean['low'])} to {percent(mean['high'])} | {worst} | "
            f"{percent(arm['test_accuracy_without_overlap'])} |"
        )
    return lines


def arm_of(results: dict, name: str, labels: int | str) -> dict:
    return next(arm for arm in results["arms"] if (arm["arm"], arm["labels"]) == (name, labels))


def round_to_two_figures(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.0f}"


def book_reviews() -> str:
    """The label curve on French book reviews."""
    about, results, run = (load("cls-books", f"{name}.json") for name in ("about", "results", "run"))
    environment, classic = load("cls-books", "environment.json"), load("course", "results.json")
    few = {name: percent(arm_of(results, name, 50)["test_accuracy"]["mean"]) for name in NAMES if name != "naive_bayes"}
    needs = next(gain for gain in results["gain"] if gain["budget"] == 50)["linear_labels"]["needed"]
    lines = [
        f"## {about['title']}",
        "",
        f"With 50 labels the pretrained network is right on {few['pretrained']} of the reviews, the same network from random weights on {few['scratch']}, and TF-IDF + logistic "
        f"regression on {few['tfidf']}: that needs about {round_to_two_figures(needs['at'])} labels for as much (95 % interval {round_to_two_figures(needs['low'])} to {round_to_two_figures(needs['high'])}).",
        "",
        *(f"- {sentence}" for sentence in results["verdict"]),
        "",
        "From the network of the section before; fine-tuning is the preset's.",
        "",
        *label_table(results),
        "",
        "The last column is without the 43 test reviews that also appear in train, word for word. No test review was in the pretraining text. The network from random weights has the settings that "
        "were chosen for the pretrained one, and 40 M parameters for 1,600 texts: the course's small one (first section) gets "
        f"{percent(arm_of(classic, 'scratch', 'all')['test_accuracy']['mean'])} from the same rows. Each of the {about['runs']} runs read the test file once, with settings fixed before "
        f"({about['runs_of_an_interrupted_run']} of them in a first sitting that was interrupted, the others when the command was given again).",
        "",
        f"Command: `{run['command']}`; commit {about['commit']}, {about['date']}, one {environment['gpu']}, torch {environment['torch']}, seeds 0 to 4. The whole page: "
        "[docs/results/cls-books/report.html](docs/results/cls-books/report.html).",
    ]
    return "\n".join(lines)


def verdict_list(name: str) -> str:
    """The verdict of a report as a list."""
    return "\n".join(f"- {sentence}" for sentence in load(name, "results.json")["verdict"])


def film_reviews() -> str:
    """The label curve on film reviews: what few and many labels do with and without a head start."""
    about, results, config = (load("imdb", f"{name}.json") for name in ("about", "results", "config"))
    environment, text = load("imdb", "environment.json"), about["pretraining"]
    held, earlier = text["held_out"], about["earlier"]["pretrained"]
    pretrained, scratch = (arm_of(results, arm, "all") for arm in ("pretrained", "scratch"))
    again, before = (
        ", ".join(map(percent, accuracies))
        for accuracies in (
            [arm_of(results, "pretrained", row["labels"])["test_accuracy"]["mean"] for row in earlier],
            [sum(row["seeds"]) / len(row["seeds"]) for row in earlier],
        )
    )
    runs = sum(len(arm["seeds"]) for arm in results["arms"])
    earlier_runs = sum(len(row["seeds"]) for row in earlier)
    lines = [
        f"## {about['title']}",
        "",
        *(f"- {sentence}" for sentence in results["verdict"]),
        "",
        f"`modern` (40.5 M parameters), hybrid, pretrained on the train and unlabelled texts of the Large Movie Review Dataset, labels unseen: {text['tokens_seen'] / 1e6:.0f} M tokens in {text['minutes']:g} "
        f"minutes of one {environment['gpu']}, all told and beside tests on the same machine: alone it takes no longer. Held-out reviews: {held['bits_per_byte']:.3f} bits per byte read left to right. "
        f"Fine-tuning is the preset's, the same as on the French reviews. Test: {about['test_rows']:,} reviews; 129 of them also appear in train, word for word or almost, and the last column is without those. "
        f"{about['in_pretraining_text']} test reviews were in the pretraining text, word for word and without their labels.",
        "",
        *label_table(results),
        "",
        f"With all labels the pretrained network comes to {percent(pretrained['test_accuracy']['mean'])} (worst seed {percent(min(pretrained['test_accuracies']))}). That is above the linear model, and below the "
        f"{percent(about['published']['ulmfit'])} published for ULMFiT, which had read Wikipedia before. From random weights the same network comes to {percent(scratch['test_accuracy']['mean'])} with all "
        f"{scratch['rows']:,} labels (worst seed {percent(min(scratch['test_accuracies']))}): below the linear model, and below what it has from 100 labels when pretrained. It has the settings that were chosen for the "
        f"pretrained one, and {pretrained['best_epochs'][0]} epochs with all labels, as that has (no run makes more than {config['loop']['max_steps']:,} steps). Another backbone, of the same recipe, gave {before} with 100, 500 and 1,000 labels where this one gives {again}. Each of the {runs} runs read the test file once, and so did "
        f"{earlier_runs} with that other backbone, with settings fixed before; they were chosen on the French reviews, without a test file.",
        "",
        f"Commands: `{text['command']}` (`texts` prepared from `DATA/imdb/train.parquet` and `unlabelled.parquet` with a tokenizer of 16,384 entries learnt from them), then "
        + "; ".join(
            f"for {', '.join(arm_with_labels(arm, labels, results) for arm, labels in sitting['runs'].items())} `{sitting['command']}` (commit {sitting['commit']}, {sitting['date']}"
            + (f"; `base` there from `{sitting['base']}`" if "base" in sitting else "")
            + ")"
            for sitting in about["commands"]
        )
        + f". Seeds 0 to 4, torch {environment['torch']}. These {len(about['commands'])} sittings have the same rows, label subsets, tokenizer and settings, and a network from random weights takes its shape and its "
        "tokenizer alone from `base`; seconds do not compare between them. The whole page, with the command that makes all of it: [docs/results/imdb/report.html](docs/results/imdb/report.html).",
    ]
    return "\n".join(lines)


def arm_with_labels(arm: str, labels: list, results: dict) -> str:
    """An arm, and with how many labels if not with all numbers of them that the report has."""
    if labels == [row["labels"] for row in results["arms"] if row["arm"] == arm]:
        return NAMES[arm]
    *others, last = (budget if budget == "all" else f"{budget:,}" for budget in labels)
    return f"{NAMES[arm]} with {', '.join(others)} and {last} labels"


def torture() -> str:
    """Runs killed, disks that fail, damaged files and hostile text."""
    record, peer = load("torture.json"), load("torture_peer.json")
    kills, operations = record["kills"]["rows"], record["operations"]["rows"]
    all_rows = [*kills, *operations]
    lost, torn, different = (sum(len(row[name]) for row in all_rows) for name in ("lost", "torn", "different"))
    lines = [
        "## What it was put through",
        "",
        f"Tiny runs in real processes were killed with `kill -9` {sum(row['kills'] for row in kills):,} times at random moments, again and again until they were done, and "
        f"{sum(row['kills'] for row in operations):,} times at an operation on the disk (before it, in the middle of a write, after it). Runs lost: {lost}. Torn states that passed for whole: "
        f"{torn}. Runs that ended with other bytes (weights, metrics, result) than one that nobody touched: {different}.",
        "",
        "| run | kills | while it was beginning or preparing | training | writing | ending | runs finished, all with the same bytes |",
        "|---|---|---|---|---|---|---|",
        *(kill_row(row, "") for row in kills),
        *(kill_row(row, f", at every {ordinal(row['every'])} operation on the disk") for row in operations),
        "",
        *worker_kills(record),
        "| each operation of saving fails in turn: disk full, then disk broken | operations | failures | a whole state is there, one line says what happened |",
        "|---|---|---|---|",
        *(
            f"| {row['name']} | {row['operations']} | {row['failed']} | {row['kept']} |"
            for row in record["writes"]["rows"]
        ),
        "",
        "| every file cut short at up to 50 places and with a bit flipped at 200 | files | damaged | refused by name |",
        "|---|---|---|---|",
        *(
            f"| {row['name']} | {row['files']} | {row['damaged']:,} | {row['refused']:,} |"
            for row in record["damage"]["rows"]
        ),
        "",
        "A damaged checkpoint is passed over, by name, for the one before it.",
        "",
        *mutations(record["bytes"]),
        "",
        *endings(record["ends"]["rows"]),
        "",
        *hostile(record["text"]["rows"]),
        "",
        *peer_table(peer),
        "",
        f"Commands: `make torture-full` (Python {record['machine']['python']}, torch {record['machine']['torch']}, one core) and `python benchmarks/torture_peer.py "
        "docs/results/torture_peer.json` (which needs transformers and accelerate). The kills, the failed "
        "writes and the damaged files are of commit ee34ed4 (failed operations: 06a272a); most mutations, the ends and the hostile text of earlier states of the source, with other work on the machine; the killed workers of a later one."
        + line_counts(record["bytes"]["rows"]),
    ]
    return "\n".join(lines)


def line_counts(rows: list[dict]) -> str:
    """The number of mutations on which lines were counted, where that was a separate run."""
    cases = {row["cases_for_lines"] for row in rows if "cases_for_lines" in row}
    if not cases:
        return ""
    return (
        f" HTTP, classifiers, labelled shards, sentencepiece alone, imported tokenizers and `quotes.json` are of later states; for the other readers lines were counted on {max(cases):,} mutations of their own, which "
        "(unlike the 50,000 of the table) were changed within the form of the file as well."
    )


def ordinal(number: int) -> str:
    return {1: "single", 2: "second", 3: "third"}.get(number, f"{number}th")


def kill_row(row: dict, note: str) -> str:
    phases = row["phases"]
    first = phases.get("beginning", 0) + phases.get("preparing", 0)
    others = " | ".join(str(phases.get(name, 0)) for name in ("training", "writing", "ending"))
    wrong = len(row["lost"]) + len(row["different"])
    return (
        f"| {RUNS[row['name']]}{note} | {row['kills']} | {first} | {others} | {row['runs'] - wrong} of {row['runs']} |"
    )


WORKERS = {
    "busy": "with a job",
    "idle": "its job done, another worker busy",
    "starting": "within half a second of its start",
    "stopping": "just before or after its parent gets SIGTERM or Ctrl-C",
    "compare": "of `compare --jobs 2`, resumed until done",
}


def worker_kills(record: dict) -> list[str]:
    """Worker processes of a grid killed, where that was done."""
    if "workers" not in record:
        return []
    rows = record["workers"]["rows"]
    return [
        "| a worker process of several (`--jobs`) is killed, with four busy loops beside it | kills | hangs | results or states of other workers lost | anything else |",
        "|---|---|---|---|---|",
        *(
            f"| {WORKERS[row['name']]} | {row['kills']} | {len(row['hung'])} | {len(row['lost'])} | {len(row['faults']) + len(row.get('different', ()))} |"
            for row in rows
        ),
        "",
    ]


def mutations(part: dict) -> list[str]:
    rows = part["rows"]
    cases, faults = sum(row["cases"] for row in rows), sum(len(row["faults"]) for row in rows)
    return [
        f"{cases:,} mutations of valid files and requests (flips, cuts, splices, doubled pieces, other numbers; other values, keys, lines and headers in the form that the file has) for {len(rows)} readers, "
        f"in processes with a bound on time and memory. Crashes, hangs, floods of memory and answers of the kind 500: {faults}. "
        '"Sealed again" means that size and sha256 were made to agree with the changed bytes, as a program that means harm would.',
        "",
        "| reader | mutations | read, or answered | refused in one line | anything else | lines reached of the functions entered |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['cases']:,} | {row['read']:,} | {row['refused']:,} | {len(row['faults'])} | {lines(row)} |"
            for row in rows
        ),
        "",
        *unreached(part),
    ]


def lines(row: dict) -> str:
    if "lines" not in row:
        return "–"
    return f"{row['lines_reached']} of {row['lines']}"


def unreached(part: dict) -> list[str]:
    """Count the lines that all readers together reached, and list the reasons for the others."""
    reached, missed = (_line_sets(part["rows"], key) for key in ("reached", "missed"))
    all_lines = {file: reached.get(file, set()) | missed.get(file, set()) for file in {*reached, *missed}}
    total, seen = sum(map(len, all_lines.values())), sum(map(len, reached.values()))
    reasons = {reason: lines for reason, lines in part["unreached"].items() if reason != "other"}
    by_count = sorted(reasons.items(), key=lambda item: -len(item[1]))
    counts = "; ".join(f"{len(lines)} {reason}" for reason, lines in by_count)
    unexplained = part["unreached"].get("other", [])
    sentences = [
        f"A function is entered for one kind of file and shared by others, so that no reader reaches all of its lines. Together they reached {seen:,} of {total:,} lines. Of the {total - seen} others {counts}."
    ]
    if unexplained:
        shown, count = ", ".join(f"`{line}`" for line in unexplained), len(unexplained)
        sentences.append(f"For {'one' if count == 1 else count} there is no such reason, only luck: {shown}.")
    return [" ".join(sentences)]


def _line_sets(rows: list[dict], key: str) -> dict[str, set[int]]:
    """The lines of each file in all rows: "3-5 9" is 3, 4, 5, 9."""
    lines: dict[str, set[int]] = {}
    for row in rows:
        for file, text in row.get(key, {}).items():
            for line_range in text.split():
                first, _, last = line_range.partition("-")
                lines.setdefault(file, set()).update(range(int(first), int(last or first) + 1))
    return lines


def endings(rows: list[dict]) -> list[str]:
    words = {
        "vanished": "the folder is deleted during the run",
        "in use": "a second process in the folder",
        "full": "the disk is full during the run",
    }
    words |= {
        "read-only": "the disk became read-only",
        "twice": "a second Ctrl-C while the first one's state is saved",
        "time limit": "a time limit that preparing used up",
    }
    signals = [row for row in rows if "SIG" in row["name"]]
    late = "prepare and export, torch's compiler among them" if any("compile" in row["name"] for row in rows) else ""
    phases = f"pretrain, finetune, compare, tokenizer{f', {late}' if late else ' and prepare'}"
    return [
        f"{len(signals)} signals (SIGINT and SIGTERM in each phase of {phases}) and other ends, in real processes: each one line, nothing "
        f"half-written, and whatever was worth resuming resumed to the same bytes; faults: {sum(len(row['faults']) for row in rows)}.",
        "",
        "| what happens | exit code | what is said |",
        "|---|---|---|",
        *(f"| {words[row['name']]} | {row['code']} | {row['said']} |" for row in rows if row["name"] in words),
    ]


def hostile(rows: list[dict]) -> list[str]:
    longest = max((row for row in rows if "times_as_long" in row), key=lambda row: row["times_as_long"])
    size, faults = max(row["characters"] for row in rows), sum(len(row["faults"]) for row in rows)
    return [
        f"Hostile text ({size:,} characters without a space, of control characters, NULs, right-to-left marks, emoji, combining marks, names of special tokens) through both tokenizers: "
        f"four times the text took at most {longest['times_as_long']} times the processor time ({longest['name']}), byte-level BPE gave every text back, and a lone surrogate is refused; faults: {faults}.",
    ]


def peer_table(peer: dict) -> list[str]:
    """The same cases for transformers' Trainer."""
    versions = peer["versions"]
    outcomes: dict[str, list[str]] = {}
    for row in peer["damage"]:
        outcomes.setdefault(row["found"].split(":")[0], []).append(f"{row['file']} {row['wound']}")
    lines = [
        f"Beside it, transformers {versions['transformers']} with accelerate {versions['accelerate']}, its Trainer on a tiny network, `resume_from_checkpoint=True`:",
        "",
        "| case | transformers' Trainer | Headstart |",
        "|---|---|---|",
    ]
    for objective in ("causal", "masked"):
        for where in ("between epochs", "within an epoch"):
            rows = [row["found"] for row in peer["resumed"] if (row["objective"], row["where"]) == (objective, where)]
            if rows:
                lines.append(
                    f"| {objective}, resumed {where} | {'; '.join(sorted(set(rows)))} | goes on, same weights |"
                )
    ours = "the older checkpoint is used, and that is said"
    lines += [
        f"| newest checkpoint damaged, an older good one beside it: {'; '.join(cases)} | {words} | {ours} |"
        for words, cases in sorted(outcomes.items())
    ]
    killed = "; ".join(f"{count} {words}" for words, count in peer["kills"].items())
    return [
        *lines,
        f"| killed once at a random moment, then resumed, {sum(peer['kills'].values())} times | {killed} | all go on, same weights |",
    ]


def serving() -> str:
    """How fast a server answers, beside plain ones."""
    record = load("serving.json")
    shed = record["overload"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        "## Serving",
        "",
        f"A classifier of the default shape (width 200, 4 layers, random weights), made-up texts of 5 to 120 words, one text per request; {record['cores']} cores of {record['machine']}, shared with "
        f"the client and other work, one thread per model. Servers took turns, {record['rounds']} rounds of {record['seconds']:g} s; rates are medians. Milliseconds of CPU per text are the server's own and depend "
        "least on who else is at work.",
        "",
        "| clients | server | texts per second, median (each round) | p50 ms | p99 ms | CPU ms per text | headstart serve: times its rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=lambda row: row["clients"]):
        rates = ", ".join(f"{rate:.0f}" for rate in row["rates"])
        lines.append(
            f"| {row['clients']} | {row['server']} | {row['rate']:.0f} ({rates}) | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} | {row['cpu_ms_per_text']:.2f} | {row['headstart_ratio']:.2f} |"
        )
    statuses = ", ".join(f"{count:,} × {status}" for status, count in shed["statuses"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Asked at twice its best rate ({shed['requests_per_second']:.0f} texts per second, a deadline of {shed['deadline_ms']:,} ms), it answered {statuses}; accepted requests took "
            f"{shed['accepted_p50_ms']:.0f} ms (p50) and {shed['accepted_p99_ms']:.0f} ms (p99), as the client saw them.",
            "",
            f"Command: `python benchmarks/serving.py`; {versions}.",
        ]
    )


STARTER_PARTS = {
    "demo": ("The demo's data", "sentences of film reviews, from `starter:en`", "python benchmarks/starters.py demo"),
    "books": ("cls-books", "French book reviews, from `starter:fr`", "python benchmarks/starters.py books --data DATA"),
    "ways": (
        "Small by which way",
        "the demo's data, pretrained networks that fit in the same bytes",
        "python benchmarks/starters.py ways --way FOLDER ...",
    ),
    "folds": (
        "Which French starter is kept",
        "cls-books without its test part in five folds, three seeds each (intervals are over folds, which share most of the rows they are judged by, so "
        "they are somewhat too narrow): `fr-wide` was `starter:fr` before (width 384, 8,192 entries, 8,000 steps), `fr-taught` is now (width 320, 16,384 entries, "
        "8,000 steps with a teacher, 5 minutes of an H200), `fr-plain` is the same network without a teacher (14,587 steps, 3 minutes)",
        "python benchmarks/starters.py folds --data DATA --way FOLDER ...",
    ),
}


def starters() -> str:
    """The starters that come with the package; empty where they were not measured."""
    if not (RESULTS / "starters.json").is_file():
        return ""
    record = load("starters.json")
    lines = [
        "## Starters",
        "",
        "| starter | bytes | parameters | tokens seen | held-out bits per byte | made by |",
        "|---|---|---|---|---|---|",
    ]
    for starter in record["about"]:
        lines.append(
            f"| `{starter['name']}` | {starter['bytes']:,} | {starter['parameters']:,} | {starter['tokens_seen']:,} | {starter['held_out']['bits_per_byte']:.3f} "
            f"({starter['held_out']['tokens']:,} tokens) | `{starter['command']}`, {starter['environment'].get('gpu') or 'no GPU'} |"
        )
    lines += [
        "",
        "Text, hold-outs and limits are on the cards in `src/headstart/starters/`; [docs/starters.md](docs/starters.md) has every command.",
        "",
    ]
    for part, (title, what, command) in STARTER_PARTS.items():
        if part in record:
            lines += starter_part(record[part], title, what, command)
    return "\n".join(lines)


def starter_part(record: dict, title: str, what: str, command: str) -> list[str]:
    rows, environment = record["rows"], record["environment"]
    where = environment.get("gpu") or f"CPU, {environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"
    unit = "fold" if "folds" in record else "seed"
    lines = [
        f"### {title}",
        "",
        f"{what[:1].upper()}{what[1:]}; {rows['train']:,} rows to learn from, {rows['valid']:,} for validation, {rows['test']:,} for test. "
        f"Command: `{command}`; commit {record['commit']}, {where}, torch {environment['torch']}.",
        "",
        f"| arm | labels | test accuracy | 95 % interval | worst {unit} | {'runs' if 'folds' in record else 'seeds'} | seconds per run |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["arms"]:
        lines.append(
            f"| {arm_name(row['arm'])} | {row['labels']} | {percent(row['mean'])} | {percent(row['low'])} to {percent(row['high'])} | "
            f"{percent(row['worst'])} | {row['seeds']} | {row['seconds']:.0f} |"
        )
    lines += ["", "| paired difference | labels | points | 95 % interval |", "|---|---|---|---|"]
    for row in record["differences"]:
        lines.append(
            f"| {arm_name(row['arm'])} − {arm_name(row['other'])} | {row['labels']} | {100 * row['mean']:+.1f} | "
            f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f} |"
        )
    return [*lines, ""]


def arm_name(arm: str) -> str:
    arm_type, _, name = arm.partition(":")
    return f"{NAMES[arm_type]} ({name})" if name else NAMES[arm_type]


def ranks() -> str:
    """Speed and communication of several processes."""
    record = load("ranks.json")
    single = record["rows"][0]["strategies"]["unsynchronized"]
    lines = [
        "## Several processes",
        "",
        f"A language model of {record['parameters']:,} parameters in fp32, {record['tokens_per_step']:,} tokens per step shared by all processes, one thread each, gloo; {record['cores']} CPU cores (load "
        f"{record['load']:g}; where that is high, time on the clock says little and processor time more). Medians of {record['steps']} steps; `unsynchronized` adds nothing up, and the communication fraction is what the other "
        "strategies cost more than it. A process holds so much of weights and moments.",
        "",
        "| processes | strategy | processor ms per step, all together | communication fraction of it | ms per step on the clock | tokens per second | MB per process | loss, last step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        unsynchronized = row["strategies"]["unsynchronized"]
        for name, strategy in row["strategies"].items():
            alone = name == "unsynchronized"
            cost = "" if alone else percent(max(0.0, 1 - unsynchronized["processor_ms"] / strategy["processor_ms"]))
            # what is not added up has another loss
            loss = f"{strategy['loss']:.6f}" if not alone or row["processes"] == 1 else ""
            lines.append(
                f"| {row['processes']} | {'one process' if strategy is single else name} | {strategy['processor_ms']:.0f} | {cost} | {strategy['step_ms']:.0f} | "
                f"{1000 * record['tokens_per_step'] / strategy['step_ms']:,.0f} | {strategy['megabytes']:.1f} | {loss} |"
            )
    return "\n".join([*lines, "", f"Command: `python benchmarks/ranks.py`; torch {record['torch']}, {record['date']}."])


def times(ratio: float) -> str:
    return f"{ratio:.2f}"


def commands(parts: list[tuple[str, dict]]) -> str:
    """Commands with what they measured, each once: "`python ...` (commit abc, 2026-01-01)"."""
    made = {}
    for command, machine in parts:
        what = (f"commit {machine['commit']}" if machine.get("commit") else "", machine.get("date", ""))
        made[f"`{command}` ({', '.join(filter(None, what))})"] = None
    return ", ".join(made)


CPU_SIDES = {
    "course": "the course's code",
    "transformers": "transformers, a bare loop",
    "trainer": "transformers' `Trainer`",
}
CPU_PARTS = ("step_1", "step_2", "memory", "profile", "curves", "predict_1", "predict_2", "agree", "cold")


def cpu() -> str:
    """Steps, memory and answers on CPU cores, beside others."""
    record = load("cpu.json")
    memory, steps = record["memory"]["mib"], [record["step_1"], record["step_2"]]
    shape, machine, ours = steps[0]["shape"], steps[0]["machine"], memory["headstart"]
    loads = " and ".join(f"{step['machine']['load']:g}" for step in steps)
    lines = [
        "## Speed on CPU cores",
        "",
        f"Whoever is compared takes turns with the others in one process, on a machine of {machine['cores']} cores that other processes shared (load {loads} when the steps with one and with two threads "
        "were begun): seconds mean little there, so these are ratios of medians, of seconds of the processor and of the clock. "
        f"Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}, onnxruntime {machine['onnxruntime']}.",
        "",
        f"One training step of the course's language model ({shape['batch']} rows of {shape['length']} tokens, {shape['vocabulary']:,} entries), all on the same rows. The course's code: torch's own encoder, "
        "full scores, Adam. transformers: GPT-2 in the same size, fused AdamW, once in a loop written by hand and once in its `Trainer` with the settings it has by itself, which a callback stops after every step. "
        "MFU is what weights multiply, as a fraction of one large product's rate. Peak memory is that of a process of its own for each, all that it imports included.",
        "",
        "| threads | | times Headstart's processor seconds (rounds) | times its clock | MFU | peak memory, MiB | times Headstart's |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in steps:
        threads = step["machine"]["threads"]
        lines.append(f"| {threads} | Headstart | 1 | 1 | {percent(step['mfu']['headstart'])} | {ours['peak']:,} | 1 |")
        for name, ratio in step["ratios"].items():
            lines.append(
                f"| {threads} | {CPU_SIDES[name]} | {times(ratio['cpu'])} ({times(ratio['cpu_min'])} to {times(ratio['cpu_max'])}, {step['rounds']}) | {times(ratio['wall'])} | "
                f"{percent(step['mfu'][name])} | {memory[name]['peak']:,} | {memory[name]['peak'] / ours['peak']:.1f} |"
            )
    made = commands([(record[part]["machine"]["command"], record[part]["machine"]) for part in CPU_PARTS])
    lines += [
        "",
        *cpu_answers(record),
        "",
        "From the start of the process to the answer to one short text:",
        "",
        "| model | who | processor seconds | times Headstart's | times its clock |",
        "|---|---|---|---|---|",
        *(
            f"| {row['model']} | {COLD[row['who']]} | {row['cpu_s']:.2f} | {times(row['cpu'])} | {times(row['wall'])} |"
            for row in record["cold"]["rows"]
        ),
        "",
        *cpu_curves(record["curves"]),
        "",
        f"Commands: {made}; [docs/performance.md](docs/performance.md) says where the time goes and what did not help.",
    ]
    return "\n".join(lines)


CORPUS_SIDES = {
    "fast": "`headstart prepare`, extra `fast`",
    "plain": "`headstart prepare`",
    "datasets": "datasets + tokenizers",
}
ENCODERS = {
    "tokenizers": "tokenizers, the reference",
    "tokenizers, unbounded": "tokenizers without the bound on a word's length",
    "headstart, fast": "Headstart, extra `fast`",
    "headstart": "Headstart",
    "gigatoken": "gigatoken alone, without Headstart's guard",
    "kitoken": "kitoken",
}
CORPUS_HEADER = "| text | who | seconds | MB per second | processor seconds | MB per processor second | most memory of a process, MB | others' fraction of the cores meanwhile | datasets takes by the clock | by processor time |"


def megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size > 999e6 else f"{size / 1e6:.0f} MB"


def corpus_rows(text: str, row: dict) -> list[str]:
    """One corpus, prepared by each side: medians over turns, and how many times as long datasets took."""
    lines = []
    for side, turns in row["sides"].items():
        seconds, spent = (statistics.median(turn[what] for turn in turns) for what in ("seconds", "cpu"))
        ratio = (
            [corpus_ratio(row["times"][side], what) for what in ("seconds", "cpu")]
            if side in row.get("times", {})
            else ["–", "–"]
        )
        lines.append(
            f"| {text} | {CORPUS_SIDES[side]} | {seconds:.1f} | {row['bytes'] / 1e6 / seconds:.1f} | {spent:.1f} | {row['bytes'] / 1e6 / spent:.1f} | "
            f"{max(turn['peak'] for turn in turns) / 1e6:.0f} | {100 * statistics.median(turn['others'] for turn in turns):.0f} % | {ratio[0]} | {ratio[1]} |"
        )
    return lines


def corpus_ratio(ratios: dict, what: str) -> str:
    """A ratio, and its smallest and largest turn where there were several."""
    spread = f" ({times(ratios[f'{what}_min'])} to {times(ratios[f'{what}_max'])})"
    return f"{times(ratios[what])} times{spread if ratios[f'{what}_min'] < ratios[f'{what}_max'] else ''}"


def corpus_table() -> list[str]:
    record = load("corpus.json")
    speed, sizes = record["speed"], record["sizes"]
    lines = [CORPUS_HEADER, "|" + "---|" * 10, *corpus_rows(f"{megabytes(speed['bytes'])}, reviews", speed)]
    for row in sizes["rows"]:
        lines += corpus_rows(f"{megabytes(row['bytes'])}, generated", row)
    return lines


def select_columns(line: str, *columns: int) -> str:
    """Some columns of a table's line: a page of the documentation is narrower than RESULTS.md."""
    cells = line.split("|")[1:-1]
    return "|" + "|".join(cells[column] for column in columns) + "|"


def corpus_made(record: dict) -> str:
    return f"commit {record['commit']}, {record['date']}, Python {record['python']}, load {record['load']:g} before it began"


def corpus() -> str:
    """Text to shards, beside datasets, and the encoders by themselves."""
    record = load("corpus.json")
    speed, sizes = record["speed"], record["sizes"]
    versions, jobs = speed["versions"], f"{speed['jobs']} processes"
    unsaved, ours = (
        statistics.median(turn["seconds"] - turn.get("parts", {}).get("save", 0) for turn in speed["sides"][side])
        for side in ("datasets", "fast")
    )
    files = " ".join(f"DATA/{file}" for file in speed["files"])
    merge = sizes["rows"][0]["merge"]
    assert merge["identical"], "what the sentence below says"
    assert all(row["same_ids"] for row in (speed, *sizes["rows"]) if "datasets" in row["sides"])
    earlier = "; ".join(
        f"{run['turns']} turns, {times(run['times']['fast']['seconds'])} times by the clock and {times(run['times']['fast']['cpu'])} by processor time with `fast`, "
        f"{times(run['times']['plain']['seconds'])} and {times(run['times']['plain']['cpu'])} without"
        for run in speed.get("earlier", [])
    )
    lines = [
        "## Preparing a corpus",
        "",
        f"Reading, encoding and writing: from files of text to ids on disk. Three commands take turns, another one first each time, every one with {jobs} on {speed['cores']} CPU cores ({speed['machine']}) and timed from its start "
        f"to its end: `headstart prepare --jobs {speed['jobs']}` with the extra `fast` (gigatoken {versions['gigatoken']}), the same with gigatoken hidden from Python, and datasets {versions['datasets']} (`load_dataset`, `map` in batches, `save_to_disk`, all with "
        f"{jobs}) with the same tokenizer.json run by tokenizers {versions['tokenizers']}. The reviews are {len(speed['files'])} files of JSON lines (English films, French films, books and music; {speed['tokens']:,} tokens), {speed['turns']} turns, of which medians are shown and in brackets "
        f"the least and the most of a turn. The generated text has {sizes['files']} files at each size, 200,000 words as frequent as words are, and one turn; datasets was not run on the largest. Wherever datasets ran, what all sides had written was read again and compared: the same ids in the same documents. "
        "Other work shared the machine, as the table says, so processor time (of all processes together) says more than the clock. MB are 10⁶ bytes of the files.",
        "",
        *corpus_table(),
        "",
        f"A process holds little more memory for {megabytes(sizes['rows'][-1]['bytes'])} than for {megabytes(sizes['rows'][0]['bytes'])}. Who needs no `save_to_disk`, because `map` has left its own file in a cache, still waits {times(unsaved / ours)} times as long for datasets "
        f"as for `prepare` with `fast` on the reviews. Two halves of the {megabytes(sizes['rows'][0]['bytes'])} prepared apart and joined by `headstart merge` are byte for byte the folder prepared in one go ({merge['peak'] / 1e6:.0f} MB of memory).",
        "",
        *(
            [
                f"The reviews were measured before as well, with earlier code or more other work on the machine: {earlier}.",
                "",
            ]
            if earlier
            else []
        ),
        f"Commands: `python benchmarks/corpus.py speed {files} --turns {speed['turns']} --out docs/results/corpus.json` ({corpus_made(speed)}) and `python benchmarks/corpus.py sizes --out docs/results/corpus.json` ({corpus_made(sizes)}).",
        "",
        *encoders(load("encoders.json")),
    ]
    return "\n".join(lines)


def encoders(record: dict) -> list[str]:
    """Whose ids are those of tokenizers, and how fast."""
    speed, parity, versions = record["speed"], record["parity"], record["versions"]
    sides = [side for side in ENCODERS if side in parity[0]["differ"]]
    strings = sum(row["strings"] for row in parity)
    bad = {side: sum(row["differ"][side] for row in parity) for side in sides}
    lines = [
        "### Encoders: the same ids, on one core",
        "",
        f"{strings:,} strings were encoded by every side with one vocabulary of {record['vocabulary']:,} entries, and the ids compared with those of tokenizers {versions['tokenizers']}: {parity[0]['strings']:,} real sentences, generated strings that are hard to read, and one "
        f"string for every code point of Unicode. Headstart with the extra `fast` hands a string to gigatoken {versions['gigatoken']} only where a guard is sure that it reads it as tokenizers does. It gave other ids for {bad['headstart, fast']} of them, and without the extra for {bad['headstart']}.",
        "",
        "| strings | how many | left to gigatoken by the guard | "
        + " | ".join(f"read otherwise: {ENCODERS[side]}" for side in sides)
        + " |",
        "|" + "---|" * (3 + len(sides)),
        *(
            f"| {row['kind']} | {row['strings']:,} | {percent(row['to_gigatoken'] / row['strings'])} | "
            + " | ".join(f"{row['differ'][side]:,}" for side in sides)
            + " |"
            for row in parity
        ),
        f"| all | {strings:,} | {percent(sum(row['to_gigatoken'] for row in parity) / strings)} | "
        + " | ".join(f"{bad[side]:,}" for side in sides)
        + " |",
        "",
        f"Speed: {speed['texts']:,} whole reviews, {megabytes(speed['bytes'])}, in memory, in batches of 1,000, by one thread pinned to one core; medians of {speed['turns']} turns, every encoder made anew for each turn, so that no word is remembered from the last one. Headstart's encoder gives "
        "arrays of two bytes per id, tokenizers and kitoken give lists.",
        "",
        "| encoder | MB per second of one core (turns) | times tokenizers |",
        "|---|---|---|",
    ]
    for side, words in ENCODERS.items():
        if side in speed["median"]:
            turns = speed["mb_per_second"][side]["cpu"]
            ratio = "1" if side == "tokenizers" else times(speed["times"][side])
            lines.append(
                f"| {words} | {speed['median'][side]['cpu']:.1f} ({min(turns):.1f} to {max(turns):.1f}) | {ratio} |"
            )
    if versions.get("kitoken"):
        lines += [
            "",
            f"kitoken {versions['kitoken']} refuses the file as it is, because it does not know the bound of 64 bytes on a word (`FixedLength`); it was given the file without the bound, so it reads long runs otherwise, and beside them some blanks and rare characters.",
        ]
    files = " ".join(f"DATA/{file}" for file in record["files"])
    return [
        *lines,
        "",
        f"Commands: `python benchmarks/encoders.py {files} --out docs/results/encoders.json`, and for the speeds shown the same again with `--only speed --turns {speed['turns']}`; {corpus_made(record)}.",
    ]


def scaling_table() -> str:
    """The table of docs/scaling.md."""
    speed = load("corpus.json")["speed"]
    return "\n".join(
        [
            f"Measured with `--jobs {speed['jobs']}` on {speed['cores']} cores beside datasets {speed['versions']['datasets']} and tokenizers {speed['versions']['tokenizers']} with as many processes, the same ids written by all "
            "([RESULTS.md](../RESULTS.md#preparing-a-corpus) has the protocol and the commands, [corpus.json](results/corpus.json) every turn):",
            "",
            *(select_columns(line, 0, 1, 2, 6, 8, 9) for line in corpus_table()),
        ]
    )


def terabyte() -> str:
    """What docs/scaling.md counts from the speed on real text."""
    speed = load("corpus.json")["speed"]
    seconds = statistics.median(turn["cpu"] for turn in speed["sides"]["fast"]) / speed["bytes"] * 1e9
    return (
        f"Preparing it at the processor time measured above takes {1000 * seconds / 3600:.0f} core hours with the extra `fast` ({seconds:.0f} s per gigabyte of real text), "
        "shared out over as many machines as there are."
    )


COLD = {"headstart": "`headstart predict`", "transformers": "a script with a transformers `pipeline`"}
INT8 = "headstart, int8 export"


def cpu_answers(record: dict) -> list[str]:
    """A classifier's answers, with one thread and with two."""
    parts = [record["predict_1"], record["predict_2"]]
    lines = [
        "Answers of one classifier to the same texts; the others are a transformers `pipeline` of what `headstart export --to hf` wrote, and its exports for onnxruntime read by `headstart predict`. "
        "A classic network becomes an OPT of twice the width there (that is the only standard architecture it fits), a modern one a EuroBERT of its own size.",
        "",
    ]
    for what in ("snippets", "reviews"):
        ratios = [
            row["pipeline_wall"] for part in parts for row in part["rows"] if (row["who"], row["texts"]) == (INT8, what)
        ]
        lines.append(
            f"- {what.capitalize()}: the faster of the two pipelines takes {times(min(ratios))} to {times(max(ratios))} times as long as the int8 export, by the clock."
        )
    for row in record["agree"]["rows"]:
        lines.append(
            f"- {row['model']}, {row['count']:,} {row['texts']}: int8 gives the same label as full precision for {row['int8']:,} ({100 * row['int8'] / row['count']:.2f} %), "
            f"the fp32 export for {row['fp32']:,}."
        )
    lines += [
        "",
        "| threads | model | texts (mean tokens) | who | times Headstart's processor seconds | times its clock | the faster pipeline takes, times as long by the clock (processor) | same label |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        for row in part["rows"]:
            same = "–" if row["same"] is None else f"{row['same']} of {row['count']}"
            lines.append(
                f"| {part['machine']['threads']} | {row['model']} | {row['count']} {row['texts']} ({row['mean_tokens']:.0f}) | {row['who']} | {times(row['cpu'])} | {times(row['wall'])} | "
                f"{times(row['pipeline_wall'])} ({times(row['pipeline_cpu'])}) | {same} |"
            )
    return lines


def cpu_curves(record: dict) -> list[str]:
    """How the step grows with each size, the others held."""
    shape = record["shape"]
    lines = [
        f"How the step grows, from {shape['batch']} rows of {shape['length']} tokens, width {shape['width']}, {shape['vocabulary']:,} entries, one size changed at a time (medians of {record['rounds']} rounds, "
        f"{record['machine']['threads']} thread; in brackets the course's code):",
        "",
        "| size | value | tokens per processor second | ratio | MFU | peak memory, MiB |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['what']} | {row['value']:,} | {row['tokens_per_cpu_second']:,} ({row['course_tokens_per_cpu_second']:,}) | {times(row['cpu'])} | "
        f"{percent(row['mfu']['headstart'])} ({percent(row['mfu']['course'])}) | {row['mib']['headstart']:,} ({row['mib']['course']:,}) |"
        for row in record["rows"]
    ]


GPU_ROWS = {
    "classic": ("the course's language model", "transformers"),
    "gpt2": ("GPT-2 small", "transformers"),
    "modern": ("`modern`, masked, one document a row", "plain script"),
    "packed": ("`modern`, masked, documents packed", None),
}
GPU_SIDES = {
    "headstart": "Headstart",
    "headstart, torch's attention": "Headstart without cuDNN's attention",
    "transformers": "transformers' GPT-2, compiled",
    "transformers, filled up": "the same, its matrices filled up",
    "transformers, not filled up": "the same, its matrices as they are",
    "course, bf16": "the course's code, bf16",
    "course, fp32": "the course's code, fp32",
    "plain script": "a plain script, compiled",
}


def gpu() -> str | None:
    """A pretraining step on one GPU, beside others."""
    if not (RESULTS / "gpu.json").exists():
        return None
    record = load("gpu.json")
    rows = {name: record[name] for name in GPU_ROWS if name in record}
    machine = next(iter(rows.values()))["machine"]
    lines = [
        "## Speed on a GPU",
        "",
        f"One pretraining step, forward, backward, clipping and optimizer, on random tokens, in bf16, without dropout. The sides of a row take turns in one process ({machine['device']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}); figures are medians over rounds. Headstart runs its own loop with its own rows and compiled layers; the others find their rows on the device. transformers: GPT-2 in "
        "the same size, the whole model compiled, fused AdamW. The plain script: RMSNorm, rotary positions, SwiGLU, torch's attention, the whole model compiled, torch's Muon and AdamW. Fraction of peak is 6 operations per "
        "parameter and token and 12 × layers × length × width for attention, the same for all sides, over what a bf16 product of 8,192³ reached in the same run; strict counts the layers' matrices, "
        "the vocabulary where a token is scored, and attention within documents. Memory is the most that tensors took. Seconds until ready are those of building, compiling, recording and the first steps; sides were made one "
        "after the other, and a later one may find in the compiler's cache what an earlier one left.",
        "",
        "| step | who | tokens per second | times as long | fraction of peak (strict) | memory, GiB | seconds until ready |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines += gpu_rows(GPU_ROWS[name][0], row)
    shapes = "; ".join(f"{GPU_ROWS[name][0]} {gpu_shape(row)}" for name, row in rows.items())
    lines += ["", f"Rows of a step: {shapes}."]
    if "before" in rows.get("gpt2", {}):
        lines += ["", gpt2_before(rows["gpt2"])]
    if "curves" in record:
        lines += ["", *gpu_curves(record["curves"])]
    unpaired = [GPU_ROWS[name][0] for name, row in rows.items() if len(row["sides"]) == 1 and GPU_ROWS[name][1]]
    if unpaired:
        lines += ["", f"Not measured beside its peer yet: {', '.join(unpaired)}."]
    lines += ["", f"Commands: {commands(gpu_commands(record, rows))}."]
    return "\n".join([*lines, *gpu_finetuning(), *gpu_seeds()])


def gpu_commands(record: dict, rows: dict[str, dict]) -> list[tuple[str, dict]]:
    """The commands that reproduce the rows, and the machine of each; the rows of one run have one command."""
    runs: dict[str, list[str]] = {}
    for name, row in rows.items():
        runs.setdefault(json.dumps((row["machine"], row["rounds"], row["steps"])), []).append(name)
    commands = []
    for names in runs.values():
        row = rows[names[0]]
        parts = " ".join(name for name in names if name != "packed" or "modern" not in names)
        flags = f"--rounds {row['rounds']} --steps {row['steps']}"
        flags += f" --warm {row['warm']}" if "warm" in row else ""
        flags += " --variants" * any("headstart, torch's attention" in rows[name]["sides"] for name in names)
        flags += " --profile" * any("profile" in rows[name] for name in names)
        commands.append((f"python benchmarks/gpu.py {parts} {flags} --out docs/results/gpu.json", row["machine"]))
    curves = record.get("curves", {"rows": []})
    for commit in dict.fromkeys(row.get("commit") or curves["machine"]["commit"] for row in curves["rows"]):
        rows_of_commit = (row for row in curves["rows"] if (row.get("commit") or curves["machine"]["commit"]) == commit)
        which = " ".join(f"--curve {what}" for what in dict.fromkeys(row["what"] for row in rows_of_commit))
        command = f"python benchmarks/gpu.py curves {which} --out docs/results/gpu.json"
        commands.append((command, curves["machine"] if commit == curves["machine"]["commit"] else {"commit": commit}))
    return commands


def gpt2_before(row: dict) -> str:
    """Two runs of GPT-2 small, between which the peer's compiler decided differently."""
    now, before = row["sides"], row["before"]["sides"]

    def describe(sides: dict) -> str:
        ours, theirs = (statistics.median(sides[who]["ms"]) for who in ("headstart", "transformers"))
        return (
            f"{theirs:.1f} ms per step of transformers' against {ours:.1f} of Headstart's, {times(theirs / ours)} times"
        )

    return (
        f"Of GPT-2 small there are two runs. The compiler times by itself whether filling up the table of 50,257 entries pays, and decides for the whole run: in the table above it does ({describe(now)}), "
        f"in an earlier run (commit {row['before']['machine']['commit']}, {row['before']['machine']['date']}) it did not ({describe(before)})."
    )


def gpu_seeds() -> list[str]:
    """Several seeds at once on one GPU."""
    if not (RESULTS / "seeds.json").exists():
        return []
    record = load("seeds.json")
    (one, alone), (many, together) = record["seconds"].items()
    service = ", NVIDIA's multi-process service on" if record.get("service") else ""
    start = "nvidia-cuda-mps-control -d; " if service else ""
    command = f"{start}python benchmarks/seeds.py --rows {record['rows']} --from {record['from']} --seeds {many} --out docs/results/seeds.json"
    return [
        "",
        f"Seeds of a comparison on the same GPU: `headstart compare --from {record['from']} --arms pretrained` on {record['rows']:,} made-up labelled texts took {alone:.0f} s with {one} seed and {together:.0f} s with {many} seeds at "
        f"once (`--jobs {many}`{service}), {times(record['ratio'])} times as long, start of the processes included.",
        "",
        f"Command: {commands([(command, record)])}.",
    ]


def gpu_finetuning() -> list[str]:
    """Fine-tuning steps on one GPU, beside the course's code and unrecorded."""
    if not (RESULTS / "finetuning.json").exists():
        return []
    record = load("finetuning.json")
    lines = [
        "",
        f"Fine-tuning on the same GPU, wall clock with everything included, medians of {record['rounds']} rounds in turn in one process (texts of random tokens, log-normal lengths, bf16; the course's code in fp32 as it is):",
        "",
        "| network | texts per step | mean tokens | the course's code, texts/s | Headstart unrecorded | Headstart | against the course's code | against unrecorded |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in ("classic", "modern", "long") if name in record]
    command = f"python benchmarks/finetuning.py {' '.join(names)} --rounds {record['rounds']} --out docs/results/finetuning.json"
    for name in names:
        row = record[name]
        rates, ratios = row["texts_per_second"], row["ratios"]
        peer = f"{rates['course']:,.0f}" if "course" in rates else "–"
        against = times(ratios["recorded / course"]) if "course" in rates else "–"
        lines.append(
            f"| {'modern' if name == 'long' else name} | {row['batch']} | {row['tokens_per_text']} | {peer} | {rates['plain']:,.0f} | {rates['recorded']:,.0f} | {against} | {times(ratios['recorded / plain'])} |"
        )
    return [
        *lines,
        "",
        f"Command: {commands([(command, record)])}.",
    ]


def gpu_shape(row: dict) -> str:
    shape = row["shape"]
    packed = f" in documents of {shape['mean']:.0f} on average" if shape.get("mean") else ""
    return f"{shape['batch']} × {shape['length']:,} tokens{packed}, {shape['vocabulary']:,} entries"


def gpu_rows(title: str, row: dict) -> list[str]:
    """The sides of one step; one that could not run has no figures to show."""
    ours = row["sides"]["headstart"]["tokens_per_second"]
    lines = []
    for name, side in row["sides"].items():
        if "tokens_per_second" not in side:
            continue
        fraction = percent(side["mfu"]) + (f" ({percent(side['strict_mfu'])})" if "strict_mfu" in side else "")
        ratio = times(ours / side["tokens_per_second"]) if name != "headstart" else "1"
        lines.append(
            f"| {title} | {GPU_SIDES[name]} | {side['tokens_per_second']:,.0f} | {ratio} | {fraction} | {side['gib']:.1f} | {side['ready_s']:.1f} |"
        )
    return lines


def gpu_curves(record: dict) -> list[str]:
    """How Headstart's step grows with each size."""
    shape = record["shape"]
    lines = [
        f"How the step grows, from {shape['batch']} rows of {shape['length']} tokens read causally, width {shape['width']}, {shape['depth']} layers, {shape['vocabulary']:,} entries, one size changed at a time "
        "(the tokens of a step stay the same while rows get longer):",
        "",
        "| size | value | tokens per second | fraction of peak | memory, GiB | commit |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['what']} | {row['value']:,} | {row['tokens_per_second']:,.0f} | {percent(row['mfu'])} | {row['gib']:.1f} | {row.get('commit') or record['machine']['commit']} |"
        for row in record["rows"]
        if "tokens_per_second" in row
    ]


def gpu_table() -> str:
    """Where a GPU's step goes, for docs/performance.md: its kernels where they were recorded."""
    record = load("gpu.json") if (RESULTS / "gpu.json").exists() else {}
    lines = []
    for name, (title, peer) in GPU_ROWS.items():
        sides = record.get(name, {}).get("sides", {})
        measured = {who: sides[who] for who in ("headstart", peer) if "tokens_per_second" in sides.get(who, {})}
        if len(measured) == 2:
            ratio = measured["headstart"]["tokens_per_second"] / measured[peer]["tokens_per_second"]
            lines.append(
                f"- {title}: {times(ratio)} times {GPU_SIDES[peer]}, {measured['headstart']['gib']:.1f} GiB beside {measured[peer]['gib']:.1f}."
            )
        elif measured:
            ours = measured["headstart"]
            lines.append(
                f"- {title}: {ours['tokens_per_second']:,.0f} tokens per second, {percent(ours['mfu'])} of what a product of 8,192³ reaches."
            )
        kernels = record.get(name, {}).get("profile", {}).get("headstart", [])
        if kernels:
            first = "; ".join(f"`{row['kernel'][:60]}` {row['ms']:.2f} ms" for row in kernels[:6])
            lines.append(f"  Its longest kernels: {first}.")
    return "\n".join(lines or ["Not measured yet: `python benchmarks/gpu.py --profile --out docs/results/gpu.json`."])


def profile_table() -> str:
    """Where one step's time goes, for docs/performance.md."""
    record = load("cpu.json")["profile"]
    shape = record["shape"]
    return "\n".join(
        [
            f"One step of the classic language model ({shape['batch']} rows of {shape['length']} tokens, {shape['vocabulary']:,} entries); the loss with its gradients is {percent(record['loss'])} of it.",
            "",
            "| operation | fraction of the step, by itself | calls |",
            "|---|---|---|",
            *(f"| `{row['name']}` | {percent(row['fraction'])} | {row['calls']} |" for row in record["rows"]),
        ]
    )


def fill_section(text: str, marker: str, content: str) -> str:
    """Replace the text between two markers of a document."""
    before, _, rest = text.partition(f"<!-- {marker} -->\n")
    _, _, after = rest.partition(f"<!-- /{marker} -->")
    return f"{before}<!-- {marker} -->\n{content}\n<!-- /{marker} -->{after}"


def shown_reports() -> dict[Path, str]:
    """The page of reports to look at, as it should read."""
    reports = ROOT / "docs" / "reports.md"
    text = fill_section(reports.read_text(encoding="utf-8"), "RESULTS:books", verdict_list("cls-books"))
    return {reports: fill_section(text, "RESULTS:films", verdict_list("imdb"))}


def pages() -> dict[Path, str]:
    """Every page that holds results, as it should read."""
    lesson = ROOT / "docs" / "course.md"
    lesson_text = fill_section(lesson.read_text(encoding="utf-8"), "RESULTS:course", course_table())
    lesson_text = fill_section(lesson_text, "RESULTS:course-lm", language_table())
    parts = [
        PROTOCOL,
        course(),
        "",
        recipe(),
        "",
        book_reviews(),
        "",
        film_reviews(),
        "",
        coverage(),
        "",
        torture(),
        "",
        serving(),
        "",
        ranks(),
        "",
        cpu(),
        "",
        corpus(),
        "",
        *(part for page in (gpu(),) if page for part in (page, "")),
        *filter(None, [starters()]),
    ]
    speed = ROOT / "docs" / "performance.md"
    speed_text = fill_section(speed.read_text(encoding="utf-8"), "RESULTS:profile", profile_table())
    speed_text = fill_section(speed_text, "RESULTS:gpu", gpu_table())
    large = ROOT / "docs" / "scaling.md"
    large_text = fill_section(large.read_text(encoding="utf-8"), "RESULTS:corpus", scaling_table())
    large_text = fill_section(large_text, "RESULTS:terabyte", terabyte())
    return {ROOT / "RESULTS.md": "\n".join(parts), lesson: lesson_text, speed: speed_text, large: large_text}


if __name__ == "__main__":
    for path, text in (pages() | shown_reports()).items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
