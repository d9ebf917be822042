"""`headstart params`: the parameters of a model, part by part, by formula."""

import json
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Preset, Quiet
from headstart.config import ModelConfig, PretrainConfig, Section, TokenizerConfig, Visibility
from headstart.errors import UsageError
from headstart.layering import layered
from headstart.model import presets
from headstart.model.ledger import Convention, ledger
from headstart.progress import counted


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
            name="--from", metavar="FOLDER", help="A model of yours, starter:en, or hf: and one of transformers."
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
    forecast: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Memory and time of pretraining it, on machines we know."),
    ] = False,
    machine: Annotated[
        str | None, Parameter(metavar="NAME", help="One machine only: cpu, rtx4090, a100, h100, h200.")
    ] = None,
    gpus: Annotated[int, Parameter(metavar="INT", help="How many of them.")] = 1,
    parallel: Annotated[
        Literal["ddp", "fsdp"],
        Parameter(metavar="ddp|fsdp", show_choices=False, help="How several of them share the work."),
    ] = "ddp",
    tokens: Annotated[float, Parameter(metavar="NUMBER", help="Tokens of the whole run.")] = 1e9,
    rows: Annotated[
        int | None, Parameter(metavar="INT", show_default="the preset's", help="Rows a step on each machine.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Print the ledger of the language model and of the classifier, or what pretraining will take."""
    OPTIONS.refuse_with_source(flags, source)
    model, reading = OPTIONS.settings(flags, preset=preset, path=config).model, _CAUSAL
    if source is not None:
        model, vocab_size, reading = _of(source)
    for name, value in (("--vocab-size", vocab_size), ("--classes", classes), ("--tokens", tokens), ("--rows", rows)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value:g}")
    if not forecast and (machine or gpus != 1 or rows):
        raise UsageError("--machine, --gpus and --rows are about --forecast; add it")
    console = Console(quiet=quiet)
    if forecast:
        from headstart.cli.forecast import show_forecast

        kind = {"machine": machine, "gpus": gpus, "parallel": parallel, "tokens": tokens}
        show_forecast(_pretraining(preset, model, rows), vocab_size, **kind, as_json=as_json, console=console)  # type: ignore[arg-type]
        return
    show_ledgers(model, vocab_size, classes, convention, reading, as_json, console)


_CAUSAL: Visibility = "causal"


def _of(source: str) -> tuple[ModelConfig, int, Visibility]:
    """The shape, the vocabulary and the reading of a model that is there."""
    from headstart.interop.sources import load_from

    bundle = load_from(source)
    return bundle.config, bundle.model.backbone.vocab_size, bundle.visibility


def _pretraining(preset: str | None, model: ModelConfig, rows: int | None) -> PretrainConfig:
    """The settings of the run that is forecast: the preset's, with the shape and the rows that were given."""
    own: dict[str, Any] = {"model": model.model_dump()} | ({"loop": {"batch_size": rows}} if rows else {})
    return layered(PretrainConfig, presets.values(preset or "classic", "pretrain"), own)


def show_ledgers(
    model: ModelConfig,
    vocab_size: int,
    classes: int,
    convention: Convention,
    reading: Visibility,
    as_json: bool,
    console: Console,
) -> None:
    """Print the parameters of both networks, part by part."""
    ledgers = [ledger(model, vocab_size, count, convention, reading) for count in (None, classes)]
    if as_json:
        console.result(json.dumps([each.as_dict() for each in ledgers], indent=1, ensure_ascii=False))
        return
    console.prose(
        f"V = {vocab_size:,} vocabulary, d = {model.width:,} width, f = {model.feedforward:,} feed-forward, "
        f"L = {counted(model.depth, 'layer')}, C = {classes} classes"
    )
    for each in ledgers:
        console.result()
        rows = [(row.part, row.formula, f"{row.count:,}") for row in each.rows]
        rows.append(("all", "", f"{each.total:,}"))
        rows += [(f"left out: {row.part}", row.formula, f"{row.count:,}") for row in each.left_out]
        console.table([each.task, "formula", "parameters"], rows, numbers_from=2)
