"""Triton kernels of the chunked cross-entropy.

The loss of each row of scores and its slopes, in place: two readings of a row by one program, the second from cache.

Needs triton, which comes with torch where there are CUDA devices; `bites` does the same without it.

Scores that never lie in memory: the product that makes them writes their powers and sums them up as it goes.

The slope of the loss at a score is its power over the sum of its row's, less 1 at the target. The sum is known only when the
row is done, but a row of slopes enters nothing but products: there, dividing the row's own result does the same. What a power
is taken from is the target's score, and no pass over the row has to find its highest first. N rows, C columns, W places.

Needs triton, which comes with torch where there are CUDA devices; `bites` does without it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headstart.kernels.triton.mlp import Tile, launch_options, programs, split_halves, tensor_descriptor, tile_index

_BLOCK, _WARPS = 2048, 8
"""Scores that a program holds at a time, and its warps: the quickest of six on an H200."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _row_kernel(  # type: ignore[no-untyped-def]
    scores,
    bias,
    targets,
    losses,
    pitch,
    VOCABULARY: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    NONE: tl.constexpr = -1e30  # no score is as low; minus infinity less itself would be no number
    LANE: tl.constexpr = 8  # scores that a thread loads at once: 16 bytes of bf16
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = tl.program_id(0).to(tl.int64)
    here = scores + row * pitch
    target = tl.load(targets + row)
    picked = tl.load(here + target).to(tl.float32)  # before anything is overwritten
    if HAS_BIAS:
        picked += tl.load(bias + target)
    lanes = tl.arange(0, BLOCK // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    # every lane keeps a peak and a sum of its own, so that no thread waits for another before the row is read
    peak = tl.full((BLOCK // LANE,), NONE, tl.float32)
    powers = tl.zeros((BLOCK // LANE,), tl.float32)
    for block in range(BLOCKS):
        at = block * BLOCK + lanes
        # where a row ends is a round number, where the vocabulary does is not: a mask of it would take loads apart
        x = tl.load(here + at, mask=at < WIDTH, other=NONE, eviction_policy="evict_last").to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + at, mask=at < WIDTH, other=0.0)
        else:
            x = tl.where(at < VOCABULARY, x, NONE)
        higher = tl.maximum(peak, tl.max(x, axis=1))
        powers = powers * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
        peak = higher
    highest = tl.max(peak, axis=0)
    mass = highest + tl.log(tl.sum(powers * tl.exp(peak - highest), axis=0))
    tl.store(losses + row, mass - picked)
    for turn in range(BLOCKS):
        at = (BLOCKS - 1 - turn) * BLOCK + lanes  # backwards: what was read last is nearest
        x = tl.load(here + at, mask=at < WIDTH, other=NONE, eviction_policy="evict_first").to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + at, mask=at < WIDTH, other=0.0)
        else:
            x = tl.where(at < VOCABULARY, x, NONE)
        slope = tl.exp(x - mass) - tl.where(at == target, 1.0, 0.0)
        tl.store(here + at, slope.to(scores.dtype.element_ty), mask=at < WIDTH)


def logits_to_grad(
    scores: Tensor,
    vocabulary: int,
    bias: Tensor | None,
    targets: Tensor,
    *,
    most: int = _BLOCK,
    warps: int = _WARPS,
) -> Tensor:
    """Turn scores into the slopes of the loss, and give the loss of each row.

    Args:
        scores: one row each, laid out in at least `vocabulary` places; what lies behind gets a slope of 0.
        bias: in fp32, as long as a row, minus infinity behind the vocabulary.
        most: scores that a program holds at a time.
        warps: of a program.
    """
    rows, width = scores.shape
    losses = torch.empty(rows, dtype=torch.float32, device=scores.device)
    block = min(most, triton.next_power_of_2(width))
    kernel: Any = _row_kernel[(rows,)]
    with torch.cuda.device_of(scores):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        kernel(
            scores,
            scores if bias is None else bias,
            targets,
            losses,
            scores.stride(0),
            VOCABULARY=vocabulary,
            WIDTH=width,
            HAS_BIAS=bias is not None,
            BLOCK=block,
            num_warps=max(1, min(warps, block // 256)),
        )
    return losses


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scale_rows_kernel(rows, numbers, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(rows + row * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + at, x * tl.load(numbers + row), mask=at < COLUMNS)


def scale_rows(rows: Tensor, numbers: Tensor) -> Tensor:
    """Each row times a number of its own, in fp32."""
    count, columns = rows.shape
    out = torch.empty(count, columns, dtype=torch.float32, device=rows.device)
    launch: Any = _scale_rows_kernel[(count,)]
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        if count:
            launch(rows.contiguous(), numbers, out, COLUMNS=columns, BLOCK=triton.next_power_of_2(columns), num_warps=4)
    return out


SHIFT_ABOVE_TARGET = tl.constexpr(40.0)
"""Powers are of scores less the target's and less this: a sum is e⁻⁴⁰ or more, and what bf16 cannot hold is nothing to it."""
MAX_EXPONENT = tl.constexpr(1e30)
"""A sum as large as this, of a row with a score 109 above its target's, leaves too little room: the row is done again."""

_TILE = Tile()
LOG2E = tl.constexpr(1.4426950408889634)
_RESCALE_LIMIT = 4096
"""Numbers of the table that a program holds where a row is done again."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _target_logits_kernel(  # type: ignore[no-untyped-def]
    hidden, table, bias, targets, zeros, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Where each row's powers are 1: so much above the score of its target."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    at = tl.arange(0, BLOCK)
    a = tl.load(hidden + row * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    b = tl.load(table + target * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    score = tl.sum(a * b, axis=0)
    if HAS_BIAS:
        score += tl.load(bias + target)
    tl.store(zeros + row, score + SHIFT_ABOVE_TARGET)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _exp_logits_kernel(  # type: ignore[no-untyped-def]
    hidden,
    table,
    bias,
    zeros,
    powers,
    sums,
    count,
    VOCABULARY: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Tiles of powers in bf16, and the sum of each of their rows."""
    TILES: tl.constexpr = (PLACES + WIDE - 1) // WIDE
    HALF: tl.constexpr = WIDE // 2
    for number in tl.range(tl.program_id(0), tl.cdiv(count, ROWS) * TILES, PROGRAMS, flatten=True):
        down, tile = tile_index(number, count, TILES, GROUP, ROWS)
        row = down * ROWS
        scores = tl.zeros((ROWS, WIDE), tl.float32)
        for k in range(0, COLUMNS, DEEP):  # what lies outside is read as 0
            scores = tl.dot(hidden.load([row, k]), table.load([tile * WIDE, k]).T, scores)
        rows, places = row + tl.arange(0, ROWS), tile * WIDE + tl.arange(0, WIDE)
        zero = tl.load(zeros + rows, mask=rows < count, other=0.0)
        if HAS_BIAS:
            more = tl.load(bias + places, mask=places < PLACES, other=-float("inf")) * LOG2E
        else:
            more = tl.where(places < VOCABULARY, 0.0, -float("inf"))
        # of 2 and not of e, which would look after numbers too small to matter with four instructions more
        power = tl.exp2((scores - zero[:, None]) * LOG2E + more[None, :])  # what is nearly alike is subtracted first
        tl.store(sums + rows * TILES + tile, tl.sum(power, axis=1), mask=rows < count)
        left, right = split_halves(power, ROWS, WIDE)
        powers.store([row, tile * WIDE], left.to(powers.dtype))
        powers.store([row, tile * WIDE + HALF], right.to(powers.dtype))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _logits_of_columns(  # type: ignore[no-untyped-def]
    table,
    bias,
    row,
    first,
    VOCABULARY: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scores of a few entries for one row, without a product of matrices."""
    places, at = first + tl.arange(0, WIDE), tl.arange(0, BLOCK)
    there = (places < VOCABULARY)[:, None] & (at < COLUMNS)[None, :]
    part = tl.load(table + places.to(tl.int64)[:, None] * COLUMNS + at[None, :], mask=there, other=0.0)
    x = tl.sum(part.to(tl.float32) * row[None, :], axis=1)
    if HAS_BIAS:
        x += tl.load(bias + places, mask=places < VOCABULARY, other=0.0)
    return tl.where(places < VOCABULARY, x, -float("inf"))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _finish_kernel(  # type: ignore[no-untyped-def]
    hidden,
    table,
    bias,
    targets,
    zeros,
    powers,
    sums,
    losses,
    shares,
    shared,
    VOCABULARY: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILES: tl.constexpr,
    MANY: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of one row: its loss, the slope of its target, what its powers are shared out by, and its hidden state so shared."""
    row = tl.program_id(0).to(tl.int64)
    target, zero = tl.load(targets + row), tl.load(zeros + row)
    at, here = tl.arange(0, BLOCK), powers + row * PLACES
    h = tl.load(hidden + row * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    low = h.to(powers.dtype.element_ty).to(tl.float32)
    many = tl.arange(0, MANY)
    total = tl.sum(tl.load(sums + row * TILES + many, mask=many < TILES, other=0.0), axis=0)
    picked = zero - SHIFT_ABOVE_TARGET
    if total >= MAX_EXPONENT:  # slow, exact, and as good as never
        zero = picked
        for first in range(0, VOCABULARY, WIDE):
            x = _logits_of_columns(table, bias, low, first, VOCABULARY, COLUMNS, HAS_BIAS, WIDE, BLOCK)
            zero = tl.maximum(zero, tl.max(x, axis=0))
        total = 0.0
        for first in range(0, VOCABULARY, WIDE):
            x = _logits_of_columns(table, bias, low, first, VOCABULARY, COLUMNS, HAS_BIAS, WIDE, BLOCK)
            power = tl.exp(x - zero)
            total += tl.sum(power, axis=0)
            places = first + tl.arange(0, WIDE)  # the target's is written below, by whichever thread
            tl.store(here + places, power.to(powers.dtype.element_ty), mask=(places < VOCABULARY) & (places != target))
    tl.store(losses + row, zero - picked + tl.log(total))
    slope = tl.exp(picked - zero) - total
    rounded = slope.to(powers.dtype.element_ty)
    tl.store(here + target, rounded)
    # the largest slope of most rows: what rounding has made of it is taken back where the row is shared out
    kept = rounded.to(tl.float32)
    share = tl.where(kept == 0.0, 1.0, slope / kept) / total
    tl.store(shares + row, share)
    value = h * share
    if HAS_BIAS:  # the share itself in a column, and behind it what rounding takes from it
        value = tl.where(at == COLUMNS - 1, share - share.to(powers.dtype.element_ty).to(tl.float32), value)
    tl.store(shared + row * COLUMNS + at, value.to(shared.dtype.element_ty), mask=at < COLUMNS)


def from_exp_logits(
    hidden: Tensor,
    table: Tensor,
    vocabulary: int,
    bias: Tensor | None,
    targets: Tensor,
    out: Tensor,
    *,
    tile: Tile = _TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """A bite as `bites` wants it, by three kernels; `bites.Way` says what goes in and comes out."""
    (rows, columns), places, low = hidden.shape, len(table), hidden.to(out.dtype)
    tiles, block = triton.cdiv(places, tile.places), triton.next_power_of_2(columns)
    zeros, losses, shares = (torch.empty(rows, dtype=torch.float32, device=hidden.device) for _ in range(3))
    sums = torch.empty(rows, tiles, dtype=torch.float32, device=hidden.device)
    shared = torch.empty_like(low)
    bias_W = zeros if bias is None else bias  # which is not looked at where there is none
    sizes = {"VOCABULARY": vocabulary, "PLACES": places, "COLUMNS": columns, "HAS_BIAS": bias is not None}
    first: Any = _target_logits_kernel[(rows,)]
    at_once = programs(hidden.device)
    product: Any = _exp_logits_kernel[(min(at_once, triton.cdiv(rows, tile.rows) * tiles),)]
    last: Any = _finish_kernel[(rows,)]
    with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        first(low, table, bias_W, targets, zeros, COLUMNS=columns, HAS_BIAS=bias is not None, BLOCK=block, num_warps=1)
        a, b = tensor_descriptor(low, tile.rows, tile.columns), tensor_descriptor(table, tile.places, tile.columns)
        c = tensor_descriptor(out, tile.rows, tile.places // 2)
        product(a, b, bias_W, zeros, c, sums, rows, **sizes, **launch_options(tile), PROGRAMS=at_once)
        held = {
            "TILES": tiles,
            "MANY": triton.next_power_of_2(tiles),
            "WIDE": max(1, _RESCALE_LIMIT // block),
            "BLOCK": block,
        }
        given = hidden, table, bias_W, targets, zeros, out, sums
        last(*given, losses, shares, shared, **sizes, **held, num_warps=4)
    return losses, shares, shared
