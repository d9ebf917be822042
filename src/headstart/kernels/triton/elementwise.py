"""Memory-bound passes, each as one kernel where a compiler would make several.

N rows, D columns. Sums over all rows are written as one partial sum per program, and the partial sums are added up in the same
order every time.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_MIN_PROGRAMS = 256
"""Programs that work is divided among if there is enough of it."""


class RowTile(NamedTuple):
    """The block of rows that a program holds at a time, how many such blocks it processes, and how far it prefetches."""

    block_m: int
    steps: int
    warps: int
    stages: int
    block_n: int = 0  # 0: all columns

    def within(self, rows: int) -> "RowTile":
        """Return a tile of fewer steps for few rows, so that every multiprocessor is busy.

        Steps are powers of 2, since a kernel is compiled for each number.
        """
        max_steps = 1 << (max(1, rows // (_MIN_PROGRAMS * self.block_m)).bit_length() - 1)
        return self._replace(steps=min(self.steps, max_steps))


# the fastest of some dozens on an H200, for rows of three times 768 columns
_CONCAT_TILE = RowTile(block_m=4, steps=32, warps=4, stages=2, block_n=1024)
_SUM_TILE = RowTile(block_m=128, steps=0, warps=8, stages=0, block_n=32)


def warps_for(columns: int, per_thread: int, min_warps: int = 1) -> int:
    """Return the number of warps with which a thread holds at most `per_thread` numbers of a row."""
    return max(min_warps, int(triton.next_power_of_2(columns)) // (32 * per_thread))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _concat_sum_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    out,
    partial_sums,
    num_rows,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Copy some rows and columns of one of three tensors to their concatenation, and sum them up."""
    TILES: tl.constexpr = (COLUMNS + BLOCK_N - 1) // BLOCK_N
    which = tl.program_id(0) // TILES
    columns = tl.program_id(0) % TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    source = query if which == 0 else key
    if which == 2:
        source = value
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        rows = ((step * tl.num_programs(1) + tl.program_id(1)) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (rows < num_rows) & (columns < COLUMNS)[None, :]
        x = tl.load(source + rows * COLUMNS + columns[None, :], mask=mask, other=0.0)
        tl.store(out + rows * (3 * COLUMNS) + which * COLUMNS + columns[None, :], x, mask=mask)
        sums += x.to(tl.float32)
    offsets = tl.program_id(1).to(tl.int64) * (3 * COLUMNS) + which * COLUMNS + columns
    tl.store(partial_sums + offsets, tl.sum(sums, axis=0), mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sum_rows_kernel(  # type: ignore[no-untyped-def]
    x, sums, num_rows, COLUMNS: tl.constexpr, STEPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Sum some columns over all rows."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(STEPS):
        rows = step * BLOCK_M + tl.arange(0, BLOCK_M)
        offsets = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
        total += tl.load(x + offsets, mask=(rows < num_rows)[:, None] & (columns < COLUMNS)[None, :], other=0.0)
    tl.store(sums + columns, tl.sum(total, axis=0), mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load_entry(table, ids, row, entries, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the entry that an id names; NaN for an id outside the table."""
    entry, columns = tl.load(ids + row).to(tl.int64), tl.arange(0, BLOCK_N)
    mask = (columns < COLUMNS) & (entry >= 0) & (entry < entries)
    return tl.load(table + entry * COLUMNS + columns, mask=mask, other=float("nan"))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _embedding_kernel(  # type: ignore[no-untyped-def]
    ids,
    table,
    positions,
    position_table,
    out,
    entries,
    position_entries,
    COLUMNS: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Load one row of the table, plus one of the position table."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_N)
    embedded = _load_entry(table, ids, row, entries, COLUMNS, BLOCK_N)
    if HAS_POSITIONS:
        embedded += _load_entry(position_table, positions, row, position_entries, COLUMNS, BLOCK_N)
    tl.store(out + row * COLUMNS + columns, embedded, mask=columns < COLUMNS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _embedding_backward_kernel(grads, ids, table, entries, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add one row of gradients to that of its entry."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_N)
    mask = columns < COLUMNS
    entry = tl.load(ids + row).to(tl.int64)
    grad = tl.load(grads + row * COLUMNS + columns, mask=mask, other=0.0)
    is_entry = mask & (entry >= 0) & (entry < entries)
    tl.atomic_add(table + entry * COLUMNS + columns, grad, mask=is_entry, sem="relaxed")


def concat_sum(query: Tensor, key: Tensor, value: Tensor, *, tile: RowTile | None = None) -> tuple[Tensor, Tensor]:
    """Return the concatenation of the three and the sum of each of its columns."""
    columns = query.shape[-1]
    num_rows = query.numel() // columns
    tile = tile or _CONCAT_TILE.within(num_rows)
    out = query.new_empty(*query.shape[:-1], 3 * columns)
    programs = triton.cdiv(num_rows, tile.block_m * tile.steps)
    partial_sums = torch.empty(programs, 3 * columns, dtype=torch.float32, device=query.device)
    launch: Any = _concat_sum_kernel[(3 * triton.cdiv(columns, tile.block_n), programs)]
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        launch(
            query,
            key,
            value,
            out,
            partial_sums,
            num_rows,
            COLUMNS=columns,
            STEPS=tile.steps,
            STAGES=tile.stages,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            num_warps=tile.warps,
        )
    return out, sum_rows(partial_sums)


def embedding(ids: Tensor, table: Tensor, positions: Tensor | None, position_table: Tensor | None) -> Tensor:
    """Return rows of a table, plus rows of a position table if there is one."""
    columns = table.shape[-1]
    out = table.new_empty(*ids.shape, columns)
    launch: Any = _embedding_kernel[(ids.numel(),)]
    with torch.cuda.device_of(table):  # type: ignore[no-untyped-call]
        launch(
            ids,
            table,
            ids if positions is None else positions,
            table if position_table is None else position_table,
            out,
            len(table),
            0 if position_table is None else len(position_table),
            COLUMNS=columns,
            HAS_POSITIONS=position_table is not None,
            BLOCK_N=triton.next_power_of_2(columns),
            num_warps=warps_for(columns, 16, 4),
        )
    return out


def embedding_backward(grads: Tensor, ids: Tensor, entries: int) -> Tensor:
    """Return the gradient of a table whose rows were looked up."""
    columns = grads.shape[-1]
    table = torch.zeros(entries, columns, dtype=torch.float32, device=grads.device)
    launch: Any = _embedding_backward_kernel[(ids.numel(),)]
    with torch.cuda.device_of(grads):  # type: ignore[no-untyped-call]
        launch(
            grads,
            ids,
            table,
            entries,
            COLUMNS=columns,
            BLOCK_N=triton.next_power_of_2(columns),
            num_warps=warps_for(columns, 16, 4),
        )
    return table


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum over all rows, always in the same order."""
    num_rows, columns = x.shape
    sums = torch.empty(columns, dtype=torch.float32, device=x.device)
    steps = triton.next_power_of_2(triton.cdiv(num_rows, _SUM_TILE.block_m))  # few numbers, each of which is a kernel
    launch: Any = _sum_rows_kernel[(triton.cdiv(columns, _SUM_TILE.block_n),)]
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        launch(
            x,
            sums,
            num_rows,
            COLUMNS=columns,
            STEPS=steps,
            BLOCK_M=_SUM_TILE.block_m,
            BLOCK_N=_SUM_TILE.block_n,
            num_warps=_SUM_TILE.warps,
        )
    return sums
