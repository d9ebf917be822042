"""`headstart evaluate`: evaluate a model on a labelled file."""

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, AsJson, ConfigFile, Flags, InferenceSettings, Model, Options, Quiet
from headstart.cli.text_input import LABELLED_OPTIONS
from headstart.config.schema import LabelledConfig
from headstart.errors import UsageError
from headstart.progress import pluralize

if TYPE_CHECKING:
    from headstart.predict.error_analysis import ErrorAnalysis
    from headstart.tasks import AnyEvaluation


class EvaluateSettings(InferenceSettings):
    """The settings of this command."""

    labelled: LabelledConfig = LabelledConfig()


MAX_CHARACTERS = 100
"""Characters of a text that are shown."""

OPTIONS = Options(
    EvaluateSettings,
    names={**LABELLED_OPTIONS, "labelled.skip_empty": "--skip-empty", **RUNTIME_OPTIONS},
)


@OPTIONS.on
def evaluate(
    model: Model,
    file: Annotated[str, Parameter(name="FILE", help="Labelled file.")],
    /,
    *,
    flags: Flags | None = None,
    errors: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Also analyse the errors: confusions, slices of the rows, the most confident errors.",
        ),
    ] = False,
    columns: Annotated[
        tuple[str, ...],
        Parameter(
            name="--slice",
            metavar="COLUMN",
            negative=(),
            show_default=False,
            help="Column to slice the rows by, with --errors; may be repeated.",
        ),
    ] = (),
    mistakes: Annotated[
        int, Parameter(metavar="INT", help="Number of the most confident errors to show, with --errors.")
    ] = 10,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a classifier on a labelled file."""
    settings = OPTIONS.settings(flags, path=config)
    if columns and not errors:
        raise UsageError("--slice needs --errors")
    from headstart.recipes.evaluate import EvaluateRequest, run_error_analysis, run_evaluate

    console = Console(quiet=quiet)
    request = EvaluateRequest(model, file, settings.labelled, settings.runtime, columns, mistakes)
    if errors:
        analysis = run_error_analysis(request, console)
        if as_json:
            console.result(json.dumps(analysis.as_dict(), indent=1, ensure_ascii=False))
        else:
            _show(analysis.evaluation, console)
            _show_errors(analysis, console)
        return
    evaluation = run_evaluate(request, console)
    if as_json:
        console.result(json.dumps(evaluation.as_dict(), indent=1, ensure_ascii=False))
    else:
        _show(evaluation, console)


def _show(evaluation: "AnyEvaluation", console: Console) -> None:
    """Print the metrics, and whether the model is better than a constant prediction."""
    from headstart.recipes.quality import constant_baseline, judge

    _show_metrics(evaluation, console)
    console.result()
    console.prose(judge(evaluation, constant_baseline(evaluation)).sentence)


def _show_metrics(evaluation: "AnyEvaluation", console: Console) -> None:
    figures = "   ".join(f"{name} {getattr(evaluation, field):.4f}" for field, name in evaluation.FIGURES.items())
    console.result(f"{figures}   rows {evaluation.rows:,}")
    if evaluation.truncated:
        console.prose(f"{pluralize(evaluation.truncated, 'text')} longer than the model's context, truncated")
    if evaluation.kind == "rating":
        console.result(
            f"Pearson correlation {evaluation.pearson:.4f}   always predicting the training mean: "
            f"RMSE {evaluation.baseline_rmse:.4f}   MAE {evaluation.baseline_mae:.4f}"
        )
        return
    console.result()
    multi_label = evaluation.kind == "labels"
    rows = [
        (
            result.label,
            f"{result.precision:.3f}",
            f"{result.recall:.3f}",
            f"{result.f1:.3f}",
            f"{result.rows:,}",
            *([f"{result.threshold:.3f}"] if result.threshold is not None else []),
        )
        for result in evaluation.per_class
    ]
    threshold = ["threshold"] if multi_label else []
    console.table(["label" if multi_label else "class", "precision", "recall", "F1", "rows", *threshold], rows)
    if evaluation.kind == "labels":
        return
    console.result()
    confusion = [
        (label, *(f"{count:,}" for count in row))
        for label, row in zip(evaluation.labels, evaluation.confusion, strict=True)
    ]
    console.table(["true class \\ predicted", *evaluation.labels], confusion)


def _show_errors(analysis: "ErrorAnalysis", console: Console) -> None:
    calibration = analysis.calibration
    interval = f"{100 * calibration.low:.1f} to {100 * calibration.high:.1f}"
    console.result()
    console.prose(f"expected calibration error {100 * calibration.ece:.1f} points (95 % interval {interval})")
    for pair in analysis.confused[:5]:
        count = f"{pair.rows:,} {'row' if pair.rows == 1 else 'rows'}"
        console.prose(
            f"{pair.label} predicted as {pair.answer}: {count}, {100 * pair.fraction:.1f} % of class {pair.label}"
        )
    for name, slices in analysis.slices.items():
        console.result()
        rows = [
            (
                group.name,
                f"{group.rows:,}",
                f"{100 * group.accuracy:.1f} %",
                f"{100 * group.low:.1f} to {100 * group.high:.1f}",
            )
            for group in slices
        ]
        console.table([f"by {name}", "rows", "accuracy", "95 % interval"], rows)
    if analysis.mistakes:
        console.result()
        console.result("most confident errors:")
    for mistake in analysis.mistakes:
        text = " ".join(mistake.text.split())
        console.result(f"{mistake.probability:.3f}  {mistake.answer} (true: {mistake.label})  {mistake.where}")
        console.result(f"       {text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 3] + '...'}")
        console.result("       " + "  ".join(f"{word} {weight:+.2f}" for word, weight in mistake.words))
