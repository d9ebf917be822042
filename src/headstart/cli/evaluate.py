"""`headstart evaluate`: a classifier and a labelled file to figures."""

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME, AsJson, ConfigFile, Flags, Model, Options, Quiet, Running
from headstart.config import LabelledConfig

if TYPE_CHECKING:
    from headstart.train.evaluate import Evaluation


class EvaluateSettings(Running):
    """The settings this command reads."""

    labelled: LabelledConfig = LabelledConfig()


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
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
) -> None:
    """Measure a classifier."""
    settings = OPTIONS.settings(flags, path=config)
    from headstart.recipes.evaluate import run_evaluate

    console = Console(quiet=quiet)
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
