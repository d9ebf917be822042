"""Cross-entropy of a linear layer, without its logits in memory.

At a vocabulary of 50,000 the logits of a batch take far more memory than the model. Here they exist for one chunk of rows at
a time, and their gradient is computed at once: the same numbers in a fraction of the memory.

On a GPU, matrix products want rows whose length is a round number of bytes, and chunks large enough to keep every
multiprocessor busy. The weight is copied into a padded matrix in the precision of the products, the gradients of one chunk of
logits lie in one buffer, and the gradient of the weight is summed in fp32 inside the product.

N rows, D width, V vocabulary; W and C are V and D, padded.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.kernels.cast import cast_once
from headstart.kernels.dispatch import autocast_dtype

CPU_CHUNK_ROWS = 256
"""Rows of a chunk on a CPU, so that the logits of a chunk stay near the cache."""
_SCORING_CHUNK_ROWS = 8192
"""Rows of a chunk on a GPU where no gradients are computed."""
_DISTILLATION_CHUNK_ROWS = 4096
"""Rows of a chunk on a GPU where there are the logits of two models."""
_CPU_ALIGNMENT = 64
"""Rows of logits are padded to a multiple of this: a product that writes rows of 50,001 numbers takes 1.7 times as long."""
_VOCAB_MULTIPLE = 64
"""On a GPU the vocabulary is padded to a multiple of this."""
_WIDTH_MULTIPLE = 8
"""So is the width: 16 bytes of bf16."""
_CHUNK_BYTES = 1 << 30
"""Largest size of the logits of one chunk on a GPU."""
_ROW_MULTIPLE = 128
"""Rows of a chunk are a multiple of this, the height of a product's tile."""

_GRAD_ROWS = 4096
"""Rows of a weight whose gradient is computed in bf16 and added in fp32 at a time, so that they stay in the cache."""

LossAndGrad = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""Logits of a chunk without bias, and its rows: their summed loss, and its gradient by the logits."""
LogitsToGrad = Callable[[Tensor, int, Tensor | None, Tensor], Tensor]
"""Logits (replaced by their gradients), vocabulary, bias (fp32, minus infinity behind the vocabulary), targets: the losses."""
ChunkLoss = Callable[[Tensor, Tensor, int, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor | float, Tensor]]
"""Hidden states (NC, not rounded), padded weight (WC), vocabulary, bias, targets, and a buffer (NW) for the gradients of the
logits, each row at its own scale. Returns the losses (N), the factor that turns each row into its gradients (N), and the
hidden states multiplied by it, rounded (NC)."""


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    compiled: bool = False,
    sharded: bool = False,
    ignore_index: int | None = None,
) -> Tensor:
    """Return the sum over rows of -log softmax(hidden · weightᵀ + bias)[target].

    Args:
        compiled: let torch.compile fuse the operations between the matrix products.
        sharded: the weight is gathered for each pass, which does not change its version: no copy of it is kept.
        ignore_index: rows with this target count for nothing; None says that there are none.
    """
    if ignore_index is not None and not hidden_ND.is_cuda:  # counting rows would wait for a GPU; it skips them instead
        is_target = targets_N != ignore_index
        hidden_ND, targets_N = hidden_ND[is_target], targets_N[is_target]
    rows = CPU_CHUNK_ROWS if hidden_ND.device.type == "cpu" else _SCORING_CHUNK_ROWS
    if torch.is_grad_enabled():
        total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_ND, weight_VD, bias_V, targets_N, rows, compiled, sharded, ignore_index
        )
        return total
    losses = [
        F.cross_entropy(F.linear(hidden, weight_VD, bias_V).float(), targets, reduction="sum")
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True)
    ]
    return torch.stack(losses).sum() if losses else hidden_ND.new_zeros(())


def distillation_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    teacher: tuple[Tensor, Tensor, Tensor | None],
    teacher_weight: float,
) -> Tensor:
    """Return the summed cross-entropy with a mixture of the targets and a teacher's probabilities.

    Args:
        teacher: the teacher's hidden states, weight and bias, all detached.
        teacher_weight: the fraction of the mixture that the teacher has.
    """
    total: Tensor = _DistillationCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, targets_N, teacher, teacher_weight
    )
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass over the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        compiled: bool,
        sharded: bool,
        ignore_index: int | None,
    ) -> Tensor:
        dtype = autocast_dtype(hidden)
        if hidden.device.type == "cpu" and dtype == torch.float32 and not compiled:
            total, *ctx.grads = _chunked_loss_cpu(hidden, weight, bias, targets, rows)
        elif hidden.device.type == "cpu" and dtype == torch.bfloat16 and not compiled:
            total, *ctx.grads = _chunked_loss_cpu_bf16(hidden, weight, bias, targets, rows, sharded=sharded)
        elif hidden.is_cuda:
            with torch.autocast("cuda", enabled=False):
                total, *ctx.grads = chunked_loss_cuda(hidden, weight, bias, targets, dtype, ignore_index=ignore_index)
        else:
            loss_and_grad = _compiled_loss_and_grad() if compiled else _loss_and_grad_inplace
            total, *ctx.grads = _chunked_loss(
                hidden, weight, bias, dtype, rows, lambda logits, chunk: loss_and_grad(logits, bias, targets[chunk])
            )
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_scale_grads(ctx, grads[0]), None, None, None, None, None


class _DistillationCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass over the rows, so that the logits of both models exist for one chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        teacher: tuple[Tensor, Tensor, Tensor | None],
        teacher_weight: float,
    ) -> Tensor:
        dtype = autocast_dtype(hidden)
        rows = CPU_CHUNK_ROWS if hidden.device.type == "cpu" else _DISTILLATION_CHUNK_ROWS
        teacher_hidden, teacher_matrix, teacher_bias = teacher[0].to(dtype), teacher[1].to(dtype), teacher[2]

        def loss_and_grad(logits: Tensor, chunk: slice) -> tuple[Tensor, Tensor]:
            teacher_logits = _add_bias(teacher_hidden[chunk] @ teacher_matrix.T, teacher_bias)
            soft_targets = teacher_logits.softmax(dim=1).mul_(teacher_weight)
            target_weight = soft_targets.new_full((1, 1), 1 - teacher_weight).expand(len(soft_targets), 1)
            soft_targets.scatter_add_(1, targets[chunk, None], target_weight)
            log_probabilities = _add_bias(logits, bias).log_softmax(dim=1)
            loss = -(soft_targets * log_probabilities).sum()
            return loss, log_probabilities.exp_().sub_(soft_targets)

        total, *ctx.grads = _chunked_loss(hidden, weight, bias, dtype, rows, loss_and_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_scale_grads(ctx, grads[0]), None, None, None


def _scale_grads(ctx: Any, factor: Tensor) -> list[Tensor | None]:
    """Return the gradients that the forward pass has stored, times that of the loss."""
    # not kept: the last owner of a gradient may change it in place, and that of a vocabulary is large
    grads, ctx.grads = ctx.grads, None
    is_unit = factor.data_ptr() == unit_grad(factor).data_ptr()
    return list(grads) if is_unit else [_scale_grad(grad, factor) for grad in grads]


def unit_grad(like: Tensor) -> Tensor:
    """Return the number 1, always as the same tensor: a loss whose gradient it is need not multiply by it."""
    return _unit_grad(like.device, like.dtype)


@cache
def _unit_grad(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.ones((), device=device, dtype=dtype)


def _scale_grad(grad: Tensor | None, factor: Tensor) -> Tensor | None:
    """Multiply in place where memory is contiguous; where it is not, autograd would copy the gradient anyway."""
    return grad if grad is None else grad.mul_(factor) if grad.is_contiguous() else grad * factor


def _chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    rows: int,
    loss_and_grad: LossAndGrad,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the summed loss and its gradients by hidden, weight and bias, with products in `dtype`."""
    low_weight, low_hidden = weight.to(dtype), hidden.to(dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty_like(low_hidden)
    grad_weight = torch.zeros_like(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias)
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            loss, grad = loss_and_grad(low_hidden[chunk] @ low_weight.T, chunk)
            total += loss
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
            low_grad = grad.to(dtype)
            grad_hidden[chunk] = low_grad @ low_weight
            grad_weight += low_grad.T @ low_hidden[chunk]
    return total, grad_hidden.to(hidden.dtype), grad_weight, grad_bias


def _add_bias(logits: Tensor, bias: Tensor | None) -> Tensor:
    return logits.float() if bias is None else logits.float() + bias


def _loss_and_grad_inplace(logits: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk and its gradient by the logits, in little memory."""
    logits = logits.float()
    if bias is not None:
        logits += bias
    target_logit = logits.gather(1, targets[:, None])
    row_max = logits.amax(dim=1, keepdim=True)
    exp_logits = logits.sub_(row_max).exp_()
    sum_exp = exp_logits.sum(dim=1, keepdim=True)
    loss = (sum_exp.log() + row_max - target_logit).sum()
    grad = exp_logits.div_(sum_exp)
    grad.scatter_add_(1, targets[:, None], grad.new_full((1, 1), -1.0).expand(len(grad), 1))
    return loss, grad


def _loss_and_grad(logits: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as a formula that a compiler turns into two passes; the gradient has the dtype of the logits."""
    exact = _add_bias(logits, bias)
    logsumexp = exact.logsumexp(dim=1, keepdim=True)
    is_target = torch.arange(exact.shape[1], device=exact.device) == targets[:, None]
    loss = (logsumexp[:, 0] - torch.where(is_target, exact, 0.0).sum(dim=1)).sum()
    return loss, ((exact - logsumexp).exp() - is_target.float()).to(logits.dtype)


@cache
def _compiled_loss_and_grad() -> Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]:
    compiled: Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]] = torch.compile(
        _loss_and_grad, dynamic=True
    )
    return compiled


def _chunked_loss_cpu(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the same as `_chunked_loss` in fp32; all chunks share one buffer, since allocating memory is slow."""
    vocabulary = len(weight)
    buffer = hidden.new_empty(min(rows, len(hidden)), _round_up(vocabulary, _CPU_ALIGNMENT))
    total = hidden.new_zeros(())
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.empty_like(weight) if len(hidden) else torch.zeros_like(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias)
    for start in range(0, len(hidden), rows):
        chunk_hidden, chunk_targets = hidden[start : start + rows], targets[start : start + rows, None]
        padded = buffer[: len(chunk_hidden)]
        logits = padded[:, :vocabulary]
        torch.mm(chunk_hidden, weight.T, out=logits)
        if bias is not None:
            logits += bias
        padded[:, vocabulary:] = -torch.inf  # padding gets a probability of 0
        target_logit = logits.gather(1, chunk_targets)
        row_max = padded.amax(dim=1, keepdim=True)
        torch.softmax(padded, dim=1, out=padded)
        # logsumexp = row_max - log(largest probability), and that probability is never too small
        total += (row_max - padded.amax(dim=1, keepdim=True).log() - target_logit).sum()
        padded.scatter_add_(1, chunk_targets, padded.new_full((1, 1), -1.0).expand(len(padded), 1))
        if grad_bias is not None:
            grad_bias += logits.sum(dim=0)
        torch.mm(logits, weight, out=grad_hidden[start : start + rows])
        grad_weight.addmm_(logits.T, chunk_hidden, beta=float(start > 0))  # the first chunk overwrites
    return total, grad_hidden, grad_weight, grad_bias


def _chunked_loss_cpu_bf16(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int, *, sharded: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the same as `_chunked_loss_cpu`, with products in bf16 and sums in fp32.

    The bias and its rounding error are two columns of the weight, where the hidden states have ones: their product with
    the gradients of the logits is the gradient of the bias, which costs no pass of its own. The loss of a row is that of
    its target's rounded probability, and at most 87.
    """
    (count, width), vocabulary = hidden.shape, len(weight)
    low_weight, low_hidden = _with_bias_columns(weight, bias, sharded=sharded), hidden.to(torch.bfloat16)
    if bias is not None:
        low_hidden = F.pad(low_hidden, (0, _WIDTH_MULTIPLE))
        low_hidden[:, width : width + 2] = 1
    columns = low_weight.shape[1]
    buffer = low_hidden.new_empty(min(rows, count), _round_up(vocabulary, _CPU_ALIGNMENT))
    grad_hidden = low_hidden.new_empty(count, columns)
    total = hidden.new_zeros((), dtype=torch.float32)
    grad_weight = torch.empty_like(weight) if count else torch.zeros_like(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias)
    for start in range(0, count, rows):
        chunk_hidden, chunk_targets = low_hidden[start : start + rows], targets[start : start + rows]
        padded = buffer[: len(chunk_hidden)]
        logits = padded[:, :vocabulary]
        torch.mm(chunk_hidden, low_weight.T, out=logits)
        padded[:, vocabulary:] = -torch.inf  # padding gets a probability of 0
        torch.softmax(padded, dim=1, out=padded)
        is_target = torch.arange(len(padded)), chunk_targets
        probability = padded[is_target]
        total -= probability.float().clamp_(min=torch.finfo(torch.float32).tiny).log_().sum()
        padded[is_target] = probability - 1  # scatter_ would copy all of it
        torch.mm(logits, low_weight, out=grad_hidden[start : start + rows])
        _add_weight_grads(grad_weight, grad_bias, logits, chunk_hidden, first=start == 0)
    return total, grad_hidden[:, :width].to(hidden.dtype), grad_weight, grad_bias


def _with_bias_columns(weight: Tensor, bias: Tensor | None, *, sharded: bool) -> Tensor:
    """Return the weight in bf16, with the bias in two more columns if there is one."""
    if bias is None:
        return weight.to(torch.bfloat16) if sharded else cast_once(weight)
    width = weight.shape[1]
    low_weight = torch.zeros(len(weight), width + _WIDTH_MULTIPLE, dtype=torch.bfloat16)
    low_weight[:, :width] = weight
    low_weight[:, width] = bias
    low_weight[:, width + 1] = bias - low_weight[:, width]
    return low_weight


def _add_weight_grads(
    grad_weight: Tensor, grad_bias: Tensor | None, grad_logits: Tensor, hidden: Tensor, *, first: bool
) -> None:
    """Add the gradients of a chunk in bf16 to sums in fp32, some rows of the weight at a time; the first overwrites."""
    width = grad_weight.shape[1]
    for start in range(0, len(grad_weight), _GRAD_ROWS):
        block = slice(start, start + _GRAD_ROWS)
        product = grad_logits[:, block].T @ hidden
        if first:
            grad_weight[block] = product[:, :width]
        else:
            grad_weight[block] += product[:, :width].float()  # torch is slow where dtypes are mixed
        if grad_bias is not None:
            grad_bias[block] += product[:, width]


def chunked_loss_cuda(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    dtype: torch.dtype,
    *,
    rows: int | None = None,
    chunk_loss: ChunkLoss | None = None,
    ignore_index: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the summed loss and its gradients by hidden, weight and bias, as a GPU computes them.

    Args:
        dtype: the precision of the products.
        rows: of a chunk, if not `chunk_rows`.
        chunk_loss: the implementation, if not the best available one.
        ignore_index: rows with this target, which must be negative, have no loss and no gradients.
    """
    (count, width), vocabulary = hidden.shape, len(weight)
    weight_WC = _pad_weight(weight, dtype, has_bias=bias is not None)
    padded_vocabulary, columns = weight_WC.shape
    hidden_NC = F.pad(hidden, (0, columns - width)).contiguous() if columns > width else hidden.contiguous()
    if bias is not None:
        hidden_NC[:, -2] = 1  # its counterpart in the weight is 0: the bias itself is added in full precision
    is_target = targets >= 0
    targets = targets if ignore_index is None else targets.clamp(min=0)
    rows = rows or chunk_rows(count, padded_vocabulary, weight_WC.element_size())
    chunk_loss = chunk_loss or _best_chunk_loss(hidden.device, dtype)
    bias_W = None if bias is None else F.pad(bias.float(), (0, padded_vocabulary - vocabulary), value=-torch.inf)
    buffer = torch.empty(min(rows, count), padded_vocabulary, dtype=dtype, device=hidden.device)
    losses, factors = torch.empty(2, count, dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty(count, width, dtype=dtype, device=hidden.device)
    grad_WC = torch.empty(padded_vocabulary, columns, dtype=torch.float32, device=hidden.device)
    if not count:
        grad_WC.zero_()
    for start in range(0, count, rows):
        chunk = slice(start, min(start + rows, count))
        grad = buffer[: chunk.stop - start]
        losses[chunk], factors[chunk], scaled = chunk_loss(
            hidden_NC[chunk], weight_WC, vocabulary, bias_W, targets[chunk], grad
        )
        if ignore_index is not None:
            scaled = scaled * is_target[chunk, None]
        torch.mm(grad, weight_WC[:, :width], out=grad_hidden[chunk])
        _add_product(grad_WC, grad.T, scaled, first=not start)
    if ignore_index is not None:
        losses, factors = losses.where(is_target, 0.0), factors.where(is_target, 0.0)
    grad_bias = None if bias is None else grad_WC[:vocabulary, -2:].sum(dim=1).to(bias.dtype)
    grad_weight = grad_WC[:vocabulary, :width].to(weight.dtype)
    return losses.sum(), _scale_rows(hidden.device)(grad_hidden, factors).to(hidden.dtype), grad_weight, grad_bias


def chunk_rows(count: int, columns: int, item_size: int) -> int:
    """Return the rows of a chunk, so that all chunks are alike and as few as `_CHUNK_BYTES` allows.

    Args:
        columns: of the logits.
        item_size: bytes of a logit.

    >>> [chunk_rows(count, 50048, 2) for count in (32768, 20000, 100)]
    [8192, 10112, 128]
    """
    max_rows = max(_ROW_MULTIPLE, _CHUNK_BYTES // (columns * item_size) // _ROW_MULTIPLE * _ROW_MULTIPLE)
    chunks = max(1, -(-count // max_rows))
    return max(_ROW_MULTIPLE, -(-count // chunks // _ROW_MULTIPLE) * _ROW_MULTIPLE)


def _pad_weight(weight: Tensor, dtype: torch.dtype, *, has_bias: bool) -> Tensor:
    """Copy the weight (V, D) into a padded matrix (W, C).

    With a bias there are two more columns. The hidden states have ones in the first: their product with the gradients of the
    logits is the gradient of the bias, which costs no pass of its own. Where those ones are scaled, the second column holds
    the rounding error.
    """
    vocabulary, width = weight.shape
    columns = _round_up(width + 2 * has_bias, _WIDTH_MULTIPLE)
    weight_WC = torch.empty(_round_up(vocabulary, _VOCAB_MULTIPLE), columns, dtype=dtype, device=weight.device)
    weight_WC[:vocabulary, :width] = weight
    weight_WC[vocabulary:], weight_WC[:, width:] = 0, 0
    return weight_WC


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a product to a sum in fp32, whatever the precision of its factors; the first product overwrites it."""
    if a.dtype == total.dtype:
        torch.mm(a, b, out=total) if first else total.addmm_(a, b)
    elif not total.is_cuda:
        total.copy_(a @ b) if first else total.add_(a @ b)
    elif first:
        torch.mm(a, b, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


@cache
def _scale_rows(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that multiplies each row by its factor in fp32; torch is slow where dtypes are mixed."""
    if device.type == "cuda":
        with suppress(ImportError):
            from headstart.kernels.triton.cross_entropy import scale_rows

            return scale_rows
    return lambda rows, factors: rows * factors[:, None]


@cache
def _best_chunk_loss(device: torch.device, dtype: torch.dtype) -> ChunkLoss:
    """Return triton's kernels on CUDA where triton is installed, torch's operations elsewhere."""
    if device.type != "cuda":
        return from_logits(logits_to_grad_reference)
    try:
        from headstart.kernels.triton.cross_entropy import from_exp_logits, logits_to_grad
        from headstart.kernels.triton.mlp import fits
    except ImportError:
        return from_logits(logits_to_grad_reference)
    # exponentials need the range of fp32, which bf16 has and fp16 has not
    return from_exp_logits if dtype == torch.bfloat16 and fits(device) else from_logits(logits_to_grad)


def from_logits(logits_to_grad: LogitsToGrad) -> ChunkLoss:
    """Return a chunk loss that computes the logits first and then replaces them by their gradients."""

    def chunk_loss(
        hidden: Tensor, weight: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor, out: Tensor
    ) -> tuple[Tensor, float, Tensor]:
        low_hidden = hidden.to(out.dtype)
        torch.mm(low_hidden, weight.T, out=out)
        return logits_to_grad(out, vocabulary, bias, targets), 1.0, low_hidden

    return chunk_loss


def logits_to_grad_reference(logits: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Replace logits by their gradients and return the losses, by torch's operations."""
    unpadded = logits[:, :vocabulary]
    exact = unpadded.float() if bias is None else unpadded.float() + bias[:vocabulary]
    logsumexp = exact.logsumexp(dim=1, keepdim=True)
    losses = (logsumexp - exact.gather(1, targets[:, None]))[:, 0]
    grad = exact.sub_(logsumexp).exp_()
    grad.scatter_add_(1, targets[:, None], grad.new_full((1, 1), -1.0).expand(len(grad), 1))
    unpadded.copy_(grad)
    logits[:, vocabulary:] = 0
    return losses
