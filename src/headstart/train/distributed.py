"""The process group of a distributed run: collectives, a common reason to stop, and one error message for all processes.

torchrun starts the processes and sets their ranks in environment variables. Numbers are exchanged by torch.distributed
(gloo between CPUs, NCCL between GPUs); other values are broadcast as JSON through the rendezvous store. Nothing is pickled.
"""

import atexit
import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headstart.errors import HeadstartError, PeerFailedError, PeerLostError, UsageError
from headstart.runtime import rank_info

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

_TIMEOUT = timedelta(minutes=30)
"""Timeout for a process that is alive but does not respond; one that dies closes its connections, which is noticed at
once.
"""
_EXIT_GRACE = 5.0
"""Maximum seconds that a process waits at its exit for the one that reports the error."""
_STOP_REASONS = (None, "time limit reached", "SIGINT", "SIGTERM")
_PEER_LOST = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|socket|nccl|timed out|TCPStore|recvValue|sendBytes",
    re.IGNORECASE,
)


class ProcessGroup:
    """The processes of a run, from the point of view of one of them. All processes call these methods in the same order."""

    def __init__(self, rank: int = 0, world_size: int = 1, store: Any = None) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._num_broadcasts = store, 0

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and reports progress."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all processes."""
        if self.world_size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        summed: list[float] = sums.tolist()
        return summed

    def any(self, condition: bool) -> bool:
        """Return True if the condition holds in any process."""
        return self.sum([float(condition)])[0] > 0

    def consensus(self, reason: str | None) -> str | None:
        """Agree on one reason to stop, if any process has one."""
        if self.world_size == 1:
            return reason
        counts = self.sum([float(reason == candidate) for candidate in _STOP_REASONS])
        by_priority = reversed(list(zip(_STOP_REASONS, counts, strict=True)))
        return next((candidate for candidate, count in by_priority if candidate and count), None)

    def all_reduce(self, values: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Sum an array over all processes in place.

        Where each process computed some of the elements and left 0 in the others, the result is that of one process,
        bit for bit.
        """
        if self.world_size > 1:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.from_numpy(values))
        return values

    def broadcast(self, work: Callable[[], T]) -> T:
        """Call `work` in the main process and return its result, sent as JSON, in all; where it fails, all of them end.

        The main process raises the error itself, the others a PeerFailedError.
        """
        if self.world_size == 1:
            return work()
        self._num_broadcasts += 1
        key = f"broadcast/{self._num_broadcasts}"
        if not self.is_main:
            while not self._store.check([key]):  # polled: a blocking get would not let a signal through
                time.sleep(0.02)
            message = json.loads(self._store.get(key))
            if "failed" in message:
                raise PeerFailedError("the first process of this run reports the cause", message["failed"])
            result: T = message["value"]
            return result
        try:
            value = work()
        except BaseException as error:
            self._store.set(key, json.dumps({"failed": error.exit_code if isinstance(error, HeadstartError) else 1}))
            raise
        self._store.set(key, json.dumps({"value": value}))
        return value

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.sum([0.0])


SINGLE_PROCESS = ProcessGroup()
"""The group of a run in one process."""

_end_store: Any = None
"""The store by which the processes of a run decide which one reports an error."""
_num_groups = 0


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started for the duration of a block; one that leaves it early ends the others."""
    info = rank_info()
    if info.world_size == 1:
        yield SINGLE_PROCESS
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    global _end_store, _num_groups
    _num_groups += 1  # a script may train several times
    if _num_groups == 1:
        atexit.register(_let_threads_end)
    prefixed = dist.PrefixStore  # type: ignore[attr-defined]
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=_TIMEOUT))
        store = prefixed(f"headstart/{info.restarts}/{_num_groups}", store)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"process {info.rank} of {info.world_size} could not connect to the others ({_first_line(error)}); "
            "start them with torchrun, all with the same command"
        ) from None
    _end_store = prefixed("end", store)
    try:
        group = ProcessGroup(rank, world_size, prefixed("ranks", store))
        yield group
        group.barrier()
    except RuntimeError as error:
        if not _PEER_LOST.search(str(error)):
            raise
        raise PeerLostError(
            f"another process of this run has ended or cannot be reached ({_first_line(error)})"
        ) from error
    dist.destroy_process_group()
    _end_store = None


def _let_threads_end() -> None:
    """Wait for gloo's threads to free their tensors: doing so after the exit of Python would abort the process."""
    gc.collect()
    time.sleep(0.25)


def claim_error_report() -> bool:
    """Return True in the process that should report an error: the first to call this, as the others only follow it."""
    if rank_info().world_size == 1:
        return True
    if _end_store is None:  # no group yet: all processes have the same error
        return rank_info().rank == 0
    try:
        if _end_store.add("reporter", 1) == 1:
            return True
        await_error_report()
    except RuntimeError:  # the store ended with its process
        return True
    return False


def end_error_report() -> None:
    """Release the processes that wait for the report."""
    if _end_store is not None:
        try:
            _end_store.set("reported", "yes")
        except RuntimeError:
            return


def await_error_report() -> None:
    """Wait for the process that reports the error: torchrun ends all processes as soon as one has ended."""
    since = time.monotonic()
    while _end_store is not None and not _end_store.check(["reported"]) and time.monotonic() - since < _EXIT_GRACE:
        time.sleep(0.02)


def restarted() -> bool:
    """Return True if a launcher has restarted this command because it ended early."""
    return rank_info().restarts > 0 or int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0


def launch_id() -> str | None:
    """Return the id of torchrun's launch, if there is one; it stays the same when machines join or leave."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return None if rank_info().world_size == 1 or name == "none" else name


def _first_line(error: Exception) -> str:
    """Return the reason without the source location with which gloo's messages begin."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r"^\[[^\]]*\]\s*", "", line).partition(". ")[0].rstrip(".")[:200]
