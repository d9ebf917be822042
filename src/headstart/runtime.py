"""Where the arithmetic runs, from which seed, and how a run is asked to stop."""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headstart.config.schema import RuntimeConfig
from headstart.errors import ConfigError
from headstart.version import __version__

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RankInfo:
    """Which of several processes this is, of all and of those on this machine; torchrun says so in the environment."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restarts: int = 0


def rank_info() -> RankInfo:
    """The place of this process; alone unless a launcher gave all three numbers."""
    given = os.environ
    if not all(given.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return RankInfo()
    return RankInfo(
        rank=int(given["RANK"]),
        world_size=int(given["WORLD_SIZE"]),
        local_rank=int(given["LOCAL_RANK"]),
        local_world_size=int(given.get("LOCAL_WORLD_SIZE") or 1),
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


def setup_runtime(config: RuntimeConfig) -> Runtime:
    """Choose the device and set the threads of this process."""
    import torch

    threads = config.threads or max(1, free_cores() // rank_info().local_world_size)
    torch.set_num_threads(threads)
    if config.deterministic:  # before CUDA starts, which reads it once
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    device = _choose_device(config.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
    return Runtime(device, bf16, threads)


def free_cores() -> int:
    """Cores this process may use, less those that others keep busy now: two threads on one core are slower than one."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = os.sched_getaffinity(0)
    before = _cpu_ticks(cores)
    time.sleep(0.1)
    idle, total = (after - earlier for after, earlier in zip(_cpu_ticks(cores), before, strict=True))
    busy = (1 - idle / total) * len(cores) if total else 0.0
    return max(1, len(cores) - round(busy))


def _cpu_ticks(cores: set[int]) -> tuple[int, int]:
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


def _choose_device(name: str) -> "torch.device":
    import torch

    if rank_info().world_size > 1:
        return _rank_device(name)
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


def _rank_device(name: str) -> "torch.device":
    """Of several processes on a machine, each takes the GPU of its number, or all take the CPU."""
    import torch

    here, gpus = rank_info(), torch.cuda.device_count()
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"runtime.device must be auto, cpu or cuda where torchrun starts several processes, got {name!r}"
        )
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if here.local_world_size > gpus:
        raise ConfigError(
            f"{here.local_world_size} processes were started here and there are {gpus} GPUs; "
            f"try torchrun --nproc-per-node {max(gpus, 1)}, or runtime.device cpu"
        )
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


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
