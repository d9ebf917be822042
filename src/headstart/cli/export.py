"""`headstart export`: a model of ours to a folder that others' programs read."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Model, Out, Quiet

To = Annotated[
    str,
    Parameter(
        name="--to",
        metavar="hf|onnx",
        help="hf: a stock architecture of transformers. onnx: for onnxruntime (classifiers).",
    ),
]
Check = Annotated[
    str | None,
    Parameter(metavar="FILE", help="onnx: texts to compare the answers on; else some are made up from the vocabulary."),
]


def export(model: Model, /, *, to: To, out: Out, check: Check = None, quiet: Quiet = False) -> None:
    """Write the folder: weights, shape, labels and tokenizer, and no code."""
    from headstart.interop.export import run_export

    console = Console(quiet=quiet)
    for line in run_export(model, out, to, check):
        console.result(line)
