"""The device, precision, threads and random seed of a process, and its rank among the processes of a run."""

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
    """The rank of this process among all and among those on this machine, from torchrun's environment variables."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restarts: int = 0


def rank_info() -> RankInfo:
    """Read the rank from the environment; a process is alone unless a launcher has set all three variables."""
    variables = os.environ
    if not all(variables.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return RankInfo()
    return RankInfo(
        rank=int(variables["RANK"]),
        world_size=int(variables["WORLD_SIZE"]),
        local_rank=int(variables["LOCAL_RANK"]),
        local_world_size=int(variables.get("LOCAL_WORLD_SIZE") or 1),
        restarts=int(variables.get("TORCHELASTIC_RESTART_COUNT") or 0),
    )


@dataclass(frozen=True)
class Runtime:
    """The device of a run, the precision of its matrix products, and its CPU threads."""

    device: "torch.device"
    bf16: bool
    threads: int

    def autocast(self) -> AbstractContextManager[None]:
        """Run matrix products in bf16 if that was chosen; weights and sums stay in fp32."""
        import torch

        if not self.bf16:
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, dtype=torch.bfloat16)
        return context

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Run matrix products in TF32 inside the block, on a GPU that trains in bf16; weights and sums stay in fp32."""
        import torch

        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.bf16 and self.device.type == "cuda"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def setup_runtime(config: RuntimeConfig) -> Runtime:
    """Resolve the device and the threads, and apply the settings to this process: torch's global state, and one variable."""
    import torch

    threads = resolve_threads(config)
    torch.set_num_threads(threads)
    if config.deterministic:  # before CUDA starts, which reads it once
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    device = resolve_device(config)
    if device.type == "cuda":
        if rank_info().world_size > 1:
            torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
    return Runtime(device, bf16, threads)


def resolve_threads(config: RuntimeConfig) -> int:
    """Return the thread count of the settings, or this process's part of the free cores. It changes nothing."""
    return config.threads or max(1, free_cores() // rank_info().local_world_size)


def free_cores() -> int:
    """Count the cores that are idle now, over 0.1 seconds: two threads on one core are slower than one."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = os.sched_getaffinity(0)
    before = _cpu_ticks(cores)
    time.sleep(0.1)
    idle, total = (later - earlier for later, earlier in zip(_cpu_ticks(cores), before, strict=True))
    busy = (1 - idle / total) * len(cores) if total else 0.0
    return max(1, len(cores) - round(busy))


def _cpu_ticks(cores: set[int]) -> tuple[int, int]:
    """Return the idle and the total ticks of these cores since boot; zeros where the system does not report them."""
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


def resolve_device(config: RuntimeConfig) -> "torch.device":
    """Return the device of the settings after checking that it works; raises ConfigError otherwise."""
    import torch

    name = config.device
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
    """Return the GPU of this process's local rank, or the CPU for all processes."""
    import torch

    info, gpus = rank_info(), torch.cuda.device_count()
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"runtime.device must be auto, cpu or cuda where torchrun starts several processes, got {name!r}"
        )
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if info.local_world_size > gpus:
        raise ConfigError(
            f"{info.local_world_size} processes were started here and there are {gpus} GPUs; "
            f"try torchrun --nproc-per-node {max(gpus, 1)}, or runtime.device cpu"
        )
    return torch.device("cuda", info.local_rank)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Set torch's random state for one step: a pure function of (seed, step), so there is no state to save.

    Args:
        rank: processes draw different dropout masks, because they read different rows.
    """
    import torch

    value = (seed * 0x9E3779B1 + step * 0x85EBCA6B + rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
    # as torch.manual_seed, which also records a stack trace for every type of device that is not initialised
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)


def environment(runtime: Runtime) -> dict[str, Any]:
    """Return versions and hardware: what the numbers of a run depend on besides its settings and data."""
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
