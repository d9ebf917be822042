"""Forecast the time and memory of pretraining on a machine before running it. No torch.

    seconds = arithmetic / peak * factor + bytes moved / bandwidth * factor + overhead per layer + communication

The factors are fitted to measured steps (benchmarks/forecast.py); a machine that was not measured uses the factors of one
that was, and the output states that. Peaks are those of dense matrices from the data sheets of the manufacturers (H200, H100
and A100 SXM; RTX 4090: Ada white paper). The `cpu` is one core of the x86-64 machine that the steps were timed on, in round
numbers.
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
    """The peak performance of a device."""

    name: str
    bf16: float
    """Peak FLOP/s of matrix products in bf16."""
    fp32: float
    bandwidth: float
    """Bytes per second to and from its memory."""
    memory: float
    """Bytes of memory."""
    link: float = 0.0
    """Bytes per second and direction to the other devices of the same host."""
    between: float = 0.0
    """Bytes per second to other hosts: a network card of 400 Gbit/s per device."""
    devices_per_host: int = 8

    @property
    def is_cpu(self) -> bool:
        """True for a CPU."""
        return self.name == "cpu"


@dataclass(frozen=True)
class EfficiencyFactors:
    """Measured time and memory as multiples of the ideal ones, and a fixed time per layer."""

    arithmetic: float
    moving: float
    waiting: float
    """Seconds per layer that do not depend on its size."""
    kept: float
    """Peak activation memory as a multiple of the counted activations."""
    other: float
    """Bytes that do not depend on the network."""


@dataclass(frozen=True)
class ForecastErrors:
    """Leave-one-out errors of the forecasts of measured steps."""

    steps: int
    middle: float
    """The median error."""
    worst: float
    memory: float
    """The largest error of the memory."""


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
    "h200": EfficiencyFactors(1.002, 6.032, 0.0002387, 6.073, 0.0),
}
"""Factors that benchmarks/forecast.py fits to docs/results/steps-*.json."""
ERRORS = {"cpu": ForecastErrors(8, 0.11, 0.31, 0.14), "h200": ForecastErrors(7, 0.33, 0.63, 0.64)}


_CHUNK, _CPU_CHUNK = 8192, 256
"""Rows of logits per chunk, on a GPU and on a CPU (kernels/cross_entropy.py)."""
_MUON_ITERATIONS = 5
_NUM_FACTORS = 3
"""The number of factors that are fitted to the times of steps."""
DOCUMENT = 180.0
"""The default length of a document in tokens: that of film and book reviews."""


@dataclass(frozen=True)
class Step:
    """The work of one step on one device."""

    parameters: int
    flops: float
    moved: float
    """Bytes moved: activations, logits, weights and optimizer state."""
    layers: int
    activations: float
    state: float
    """Bytes of weights, gradients, optimizer state, and a chunk of logits."""


@dataclass(frozen=True)
class Forecast:
    """The time and memory of a run on a machine."""

    machine: Machine
    gpus: int
    seconds: float
    """Seconds per step."""
    communication: float
    """Seconds per step of communication, none of it overlapped with arithmetic."""
    memory: float
    """Bytes per device."""
    tokens: int
    """Tokens per step over all devices."""
    run_tokens: float

    @property
    def fits(self) -> bool:
        """True if a device has enough memory."""
        return self.memory <= self.machine.memory

    @property
    def rate(self) -> float:
        """Tokens per second over all devices."""
        return self.tokens / self.seconds

    @property
    def hours(self) -> float:
        """Hours of the full run."""
        return self.run_tokens / self.rate / 3600

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values for JSON."""
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
    """Return the fraction of the tokens that are predicted."""
    causal = {"causal": 1.0, "masked": 0.0, "hybrid": config.masking.causal}[config.objective]
    return causal + (1 - causal) * config.masking.rate


def step_of(
    model: ModelConfig,
    vocab_size: int,
    *,
    tokens: float,
    num_targets: float,
    document: float,
    optimizer: str,
    bf16: bool,
) -> Step:
    """Count the FLOPs, bytes moved and memory of a step."""
    d, f, L, V = model.width, model.feedforward, model.depth, vocab_size
    parameters = count_parameters(model, V, None).total
    shapes = [(3 * d, d), (d, d), *((d, f) for _ in range(3 if model.block == "modern" else 2))]
    layer_weights = L * sum(rows * columns for rows, columns in shapes)
    visible = min(document, model.context)
    flops = 3 * (2 * layer_weights * tokens + 4 * d * visible * L * tokens + 2 * V * d * num_targets)
    bytes_per_value = 2 if bf16 else 4
    state, moved = 16.0 * parameters, 28.0 * parameters
    if optimizer == "muon":
        sides = [(min(shape), max(shape)) for shape in shapes]
        flops += L * _MUON_ITERATIONS * sum(4 * low * low * high + 2 * low**3 for low, high in sides)
        state -= 4.0 * layer_weights  # one moment in place of two
    activations = tokens * L * (d + f) * bytes_per_value
    state += 2 * min(num_targets, _CHUNK if bf16 else _CPU_CHUNK) * V * 4.0
    moved += 8 * activations + 3 * num_targets * V * 4.0
    return Step(parameters, flops, moved, L, activations, state)


def _measured_step(run: Mapping[str, Any]) -> Step:
    config = PretrainConfig.model_validate(run["config"])
    return step_of(
        config.model,
        run["vocab_size"],
        tokens=run["tokens"],
        num_targets=run["scored"],
        document=run["document"],
        optimizer=config.optim.optimizer,
        bf16=run["bf16"],
    )


def seconds_of(step: Step, machine: Machine, factors: EfficiencyFactors, *, bf16: bool) -> float:
    """Return the seconds of a step on one device."""
    peak = machine.bf16 if bf16 else machine.fp32
    arithmetic, moving = factors.arithmetic * step.flops / peak, factors.moving * step.moved / machine.bandwidth
    return arithmetic + moving + factors.waiting * step.layers


def memory_of(step: Step, factors: EfficiencyFactors) -> float:
    """Return the peak memory on one device in bytes."""
    return step.state + factors.kept * step.activations + factors.other


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
    """Forecast pretraining with these settings; every device has `loop.batch_size` rows per step."""
    if machine not in MACHINES:
        raise UsageError(f"--machine must be one of {', '.join(MACHINES)}, got {machine!r}")
    device = MACHINES[machine]
    if gpus < 1 or (gpus > 1 and not device.link):
        raise UsageError(
            f"--gpus must be 1 on {machine}, got {gpus}" if gpus > 1 else f"--gpus must be at least 1, got {gpus}"
        )
    factors = MEASURED.get(machine, MEASURED["cpu" if device.is_cpu else "h200"])
    bf16 = config.runtime.precision == "bf16" or (config.runtime.precision == "auto" and not device.is_cpu)
    tokens = config.loop.batch_size * config.model.context
    step = step_of(
        config.model,
        vocab_size,
        tokens=tokens * config.loop.accumulate,
        num_targets=tokens * config.loop.accumulate * target_fraction(config),
        document=document,
        optimizer=config.optim.optimizer,
        bf16=bf16,
    )
    micro_step = step_of(
        config.model,
        vocab_size,
        tokens=tokens,
        num_targets=tokens * target_fraction(config),
        document=document,
        optimizer=config.optim.optimizer,
        bf16=bf16,
    )
    communication = _communication(step.parameters, device, gpus, parallel)
    memory = memory_of(micro_step, factors)
    if parallel == "fsdp" and gpus > 1:
        memory -= micro_step.state * (1 - 1 / gpus)
    seconds = seconds_of(step, device, factors, bf16=bf16) + communication
    return Forecast(device, gpus, seconds, communication, memory, tokens * config.loop.accumulate * gpus, run_tokens)


def _communication(parameters: int, machine: Machine, gpus: int, parallel: str) -> float:
    """Return the seconds per step of a ring all-reduce in fp32: gradients (ddp), or weights twice and gradients (fsdp)."""
    if gpus == 1:
        return 0.0
    link = machine.link if gpus <= machine.devices_per_host else min(machine.link, machine.between)
    times = {"ddp": 2, "fsdp": 3}.get(parallel)
    if times is None:
        raise UsageError(f"--parallel must be ddp or fsdp, got {parallel!r}")
    return times * 4.0 * parameters * (gpus - 1) / gpus / link


def fit_factors(runs: Sequence[Mapping[str, Any]], machine: Machine) -> EfficiencyFactors:
    """Fit the factors to measured steps by non-negative least squares of the relative error.

    With no more steps than factors, bytes and arithmetic cannot be separated: all is counted as arithmetic.
    """
    from scipy.optimize import nnls

    steps = [_measured_step(run) for run in runs]
    peaks = [machine.bf16 if run["bf16"] else machine.fp32 for run in runs]
    moving = [step.moved / machine.bandwidth if len(runs) > _NUM_FACTORS else 0.0 for step in steps]
    rows = [[step.flops / peak, moved, step.layers] for step, peak, moved in zip(steps, peaks, moving, strict=True)]
    times = np.array([run["seconds"] for run in runs])
    time_factors = nnls(np.array(rows) / times[:, None], np.ones(len(runs)))[0]
    with_memory = [(step, float(run["peak"])) for step, run in zip(steps, runs, strict=True) if run["peak"] is not None]
    memory_factors = np.zeros(2)
    if with_memory:
        peak_bytes = np.array([peak for _, peak in with_memory])
        activations = np.array([[step.activations, 1.0] for step, _ in with_memory])
        states = np.array([step.state for step, _ in with_memory])
        memory_factors = nnls(activations / peak_bytes[:, None], 1 - states / peak_bytes)[0]
    return EfficiencyFactors(*(float(f"{value:.4g}") for value in (*time_factors, *memory_factors)))


def forecast_errors(runs: Sequence[Mapping[str, Any]], machine: Machine) -> list[dict[str, float | None]]:
    """Return the relative errors of each measured step: in the fit, and of time and memory fitted without it."""
    factors = fit_factors(runs, machine)
    errors = []
    for index, run in enumerate(runs):
        without = fit_factors([*runs[:index], *runs[index + 1 :]], machine)
        errors.append(
            {
                "within": _error(run, machine, factors),
                "held_out": _error(run, machine, without),
                "memory": _memory_error(run, without),
            }
        )
    return errors


def _error(run: Mapping[str, Any], machine: Machine, factors: EfficiencyFactors) -> float:
    step = _measured_step(run)
    return seconds_of(step, machine, factors, bf16=run["bf16"]) / float(run["seconds"]) - 1


def _memory_error(run: Mapping[str, Any], factors: EfficiencyFactors) -> float | None:
    if run["peak"] is None:
        return None
    return memory_of(_measured_step(run), factors) / float(run["peak"]) - 1


def median_and_max(errors: Sequence[float]) -> tuple[float, float]:
    """Return the median and the maximum of absolute errors.

    >>> median_and_max([0.1, -0.3, 0.05])
    (0.1, 0.3)
    """
    magnitudes = [abs(error) for error in errors]
    return median(magnitudes), max(magnitudes)
