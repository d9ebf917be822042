"""Forecasts of time and memory.

Machines as their makers describe them, and what of that was reached in measured steps.

Peaks are those of dense matrices; sources: the makers' data sheets (H200, H100 and A100 SXM; RTX 4090: Ada white paper). The
`cpu` is one core of the x86-64 machine that the steps were timed on, in round numbers: its shares were fitted to it.

What a step of pretraining will take, before it is spent: arithmetic, bytes and communication, fitted to measured steps.

seconds = arithmetic / (share of the peak) + bytes moved / (share of the bandwidth) + what each layer costs however small,
and between machines or GPUs the gradients that travel. Shares are fitted to steps that were timed (benchmarks/forecast.py);
a machine that was not is given those of the one that was, and the answer says so. No torch here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from headstart.config.schema import ModelConfig, PretrainConfig
from headstart.errors import UsageError
from headstart.model.parameter_count import count_parameters


@dataclass(frozen=True)
class Machine:
    """What a device can do at best."""

    name: str
    bf16: float
    """Operations a second of matrix products."""
    fp32: float
    bandwidth: float
    """Bytes a second to and from its own memory."""
    memory: float
    """Bytes."""
    link: float = 0.0
    """Bytes a second and direction to the other devices of the same box."""
    between: float = 0.0
    """The same to other boxes: a network card of 400 Gbit/s for each device."""
    in_a_box: int = 8

    @property
    def is_cpu(self) -> bool:
        """Whether it is no GPU."""
        return self.name == "cpu"


@dataclass(frozen=True)
class EfficiencyFactors:
    """What a step really takes: times of what it would take at the peak, and seconds a layer that nothing shortens."""

    arithmetic: float
    moving: float
    waiting: float
    kept: float
    """Times of the activations as counted that are in memory at the worst moment."""
    other: float
    """Bytes that are there however small the network is."""


@dataclass(frozen=True)
class ForecastErrors:
    """How far forecasts of measured steps were off, each left out of the fit that forecast it."""

    steps: int
    middle: float | None
    """None where as many were measured as there are shares: then nothing is left to judge by."""
    worst: float | None
    memory: float | None
    """At worst."""


_T, _G = 1e12, 1e9
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("cpu", 0.1 * _T, 0.1 * _T, 10 * _G, 16 * _G),
        Machine("rtx4090", 165 * _T, 82.6 * _T, 1008 * _G, 24 * _G, link=32 * _G, between=32 * _G),
        Machine("a100", 312 * _T, 19.5 * _T, 2039 * _G, 80 * _G, link=300 * _G, between=50 * _G),
        Machine("h100", 989 * _T, 67 * _T, 3350 * _G, 80 * _G, link=450 * _G, between=50 * _G),
        Machine("h200", 989 * _T, 67 * _T, 4800 * _G, 141 * _G, link=450 * _G, between=50 * _G),
    )
}
MEASURED = {
    "cpu": EfficiencyFactors(1.153, 4.68, 0.008881, 9.707, 92690000.0),
    # two whole runs, so that bytes and arithmetic are one; what is kept is the cpu's, in bf16
    "h200": EfficiencyFactors(3.184, 0.0, 0.002049, 9.707, 0.0),
}
"""Fitted by benchmarks/forecast.py to docs/results/steps-*.json."""
ERRORS = {"cpu": ForecastErrors(8, 0.11, 0.31, 0.14), "h200": ForecastErrors(2, None, None, None)}


_CHUNK, _CPU_CHUNK = 8192, 256
"""Rows whose scores over the vocabulary exist at a time, on a GPU and on a CPU (kernels/cross_entropy.py)."""
_ITERATIONS = 5
"""Of Muon, a step and matrix."""
_TERMS = 3
"""Shares that are fitted to the times of steps."""
DOCUMENT = 180.0
"""Tokens of a document, where nothing else is said; those of film and book reviews."""


@dataclass(frozen=True)
class Step:
    """One step on one device, as the cost model sees it."""

    parameters: int
    flops: float
    moved: float
    """Bytes through the memory: activations, scores, weights and the optimizer's state."""
    layers: int
    activations: float
    state: float
    """Bytes of weights, gradients and optimizer, and of the scores of some rows over the vocabulary."""


@dataclass(frozen=True)
class Forecast:
    """What a run will take on a machine."""

    machine: Machine
    gpus: int
    seconds: float
    """Of a step."""
    communication: float
    """Seconds of it that go into talking, where none of it hides behind the arithmetic."""
    memory: float
    """Bytes on each device."""
    tokens: int
    """Of a step, over all devices."""
    run_tokens: float

    @property
    def fits(self) -> bool:
        """Whether a device has that much memory."""
        return self.memory <= self.machine.memory

    @property
    def rate(self) -> float:
        """Tokens a second, over all devices."""
        return self.tokens / self.seconds

    @property
    def hours(self) -> float:
        """For the whole run."""
        return self.run_tokens / self.rate / 3600

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": self.machine.name,
            "measured": self.machine.name in MEASURED,
            "gpus": self.gpus,
            "step_seconds": self.seconds,
            "communication_seconds": self.communication,
            "memory_bytes": self.memory,
            "fits": self.fits,
            "tokens_per_second": self.rate,
            "tokens": self.run_tokens,
            "hours": self.hours,
        }


def target_fraction(config: PretrainConfig) -> float:
    """Of the tokens of a row, how many are asked for."""
    causal = {"causal": 1.0, "masked": 0.0, "hybrid": config.masking.causal}[config.objective]
    return causal + (1 - causal) * config.masking.rate


def step_of(
    model: ModelConfig, vocab_size: int, *, tokens: float, scored: float, document: float, optimizer: str, bf16: bool
) -> Step:
    """Count the work of a step."""
    d, f, L, V = model.width, model.feedforward, model.depth, vocab_size
    parameters = count_parameters(model, V, None).total
    shapes = [(3 * d, d), (d, d), *((d, f) for _ in range(3 if model.block == "modern" else 2))]
    inner = L * sum(rows * columns for rows, columns in shapes)
    seen = min(document, model.context)
    flops = 3 * (2 * inner * tokens + 4 * d * seen * L * tokens + 2 * V * d * scored)
    width = 2 if bf16 else 4
    state, moved = 16.0 * parameters, 28.0 * parameters
    if optimizer == "muon":
        small = [(min(shape), max(shape)) for shape in shapes]
        flops += L * _ITERATIONS * sum(4 * low * low * high + 2 * low**3 for low, high in small)
        state -= 4.0 * inner  # one running mean in place of two
    activations = tokens * L * (d + f) * width
    state += 2 * min(scored, _CHUNK if bf16 else _CPU_CHUNK) * V * 4.0
    moved += 8 * activations + 3 * scored * V * 4.0
    return Step(parameters, flops, moved, L, activations, state)


def _measured_step(run: Mapping[str, Any]) -> Step:
    config = PretrainConfig.model_validate(run["config"])
    return step_of(
        config.model,
        run["vocab_size"],
        tokens=run["tokens"],
        scored=run["scored"],
        document=run["document"],
        optimizer=config.optim.optimizer,
        bf16=run["bf16"],
    )


def seconds_of(step: Step, machine: Machine, shares: EfficiencyFactors, *, bf16: bool) -> float:
    """What a step takes on one device."""
    peak = machine.bf16 if bf16 else machine.fp32
    arithmetic, moving = shares.arithmetic * step.flops / peak, shares.moving * step.moved / machine.bandwidth
    return arithmetic + moving + shares.waiting * step.layers


def memory_of(step: Step, shares: EfficiencyFactors) -> float:
    """Bytes on one device at the worst moment."""
    return step.state + shares.kept * step.activations + shares.other


def forecast(
    config: PretrainConfig,
    vocab_size: int,
    machine: str,
    *,
    gpus: int = 1,
    parallel: str = "ddp",
    run_tokens: float = 1e9,
    document: float = DOCUMENT,
) -> Forecast:
    """What pretraining with these settings takes; every device has `loop.batch_size` rows a step."""
    if machine not in MACHINES:
        raise UsageError(f"--machine must be one of {', '.join(MACHINES)}, got {machine!r}")
    here = MACHINES[machine]
    if gpus < 1 or (gpus > 1 and not here.link):
        raise UsageError(
            f"--gpus must be 1 on {machine}, got {gpus}" if gpus > 1 else f"--gpus must be at least 1, got {gpus}"
        )
    shares = MEASURED.get(machine, MEASURED["cpu" if here.is_cpu else "h200"])
    bf16 = config.runtime.precision == "bf16" or (config.runtime.precision == "auto" and not here.is_cpu)
    tokens = config.loop.batch_size * config.model.context
    step = step_of(
        config.model,
        vocab_size,
        tokens=tokens * config.loop.accumulate,
        scored=tokens * config.loop.accumulate * target_fraction(config),
        document=document,
        optimizer=config.optim.optimizer,
        bf16=bf16,
    )
    held = step_of(
        config.model, vocab_size, tokens=tokens, scored=tokens * target_fraction(config), document=document,
        optimizer=config.optim.optimizer, bf16=bf16,
    )  # fmt: skip
    talking = _communication(step.parameters, here, gpus, parallel)
    memory = memory_of(held, shares)
    if parallel == "fsdp" and gpus > 1:
        memory -= held.state * (1 - 1 / gpus)
    alone = seconds_of(step, here, shares, bf16=bf16)
    every = tokens * config.loop.accumulate * gpus
    return Forecast(here, gpus, alone + talking, talking, memory, every, run_tokens)


def _communication(parameters: int, machine: Machine, gpus: int, parallel: str) -> float:
    """Seconds of a step in which gradients (ddp), or weights twice and gradients (fsdp), travel in fp32 round a ring."""
    if gpus == 1:
        return 0.0
    link = machine.link if gpus <= machine.in_a_box else min(machine.link, machine.between)
    times = {"ddp": 2, "fsdp": 3}.get(parallel)
    if times is None:
        raise UsageError(f"--parallel must be ddp or fsdp, got {parallel!r}")
    return times * 4.0 * parameters * (gpus - 1) / gpus / link


def fitted(runs: Sequence[Mapping[str, Any]], machine: Machine) -> EfficiencyFactors:
    """The shares that come nearest to measured steps, by least squares of the relative error; none is below zero.

    Where fewer steps were measured than there are shares, bytes and arithmetic cannot be told apart: all is arithmetic.
    """
    from scipy.optimize import nnls

    steps = [_measured_step(run) for run in runs]
    peaks = [machine.bf16 if run["bf16"] else machine.fp32 for run in runs]
    moving = [step.moved / machine.bandwidth if len(runs) > _TERMS else 0.0 for step in steps]
    rows = [[step.flops / peak, moved, step.layers] for step, peak, moved in zip(steps, peaks, moving, strict=True)]
    times = np.array([run["seconds"] for run in runs])
    solved = nnls(np.array(rows) / times[:, None], np.ones(len(runs)))[0]
    sized = [place for place, run in enumerate(runs) if run["peak"] is not None]
    kept = np.zeros(2)
    if sized:
        most = np.array([float(runs[place]["peak"]) for place in sized])
        table = np.array([[steps[place].activations, 1.0] for place in sized])
        kept = nnls(table / most[:, None], 1 - np.array([steps[place].state for place in sized]) / most)[0]
    return EfficiencyFactors(*(float(f"{value:.4g}") for value in (*solved, *kept)))


def forecast_errors(runs: Sequence[Mapping[str, Any]], machine: Machine) -> list[dict[str, float | None]]:
    """How far the forecast of each measured step is off: its time as fitted, and both fitted without that step."""
    shares = fitted(runs, machine)
    found = []
    for place, run in enumerate(runs):
        others = fitted([each for number, each in enumerate(runs) if number != place], machine)
        found.append(
            {
                "within": _error(run, machine, shares),
                "apart": _error(run, machine, others),
                "memory": _memory_error(run, others),
            }
        )
    return found


def _error(run: Mapping[str, Any], machine: Machine, shares: EfficiencyFactors) -> float:
    step = _measured_step(run)
    return seconds_of(step, machine, shares, bf16=run["bf16"]) / float(run["seconds"]) - 1


def _memory_error(run: Mapping[str, Any], shares: EfficiencyFactors) -> float | None:
    if run["peak"] is None:
        return None
    return memory_of(_measured_step(run), shares) / float(run["peak"]) - 1


def middle_and_worst(numbers: Sequence[float]) -> tuple[float, float]:
    """Of errors, whichever way they go.

    >>> middle_and_worst([0.1, -0.3, 0.05])
    (0.1, 0.3)
    """
    sizes = [abs(number) for number in numbers]
    return median(sizes), max(sizes)
