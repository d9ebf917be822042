"""Embedding lookup with a fused or a sparse backward.

What runs through a pre-norm network: hidden states as two summands, which are added where the next norm reads them.

Torch adds, then norms; on a GPU that learns with compiled layers one kernel does both, and one more all of the way back.
The same holds for what else is bounded by reading and writing: rows that are looked up, and queries, keys and values whose
slopes are laid side by side. The mathematics is that of plain torch, which does it wherever there is no triton.

N rows, D width.

A table of which a step reads few rows: its gradient stays from step to step, and is cleared where it was written.

A dense gradient is nearly all zeros, and writing those anew at every step is a tenth of what a small network learns with on a
CPU. Numbers are the same, bit by bit; where something else gives the table a gradient too, a tied head for one, everything is
left to torch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def embedding_lookup(ids: Tensor, table: Tensor, at: Tensor | None = None, places: Tensor | None = None) -> Tensor:
    """Rows of a table, and those of a table of places added if there is one.

    Slopes are added to their rows as they come, in whatever order: torch sorts them first.

    Args:
        at: which places, for all rows of ids or each.
    """
    found: Tensor = _EmbeddingLookup.apply(ids, table, at, places)  # type: ignore[no-untyped-call]
    return found


class _EmbeddingLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, at: Tensor | None, places: Tensor | None) -> Tensor:
        ctx.save_for_backward(ids, at)
        ctx.entries, ctx.places = len(table), 0 if places is None else len(places)
        if ids.is_cuda:
            from headstart.kernels.triton import elementwise as stream_kernel

            each = None if at is None else at.expand_as(ids).contiguous()
            return stream_kernel.embedding(ids.contiguous(), table, each, places)
        found = F.embedding(ids, table)
        return found if at is None or places is None else found + F.embedding(at, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids, at), (slopes,) = ctx.saved_tensors, grads
        by_places = None
        if at is not None:
            # rows that stand at the same places are added up before they are told apart
            shared, each = (slopes.flatten(0, -3).sum(dim=0), at) if at.ndim == 1 else (slopes, at.expand_as(ids))
            by_places = _embedding_grad(shared, each, ctx.places)
        return None, _embedding_grad(slopes, ids, ctx.entries), None, by_places


def _embedding_grad(slopes: Tensor, ids: Tensor, entries: int) -> Tensor:
    slopes, ids = slopes.flatten(0, -2), ids.flatten()
    if slopes.is_cuda:
        from headstart.kernels.triton import elementwise as stream_kernel

        return stream_kernel.embedding_backward(slopes.contiguous(), ids, entries)
    return slopes.new_zeros(entries, slopes.shape[-1]).index_add_(0, ids, slopes)


class CachedGradEmbedding(nn.Embedding):
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
            found: Tensor = _CachedGradLookup.apply(ids, self.weight, self)  # type: ignore[no-untyped-call]
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


class _CachedGradLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, table: CachedGradEmbedding) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table = table
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        return None, ctx.table.add(ids, grads[0]), None
