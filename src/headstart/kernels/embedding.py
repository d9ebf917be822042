"""Embedding lookup: torch's, one with a fused backward pass for GPUs, and one that caches its gradient for CPUs.

The gradient of an embedding is nearly all zeros, and writing those zeros at every step takes a tenth of the time that a small
network trains on a CPU. `CachedGradEmbedding` keeps the gradient from step to step and clears only the rows that were
written. The numbers are the same, bit by bit.

N rows, D width.
"""

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.kernels.dispatch import KernelPlan


def embed(
    ids: Tensor,
    table: nn.Embedding,
    plan: KernelPlan,
    positions: Tensor | None = None,
    position_table: nn.Embedding | None = None,
) -> Tensor:
    """Return the rows of `table` that `ids` name, plus those of `position_table` if there is one.

    Args:
        positions: an index into `position_table` for each id, or one for each column of ids.
    """
    if ids.is_cuda:  # torch adds up the gradients of an embedding after a sort, which is twice as fast on int32
        ids = ids.int()
    if plan.fused_embedding:
        if position_table is None:
            return embedding_lookup(ids, table.weight)
        return embedding_lookup(ids, table.weight, positions, position_table.weight)
    embedded: Tensor = table(ids)
    return embedded if position_table is None else embedded + position_table(positions)


def embedding_lookup(
    ids: Tensor, table: Tensor, positions: Tensor | None = None, position_table: Tensor | None = None
) -> Tensor:
    """Return rows of `table`, plus rows of `position_table`; gradients are added atomically, in any order."""
    embedded: Tensor = _EmbeddingLookup.apply(ids, table, positions, position_table)  # type: ignore[no-untyped-call]
    return embedded


class _EmbeddingLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, table: Tensor, positions: Tensor | None, position_table: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(ids, positions)
        ctx.entries, ctx.position_entries = len(table), 0 if position_table is None else len(position_table)
        if ids.is_cuda:
            from headstart.kernels.triton import elementwise as triton_elementwise

            position_ids = None if positions is None else positions.expand_as(ids).contiguous()
            return triton_elementwise.embedding(ids.contiguous(), table, position_ids, position_table)
        embedded = F.embedding(ids, table)
        if positions is None or position_table is None:
            return embedded
        return embedded + F.embedding(positions, position_table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids, positions), (grad,) = ctx.saved_tensors, grads
        grad_positions = None
        if positions is not None:
            if positions.ndim == 1:  # all rows of ids share their positions: sum over them first
                grad_positions = _embedding_grad(grad.flatten(0, -3).sum(dim=0), positions, ctx.position_entries)
            else:
                grad_positions = _embedding_grad(grad, positions.expand_as(ids), ctx.position_entries)
        return None, _embedding_grad(grad, ids, ctx.entries), None, grad_positions


def _embedding_grad(grad: Tensor, ids: Tensor, entries: int) -> Tensor:
    grad_ND, ids = grad.flatten(0, -2), ids.flatten()
    if grad_ND.is_cuda:
        from headstart.kernels.triton import elementwise as triton_elementwise

        return triton_elementwise.embedding_backward(grad_ND.contiguous(), ids, entries)
    return grad_ND.new_zeros(entries, grad_ND.shape[-1]).index_add_(0, ids, grad_ND)


class CachedGradEmbedding(nn.Embedding):
    """An embedding that reuses the memory of its gradient once `keep` is called.

    If anything else adds to the same gradient, a tied head for example, everything is left to torch.
    """

    def __init__(self, entries: int, width: int) -> None:
        super().__init__(entries, width)
        self._keeps = self._is_shared = False
        self._zeros: Tensor | None = None
        self._written: Tensor | None = None
        self._version = 0

    def keep(self) -> None:
        """Write the gradient in place from now on; the caller must call `clear` with it after every step."""
        if not self._keeps and self.weight.requires_grad:
            self._keeps = True
            # autograd owns the hook, and the garbage collector does not see a cycle through it
            reference = weakref.ref(self)

            def check_shared(weight: Tensor) -> None:
                embedding = reference()
                if embedding is not None:
                    embedding._check_shared(weight)

            self.weight.register_post_accumulate_grad_hook(check_shared)  # type: ignore[no-untyped-call]

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows of the table."""
        trains = self.training and self.weight.requires_grad and torch.is_grad_enabled()
        if self._keeps and trains and self.weight.device.type == "cpu":
            embedded: Tensor = _CachedGradLookup.apply(ids, self.weight, self)  # type: ignore[no-untyped-call]
            return embedded
        return super().forward(ids)

    def clear(self, grad: Tensor | None) -> None:
        """Set the rows that were written to zero and keep the gradient for the next step, unless it is shared."""
        written, self._written, self._zeros = self._written, None, None
        if grad is not None and written is not None and not self._is_shared:
            self._zeros = grad.index_fill_(0, written, 0.0)

    def add_grad(self, ids: Tensor, grad: Tensor) -> Tensor | None:
        """Add the gradient of looked-up rows; returns a dense gradient where accumulation is left to torch."""
        ids, grad_ND = ids.flatten(), grad.flatten(0, -2)
        # torch adds up the rows of a second batch before it adds them to those of the first
        if self._is_shared or self._written is not None or self.weight.grad is not None:
            dense: Tensor = torch.ops.aten.embedding_dense_backward(grad_ND, ids, self.num_embeddings, -1, False)
            return dense
        total = torch.zeros_like(self.weight) if self._zeros is None else self._zeros
        self.weight.grad = total.index_add_(0, ids, grad_ND)
        self._written, self._version = ids, total._version
        return None

    def _check_shared(self, weight: Tensor) -> None:
        """Record whether anything else has added to the gradient; torch calls this after every backward pass."""
        alone = self._written is not None and weight.grad is not None and weight.grad._version == self._version
        self._is_shared = self._is_shared or not alone

    def __getstate__(self) -> dict[str, Any]:
        """A copy does not keep its gradient: the hook of the weights is not copied."""
        return self.__dict__ | {"_keeps": False, "_is_shared": False, "_zeros": None, "_written": None}


class _CachedGradLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, table: CachedGradEmbedding) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table = table
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        return None, ctx.table.add_grad(ids, grads[0]), None
