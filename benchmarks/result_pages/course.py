"""course.md: the experiment of the course, by its own protocol and by the usual one; and the tables of docs/course.md."""

from .markdown import NAMES, arm_of, commands, load, percent, percent_range, points, points_range, table

PUBLISHED = {"scratch": (0.743, 0.798), "pretrained": (0.769, 0.818)}
"""The published test accuracies of the best epoch, lowest and highest."""


def _fraction_range(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _over_seeds(reading: dict) -> str:
    return f"{reading['mean']:.3f} ({_fraction_range(reading['low'], reading['high'])})"


def _gain(results: dict) -> list[str]:
    """What pretraining gained, in points and in epochs."""
    gain = results["gain"][0]
    estimate, epochs = gain["points"], gain["epochs"]
    linear, pretrained = (arm_of(results, arm, "all")["test_accuracy"]["mean"] for arm in ("linear", "pretrained"))
    needed = epochs["needed"]
    high = f"more than {needed['last']}" if needed["high"] is None else needed["high"]
    return [
        f"- The linear model has the best test accuracy: {percent(linear)}, which is {100 * (linear - pretrained):.1f} points above the pretrained network ({percent(pretrained)}).",
        f"- Pretrained or from random weights: no clear winner ({points(estimate['mean'])} points, 95 % interval {points_range(estimate['low'], estimate['high'])}, {estimate['seeds']} paired seeds).",
        f"- The pretrained network converges faster. Its validation accuracy after one epoch ({percent(epochs['accuracy'])}) is reached by the network from random weights after "
        f"{needed['at']} epochs (95 % interval {needed['low']} to {high}).",
    ]


def experiment() -> list[str]:
    """The networks and the baselines on the same rows."""
    about, results = load("course", "about.json"), load("course", "results.json")
    language, config = load("course", "language-model", "result.json"), load("course", "config.json")
    environment, held = load("course", "environment.json"), load("course", "language-model", "result.json")["held_out"]
    arms = [
        [
            NAMES[arm["arm"]],
            percent(arm["test_accuracy"]["mean"]),
            percent_range(arm["test_accuracy"]["low"], arm["test_accuracy"]["high"]),
            f"{arm['test_macro_f1']:.3f}",
            arm["test_accuracy"]["seeds"],
        ]
        for arm in results["arms"]
    ]
    differences = [
        [
            f"{NAMES[row['arm']]} − {NAMES[row['other']]}",
            points(row["estimate"]["mean"]),
            points_range(row["estimate"]["low"], row["estimate"]["high"]),
        ]
        for row in results["differences"]
    ]
    return [
        "## Networks and baselines",
        "",
        *_gain(results),
        "",
        "Data: cls-books (French book reviews), 1,600 training, 400 validation and 2,000 test rows. Network: preset `classic` with the original vocabulary, 21,018,401 parameters as a language model, "
        f"10,968,602 as a classifier. It was pretrained with the causal objective on `french-novels` and `french-reviews` for {about['pretraining_minutes']} minutes on one {environment['gpu']}: "
        f"{language['steps']:,} steps of 16 documents, {language['tokens_seen']:,} tokens, fp32, Adam with learning rate 3e-4. On held-out text the loss is {held['loss']:.3f}, the perplexity "
        f"{held['perplexity']:.1f}, and {held['bits_per_byte']:.3f} bits per byte ({held['tokens']:,} tokens). Fine-tuning uses the published settings: Adam with learning rate "
        f"{config['optim']['lr']:g}, batch size {config['loop']['batch_size']}, {config['loop']['epochs']} epochs, gradient clipping at {config['optim']['clip']}. The epoch is chosen on validation; test is read once per run.",
        "",
        *table(["arm", "test accuracy", "95 % interval", "macro-F1", "seeds"], arms),
        "",
        *table(["paired difference", "points", "95 % interval"], differences),
    ]


def protocols() -> list[str]:
    """The same runs by the course's protocol and by the usual one."""
    about, results = load("course", "about.json"), load("course", "results.json")
    environment = load("course", "environment.json")
    rows = [
        [
            NAMES[row["arm"]],
            _over_seeds(row["course"]),
            _fraction_range(*PUBLISHED[row["arm"]]),
            *(_over_seeds(row[key]) for key in ("first", "last", "honest", "honest_every_row")),
        ]
        for row in results["protocols"]
    ]
    return [
        "## The same runs under two protocols",
        "",
        "The course reports the best test accuracy over all epochs, which uses the test file to choose the epoch. The usual protocol chooses the epoch on validation. "
        "Test accuracy, mean over seeds with the worst and the best seed in brackets:",
        "",
        *table(
            [
                "arm",
                "course protocol: best epoch on test, all rows",
                "published, best epoch",
                "first epoch",
                "last epoch",
                "epoch chosen on validation, duplicates of training texts excluded",
                "epoch chosen on validation, all rows",
            ],
            rows,
        ),
        "",
        "Under the course protocol, the network from random weights is within the published range, and the pretrained network is at the lower end of its published range (it was pretrained for minutes on one GPU, "
        "not for 12 hours). Choosing the epoch on the test file raises the accuracy of each network by about one point. Pretraining mainly reduces the number of epochs. Both networks are less accurate than a linear model "
        "that is trained in seconds.",
        "",
        "![Validation accuracy by epoch](course/figures/curves.png)",
        "",
        "![Test accuracy by epoch, as in the course protocol](course/figures/curves-test.png)",
        "",
        *(
            f'Greedy continuation of "{sample["prompt"]}" by the language model: *{sample["text"].strip()}*'
            for sample in load("course", "samples.json")
        ),
        "",
        f"Commit {about['commit']}, {about['date']}, one {environment['gpu']}, torch {environment['torch']}, seeds 0 to 4. Full report: [course/report.html](course/report.html).",
        "",
        *commands(about["command"]),
        "",
        f"The linear model of this version was fitted on the same rows later, on a CPU (commit {about['linear']['commit']}). TF-IDF + logistic regression is the earlier linear arm.",
        "",
        *commands(about["linear"]["command"]),
    ]


def course_table() -> str:
    """The table of docs/course.md."""
    results = load("course", "results.json")
    keys = ("course", "honest", "honest_every_row", "first", "last")
    rows = [[NAMES[row["arm"]], *(_over_seeds(row[key]) for key in keys)] for row in results["protocols"]]
    for arm in results["arms"]:
        if arm["arm"] not in PUBLISHED:
            every_row, without_overlap = arm["test_accuracy"]["mean"], arm["test_accuracy_without_overlap"]
            rows.append([NAMES[arm["arm"]], "–", f"{without_overlap:.3f}", f"{every_row:.3f}", "–", "–"])
    header = [
        "arm",
        "course protocol",
        "epoch chosen on validation, 43 duplicates excluded",
        "the same, all rows",
        "first epoch",
        "last epoch",
    ]
    return "\n".join([*table(header, rows), "", *_gain(results)])


def language_table() -> str:
    """How the language model of docs/course.md improved."""
    entries = load("course", "language-model", "evaluations.json")
    continuations = {entry["step"]: entry["text"].strip() for entry in entries if entry["kind"] == "sample"}
    measured = [entry for entry in entries if entry["kind"] == "evaluation"]
    rows = [
        [
            f"{entry['step']:,}",
            f"{entry['loss']:.3f}",
            f"{entry['perplexity']:.1f}",
            f"{entry['bits_per_byte']:.3f}",
            continuations[entry["step"]],
        ]
        for entry in [*measured[::4], measured[-1]]
    ]
    header = ["steps", "held-out loss, nats per token", "perplexity", "bits per byte", 'continuation of "Bonjour les"']
    scope = f"The last row is measured on all {measured[-1]['tokens']:,} held-out tokens, the other rows on the first {measured[0]['tokens']:,}."
    return "\n".join([*table(header, rows), "", scope])
