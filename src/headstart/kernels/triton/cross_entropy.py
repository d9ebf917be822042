"""Kernels of the chunked cross-entropy: from logits in memory, and without logits in memory.

`logits_to_grad` replaces each row of logits by its gradients: one program reads the row twice, the second time from cache.

`from_exp_logits` never writes logits: the product that computes them stores their exponentials and sums them up as it goes. The
gradient of the loss by a logit is its exponential over the sum of its row's, less 1 at the target. The sum is known only when
the row is done, but a row of gradients enters nothing but products, so that the row of the product's result can be divided
instead. The exponentials are relative to the target's logit, so that no pass over the row has to find its maximum first.

N rows, C columns of the hidden states, W entries of the padded vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headstart.kernels.triton.mlp import (
    MatmulTile,
    launch_options,
    num_programs,
    split_halves,
    tensor_descriptor,
    tile_index,
)

_BLOCK_N, _WARPS = 2048, 8
"""Logits that a program holds at a time, and its warps: the fastest of six on an H200."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _logits_to_grad_kernel(  # type: ignore[no-untyped-def]
    logits,
    bias,
    targets,
    losses,
    row_stride,
    VOCABULARY: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the loss of one row and replace its logits by their gradients."""
    NEGATIVE: tl.constexpr = -1e30  # below any logit; minus infinity less itself would be NaN
    LANE: tl.constexpr = 8  # logits that a thread loads at once: 16 bytes of bf16
    BLOCKS: tl.constexpr = (COLUMNS + BLOCK_N - 1) // BLOCK_N
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * row_stride
    target = tl.load(targets + row)
    target_logit = tl.load(row_logits + target).to(tl.float32)  # before anything is overwritten
    if HAS_BIAS:
        target_logit += tl.load(bias + target)
    lanes = tl.arange(0, BLOCK_N // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    # every lane keeps a maximum and a sum of its own, so that no thread waits for another before the row is read
    lane_max = tl.full((BLOCK_N // LANE,), NEGATIVE, tl.float32)
    sum_exp = tl.zeros((BLOCK_N // LANE,), tl.float32)
    for block in range(BLOCKS):
        columns = block * BLOCK_N + lanes
        # the end of a row is a round number, that of the vocabulary is not: a mask of it would split up loads
        x = tl.load(row_logits + columns, mask=columns < COLUMNS, other=NEGATIVE, eviction_policy="evict_last").to(
            tl.float32
        )
        if HAS_BIAS:
            x += tl.load(bias + columns, mask=columns < COLUMNS, other=0.0)
        else:
            x = tl.where(columns < VOCABULARY, x, NEGATIVE)
        new_max = tl.maximum(lane_max, tl.max(x, axis=1))
        sum_exp = sum_exp * tl.exp(lane_max - new_max) + tl.sum(tl.exp(x - new_max[:, None]), axis=1)
        lane_max = new_max
    row_max = tl.max(lane_max, axis=0)
    logsumexp = row_max + tl.log(tl.sum(sum_exp * tl.exp(lane_max - row_max), axis=0))
    tl.store(losses + row, logsumexp - target_logit)
    for step in range(BLOCKS):
        columns = (BLOCKS - 1 - step) * BLOCK_N + lanes  # backwards: what was read last is still in cache
        x = tl.load(row_logits + columns, mask=columns < COLUMNS, other=NEGATIVE, eviction_policy="evict_first").to(
            tl.float32
        )
        if HAS_BIAS:
            x += tl.load(bias + columns, mask=columns < COLUMNS, other=0.0)
        else:
            x = tl.where(columns < VOCABULARY, x, NEGATIVE)
        grad = tl.exp(x - logsumexp) - tl.where(columns == target, 1.0, 0.0)
        tl.store(row_logits + columns, grad.to(logits.dtype.element_ty), mask=columns < COLUMNS)


def logits_to_grad(
    logits: Tensor,
    vocabulary: int,
    bias: Tensor | None,
    targets: Tensor,
    *,
    max_block: int = _BLOCK_N,
    warps: int = _WARPS,
) -> Tensor:
    """Replace logits by the gradients of the loss, and return the loss of each row.

    Args:
        logits: (N, W); entries behind the vocabulary get a gradient of 0.
        bias: in fp32, as long as a row, minus infinity behind the vocabulary.
        max_block: logits that a program holds at a time.
        warps: of a program.
    """
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(max_block, triton.next_power_of_2(columns))
    launch: Any = _logits_to_grad_kernel[(rows,)]
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]  # triton launches on the current device
        launch(
            logits,
            logits if bias is None else bias,
            targets,
            losses,
            logits.stride(0),
            VOCABULARY=vocabulary,
            COLUMNS=columns,
            HAS_BIAS=bias is not None,
            BLOCK_N=block,
            num_warps=max(1, min(warps, block // 256)),
        )
    return losses


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scale_rows_kernel(rows, factors, out, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply one row by its factor."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_N)
    x = tl.load(rows + row * COLUMNS + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + columns, x * tl.load(factors + row), mask=columns < COLUMNS)


def scale_rows(rows: Tensor, factors: Tensor) -> Tensor:
    """Return each row times its factor, in fp32."""
    count, columns = rows.shape
    out = torch.empty(count, columns, dtype=torch.float32, device=rows.device)
    launch: Any = _scale_rows_kernel[(count,)]
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # triton launches on the current device
        if count:
            launch(
                rows.contiguous(), factors, out, COLUMNS=columns, BLOCK_N=triton.next_power_of_2(columns), num_warps=4
            )
    return out


SHIFT_ABOVE_TARGET = tl.constexpr(40.0)
"""Exponentials are of logits less the target's and less this: their sum is at least e⁻⁴⁰, and what bf16 cannot hold is
negligible."""
MAX_SUM = tl.constexpr(1e30)
"""A row whose sum is as large as this, with a logit 109 above its target's, is computed again, relative to its maximum."""

_TILE = MatmulTile()
LOG2E = tl.constexpr(1.4426950408889634)
_RECOMPUTE_ELEMENTS = 4096
"""Elements of the weight that a program holds where a row is computed again."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _shifts_kernel(  # type: ignore[no-untyped-def]
    hidden, weight, bias, targets, shifts, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Compute what is subtracted from the logits of a row: the target's logit plus a constant."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    columns = tl.arange(0, BLOCK_N)
    a = tl.load(hidden + row * COLUMNS + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
    b = tl.load(weight + target * COLUMNS + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
    target_logit = tl.sum(a * b, axis=0)
    if HAS_BIAS:
        target_logit += tl.load(bias + target)
    tl.store(shifts + row, target_logit + SHIFT_ABOVE_TARGET)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _exp_logits_kernel(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    bias,
    shifts,
    exp_logits,
    sums,
    num_rows,
    VOCABULARY: tl.constexpr,
    PADDED_VOCABULARY: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute tiles of exponentials in bf16, and the sum of each of their rows."""
    TILES: tl.constexpr = (PADDED_VOCABULARY + BLOCK_N - 1) // BLOCK_N
    HALF: tl.constexpr = BLOCK_N // 2
    for number in tl.range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M) * TILES, PROGRAMS, flatten=True):
        tile_row, tile = tile_index(number, num_rows, TILES, GROUP, BLOCK_M)
        row = tile_row * BLOCK_M
        logits = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, COLUMNS, BLOCK_K):  # elements outside are read as 0
            logits = tl.dot(hidden.load([row, k]), weight.load([tile * BLOCK_N, k]).T, logits)
        rows, entries = row + tl.arange(0, BLOCK_M), tile * BLOCK_N + tl.arange(0, BLOCK_N)
        shift = tl.load(shifts + rows, mask=rows < num_rows, other=0.0)
        if HAS_BIAS:
            entry_bias = tl.load(bias + entries, mask=entries < PADDED_VOCABULARY, other=-float("inf")) * LOG2E
        else:
            entry_bias = tl.where(entries < VOCABULARY, 0.0, -float("inf"))
        # exp would handle denormal numbers, which do not matter here, with four more instructions than exp2
        # the shift is subtracted first, while both numbers are nearly alike
        exp_tile = tl.exp2((logits - shift[:, None]) * LOG2E + entry_bias[None, :])
        tl.store(sums + rows * TILES + tile, tl.sum(exp_tile, axis=1), mask=rows < num_rows)
        left, right = split_halves(exp_tile, BLOCK_M, BLOCK_N)
        exp_logits.store([row, tile * BLOCK_N], left.to(exp_logits.dtype))
        exp_logits.store([row, tile * BLOCK_N + HALF], right.to(exp_logits.dtype))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _logits_of_entries(  # type: ignore[no-untyped-def]
    weight,
    bias,
    row_hidden,
    first,
    VOCABULARY: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the logits of BLOCK_M entries for one row, without a matrix product."""
    entries, columns = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    mask = (entries < VOCABULARY)[:, None] & (columns < COLUMNS)[None, :]
    block = tl.load(weight + entries.to(tl.int64)[:, None] * COLUMNS + columns[None, :], mask=mask, other=0.0)
    x = tl.sum(block.to(tl.float32) * row_hidden[None, :], axis=1)
    if HAS_BIAS:
        x += tl.load(bias + entries, mask=entries < VOCABULARY, other=0.0)
    return tl.where(entries < VOCABULARY, x, -float("inf"))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _finish_kernel(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    bias,
    targets,
    shifts,
    exp_logits,
    sums,
    losses,
    factors,
    scaled,
    VOCABULARY: tl.constexpr,
    PADDED_VOCABULARY: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the loss of one row, the gradient at its target, the factor of its exponentials, and its scaled hidden state."""
    row = tl.program_id(0).to(tl.int64)
    target, shift = tl.load(targets + row), tl.load(shifts + row)
    columns, row_exp = tl.arange(0, BLOCK_N), exp_logits + row * PADDED_VOCABULARY
    h = tl.load(hidden + row * COLUMNS + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
    low_h = h.to(exp_logits.dtype.element_ty).to(tl.float32)
    tiles = tl.arange(0, BLOCK_TILES)
    sum_exp = tl.sum(tl.load(sums + row * TILES + tiles, mask=tiles < TILES, other=0.0), axis=0)
    target_logit = shift - SHIFT_ABOVE_TARGET
    if sum_exp >= MAX_SUM:  # slow, exact, and hardly ever
        shift = target_logit
        for first in range(0, VOCABULARY, BLOCK_M):
            x = _logits_of_entries(weight, bias, low_h, first, VOCABULARY, COLUMNS, HAS_BIAS, BLOCK_M, BLOCK_N)
            shift = tl.maximum(shift, tl.max(x, axis=0))
        sum_exp = 0.0
        for first in range(0, VOCABULARY, BLOCK_M):
            x = _logits_of_entries(weight, bias, low_h, first, VOCABULARY, COLUMNS, HAS_BIAS, BLOCK_M, BLOCK_N)
            exp_x = tl.exp(x - shift)
            sum_exp += tl.sum(exp_x, axis=0)
            entries = first + tl.arange(0, BLOCK_M)  # the target's is stored below, by whichever thread
            is_other = (entries < VOCABULARY) & (entries != target)
            tl.store(row_exp + entries, exp_x.to(exp_logits.dtype.element_ty), mask=is_other)
    tl.store(losses + row, shift - target_logit + tl.log(sum_exp))
    target_grad = tl.exp(target_logit - shift) - sum_exp
    rounded = target_grad.to(exp_logits.dtype.element_ty)
    tl.store(row_exp + target, rounded)
    # the largest gradient of most rows: the factor of the row corrects its rounding error
    rounded_grad = rounded.to(tl.float32)
    factor = tl.where(rounded_grad == 0.0, 1.0, target_grad / rounded_grad) / sum_exp
    tl.store(factors + row, factor)
    scaled_h = h * factor
    if HAS_BIAS:  # one column holds the factor itself, and the last one its rounding error
        is_last = columns == COLUMNS - 1
        scaled_h = tl.where(is_last, factor - factor.to(exp_logits.dtype.element_ty).to(tl.float32), scaled_h)
    tl.store(scaled + row * COLUMNS + columns, scaled_h.to(scaled.dtype.element_ty), mask=columns < COLUMNS)


def from_exp_logits(
    hidden: Tensor,
    weight: Tensor,
    vocabulary: int,
    bias: Tensor | None,
    targets: Tensor,
    out: Tensor,
    *,
    tile: MatmulTile = _TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a chunk by three kernels; a `ChunkLoss` of `kernels.cross_entropy`."""
    (rows, columns), padded_vocabulary, low_hidden = hidden.shape, len(weight), hidden.to(out.dtype)
    tiles, block = triton.cdiv(padded_vocabulary, tile.block_n), triton.next_power_of_2(columns)
    shifts, losses, factors = (torch.empty(rows, dtype=torch.float32, device=hidden.device) for _ in range(3))
    sums = torch.empty(rows, tiles, dtype=torch.float32, device=hidden.device)
    scaled = torch.empty_like(low_hidden)
    bias_W = shifts if bias is None else bias  # not read where there is none
    has_bias = {"HAS_BIAS": bias is not None}
    sizes = {"VOCABULARY": vocabulary, "PADDED_VOCABULARY": padded_vocabulary, "COLUMNS": columns, **has_bias}
    programs = num_programs(hidden.device)
    shift: Any = _shifts_kernel[(rows,)]
    product: Any = _exp_logits_kernel[(min(programs, triton.cdiv(rows, tile.block_m) * tiles),)]
    finish: Any = _finish_kernel[(rows,)]
    with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]  # triton launches on the current device
        shift(low_hidden, weight, bias_W, targets, shifts, COLUMNS=columns, **has_bias, BLOCK_N=block, num_warps=1)
        product(
            tensor_descriptor(low_hidden, tile.block_m, tile.block_k),
            tensor_descriptor(weight, tile.block_n, tile.block_k),
            bias_W,
            shifts,
            tensor_descriptor(out, tile.block_m, tile.block_n // 2),
            sums,
            rows,
            **sizes,
            PROGRAMS=programs,
            **launch_options(tile),
        )
        blocks = {"TILES": tiles, "BLOCK_TILES": triton.next_power_of_2(tiles), "BLOCK_N": block}
        blocks["BLOCK_M"] = max(1, _RECOMPUTE_ELEMENTS // block)
        arguments = hidden, weight, bias_W, targets, shifts, out, sums, losses, factors, scaled
        finish(*arguments, **sizes, **blocks, num_warps=4)
    return losses, factors, scaled
