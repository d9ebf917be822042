"""Scores that never lie in memory: the product that makes them writes their powers and sums them up as it goes.

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

from headstart.model.product_kernel import Tile, halves, programs, shape_of, tiled, which

ABOVE = tl.constexpr(40.0)
"""Powers are of scores less the target's and less this: a sum is e⁻⁴⁰ or more, and what bf16 cannot hold is nothing to it."""
MOST = tl.constexpr(1e30)
"""A sum as large as this, of a row with a score 109 above its target's, leaves too little room: the row is done again."""

_TILE = Tile()
LOG2E = tl.constexpr(1.4426950408889634)
_HELD = 4096
"""Numbers of the table that a program holds where a row is done again."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _targets(hidden, table, bias, targets, zeros, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where each row's powers are 1: so much above the score of its target."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    at = tl.arange(0, BLOCK)
    a = tl.load(hidden + row * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    b = tl.load(table + target * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    score = tl.sum(a * b, axis=0)
    if HAS_BIAS:
        score += tl.load(bias + target)
    tl.store(zeros + row, score + ABOVE)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _powers(  # type: ignore[no-untyped-def]
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
        down, tile = which(number, count, TILES, GROUP, ROWS)
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
        left, right = halves(power, ROWS, WIDE)
        powers.store([row, tile * WIDE], left.to(powers.dtype))
        powers.store([row, tile * WIDE + HALF], right.to(powers.dtype))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _some_scores(  # type: ignore[no-untyped-def]
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
def _finish(  # type: ignore[no-untyped-def]
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
    picked = zero - ABOVE
    if total >= MOST:  # slow, exact, and as good as never
        zero = picked
        for first in range(0, VOCABULARY, WIDE):
            x = _some_scores(table, bias, low, first, VOCABULARY, COLUMNS, HAS_BIAS, WIDE, BLOCK)
            zero = tl.maximum(zero, tl.max(x, axis=0))
        total = 0.0
        for first in range(0, VOCABULARY, WIDE):
            x = _some_scores(table, bias, low, first, VOCABULARY, COLUMNS, HAS_BIAS, WIDE, BLOCK)
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


def by_powers(
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
    first: Any = _targets[(rows,)]
    at_once = programs(hidden.device)
    product: Any = _powers[(min(at_once, triton.cdiv(rows, tile.rows) * tiles),)]
    last: Any = _finish[(rows,)]
    with torch.cuda.device_of(hidden):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        first(low, table, bias_W, targets, zeros, COLUMNS=columns, HAS_BIAS=bias is not None, BLOCK=block, num_warps=1)
        a, b = tiled(low, tile.rows, tile.columns), tiled(table, tile.places, tile.columns)
        c = tiled(out, tile.rows, tile.places // 2)
        product(a, b, bias_W, zeros, c, sums, rows, **sizes, **shape_of(tile), PROGRAMS=at_once)
        held = {"TILES": tiles, "MANY": triton.next_power_of_2(tiles), "WIDE": max(1, _HELD // block), "BLOCK": block}
        given = hidden, table, bias_W, targets, zeros, out, sums
        last(*given, losses, shares, shared, **sizes, **held, num_warps=4)
    return losses, shares, shared
