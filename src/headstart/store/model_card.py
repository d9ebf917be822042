"""The model card: the README of a bundle, in prose and in the metadata that model hubs read. This module needs no torch.

A bundle is made to be shared, so files are named without their folders and no text is quoted, in the card as in
bundle.json. The run folder around it (run.json, result.json) keeps names as they were typed.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NotRequired, TypedDict
from urllib.parse import urlsplit

from headstart.files import README
from headstart.metrics import wilson
from headstart.progress import pluralize
from headstart.tasks import UNBOUNDED
from headstart.version import __version__

CARD_FILE = README
HELD_OUT = "held-out rows of "
"""The prefix of a split's name if its rows were held out of another file."""
_HUB_SCHEME = "hf:"
_NAME_KEYS = frozenset({"name", "source", "texts", "imported_from", "backbone"})
"""The keys of `about` whose values are names of files and folders."""
_MAX_LABELS = 50
_MAX_FILES = 10
_PIPELINES = {"classify": "text-classification", "masked": "fill-mask"}
_OBJECTIVES = {
    "causal": "the next token, left to right",
    "masked": "masked tokens, with bidirectional attention",
    "hybrid": "alternately the next token, left to right, and masked tokens, with bidirectional attention",
}
_SPLITS = ("train", "valid", "test")
_EVALUATED_SPLITS = ("valid", "test")
_METRICS = {
    "classes": (("accuracy", "accuracy", "accuracy"), ("f1", "macro_f1", "macro-F1")),
    "labels": (("f1", "micro_f1", "micro-F1"), ("f1", "macro_f1", "macro-F1")),
    "rating": (("mae", "mae", "MAE"), ("rmse", "rmse", "RMSE")),
}
"""By task: the hub's name of a metric, its key in a result, and its name in prose."""
_TITLES = {
    "network": "Headstart classifier",
    "linear": "Headstart linear classifier",
    "blend": "Headstart classifier (a network and a linear classifier)",
}
_NOT_AVAILABLE = re.compile("'#?n/a'", re.I)
"""A label with a slash that is no path."""
_PRETRAINED = f"Pretrained with Headstart {__version__}."
_LIMITS = {
    "classes": "- It always predicts one of its labels, even for a text that has none of them; "
    "`--abstain` withholds uncertain predictions.",
    "labels": "- It assigns its own labels only: a text that belongs to another class gets the most probable ones, or none.",
    "rating": "- It always predicts a number, even for a text that does not express one, and never a "
    "number outside its bounds.",
}


class BundleFacts(TypedDict):
    """The content of bundle.json, as JSON values."""

    head_type: str
    model: NotRequired[dict[str, Any]]
    vocab_size: NotRequired[int]
    tokenizer: NotRequired[str]
    """The digest of the tokenizer."""
    labels: list[str]
    task: dict[str, Any] | None
    windows: NotRequired[bool]
    attention: NotRequired[str]
    objective: str
    about: dict[str, Any]
    weights: NotRequired[str]
    """The storage type of the weights if it is not fp32."""
    classifier: NotRequired[str]
    """`linear` or `blend`; a network has no such key, and a linear classifier has no keys of a network."""
    blend: NotRequired[dict[str, float]]
    """The weight and the temperature of a blend."""
    network_about: NotRequired[dict[str, Any]]
    """The metrics and provenance of the network of a blend."""


def model_card(facts: BundleFacts, parameters: int, linear: Mapping[str, Any] | None = None) -> str:
    """Write the card of a bundle.

    Args:
        facts: the content of its `bundle.json`.
        parameters: the number of parameters of its network.
        linear: of a linear classifier, its `views` and the number of its `weights`.
    """
    sections = [
        f"---\n{_metadata(facts)}---\n",
        *(_classifier_sections(facts) if facts["head_type"] == "classify" else _language_sections(facts)),
        _network_section(facts, parameters) if "model" in facts else "",
        _linear_section(facts, linear) if linear else "",
        _usage_section(facts),
        _limits_section(facts),
    ]
    return "\n".join(section for section in sections if section)


# names of files and labels


def base_name(name: str) -> str:
    """Return the name of a file without its folders and without markup.

    >>> base_name("/home/jane/data/train.csv"), base_name("C:\\\\Users\\\\jane\\\\base")
    ('train.csv', 'base')
    >>> base_name("held-out rows of a/train.csv")
    'held-out rows of train.csv'
    """
    return strip_markup(strip_folders(name)) or "(unnamed)"


def strip_markup(text: str) -> str:
    """Replace characters that Markdown, YAML or a table would interpret, and control characters, by spaces."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(re.sub(r"[`|<>\[\]]", " ", line).split())


def strip_folders(name: str) -> str:
    """Return the last part of a path or URL; `hf:OWNER/NAME` on the Hub stays as it is.

    >>> strip_folders("/home/jane/data/train.csv"), strip_folders("hf:jane/tiny"), strip_folders("hf:/home/jane/tiny")
    ('train.csv', 'hf:jane/tiny', 'hf:tiny')
    """
    if name.startswith(HELD_OUT):
        return HELD_OUT + strip_folders(name.removeprefix(HELD_OUT))
    if name.startswith(_HUB_SCHEME):
        model = name.removeprefix(_HUB_SCHEME)
        on_the_hub = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()
        return name if on_the_hub else _HUB_SCHEME + strip_folders(model)
    path = urlsplit(name).path if "://" in name else name  # the query of a URL may hold a key
    return PureWindowsPath(PurePosixPath(path.rstrip("/\\")).name).name


def redact_paths(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `about` in which every file is named without its folders."""
    full_names = _longest_first(_names_in(about))

    def redact(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: redact(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [redact(item, key) for item in value]
        if isinstance(value, str) and key in _NAME_KEYS:
            return strip_folders(value)
        if isinstance(value, str) and key == "notes":
            return _redact_sentence(value, full_names)
        return value

    redacted: dict[str, Any] = redact(about, "")
    return redacted


def _redact_sentence(sentence: str, full_names: list[str]) -> str:
    for name in full_names:
        sentence = sentence.replace(name, strip_folders(name))
    return sentence


def _names_in(value: Any, key: str = "") -> list[str]:
    """All names of files in `about`, with and without the prefix `held-out rows of`."""
    if isinstance(value, Mapping):
        return [name for inner, item in value.items() for name in _names_in(item, str(inner))]
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in _names_in(item, key)]
    return [value, value.removeprefix(HELD_OUT)] if isinstance(value, str) and key in _NAME_KEYS else []


def _longest_first(names: list[str]) -> list[str]:
    """Sort names so that none is replaced before a longer one that contains it."""
    return sorted(set(filter(None, names)), key=len, reverse=True)


def _hub_identifier(name: str) -> str:
    """Convert a name to the spelling of data sets on model hubs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"


# metadata and title


def _metadata(facts: BundleFacts) -> str:
    """The YAML header; its values are JSON, which is valid YAML."""
    head_type = facts["head_type"]
    pipeline = _PIPELINES.get(head_type) or _PIPELINES.get(facts["objective"], "text-generation")
    tags = ["headstart", *(["pytorch"] if "model" in facts else []), "safetensors", pipeline]
    results = _classifier_results(facts) if head_type == "classify" else _language_results(facts)
    metrics = list(dict.fromkeys(metric["type"] for result in results for metric in result["metrics"]))
    index = [{"name": _title(facts), "results": [{"task": {"type": pipeline}} | result for result in results]}]
    starter = facts["about"].get("starter") or {}
    values: dict[str, Any] = {"library_name": "headstart", "license": starter.get("licence", "unknown")}
    languages = starter.get("languages", ())
    values |= {"language": languages[0] if len(languages) == 1 else list(languages)} if languages else {}
    values |= {"pipeline_tag": pipeline, "tags": tags}
    if results:
        values |= {"metrics": metrics, "model-index": index}
    return "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def _title(facts: BundleFacts) -> str:
    if starter := facts["about"].get("starter"):
        return f"Headstart starter `{starter['name']}`"
    if facts["head_type"] == "classify":
        return _TITLES[facts.get("classifier", "network")]
    return f"Headstart language model ({facts['objective']})"


def _classifier_results(facts: BundleFacts) -> list[dict[str, Any]]:
    """The metrics of a classifier in the format of hubs."""
    about = facts["about"]
    results = []
    for split, hub_split in (("test", "test"), ("valid", "validation")):
        score, data = about.get(split), about.get("data", {}).get(split)
        if score and data:
            name = base_name(data["name"])
            metrics = [
                {"type": hub_metric, "value": round(score[key], 4)}
                | ({} if hub_metric == metric_name else {"name": metric_name})
                for hub_metric, key, metric_name in _METRICS[_task_name(facts)]
            ]
            dataset = {"name": name, "type": _hub_identifier(name), "split": hub_split}
            results.append({"dataset": dataset, "metrics": metrics})
    return results


def _language_results(facts: BundleFacts) -> list[dict[str, Any]]:
    """The perplexity of a language model in the format of hubs."""
    held_out, sources = facts["about"].get("held_out"), facts["about"].get("sources") or []
    if not held_out:
        return []
    first = base_name(str(sources[0]["name"])) if sources else "pretraining text"
    name = f"held-out documents of {first}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    metrics = [{"type": "perplexity", "value": round(held_out["perplexity"], 3)}]
    return [{"dataset": {"name": name, "type": _hub_identifier(first), "split": "held-out"}, "metrics": metrics}]


# classifiers


def _classifier_sections(facts: BundleFacts) -> list[str]:
    about = facts["about"]
    head = f"# {_title(facts)}\n\n{_task_sentence(facts)} {_import_sentence(about) or _training_sentence(facts)}\n"
    return [
        head,
        _quality_sentence(about),
        _metrics_section(facts),
        _majority_sentence(facts),
        _calibration_section(facts),
        _labelled_data_section(about),
    ]


def _keeps_last_epoch(about: Mapping[str, Any]) -> bool:
    return about.get("select") == "last"


def _quality_sentence(about: Mapping[str, Any]) -> str:
    """The comparison of the model with a constant prediction and with a linear model."""
    sentence = strip_markup(str((about.get("quality") or {}).get("sentence", "")))
    return f"{sentence[0].upper()}{sentence[1:]}.\n" if sentence else ""


def _is_cross_validated(facts: BundleFacts) -> bool:
    """Whether the validation rows are out-of-fold rows of train."""
    return facts.get("classifier") in ("linear", "blend") or bool(facts["about"].get("cross_validated"))


def _split_title(split: str, facts: BundleFacts) -> str:
    if split == "test":
        return "test (read once)"
    if _is_cross_validated(facts):
        held_out = facts["about"].get("folds") == 1
        return f"{'hold-out' if held_out else 'cross-validation'} (it chose the settings)"
    return "validation" if _keeps_last_epoch(facts["about"]) else "validation (it chose the epoch)"


def _majority_sentence(facts: BundleFacts) -> str:
    """The accuracy of the majority class of train; empty if `about.quality` has it, or if the labels were not counted."""
    about = facts["about"]
    data = about.get("data") or {}
    split = next((name for name in ("test", "valid") if about.get(name) and (data.get(name) or {}).get("counts")), None)
    train = (data.get("train") or {}).get("counts")
    if _task_name(facts) != "classes" or about.get("quality") or split is None or not train:
        return ""
    label = max(train, key=lambda name: (train[name], name))
    counts = data[split]["counts"]
    accuracy = 100 * counts.get(label, 0) / max(1, sum(counts.values()))
    where = "test" if split == "test" else "these rows"
    constant = f"Always predicting `{strip_markup(label)}`, the majority class of train,"
    return f"{constant} has an accuracy of {accuracy:.1f} % on {where}.\n"


def _training_sentence(facts: BundleFacts) -> str:
    """A sentence about how the model was made."""
    if facts.get("classifier") == "linear":
        return f"Fitted with Headstart {__version__}; cross-validation chose its regularization."
    about = facts.get("network_about", facts["about"])
    source = about.get("source")
    start = "random weights" if source in (None, "scratch") else f"the pretrained model `{base_name(str(source))}`"
    epoch = "the last epoch was kept" if _keeps_last_epoch(about) else "the epoch was chosen on validation"
    trained = f"ine-tuned with Headstart {__version__} from {start}; {epoch}."
    if "blend" not in facts:
        return f"F{trained}"
    weight, temperature = facts["blend"]["weight"], facts["blend"]["temperature"]
    return (
        f"It is the mean of the log-probabilities of two models, divided by a temperature of {temperature:.2f}: a network "
        f"(weight {weight:.2f}) and a linear classifier (weight {1 - weight:.2f}). The network was f{trained}"
    )


def _task_name(facts: BundleFacts) -> str:
    return str((facts["task"] or {}).get("kind", "classes"))


def _task_sentence(facts: BundleFacts) -> str:
    """A sentence about what the model predicts."""
    task = facts["task"] or {}
    labels = ", ".join(f"`{strip_markup(label)}`" for label in facts["labels"])
    text = "a pair of texts" if task.get("pair") else "a text"
    task_name = _task_name(facts)
    if task_name == "rating":
        if task["highest"] >= UNBOUNDED:
            return f"It predicts a number for {text}."
        return f"It predicts a number between {task['lowest']:g} and {task['highest']:g} for {text}."
    if task_name == "labels":
        return f"It assigns any number of {len(facts['labels'])} labels, or none, to {text}: {labels}."
    return f"It assigns one of {len(facts['labels'])} labels to {text}: {labels}."


def _metrics_section(facts: BundleFacts) -> str:
    """The metrics of validation and test, and a table by label."""
    about = facts["about"]
    columns, format_row, note = _METRIC_TABLES[_task_name(facts)]
    scores = [(_split_title(split, facts), about[split]) for split in _EVALUATED_SPLITS if about.get(split)]
    if not scores:
        return ""
    rows = [f"| split | {' | '.join(columns)} | rows |", "|---" * (len(columns) + 2) + "|"]
    rows += [f"| {name} | {format_row(score)} | {score['rows']:,} |" for name, score in scores]
    last_name, last_score = scores[-1]
    return "\n".join(["## Evaluation", "", *rows, "", note, "", *_per_label_table(last_score, last_name)])


def _single_label_row(score: Mapping[str, Any]) -> str:
    return f"{_with_interval(score['accuracy'], score['rows'])} | {score['macro_f1']:.3f}"


def _multi_label_row(score: Mapping[str, Any]) -> str:
    exact = _with_interval(score["exact"], score["rows"])
    return f"{score['micro_f1']:.3f} | {score['macro_f1']:.3f} | {exact}"


def _regression_row(score: Mapping[str, Any]) -> str:
    errors = (f"{score[name]:.3f} ({score[f'baseline_{name}']:.3f})" for name in ("mae", "rmse"))
    return f"{' | '.join(errors)} | {score['spearman']:.3f} | {score['pearson']:.3f}"


def _with_interval(fraction: float, rows: int) -> str:
    low, high = wilson(round(fraction * rows), rows)
    return f"{100 * fraction:.1f} % | {100 * low:.1f} to {100 * high:.1f}"


_WILSON = "Intervals are over the rows alone (Wilson's): they do not include the variation between training runs."
_METRIC_TABLES = {
    "classes": (("accuracy", "95 % interval", "macro-F1"), _single_label_row, _WILSON),
    "labels": (
        ("micro-F1", "macro-F1", "exact match", "95 % interval"),
        _multi_label_row,
        f"{_WILSON} Validation also chose the thresholds, so its metrics are optimistic.",
    ),
    "rating": (
        ("mean absolute error", "root mean squared error", "Spearman", "Pearson"),
        _regression_row,
        "The error of always predicting the mean of the training rows is in parentheses.",
    ),
}
"""By task: the columns of the table, a function that formats a row, and a note below the table."""


def _per_label_table(score: Mapping[str, Any], split_name: str) -> list[str]:
    results = score.get("per_class") or ()
    if not results:
        return []
    has_thresholds = any(result.get("threshold") is not None for result in results)
    extra_column = " threshold |" if has_thresholds else ""
    lines = [
        f"By label, on {split_name.split(' ')[0]}:",
        "",
        f"| label | precision | recall | F1 | rows |{extra_column}",
    ]
    lines.append("|---" * (6 if has_thresholds else 5) + "|")
    for result in results[:_MAX_LABELS]:
        metrics = " | ".join(f"{result[metric]:.3f}" for metric in ("precision", "recall", "f1"))
        threshold = f" {result['threshold']:.3f} |" if has_thresholds else ""
        lines.append(f"| {strip_markup(result['label'])} | {metrics} | {result['rows']:,} |{threshold}")
    if len(results) > _MAX_LABELS:
        lines.append(f"| and {len(results) - _MAX_LABELS:,} more | | | | |{' |' if has_thresholds else ''}")
    return [*lines, ""]


def _calibration_section(facts: BundleFacts) -> str:
    """The temperature and calibration error; empty for a model without probabilities."""
    about = facts["about"]
    calibration = about.get("calibration")
    if not calibration:
        return ""
    validation = "validation, each row with a temperature fitted without it"
    if _is_cross_validated(facts):
        validation = "these rows"
        first = f"Its temperature was fitted on {calibration['rows']:,} rows of train by models that had not seen them."
    elif calibration.get("reason"):
        first = f"Probabilities are not calibrated (temperature 1): {calibration['reason']}."
    else:
        fitted = f"fitted on {calibration['rows']:,} validation rows"
        first = f"Logits were divided by a temperature of {calibration['temperature']:.2f}, {fitted}."
        first += f" It is {calibration['bound']}." if calibration.get("bound") else ""
    lines = ["## Calibration", "", first]
    rows = "rows" if not about.get("thresholds") else "decisions, one per label and row"
    for key, name in (("test", "test"), ("after", validation)):
        if error := calibration.get(key):
            interval = f"95 % interval {100 * error['low']:.1f} to {100 * error['high']:.1f}"
            lines.append(
                f"Calibration error on {name}: {100 * error['ece']:.1f} points ({interval}, {error['rows']:,} {rows})."
            )
    before, after = calibration.get("before"), calibration.get("after")
    if before and after and after["ece"] > before["ece"]:
        lines.append(
            f"Without the temperature it was {100 * before['ece']:.1f} points on validation: only the log-loss decreased."
        )
    default = [threshold["label"] for threshold in about.get("thresholds") or () if threshold["reason"]]
    if default:
        lines.append(
            "Labels with too few validation rows to choose a threshold on keep 0.5: "
            f"{', '.join(map(strip_markup, default))}."
        )
    return "\n".join([*lines, ""])


def _labelled_data_section(about: Mapping[str, Any]) -> str:
    rows = _labelled_data_table(about)
    notes = [f"- {note}" for note in _redacted_notes(about)]
    return "\n".join(["## Data", "", *rows, "", *notes, *([""] if notes else [])]) if rows else ""


def _labelled_data_table(about: Mapping[str, Any]) -> list[str]:
    data = about.get("data") or {}
    if not data:
        return []
    is_rating = any("values" in split for split in data.values())
    rows = [
        f"| split | file | rows | {'ratings' if is_rating else 'labels'} | sha256 of the rows |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys((*_SPLITS, *data)):  # JSON is written with sorted keys
        if name not in data:
            continue
        split = data[name]
        file = base_name(split["name"])
        rows.append(f"| {name} | `{file}` | {split['rows']:,} | {_label_counts(split)} | `{split['sha256']}` |")
    return rows


def _label_counts(split: Mapping[str, Any]) -> str:
    if "values" in split:
        values = split["values"]
        return f"{values['lowest']:g} to {values['highest']:g}, mean {values['mean']:.3g}"
    counts = [f"{strip_markup(label)} {count:,}" for label, count in split["counts"].items()]
    return ", ".join(counts + ([f"none {split['without']:,}"] if split.get("without") else []))


def _redacted_notes(about: Mapping[str, Any]) -> list[str]:
    """The notes about the data, with files named without their folders; a note that still shows a path is dropped."""
    names = [str(split["name"]) for split in (about.get("data") or {}).values()] + [str(about.get("source") or "")]
    names += [name.removeprefix(HELD_OUT) for name in names]
    full_names = _longest_first(names)
    notes = [strip_markup(_redact_sentence(note, full_names)) for note in about.get("notes") or []]
    return [note for note in notes if not re.search(r"[/\\]", _NOT_AVAILABLE.sub("", note))]


# language models


def _language_sections(facts: BundleFacts) -> list[str]:
    about = facts["about"]
    predicts = _OBJECTIVES.get(facts["objective"], facts["objective"])
    tokens_seen = (
        f" It was trained on {about['tokens_seen']:,} tokens in {pluralize(about['steps'], 'step')}."
        if "tokens_seen" in about
        else ""
    )
    description = f"A Transformer that was pretrained on unlabelled text to predict {predicts}."
    if teacher := about.get("teacher"):
        description += (
            f" It was trained by knowledge distillation from `{base_name(str(teacher['name']))}`: the loss on the teacher's "
            f"probabilities had a weight of {teacher['weight']:g}, and the loss on the text a weight of "
            f"{1 - teacher['weight']:g}."
        )
    origin = _import_sentence(about) or _import_sentence(about, "source") or _PRETRAINED
    head = f"# {_title(facts)}\n\n{description} {origin}{tokens_seen}\n"
    figures = ""
    if held_out := about.get("held_out"):
        bits = held_out.get("bits_per_byte")
        bits_per_byte = "" if bits is None else f", {bits:.3f} bits per byte"
        figures = (
            f"## Evaluation\n\nOn held-out documents: loss {held_out['loss']:.3f}, "
            f"perplexity {held_out['perplexity']:.1f}{bits_per_byte}, over {held_out['tokens']:,} tokens.\n"
        )
    return [head, figures, _stages_table(about), _corpus_section(about), _starter_section(about)]


def _stages_table(about: Mapping[str, Any]) -> str:
    """The stages of pretraining, if there were several."""
    rows = [
        f"| {stage['stage']} | {stage['tokens_seen']:,} | {stage['held_out']['bits_per_byte']:.3f} |"
        for stage in about.get("stages") or []
        if stage.get("held_out", {}).get("bits_per_byte") is not None
    ]
    return (
        "\n".join(["| stage | training tokens | held-out bits per byte |", "|---|---|---|", *rows, ""]) if rows else ""
    )


def _corpus_section(about: Mapping[str, Any]) -> str:
    sources = about.get("sources") or []
    rows = [_corpus_row(source) for source in sources[:_MAX_FILES]]
    if len(sources) > _MAX_FILES:
        rows.append(f"| and {len(sources) - _MAX_FILES:,} more | | |")
    lines = ["## Data", "", "| file | bytes | sha256 |", "|---|---|---|", *rows, ""] if rows else []
    if excluded := about.get("excluded"):
        files = ", ".join(f"`{base_name(str(file['name']))}`" for file in excluded["files"])
        documents = pluralize(excluded["exact"] + excluded["near"], "document")
        lines += [f"Texts of {files} and their near-duplicates were excluded: {documents}.", ""]
    elif about.get("sha256"):
        lines += ["## Data", "", f"Not recorded. The file of the weights had the sha256 `{about['sha256']}`.", ""]
    return "\n".join(lines)


def _corpus_row(source: Mapping[str, Any]) -> str:
    name = base_name(str(source["name"]))
    if source["size"] is None:
        return f"| `{name}` | – | – |"
    return f"| `{name}` | {source['size']:,} | {'`' + source['sha256'] + '`' if source['sha256'] else '–'} |"


def _starter_section(about: Mapping[str, Any]) -> str:
    """The description, command and licence in the record of a starter."""
    starter = about.get("starter")
    if not starter:
        return ""
    return "\n".join(
        [
            *(f"{sentence}\n" for sentence in starter["text"]),
            f"It was created by:\n\n```sh\n{starter['command']}\n```\n",
            "## Licence\n",
            f"{starter['licence_notes']}\n",
        ]
    )


# sections of every card


def _import_sentence(about: Mapping[str, Any], key: str = "imported_from") -> str:
    """A sentence about the origin of an imported model; empty for a model that Headstart trained."""
    origin = about.get(key)
    architecture = f", a {strip_markup(str(about['architecture']))}" if "architecture" in about else ""
    return f"Imported with Headstart {__version__} from `{base_name(str(origin))}`{architecture}." if origin else ""


def _network_section(facts: BundleFacts, parameters: int) -> str:
    model = facts["model"]
    direction = "causal" if facts["attention"] == "causal" else "bidirectional"
    storage = f" in {facts['weights']}, fp32 in memory" if "weights" in facts else ""
    vocabulary = f"a vocabulary of {facts['vocab_size']:,} (tokenizer `{facts['tokenizer'][:12]}`)"
    return (
        f"## Network\n\n{parameters:,} parameters: {pluralize(model['depth'], 'layer')} of width {model['width']}, "
        f"{pluralize(model['heads'], 'head')}, {model['context']:,} tokens of context, {vocabulary}; "
        f"attention is {direction}. Weights are safetensors{storage}; loading them runs no code.\n"
    )


def _linear_section(facts: BundleFacts, linear: Mapping[str, Any]) -> str:
    """The size of a linear classifier, its settings, and what cross-validation chose."""
    lines = [
        "## Linear classifier",
        "",
        f"{linear['weights']:,} weights: one support vector machine per label on TF-IDF of {_describe_views(linear)}. "
        "Weights are safetensors in fp16; loading them runs no code.",
    ]
    about = facts["about"]
    setting = (about.get("linear_setting") if "blend" in facts else about.get("setting")) or {}
    simple = {name: value for name, value in setting.items() if isinstance(value, (str, int, float))}
    if simple:
        chosen = ", ".join(f"{strip_markup(name)} {_setting_value(value)}" for name, value in simple.items())
        lines += ["", f"Cross-validation chose: {chosen}."]
    return "\n".join([*lines, ""])


def _describe_views(linear: Mapping[str, Any]) -> str:
    return " and ".join(
        f"{view['ngrams']:,} n-grams of one to {view['longest']} {view['kind']}" for view in linear["views"]
    )


def _setting_value(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"`{strip_markup(str(value))}`"


def _usage_section(facts: BundleFacts) -> str:
    starter = facts["about"].get("starter")
    folder = f"starter:{starter['name']}" if starter else "path/to/this/folder"
    if facts["head_type"] == "classify":
        arguments, text_input = '"a text to classify"', '"a text to classify"'
        if (facts["task"] or {}).get("pair"):
            arguments, text_input = '"the first text" "the second"', '("the first text", "the second")'
        commands = [f"headstart predict path/to/this/folder {arguments}"]
        python = f'import headstart\n\nprint(headstart.load("path/to/this/folder").predict([{text_input}]))'
    else:
        commands = [f"headstart finetune train.csv --from {folder} --out runs/clf"]
        if facts["objective"] != "masked":
            commands.append(f'headstart generate {folder} "{starter["prompt"] if starter else "The film is"}"')
        python = f'import headstart\n\nheadstart.finetune("train.csv", backbone="{folder}", out="runs/clf")'
    shell = "\n".join(commands)
    return f"## How to use it\n\nWith Headstart installed:\n\n```sh\n{shell}\n```\n\n```python\n{python}\n```\n"


def _limits_section(facts: BundleFacts) -> str:
    about = facts["about"]
    starter = about.get("starter") or {}
    lines = [
        "- It was trained on one kind of text, and reproduces the biases of that text and of its labels.",
        *(f"- {limit}" for limit in starter.get("limits", ())),
    ]
    if not starter:
        lines.append(
            "- Neither the language nor the licence of its data is recorded; model hubs read both from the first "
            "lines of a README "
            "(`language:`, `license:`)."
        )
    if facts["head_type"] == "classify":
        if "model" in facts:
            long_texts = "split into windows" if facts["windows"] else "truncated"
            by_network = " by its network" if "blend" in facts else ""
            lines.append(f"- Texts longer than {facts['model']['context']:,} tokens are {long_texts}{by_network}.")
        if facts.get("classifier") == "linear":
            lines.append(
                "- It counts words and short sequences, and does not represent the meaning of longer sentences."
            )
        lines.append(_LIMITS[_task_name(facts)])
        if _import_sentence(about):
            lines.append("- It was not trained with Headstart and has not been evaluated.")
        elif not about.get("test"):
            reason = (
                "are the only ones available"
                if _keeps_last_epoch(about)
                else "were used to choose it and are optimistic"
            )
            lines.append(f"- It was not evaluated on a test set: the metrics on validation {reason}.")
    else:
        lines.append("- Generated text may be false, and may repeat passages of its training text.")
    return "\n".join(["## Limits", "", *lines, ""])
