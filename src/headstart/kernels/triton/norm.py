"""Residual addition and normalization as one kernel, and their backward pass as another.

N rows, D columns. A program of the backward pass strides over the rows by the number of programs, so that all of them together
read memory from one end to the other.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headstart.kernels.triton.elementwise import RowTile, sum_rows, warps_for

_TILE = RowTile(block_m=1, steps=64, warps=1, stages=3)
"""The fastest of some dozens on an H200, for rows of 768 columns."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    residual,
    hidden,
    hidden_bias,
    weight,
    bias,
    total,
    normed,
    means,
    scales,
    epsilon,
    COLUMNS: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_HIDDEN_BIAS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the sum of one row, and its norm."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)
    mask = columns < COLUMNS
    offsets = row * COLUMNS + columns
    x = tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(hidden + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_HIDDEN_BIAS:
        x += tl.load(hidden_bias + columns, mask=mask, other=0.0)
    tl.store(total + offsets, x, mask=mask)
    if CENTERED:
        mean = tl.sum(x, axis=0) / COLUMNS
        tl.store(means + row, mean)
        x = tl.where(mask, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / COLUMNS + epsilon)
    tl.store(scales + row, scale)
    y = x * scale * tl.load(weight + columns, mask=mask, other=0.0)
    if HAS_BIAS:
        y += tl.load(bias + columns, mask=mask, other=0.0)
    tl.store(normed + offsets, y.to(normed.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_norm_backward_kernel(  # type: ignore[no-untyped-def]
    grad_total,
    grad_normed,
    total,
    means,
    scales,
    weight,
    grad_residual,
    grad_hidden,
    partial_sums,
    num_rows,
    COLUMNS: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_GRAD_TOTAL: tl.constexpr,
    HAS_HIDDEN_BIAS: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute the gradients of both inputs for some rows, and partial sums of those of weight and biases."""
    columns = tl.arange(0, BLOCK_N)
    w = tl.load(weight + columns, mask=columns < COLUMNS, other=0.0)[None, :]
    grad_weight, grad_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32), tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    grad_hidden_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        rows = (step * tl.num_programs(0) + tl.program_id(0)) * BLOCK_M + tl.arange(0, BLOCK_M)
        offsets = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
        mask = (rows < num_rows)[:, None] & (columns < COLUMNS)[None, :]
        grad = tl.load(grad_normed + offsets, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(total + offsets, mask=mask, other=0.0)
        scale = tl.load(scales + rows, mask=rows < num_rows, other=0.0)[:, None]
        if CENTERED:
            x -= tl.load(means + rows, mask=rows < num_rows, other=0.0)[:, None]
        x *= scale
        grad_weight += grad * x
        grad_bias += grad
        grad *= w
        inner = grad - x * (tl.sum(grad * x, axis=1) / COLUMNS)[:, None]
        if CENTERED:
            inner -= (tl.sum(grad, axis=1) / COLUMNS)[:, None]
        inner *= scale
        if HAS_GRAD_TOTAL:
            inner += tl.load(grad_total + offsets, mask=mask, other=0.0)
        tl.store(grad_residual + offsets, inner, mask=mask)
        tl.store(grad_hidden + offsets, inner.to(grad_hidden.dtype.element_ty), mask=mask)
        if HAS_HIDDEN_BIAS:
            grad_hidden_bias += tl.where(mask, inner, 0.0)
    sums = partial_sums + tl.program_id(0).to(tl.int64) * 3 * COLUMNS + columns
    tl.store(sums, tl.sum(grad_weight, axis=0), mask=columns < COLUMNS)
    tl.store(sums + COLUMNS, tl.sum(grad_bias, axis=0), mask=columns < COLUMNS)
    tl.store(sums + 2 * COLUMNS, tl.sum(grad_hidden_bias, axis=0), mask=columns < COLUMNS)


def add_norm(
    residual: Tensor,
    hidden: Tensor,
    hidden_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    dtype: torch.dtype,
    *,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum, its norm in `dtype`, and the mean and the scale of each row."""
    columns = residual.shape[-1]
    rows = residual.numel() // columns
    total, normed = torch.empty_like(residual), torch.empty_like(residual, dtype=dtype)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=residual.device) for _ in range(2))
    launch: Any = _add_norm_kernel[(rows,)]
    with torch.cuda.device_of(residual):  # type: ignore[no-untyped-call]  # triton launches on the current device
        launch(
            residual,
            hidden,
            weight if hidden_bias is None else hidden_bias,
            weight,
            weight if bias is None else bias,
            total,
            normed,
            means,
            scales,
            epsilon,
            COLUMNS=columns,
            CENTERED=centered,
            HAS_HIDDEN_BIAS=hidden_bias is not None,
            HAS_BIAS=bias is not None,
            BLOCK_N=triton.next_power_of_2(columns),
            num_warps=warps_for(columns, 16, 4),
        )
    return total, normed, means, scales


def add_norm_backward(
    grad_total: Tensor | None,
    grad_normed: Tensor,
    total: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    *,
    centered: bool,
    has_hidden_bias: bool = False,
    tile: RowTile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the residual, of the hidden states (in `dtype`), and of weight, bias and hidden bias (3, D)."""
    columns, num_rows = total.shape[-1], len(scales)
    tile = tile or _TILE.within(num_rows)
    grad_residual, grad_hidden = torch.empty_like(total), torch.empty_like(total, dtype=dtype)
    programs = triton.cdiv(num_rows, tile.block_m * tile.steps)
    partial_sums = torch.empty(programs, 3 * columns, dtype=torch.float32, device=total.device)
    launch: Any = _add_norm_backward_kernel[(programs,)]
    with torch.cuda.device_of(total):  # type: ignore[no-untyped-call]
        launch(
            grad_normed if grad_total is None else grad_total,
            grad_normed,
            total,
            means,
            scales,
            weight,
            grad_residual,
            grad_hidden,
            partial_sums,
            num_rows,
            COLUMNS=columns,
            CENTERED=centered,
            HAS_GRAD_TOTAL=grad_total is not None,
            HAS_HIDDEN_BIAS=has_hidden_bias,
            STEPS=tile.steps,
            STAGES=tile.stages,
            BLOCK_M=tile.block_m,
            BLOCK_N=triton.next_power_of_2(columns),
            num_warps=warps_for(columns, 32, tile.warps),
        )
    return grad_residual, grad_hidden, sum_rows(partial_sums).view(3, -1)
