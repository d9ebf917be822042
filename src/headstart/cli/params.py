"""headstart params, and --forecast.

What `headstart params --forecast` prints: memory and time of a pretraining run on machines, before it is spent.

`headstart params`: the parameters of a model, part by part, by formula.
"""

import json
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Preset, Quiet
from headstart.config import presets
from headstart.config.merge import merge_config
from headstart.config.schema import AttentionDirection, ModelConfig, PretrainConfig, Section, TokenizerConfig
from headstart.errors import UsageError
from headstart.model.parameter_count import Convention, count_parameters
from headstart.progress import pluralize
from headstart.recipes.forecast import ERRORS, MACHINES, MEASURED, Forecast, forecast


def show_forecast(
    config: PretrainConfig,
    vocab_size: int,
    *,
    machine: str | None,
    gpus: int,
    parallel: str,
    tokens: float,
    as_json: bool,
    console: Console,
) -> None:
    """Print the forecast for one machine, or for each that we know."""
    names = [machine] if machine else [name for name, each in MACHINES.items() if gpus == 1 or each.link]
    found = [forecast(config, vocab_size, name, gpus=gpus, parallel=parallel, run_tokens=tokens) for name in names]
    if as_json:
        console.result(json.dumps([each.as_dict() for each in found], indent=1))
        return
    rows = config.loop.batch_size * config.loop.accumulate
    each = "a step" if gpus == 1 else f"a step and GPU, {gpus} GPUs ({parallel})"
    console.prose(
        f"{tokens:,.0f} tokens, objective {config.objective}, {pluralize(rows, 'row')} of {config.model.context} tokens {each}"
    )
    console.result()
    head = ["machine", "memory", "step", "tokens a second", "the whole run"]
    console.table(head, [_row(each) for each in found], numbers_from=1)
    console.result()
    for note in _notes(found):
        console.prose(note)


def _row(found: Forecast) -> tuple[str, ...]:
    mark = "" if found.machine.name in MEASURED else " (not measured)"
    room = "" if found.fits else ", too much"
    return (
        f"{found.machine.name}{mark}",
        f"{found.memory / 2**30:.1f} GiB{room}",
        f"{1000 * found.seconds:,.1f} ms",
        f"{found.rate:,.0f}",
        format_duration(found.hours),
    )


def format_duration(hours: float) -> str:
    """Hours as a person says them.

    >>> format_duration(0.02), format_duration(3), format_duration(100)
    ('1.2 minutes', '3.0 hours', '4.2 days')
    """
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def _notes(found: list[Forecast]) -> list[str]:
    shown = [each.machine for each in found]
    notes = [_accuracy_note(machine.name) for machine in shown if machine.name in MEASURED]
    if any(machine.name not in MEASURED for machine in shown):
        notes.append("not measured: peaks of the data sheets, and of them the shares that an h200 reached.")
    if any(not machine.is_cpu for machine in shown):
        notes.append(
            "Memory of GPUs was not measured: activations are counted as a CPU keeps them, at the width of bf16."
        )
    if any(each.communication for each in found):
        notes.append("Talk between GPUs is counted from the data sheets, none of it hidden behind arithmetic.")
    if any(machine.is_cpu for machine in shown):
        notes.append("cpu: one core of the machine that was measured.")
    return notes


def _accuracy_note(name: str) -> str:
    off = ERRORS[name]
    if off.middle is None or off.worst is None:
        return f"{name}: fitted to {off.steps} whole runs, too few to say how far other runs are off."
    memory = "" if off.memory is None else f", in memory by {off.memory:.0%} at worst"
    return (
        f"{name}: fitted to {off.steps} measured steps. Each left out of the fit in turn, its forecast was off by "
        f"{off.middle:.0%} in the middle and {off.worst:.0%} at worst{memory}."
    )


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
    OPTIONS.refuse_with_backbone(flags, source)
    model, attention = OPTIONS.settings(flags, preset=preset, path=config).model, _CAUSAL
    if source is not None:
        model, vocab_size, attention = _of(source)
    for name, value in (("--vocab-size", vocab_size), ("--classes", classes), ("--tokens", tokens), ("--rows", rows)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value:g}")
    if not forecast and (machine or gpus != 1 or rows):
        raise UsageError("--machine, --gpus and --rows are about --forecast; add it")
    console = Console(quiet=quiet)
    if forecast:
        kind = {"machine": machine, "gpus": gpus, "parallel": parallel, "tokens": tokens}
        show_forecast(_pretraining(preset, model, rows), vocab_size, **kind, as_json=as_json, console=console)  # type: ignore[arg-type]
        return
    show_parameter_counts(model, vocab_size, classes, convention, attention, as_json, console)


_CAUSAL: AttentionDirection = "causal"


def _of(source: str) -> tuple[ModelConfig, int, AttentionDirection]:
    """The shape, the vocabulary and the reading of a model that is there."""
    from headstart.interop.model_source import load_model_source

    bundle = load_model_source(source)
    return bundle.config, bundle.model.backbone.vocab_size, bundle.attention


def _pretraining(preset: str | None, model: ModelConfig, rows: int | None) -> PretrainConfig:
    """The settings of the run that is forecast: the preset's, with the shape and the rows that were given."""
    own: dict[str, Any] = {"model": model.model_dump()} | ({"loop": {"batch_size": rows}} if rows else {})
    return merge_config(PretrainConfig, presets.preset_values(preset or "classic", "pretrain"), own)


def show_parameter_counts(
    model: ModelConfig,
    vocab_size: int,
    classes: int,
    convention: Convention,
    attention: AttentionDirection,
    as_json: bool,
    console: Console,
) -> None:
    """Print the parameters of both networks, part by part."""
    ledgers = [count_parameters(model, vocab_size, count, convention, attention) for count in (None, classes)]
    if as_json:
        console.result(json.dumps([each.as_dict() for each in ledgers], indent=1, ensure_ascii=False))
        return
    console.prose(
        f"V = {vocab_size:,} vocabulary, d = {model.width:,} width, f = {model.feedforward:,} feed-forward, "
        f"L = {pluralize(model.depth, 'layer')}, C = {classes} classes"
    )
    for each in ledgers:
        console.result()
        rows = [(row.part, row.formula, f"{row.count:,}") for row in each.rows]
        rows.append(("all", "", f"{each.total:,}"))
        rows += [(f"left out: {row.part}", row.formula, f"{row.count:,}") for row in each.left_out]
        console.table([each.task, "formula", "parameters"], rows, numbers_from=2)
