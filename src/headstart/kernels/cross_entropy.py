"""Chunked cross-entropy of a linear layer, without its logits in memory.

The loss of a linear layer on a GPU, a bite of rows at a time, in memory taken once.

Products want rows whose length is a round number of bytes, and bites large enough to keep every multiprocessor busy: the
table is copied into a round number of rows and columns in the precision of the products, the slopes of one bite lie in one
buffer, and the slopes of the table are summed up in fp32 inside the product.

N rows scored, D width, V vocabulary; W and C are V and D made round.

Cross-entropy of a linear layer without its scores in memory.

At a vocabulary of 50,000 the scores of a batch weigh far more than the model. Here they exist for a few hundred rows
at a time, and their gradient is taken on the spot: the same numbers in a fraction of the memory.

N rows scored, D width, V vocabulary.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config.schema import IGNORE_INDEX

_VOCAB_MULTIPLE = 64
"""Entries of the vocabulary are filled up to a multiple of this."""
_COLUMNS = 8
"""The width too: 16 bytes of bf16."""
_CHUNK_BYTES = 1 << 30
"""What the scores of one bite may weigh."""
_ROW_MULTIPLE = 128
"""Rows of a bite are a multiple of this, the height of a product's tile."""

LogitsToGrad = Callable[[Tensor, int, Tensor | None, Tensor], Tensor]
"""Scores (turned into slopes in place), vocabulary, bias (fp32, minus infinity behind the vocabulary), targets: the losses."""
ChunkLoss = Callable[[Tensor, Tensor, int, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor | float, Tensor]]
"""Hidden (NC, not rounded), table (WC), vocabulary, bias, targets, and a buffer (NW) for slopes, each row at its own scale: the
losses (N), by what to multiply a row to have its slopes (N), and the hidden states multiplied by it, rounded (NC)."""


def chunk_rows(count: int, places: int, size: int) -> int:
    """Rows of a bite, all bites alike: as few bites as the budget allows.

    Args:
        places: entries of a row of scores.
        size: bytes of a score.

    >>> [chunk_rows(count, 50048, 2) for count in (32768, 20000, 100)]
    [8192, 10112, 128]
    """
    most = max(_ROW_MULTIPLE, _CHUNK_BYTES // (places * size) // _ROW_MULTIPLE * _ROW_MULTIPLE)
    bites = max(1, -(-count // most))
    return max(_ROW_MULTIPLE, -(-count // bites // _ROW_MULTIPLE) * _ROW_MULTIPLE)


def chunked_loss_cuda(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    kind: torch.dtype,
    *,
    rows: int | None = None,
    way: ChunkLoss | None = None,
    gaps: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The summed loss and its slopes by hidden, weight and bias.

    Args:
        kind: the precision of the products.
        rows: of a bite, if not what `chunk_rows` says.
        way: what gives the slopes of a bite, if not the best there is.
        gaps: targets below 0 are none: their rows have no loss and no slopes.
    """
    (count, width), vocabulary = hidden.shape, len(weight)
    places = _round_up(vocabulary, _VOCAB_MULTIPLE)
    # a column of ones in what is multiplied with the slopes gives those of the bias, and costs no reading of its own; where
    # it is scaled, another one holds what rounding takes from it
    columns = _round_up(width + 2 * (bias is not None), _COLUMNS)
    table_WC = torch.empty(places, columns, dtype=kind, device=hidden.device)
    table_WC[:vocabulary, :width] = weight
    table_WC[vocabulary:], table_WC[:, width:] = 0, 0
    hidden_NC = F.pad(hidden, (0, columns - width)).contiguous() if columns > width else hidden.contiguous()
    if bias is not None:
        hidden_NC[:, -2] = 1  # its counterpart in the table is 0: the bias itself is added in full precision
    known = targets >= 0
    targets = targets.clamp(min=0) if gaps else targets
    rows = rows or chunk_rows(count, places, table_WC.element_size())
    way = way or _best_chunk_loss(hidden.device, kind)
    bias_W = None if bias is None else F.pad(bias.float(), (0, places - vocabulary), value=-torch.inf)
    buffer = torch.empty(min(rows, count), places, dtype=kind, device=hidden.device)
    losses, shares = torch.empty(2, count, dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty(count, width, dtype=kind, device=hidden.device)
    grad_WC = torch.empty(places, columns, dtype=torch.float32, device=hidden.device)
    if not count:
        grad_WC.zero_()
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        slopes = buffer[: part.stop - start]
        losses[part], shares[part], shared = way(hidden_NC[part], table_WC, vocabulary, bias_W, targets[part], slopes)
        if gaps:
            shared = shared * known[part, None]
        torch.mm(slopes, table_WC[:, :width], out=grad_hidden[part])
        _add_product(grad_WC, slopes.T, shared, first=not start)
    if gaps:
        losses, shares = losses.where(known, 0.0), shares.where(known, 0.0)
    grad_bias = None if bias is None else grad_WC[:vocabulary, -2:].sum(dim=1).to(bias.dtype)
    grad_weight = grad_WC[:vocabulary, :width].to(weight.dtype)
    return losses.sum(), _scale_rows(hidden.device)(grad_hidden, shares).to(hidden.dtype), grad_weight, grad_bias


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a product to a sum in fp32, whatever the precision of its factors; the first one is the sum."""
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
    """Each row times a number of its own, in fp32; torch is slow where precisions are mixed."""
    if device.type == "cuda":
        with suppress(ImportError):
            from headstart.kernels.triton.cross_entropy import scale_rows

            return scale_rows
    return lambda rows, numbers: rows * numbers[:, None]


@cache
def _best_chunk_loss(device: torch.device, kind: torch.dtype) -> ChunkLoss:
    """Triton's kernels on CUDA where triton is installed, torch's operations elsewhere."""
    if device.type != "cuda":
        return from_logits(logits_to_grad_reference)
    try:
        from headstart.kernels.triton.cross_entropy import from_exp_logits, logits_to_grad
        from headstart.kernels.triton.mlp import fits
    except ImportError:
        return from_logits(logits_to_grad_reference)
    # powers need what fp16 has not: to reach as far as fp32 does
    return from_exp_logits if kind == torch.bfloat16 and fits(device) else from_logits(logits_to_grad)


def from_logits(to_slopes: LogitsToGrad) -> ChunkLoss:
    """Scores first, which then become slopes."""

    def way(
        hidden: Tensor, table: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor, out: Tensor
    ) -> tuple[Tensor, float, Tensor]:
        low = hidden.to(out.dtype)
        torch.mm(low, table.T, out=out)
        return to_slopes(out, vocabulary, bias, targets), 1.0, low

    return way


def logits_to_grad_reference(scores: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The same by torch's operations, one after the other."""
    inside = scores[:, :vocabulary]
    exact = inside.float() if bias is None else inside.float() + bias[:vocabulary]
    mass = exact.logsumexp(dim=1, keepdim=True)
    losses = (mass - exact.gather(1, targets[:, None]))[:, 0]
    slopes = exact.sub_(mass).exp_()
    slopes.scatter_add_(1, targets[:, None], slopes.new_full((1, 1), -1.0).expand(len(slopes), 1))
    inside.copy_(slopes)
    scores[:, vocabulary:] = 0
    return losses


CPU_CHUNK_ROWS = 256
"""Rows a chunk on the CPU, so that a chunk's scores stay near the cache; a GPU takes larger bites (`bites`)."""
_CUDA_CHUNK_ROWS = 8192
"""The same on a GPU where nothing is learnt."""
_ROW_ALIGNMENT = 64
"""Scores of a row are laid out in multiples of this: a product that writes rows of 50,001 numbers takes 1.7 times as long."""


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    compiled: bool = False,
    gaps: bool = False,
) -> Tensor:
    """The sum over rows of -log softmax(hidden · weightᵀ + bias)[target].

    Args:
        compiled: let torch fuse what happens between the matrix products.
        gaps: some targets may be UNSCORED; those rows count for nothing.
    """
    if gaps and hidden_ND.device.type != "cuda":  # a GPU would have to be asked how many are left; `bites` skips them
        known = targets_N != IGNORE_INDEX
        hidden_ND, targets_N = hidden_ND[known], targets_N[known]
    rows = CPU_CHUNK_ROWS if hidden_ND.device.type == "cpu" else _CUDA_CHUNK_ROWS
    if torch.is_grad_enabled():
        total: Tensor = _LinearCrossEntropy.apply(hidden_ND, weight_VD, bias_V, targets_N, rows, compiled, gaps)  # type: ignore[no-untyped-call]
        return total
    parts = [
        F.cross_entropy(F.linear(hidden, weight_VD, bias_V).float(), targets, reduction="sum")
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True)
    ]
    return torch.stack(parts).sum() if parts else hidden_ND.new_zeros(())


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
        gaps: bool,
    ) -> Tensor:
        kind = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else hidden.dtype
        )
        if hidden.device.type == "cpu" and kind == torch.float32 and not compiled:
            total, *slopes = _chunked_loss_cpu(hidden, weight, bias, targets, rows)
            ctx.slopes = slopes
            return total
        if hidden.device.type == "cuda":
            with torch.autocast("cuda", enabled=False):
                total, *slopes = chunked_loss_cuda(hidden, weight, bias, targets, kind, gaps=gaps)
            ctx.slopes = slopes
            return total
        low_weight, low_hidden = weight.to(kind), hidden.to(kind)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(low_hidden)
        grad_weight = torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                scores = low_hidden[part] @ low_weight.T
                loss, slope = (_compiled_loss_and_grad() if compiled else _loss_and_grad_in_place)(
                    scores, bias, targets[part]
                )
                total += loss
                if grad_bias is not None:
                    grad_bias += slope.sum(dim=0)
                low_scores = slope.to(kind)
                grad_hidden[part] = low_scores @ low_weight
                grad_weight += low_scores.T @ low_hidden[part]
        ctx.slopes = [grad_hidden.to(hidden.dtype), grad_weight, grad_bias]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # handed on, not kept: the last who holds a gradient may change it in place, and a table's is large
        slopes, ctx.slopes = ctx.slopes, None
        whole = grads[0].data_ptr() == unit_grad(grads[0]).data_ptr()
        scaled = slopes if whole else [_scale_grad(slope, grads[0]) for slope in slopes]
        return *scaled, None, None, None, None


def unit_grad(like: Tensor) -> Tensor:
    """The number 1, always the same tensor: a loss that is asked for its slopes with it need not multiply them."""
    return _unit_grad(like.device, like.dtype)


@cache
def _unit_grad(device: torch.device, kind: torch.dtype) -> Tensor:
    return torch.ones((), device=device, dtype=kind)


def _scale_grad(slope: Tensor | None, factor: Tensor) -> Tensor | None:
    """In place where rows lie end to end; where they do not, whoever keeps the gradient would copy it anyway."""
    return slope if slope is None else slope.mul_(factor) if slope.is_contiguous() else slope * factor


def _chunked_loss_cpu(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The loss and its slopes by hidden, weight and bias; chunks share one memory, which is slow to get."""
    vocabulary = len(weight)
    buffer = hidden.new_empty(min(rows, len(hidden)), -(-vocabulary // _ROW_ALIGNMENT) * _ROW_ALIGNMENT)
    total = hidden.new_zeros(())
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.empty_like(weight) if len(hidden) else torch.zeros_like(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias)
    for start in range(0, len(hidden), rows):
        here, asked = hidden[start : start + rows], targets[start : start + rows, None]
        whole = buffer[: len(here)]
        scores = whole[:, :vocabulary]
        torch.mm(here, weight.T, out=scores)
        if bias is not None:
            scores += bias
        whole[:, vocabulary:] = -torch.inf  # what fills a row up has no share in it
        picked = scores.gather(1, asked)
        peak = whole.amax(dim=1, keepdim=True)
        torch.softmax(whole, dim=1, out=whole)
        # what all powers add up to follows from the highest score and its share, which no vocabulary makes vanish
        total += (peak - whole.amax(dim=1, keepdim=True).log() - picked).sum()
        whole.scatter_add_(1, asked, whole.new_full((1, 1), -1.0).expand(len(whole), 1))
        if grad_bias is not None:
            grad_bias += scores.sum(dim=0)
        torch.mm(scores, weight, out=grad_hidden[start : start + rows])
        grad_weight.addmm_(scores.T, here, beta=float(start > 0))  # the first chunk fills it
    return total, grad_hidden, grad_weight, grad_bias


def _loss_and_grad_in_place(scores: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of a chunk and its slope at every score, in as little memory as can be."""
    scores = scores.float()
    if bias is not None:
        scores += bias
    picked = scores.gather(1, targets[:, None])
    peak = scores.amax(dim=1, keepdim=True)
    scores.sub_(peak).exp_()
    mass = scores.sum(dim=1, keepdim=True)
    loss = (mass.log() + peak - picked).sum()
    scores.div_(mass)  # now the probabilities
    scores.scatter_add_(1, targets[:, None], scores.new_full((1, 1), -1.0).expand(len(scores), 1))
    return loss, scores


def _loss_and_grad(scores: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same as a formula, which a compiler turns into two readings of the scores; slopes as exact as the scores were."""
    exact = scores.float() if bias is None else scores.float() + bias
    mass = exact.logsumexp(dim=1, keepdim=True)
    hit = torch.arange(exact.shape[1], device=exact.device) == targets[:, None]
    loss = (mass[:, 0] - torch.where(hit, exact, 0.0).sum(dim=1)).sum()
    return loss, ((exact - mass).exp() - hit.float()).to(scores.dtype)


@cache
def _compiled_loss_and_grad() -> Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]:
    fused: Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]] = torch.compile(
        _loss_and_grad, dynamic=True
    )
    return fused
