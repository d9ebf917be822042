"""`headstart import`: import weights of the published course, or a model of transformers."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Out, Quiet, command_line
from headstart.errors import UsageError


def import_(
    file: Annotated[
        str,
        Parameter(
            name="FILE",
            help="The state dict of the course's Model, as .safetensors; or hf: and a folder or name on the Hub.",
        ),
    ],
    /,
    *,
    tokenizer: Annotated[
        Path | None,
        Parameter(metavar="PATH", help="The course's vocabulary: a SentencePiece .model file with dict.txt beside it."),
    ] = None,
    out: Out,
    heads: Annotated[
        int | None,
        Parameter(metavar="INT", show_default="2", help="Attention heads, which no tensor of the course tells."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Read the weights and write a run folder that --from and generate accept."""
    console = Console(quiet=quiet)
    if file.startswith("hf:"):
        if tokenizer is not None or heads is not None:
            raise UsageError(f"{file} brings its own tokenizer and shape; leave --tokenizer and --heads out")
        from headstart.interop.hf_import import import_hf

        console.say(import_hf(file, out, command=command_line()))
        return
    if tokenizer is None:
        raise UsageError("import needs --tokenizer; see headstart import --help")
    from headstart.interop.course import HEADS, import_course

    import_course(
        Path(file), tokenizer, out, heads=HEADS if heads is None else heads, command=command_line(), progress=console
    )
