"""What `headstart params --forecast` prints: memory and time of a pretraining run on machines, before it is spent."""

import json

from headstart.cli.console import Console
from headstart.config import PretrainConfig
from headstart.progress import counted
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
        f"{tokens:,.0f} tokens, objective {config.objective}, {counted(rows, 'row')} of {config.model.context} tokens {each}"
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
    shown = [each.machine for each in found]
    notes = [_trust(machine.name) for machine in shown if machine.name in MEASURED]
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


def _trust(name: str) -> str:
    off = ERRORS[name]
    if off.middle is None or off.worst is None:
        return f"{name}: fitted to {off.steps} whole runs, too few to say how far other runs are off."
    memory = "" if off.memory is None else f", in memory by {off.memory:.0%} at worst"
    return (
        f"{name}: fitted to {off.steps} measured steps. Each left out of the fit in turn, its forecast was off by "
        f"{off.middle:.0%} in the middle and {off.worst:.0%} at worst{memory}."
    )
