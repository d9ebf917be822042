"""`headstart export`: export a model to transformers or ONNX, or with compressed weights."""

from typing import Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Encoding, Model, Out, Quiet

To = Annotated[
    str,
    Parameter(
        name="--to",
        metavar="hf|onnx|compact",
        help="Format. hf: transformers; onnx: onnxruntime (classifiers only); compact: Headstart, with smaller weights.",
    ),
]
Check = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        help="File of texts for comparing the exported ONNX model with the original. By default, random texts.",
    ),
]
Weights = Annotated[
    Literal["fp32", "bf16", "int8"] | None,
    Parameter(
        metavar="fp32|bf16|int8",
        show_choices=False,
        show_default="bf16",
        help="Data type of the stored weights, with --to compact. They are fp32 in memory.",
    ),
]


def export(
    model: Model,
    /,
    *,
    to: To,
    out: Out,
    check: Check = None,
    encoding: Encoding = None,
    weights: Weights = None,
    quiet: Quiet = False,
) -> None:
    """Export the weights, architecture, labels and tokenizer of a model."""
    from headstart.interop.export import run_export

    console = Console(quiet=quiet)
    for line in run_export(model, out, to, check, weights, encoding=encoding):
        console.result(line)
