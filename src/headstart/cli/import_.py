"""`headstart import`: weights saved under the published course's names to a language model of ours."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Out, Quiet, command_line


def import_(
    file: Annotated[Path, Parameter(name="FILE", help="The state dict of the course's Model, as .safetensors.")],
    /,
    *,
    tokenizer: Annotated[
        Path, Parameter(metavar="PATH", help="Its vocabulary: a SentencePiece .model file with dict.txt beside it.")
    ],
    out: Out,
    heads: Annotated[int, Parameter(metavar="INT", help="Attention heads, which no tensor tells.")] = 2,
    quiet: Quiet = False,
) -> None:
    """Read the weights, all of them and no others, and write a run folder that --from and generate take."""
    from headstart.interop.course import import_course

    import_course(file, tokenizer, out, heads=heads, command=command_line(), progress=Console(quiet=quiet))
