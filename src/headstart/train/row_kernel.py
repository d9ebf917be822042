"""The loss of each row of scores and its slopes, in place: two readings of a row by one program, the second from cache.

Needs triton, which comes with torch where there are CUDA devices; `bites` does the same without it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 2048, 8
"""Scores that a program holds at a time, and its warps: the quickest of six on an H200."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _row(  # type: ignore[no-untyped-def]
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


def to_slopes(
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
    kernel: Any = _row[(rows,)]
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
def _times(rows, numbers, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(rows + row * COLUMNS + at, mask=at < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + at, x * tl.load(numbers + row), mask=at < COLUMNS)


def times_rows(rows: Tensor, numbers: Tensor) -> Tensor:
    """Each row times a number of its own, in fp32."""
    count, columns = rows.shape
    out = torch.empty(count, columns, dtype=torch.float32, device=rows.device)
    launch: Any = _times[(count,)]
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        if count:
            launch(rows.contiguous(), numbers, out, COLUMNS=columns, BLOCK=triton.next_power_of_2(columns), num_warps=4)
    return out
