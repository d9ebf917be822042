"""Passes that a compiler makes several of, each as one kernel: on a GPU they are bounded by what they read and write.

Needs triton, which comes with torch where there are CUDA devices; `stream.py` asks for them where it is there. N rows, D
columns. Sums over all rows are written in parts, one for each program, and added up in the same order every time.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUM_PARTS = 256
"""Programs, or rows of them, among which work is shared out if there is enough of it."""


class Tile(NamedTuple):
    """What a program holds at a time, how often it goes on to the next rows, and by how many it reads ahead."""

    tall: int
    steps: int
    warps: int
    stages: int
    wide: int = 0  # all columns where it is 0

    def within(self, rows: int) -> "Tile":
        """Of fewer steps where rows are few, so that every multiprocessor gets some; powers of 2, each being a kernel."""
        most = 1 << (max(1, rows // (_NUM_PARTS * self.tall)).bit_length() - 1)
        return self._replace(steps=min(self.steps, most))


# the quickest of some dozens on an H200, for rows of three times 768 columns
_JOIN = Tile(tall=4, steps=32, warps=4, stages=2, wide=1024)
_ENDS = Tile(tall=128, steps=0, warps=8, stages=0, wide=32)


def warps_for(columns: int, each: int, least: int = 1) -> int:
    """So many that a thread holds no more than `each` numbers of a row."""
    return max(least, int(triton.next_power_of_2(columns)) // (32 * each))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _concat_sum_kernel(  # type: ignore[no-untyped-def]
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
def _sum_parts_kernel(  # type: ignore[no-untyped-def]
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
def _row(table, ids, row, entries, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The entry that an id names; not a number where there is none."""
    entry, columns = tl.load(ids + row).to(tl.int64), tl.arange(0, BLOCK)
    there = (columns < COLUMNS) & (entry >= 0) & (entry < entries)
    return tl.load(table + entry * COLUMNS + columns, mask=there, other=float("nan"))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _embedding_kernel(  # type: ignore[no-untyped-def]
    ids,
    table,
    at,
    places,
    out,
    entries,
    most,
    COLUMNS: tl.constexpr,
    HAS_PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of the table, and of the places."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    found = _row(table, ids, row, entries, COLUMNS, BLOCK)
    if HAS_PLACES:
        found += _row(places, at, row, most, COLUMNS, BLOCK)
    tl.store(out + row * COLUMNS + columns, found, mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _embedding_backward_kernel(slopes, ids, table, entries, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of slopes, added to that of its entry."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    there = at < COLUMNS
    entry = tl.load(ids + row).to(tl.int64)
    slope = tl.load(slopes + row * COLUMNS + at, mask=there, other=0.0)
    known = there & (entry >= 0) & (entry < entries)
    tl.atomic_add(table + entry * COLUMNS + at, slope, mask=known, sem="relaxed")


def concat_sum(query: Tensor, key: Tensor, value: Tensor, *, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The three side by side, and what they add up to in each column."""
    columns = query.shape[-1]
    count = query.numel() // columns
    tile = tile or _JOIN.within(count)
    out, programs = query.new_empty(*query.shape[:-1], 3 * columns), triton.cdiv(count, tile.tall * tile.steps)
    parts = torch.empty(programs, 3 * columns, dtype=torch.float32, device=query.device)
    launch: Any = _concat_sum_kernel[(3 * triton.cdiv(columns, tile.wide), programs)]
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        launch(query, key, value, out, parts, count, COLUMNS=columns, **_shape(tile), num_warps=tile.warps)
    return out, sum_parts(parts)


def _shape(tile: Tile) -> dict[str, int]:
    return {"STEPS": tile.steps, "STAGES": tile.stages, "TALL": tile.tall, "WIDE": tile.wide}


def embedding(ids: Tensor, table: Tensor, at: Tensor | None, places: Tensor | None) -> Tensor:
    """Rows of a table, those of another added."""
    columns = table.shape[-1]
    out = table.new_empty(*ids.shape, columns)
    sizes = {"COLUMNS": columns, "HAS_PLACES": places is not None, "BLOCK": triton.next_power_of_2(columns)}
    launch: Any = _embedding_kernel[(ids.numel(),)]
    with torch.cuda.device_of(table):  # type: ignore[no-untyped-call]
        given = ids, table, ids if at is None else at, table if places is None else places, out
        launch(*given, len(table), 0 if places is None else len(places), **sizes, num_warps=warps_for(columns, 16, 4))
    return out


def embedding_backward(slopes: Tensor, ids: Tensor, entries: int) -> Tensor:
    """Slopes of a table whose rows were looked up."""
    columns = slopes.shape[-1]
    table = torch.zeros(entries, columns, dtype=torch.float32, device=slopes.device)
    launch: Any = _embedding_backward_kernel[(ids.numel(),)]
    with torch.cuda.device_of(slopes):  # type: ignore[no-untyped-call]
        sizes = {"COLUMNS": columns, "BLOCK": triton.next_power_of_2(columns)}
        launch(slopes, ids, table, entries, **sizes, num_warps=warps_for(columns, 16, 4))
    return table


def sum_parts(parts: Tensor) -> Tensor:
    """The sum of all rows, from the first to the last."""
    count, columns = parts.shape
    sums = torch.empty(columns, dtype=torch.float32, device=parts.device)
    steps = triton.next_power_of_2(triton.cdiv(count, _ENDS.tall))  # a kernel for each of a few
    launch: Any = _sum_parts_kernel[(triton.cdiv(columns, _ENDS.wide),)]
    with torch.cuda.device_of(parts):  # type: ignore[no-untyped-call]
        shape = {"STEPS": steps, "TALL": _ENDS.tall, "WIDE": _ENDS.wide}
        launch(parts, sums, count, COLUMNS=columns, **shape, num_warps=_ENDS.warps)
    return sums
