"""A table of which a step reads few rows: its gradient stays from step to step, and is cleared where it was written.

A dense gradient is nearly all zeros, and writing those anew at every step is a tenth of what a small network learns with on a
CPU. Numbers are the same, bit by bit; where something else gives the table a gradient too, a tied head for one, everything is
left to torch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Table(nn.Embedding):
    """An embedding that keeps its gradient once it is told to."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__(entries, width)
        self._keeps = self._shared = False
        self._zeros: Tensor | None = None
        self._written: Tensor | None = None
        self._version = 0

    def keep(self) -> None:
        """From now on write the gradient in place; whoever says so calls `clear` with it after every step."""
        if not self._keeps and self.weight.requires_grad:
            self._keeps = True
            self.weight.register_post_accumulate_grad_hook(self._look)  # type: ignore[no-untyped-call]

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of the table."""
        learns = self.training and self.weight.requires_grad and torch.is_grad_enabled()
        if self._keeps and learns and self.weight.device.type == "cpu":
            found: Tensor = _Kept.apply(ids, self.weight, self)  # type: ignore[no-untyped-call]
            return found
        return super().forward(ids)

    def clear(self, grad: Tensor | None) -> None:
        """Set a gradient that nobody has written but in rows that were read to zero, for the next step."""
        written, self._written, self._zeros = self._written, None, None
        if grad is not None and written is not None and not self._shared:
            self._zeros = grad.index_fill_(0, written, 0.0)

    def add(self, ids: Tensor, slopes: Tensor) -> Tensor | None:
        """Add slopes to the gradient; returns it whole where that is left to torch."""
        ids, slopes = ids.flatten(), slopes.flatten(0, -2)
        # of a second batch torch adds up the rows before it adds them to those of the first
        if self._shared or self._written is not None or self.weight.grad is not None:
            whole: Tensor = torch.ops.aten.embedding_dense_backward(slopes, ids, self.num_embeddings, -1, False)
            return whole
        grad = torch.zeros_like(self.weight) if self._zeros is None else self._zeros
        self.weight.grad = grad.index_add_(0, ids, slopes)
        self._written, self._version = ids, grad._version
        return None

    def _look(self, weight: Tensor) -> None:
        """Whether anyone else has added to the gradient; torch asks after each way back, whether or not there was anything."""
        alone = self._written is not None and weight.grad is not None and weight.grad._version == self._version
        self._shared = self._shared or not alone

    def __getstate__(self) -> dict[str, Any]:
        """A copy is told anew: what listens to the weights is not copied with them."""
        return self.__dict__ | {"_keeps": False, "_shared": False, "_zeros": None, "_written": None}


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, table: Table) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table = table
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        return None, ctx.table.add(ids, grads[0]), None
