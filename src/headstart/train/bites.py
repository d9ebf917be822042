"""The loss of a linear layer on a GPU, a bite of rows at a time, in memory taken once.

Products want rows whose length is a round number of bytes, and bites large enough to keep every multiprocessor busy: the
table is copied into a round number of rows and columns in the precision of the products, the slopes of one bite lie in one
buffer, and the slopes of the table are summed up in fp32 inside the product.

N rows scored, D width, V vocabulary; W and C are V and D made round.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_LINE = 64
"""Entries of the vocabulary are filled up to a multiple of this."""
_COLUMNS = 8
"""The width too: 16 bytes of bf16."""
_BITE_BYTES = 1 << 30
"""What the scores of one bite may weigh."""
_ROUND = 128
"""Rows of a bite are a multiple of this, the height of a product's tile."""

ToSlopes = Callable[[Tensor, int, Tensor | None, Tensor], Tensor]
"""Scores (turned into slopes in place), vocabulary, bias (fp32, minus infinity behind the vocabulary), targets: the losses."""
Way = Callable[[Tensor, Tensor, int, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor | float, Tensor]]
"""Hidden (NC, not rounded), table (WC), vocabulary, bias, targets, and a buffer (NW) for slopes, each row at its own scale: the
losses (N), by what to multiply a row to have its slopes (N), and the hidden states multiplied by it, rounded (NC)."""


def bite_rows(count: int, places: int, size: int) -> int:
    """Rows of a bite, all bites alike: as few bites as the budget allows.

    Args:
        places: entries of a row of scores.
        size: bytes of a score.

    >>> [bite_rows(count, 50048, 2) for count in (32768, 20000, 100)]
    [8192, 10112, 128]
    """
    most = max(_ROUND, _BITE_BYTES // (places * size) // _ROUND * _ROUND)
    bites = max(1, -(-count // most))
    return max(_ROUND, -(-count // bites // _ROUND) * _ROUND)


def loss_in_bites(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    kind: torch.dtype,
    *,
    rows: int | None = None,
    way: Way | None = None,
    gaps: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The summed loss and its slopes by hidden, weight and bias.

    Args:
        kind: the precision of the products.
        rows: of a bite, if not what `bite_rows` says.
        way: what gives the slopes of a bite, if not the best there is.
        gaps: targets below 0 are none: their rows have no loss and no slopes.
    """
    (count, width), vocabulary = hidden.shape, len(weight)
    places = _round_up(vocabulary, _LINE)
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
    rows = rows or bite_rows(count, places, table_WC.element_size())
    way = way or _best(hidden.device, kind)
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
    return losses.sum(), _times_rows(hidden.device)(grad_hidden, shares).to(hidden.dtype), grad_weight, grad_bias


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
def _times_rows(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Each row times a number of its own, in fp32; torch is slow where precisions are mixed."""
    if device.type == "cuda":
        with suppress(ImportError):
            from headstart.train.row_kernel import times_rows

            return times_rows
    return lambda rows, numbers: rows * numbers[:, None]


@cache
def _best(device: torch.device, kind: torch.dtype) -> Way:
    """Triton's kernels on CUDA where triton is installed, torch's operations elsewhere."""
    if device.type != "cuda":
        return by_scores(plain_slopes)
    try:
        from headstart.model.product_kernel import fits
        from headstart.train.power_kernel import by_powers
        from headstart.train.row_kernel import to_slopes
    except ImportError:
        return by_scores(plain_slopes)
    # powers need what fp16 has not: to reach as far as fp32 does
    return by_powers if kind == torch.bfloat16 and fits(device) else by_scores(to_slopes)


def by_scores(to_slopes: ToSlopes) -> Way:
    """Scores first, which then become slopes."""

    def way(
        hidden: Tensor, table: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor, out: Tensor
    ) -> tuple[Tensor, float, Tensor]:
        low = hidden.to(out.dtype)
        torch.mm(low, table.T, out=out)
        return to_slopes(out, vocabulary, bias, targets), 1.0, low

    return way


def plain_slopes(scores: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor) -> Tensor:
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
