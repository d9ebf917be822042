"""What `headstart params --forecast` prints: memory and time of a pretraining run on machines, before it is spent."""

import json

from headstart.cli.console import Console
from headstart.config import PretrainConfig
from headstart.recipes.forecast import Forecast, forecast
from headstart.recipes.machines import ERRORS, MACHINES, MEASURED


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
        f"{tokens:,.0f} tokens, objective {config.objective}, {rows} rows of {config.model.context} tokens {each}"
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
        duration(found.hours),
    )


def duration(hours: float) -> str:
    """Hours as a person says them.

    >>> duration(0.02), duration(3), duration(100)
    ('1.2 minutes', '3.0 hours', '4.2 days')
    """
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def _notes(found: list[Forecast]) -> list[str]:
    notes = []
    for name in (name for name in MEASURED if any(each.machine.name == name for each in found)):
        off = ERRORS[name]
        memory = f"; memory {off.memory_worst:.0%} at worst" if off.memory_worst is not None else ""
        notes.append(
            f"{name}: fitted to {off.steps} measured steps. Left out of the fit in turn, they were forecast to "
            f"{off.middle:.0%} in the middle and {off.worst:.0%} at worst{memory}."
        )
    if any(each.machine.name not in MEASURED for each in found):
        notes.append("not measured: data-sheet peaks, of which the shares reached on a measured machine are assumed.")
    if any(each.communication for each in found):
        notes.append(
            "Talking between GPUs is counted from the data sheets, none of it hidden behind arithmetic; not measured."
        )
    if any(each.machine.is_cpu for each in found):
        notes.append("cpu: one core. Memory counts weights, gradients, optimizer and no more than that of the rest.")
    return notes
