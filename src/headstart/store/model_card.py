"""The README of a bundle, and the privacy of names in it.

Names of files and labels for a page that others will read: no folders, no markup. No torch.

Where a model comes from, as others may read it: files by their names, without a person's folders. No torch.

A bundle is made to be handed on. The run folder around it (run.json, result.json) keeps names as they were typed.

The figures of a model card, by the kind of answer the model gives. No torch.

The README of a bundle: what the model is, in words and in the metadata that model hubs read. No torch.

Files are named without their folders, and no text is quoted: a card is made to be handed on.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from headstart.files import README
from headstart.metrics import wilson
from headstart.progress import pluralize
from headstart.version import __version__


def base_name(name: str) -> str:
    """A file's name without its folders, for a page that others will read.

    >>> base_name("/home/jane/data/train.csv"), base_name(r"C:\\\\Users\\\\jane\\\\base"), base_name("held-out rows of a/train.csv")
    ('train.csv', 'base', 'held-out rows of train.csv')
    """
    return strip_markup(strip_folders(name)) or "(unnamed)"


def strip_markup(text: str) -> str:
    """Words that cannot become markup, metadata or a table's edge."""
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    return " ".join(re.sub(r"[`|<>\[\]]", " ", line).split())


def identifier(name: str) -> str:
    """A name as hubs write data sets."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"


HELD_OUT = "held-out rows of "
_HUB = "hf:"
_NAMES = frozenset({"name", "source", "texts", "imported_from", "backbone"})
"""The keys of what is known about a model under which names of files and folders stand."""


def redact_paths(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a model, every file in it without its folder."""
    full = sorted({name for name in _named(about) if name}, key=len, reverse=True)

    def told(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: told(one, str(name)) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [told(one, key) for one in value]
        if isinstance(value, str) and key in _NAMES:
            return strip_folders(value)
        if isinstance(value, str) and key == "notes":
            return redact_names(value, full)
        return value

    found: dict[str, Any] = told(about, "")
    return found


def redact_names(words: str, full: list[str]) -> str:
    """A sentence in which these files, the longest names first, stand without their folders."""
    for name in full:
        words = words.replace(name, strip_folders(name))
    return words


def _named(value: Any, key: str = "") -> list[str]:
    """All names of files, those behind `held-out rows of` too."""
    if isinstance(value, Mapping):
        return [name for inner, one in value.items() for name in _named(one, str(inner))]
    if isinstance(value, (list, tuple)):
        return [name for one in value for name in _named(one, key)]
    return [value, value.removeprefix(HELD_OUT)] if isinstance(value, str) and key in _NAMES else []


def strip_folders(name: str) -> str:
    """The last part of a path or an address; a name on the Hub, which is nobody's folder, stays.

    >>> strip_folders("/home/jane/data/train.csv"), strip_folders("hf:jane/tiny"), strip_folders("hf:/home/jane/tiny")
    ('train.csv', 'hf:jane/tiny', 'hf:tiny')
    """
    if name.startswith(HELD_OUT):
        return HELD_OUT + strip_folders(name.removeprefix(HELD_OUT))
    if name.startswith(_HUB):
        there = name.removeprefix(_HUB)
        on_the_hub = there.count("/") == 1 and not there.startswith((".", "/", "~")) and not Path(there).exists()
        return name if on_the_hub else _HUB + strip_folders(there)
    path = urlsplit(name).path if "://" in name else name  # behind an address's question mark may stand a key
    return PureWindowsPath(PurePosixPath(path.rstrip("/\\")).name).name


_PARTS = (("valid", "validation (it chose the epoch)"), ("test", "test (read once)"))
_METRICS = {
    "classes": (("accuracy", "accuracy", "accuracy"), ("f1", "macro_f1", "macro-F1")),
    "labels": (("f1", "micro_f1", "micro-F1"), ("f1", "macro_f1", "macro-F1")),
    "rating": (("mae", "mae", "MAE"), ("rmse", "rmse", "RMSE")),
}
"""What hubs call a measure, what the record calls it, and what people do."""
_MAX_LABELS = 50
_SPLITS = ("train", "valid", "test")


def card_task(facts: Mapping[str, Any]) -> str:
    """The kind of answer; a bundle from before there were several gives classes."""
    return str((facts.get("task") or {}).get("kind", "classes"))


def prediction_phrase(facts: Mapping[str, Any]) -> str:
    """What the model answers, in a sentence."""
    task = facts.get("task") or {}
    labels = ", ".join(f"`{strip_markup(label)}`" for label in facts["labels"])
    what = "a pair of texts" if task.get("pair") else "a text"
    kind = card_task(facts)
    if kind == "rating":
        return f"It gives {what} a number between {task['lowest']:g} and {task['highest']:g}."
    if kind == "labels":
        return f"It gives {what} any number of {len(facts['labels'])} labels, or none: {labels}."
    return f"It gives {what} one of {len(facts['labels'])} labels: {labels}."


def card_results(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures as hubs read them."""
    about = facts["about"]
    found = []
    for part, split in (("test", "test"), ("valid", "validation")):
        score, data = about.get(part), about.get("data", {}).get(part)
        if score and data:
            name = base_name(data["name"])
            metrics = [
                {"type": hub, "value": round(score[key], 4)} | ({} if hub == words else {"name": words})
                for hub, key, words in _METRICS[card_task(facts)]
            ]
            found.append({"dataset": {"name": name, "type": identifier(name), "split": split}, "metrics": metrics})
    return found


def metric_lines(facts: Mapping[str, Any]) -> str:
    """How it fared, and how each label did."""
    about, kind = facts["about"], card_task(facts)
    head, row, note = _TABLES[kind]
    found = [(name, about[part]) for part, name in _PARTS if about.get(part)]
    if not found:
        return ""
    rows = [f"| split | {' | '.join(head)} | rows |", "|---" * (len(head) + 2) + "|"]
    rows += [f"| {name} | {row(score)} | {score['rows']:,} |" for name, score in found]
    return "\n".join(["## Figures", "", *rows, "", note, "", *_per_class_table(found[-1][1], found[-1][0])])


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


def _per_class_table(score: Mapping[str, Any], name: str) -> list[str]:
    """A row a label: what one figure for all of them hides."""
    results = score.get("per_class") or ()
    if not results:
        return []
    several = any(one.get("threshold") is not None for one in results)
    more = " threshold |" if several else ""
    lines = [f"By label, on {name.split(' ')[0]}:", "", f"| label | precision | recall | F1 | rows |{more}"]
    lines.append("|---" * (6 if several else 5) + "|")
    for one in results[:_MAX_LABELS]:
        shares = " | ".join(f"{one[part]:.3f}" for part in ("precision", "recall", "f1"))
        least = f" {one['threshold']:.3f} |" if several else ""
        lines.append(f"| {strip_markup(one['label'])} | {shares} | {one['rows']:,} |{least}")
    if len(results) > _MAX_LABELS:
        lines.append(f"| and {len(results) - _MAX_LABELS:,} more | | | | |{' |' if several else ''}")
    return [*lines, ""]


def calibration_lines(about: Mapping[str, Any]) -> str:
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
            f"Labels with too few validation rows to choose a threshold on keep 0.5: {', '.join(map(strip_markup, kept))}."
        )
    return "\n".join([*lines, ""])


def data_rows(about: Mapping[str, Any]) -> list[str]:
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
            f"| {name} | `{base_name(split['name'])}` | {split['rows']:,} | {_spread(split)} | `{split['sha256']}` |"
        )
    return rows


def _spread(split: Mapping[str, Any]) -> str:
    if "values" in split:
        values = split["values"]
        return f"{values['lowest']:g} to {values['highest']:g}, mean {values['mean']:.3g}"
    named = [f"{strip_markup(label)} {count:,}" for label, count in split["counts"].items()]
    return ", ".join(named + ([f"none {split['without']:,}"] if split.get("without") else []))


CARD_FILE = README
_MAX_FILES = 10
_PIPELINES = {"classify": "text-classification", "masked": "fill-mask"}
_WHAT = {
    "causal": "the next token, left to right",
    "masked": "hidden tokens, from both sides",
    "hybrid": "by turns the next token, left to right, and hidden tokens, from both sides",
}


def model_card(facts: Mapping[str, Any], parameters: int) -> str:
    """The card of a bundle from what its `bundle.json` says."""
    about = facts["about"]
    classifier = facts["head_type"] == "classify"
    parts = [
        f"---\n{_metadata(facts)}---\n",
        *(_classifier(facts, about) if classifier else _language_model(facts, about)),
        _shape(facts, parameters),
        _use(facts, classifier),
        _limits(facts, about, classifier),
    ]
    return "\n".join(part for part in parts if part)


def _metadata(facts: Mapping[str, Any]) -> str:
    """YAML; its values are JSON, which YAML reads too."""
    head_type = facts["head_type"]
    pipeline = _PIPELINES.get(head_type) or _PIPELINES.get(facts["objective"], "text-generation")
    tags = ["headstart", "pytorch", "safetensors", pipeline]
    results = card_results(facts) if head_type == "classify" else _language_results(facts)
    metrics = list(dict.fromkeys(metric["type"] for result in results for metric in result["metrics"]))
    index = [{"name": _title(facts), "results": [{"task": {"type": pipeline}} | result for result in results]}]
    origin = facts["about"].get("starter") or {}
    values: dict[str, Any] = {"library_name": "headstart", "license": origin.get("licence", "unknown")}
    values |= {"language": origin["language"]} if origin else {}
    values |= {"pipeline_tag": pipeline, "tags": tags}
    if results:
        values |= {"metrics": metrics, "model-index": index}
    return "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def _title(facts: Mapping[str, Any]) -> str:
    if starter := facts["about"].get("starter"):
        return f"Headstart starter `{starter['name']}`"
    return (
        "Headstart classifier"
        if facts["head_type"] == "classify"
        else f"Headstart language model ({facts['objective']})"
    )


def _language_results(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    held, sources = facts["about"].get("held_out"), facts["about"].get("sources") or []
    if not held:
        return []
    first = base_name(str(sources[0]["name"])) if sources else "pretraining text"
    name = f"held-out documents of {first}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    metrics = [{"type": "perplexity", "value": round(held["perplexity"], 3)}]
    return [{"dataset": {"name": name, "type": identifier(first), "split": "held-out"}, "metrics": metrics}]


def _classifier(facts: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    source = about.get("source")
    start = "random weights" if source in (None, "scratch") else f"the pretrained model `{base_name(str(source))}`"
    made = f"Fine-tuned with Headstart {__version__} from {start}; the epoch was chosen on validation."
    head = f"# {_title(facts)}\n\n{prediction_phrase(facts)} {_imported(about) or made}\n"
    return [head, metric_lines(facts), calibration_lines(about), _labelled_data(about)]


def _labelled_data(about: Mapping[str, Any]) -> str:
    rows = data_rows(about)
    notes = [f"- {note}" for note in _notes(about)]
    return "\n".join(["## Data", "", *rows, "", *notes, *([""] if notes else [])]) if rows else ""


def _notes(about: Mapping[str, Any]) -> list[str]:
    """What was remarked about the data, files without their folders; a remark that still shows a path is left out."""
    names = [str(split["name"]) for split in (about.get("data") or {}).values()] + [str(about.get("source") or "")]
    names += [name.removeprefix(HELD_OUT) for name in names]
    full = sorted(set(filter(None, names)), key=len, reverse=True)
    found = [strip_markup(redact_names(note, full)) for note in about.get("notes") or []]
    return [note for note in found if not re.search(r"[/\\]", note)]


def _language_model(facts: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    learnt = _WHAT.get(facts["objective"], facts["objective"])
    seen = (
        f" It saw {about['tokens_seen']:,} tokens in {pluralize(about['steps'], 'step')}."
        if "tokens_seen" in about
        else ""
    )
    words = f"A Transformer that learnt from unlabelled text to predict {learnt}."
    taught = about.get("teacher")
    if taught:
        name, weight = base_name(str(taught["name"])), taught["weight"]
        words += f" Another one, `{name}`, taught it: its opinion of every token weighed {weight:g}, the text the rest."
    head = f"# {_title(facts)}\n\n{words} {_imported(about) or _imported(about, 'source') or _PRETRAINED}{seen}\n"
    held = about.get("held_out")
    figures = ""
    if held:
        bits = held.get("bits_per_byte")
        more = "" if bits is None else f", {bits:.3f} bits per byte"
        figures = (
            "## Figures\n\nOn held-out documents: "
            f"loss {held['loss']:.3f}, perplexity {held['perplexity']:.1f}{more}, over {held['tokens']:,} tokens.\n"
        )
    return [head, figures, _stages(about), _texts(about), _starter(about)]


def _stages(about: Mapping[str, Any]) -> str:
    """What was learnt one after the other, where there was more than one thing."""
    rows = [
        f"| {stage['stage']} | {stage['tokens_seen']:,} | {stage['held_out']['bits_per_byte']:.3f} |"
        for stage in about.get("stages") or []
        if stage.get("held_out", {}).get("bits_per_byte") is not None
    ]
    return "\n".join(["| stage | tokens seen | held-out bits per byte |", "|---|---|---|", *rows, ""]) if rows else ""


def _starter(about: Mapping[str, Any]) -> str:
    """What whoever made a starter wrote about it."""
    found = about.get("starter")
    if not found:
        return ""
    return "\n".join(
        [
            *(f"{sentence}\n" for sentence in found["text"]),
            f"Made by:\n\n```sh\n{found['command']}\n```\n",
            "## Licence\n",
            f"{found['licence_notes']}\n",
        ]
    )


def _imported(about: Mapping[str, Any], name: str = "imported_from") -> str:
    """Where a model that was trained elsewhere came from; empty for one that was trained here."""
    there = about.get(name)
    kind = f", a {strip_markup(str(about['architecture']))}" if "architecture" in about else ""
    return f"Imported with Headstart {__version__} from `{base_name(str(there))}`{kind}." if there else ""


_PRETRAINED = f"Pretrained with Headstart {__version__}."


def _texts(about: Mapping[str, Any]) -> str:
    sources = about.get("sources") or []
    rows = [
        f"| `{base_name(str(source['name']))}` | {source['size']:,} | {'`' + source['sha256'] + '`' if source['sha256'] else '–'} |"
        if source["size"] is not None
        else f"| `{base_name(str(source['name']))}` | – | – |"
        for source in sources[:_MAX_FILES]
    ]
    if len(sources) > _MAX_FILES:
        rows.append(f"| and {len(sources) - _MAX_FILES:,} more | | |")
    lines = ["## Data", "", "| file | bytes | sha256 |", "|---|---|---|", *rows, ""] if rows else []
    excluded = about.get("excluded")
    if excluded:
        files = ", ".join(f"`{base_name(str(file['name']))}`" for file in excluded["files"])
        gone = excluded["exact"] + excluded["near"]
        lines += [f"Texts of {files} and their near-doubles were left out: {pluralize(gone, 'document')}.", ""]
    elif about.get("sha256"):
        lines += ["## Data", "", f"Not recorded. The weights' file had sha256 `{about['sha256']}`.", ""]
    return "\n".join(lines)


def _shape(facts: Mapping[str, Any], parameters: int) -> str:
    shape = facts["model"]
    reads = "left to right" if facts["attention"] == "causal" else "both ways"
    kept = f" in {facts['weights']}, computed in fp32" if "weights" in facts else ""
    vocabulary = f"a vocabulary of {facts['vocab_size']:,} (tokenizer `{facts['tokenizer'][:12]}`)"
    return (
        f"## Network\n\n{parameters:,} parameters: {pluralize(shape['depth'], 'layer')} of width {shape['width']}, "
        f"{pluralize(shape['heads'], 'head')}, {shape['context']:,} tokens of context, {vocabulary}; "
        f"it reads {reads}. Weights are safetensors{kept}; loading them runs no code.\n"
    )


def _use(facts: Mapping[str, Any], classifier: bool) -> str:
    starter = facts["about"].get("starter")
    place = f"starter:{starter['name']}" if starter else "path/to/this/folder"
    if classifier:
        texts, asked = '"a text you wonder about"', '"a text you wonder about"'
        if (facts.get("task") or {}).get("pair"):
            texts, asked = '"the first text" "the second"', '("the first text", "the second")'
        lines = [f"headstart predict path/to/this/folder {texts}"]
        python = f'import headstart\n\nprint(headstart.load("path/to/this/folder").predict([{asked}]))'
    else:
        lines = [f"headstart finetune train.csv --from {place} --out runs/clf"]
        if facts["objective"] != "masked":
            lines.append(f'headstart generate {place} "{starter["prompt"] if starter else "The film is"}"')
        python = f'import headstart\n\nheadstart.finetune("train.csv", source="{place}", out="runs/clf")'
    shell = "\n".join(lines)
    return f"## How to use it\n\nWith Headstart installed:\n\n```sh\n{shell}\n```\n\n```python\n{python}\n```\n"


_ALWAYS = {
    "classes": "- It always gives one of its labels, also to a text with none of them; `--abstain` withholds unsure answers.",
    "labels": "- It knows its own labels only: a text that has another one gets those that fit, or none.",
    "rating": "- It always gives a number, also to a text that says nothing of it, and none outside of its bounds.",
}


def _limits(facts: Mapping[str, Any], about: Mapping[str, Any], classifier: bool) -> str:
    starter = about.get("starter") or {}
    lines = [
        "- It knows the kind of text it was trained on, and repeats the leanings of that text and of whoever labelled it.",
        *(f"- {limit}" for limit in starter.get("limits", ())),
    ]
    if not starter:
        lines.append(
            "- Neither the language nor the licence of its data is recorded; hubs read both from the first lines of a README "
            "(`language:`, `license:`)."
        )
    if classifier:
        long = "read in windows" if facts["windows"] else "cut, so that what stands later is not read"
        lines.append(f"- Texts beyond {facts['model']['context']:,} tokens are {long}.")
        lines.append(_ALWAYS[(facts.get("task") or {}).get("kind", "classes")])
        if _imported(about):
            lines.append("- It was trained elsewhere and not measured here.")
        elif not about.get("test"):
            lines.append("- It was not measured on a test set: the figures on validation chose it and flatter it.")
    else:
        lines.append("- What it writes is not true because it reads well; it may repeat passages of its training text.")
    return "\n".join(["## Limits", "", *lines, ""])
