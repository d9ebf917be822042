"""The figures of a model card, by the kind of answer the model gives. No torch."""

from collections.abc import Mapping
from typing import Any

from headstart.measures import wilson
from headstart.store.naming import bare, identifier, plain

_PARTS = (("valid", "validation (it chose the epoch)"), ("test", "test (read once)"))
_METRICS = {
    "classes": (("accuracy", "accuracy", "accuracy"), ("f1", "macro_f1", "macro-F1")),
    "labels": (("f1", "micro_f1", "micro-F1"), ("f1", "macro_f1", "macro-F1")),
    "rating": (("mae", "mae", "MAE"), ("rmse", "rmse", "RMSE")),
}
"""What hubs call a measure, what the record calls it, and what people do."""
_MOST_LABELS = 50
_SPLITS = ("train", "valid", "test")


def kind_of(facts: Mapping[str, Any]) -> str:
    """The kind of answer; a bundle from before there were several gives classes."""
    return str((facts.get("target") or {}).get("kind", "classes"))


def gives(facts: Mapping[str, Any]) -> str:
    """What the model answers, in a sentence."""
    target = facts.get("target") or {}
    labels = ", ".join(f"`{plain(label)}`" for label in facts["labels"])
    what = "a pair of texts" if target.get("pair") else "a text"
    kind = kind_of(facts)
    if kind == "rating":
        return f"It gives {what} a number between {target['lowest']:g} and {target['highest']:g}."
    if kind == "labels":
        return f"It gives {what} any number of {len(facts['labels'])} labels, or none: {labels}."
    return f"It gives {what} one of {len(facts['labels'])} labels: {labels}."


def results_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures as hubs read them."""
    about = facts["about"]
    found = []
    for part, split in (("test", "test"), ("valid", "validation")):
        score, data = about.get(part), about.get("data", {}).get(part)
        if score and data:
            name = bare(data["name"])
            metrics = [
                {"type": hub, "value": round(score[key], 4)} | ({} if hub == words else {"name": words})
                for hub, key, words in _METRICS[kind_of(facts)]
            ]
            found.append({"dataset": {"name": name, "type": identifier(name), "split": split}, "metrics": metrics})
    return found


def figures_of(facts: Mapping[str, Any]) -> str:
    """How it fared, and how each label did."""
    about, kind = facts["about"], kind_of(facts)
    head, row, note = _TABLES[kind]
    found = [(name, about[part]) for part, name in _PARTS if about.get(part)]
    if not found:
        return ""
    rows = [f"| split | {' | '.join(head)} | rows |", "|---" * (len(head) + 2) + "|"]
    rows += [f"| {name} | {row(score)} | {score['rows']:,} |" for name, score in found]
    return "\n".join(["## Figures", "", *rows, "", note, "", *_each(found[-1][1], found[-1][0])])


def _classes(score: Mapping[str, Any]) -> str:
    low, high = wilson(round(score["accuracy"] * score["rows"]), score["rows"])
    return f"{100 * score['accuracy']:.1f} % | {100 * low:.1f} to {100 * high:.1f} | {score['macro_f1']:.3f}"


def _labels(score: Mapping[str, Any]) -> str:
    low, high = wilson(round(score["exact"] * score["rows"]), score["rows"])
    exact = f"{100 * score['exact']:.1f} % | {100 * low:.1f} to {100 * high:.1f}"
    return f"{score['micro_f1']:.3f} | {score['macro_f1']:.3f} | {exact}"


def _rating(score: Mapping[str, Any]) -> str:
    errors = (f"{score[name]:.3f} ({score[f'baseline_{name}']:.3f})" for name in ("mae", "rmse"))
    return f"{' | '.join(errors)} | {score['spearman']:.3f} | {score['pearson']:.3f}"


_WILSON = "Intervals are over the rows alone (Wilson's): one training run cannot show the luck of training."
_TABLES = {
    "classes": (("accuracy", "95 % interval", "macro-F1"), _classes, _WILSON),
    "labels": (
        ("micro-F1", "macro-F1", "exact match", "95 % interval"),
        _labels,
        f"{_WILSON} Validation chose the thresholds too, which flatters it.",
    ),
    "rating": (
        ("mean absolute error", "root mean squared error", "Spearman", "Pearson"),
        _rating,
        "In brackets the error of always answering the mean of the training rows.",
    ),
}


def _each(score: Mapping[str, Any], name: str) -> list[str]:
    """A row a label: what one figure for all of them hides."""
    results = score.get("per_class") or ()
    if not results:
        return []
    several = any(one.get("threshold") is not None for one in results)
    more = " threshold |" if several else ""
    lines = [f"By label, on {name.split(' ')[0]}:", "", f"| label | precision | recall | F1 | rows |{more}"]
    lines.append("|---" * (6 if several else 5) + "|")
    for one in results[:_MOST_LABELS]:
        shares = " | ".join(f"{one[part]:.3f}" for part in ("precision", "recall", "f1"))
        least = f" {one['threshold']:.3f} |" if several else ""
        lines.append(f"| {plain(one['label'])} | {shares} | {one['rows']:,} |{least}")
    if len(results) > _MOST_LABELS:
        lines.append(f"| and {len(results) - _MOST_LABELS:,} more | | | | |{' |' if several else ''}")
    return [*lines, ""]


def calibration_of(about: Mapping[str, Any]) -> str:
    """What was done to the probabilities; nothing where there are none."""
    found = about.get("calibration")
    if not found:
        return ""
    if found.get("reason"):
        first = f"Probabilities are as they came (temperature 1): {found['reason']}."
    else:
        fitted = f"fitted on {found['rows']:,} validation rows"
        first = f"Scores were divided by a temperature of {found['temperature']:.2f}, {fitted}."
    lines = ["## Calibration", "", first]
    rows = "rows" if not about.get("thresholds") else "decisions, one a label and row"
    for part, name in (("test", "test"), ("after", "validation, each row by a temperature fitted without it")):
        one = found.get(part)
        if one:
            span = f"95 % interval {100 * one['low']:.1f} to {100 * one['high']:.1f}"
            lines.append(
                f"Calibration error on {name}: {100 * one['ece']:.1f} points ({span}, {one['rows']:,} {rows})."
            )
    kept = [one["label"] for one in about.get("thresholds") or () if one["reason"]]
    if kept:
        lines.append(
            f"Labels with too few validation rows to choose a threshold on keep 0.5: {', '.join(map(plain, kept))}."
        )
    return "\n".join([*lines, ""])


def rows_of(about: Mapping[str, Any]) -> list[str]:
    """The files, how their rows are spread, and their hashes."""
    data = about.get("data") or {}
    if not data:
        return []
    rated = any("values" in split for split in data.values())
    rows = [
        f"| split | file | rows | {'ratings' if rated else 'labels'} | sha256 of the rows |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys((*_SPLITS, *data)):  # JSON is written with sorted keys
        if name not in data:
            continue
        split = data[name]
        rows.append(
            f"| {name} | `{bare(split['name'])}` | {split['rows']:,} | {_spread(split)} | `{split['sha256']}` |"
        )
    return rows


def _spread(split: Mapping[str, Any]) -> str:
    if "values" in split:
        values = split["values"]
        return f"{values['lowest']:g} to {values['highest']:g}, mean {values['mean']:.3g}"
    named = [f"{plain(label)} {count:,}" for label, count in split["counts"].items()]
    return ", ".join(named + ([f"none {split['without']:,}"] if split.get("without") else []))
