"""reviews-french.md and reviews-english.md: pretraining on reviews, and accuracy by number of labels."""

from itertools import product

from .linear import against_linear, label_curve
from .markdown import NAMES, arm_of, commands, difference, load, percent, percent_range, table
from .pretraining import T_OF_FIVE, made


def round_to_two_figures(number: float) -> str:
    """Round to two significant figures.

    >>> round_to_two_figures(983.2)
    '980'
    """
    return f"{float(f'{number:.2g}'):,.0f}"


def french_all_labels() -> list[str]:
    """The modern network on all labels of cls-books."""
    record = load("recipe.json")
    books, linear = record["cls_books"], arm_of(load("course", "results.json"), "linear", "all")
    stages = " then ".join(f"{stage['texts']} ({stage['tokens_seen'] / 1e6:.0f} M tokens)" for stage in books["stages"])
    tests = books["test"]
    mean = sum(tests) / len(tests)
    error = (sum((accuracy - mean) ** 2 for accuracy in tests) / (len(tests) - 1) / len(tests)) ** 0.5
    half = (T_OF_FIVE**2 * error**2 + 1.96**2 * mean * (1 - mean) / books["test_rows"]) ** 0.5
    return [
        "## All 1,600 labels",
        "",
        f"Network: `modern` (40.5 M parameters), hybrid objective, pretrained for {books['minutes']:g} minutes on one {record['gpu']} ({books['tokens_seen'] / 1e6:.0f} M tokens, "
        f"{books['tokens_per_second'] / 1e3:.0f} k tokens/s) on {stages}. No test text is in the pretraining text. On held-out reviews the causal loss is {books['stages'][1]['held_out']['bits_per_byte']:.3f} bits per byte. "
        f"The settings were fixed by cross-validation before; the test file was read in {books['test_evaluations']} evaluation, of five seeds of one setting. The interval combines the variance of seeds and of test texts.",
        "",
        *table(
            ["arm", "test accuracy", "95 % interval", "worst seed", "each seed"],
            [
                [
                    "pretrained, 5 seeds",
                    percent(mean),
                    percent_range(mean - half, mean + half),
                    percent(min(tests)),
                    ", ".join(f"{accuracy:.4f}" for accuracy in tests),
                ]
            ],
        ),
        "",
        f"The linear model on the same rows: {percent(linear['test_accuracy']['mean'])} ([course experiment](course.md)).",
        "",
        f"The two folders are prepared from `DATA/french-novels` and `DATA/french-reviews`; the second command is run for each seed ({made(record)}):",
        "",
        *commands(books["command"], books["finetune"]),
    ]


def label_table(results: dict) -> list[str]:
    """Every number of labels and every arm but the majority class, also where an arm was not run."""
    arms = {(arm["labels"], arm["arm"]): arm for arm in results["arms"] if arm["arm"] != "majority"}
    budgets = {
        arm["labels"]: f"{arm['rows']:,}" + (" (all)" if arm["labels"] == "all" else "") for arm in arms.values()
    }
    rows = []
    for labels, name in product(budgets, dict.fromkeys(name for _, name in arms)):
        arm = arms.get((labels, name))
        if arm is None:
            rows.append([budgets[labels], NAMES[name], "not run", "", "", ""])
            continue
        estimate, accuracies = arm["test_accuracy"], arm["test_accuracies"]
        rows.append(
            [
                budgets[labels],
                NAMES[name],
                percent(estimate["mean"]),
                percent_range(estimate["low"], estimate["high"]),
                percent(min(accuracies)) if len(accuracies) > 1 else "one run",
                percent(arm["test_accuracy_without_overlap"]),
            ]
        )
    header = ["labels", "arm", "test accuracy", "95 % interval", "worst seed", "without duplicates"]
    return table(header, rows)


def _needed(point: dict) -> str:
    """Format a number of labels with its interval; beyond the curve it is "more than" its last point."""
    beyond = f"more than {point['last']:,}"
    at = beyond if point["at"] is None else f"about {round_to_two_figures(point['at'])}"
    if point["low"] is None or round_to_two_figures(point["low"]) == f"{point['last']:,}":
        return at
    high = beyond if point["high"] is None else round_to_two_figures(point["high"])
    return f"{at} ({round_to_two_figures(point['low'])} to {high})"


def gain_table(results: dict) -> list[str]:
    """What pretraining gained at each number of labels, in points and in labels."""
    gains = sorted(results["gain"], key=lambda gain: gain["labels"]["rows"])
    rows = []
    for gain in gains:
        needed, budget = gain["labels"]["needed"], gain["labels"]["rows"]
        saved = (needed["last"] if needed["at"] is None else needed["at"]) - budget
        rows.append(
            [
                f"{budget:,}" + (" (all)" if gain["budget"] == "all" else ""),
                difference(gain["points"]),
                gain["points"]["seeds"],
                _needed(needed),
                "–" if gain["budget"] == "all" else f"more than {saved:,}" if needed["at"] is None else f"{saved:,.0f}",
                _needed(gain["linear_labels"]["needed"]),
            ]
        )
    return table(
        [
            "labels",
            "gain over random weights, points (95 %)",
            "paired seeds",
            "labels that the network from random weights needs for the same accuracy",
            "labels saved",
            "labels that the linear model needs (95 %)",
        ],
        rows,
    )


def _winner(results: dict) -> list[str]:
    """Which arm has the best accuracy with all labels, and how soon."""
    pretrained, linear = (arm_of(results, arm, "all")["test_accuracy"]["mean"] for arm in ("pretrained", "linear"))
    epochs = next(gain for gain in results["gain"] if gain["budget"] == "all")["epochs"]
    return [
        f"- With all labels the pretrained network has the best test accuracy: {percent(pretrained)}, {100 * (pretrained - linear):.1f} points above the linear model ({percent(linear)}).",
        f"- Its validation accuracy after one epoch ({percent(epochs['accuracy'])}) is not reached by the network from random weights in {epochs['needed']['last']} epochs.",
    ]


def french_label_curve() -> list[str]:
    """The label curve on French book reviews."""
    about, run, results = load("cls-books", "about.json"), load("cls-books", "run.json"), label_curve("cls-books")
    environment, classic = load("cls-books", "environment.json"), load("course", "results.json")
    few = {name: percent(arm_of(results, name, 50)["test_accuracy"]["mean"]) for name in NAMES if name != "naive_bayes"}
    needs = next(gain for gain in results["gain"] if gain["budget"] == 50)["linear_labels"]["needed"]
    return [
        "## 50 to 1,600 labels",
        "",
        f"- With 50 labels the test accuracy is {few['pretrained']} for the pretrained network, {few['scratch']} for the same network from random weights and {few['linear']} for the linear model, "
        f"which needs about {round_to_two_figures(needs['at'])} labels for the accuracy of the pretrained network (95 % interval {round_to_two_figures(needs['low'])} to {round_to_two_figures(needs['high'])}).",
        *_winner(results),
        "",
        f"The pretrained network of the previous section, fine-tuned with the settings of the preset. Settings were fixed before; each of the {about['runs']} runs read the test file once "
        f"({about['runs_of_an_interrupted_run']} runs were completed before an interruption, the others after the command was repeated). The column *without duplicates* leaves out the 43 test reviews that are also in the training "
        "part. No test review is in the pretraining text.",
        "",
        *label_table(results),
        "",
        *gain_table(results),
        "",
        *against_linear("cls-books"),
        "",
        "The network from random weights uses the settings that were chosen for the pretrained one, and has 40 M parameters for 1,600 texts. The smaller network of the course reaches "
        f"{percent(arm_of(classic, 'scratch', 'all')['test_accuracy']['mean'])} from random weights on the same rows ([course experiment](course.md)).",
        "",
        f"Commit {about['commit']}, {about['date']}, one {environment['gpu']}, torch {environment['torch']}, seeds 0 to 4. Full report: [cls-books/report.html](cls-books/report.html).",
        "",
        *commands(run["command"]),
    ]


def verdict_list(name: str) -> str:
    """The verdict of a report as a list."""
    return "\n".join(f"- {sentence}" for sentence in label_curve(name)["verdict"])


def english_label_curve() -> list[str]:
    """The label curve on English film reviews."""
    about, config, results = load("imdb", "about.json"), load("imdb", "config.json"), label_curve("imdb")
    environment, text = load("imdb", "environment.json"), about["pretraining"]
    pretrained, scratch, tfidf, linear = (
        arm_of(results, arm, "all") for arm in ("pretrained", "scratch", "tfidf", "linear")
    )
    return [
        "## 100 to 24,000 labels",
        "",
        *_winner(results),
        "",
        f"Data: the Large Movie Review Dataset. Network: `modern` (40.5 M parameters), hybrid objective, pretrained on the training and unlabelled texts without their labels: {text['tokens_seen'] / 1e6:.0f} M tokens in {text['minutes']:g} "
        f"minutes on one {environment['gpu']}, including start-up (an upper bound: tests ran on the same machine). On held-out reviews the causal loss is {text['held_out']['bits_per_byte']:.3f} bits per byte. "
        f"Fine-tuning uses the settings of the preset, which were chosen on the French reviews without a test file. Test: {about['test_rows']:,} reviews. The column *without duplicates* leaves out the 129 test reviews that are duplicates or "
        f"near-duplicates of training reviews. {about['in_pretraining_text']} test reviews are in the pretraining text, without their labels.",
        "",
        *label_table(results),
        "",
        *gain_table(results),
        "",
        *against_linear("imdb"),
        "",
        f"- With all labels the pretrained network reaches {percent(pretrained['test_accuracy']['mean'])} (worst seed {percent(min(pretrained['test_accuracies']))}): above TF-IDF + logistic regression ({percent(tfidf['test_accuracy']['mean'])}) and the linear model ({percent(linear['test_accuracy']['mean'])}), and below the "
        f"{percent(about['published']['ulmfit'])} published for ULMFiT, which was also pretrained on Wikipedia.",
        f"- From random weights the same network reaches {percent(scratch['test_accuracy']['mean'])} with all {scratch['rows']:,} labels (worst seed {percent(min(scratch['test_accuracies']))}): below both of them, and below the pretrained "
        f"network with 100 labels. It uses the settings chosen for the pretrained network, and like it {pretrained['best_epochs'][0]} epochs with all labels (a run has at most {config['loop']['max_steps']:,} steps).",
        f"- {_second_backbone(about, results)}",
        "- With all labels the linear model was evaluated twice: first fitted on a sample of the rows, then, after a limit on its features had been raised, on all rows. The tables show the second evaluation.",
        "",
        *_english_commands(about, results, environment),
    ]


def _second_backbone(about: dict, results: dict) -> str:
    """A second pretraining with the same settings, and how often the test file was read."""
    earlier = about["earlier"]["pretrained"]
    again = ", ".join(percent(arm_of(results, "pretrained", row["labels"])["test_accuracy"]["mean"]) for row in earlier)
    before = ", ".join(percent(sum(row["seeds"]) / len(row["seeds"])) for row in earlier)
    runs = sum(len(arm["seeds"]) for arm in results["arms"] if arm["arm"] != "linear")
    earlier_runs = sum(len(row["seeds"]) for row in earlier)
    return (
        f"A second backbone, pretrained with the same settings, reaches {before} with 100, 500 and 1,000 labels; this one reaches {again}. Each of the {runs} runs read the test file once, "
        f"as did each of the {earlier_runs} runs of the second backbone, with settings fixed before."
    )


def _english_commands(about: dict, results: dict, environment: dict) -> list[str]:
    """The three sessions, each with its arms, commit and commands."""
    lines = [
        f"The runs were made in {len(about['commands'])} sessions with the same rows, label subsets, tokenizer and settings (seeds 0 to 4, torch {environment['torch']}). A network from random weights takes only its shape and its "
        "tokenizer from `base`. Run times are not comparable between sessions. Full report, with the command for all of it: [imdb/report.html](imdb/report.html).",
        "",
        "Pretraining (`texts` is prepared from `DATA/imdb/train.parquet` and `unlabelled.parquet` with a tokenizer of 16,384 entries trained on them):",
        "",
        *commands(about["pretraining"]["command"]),
    ]
    for session in about["commands"]:
        arms = "; ".join(_arm_with_labels(arm, labels, results) for arm, labels in session["runs"].items())
        lines += [
            "",
            f"{arms[:1].upper()}{arms[1:]} (commit {session['commit']}, {session['date']}):",
            "",
            *commands(*([session["base"]] if "base" in session else []), session["command"]),
        ]
    return lines


def _arm_with_labels(arm: str, labels: list, results: dict) -> str:
    """Name an arm, and its numbers of labels unless it has all of the report's."""
    if labels == [row["labels"] for row in results["arms"] if row["arm"] == arm]:
        return NAMES[arm]
    *others, last = (budget if budget == "all" else f"{budget:,}" for budget in labels)
    return f"{NAMES[arm]} with {', '.join(others)} and {last} labels"


def headline(folder: str, arm: str, labels: int | str) -> tuple[str, str]:
    """Return a test accuracy and its interval, for the page of headlines."""
    estimate = arm_of(label_curve(folder), arm, labels)["test_accuracy"]
    return percent(estimate["mean"]), percent_range(estimate["low"], estimate["high"])
