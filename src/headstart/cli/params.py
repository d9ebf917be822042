"""`headstart params`: the parameters of a model, part by part, by formula."""

import json
from typing import Annotated, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Preset, Quiet
from headstart.config import ModelConfig, Section, TokenizerConfig, Visibility
from headstart.errors import UsageError


class ParamsSettings(Section):
    """The settings this command reads."""

    model: ModelConfig = ModelConfig()


OPTIONS = Options(ParamsSettings)


@OPTIONS.on
def params(
    *,
    preset: Preset = None,
    source: Annotated[
        str | None,
        Parameter(
            name="--from", metavar="FOLDER", help="A model of yours, or hf: and one of transformers: its own shape."
        ),
    ] = None,
    vocab_size: Annotated[
        int, Parameter(metavar="INT", help="Entries of the vocabulary.")
    ] = TokenizerConfig().vocab_size,
    classes: Annotated[int, Parameter(metavar="INT", help="Labels of the classifier.")] = 2,
    convention: Annotated[
        Literal["full", "weights-only"],
        Parameter(
            metavar="full|weights-only",
            show_choices=False,
            help="full counts all that is trained; weights-only leaves out biases and norms, as some papers do.",
        ),
    ] = "full",
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Print the ledger of the language model and of the classifier."""
    OPTIONS.refuse_with_source(flags, source)
    reading: Visibility = "causal"
    model = OPTIONS.settings(flags, preset=preset, path=config).model
    if source is not None:
        from headstart.interop.sources import load_from

        bundle = load_from(source)
        model, vocab_size, reading = bundle.config, bundle.model.backbone.vocab_size, bundle.visibility
    for name, value in (("--vocab-size", vocab_size), ("--classes", classes)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    from headstart.model.ledger import ledger

    console = Console(quiet=quiet)
    ledgers = [ledger(model, vocab_size, count, convention, reading) for count in (None, classes)]
    if as_json:
        console.result(json.dumps([each.as_dict() for each in ledgers], indent=1, ensure_ascii=False))
        return
    console.prose(
        f"V = {vocab_size:,} vocabulary, d = {model.width:,} width, f = {model.feedforward:,} feed-forward, "
        f"L = {model.depth} layers, C = {classes} classes"
    )
    for each in ledgers:
        console.result()
        rows = [(row.part, row.formula, f"{row.count:,}") for row in each.rows]
        rows.append(("all", "", f"{each.total:,}"))
        rows += [(f"left out: {row.part}", row.formula, f"{row.count:,}") for row in each.left_out]
        console.table([each.task, "formula", "parameters"], rows, numbers_from=2)
