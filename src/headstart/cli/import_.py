"""`headstart import`: import a transformers model or the weights of the published course."""

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
            help="hf: and a folder or a name on the Hugging Face Hub, or the course's state dict as .safetensors.",
        ),
    ],
    /,
    *,
    tokenizer: Annotated[
        Path | None,
        Parameter(
            metavar="PATH",
            help="Vocabulary of the course: a SentencePiece .model file, with dict.txt in the same folder.",
        ),
    ] = None,
    out: Out,
    heads: Annotated[
        int | None,
        Parameter(metavar="INT", show_default="2", help="Number of attention heads of the course's model."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Import weights into a run folder that --from and generate accept."""
    console = Console(quiet=quiet)
    if file.startswith("hf:"):
        if tokenizer is not None or heads is not None:
            raise UsageError(f"{file} has its own tokenizer and architecture; remove --tokenizer and --heads")
        from headstart.interop.hf_import import import_hf

        console.say(import_hf(file, out, command=command_line()))
        return
    if tokenizer is None:
        raise UsageError("import needs --tokenizer for weights of the course; see headstart import --help")
    from headstart.interop.course import HEADS, import_course

    import_course(
        Path(file), tokenizer, out, heads=HEADS if heads is None else heads, command=command_line(), progress=console
    )
