"""Several processes that train one model: who is who, how they agree, and how the end of one ends all.

torchrun starts them, and says in environment variables who is who. Numbers go through torch.distributed (gloo between
processors, NCCL between GPUs); whatever else one process has to tell the others goes as JSON through the store at which
they met. Nothing is pickled.
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
"""For a step of a process that lives but does not answer; one that dies closes its connections, which shows at once."""
_EXIT_GRACE = 5.0
"""Seconds that a process which has nothing to say leaves to the one that speaks."""
_REASONS = (None, "time limit reached", "SIGINT", "SIGTERM")
_PEER_LOST = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|socket|nccl|timed out|TCPStore|recvValue|sendBytes",
    re.IGNORECASE,
)


class ProcessGroup:
    """The processes of a run, seen from one of them. Whatever is called here is called by all, in the same order."""

    def __init__(self, rank: int = 0, world_size: int = 1, store: Any = None) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._told = store, 0

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes."""
        if self.world_size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        found: list[float] = sums.tolist()
        return found

    def any(self, answer: bool) -> bool:
        """Whether any process says yes."""
        return self.sum([float(answer)])[0] > 0

    def consensus(self, reason: str | None) -> str | None:
        """One reason to stop for all, if any has one."""
        if self.world_size == 1:
            return reason
        asked = self.sum([float(reason == each) for each in _REASONS])
        return next((each for each, count in reversed(list(zip(_REASONS, asked, strict=True))) if each and count), None)

    def all_reduce(self, values: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Values of which each process worked out some and left 0 in place of the others: to the bit as of one process."""
        if self.world_size > 1:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.from_numpy(values))
        return values

    def broadcast(self, work: Callable[[], T]) -> T:
        """What the first process finds, as JSON, told to all; where it fails, all end, and it alone says why."""
        if self.world_size == 1:
            return work()
        self._told += 1
        key = f"told/{self._told}"
        if not self.is_main:
            while not self._store.check([key]):  # in short naps: a signal must be heard meanwhile
                time.sleep(0.02)
            answer = json.loads(self._store.get(key))
            if "failed" in answer:
                raise PeerFailedError("the first process of this run says why", answer["failed"])
            found: T = answer["value"]
            return found
        try:
            value = work()
        except BaseException as error:
            self._store.set(key, json.dumps({"failed": error.exit_code if isinstance(error, HeadstartError) else 1}))
            raise
        self._store.set(key, json.dumps({"value": value}))
        return value

    def barrier(self) -> None:
        """Until all are here."""
        self.sum([0.0])


SINGLE_PROCESS = ProcessGroup()
"""One process: nobody to agree with."""

_process_group: Any = None
"""The store of this process's run, by which it is settled who speaks."""
_num_groups = 0


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """The processes that torchrun started, for the length of a block; one that leaves it early ends the others."""
    here = rank_info()
    if here.world_size == 1:
        yield SINGLE_PROCESS
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    global _process_group, _num_groups
    _num_groups += 1  # a script may train several times
    if _num_groups == 1:
        atexit.register(_let_threads_end)
    within = dist.PrefixStore  # type: ignore[attr-defined]
    try:
        store, rank, world = next(rendezvous("env://", timeout=_TIMEOUT))
        store = within(f"headstart/{here.restarts}/{_num_groups}", store)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"process {here.rank} of {here.world_size} could not meet the others ({_first_line(error)}); "
            "start them with torchrun, all with the same command"
        ) from None
    _process_group = within("end", store)
    try:
        ranks = ProcessGroup(rank, world, within("ranks", store))
        yield ranks
        ranks.barrier()
    except RuntimeError as error:
        if not _PEER_LOST.search(str(error)):
            raise
        raise PeerLostError(
            f"another process of this run has ended or cannot be reached ({_first_line(error)})"
        ) from error
    dist.destroy_process_group()
    _process_group = None


def _let_threads_end() -> None:
    """Give gloo's threads the time to let go of their tensors: once Python has gone, doing so would abort the process."""
    gc.collect()
    time.sleep(0.25)


def claim_error_report() -> bool:
    """Whether this process should say why it ends: of several, the first that comes to it, because the others only follow."""
    if rank_info().world_size == 1:
        return True
    if _process_group is None:  # they have not met: all found the same wrong
        return rank_info().rank == 0
    try:
        if _process_group.add("speaker", 1) == 1:
            return True
        await_error_report()
    except RuntimeError:  # the store went with the process that kept it
        return True
    return False


def end_error_report() -> None:
    """Let those go that wait for the words."""
    if _process_group is not None:
        try:
            _process_group.set("spoken", "yes")
        except RuntimeError:
            return


def await_error_report() -> None:
    """Leave the process that speaks the time to do so: torchrun ends all as soon as one has ended."""
    since = time.monotonic()
    while (
        _process_group is not None and not _process_group.check(["spoken"]) and time.monotonic() - since < _EXIT_GRACE
    ):
        time.sleep(0.02)


def restarted() -> bool:
    """Whether a launcher starts this very command once more, because it ended before it was done."""
    return rank_info().restarts > 0 or int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0


def launch_id() -> str | None:
    """The name of the launch, where torchrun was given or made one: it stays when machines come and go."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return None if rank_info().world_size == 1 or name == "none" else name


def _first_line(error: Exception) -> str:
    """The reason alone: gloo's begins with a place in its source."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r"^\[[^\]]*\]\s*", "", line).partition(". ")[0].rstrip(".")[:200]
