"""cpu.md: training steps, memory and predictions on CPU cores, compared with other code."""

import statistics

from .markdown import commands, exists, load, measured_by, percent, table, times

SIDES = {
    "course": "the course's code",
    "transformers": "transformers, plain training loop",
    "trainer": "transformers' `Trainer`",
}
COLD = {"headstart": "`headstart predict`", "transformers": "script with a transformers `pipeline`"}
INT8 = "headstart, int8 export"
WHO = {
    "headstart": "Headstart",
    INT8: "Headstart, int8 export",
    "headstart, fp32 export in onnxruntime": "Headstart, fp32 export in onnxruntime",
    "pipeline, one at a time (its default)": "pipeline, one text at a time (its default)",
    "pipeline, batches of 8": "pipeline, batches of 8",
    "TF-IDF + logistic regression (another model)": "TF-IDF + logistic regression (another model)",
}


def training_step() -> list[str]:
    """One step of pretraining, and its peak memory."""
    record = load("cpu.json")
    memory, steps = record["memory"]["mib"], [record["step_1"], record["step_2"]]
    shape, machine, ours = steps[0]["shape"], steps[0]["machine"], memory["headstart"]
    loads = " and ".join(f"{step['machine']['load']:g}" for step in steps)
    rows = []
    for step in steps:
        threads = step["machine"]["threads"]
        rows.append([threads, "Headstart", 1, 1, percent(step["mfu"]["headstart"]), f"{ours['peak']:,}", 1])
        for name, ratio in step["ratios"].items():
            rows.append(
                [
                    threads,
                    SIDES[name],
                    f"{times(ratio['cpu'])} ({times(ratio['cpu_min'])} to {times(ratio['cpu_max'])}, {step['rounds']})",
                    times(ratio["wall"]),
                    percent(step["mfu"][name]),
                    f"{memory[name]['peak']:,}",
                    f"{memory[name]['peak'] / ours['peak']:.1f}",
                ]
            )
    return [
        "All sides of a comparison run in turn in one process, on a machine with "
        f"{machine['cores']} cores that other processes share (load {loads} at the start of the steps with one and with two threads). Absolute times vary on such a machine, so the tables show ratios "
        f"of medians, for CPU time and for wall time. Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}, onnxruntime {machine['onnxruntime']}. "
        "[Performance](../performance.md) explains where the time goes and what did not help.",
        "",
        "## Training step",
        "",
        f"One training step of the course's language model ({shape['batch']} rows of {shape['length']} tokens, {shape['vocabulary']:,} entries), all sides on the same rows. The course's code uses `torch.nn.TransformerEncoder`, full logits and "
        "Adam. transformers uses GPT-2 of the same size and fused AdamW, once in a plain loop and once in its `Trainer` with default settings, stopped by a callback after every step. "
        "MFU counts the multiplications with weights, relative to the rate of one large matrix product. Peak memory is that of a separate process per side, including imports.",
        "",
        *table(
            [
                "threads",
                "code",
                "CPU time / Headstart's (range, rounds)",
                "wall time / Headstart's",
                "MFU",
                "peak memory, MiB",
                "memory / Headstart's",
            ],
            rows,
        ),
        "",
        *measured_by([_command(record, part) for part in ("step_1", "step_2", "memory", "profile")]),
    ]


def _command(record: dict, part: str) -> tuple[str, dict]:
    return record[part]["machine"]["command"], record[part]["machine"]


def int8_range(texts: str) -> tuple[float, float]:
    """Return the lowest and the highest speed-up of the int8 export over the faster pipeline, by wall time."""
    record = load("cpu.json")
    rows = [row for part in ("predict_1", "predict_2") for row in record[part]["rows"]]
    ratios = [row["pipeline_wall"] for row in rows if (row["who"], row["texts"]) == (INT8, texts)]
    return min(ratios), max(ratios)


def prediction() -> list[str]:
    """Predictions of a classifier, with one thread and with two."""
    record = load("cpu.json")
    rows = [
        [
            part["machine"]["threads"],
            row["model"],
            f"{row['count']} {row['texts']} ({row['mean_tokens']:.0f})",
            WHO.get(row["who"], row["who"]),
            times(row["cpu"]),
            times(row["wall"]),
            f"{times(row['pipeline_wall'])} ({times(row['pipeline_cpu'])})",
            "–" if row["same"] is None else f"{row['same']} of {row['count']}",
        ]
        for part in (record["predict_1"], record["predict_2"])
        for row in part["rows"]
    ]
    return [
        "## Prediction",
        "",
        "Predictions of one classifier for the same texts. The other sides are a transformers `pipeline` of the model written by `headstart export --to hf`, and the ONNX exports, run by `headstart predict` in onnxruntime. "
        "A classic network is exported as an OPT of twice the width (the only standard architecture that fits it), a modern one as a EuroBERT of the same size. TF-IDF + logistic regression is another model, for scale.",
        "",
        *(
            f"- {texts.capitalize()}: the faster of the two pipelines takes {times(int8_range(texts)[0])} to {times(int8_range(texts)[1])} times the wall time of the int8 export."
            for texts in ("snippets", "reviews")
        ),
        *(
            f"- {row['model']}, {row['count']:,} {row['texts']}: the int8 export predicts the label of full precision for {row['int8']:,} texts ({100 * row['int8'] / row['count']:.2f} %), the fp32 export for {row['fp32']:,}."
            for row in record["agree"]["rows"]
        ),
        "",
        *table(
            [
                "threads",
                "model",
                "texts (mean tokens)",
                "code",
                "CPU time / Headstart's",
                "wall time / Headstart's",
                "faster pipeline's wall time (CPU time) / this row's",
                "same label",
            ],
            rows,
        ),
        "",
        *measured_by([_command(record, part) for part in ("predict_1", "predict_2", "agree", "cold")]),
    ]


def first_prediction() -> list[str]:
    """Time from the start of a process to its first prediction."""
    rows = [
        [row["model"], COLD[row["who"]], f"{row['cpu_s']:.2f}", times(row["cpu"]), times(row["wall"])]
        for row in load("cpu.json")["cold"]["rows"]
    ]
    return [
        "## First prediction",
        "",
        "From the start of the process to the prediction for one short text (commands: see above):",
        "",
        *table(["model", "code", "CPU seconds", "CPU time / Headstart's", "wall time / Headstart's"], rows),
    ]


def by_size() -> list[str]:
    """The training step by each size, the others constant."""
    record = load("cpu.json")
    curves = record["curves"]
    shape = curves["shape"]
    rows = [
        [
            row["what"],
            f"{row['value']:,}",
            f"{row['tokens_per_cpu_second']:,} ({row['course_tokens_per_cpu_second']:,})",
            times(row["cpu"]),
            f"{percent(row['mfu']['headstart'])} ({percent(row['mfu']['course'])})",
            f"{row['mib']['headstart']:,} ({row['mib']['course']:,})",
        ]
        for row in curves["rows"]
    ]
    return [
        "## Training step by size",
        "",
        f"Starting from {shape['batch']} rows of {shape['length']} tokens, width {shape['width']} and {shape['vocabulary']:,} entries, one size is changed at a time. Medians of {curves['rounds']} rounds with "
        f"{curves['machine']['threads']} thread; the course's code in brackets.",
        "",
        *table(["size", "value", "tokens per CPU second", "ratio", "MFU", "peak memory, MiB"], rows),
        "",
        *measured_by([_command(record, "curves")]),
    ]


def profile_table() -> str:
    """Where one step's time goes, for docs/performance.md."""
    record = load("cpu.json")["profile"]
    shape = record["shape"]
    rows = ([f"`{row['name']}`", percent(row["fraction"]), row["calls"]] for row in record["rows"])
    return "\n".join(
        [
            f"One step of the classic language model ({shape['batch']} rows of {shape['length']} tokens, {shape['vocabulary']:,} entries). The loss with its gradients takes {percent(record['loss'])} of it.",
            "",
            *table(["operation", "fraction of the step (self time)", "calls"], rows),
        ]
    )


def many_predictions() -> list[str]:
    """Prediction of many texts, and the labels that bf16 changes; nothing if it was not measured."""
    if not exists("prediction.json"):
        return []
    record = load("prediction.json")
    rows = [
        [
            f"{name} ({result['tokens_per_text']:.0f})",
            result["threads"],
            who,
            f"{row['processor_ms_per_text']:.1f}",
            times(row["processor_ratio"]),
            times(row["clock_ratio"]),
        ]
        for part in ("speed_1", "speed_2")
        for name, result in record.get(part, {}).items()
        for who, row in result["rows"].items()
    ]
    changed = [
        [
            name,
            f"{result['texts']:,}",
            percent(result["validation_accuracy"]),
            result["changed_by_default"],
            result["changed"],
            f"{100 * result['computed_twice']:.2f} %",
            f"{result['largest_change']:.4f}",
            f"{result['largest_changed_margin']:.4f}",
        ]
        for name, result in record["answers"].items()
    ]
    return [
        "## Prediction of many texts",
        "",
        f"`starter:en-reviews` (7 M parameters), fine-tuned on each dataset, predicts training rows that it was not trained on; {record['processor']}, torch {record['torch']}. "
        "*Plain torch* is the network as it is trained, in padded batches. *Default* is `headstart predict`: bf16, and close decisions again in fp32; *packed fp32* and *packed bf16* are `--runtime.precision fp32` and `bf16`. "
        "All sides take turns in one process; medians over rounds. On a shared machine, processor time varies less than the clock.",
        "",
        *table(
            [
                "dataset (tokens per text)",
                "threads",
                "side",
                "processor ms per text",
                "times as fast (processor time)",
                "(clock)",
            ],
            rows,
        ),
        "",
        "Labels that differ from those of fp32. By default, a decision in bf16 is computed again in fp32 if the two most probable labels differ by less than 0.05; the last column has the largest such difference of a label that bf16 changed.",
        "",
        *table(
            [
                "dataset",
                "texts",
                "validation accuracy",
                "changed by default",
                "changed in bf16",
                "computed twice by default",
                "largest change of a probability in bf16",
                "largest difference of a changed label",
            ],
            changed,
        ),
        "",
        *commands(
            "python benchmarks/prediction.py --data FOLDER --work FOLDER",
            "python benchmarks/prediction.py --data FOLDER --work FOLDER --set imdb --threads 2",
            "python benchmarks/prediction.py --data FOLDER --work FOLDER --part answers",
        ),
    ]


BF16_STEPS = {
    "classic": "language model of the course, 4 rows of 256 tokens",
    "modern-micro": "language model of `modern-micro`, 8 rows of 256 tokens",
    "starter": "fine-tuning from `starter:en`, 16 texts of 40 tokens",
}
BF16_SIDES = {
    "fp32": "Headstart, fp32",
    "trainer": "transformers' `Trainer`, fp32",
    "trainer_bf16": "transformers' `Trainer`, bf16",
}


def training_in_bf16() -> list[str]:
    """Training steps in bf16 on a CPU, compared with fp32 and with a Trainer; nothing if it was not measured."""
    if not exists("cpu_bf16.json"):
        return []
    data = load("cpu_bf16.json")
    parts = [(what, data[what]) for what in BF16_STEPS if what in data]
    machine = parts[0][1]["machine"]
    rows = []
    for what, part in parts:
        for side, name in BF16_SIDES.items():
            ratio = part["ratios"][side]
            memory = f"{part['mib']['fp32']:,} and {part['mib']['bf16']:,}" if side == "fp32" else ""
            spread = f"{times(ratio['cpu'])} ({times(ratio['cpu_min'])} to {times(ratio['cpu_max'])}, {part['rounds']})"
            rows.append([BF16_STEPS[what], name, spread, times(ratio["wall"]), memory])
    return [
        "## Training in bf16",
        "",
        f"On a CPU with native bf16, `runtime.precision auto` computes the matrix products of training in bf16. One training step, {machine['threads']} threads on {machine['cores']} cores that other processes shared; "
        "all sides take turns in one process. The table shows the time of each side as a multiple of the time of Headstart in bf16 (medians). transformers trains a GPT-2 and Llamas of the same size with padded texts and AdamW; "
        "Headstart uses the optimizers of its presets. Peak memory is measured in a separate process per side.",
        "",
        *table(["step", "side", "processor time (rounds)", "clock", "peak memory in fp32 and bf16, MiB"], rows),
        "",
        *measured_by((part["machine"]["command"], part["machine"]) for _, part in parts),
    ]


def _difference(cell: dict[tuple[int, str], float], seeds: list[int]) -> str:
    """The mean difference of bf16 and fp32 in points, paired by seed, and its interval."""
    from scipy.stats import t as student

    differences = [100 * (cell[seed, "bf16"] - cell[seed, "fp32"]) for seed in seeds]
    half = float(student.ppf(0.975, len(seeds) - 1)) * statistics.stdev(differences) / len(seeds) ** 0.5
    centre = statistics.mean(differences)
    return f"{centre:+.1f} ({centre - half:+.1f} to {centre + half:+.1f})"


def accuracy_in_bf16() -> list[str]:
    """Accuracy after fine-tuning in bf16 and in fp32, paired by seed; nothing if it was not measured."""
    if not exists("precision.json"):
        return []
    data = load("precision.json")
    runs = {(run["set"], run["labels"], run["seed"], run["precision"]): run["accuracy"] for run in data["runs"]}
    rows = []
    for name, labels in dict.fromkeys((run["set"], run["labels"]) for run in data["runs"]):
        cell = {key[2:]: value for key, value in runs.items() if key[:2] == (name, labels)}
        seeds = sorted({seed for seed, precision in cell if (seed, "bf16") in cell and (seed, "fp32") in cell})
        if len(seeds) < 2:
            continue
        means = [f"{statistics.mean([100 * cell[seed, side] for seed in seeds]):.1f}" for side in ("fp32", "bf16")]
        rows.append([name, f"{labels:,}", len(seeds), *means, _difference(cell, seeds)])
    if not rows:
        return []
    return [
        "### Accuracy in bf16",
        "",
        "Fine-tuning from `starter:en-reviews`, each seed in bf16 and in fp32, evaluated on rows of the training parts that no run was trained on. Differences are in points, with 95 % intervals over seeds. Both precisions of a seed drop the same activations.",
        "",
        *table(["dataset", "labels", "seeds", "fp32, %", "bf16, %", "bf16 − fp32"], rows),
        "",
        *commands(data["command"]),
    ]
