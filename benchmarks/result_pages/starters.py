"""starters.md (of results): the starters that come with the package, on labelled text."""

from .linear import with_linear
from .markdown import NAMES, commands, exists, load, percent, percent_range, points, points_range, table

PARTS = {
    "demo": (
        "Sentences of English film reviews",
        "The data of `headstart demo`, fine-tuned from `starter:en`.",
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
        *table(["starter", "bytes", "parameters", "tokens seen", "held-out bits per byte", "trained on"], rows),
        "",
        "The cards in `starters/src/headstart_starters/` describe the text, the held-out part and the limits; [docs/starters.md](../starters.md) has all commands. Pretraining:",
        "",
        *commands(*(starter["command"] for starter in load("starters.json")["about"])),
    ]


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
