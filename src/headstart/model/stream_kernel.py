"""Passes over the stream that a compiler makes several of, each as one kernel: on a GPU they are bounded by what they read.

Needs triton, which comes with torch where there are CUDA devices; `stream.py` asks for them where it is there. N rows, D
columns. Sums over all rows are written in parts, one for each program, and added up in the same order every time.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_ADD_WARPS = 4


class Tile(NamedTuple):
    """What a program holds at a time, how often it goes on to the next rows, and by how many it reads ahead."""

    tall: int
    steps: int
    warps: int
    stages: int
    wide: int = 0  # all columns where it is 0


_NORM = Tile(tall=1, steps=32, warps=1, stages=2)
_GELU = Tile(tall=16, steps=8, warps=4, stages=3, wide=256)
_JOIN = Tile(tall=16, steps=8, warps=4, stages=2, wide=256)
_ENDS = Tile(tall=64, steps=0, warps=4, stages=0, wide=32)


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
def _add_norm_back(  # type: ignore[no-untyped-def]
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


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gelu_back(  # type: ignore[no-untyped-def]
    slopes,
    before,
    out,
    parts,
    count,
    COLUMNS: tl.constexpr,
    TANH: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Some rows of some columns: slopes before the activation, and the sum of each column of them."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    sums = tl.zeros((TALL, WIDE), tl.float32)  # rows apart until the end: threads then need not meet
    for step in tl.range(0, STEPS, num_stages=STAGES):
        rows = (step * tl.num_programs(1) + tl.program_id(1)) * TALL + tl.arange(0, TALL)
        here = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
        there = (rows < count)[:, None] & (columns < COLUMNS)[None, :]
        x = tl.load(before + here, mask=there, other=0.0).to(tl.float32)
        slope = tl.load(slopes + here, mask=there, other=0.0).to(tl.float32)
        if TANH:  # x · sigmoid(2u), where u is what the tanh would be taken of
            share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            steep = share + x * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            share = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476))
            steep = share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        low = (slope * steep).to(out.dtype.element_ty)
        tl.store(out + here, low, mask=there)
        sums += low.to(tl.float32)
    here = tl.program_id(1).to(tl.int64) * COLUMNS + columns
    tl.store(parts + here, tl.sum(sums, axis=0), mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _join(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    out,
    parts,
    count,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Some rows of some columns of one of three: copied to where it lies beside the others, and summed up."""
    TILES: tl.constexpr = (COLUMNS + WIDE - 1) // WIDE
    which = tl.program_id(0) // TILES
    columns = tl.program_id(0) % TILES * WIDE + tl.arange(0, WIDE)
    source = query if which == 0 else key
    if which == 2:
        source = value
    sums = tl.zeros((TALL, WIDE), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        rows = ((step * tl.num_programs(1) + tl.program_id(1)) * TALL + tl.arange(0, TALL)).to(tl.int64)[:, None]
        there = (rows < count) & (columns < COLUMNS)[None, :]
        slope = tl.load(source + rows * COLUMNS + columns[None, :], mask=there, other=0.0)
        tl.store(out + rows * (3 * COLUMNS) + which * COLUMNS + columns[None, :], slope, mask=there)
        sums += slope.to(tl.float32)
    here = tl.program_id(1).to(tl.int64) * (3 * COLUMNS) + which * COLUMNS + columns
    tl.store(parts + here, tl.sum(sums, axis=0), mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_up(  # type: ignore[no-untyped-def]
    parts, sums, count, COLUMNS: tl.constexpr, STEPS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr
):
    """Some columns of all parts."""
    columns = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    found = tl.zeros((TALL, WIDE), tl.float32)
    for step in range(STEPS):
        rows = step * TALL + tl.arange(0, TALL)
        here = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
        found += tl.load(parts + here, mask=(rows < count)[:, None] & (columns < COLUMNS)[None, :], other=0.0)
    tl.store(sums + columns, tl.sum(found, axis=0), mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _look_back(slopes, ids, table, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of slopes, added to that of its entry."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    there = at < COLUMNS
    entry = tl.load(ids + row).to(tl.int64)
    slope = tl.load(slopes + row * COLUMNS + at, mask=there, other=0.0)
    tl.atomic_add(table + entry * COLUMNS + at, slope, mask=there, sem="relaxed")


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
        added = weight if owed is None else owed, weight, weight if bias is None else bias
        given = x, more, *added, total, normed, means, scales, epsilon
        launch(*given, **sizes, BLOCK=triton.next_power_of_2(columns), num_warps=_ADD_WARPS)
    return total, normed, means, scales


def add_norm_back(
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
    tile, columns, count = tile or _NORM, total.shape[-1], len(scales)
    by_x, by_more = torch.empty_like(total), torch.empty_like(total, dtype=kind)
    programs = triton.cdiv(count, tile.tall * tile.steps)
    parts = torch.empty(programs, 3 * columns, dtype=torch.float32, device=total.device)
    sizes = {"COLUMNS": columns, "CENTRED": centred, "HAS_TOTAL": by_total is not None, "HAS_OWED": owed}
    shape = {"STEPS": tile.steps, "STAGES": tile.stages, "TALL": tile.tall, "BLOCK": triton.next_power_of_2(columns)}
    launch: Any = _add_norm_back[(programs,)]
    with torch.cuda.device_of(total):  # type: ignore[no-untyped-call]
        given = by_normed if by_total is None else by_total, by_normed, total, means, scales, weight
        launch(*given, by_x, by_more, parts, count, **sizes, **shape, num_warps=tile.warps)
    return by_x, by_more, _added(parts).view(3, -1)


def gelu_back(slopes: Tensor, before: Tensor, *, tanh: bool, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """Slopes before the activation, and what they add up to in each column."""
    tile, columns = tile or _GELU, before.shape[-1]
    count = before.numel() // columns
    out, programs = torch.empty_like(before), triton.cdiv(count, tile.tall * tile.steps)
    parts = torch.empty(programs, columns, dtype=torch.float32, device=before.device)
    launch: Any = _gelu_back[(triton.cdiv(columns, tile.wide), programs)]
    with torch.cuda.device_of(before):  # type: ignore[no-untyped-call]
        launch(slopes, before, out, parts, count, COLUMNS=columns, TANH=tanh, **_shape(tile), num_warps=tile.warps)
    return out, _added(parts)


def join(query: Tensor, key: Tensor, value: Tensor, *, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The three side by side, and what they add up to in each column."""
    tile, columns = tile or _JOIN, query.shape[-1]
    count = query.numel() // columns
    out, programs = query.new_empty(*query.shape[:-1], 3 * columns), triton.cdiv(count, tile.tall * tile.steps)
    parts = torch.empty(programs, 3 * columns, dtype=torch.float32, device=query.device)
    launch: Any = _join[(3 * triton.cdiv(columns, tile.wide), programs)]
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        launch(query, key, value, out, parts, count, COLUMNS=columns, **_shape(tile), num_warps=tile.warps)
    return out, _added(parts)


def _shape(tile: Tile) -> dict[str, int]:
    return {"STEPS": tile.steps, "STAGES": tile.stages, "TALL": tile.tall, "WIDE": tile.wide}


def look_back(slopes: Tensor, ids: Tensor, entries: int) -> Tensor:
    """Slopes of a table whose rows were looked up."""
    columns = slopes.shape[-1]
    table = torch.zeros(entries, columns, dtype=torch.float32, device=slopes.device)
    launch: Any = _look_back[(ids.numel(),)]
    with torch.cuda.device_of(slopes):  # type: ignore[no-untyped-call]
        launch(slopes, ids, table, COLUMNS=columns, BLOCK=triton.next_power_of_2(columns), num_warps=_ADD_WARPS)
    return table


def _added(parts: Tensor) -> Tensor:
    """The sum of all rows, from the first to the last."""
    count, columns = parts.shape
    sums = torch.empty(columns, dtype=torch.float32, device=parts.device)
    steps = triton.next_power_of_2(triton.cdiv(count, _ENDS.tall))  # a kernel for each of a few
    launch: Any = _add_up[(triton.cdiv(columns, _ENDS.wide),)]
    with torch.cuda.device_of(parts):  # type: ignore[no-untyped-call]
        shape = {"STEPS": steps, "TALL": _ENDS.tall, "WIDE": _ENDS.wide}
        launch(parts, sums, count, COLUMNS=columns, **shape, num_warps=_ENDS.warps)
    return sums
