"""`headstart evaluate`: a classifier and a labelled file to figures."""

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME, AsJson, ConfigFile, Flags, Model, Options, Quiet, Running
from headstart.config import LabelledConfig
from headstart.errors import UsageError

if TYPE_CHECKING:
    from headstart.predict.mistakes import ErrorAnalysis
    from headstart.train.evaluate import Evaluation


class EvaluateSettings(Running):
    """The settings this command reads."""

    labelled: LabelledConfig = LabelledConfig()


LONGEST = 100
"""Characters of a text that are shown."""

OPTIONS = Options(
    EvaluateSettings,
    names={"labelled.text_column": "--text-column", "labelled.label_column": "--label-column", **RUNTIME},
)


@OPTIONS.on
def evaluate(
    model: Model,
    file: Annotated[str, Parameter(name="FILE", help="Labelled text.")],
    /,
    *,
    flags: Flags | None = None,
    errors: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Look at the mistakes too: which, and on what kind of rows."),
    ] = False,
    columns: Annotated[
        tuple[str, ...],
        Parameter(
            name="--slice",
            metavar="COLUMN",
            negative=(),
            show_default=False,
            help="With --errors, a column by whose values the rows are told apart; may be given again.",
        ),
    ] = (),
    mistakes: Annotated[
        int, Parameter(metavar="INT", help="With --errors, how many of the surest mistakes are shown.")
    ] = 10,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
) -> None:
    """Measure a classifier."""
    settings = OPTIONS.settings(flags, path=config)
    if columns and not errors:
        raise UsageError("--slice goes with --errors; add it")
    from headstart.recipes.evaluate import run_errors, run_evaluate

    console = Console(quiet=quiet)
    if errors:
        found = run_errors(
            model, file, settings.labelled, settings.runtime, console, columns=columns, mistakes=mistakes
        )
        if as_json:
            console.result(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
        else:
            _show(found.evaluation, console)
            _show_errors(found, console)
        return
    evaluation = run_evaluate(model, file, settings.labelled, settings.runtime, console)
    if as_json:
        console.result(json.dumps(evaluation.as_dict(), indent=1, ensure_ascii=False))
    else:
        _show(evaluation, console)


def _show(evaluation: "Evaluation", console: Console) -> None:
    console.result(
        f"accuracy {evaluation.accuracy:.4f}   macro-F1 {evaluation.macro_f1:.4f}   rows {evaluation.rows:,}"
    )
    if evaluation.truncated:
        console.prose(f"texts longer than the context of the model: {evaluation.truncated:,}; their ends were not read")
    console.result()
    rows = [
        (one.label, f"{one.precision:.3f}", f"{one.recall:.3f}", f"{one.f1:.3f}", f"{one.rows:,}")
        for one in evaluation.per_class
    ]
    console.table(["class", "precision", "recall", "F1", "rows"], rows)
    console.result()
    confusion = [
        (label, *(f"{count:,}" for count in row))
        for label, row in zip(evaluation.labels, evaluation.confusion, strict=True)
    ]
    console.table(["true class \\ answer", *evaluation.labels], confusion)


def _show_errors(found: "ErrorAnalysis", console: Console) -> None:
    sure = found.calibration
    console.result()
    console.prose(
        f"calibration error {100 * sure.ece:.1f} points (95 % interval {100 * sure.low:.1f} to {100 * sure.high:.1f}): "
        "how far probabilities are from the share of right answers"
    )
    for pair in found.confused[:5]:
        console.prose(f"{pair.label} taken for {pair.answer}: {pair.rows:,} rows, {100 * pair.share:.1f} % of its own")
    for name, slices in found.slices.items():
        console.result()
        rows = [
            (one.name, f"{one.rows:,}", f"{100 * one.accuracy:.1f} %", f"{100 * one.low:.1f} to {100 * one.high:.1f}")
            for one in slices
        ]
        console.table([f"by {name}", "rows", "accuracy", "95 % interval"], rows)
    if found.mistakes:
        console.result()
        console.result("the surest mistakes:")
    for one in found.mistakes:
        text = " ".join(one.text.split())
        console.result(f"{one.probability:.3f}  {one.answer} (right: {one.label})  {one.where}")
        console.result(f"       {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}")
        console.result("       " + "  ".join(f"{word} {weight:+.2f}" for word, weight in one.words))
