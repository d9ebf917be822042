"""Machines as their makers describe them, and what of that was reached in measured steps.

Peaks are those of dense matrices; sources: the makers' data sheets (H200, H100 and A100 SXM; RTX 4090: Ada white paper). The
`cpu` is one core of the x86-64 machine that the steps were timed on, in round numbers: its shares were fitted to it.
"""

from dataclasses import dataclass


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
class Shares:
    """What a step really takes: times of what it would take at the peak, and seconds a layer that nothing shortens."""

    arithmetic: float
    moving: float
    waiting: float
    kept: float
    """Times of the activations as counted that are in memory at the worst moment."""
    other: float
    """Bytes that are there however small the network is."""


@dataclass(frozen=True)
class Errors:
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
    "cpu": Shares(1.153, 4.68, 0.008881, 9.707, 92690000.0),
    # two whole runs, so that bytes and arithmetic are one; what is kept is the cpu's, in bf16
    "h200": Shares(3.184, 0.0, 0.002049, 9.707, 0.0),
}
"""Fitted by benchmarks/forecast.py to docs/results/steps-*.json."""
ERRORS = {"cpu": Errors(8, 0.11, 0.31, 0.14), "h200": Errors(2, None, None, None)}
