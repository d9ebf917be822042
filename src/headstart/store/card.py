"""The README of a bundle: what the model is, in words and in the metadata that model hubs read. No torch.

Files are named without their folders, and no text is quoted: a card is made to be handed on.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from headstart.files import README
from headstart.progress import counted
from headstart.store.card_figures import calibration_of, figures_of, gives, results_of, rows_of
from headstart.store.naming import bare as bare
from headstart.store.naming import identifier
from headstart.store.naming import plain as plain
from headstart.store.origins import HELD_OUT, renamed
from headstart.version import __version__

CARD = README
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
    made = f"Fine-tuned with Headstart {__version__} from {start}; the epoch was chosen on validation."
    head = f"# {_title(facts)}\n\n{gives(facts)} {_imported(about) or made}\n"
    return [head, figures_of(facts), calibration_of(about), _labelled_data(about)]


def _labelled_data(about: Mapping[str, Any]) -> str:
    rows = rows_of(about)
    notes = [f"- {note}" for note in _notes(about)]
    return "\n".join(["## Data", "", *rows, "", *notes, *([""] if notes else [])]) if rows else ""


def _notes(about: Mapping[str, Any]) -> list[str]:
    """What was remarked about the data, files without their folders; a remark that still shows a path is left out."""
    names = [str(split["name"]) for split in (about.get("data") or {}).values()] + [str(about.get("source") or "")]
    names += [name.removeprefix(HELD_OUT) for name in names]
    full = sorted(set(filter(None, names)), key=len, reverse=True)
    found = [plain(renamed(note, full)) for note in about.get("notes") or []]
    return [note for note in found if not re.search(r"[/\\]", note)]


def _language_model(facts: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    learnt = _WHAT.get(facts["objective"], facts["objective"])
    seen = (
        f" It saw {about['tokens_seen']:,} tokens in {counted(about['steps'], 'step')}."
        if "tokens_seen" in about
        else ""
    )
    words = f"A Transformer that learnt from unlabelled text to predict {learnt}."
    taught = about.get("teacher")
    if taught:
        name, weight = bare(str(taught["name"])), taught["weight"]
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
    kind = f", a {plain(str(about['architecture']))}" if "architecture" in about else ""
    return f"Imported with Headstart {__version__} from `{bare(str(there))}`{kind}." if there else ""


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
        lines += [f"Texts of {files} and their near-doubles were left out: {counted(gone, 'document')}.", ""]
    elif about.get("sha256"):
        lines += ["## Data", "", f"Not recorded. The weights' file had sha256 `{about['sha256']}`.", ""]
    return "\n".join(lines)


def _shape(facts: Mapping[str, Any], parameters: int) -> str:
    shape = facts["model"]
    reads = "left to right" if facts["visibility"] == "causal" else "both ways"
    kept = f" in {facts['weights']}, computed in fp32" if "weights" in facts else ""
    vocabulary = f"a vocabulary of {facts['vocab_size']:,} (tokenizer `{facts['tokenizer'][:12]}`)"
    return (
        f"## Network\n\n{parameters:,} parameters: {counted(shape['depth'], 'layer')} of width {shape['width']}, "
        f"{counted(shape['heads'], 'head')}, {shape['context']:,} tokens of context, {vocabulary}; "
        f"it reads {reads}. Weights are safetensors{kept}; loading them runs no code.\n"
    )


def _use(facts: Mapping[str, Any], classifier: bool) -> str:
    starter = facts["about"].get("starter")
    place = f"starter:{starter['name']}" if starter else "path/to/this/folder"
    if classifier:
        texts, asked = '"a text you wonder about"', '"a text you wonder about"'
        if (facts.get("target") or {}).get("pair"):
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
        lines.append(_ALWAYS[(facts.get("target") or {}).get("kind", "classes")])
        if _imported(about):
            lines.append("- It was trained elsewhere and not measured here.")
        elif not about.get("test"):
            lines.append("- It was not measured on a test set: the figures on validation chose it and flatter it.")
    else:
        lines.append("- What it writes is not true because it reads well; it may repeat passages of its training text.")
    return "\n".join(["## Limits", "", *lines, ""])
