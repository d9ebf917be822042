"""`headstart inspect`: check labelled files for problems."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Quiet, use_option_names, use_short_options
from headstart.cli.text_input import LABELLED_OPTIONS
from headstart.config.schema import CorpusConfig, LabelledConfig, Section
from headstart.errors import DataError

if TYPE_CHECKING:
    from headstart.recipes.inspect import FileFacts, Finding, Inspection, PretrainingOverlap

_MAX_LABELS = 8


class InspectSettings(Section):
    """The settings of this command."""

    labelled: LabelledConfig = LabelledConfig()
    corpus: CorpusConfig = CorpusConfig()


OPTIONS = Options(
    InspectSettings,
    names={
        **LABELLED_OPTIONS,
        "corpus.text_column": "--corpus.text-column",
        "corpus.documents": "--corpus.documents",
    },
)


@OPTIONS.on
def inspect(
    train: Annotated[str, Parameter(name="TRAIN", help="Labelled file, or a glob pattern.")],
    /,
    *,
    valid: Annotated[str | None, Parameter(metavar="FILE", help="Labelled validation file.")] = None,
    test: Annotated[str | None, Parameter(metavar="FILE", help="Labelled test file.")] = None,
    texts: Annotated[
        list[str] | None,
        Parameter(
            metavar="FILES", consume_multiple=True, negative=(), help="Pretraining text files to search for the rows."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, Parameter(metavar="FOLDER", help="Tokenizer for measuring text lengths in tokens.")
    ] = None,
    backbone: Annotated[
        str | None,
        Parameter(
            name="--from",
            metavar="MODEL",
            help="Model whose tokenizer, context and digests of pretraining text are used, such as starter:en.",
        ),
    ] = None,
    context: Annotated[
        int | None, Parameter(metavar="INT", help="Context of the model in tokens. By default, that of --from.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Check labelled files for duplicates, leaks and invalid rows."""
    settings = OPTIONS.settings(flags, path=config)
    from headstart.recipes.inspect import InspectRequest, run_inspect

    console = Console(quiet=quiet, names=OPTIONS.names)
    request = InspectRequest(train, valid, test, texts or (), tokenizer, backbone, context)
    encoding = settings.corpus.encoding or settings.labelled.encoding
    corpus = settings.corpus.model_copy(update={"encoding": encoding})
    report = run_inspect(request, settings.labelled, corpus, console)
    if as_json:
        console.result(json.dumps(report.as_dict(), indent=1, ensure_ascii=False))
    else:
        _show(report, console)
    _refuse_incomplete_files(report)


def _refuse_incomplete_files(report: "Inspection") -> None:
    """Raise an error after the report if a file could not be read completely."""
    from headstart.recipes.inspect import CUT_SHORT

    for finding in report.findings:
        if finding.kind == CUT_SHORT:
            where = finding.message.partition(":")[0]
            raise DataError(f"{finding.file}: {where}; the report covers the rows before it")


def _show(report: "Inspection", console: Console) -> None:
    from headstart.recipes.inspect import CUT_SHORT

    for number, file in enumerate(report.files):
        if number:
            console.result()
        rows = [("ratings" if file.kind == "rating" else "labels", _balance(file)), *_lengths(file)]
        for finding in report.findings:
            if finding.file == file.name:
                rows.append(
                    (
                        f"! {finding.kind}",
                        use_short_options(use_option_names(finding.message, OPTIONS.names), ())
                        + _finding_examples(finding),
                    )
                )
        for overlap in report.pretraining:
            if overlap.file == file.name:  # pretraining on the training file does no harm
                harm = number > 0 and overlap.exact + (overlap.near or 0) > 0
                rows.append(("! pretraining" if harm else "pretraining", _describe_overlap(overlap)))
        if not any(name.startswith("!") for name, _ in rows):
            rows.append(("findings", "none"))
        broken = any(finding.file == file.name and finding.kind == CUT_SHORT for finding in report.findings)
        count = "1 row" if file.rows == 1 else f"{file.rows:,} rows"
        console.facts(f"{file.name}: {count}{', the rest is unreadable' if broken else ''}", rows)
    for note in report.notes:
        console.result()
        console.prose(note)


def _balance(file: "FileFacts") -> str:
    if file.values is not None:
        return "from {lowest:g} to {highest:g}, mean {mean:.3g}".format(**file.values)
    from headstart.data.io import single_line

    total = file.rows if file.kind == "labels" else sum(file.labels.values())
    labels = [
        f"{single_line(label, 60)} {count:,} ({count / total:.1%})"
        for label, count in list(file.labels.items())[:_MAX_LABELS]
    ]
    further = f", and {len(file.labels) - _MAX_LABELS:,} more" if len(file.labels) > _MAX_LABELS else ""
    none = f"; none {file.without:,} ({file.without / total:.1%})" if file.kind == "labels" else ""
    return (", ".join(labels) + further + none).replace("%", " %") or "none"


def _lengths(file: "FileFacts") -> list[tuple[str, str]]:
    rows = []
    for lengths in file.lengths:
        summary = f"median {lengths.median:,}, 90th percentile {lengths.p90:,}, maximum {lengths.longest:,}"
        if lengths.unit == "tokens" and file.beyond is not None:
            summary += f"; {file.beyond:,} longer than the context of {file.context:,}"
        rows.append((lengths.unit, summary))
    return rows


def _describe_overlap(overlap: "PretrainingOverlap") -> str:
    examples = _format_examples(overlap.examples, overlap.exact + (overlap.near or 0))
    if overlap.near is None:
        verb = "were" if overlap.exact > 1 else "was"
        return (
            f"{_number(overlap.exact)} of the {overlap.rows:,} rows {verb} among the {overlap.documents:,} different documents "
            f"that {overlap.source} was pretrained on (exact copies; near-duplicates cannot be detected){examples}"
        )
    if not overlap.exact and not overlap.near:
        return (
            f"none of the {overlap.rows:,} rows, nor a near-duplicate, is in {overlap.source} "
            f"({overlap.documents:,} documents)"
        )
    exact = "is identical to a document" if overlap.exact == 1 else "are identical to a document"
    near = "is a near-duplicate" if overlap.near == 1 else "are near-duplicates"
    return (
        f"of the {overlap.rows:,} rows, {_number(overlap.exact)} {exact} of {overlap.source}, and "
        f"{_number(overlap.near)} {near} of one or part of one{examples}"
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def _finding_examples(finding: "Finding") -> str:
    # a text with several labels is one example of as many rows
    is_conflict = finding.kind == "conflict" and finding.texts is not None
    return _format_examples(finding.examples, (finding.texts or 0) if is_conflict else finding.rows)


def _format_examples(examples: tuple[str, ...], count: int) -> str:
    return f": {'; '.join(examples)}{'; ...' if count > len(examples) else ''}" if examples else ""
