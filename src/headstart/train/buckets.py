"""Gradients added up over processes while the backward pass goes on.

What torch's DistributedDataParallel does, with buckets that stay as they are: it lays its own out anew after the first
step, so a resumed run would add in another order than the one it continues, and end with other bits. Layers that are
frozen, and heads that a step does not ask, need no mode of their own here.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

_SIZE = 25 * 2**20
"""Bytes after which a bucket is full."""


class Buckets:
    """The gradients of some parameters, in buckets that are sent off as they fill up, always in the same order."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        # gradients come from the output down
        self._parameters = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
        self._buckets: list[list[nn.Parameter]] = []
        size = _SIZE
        for parameter in self._parameters:
            if size >= _SIZE:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        self._bucket_of = {parameter: index for index, bucket in enumerate(self._buckets) for parameter in bucket}
        self._hooks = [cast(Any, each).register_post_accumulate_grad_hook(self._made) for each in self._parameters]
        self.send = False
        """Whether gradients that are made now are the last of the step."""
        self._begin()

    def _begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._under_way: list[tuple[Tensor, Any]] = []

    def _made(self, parameter: Tensor) -> None:
        if not self.send:
            return
        self._missing[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        # never a later one before an earlier one: all processes must send in one order
        while len(self._under_way) < len(self._buckets) and self._missing[len(self._under_way)] == 0:
            self._launch()

    def _launch(self) -> None:
        import torch.distributed as dist

        bucket = self._buckets[len(self._under_way)]
        flat = torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).detach().flatten() for each in bucket]
        )
        self._under_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def present(self) -> list[float]:
        """Which parameters have a gradient here; every bucket is on its way after this."""
        while len(self._under_way) < len(self._buckets):
            self._launch()
        return [float(parameter.grad is not None) for parameter in self._parameters]

    def collect(self, present: Sequence[float]) -> None:
        """Give each parameter the sum of all processes' gradients, or none where no process has any."""
        anywhere = dict(zip(self._parameters, present, strict=True))
        for bucket, (flat, work) in zip(self._buckets, self._under_way, strict=True):
            work.wait()
            for parameter, part in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
                parameter.grad = part.view_as(parameter) if anywhere[parameter] else None
        self.send = False
        self._begin()

    def close(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()
