"""Makes RESULTS.md from the result folders under docs/results: nobody types a number.

python benchmarks/results.py
"""

import json
import sys
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


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


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
        "doubles of train left out | the same, every row |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["protocols"]:
        cells = [NAMES[row["arm"]]]
        cells.append(f"{row['course']['mean']:.3f} ({span(row['course']['low'], row['course']['high'])})")
        cells.append(span(*PUBLISHED[row["arm"]]))
        cells += [
            f"{row[key]['mean']:.3f} ({span(row[key]['low'], row[key]['high'])})"
            for key in ("first", "last", "honest", "honest_every_row")
        ]
        lines.append("| " + " | ".join(cells) + " |")
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
            whole, part = arm["test_accuracy"]["mean"], arm["test_accuracy_without_overlap"]
            lines.append(f"| {NAMES[arm['arm']]} | – | {part:.3f} | {whole:.3f} | – | – |")
    lines += ["", *(f"- {sentence}" for sentence in results["verdict"])]
    return "\n".join(lines)


def language_table() -> str:
    """How the language model of docs/course.md grew."""
    lines = [
        '| steps | held-out loss, nats a piece | perplexity | bits per byte | "Bonjour les" goes on with |',
        "|---|---|---|---|---|",
    ]
    entries = load("course", "language-model", "evaluations.json")
    said = {entry["step"]: entry["text"].strip() for entry in entries if entry["kind"] == "sample"}
    measured = [entry for entry in entries if entry["kind"] == "evaluation"]
    for entry in [*measured[::4], measured[-1]]:
        lines.append(
            f"| {entry['step']:,} | {entry['loss']:.3f} | {entry['perplexity']:.1f} | {entry['bits_per_byte']:.3f} | {said[entry['step']]} |"
        )
    whole = f"over all {measured[-1]['tokens']:,} held-out tokens, the others over the first {measured[0]['tokens']:,}"
    return "\n".join([*lines, "", f"The last line is {whole}."])


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
        f"The intervals held the truth {100 * min(ours):.1f} % of the time in the worst world, {100 * sum(ours) / len(ours):.1f} % on average (a measured share may "
        f"stray by {100 * simulation['tolerance']:.1f} points by chance).",
        "",
        "| seeds | test texts | coverage, worst world to best | most false alarms | finds 1 point | finds 3 points |",
        "|---|---|---|---|---|---|",
    ]
    for seeds, texts in sorted({(row["seeds"], row["texts"]) for row in rows}):
        here = [row for row in rows if (row["seeds"], row["texts"]) == (seeds, texts)]
        shares = [row["methods"]["headstart"]["coverage"] for row in here]
        alarms = [row["methods"]["headstart"]["claims"] for row in here if row["difference"] == 0]
        found = " | ".join(power(here, points) for points in (1.0, 3.0))
        lines.append(f"| {seeds} | {texts:,} | {min(shares):.3f} to {max(shares):.3f} | {max(alarms):.3f} | {found} |")
    lines += [
        "",
        "A difference is found when the interval leaves 0 out; these are networks whose seeds spread by 1 point. Few test texts find little, whatever the seeds: "
        "200 texts are not enough to see 3 points.",
        "",
        "| interval | coverage in the worst world | of arms that answer nearly alike | worlds in which it falls short | mean width, points |",
        "|---|---|---|---|---|",
    ]
    for name, words in METHODS.items():
        each = [row["methods"][name] for row in rows]
        twins, others = (
            min(row["methods"][name]["coverage"] for row in rows if (row["kind"] == "twins") == alike)
            for alike in (True, False)
        )
        short = sum(found["coverage"] < 0.95 - simulation["tolerance"] for found in each)
        width = sum(found["width"] for found in each) / len(each)
        lines.append(f"| {words} | {others:.3f} | {twins:.3f} | {short} of {len(rows)} | {width:.1f} |")
    worth = [row["coverage"] for row in simulation["labels"]]
    ended = [row["has_upper_end"] for row in simulation["labels"]]
    lines += [
        "",
        f"What pretraining is worth in labels is read off a curve with the same interval. In {len(worth)} worlds of {simulation['labels_tables']} tables (3, 5 and 10 seeds, 200 and 2,000 texts, "
        f"a curve that gains 6 points whenever labels grow fourfold) it held the truth {100 * min(worth):.1f} to {100 * max(worth):.1f} % of the time, and had an upper end "
        f'rather than "more than" in {100 * min(ended):.0f} to {100 * max(ended):.0f} % of the tables.',
    ]
    return "\n".join([*lines, "", *trainings(record["trainings"])])


def power(rows: list[dict], points: float) -> str:
    """How often a difference was found, between networks whose seeds spread by a point."""
    wanted = {"kind": "networks", "difference": points, "luck": 1.0, "hardness": 1.0, "shared": 0.5}
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return f"{found[0]['methods']['headstart']['right_claims']:.2f}" if found else "–"


def trainings(record: dict) -> list[str]:
    """What the report claims of real trainings whose truth is known."""
    lines = [
        f"The same with real trainings: for each kind of world, {record['each']} times a tiny network was pretrained on made-up texts and compared with random weights "
        "(12 labels, 300 test texts), and this is what the report claims of pretraining:",
        "",
        "| world | seeds | a gain | a loss | nothing measurable |",
        "|---|---|---|---|---|",
    ]
    for found in record["counts"]:
        world = WORLDS[found["kind"]]
        lines.append(f"| {world} | {found['seeds']} | {found['gain']} | {found['loss']} | {found['neither']} |")
    return [
        *lines,
        "",
        "Commands: `python benchmarks/coverage.py` and `python benchmarks/coverage.py --trainings`, about one and ten minutes of a CPU core. The first draws the same tables every time.",
    ]


def serving() -> str:
    """How fast a server answers, beside plain ones."""
    record = load("serving.json")
    shed = record["overload"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        "## Serving",
        "",
        f"A classifier of the default shape (width 200, 4 layers, random weights), made-up texts of 5 to 120 words, one text a request; {record['cores']} cores of {record['machine']}, shared with "
        f"the client and other work, one thread a model. Servers took turns, {record['rounds']} rounds of {record['seconds']:g} s; rates are medians. Milliseconds of CPU a text are the server's own and depend "
        "least on who else is at work.",
        "",
        "| clients | server | texts a second, median (each round) | p50 ms | p99 ms | CPU ms a text | headstart serve: times its rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=lambda row: row["clients"]):
        each = ", ".join(f"{rate:.0f}" for rate in row["rates"])
        lines.append(
            f"| {row['clients']} | {row['server']} | {row['rate']:.0f} ({each}) | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} | {row['cpu_ms_a_text']:.2f} | {row['headstart_ratio']:.2f} |"
        )
    statuses = ", ".join(f"{count:,} × {status}" for status, count in shed["statuses"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Asked at twice its best rate ({shed['asked_a_second']:.0f} texts a second, a deadline of {shed['deadline_ms']:,} ms), it answered {statuses}; accepted requests took "
            f"{shed['accepted_p50_ms']:.0f} ms (p50) and {shed['accepted_p99_ms']:.0f} ms (p99), as the client saw them.",
            "",
            f"Command: `python benchmarks/serving.py`; {versions}.",
        ]
    )


def filled(text: str, marker: str, content: str) -> str:
    """A document with what stands between two markers replaced."""
    before, _, rest = text.partition(f"<!-- {marker} -->\n")
    _, _, after = rest.partition(f"<!-- /{marker} -->")
    return f"{before}<!-- {marker} -->\n{content}\n<!-- /{marker} -->{after}"


def pages() -> dict[Path, str]:
    """Every page that holds results, as it should read."""
    lesson = ROOT / "docs" / "course.md"
    lesson_text = filled(lesson.read_text(encoding="utf-8"), "RESULTS:course", course_table())
    lesson_text = filled(lesson_text, "RESULTS:course-lm", language_table())
    return {
        ROOT / "RESULTS.md": "\n".join([PROTOCOL, course(), "", coverage(), "", serving(), ""]),
        lesson: lesson_text,
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
