"""Where the arithmetic runs, from which seed, and how a run is asked to stop."""

import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from headstart.config import RuntimeConfig
from headstart.errors import ConfigError
from headstart.version import __version__

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Place:
    """Which of several processes this is, of all and of those on this machine; torchrun says so in the environment."""

    rank: int = 0
    world: int = 1
    local: int = 0
    neighbours: int = 1
    restarts: int = 0


def place() -> Place:
    """The place of this process; alone unless a launcher gave all three numbers."""
    given = os.environ
    if not all(given.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return Place()
    return Place(
        rank=int(given["RANK"]),
        world=int(given["WORLD_SIZE"]),
        local=int(given["LOCAL_RANK"]),
        neighbours=int(given.get("LOCAL_WORLD_SIZE") or 1),
        restarts=int(given.get("TORCHELASTIC_RESTART_COUNT") or 0),
    )


@dataclass(frozen=True)
class Runtime:
    """A device and the precision of its matrix products."""

    device: "torch.device"
    bf16: bool
    threads: int

    def autocast(self) -> AbstractContextManager[None]:
        """Run matrix products in bf16 where that was chosen; weights and sums stay in fp32."""
        import torch

        if not self.bf16:
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, dtype=torch.bfloat16)
        return context

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Weights and sums in fp32, products of them in TF32 where bf16 would be used to train."""
        import torch

        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.bf16 and self.device.type == "cuda"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def start(config: RuntimeConfig) -> Runtime:
    """Choose the device and set the threads of this process."""
    import torch

    threads = config.threads or max(1, free_cores() // place().neighbours)
    torch.set_num_threads(threads)
    if config.deterministic:  # before CUDA starts, which reads it once
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    device = _device(config.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
    return Runtime(device, bf16, threads)


def free_cores() -> int:
    """Cores this process may use, less those that others keep busy now: two threads on one core are slower than one."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = os.sched_getaffinity(0)
    before = _processor_ticks(cores)
    time.sleep(0.1)
    idle, total = (after - earlier for after, earlier in zip(_processor_ticks(cores), before, strict=True))
    busy = (1 - idle / total) * len(cores) if total else 0.0
    return max(1, len(cores) - round(busy))


def _processor_ticks(cores: set[int]) -> tuple[int, int]:
    """Idle and all ticks of these cores so far; zeros where the system does not tell."""
    idle = total = 0
    try:
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, *numbers = line.split()
                if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
                    ticks = [int(number) for number in numbers[:8]]
                    idle, total = idle + ticks[3] + ticks[4], total + sum(ticks)
    except (OSError, ValueError):
        return 0, 0
    return idle, total


def _device(name: str) -> "torch.device":
    import torch

    if place().world > 1:
        return _own_device(name)
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise ConfigError(f"runtime.device must be auto, cpu, cuda, cuda:N or mps, got {name!r}")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"runtime.device {name!r} cannot be used here ({reason}); try auto or cpu") from None
    return device


def _own_device(name: str) -> "torch.device":
    """Of several processes on a machine, each takes the GPU of its number, or all take the CPU."""
    import torch

    here, gpus = place(), torch.cuda.device_count()
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"runtime.device must be auto, cpu or cuda where torchrun starts several processes, got {name!r}"
        )
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if here.neighbours > gpus:
        raise ConfigError(
            f"{here.neighbours} processes were started here and there are {gpus} GPUs; "
            f"try torchrun --nproc-per-node {max(gpus, 1)}, or runtime.device cpu"
        )
    torch.cuda.set_device(here.local)
    return torch.device("cuda", here.local)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Set torch's random state for one step: a pure function of (seed, step), so there is no state to save.

    Args:
        rank: several processes drop different activations, because they read different rows.
    """
    import torch

    value = (seed * 0x9E3779B1 + step * 0x85EBCA6B + rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
    # as torch.manual_seed, which also writes down where it was called from for every kind of device that is not there
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)


def environment(runtime: Runtime) -> dict[str, Any]:
    """What the numbers of a run depend on besides its settings and data."""
    import numpy
    import tokenizers
    import torch

    gpu = torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else None
    return {
        "headstart": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "tokenizers": tokenizers.__version__,
        "platform": platform.platform(),
        "processor": platform.machine(),
        "device": str(runtime.device),
        "gpu": gpu,
        "bf16": runtime.bf16,
        "threads": runtime.threads,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


class Halt(BaseException):
    """Raised once a stop was asked for, between two pieces of work or in one that may be cut; the recipe saves and leaves.

    No `Exception`: it comes out of the middle of a compiler, which would take that for a fault of its own.
    """


class Stop:
    """Whether someone asked the run to stop, and why."""

    def __init__(self, time_limit: float | None = None, since: float | None = None) -> None:
        self.reason: str | None = None
        self.may_cut = False
        self.agree: Callable[[str | None], str | None] | None = None
        """Where several processes train together: makes one reason of theirs, so that all stop at the same moment."""
        begun = time.monotonic() if since is None else since
        self._deadline = None if time_limit is None else begun + 60 * time_limit

    @property
    def requested(self) -> bool:
        """True once a signal came or the time limit passed."""
        if self.reason is None and self._deadline is not None and time.monotonic() > self._deadline:
            self.reason = "time limit reached"
        return self.reason is not None

    @property
    def why(self) -> str:
        """The reason as it is told to a person, who knows a key and not the signal that it sends."""
        return "Ctrl-C" if self.reason == "SIGINT" else self.reason or ""

    def check(self) -> None:
        """Leave the work in hand if a stop was asked for."""
        requested = self.requested
        if self.agree is not None:
            self.reason = self.agree(self.reason)
            requested = self.reason is not None
        if requested:
            raise Halt

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Work that a signal leaves in the middle, because nothing of it is kept: a compiler looks up for nobody."""
        self.may_cut = True
        try:
            yield
        finally:
            self.may_cut = False


def cuts(stop: Stop, *, compiled: bool) -> Callable[[], AbstractContextManager[None]]:
    """How a step is entered: one that torch may compile in takes too long for a signal to wait for its end."""
    # where several train together, one that leaves would keep the others waiting
    return stop.cutting if compiled and stop.agree is None else nullcontext


@contextmanager
def stopping(time_limit: float | None = None, since: float | None = None) -> Iterator[Stop]:
    """Catch the first SIGINT or SIGTERM as a wish to stop soon; the second one acts at once, as usual.

    Where torchrun started several processes, it sends signals of its own after the first, and ends those that take too long:
    further ones are not listened to.

    Args:
        time_limit: minutes, counted from `since` (as `time.monotonic` has it): what came before training counts too.
    """
    stop = Stop(time_limit, since)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.reason = stop.reason or signal.Signals(number).name
        if place().world > 1:
            return
        for each, handler in before.items():
            signal.signal(each, handler)
        # not print: a handler may run in the middle of one
        os.write(2, b"\nstopping: saving first (press Ctrl-C again to stop at once)\n")
        if stop.may_cut:
            stop.may_cut = False
            raise Halt

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    except BaseException:
        if place().world > 1:  # this process ends, and torchrun's wish that it should must not come between
            before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
