"""The README of a bundle: what the model is, in words and in the metadata that model hubs read. No torch.

Files are named without their folders, and no text is quoted: a card is made to be handed on.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from headstart.store.card_figures import calibration_of, figures_of, gives, results_of, rows_of
from headstart.store.naming import HELD_OUT, identifier
from headstart.store.naming import bare as bare
from headstart.store.naming import plain as plain
from headstart.version import __version__

CARD = "README.md"
_MOST_FILES = 10
_PIPELINES = {"classify": "text-classification", "masked": "fill-mask"}
_WHAT = {
    "causal": "the next token, left to right",
    "masked": "hidden tokens, from both sides",
    "hybrid": "by turns the next token, left to right, and hidden tokens, from both sides",
}


def model_card(facts: Mapping[str, Any], parameters: int) -> str:
    """The card of a bundle from what its `bundle.json` says."""
    about = facts["about"]
    classifier = facts["task"] == "classify"
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
    task = facts["task"]
    pipeline = _PIPELINES.get(task) or _PIPELINES.get(facts["objective"], "text-generation")
    tags = ["headstart", "pytorch", "safetensors", pipeline]
    results = results_of(facts) if task == "classify" else _language_results(facts)
    metrics = list(dict.fromkeys(metric["type"] for result in results for metric in result["metrics"]))
    index = [{"name": _title(facts), "results": [{"task": {"type": pipeline}} | result for result in results]}]
    values: dict[str, Any] = {"library_name": "headstart", "license": "unknown", "pipeline_tag": pipeline, "tags": tags}
    if results:
        values |= {"metrics": metrics, "model-index": index}
    return "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def _title(facts: Mapping[str, Any]) -> str:
    return "Headstart classifier" if facts["task"] == "classify" else f"Headstart language model ({facts['objective']})"


def _language_results(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    held, sources = facts["about"].get("held_out"), facts["about"].get("sources") or []
    if not held:
        return []
    first = bare(str(sources[0]["name"])) if sources else "pretraining text"
    name = f"held-out documents of {first}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
    metrics = [{"type": "perplexity", "value": round(held["perplexity"], 3)}]
    return [{"dataset": {"name": name, "type": identifier(first), "split": "held-out"}, "metrics": metrics}]


def _classifier(facts: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    source = about.get("source")
    start = "random weights" if source in (None, "scratch") else f"the pretrained model `{bare(str(source))}`"
    head = (
        f"# {_title(facts)}\n\n{gives(facts)} "
        f"Fine-tuned with Headstart {__version__} from {start}; the epoch was chosen on validation.\n"
    )
    return [head, figures_of(facts), calibration_of(about), _labelled_data(about)]


def _labelled_data(about: Mapping[str, Any]) -> str:
    rows = rows_of(about)
    notes = [f"- {note}" for note in _notes(about)]
    return "\n".join(["## Data", "", *rows, "", *notes, *([""] if notes else [])]) if rows else ""


def _notes(about: Mapping[str, Any]) -> list[str]:
    """What was remarked about the data, files without their folders; a remark that still shows a path is left out."""
    names = [str(split["name"]) for split in (about.get("data") or {}).values()] + [str(about.get("source") or "")]
    names += [name.removeprefix(HELD_OUT) for name in names]
    found = []
    for note in about.get("notes") or []:
        for name in sorted(set(filter(None, names)), key=len, reverse=True):
            note = note.replace(name, bare(name))
        found.append(plain(note))
    return [note for note in found if not re.search(r"[/\\]", note)]


def _language_model(facts: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    learnt = _WHAT.get(facts["objective"], facts["objective"])
    seen = f" It saw {about['tokens_seen']:,} tokens in {about['steps']:,} steps." if "tokens_seen" in about else ""
    made = f"Imported with Headstart {__version__} from `{bare(str(about['source']))}`." if "source" in about else ""
    words = f"A Transformer that learnt from unlabelled text to predict {learnt}."
    head = f"# {_title(facts)}\n\n{words} {made or _PRETRAINED}{seen}\n"
    held = about.get("held_out")
    figures = ""
    if held:
        bits = held.get("bits_per_byte")
        more = "" if bits is None else f", {bits:.3f} bits per byte"
        figures = (
            "## Figures\n\nOn held-out documents: "
            f"loss {held['loss']:.3f}, perplexity {held['perplexity']:.1f}{more}, over {held['tokens']:,} tokens.\n"
        )
    return [head, figures, _texts(about)]


_PRETRAINED = f"Pretrained with Headstart {__version__}."


def _texts(about: Mapping[str, Any]) -> str:
    sources = about.get("sources") or []
    rows = [
        f"| `{bare(str(source['name']))}` | {source['size']:,} | {'`' + source['sha256'] + '`' if source['sha256'] else '–'} |"
        if source["size"] is not None
        else f"| `{bare(str(source['name']))}` | – | – |"
        for source in sources[:_MOST_FILES]
    ]
    if len(sources) > _MOST_FILES:
        rows.append(f"| and {len(sources) - _MOST_FILES:,} more | | |")
    lines = ["## Data", "", "| file | bytes | sha256 |", "|---|---|---|", *rows, ""] if rows else []
    left_out = about.get("left_out")
    if left_out:
        files = ", ".join(f"`{bare(str(file['name']))}`" for file in left_out["files"])
        gone = left_out["exact"] + left_out["near"]
        lines += [f"Texts of {files} and their near-doubles were left out: {gone:,} documents.", ""]
    elif about.get("sha256"):
        lines += ["## Data", "", f"Not recorded. The weights' file had sha256 `{about['sha256']}`.", ""]
    return "\n".join(lines)


def _shape(facts: Mapping[str, Any], parameters: int) -> str:
    shape = facts["model"]
    reads = "left to right" if facts["visibility"] == "causal" else "both ways"
    vocabulary = f"a vocabulary of {facts['vocab_size']:,} (tokenizer `{facts['tokenizer'][:12]}`)"
    return (
        f"## Network\n\n{parameters:,} parameters: {shape['depth']} layers of width {shape['width']}, {shape['heads']} heads, "
        f"{shape['context']:,} tokens of context, {vocabulary}; "
        f"it reads {reads}. Weights are safetensors; loading them runs no code.\n"
    )


def _use(facts: Mapping[str, Any], classifier: bool) -> str:
    if classifier:
        texts, asked = '"a text you wonder about"', '"a text you wonder about"'
        if (facts.get("target") or {}).get("pair"):
            texts, asked = '"the first text" "the second"', '("the first text", "the second")'
        lines = [f"headstart predict path/to/this/folder {texts}"]
        python = f'import headstart\n\nprint(headstart.load("path/to/this/folder").predict([{asked}]))'
    else:
        lines = ["headstart finetune train.csv --from path/to/this/folder --out runs/clf"]
        if facts["objective"] != "masked":
            lines.append('headstart generate path/to/this/folder "The film is"')
        python = 'import headstart\n\nheadstart.finetune("train.csv", source="path/to/this/folder", out="runs/clf")'
    shell = "\n".join(lines)
    return f"## How to use it\n\nWith Headstart installed:\n\n```sh\n{shell}\n```\n\n```python\n{python}\n```\n"


_ALWAYS = {
    "classes": "- It always gives one of its labels, also to a text with none of them; `--abstain` withholds unsure answers.",
    "labels": "- It knows its own labels only: a text that has another one gets those that fit, or none.",
    "rating": "- It always gives a number, also to a text that says nothing of it, and none outside of its bounds.",
}


def _limits(facts: Mapping[str, Any], about: Mapping[str, Any], classifier: bool) -> str:
    lines = [
        "- It knows the kind of text it was trained on, and repeats the leanings of that text and of whoever labelled it.",
        "- Neither the language nor the licence of its data is recorded; hubs read both from the first lines of a README "
        "(`language:`, `license:`).",
    ]
    if classifier:
        long = "read in windows" if facts["windows"] else "cut, so that what stands later is not read"
        lines.append(f"- Texts beyond {facts['model']['context']:,} tokens are {long}.")
        lines.append(_ALWAYS[(facts.get("target") or {}).get("kind", "classes")])
        if not about.get("test"):
            lines.append("- It was not measured on a test set: the figures on validation chose it and flatter it.")
    else:
        lines.append("- What it writes is not true because it reads well; it may repeat passages of its training text.")
    return "\n".join(["## Limits", "", *lines, ""])
