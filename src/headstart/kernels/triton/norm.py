"""A sum and its norm as one kernel, and all of the way back as another. Needs triton, as `stream_kernel.py` does.

N rows, D columns. A program goes over rows that lie as many rows apart as there are programs: all of them together then read
memory from one end to the other.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headstart.kernels.triton.elementwise import Tile, sum_parts, warps_for

_TILE = Tile(tall=1, steps=64, warps=1, stages=3)
"""The quickest of some dozens on an H200, for rows of 768 columns."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm(  # type: ignore[no-untyped-def]
    x,
    more,
    owed,
    weight,
    bias,
    total,
    normed,
    means,
    scales,
    epsilon,
    COLUMNS: tl.constexpr,
    CENTRED: tl.constexpr,
    HAS_OWED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: the sum, and its norm."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < COLUMNS
    here = row * COLUMNS + at
    a = tl.load(x + here, mask=there, other=0.0).to(tl.float32)
    a += tl.load(more + here, mask=there, other=0.0).to(tl.float32)
    if HAS_OWED:
        a += tl.load(owed + at, mask=there, other=0.0)
    tl.store(total + here, a, mask=there)
    if CENTRED:
        mean = tl.sum(a, axis=0) / COLUMNS
        tl.store(means + row, mean)
        a = tl.where(there, a - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(a * a, axis=0) / COLUMNS + epsilon)
    tl.store(scales + row, scale)
    y = a * scale * tl.load(weight + at, mask=there, other=0.0)
    if HAS_BIAS:
        y += tl.load(bias + at, mask=there, other=0.0)
    tl.store(normed + here, y.to(normed.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_backward(  # type: ignore[no-untyped-def]
    by_total,
    by_normed,
    total,
    means,
    scales,
    weight,
    by_x,
    by_more,
    parts,
    count,
    COLUMNS: tl.constexpr,
    CENTRED: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    HAS_OWED: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    TALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some rows: slopes of both summands, which are the same, and those rows' share of slopes that are sums over all."""
    columns = tl.arange(0, BLOCK)
    w = tl.load(weight + columns, mask=columns < COLUMNS, other=0.0)[None, :]
    by_weight, by_bias = tl.zeros((TALL, BLOCK), tl.float32), tl.zeros((TALL, BLOCK), tl.float32)
    by_owed = tl.zeros((TALL, BLOCK), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        rows = (step * tl.num_programs(0) + tl.program_id(0)) * TALL + tl.arange(0, TALL)
        here = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
        there = (rows < count)[:, None] & (columns < COLUMNS)[None, :]
        slope = tl.load(by_normed + here, mask=there, other=0.0).to(tl.float32)
        a = tl.load(total + here, mask=there, other=0.0)
        scale = tl.load(scales + rows, mask=rows < count, other=0.0)[:, None]
        if CENTRED:
            a -= tl.load(means + rows, mask=rows < count, other=0.0)[:, None]
        a *= scale
        by_weight += slope * a
        by_bias += slope
        slope *= w
        inner = slope - a * (tl.sum(slope * a, axis=1) / COLUMNS)[:, None]
        if CENTRED:
            inner -= (tl.sum(slope, axis=1) / COLUMNS)[:, None]
        inner *= scale
        if HAS_TOTAL:
            inner += tl.load(by_total + here, mask=there, other=0.0)
        tl.store(by_x + here, inner, mask=there)
        tl.store(by_more + here, inner.to(by_more.dtype.element_ty), mask=there)
        if HAS_OWED:
            by_owed += tl.where(there, inner, 0.0)
    part = parts + tl.program_id(0).to(tl.int64) * 3 * COLUMNS + columns
    tl.store(part, tl.sum(by_weight, axis=0), mask=columns < COLUMNS)
    tl.store(part + COLUMNS, tl.sum(by_bias, axis=0), mask=columns < COLUMNS)
    tl.store(part + 2 * COLUMNS, tl.sum(by_owed, axis=0), mask=columns < COLUMNS)


def add_norm(
    x: Tensor,
    more: Tensor,
    owed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    kind: torch.dtype,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, its norm, and of each row the mean and by what it was multiplied."""
    columns = x.shape[-1]
    rows = x.numel() // columns
    total, normed = torch.empty_like(x), torch.empty_like(x, dtype=kind)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    sizes = {"COLUMNS": columns, "CENTRED": centred, "HAS_OWED": owed is not None, "HAS_BIAS": bias is not None}
    launch: Any = _add_norm[(rows,)]
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        learnt = weight if owed is None else owed, weight, weight if bias is None else bias
        given = x, more, *learnt, total, normed, means, scales, epsilon
        launch(*given, **sizes, BLOCK=triton.next_power_of_2(columns), num_warps=warps_for(columns, 16, 4))
    return total, normed, means, scales


def add_norm_backward(
    by_total: Tensor | None,
    by_normed: Tensor,
    total: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    kind: torch.dtype,
    *,
    centred: bool,
    owed: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes of one summand, of the other (as `kind`), and of weight, bias and what was owed (3, D)."""
    columns, count = total.shape[-1], len(scales)
    tile = tile or _TILE.within(count)
    by_x, by_more = torch.empty_like(total), torch.empty_like(total, dtype=kind)
    programs = triton.cdiv(count, tile.tall * tile.steps)
    parts = torch.empty(programs, 3 * columns, dtype=torch.float32, device=total.device)
    sizes = {"COLUMNS": columns, "CENTRED": centred, "HAS_TOTAL": by_total is not None, "HAS_OWED": owed}
    shape = {"STEPS": tile.steps, "STAGES": tile.stages, "TALL": tile.tall, "BLOCK": triton.next_power_of_2(columns)}
    launch: Any = _add_norm_backward[(programs,)]
    with torch.cuda.device_of(total):  # type: ignore[no-untyped-call]
        given = by_normed if by_total is None else by_total, by_normed, total, means, scales, weight
        launch(*given, by_x, by_more, parts, count, **sizes, **shape, num_warps=warps_for(columns, 32, tile.warps))
    return by_x, by_more, sum_parts(parts).view(3, -1)
