"""`headstart merge`: merge shards that were prepared separately."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import Out, Quiet
from headstart.errors import UsageError
from headstart.progress import pluralize


def merge(
    *folders: Annotated[
        Path, Parameter(name="FOLDERS", required=True, help="Prepared folders with the same tokenizer, in order.")
    ],
    out: Out,
    quiet: Quiet = False,
) -> None:
    """Merge token shards that were prepared separately."""
    if len(folders) < 2:
        raise UsageError(f"merge needs at least two prepared folders, got {len(folders)}")
    from headstart.recipes.prepare import run_merge

    console = Console(quiet=quiet)
    shards = run_merge(folders, out, console)
    console.result(f"{out}: {pluralize(shards.num_documents, 'document')}, {pluralize(shards.num_tokens, 'token')}")
