"""`headstart evaluate`: a classifier and a labelled file to figures."""

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME, AsJson, ConfigFile, Flags, Model, Options, Quiet, Running
from headstart.cli.text_input import LABELLED
from headstart.config.schema import LabelledConfig
from headstart.errors import UsageError

if TYPE_CHECKING:
    from headstart.predict.error_analysis import ErrorAnalysis
    from headstart.tasks import AnyEvaluation


class EvaluateSettings(Running):
    """The settings this command reads."""

    labelled: LabelledConfig = LabelledConfig()


LONGEST = 100
"""Characters of a text that are shown."""

OPTIONS = Options(
    EvaluateSettings,
    names={**LABELLED, "labelled.skip_empty": "--skip-empty", **RUNTIME},
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


def _show(evaluation: "AnyEvaluation", console: Console) -> None:
    figures = "   ".join(f"{words} {getattr(evaluation, name):.4f}" for name, words in evaluation.FIGURES.items())
    console.result(f"{figures}   rows {evaluation.rows:,}")
    if evaluation.truncated:
        console.prose(f"texts longer than the context of the model: {evaluation.truncated:,}; their ends were not read")
    if evaluation.kind == "rating":
        console.result(
            f"always answering the mean of train: RMSE {evaluation.baseline_rmse:.4f}   MAE {evaluation.baseline_mae:.4f}"
            f"   Pearson of the answers {evaluation.pearson:.4f}"
        )
        return
    console.result()
    several = evaluation.kind == "labels"
    rows = [
        (
            one.label,
            f"{one.precision:.3f}",
            f"{one.recall:.3f}",
            f"{one.f1:.3f}",
            f"{one.rows:,}",
            *([f"{one.threshold:.3f}"] if one.threshold is not None else []),
        )
        for one in evaluation.per_class
    ]
    more = ["threshold"] if several else []
    console.table(["label" if several else "class", "precision", "recall", "F1", "rows", *more], rows)
    if evaluation.kind == "labels":
        return
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
        count = f"{pair.rows:,} {'row' if pair.rows == 1 else 'rows'}"
        console.prose(f"{pair.label} taken for {pair.answer}: {count}, {100 * pair.fraction:.1f} % of its own")
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
