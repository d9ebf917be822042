"""`headstart export`: write a model for transformers, onnxruntime, or in fewer bytes."""

from typing import Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Model, Out, Quiet

To = Annotated[
    str,
    Parameter(
        name="--to",
        metavar="hf|onnx|compact",
        help="hf: an architecture of transformers. onnx: for onnxruntime (classifiers). compact: a model of ours in "
        "half the bytes or a quarter.",
    ),
]
Check = Annotated[
    str | None,
    Parameter(metavar="FILE", help="onnx: texts to compare the answers on; else some are made up from the vocabulary."),
]
Weights = Annotated[
    Literal["fp32", "bf16", "int8"] | None,
    Parameter(
        metavar="fp32|bf16|int8",
        show_choices=False,
        show_default="bf16",
        help="compact: what the weights are kept in; they are computed in fp32 in any case.",
    ),
]


def export(
    model: Model, /, *, to: To, out: Out, check: Check = None, weights: Weights = None, quiet: Quiet = False
) -> None:
    """Write weights, architecture, labels and tokenizer, and no code."""
    from headstart.interop.export import run_export

    console = Console(quiet=quiet)
    for line in run_export(model, out, to, check, weights):
        console.result(line)
