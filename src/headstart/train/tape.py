"""What records work for a GPU and replays it: CUDA graphs."""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], Tensor]
"""Work on tensors that stay where they are, and one number that comes of it."""


class Tape(Protocol):
    """What records and replays."""

    def once(self, work: Work) -> Tensor:
        """Do it, unrecorded."""

    def record(self, work: Work) -> Work:
        """What does it again from here on; nothing is done yet. RuntimeError where it cannot be recorded."""


class CudaTape:
    """CUDA graphs that share their memory: one is replayed after the other. Of each its number is read, and tensors that
    somebody has kept since it was recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def once(self, work: Work) -> Tensor:
        """On the stream that records, so that all it needs has been set up there."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            number = work()
        here.wait_stream(self._stream)
        return number

    def record(self, work: Work) -> Work:
        """Capture; the number that a replay gives is a copy, since the next one writes over it."""
        graph = torch.cuda.CUDAGraph()
        # threads of their own may use the device meanwhile, as long as they keep off the stream that records
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            # the outer one puts the stream back also where the end of a capture raises
            with torch.cuda.stream(torch.cuda.current_stream(self._device)), recording:
                number = work()
        except RuntimeError:
            self._tidy_up()
            raise

        def replay() -> Tensor:
            graph.replay()
            return number.clone()

        return replay

    def _tidy_up(self) -> None:
        """A capture that failed may leave the allocator and the generator waiting for its end: both are told of it."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # some versions of torch have done so themselves
            torch._C._cuda_endAllocateToPool(index, self._pool)
        fresh = torch.Generator(torch.device("cuda", index))
        fresh.manual_seed(torch.default_generator.initial_seed())  # `seed_step` gives both the same
        torch.cuda.default_generators[index].graphsafe_set_state(fresh)
