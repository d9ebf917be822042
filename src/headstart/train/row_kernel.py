"""The loss of each row of scores and its slopes, in place: two readings of a row by one program, the second from cache.

Needs triton, which comes with torch where there are CUDA devices; `bites` does the same without it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDEST = 8192
"""Scores that a program holds at a time."""
_A_THREAD = 8
"""Scores a thread: 16 bytes of bf16, the most that one instruction loads."""


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
    row = tl.program_id(0).to(tl.int64)
    here = scores + row * pitch
    target = tl.load(targets + row)
    picked = tl.load(here + target).to(tl.float32)  # before anything is overwritten
    if HAS_BIAS:
        picked += tl.load(bias + target)
    lanes = tl.arange(0, BLOCK)
    # a vocabulary has an entry, so the highest score is a number after the first turn
    peak = tl.full((), float("-inf"), tl.float32)
    powers = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + lanes
        # where a row ends is a round number, where the vocabulary does is not: a mask of it would take loads apart
        x = tl.load(here + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + at, mask=at < WIDTH, other=0.0)
        else:
            x = tl.where(at < VOCABULARY, x, float("-inf"))
        higher = tl.maximum(peak, tl.max(x, axis=0))
        powers = powers * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    mass = peak + tl.log(tl.sum(powers, axis=0))
    tl.store(losses + row, mass - picked)
    for start in range(0, WIDTH, BLOCK):
        at = start + lanes
        x = tl.load(here + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + at, mask=at < WIDTH, other=0.0)
        else:
            x = tl.where(at < VOCABULARY, x, float("-inf"))
        slope = tl.exp(x - mass) - tl.where(at == target, 1.0, 0.0)
        tl.store(here + at, slope.to(scores.dtype.element_ty), mask=at < WIDTH)


def to_slopes(scores: Tensor, vocabulary: int, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Turn scores into the slopes of the loss, and give the loss of each row.

    Args:
        scores: one row each, laid out in at least `vocabulary` places; what lies behind gets a slope of 0.
        bias: in fp32, as long as a row, minus infinity behind the vocabulary.
    """
    rows, width = scores.shape
    losses = torch.empty(rows, dtype=torch.float32, device=scores.device)
    block = min(_WIDEST, triton.next_power_of_2(width))
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
            num_warps=max(1, block // (32 * _A_THREAD)),
        )
    return losses
