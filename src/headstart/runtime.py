"""The device, precision, threads and random seed of a process, and its rank among the processes of a run."""

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headstart.config.schema import MAX_THREADS, ModelConfig, RuntimeConfig
from headstart.errors import ConfigError
from headstart.version import __version__

if TYPE_CHECKING:
    import torch


_MIN_BF16_WIDTH = 128
"""The narrowest network that trains in bf16 on a CPU unless the settings say so: products of narrower ones take less time
than the calls around them."""
_MIN_BF16_SPEED = 1.5
"""How many times as fast as in fp32 a CPU must multiply in bf16. With native instructions it is 3 to 5 times."""


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
    mixed: bool = False
    """Whether a predictor may compute in bf16 first, and in fp32 where the decision is close: `auto` on a CPU."""

    def autocast(self, *, scoring: bool = False) -> AbstractContextManager[None]:
        """Run matrix products in bf16 if that was chosen; weights and sums stay in fp32.

        Args:
            scoring: nothing is trained inside the block; a CPU then computes in fp32.
        """
        import torch

        if not self.bf16 or (scoring and self.device.type == "cpu"):
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
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:  # setting it imports torch's compiler
        torch.use_deterministic_algorithms(config.deterministic)
    device = resolve_device(config)
    if device.type == "cuda":
        if rank_info().world_size > 1:
            torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
    return Runtime(device, bf16, threads, mixed=config.precision == "auto" and device.type == "cpu")


def resolve_precision(config: RuntimeConfig, model: ModelConfig) -> Literal["auto", "fp32", "bf16"]:
    """Return the precision that a new run records, so that resuming it and its workers have the same one.

    On a CPU, `auto` becomes bf16 if that is faster for this network; other devices decide by themselves. It changes nothing.
    """
    if config.precision != "auto" or resolve_device(config).type != "cpu":
        return config.precision
    return "bf16" if model.width >= _MIN_BF16_WIDTH and not config.compile and _is_bf16_fast() else "fp32"


@cache
def _is_bf16_fast() -> bool:
    """Time a matrix product in both precisions: without native instructions, bf16 is emulated and slow."""
    import torch

    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(512, 256, dtype=dtype), torch.ones(256, 704, dtype=dtype)
        times = []
        for _ in range(8):
            started = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - started)
        seconds[dtype] = min(times)
    return seconds[torch.float32] > _MIN_BF16_SPEED * seconds[torch.bfloat16]


def resolve_threads(config: RuntimeConfig) -> int:
    """Return the threads of the settings, of OMP_NUM_THREADS, or this process's part of the free cores. It changes nothing."""
    return config.threads or _environment_threads() or max(1, free_cores() // rank_info().local_world_size)


def describe_threads(config: RuntimeConfig, threads: int) -> str | None:
    """Explain why `threads` are fewer than the cores; None if the user has set them, or all cores are used."""
    cores, processes = _num_cores(), rank_info().local_world_size
    if config.threads or _environment_threads() or threads * processes >= cores:
        return None
    used = (
        f"{threads} of {cores} cores"
        if processes == 1
        else f"{threads} of {cores} cores in each of {processes} processes"
    )
    return f"training uses {used}: the other cores are busy; set runtime.threads or OMP_NUM_THREADS to change it"


def _environment_threads() -> int | None:
    """Return OMP_NUM_THREADS if the user has set it; torchrun sets 1 by default for several processes, which is ignored."""
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    threads = min(int(value), MAX_THREADS) if value.isascii() and value.isdecimal() and len(value) < 20 else 0
    return None if threads == 0 or (threads == 1 and rank_info().local_world_size > 1) else threads


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that a process can have at most."""

    bytes: int
    owner: str
    """The owner of the limit, as the subject of a sentence: "this machine has"."""


def gpu_memory(config: RuntimeConfig) -> MemoryLimit | None:
    """Return the memory of the CUDA device that the settings choose; None for any other device."""
    import torch

    device = resolve_device(config)
    if device.type != "cuda":
        return None
    return MemoryLimit(torch.cuda.get_device_properties(device).total_memory, f"{device} has")


def machine_memory(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the memory of this machine with its swap, or less if the container or a ulimit allows less.

    Args:
        root: where the files of the system are found.
    """
    memory, swap = _machine_memory(root)
    limits = [MemoryLimit(memory + swap, "this machine has")] if memory else []
    limits += [MemoryLimit(size, "this container may use") for size in _cgroup_limits(root, swap)]
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return min(limits, key=lambda limit: limit.bytes, default=None)
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        size = resource.getrlimit(kind)[0]
        if size != resource.RLIM_INFINITY:
            limits.append(MemoryLimit(size, "the ulimit of this process is"))
    return min(limits, key=lambda limit: limit.bytes, default=None)


def _machine_memory(root: Path) -> tuple[int, int]:
    """Return the bytes of memory and of swap; 0 where the system does not say."""
    sizes = {}
    for line in _system_lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        number = value.removesuffix(" kB").strip()
        sizes[name] = 1024 * int(number) if number.isdecimal() else 0
    if sizes.get("MemTotal"):
        return sizes["MemTotal"], sizes.get("SwapTotal", 0)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
    except (AttributeError, ValueError, OSError):
        return 0, 0


def _cgroup_limits(root: Path, swap: int) -> list[int]:
    """Return the limits of the control groups of this process and their parents (versions 1 and 2), swap included."""
    limits = []
    for line in _system_lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        name, swap_name = ("memory.limit_in_bytes", "") if controllers else ("memory.max", "memory.swap.max")
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            allowed = min([swap, *(_numbers_in(folder / swap_name) if swap_name else ())])
            limits += [limit + allowed for limit in _numbers_in(folder / name)]
            if folder == mount:
                break
    return limits


def _numbers_in(path: Path) -> list[int]:
    return [int(line) for line in _system_lines(path) if line.isdecimal()]


def _system_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


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
    """Return versions and hardware, which the numbers of a run depend on besides its settings and data."""
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
