"""What follows the passes of a step, recorded: gradients scaled and clipped, weights moved. It is the same for every batch."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from headstart.train.passes import Passes
from headstart.train.tape import Tape, Work


class Update:
    """Recorded for one optimizer, whose moments and gradients stay where they are."""

    def __init__(self, passes: Passes, optimizer: Optimizer, clip: float, tape: Tape) -> None:
        self._groups = optimizer.param_groups
        self._relied_on = optimizer, clip, _addresses(optimizer)
        device = passes.runtime.device
        # the scale, then the rate of each group: what changes from step to step
        self._knobs = torch.empty(1 + len(self._groups), device=device)
        self._set_to = torch.empty(1 + len(self._groups), pin_memory=device.type == "cuda")
        scale, *rates = self._knobs.unbind()
        torch._foreach_mul_([self._knobs.clone()], torch.ones((), device=device))  # loads the one kernel that is new

        def move() -> Tensor:
            own = [group["lr"] for group in self._groups]
            try:
                for group, rate in zip(self._groups, rates, strict=True):
                    group["lr"], group["capturable"] = rate, True
                optimizer.step()
            finally:
                for group, rate in zip(self._groups, own, strict=True):
                    group["lr"], group["capturable"] = rate, False
            return scale

        self._measure: Work = tape.record(lambda: passes.scaled_and_clipped(scale, clip))
        self.move: Work = tape.record(move)

    def measure(self, scale: float) -> Tensor:
        """Turn sums into means and bound their norm; returns the norm before."""
        # read by the device before the figures of a step are, for which the loop waits: one place in memory is enough
        self._set_to.copy_(torch.tensor([scale, *(group["lr"] for group in self._groups)]))
        self._knobs.copy_(self._set_to, non_blocking=True)
        return self._measure()

    def holds(self, optimizer: Optimizer, clip: float) -> bool:
        """Whether what was recorded is what is asked for now."""
        return (optimizer, clip, _addresses(optimizer)) == self._relied_on


def is_recordable(optimizer: Optimizer) -> bool:
    """Whether an optimizer's step reads its rates from the device, and has its moments already."""
    alike = type(optimizer) in (Adam, AdamW) and all(group["fused"] for group in optimizer.param_groups)
    moving = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return alike and all(optimizer.state.get(parameter) for parameter in moving)


def _addresses(optimizer: Optimizer) -> list[Any]:
    tensors = (value for state in optimizer.state.values() for value in state.values())
    return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, Tensor)]
