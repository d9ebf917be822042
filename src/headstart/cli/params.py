"""`headstart params`: count the parameters of a model, or forecast the memory and time of pretraining it."""

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import AsJson, ConfigFile, Flags, Options, Preset, Quiet
from headstart.config.merge import merge_config
from headstart.config.presets import preset_values
from headstart.config.schema import AttentionDirection, ModelConfig, PretrainConfig, Section, TokenizerConfig
from headstart.errors import UsageError
from headstart.model.parameter_count import Convention, count_parameters
from headstart.progress import pluralize

if TYPE_CHECKING:
    from headstart.recipes.forecast import Forecast


class ParamsSettings(Section):
    """The settings of this command."""

    model: ModelConfig = ModelConfig()


@dataclass(frozen=True)
class _Machines:
    """The machines of a forecast; all known ones if name is None."""

    name: str | None
    gpus: int
    parallel: str


OPTIONS = Options(ParamsSettings)


@OPTIONS.on
def params(
    *,
    preset: Preset = None,
    backbone: Annotated[
        str | None,
        Parameter(name="--from", metavar="MODEL", help="Model folder, starter:NAME or hf:NAME, instead of a preset."),
    ] = None,
    vocab_size: Annotated[int, Parameter(metavar="INT", help="Vocabulary size.")] = TokenizerConfig().vocab_size,
    classes: Annotated[int, Parameter(metavar="INT", help="Number of classes of the classifier.")] = 2,
    convention: Annotated[
        Literal["full", "weights-only"],
        Parameter(
            metavar="full|weights-only",
            show_choices=False,
            help="Parameters to count. full: all trained parameters; weights-only: no biases and normalization weights.",
        ),
    ] = "full",
    forecast: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Forecast memory and time of pretraining on known machines."),
    ] = False,
    machine: Annotated[
        str | None,
        Parameter(metavar="NAME", help="Machine of the forecast: cpu, rtx4090, a100, h100 or h200. By default, all."),
    ] = None,
    gpus: Annotated[int, Parameter(metavar="INT", help="Number of GPUs of the forecast.")] = 1,
    parallel: Annotated[
        Literal["ddp", "fsdp"],
        Parameter(metavar="ddp|fsdp", show_choices=False, help="Parallelism over several GPUs."),
    ] = "ddp",
    tokens: Annotated[float, Parameter(metavar="NUMBER", help="Number of training tokens of the forecast.")] = 1e9,
    rows: Annotated[
        int | None, Parameter(metavar="INT", show_default="that of the preset", help="Batch size in rows per GPU.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Count the parameters of the language model and the classifier, or forecast pretraining."""
    OPTIONS.refuse_with_backbone(flags, backbone)
    model, attention = OPTIONS.settings(flags, preset=preset, path=config).model, _CAUSAL
    if backbone is not None:
        model, vocab_size, attention = _architecture_of(backbone)
    for name, value in (("--vocab-size", vocab_size), ("--classes", classes), ("--tokens", tokens), ("--rows", rows)):
        if value is not None and not abs(value) <= sys.float_info.max:
            raise UsageError(f"{name} must be a finite number, got {value}")
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value:g}")
    if not forecast and (machine or gpus != 1 or rows):
        raise UsageError("--machine, --gpus and --rows need --forecast")
    console = Console(quiet=quiet)
    if forecast:
        pretraining, machines = _pretrain_config(preset, model, rows), _Machines(machine, gpus, parallel)
        show_forecast(pretraining, vocab_size, machines, tokens, as_json=as_json, console=console)
        return
    show_parameter_counts(model, vocab_size, classes, convention, attention, as_json, console)


_CAUSAL: AttentionDirection = "causal"


def _architecture_of(backbone: str) -> tuple[ModelConfig, int, AttentionDirection]:
    """Return the config, the vocabulary size and the attention direction of an existing model."""
    from headstart.interop.model_source import load_model_source

    bundle = load_model_source(backbone)
    return bundle.config, bundle.model.backbone.vocab_size, bundle.attention


def _pretrain_config(preset: str | None, model: ModelConfig, rows: int | None) -> PretrainConfig:
    """Return the settings of the forecast run: those of the preset, with this model and batch size."""
    settings: dict[str, Any] = {"model": model.model_dump()} | ({"loop": {"batch_size": rows}} if rows else {})
    return merge_config(PretrainConfig, preset_values(preset or "classic", "pretrain"), settings)


def show_parameter_counts(
    model: ModelConfig,
    vocab_size: int,
    classes: int,
    convention: Convention,
    attention: AttentionDirection,
    as_json: bool,
    console: Console,
) -> None:
    """Print the parameters of both networks by component."""
    tables = [count_parameters(model, vocab_size, count, convention, attention) for count in (None, classes)]
    if as_json:
        console.result(json.dumps([table.as_dict() for table in tables], indent=1, ensure_ascii=False))
        return
    console.prose(
        f"V = {vocab_size:,} vocabulary, d = {model.width:,} width, f = {model.feedforward:,} feed-forward, "
        f"L = {pluralize(model.depth, 'layer')}, C = {classes} classes"
    )
    for table in tables:
        console.result()
        rows = [(row.part, row.formula, f"{row.count:,}") for row in table.rows]
        rows.append(("total", "", f"{table.total:,}"))
        rows += [(f"not counted: {row.part}", row.formula, f"{row.count:,}") for row in table.excluded]
        console.table([table.task, "formula", "parameters"], rows, numbers_from=2)


def show_forecast(
    config: PretrainConfig,
    vocab_size: int,
    machines: _Machines,
    tokens: float,
    *,
    as_json: bool,
    console: Console,
) -> None:
    """Print the forecast for one machine, or for all known ones."""
    from headstart.recipes.forecast import MACHINES, forecast

    gpus, parallel = machines.gpus, machines.parallel
    every = [name for name, machine in MACHINES.items() if gpus == 1 or machine.link]
    names = [machines.name] if machines.name else every
    forecasts = [forecast(config, vocab_size, name, gpus=gpus, parallel=parallel, run_tokens=tokens) for name in names]
    if as_json:
        console.result(json.dumps([each.as_dict() for each in forecasts], indent=1))
        return
    rows = config.loop.batch_size * config.loop.accumulate
    unit = "per step" if gpus == 1 else f"per step and GPU, {gpus} GPUs ({parallel})"
    console.prose(
        f"{tokens:,.0f} tokens, objective {config.objective}, {pluralize(rows, 'row')} of {config.model.context} tokens {unit}"
    )
    console.result()
    columns = ["machine", "memory", "step", "tokens per second", "total time"]
    console.table(columns, [_row(each) for each in forecasts], numbers_from=1)
    console.result()
    for note in _notes(forecasts):
        console.prose(note)


def _row(forecast: "Forecast") -> tuple[str, ...]:
    from headstart.recipes.forecast import MEASURED

    unmeasured = "" if forecast.machine.name in MEASURED else " (not measured)"
    too_large = "" if forecast.fits else ", does not fit"
    return (
        f"{forecast.machine.name}{unmeasured}",
        f"{forecast.memory / 2**30:.1f} GiB{too_large}",
        f"{1000 * forecast.seconds:,.1f} ms",
        f"{forecast.rate:,.0f}",
        format_duration(forecast.hours),
    )


def format_duration(hours: float) -> str:
    """Format hours in the unit that suits them.

    >>> format_duration(0.02), format_duration(3), format_duration(100)
    ('1.2 minutes', '3.0 hours', '4.2 days')
    """
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def _notes(forecasts: "list[Forecast]") -> list[str]:
    from headstart.recipes.forecast import MEASURED

    machines = [each.machine for each in forecasts]
    notes = [_accuracy_note(machine.name) for machine in machines if machine.name in MEASURED]
    if any(machine.name not in MEASURED for machine in machines):
        notes.append("not measured: calculated from data sheets, with the efficiency that was measured on an h200.")
    notes.append("Startup, compilation, evaluation and saving are not included.")
    if any(each.communication for each in forecasts):
        notes.append("Communication between GPUs is calculated from data sheets, without overlap with computation.")
    if any(machine.is_cpu for machine in machines):
        notes.append("cpu: one core of the measured machine.")
    return notes


def _accuracy_note(name: str) -> str:
    from headstart.recipes.forecast import ERRORS

    errors = ERRORS[name]
    return (
        f"{name}: fitted to {errors.steps} measured steps; the leave-one-out error of the time is "
        f"{errors.middle:.0%} in the median and {errors.worst:.0%} at most, of memory {errors.memory:.0%} at most."
    )
