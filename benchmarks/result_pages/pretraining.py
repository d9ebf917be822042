"""pretraining.md: which pretraining makes the best start, and which fine-tuning is stable."""

from .markdown import commands, load, table

ABLATION = {
    "causal": "causal: predict every next token",
    "masked": "masked: predict 30 % of the tokens from both sides",
    "hybrid": "hybrid: a quarter of the batches causal, the others masked",
    "masked-pairs": "masked with next-sentence prediction",
    "classic-causal": "causal, classic block with the same number of parameters",
    "classic-masked": "masked, classic block",
    "general-only": "masked, novels only",
    "general-then-own": "masked, novels, then reviews",
    "both-then-own": "masked, both, then reviews",
    "own-only": "masked, reviews only",
    "adamw": "masked, AdamW (1e-3) instead of Muon",
    "cosine": "masked, cosine schedule instead of warmup-stable-decay",
    "no-dropout": "masked, no dropout",
    "ema": "masked, EMA of the weights during pretraining (0.998)",
}
FINETUNING = {
    "base": "baseline",
    "ema": "EMA of the weights (0.99)",
    "slow": "half the learning rate",
    "fast": "twice the learning rate",
    "batch32": "twice the learning rate, batch size 32",
}
T_OF_FIVE = 2.776
"""Student's t for 95 % and four degrees of freedom."""


def made(record: dict) -> str:
    """Return the commit and the machine of the record."""
    return f"commit {record['commit']}, {record['date']}, one {record['gpu']}, torch {record['torch']}"


def pooled(row: dict) -> float:
    """Return the accuracy over the rows of all folds."""
    return sum(accuracy * rows for accuracy, rows in zip(row["folds"], row["rows"], strict=True)) / sum(row["rows"])


def against(row: dict, other: dict) -> str:
    """Format the paired difference over five folds, in points."""
    if row is other:
        return "–"
    differences = [100 * (a - b) for a, b in zip(row["folds"], other["folds"], strict=True)]
    mean = sum(differences) / len(differences)
    variance = sum((value - mean) ** 2 for value in differences) / (len(differences) - 1)
    half = T_OF_FIVE * (variance / len(differences)) ** 0.5
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def fluctuation(row: dict) -> float:
    """Return the range of the validation accuracy over the second half of the epochs, mean over folds."""
    halves = [epochs[len(epochs) // 2 :] for epochs in row["epochs"]]
    return sum(max(half) - min(half) for half in halves) / len(halves)


def arms() -> dict[str, dict]:
    """Return the arms of the ablation by name."""
    return {arm["arm"]: arm for arm in load("recipe.json")["ablation"]["arms"]}


def objectives() -> list[str]:
    """The ablation of objective, block, text and optimizer."""
    record = load("recipe.json")
    ablation, measured = record["ablation"], arms()
    masked = measured["masked"]
    rows = [
        [
            words,
            f"{pooled(measured[name]):.3f}",
            against(measured[name], masked),
            f"{min(measured[name]['folds']):.3f}",
            f"{measured[name]['tokens_seen']:,}",
        ]
        for name, words in ABLATION.items()
    ]
    return [
        "## Objective, block, text and optimizer",
        "",
        f"Every arm has the same size and sees the same number of tokens: `{ablation['preset']}` (width 256, 6 layers), {ablation['steps']} steps of {ablation['tokens_per_step']:,} tokens of French novels and reviews, one "
        "tokenizer with 16,384 entries. Each pretrained network is fine-tuned on cls-books for 4 epochs with the same settings. Accuracy is by five-fold cross-validation on the 2,000 rows of the training and validation parts; no test file "
        "was read. Differences are paired by fold, with 95 % intervals. Each pretraining takes less than a minute on one GPU, so the table ranks the choices; it does not show the accuracy they can reach.",
        "",
        *table(["pretraining", "accuracy", "difference from masked, points (95 %)", "worst fold", "tokens seen"], rows),
        "",
        "- Masked language modelling, the last question of the course, is not better than causal language modelling for a network of this size trained on this little text.",
        "- The hybrid objective is better than masking alone and not worse than causal, and its network can be used with either attention mask. The modern presets use it.",
        "- Text of the same kind as the task makes a larger difference than any other choice in the table.",
        f"- Compared with the classic block, the modern block gains {against(measured['causal'], measured['classic-causal'])} points with the causal objective and {against(masked, measured['classic-masked'])} with the masked one.",
        "- No clear gain: next-sentence prediction, EMA of the weights during pretraining, a cosine schedule, AdamW instead of Muon, no dropout.",
        "",
        "Only two intervals of the table exclude 0: hybrid and reviews only. Five folds cannot detect differences below about two points.",
        "",
        f"Run on prepared folders ({made(record)}):",
        "",
        *commands(
            f"python benchmarks/ablation.py --general novels --own reviews --mixture mixture --out ablation --steps {ablation['steps']} --compile",
            "python benchmarks/crossvalidate.py ablation/* --train DATA/cls-books/train.jsonl --valid DATA/cls-books/valid.jsonl --preset modern-micro --try base:loop.epochs=4 --out cv.json",
        ),
    ]


def stability() -> list[str]:
    """Fine-tuning settings and how much validation accuracy fluctuates."""
    tuning = load("recipe.json")["finetuning"]
    base = next(row for row in tuning["settings"] if row["setting"] == "base")
    rows = [
        [
            FINETUNING[row["setting"]],
            f"{pooled(row):.4f}",
            against(row, base),
            f"{min(row['folds']):.3f}",
            f"{100 * fluctuation(row):.1f}",
            f"{row['loss']:.3f}",
        ]
        for row in tuning["settings"]
    ]
    return [
        "## Stability of fine-tuning",
        "",
        "The `modern` network of [French book reviews](reviews-french.md), five-fold cross-validation on the same 2,000 rows, one seed per fold. "
        f"Baseline: {tuning['base'].replace('adamw', 'AdamW').replace('no average', 'no EMA')}. *Fluctuation* is the range of the validation accuracy over the second half of the epochs.",
        "",
        *table(
            [
                "fine-tuning",
                "accuracy",
                "difference from baseline, points (95 %)",
                "worst fold",
                "fluctuation, points",
                "validation loss",
            ],
            rows,
        ),
        "",
        "EMA of the weights halves the fluctuation without a loss of accuracy. The modern presets therefore use EMA with decay 0.99 and keep the last epoch, "
        "so that no epoch is chosen on a few hundred validation rows.",
    ]
