"""`headstart inspect`: labelled files to a report on what is in them and what is wrong with them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Quiet, use_option_names
from headstart.cli.text_input import LABELLED
from headstart.config.schema import CorpusConfig, LabelledConfig, Section
from headstart.errors import DataError

if TYPE_CHECKING:
    from headstart.recipes.inspect import FileFacts, Finding, Inspection, PretrainingOverlap

_LABELS = 8


class InspectSettings(Section):
    """The settings this command reads."""

    labelled: LabelledConfig = LabelledConfig()
    corpus: CorpusConfig = CorpusConfig()


OPTIONS = Options(
    InspectSettings,
    names={
        **LABELLED,
        "corpus.text_column": "--corpus.text-column",
        "corpus.documents": "--corpus.documents",
    },
)


@OPTIONS.on
def inspect(
    train: Annotated[str, Parameter(name="TRAIN", help="Labelled text: a file, or a pattern.")],
    /,
    *,
    valid: Annotated[str | None, Parameter(metavar="FILE", help="Labelled text to choose on.")] = None,
    test: Annotated[str | None, Parameter(metavar="FILE", help="Labelled text to be judged on.")] = None,
    texts: Annotated[
        list[str] | None,
        Parameter(
            metavar="FILES", consume_multiple=True, negative=(), help="PretrainingOverlap text to look for the rows in."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, Parameter(metavar="FOLDER", help="A tokenizer, to measure texts in tokens.")
    ] = None,
    source: Annotated[
        str | None,
        Parameter(
            name="--from",
            metavar="FOLDER",
            help="A model, or a starter such as starter:en: its tokenizer and context, and the digests of its text.",
        ),
    ] = None,
    context: Annotated[
        int | None, Parameter(metavar="INT", help="Tokens a model reads; without it, as many as that of --from.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Report on labelled files."""
    settings = OPTIONS.settings(flags, path=config)
    from headstart.recipes.inspect import run_inspect

    console = Console(quiet=quiet)
    found = run_inspect(
        train,
        settings.labelled,
        valid=valid,
        test=test,
        texts=texts or (),
        corpus=settings.corpus,
        tokenizer=tokenizer,
        source=source,
        context=context,
        progress=console,
    )
    if as_json:
        console.result(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    else:
        _show(found, console)
    _refuse_what_was_cut_short(found)


def _refuse_what_was_cut_short(found: "Inspection") -> None:
    """Say last, and by the exit code, that the report is about a part of a file."""
    from headstart.recipes.inspect import CUT_SHORT

    for finding in found.findings:
        if finding.kind == CUT_SHORT:
            where = finding.message.partition(":")[0]
            raise DataError(f"{finding.file}: {where}; the report is about what comes before")


def _show(found: "Inspection", console: Console) -> None:
    from headstart.recipes.inspect import CUT_SHORT

    for number, file in enumerate(found.files):
        if number:
            console.result()
        rows = [("ratings" if file.kind == "rating" else "labels", _balance(file)), *_lengths(file)]
        for finding in found.findings:
            if finding.file == file.name:
                rows.append((f"! {finding.kind}", use_option_names(finding.message) + _found(finding)))
        for seen in found.pretraining:
            if seen.file == file.name:  # to learn from what one trains on is no harm
                harm = number > 0 and seen.exact + (seen.near or 0) > 0
                rows.append(("! pretraining" if harm else "pretraining", _seen(seen)))
        if not any(name.startswith("!") for name, _ in rows):
            rows.append(("findings", "none"))
        broken = any(finding.file == file.name and finding.kind == CUT_SHORT for finding in found.findings)
        count = "1 row" if file.rows == 1 else f"{file.rows:,} rows"
        console.facts(f"{file.name}: {count}{', then unreadable' if broken else ''}", rows)
    for note in found.notes:
        console.result()
        console.prose(note)


def _balance(file: "FileFacts") -> str:
    if file.values is not None:
        return "from {lowest:g} to {highest:g}, mean {mean:.3g}".format(**file.values)
    total = file.rows if file.kind == "labels" else sum(file.labels.values())
    shown = [f"{label} {count:,} ({count / total:.1%})" for label, count in list(file.labels.items())[:_LABELS]]
    more = f", and {len(file.labels) - _LABELS:,} more" if len(file.labels) > _LABELS else ""
    none = f"; none {file.without:,} ({file.without / total:.1%})" if file.kind == "labels" else ""
    return (", ".join(shown) + more + none).replace("%", " %") or "none"


def _lengths(file: "FileFacts") -> list[tuple[str, str]]:
    rows = []
    for one in file.lengths:
        words = f"median {one.median:,}, nine in ten up to {one.p90:,}, longest {one.longest:,}"
        if one.unit == "tokens" and file.beyond is not None:
            words += f"; {file.beyond:,} beyond the context of {file.context:,}"
        rows.append((one.unit, words))
    return rows


def _seen(one: "PretrainingOverlap") -> str:
    shown = _examples(one.examples, one.exact + (one.near or 0))
    if one.near is None:
        verb = "were" if one.exact > 1 else "was"
        return (
            f"{_number(one.exact)} of the {one.rows:,} rows {verb} among the {one.documents:,} different documents that "
            f"{one.source} was pretrained on, word for word (changed copies cannot be seen){shown}"
        )
    if not one.exact and not one.near:
        return f"none of the {one.rows:,} rows stands in {one.source} ({one.documents:,} documents), nor almost"
    what = "are documents" if one.exact > 1 else "is a document"
    return (
        f"{_number(one.exact)} of the {one.rows:,} rows {what} of {one.source} word for word, "
        f"{one.near:,}{' more' if one.exact else ''} almost are, or stand inside one{shown}"
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def _found(finding: "Finding") -> str:
    # a text with several labels is one example of as many rows
    torn = finding.kind == "conflict" and finding.texts is not None
    return _examples(finding.examples, (finding.texts or 0) if torn else finding.rows)


def _examples(shown: tuple[str, ...], count: int) -> str:
    return f": {'; '.join(shown)}{'; ...' if count > len(shown) else ''}" if shown else ""
